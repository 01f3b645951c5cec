/* Numbers and names for people, and elements made of them. Text reaches the page as text nodes only. */

const AT_LEAST = "≥ "; // before a number that depends on an unknown size

function bytesText(count, exact = true) {
  const bound = exact ? "" : AT_LEAST;
  for (const unit of ["B", "KiB", "MiB", "GiB"]) {
    if (count < 1024) return bound + (unit === "B" ? count + " B" : count.toFixed(count < 100 ? 1 : 0) + " " + unit);
    count /= 1024;
  }
  return bound + count.toFixed(1) + " TiB";
}

function flopsText(count, exact = true) {
  if (!exact) return AT_LEAST + flopsText(count);
  for (const unit of ["", "k", "M", "G", "T"]) {
    if (count < 1000) return (unit ? count.toFixed(count < 100 ? 1 : 0) : count) + " " + unit + "flop";
    count /= 1000;
  }
  return count.toFixed(1) + " Pflop";
}

function timeText(seconds, digits = 3) {
  if (Math.abs(seconds) >= 999.5) return Math.round(seconds) + " s";
  const rounded = Number(seconds.toPrecision(digits));
  const [unit, size] = [["s", 1], ["ms", 1e-3], ["µs", 1e-6]].find(([, least]) => Math.abs(rounded) >= least) || ["ns", 1e-9];
  return rounded ? Number((rounded / size).toPrecision(digits)) + " " + unit : "0";
}

const numberText = (count) => count.toLocaleString("en-US");
const countText = (count, word) => numberText(count) + " " + word + (count === 1 ? "" : "s");

/* '/job:ps/task:1/GPU:0': without the parts that are the same in every cluster of today. */
const shortDevice = (name) => name.replace("/replica:0", "").replace("/device:", "/");
/* 'ps:1 GPU:0', where room is short. */
const briefDevice = (at) => brief(deviceText(at));
const brief = (names) => names.replace(/\/job:([^/]+)\/task:(\d+)\//g, "$1:$2 ").replace(" -> ", " → ");
const deviceText = (at) => shortDevice(plan.devices[at].name);

const pen = document.createElement("canvas").getContext("2d");
const widths = new Map();

function textWidth(text, font) {
  const key = font + "\n" + text;
  let width = widths.get(key);
  if (width === undefined) {
    pen.font = font;
    width = pen.measureText(text).width;
    if (widths.size < 50000) widths.set(key, width);
  }
  return width;
}

/* The text, or its beginning and end around an ellipsis, so that it is at most `room` wide: names differ there. */
function fitText(text, font, room) {
  if (textWidth(text, font) <= room) return text;
  let low = 0;
  let high = text.length - 1;
  const cut = (kept) => text.slice(0, Math.ceil(kept * 0.5)) + "…" + text.slice(text.length - Math.floor(kept * 0.5));
  while (low < high) {
    const mid = (low + high + 1) >> 1;
    if (textWidth(cut(mid), font) <= room) low = mid;
    else high = mid - 1;
  }
  return cut(low);
}

/* An HTML element: attributes, `class`, `on<event>` functions; children are elements, strings, or nothing. */
function h(tag, attributes = {}, ...children) {
  return dress(document.createElement(tag), attributes, children);
}

/* The same in SVG. */
function s(tag, attributes = {}, ...children) {
  return dress(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function dress(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (typeof value === "function") element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children.flat()) if (child !== null && child !== undefined && child !== "") element.append(child);
  return element;
}
