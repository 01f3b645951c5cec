/* A timeline: rows of bars over one axis of time. Only what can be seen is drawn: bars outside of the view are skipped, and
   bars too narrow to be told apart become one, so a step of 100,000 kernels moves as smoothly as one of ten. */

const NS = "http://www.w3.org/2000/svg";
const KINDS = ["kernel", "transfer", "wait"];
const ROW = 20, TOP = 26, GAP = 8, LETTER = 6.4, NARROW = 1.5;
const $ = (id) => document.getElementById(id);
const chart = $("chart");
let data, from, to, left, found = "", drawn = [];

async function unpack(text) {
  const packed = Uint8Array.from(atob(text.trim()), (c) => c.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

function time(seconds) {
  for (const [unit, size] of [["s", 1], ["ms", 1e-3], ["µs", 1e-6]]) {
    if (Math.abs(seconds) >= size) return `${Number((seconds / size).toPrecision(4))} ${unit}`;
  }
  return seconds ? `${Number((seconds / 1e-9).toPrecision(3))} ns` : "0";
}

function make(kind, attributes, text) {
  const element = document.createElementNS(NS, kind);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (text !== undefined) element.textContent = text;
  return element;
}

/* The first bar of a row that ends after a moment: bars of a row do not overlap, so their ends ascend. */
function firstAfter(row, moment) {
  let a = 0, b = row.finish.length;
  while (a < b) {
    const m = (a + b) >> 1;
    if (row.finish[m] < moment) a = m + 1; else b = m;
  }
  return a;
}

function draw() {
  const width = chart.clientWidth || 900;
  const scale = (width - left - 10) / (to - from);
  const parts = [];
  drawn = [];
  let y = TOP;
  data.rows.forEach((row, i) => {
    if (row.row === 0) {
      if (i) y += GAP;
      const rows = data.rows.filter((r) => r.lane === row.lane).length;
      parts.push(make("rect", { class: "band", x: 0, y: y - 2, width, height: rows * ROW + 2 }));
      parts.push(make("text", { x: 8, y: y + 14, class: "lane" }, row.lane));
    }
    drawRow(row, y, scale, parts);
    y += ROW;
  });
  const step = stepOf(to - from, (width - left) / 110);
  const ticks = [];
  for (let t = Math.ceil(from / step) * step; t <= to + step * 1e-6; t += step) {
    const x = left + (t - from) * scale;
    ticks.push(make("line", { class: "tick", x1: x, x2: x, y1: 18, y2: y + 4 }));
    ticks.push(make("text", { class: "soft", x, y: 13, "text-anchor": x > width - 30 ? "end" : "middle" }, time(Math.abs(t) < step * 1e-6 ? 0 : t)));
  }
  const clip = make("clipPath", { id: "plot" });
  clip.append(make("rect", { x: left, y: 0, width: Math.max(width - left, 0), height: y + 8 }));
  const bars = make("g", { "clip-path": "url(#plot)" });
  const under = parts.filter((p) => p.classList.contains("band") || p.classList.contains("lane"));
  bars.append(...parts.filter((p) => !under.includes(p)));
  chart.setAttribute("height", y + 8);
  chart.replaceChildren(clip, ...under, ...ticks, bars);
}

function drawRow(row, y, scale, parts) {
  const n = row.start.length;
  let i = firstAfter(row, from);
  while (i < n && row.start[i] <= to) {
    let end = i + 1, finish = row.finish[i], critical = row.critical[i];
    let hit = row.name[i].toLowerCase().includes(found);
    while (end < n && (finish - row.start[i]) * scale < NARROW && (row.start[end] - finish) * scale < NARROW) {
      finish = row.finish[end];
      critical |= row.critical[end];
      hit ||= row.name[end].toLowerCase().includes(found);
      end += 1;
    }
    const x = left + (row.start[i] - from) * scale, wide = Math.max((finish - row.start[i]) * scale, 1);
    const kind = KINDS[row.kind[i]];
    const classes = `bar ${kind}${critical ? " critical" : ""}${found && !hit ? " faded" : ""}`;
    const label = tell(row, i, end, finish);
    const bar = make("rect", { class: classes, x, y, width: wide, height: ROW - 4, rx: 2, "data-bar": drawn.length,
      role: "img", "aria-label": label });
    drawn.push({ row, i, end, finish, label });
    parts.push(bar);
    const shownFrom = Math.max(x, left), fits = Math.floor((x + wide - shownFrom - 6) / LETTER);
    if (fits >= 3 && kind !== "wait") {
      const name = row.name[i];
      parts.push(make("text", { class: "inside", x: shownFrom + 3, y: y + 12 }, name.length <= fits ? name : name.slice(0, fits - 1) + "…"));
    }
    i = end;
  }
}

function tell(row, i, end, finish) {
  const more = end - i > 1 ? ` and ${end - i - 1} more` : "";
  const lines = [`${row.name[i]}${more}`, `${time(finish - row.start[i])}, from ${time(row.start[i])}`];
  if (row.note[i] && !more) lines.push(row.note[i]);
  if (row.critical[i]) lines.push("the end of the step depends on it");
  return lines.join("\n");
}

function stepOf(span, most) {
  let step = 10 ** Math.ceil(Math.log10(span || 1));
  for (;;) {
    for (const part of [0.5, 0.2, 0.1]) {
      if (span / (step * part) > Math.max(most, 2)) return step * (part === 0.5 ? 1 : part === 0.2 ? 0.5 : 0.2);
    }
    step /= 10;
  }
}

function look(a, b) {
  const whole = data.seconds || 1, span = Math.min(Math.max(b - a, whole * 1e-7), whole * 1.02);
  from = Math.max(-0.01 * whole, Math.min(a, whole * 1.01 - span));
  to = from + span;
  document.documentElement.dataset.from = from;
  document.documentElement.dataset.to = to;
  draw();
}

function zoom(factor, at = (from + to) / 2) {
  look(at - (at - from) * factor, at + (to - at) * factor);
}

const timeAt = (x) => from + ((x - chart.getBoundingClientRect().left - left) / (chart.clientWidth - left - 10)) * (to - from);
const actions = { in: () => zoom(0.5), out: () => zoom(2), fit: () => look(0, data.seconds), theme };

function theme() {
  const dark = getComputedStyle(document.documentElement).colorScheme === "dark";
  document.documentElement.dataset.theme = dark ? "light" : "dark";
}

function hover(event) {
  const tip = $("tip"), at = event.target.dataset.bar;
  tip.hidden = at === undefined;
  if (tip.hidden) return;
  tip.textContent = drawn[at].label;
  tip.style.left = `${Math.max(4, Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8))}px`;
  tip.style.top = `${Math.max(4, Math.min(event.clientY + 16, innerHeight - tip.offsetHeight - 8))}px`;
}

function listen() {
  let held = null;
  chart.addEventListener("wheel", (e) => {
    if (e.shiftKey || Math.abs(e.deltaX) > Math.abs(e.deltaY)) {
      const move = ((e.deltaX || e.deltaY) / chart.clientWidth) * (to - from);
      look(from + move, to + move);
    } else zoom(1.0015 ** e.deltaY, timeAt(e.clientX));
    e.preventDefault();
  }, { passive: false });
  chart.addEventListener("pointerdown", (e) => { held = { x: e.clientX, from, to, moved: false, bar: e.target.dataset.bar }; });
  addEventListener("pointermove", (e) => {
    if (!held) return hover(e);
    const move = ((held.x - e.clientX) / (chart.clientWidth - left)) * (held.to - held.from);
    if (Math.abs(held.x - e.clientX) > 3) held.moved = true;
    if (held.moved) look(held.from + move, held.to + move);
  });
  addEventListener("pointerup", () => {
    if (held && !held.moved && held.bar !== undefined) {
      const { row, i, finish, label } = drawn[held.bar], room = (finish - row.start[i]) * 0.5 || data.seconds * 1e-4;
      $("said").textContent = label.split("\n").slice(0, 2).join(": ");
      look(row.start[i] - room, finish + room);
    }
    held = null;
  });
  addEventListener("keydown", (e) => {
    if (e.target === $("search")) return;
    const move = (to - from) / 8;
    const does = { "+": actions.in, "=": actions.in, "-": actions.out, 0: actions.fit,
      ArrowLeft: () => look(from - move, to - move), ArrowRight: () => look(from + move, to + move), "/": () => $("search").focus() }[e.key];
    if (does && !e.ctrlKey && !e.metaKey) { does(); e.preventDefault(); }
  });
  for (const button of document.querySelectorAll("[data-do]")) button.addEventListener("click", actions[button.dataset.do]);
  $("search").addEventListener("input", (e) => {
    found = e.target.value.toLowerCase();
    const count = data.rows.reduce((sum, r) => sum + r.name.filter((n) => n.toLowerCase().includes(found)).length, 0);
    $("said").textContent = found ? `${count} found` : "";
    draw();
  });
  addEventListener("resize", draw);
}

unpack($("data").textContent).then((unpacked) => {
  data = unpacked;
  $("title").textContent = data.title;
  $("facts").textContent = [time(data.seconds), ...data.facts.map(([what, much]) => `${what}: ${much}`)].join(" · ");
  left = Math.min(Math.max(60, ...data.rows.map((r) => r.lane.length * LETTER + 20)), (chart.clientWidth || 900) * 0.4);
  listen();
  actions.fit();
  document.documentElement.dataset.ready = "yes";
});
