/* The timeline: rows of bars over one axis of time, a track for each device and link, the memory that a device holds below its track. Charts
   (predicted, measured) stand beside each other in each track. Only what can be seen is drawn: tracks and bars outside of the view are
   skipped, and bars too narrow to be told apart become one, so a step of 100,000 kernels moves as smoothly as one of ten. */

const BAR = { row: 20, top: 28, gap: 8, memory: 26, letter: 6.4, narrow: 1.5, arrows: 150 };
const [KERNEL, TRANSFER, WAIT] = [0, 1, 2];

const timeline = {
  section: document.getElementById("bars"),
  svg: document.getElementById("chart"),
  charts: [],
  colour: "op",
  found: "",
  chosen: null, // {chart, i}
  drawn: [],    // what stands for each bar that is drawn

  start(charts) {
    this.charts = charts;
    this.seconds = Math.max(...charts.map((c) => c.seconds)) || 1;
    this.stack();
    if (!charts.some((c) => c.ops.some(Boolean)) && !plan.names) this.colour = "scope";
    this.paint();
    this.listen();
    this.look(0, this.seconds, false);
  },

  show() { this.left = Math.min(Math.max(90, ...this.bands.map((b) => textWidth(trackText(b.track), FONT.chip) + 26)), (this.svg.clientWidth || 900) * 0.34); this.draw(); },

  /* Where each track stands: those of devices first, then links; of each chart its rows, and the device's memory. */
  stack() {
    const tracks = new Map();
    for (const chart of this.charts) {
      let at = 0, row = 0;
      for (const [track, rows] of chart.tracks) {
        const band = { track, chart, rows: [], memory: chart.memory.findIndex(([device]) => device === track) };
        for (let r = 0; r < rows; r++, row++) band.rows.push([at, (at += chart.rowSize[row])]);
        if (!tracks.has(track)) tracks.set(track, []);
        tracks.get(track).push(band);
      }
    }
    const ordered = [...tracks.values()].sort((a, b) => a[0].track.includes(" -> ") - b[0].track.includes(" -> "));
    this.bands = ordered.flat();
    let y = BAR.top;
    ordered.forEach((bands) => bands.forEach((band, i) => {
      Object.assign(band, { y, isFirst: i === 0, height: Math.max(band.rows.length * BAR.row + (band.memory < 0 ? 0 : BAR.memory), i === 0 && this.charts.length > 1 ? 32 : 0) });
      y += band.height + (i === bands.length - 1 ? BAR.gap : 2);
    }));
    this.height = y + 8;
    for (const chart of this.charts) chart.bandOf = new Map(this.bands.filter((b) => b.chart === chart).map((b) => [b.track, b]));
  },

  // -- colours

  keyOf(chart, i) {
    const name = chart.nameOf(i);
    if (this.colour === "scope") return name.split("/").slice(0, this.depth).join("/");
    const node = plan.byName?.get(name);
    return chart.ops[chart.op[i]] || (node === undefined ? "" : plan.ops[plan.op[node]][0]);
  },

  paint() {
    for (this.depth = 1; this.depth < 4; this.depth++) {
      const sums = new Map();
      for (const chart of this.charts) {
        chart.keys = Array(chart.start.length);
        for (let i = 0; i < chart.start.length; i++) {
          if (chart.kind[i] !== KERNEL) continue;
          const key = (chart.keys[i] = this.keyOf(chart, i));
          sums.set(key, (sums.get(key) || 0) + (chart.finish[i] - chart.start[i]) * chart.tick);
        }
      }
      this.hues = huesByShare(sums);
      if (this.colour === "op" || this.hues.size > 1) break;
    }
    const marks = [...this.hues].map(([key, hue]) => [hue, key || "kernel"]);
    showLegend(document.getElementById("bars-legend"), [...marks, ...(marks.length === HUES ? [["none", "other"]] : []), ["transfer", "transfer"], ["wait", "waiting"], ["line-critical", "critical path"]]);
    document.querySelector('[data-do="colour"]').textContent = "Colour: " + this.colour;
  },

  // -- drawing

  draw() {
    const width = this.svg.clientWidth || 900;
    const top = this.section.scrollTop, bottom = top + this.section.clientHeight;
    this.scale = (width - this.left - 12) / (this.to - this.from);
    this.drawn = [];
    const under = [], bars = [], arrows = [];
    for (const band of this.bands) {
      if (band.y + band.height < top || band.y > bottom) continue;
      under.push(s("rect", { class: "band", x: 0, y: band.y - 2, width, height: band.height + 2 }));
      if (band.isFirst) under.push(s("text", { x: 10, y: band.y + 13, class: "track" }, fitText(trackText(band.track), FONT.chip, this.left - 18)));
      if (this.charts.length > 1) under.push(s("text", { x: 10, y: band.y + (band.isFirst ? 26 : 13), class: "soft" }, band.chart.label));
      band.rows.forEach(([first, last], r) => this.drawRow(band, first, last, band.y + r * BAR.row, bars, arrows));
      if (band.memory >= 0) this.drawMemory(band, under, bars);
    }
    const marks = [s("rect", { class: "axis", x: 0, y: top, width, height: BAR.top - 6 })];
    const lines = [];
    const step = roundStep(this.to - this.from, (width - this.left) / 110);
    for (let t = Math.ceil(this.from / step - 1e-9) * step; t <= this.to + step * 1e-6; t += step) {
      const x = this.x(t);
      lines.push(s("line", { class: "tick", x1: x, x2: x, y1: top, y2: Math.min(this.height, bottom) }));
      marks.push(s("text", { class: "soft", x, y: top + 14, "text-anchor": x > width - 30 ? "end" : "middle" }, tickText(t, step)));
    }
    const clip = s("clipPath", { id: "plot" }, s("rect", { x: this.left, y: 0, width: Math.max(width - this.left, 0), height: this.height }));
    this.svg.setAttribute("height", Math.max(this.height, this.section.clientHeight - 4));
    const few = arrows.length <= BAR.arrows ? arrows : arrows.filter((a) => a.classList.contains("critical") || a.classList.contains("lit"));
    this.svg.replaceChildren(clip, ...under, ...lines, s("g", { "clip-path": "url(#plot)" }, bars, few), ...marks);
  },

  x(seconds) { return this.left + (seconds - this.from) * this.scale; },

  drawRow(band, first, last, y, bars, arrows) {
    const { chart } = band;
    let i = firstAfter(chart, first, last, this.from);
    const isHit = (k) => chart.nameOf(k).toLowerCase().includes(this.found);
    while (i < last && chart.start[i] * chart.tick <= this.to) {
      const start = chart.start[i] * chart.tick;
      let end = i + 1, finish = chart.finish[i] * chart.tick, critical = chart.critical[i], hit = !this.found || isHit(i);
      const narrow = (seconds) => seconds * this.scale < BAR.narrow;
      while (end < last && narrow(finish - start) && narrow(chart.finish[end] * chart.tick - finish)) {  // a long wait behind a short kernel is its own bar
        finish = chart.finish[end] * chart.tick;
        critical |= chart.critical[end];
        hit ||= isHit(end);
        end++;
      }
      const kind = chart.kind[i];
      const fill = kind === KERNEL ? this.hues.get(chart.keys[i]) || "none" : kind === TRANSFER ? "transfer" : "wait";
      const isChosen = this.chosen?.chart === chart && this.chosen.i >= i && this.chosen.i < end;
      const x = this.x(start), wide = Math.max((finish - start) * this.scale, 1);
      const bar = s("rect", { class: "bar fill-" + fill + (critical ? " critical" : "") + (hit ? "" : " faded") + (isChosen ? " chosen" : ""),
        x, y, width: wide, height: BAR.row - 4, rx: 2, "data-bar": this.drawn.length, role: "img", "aria-label": chart.nameOf(i) });
      this.drawn.push({ bar: true, chart, i, end, band });
      bars.push(bar);
      if (critical) bars.push(s("rect", { class: "under-critical", x, y: y + BAR.row - 4, width: wide, height: 3 }));
      const shown = Math.max(x, this.left), fits = Math.floor((x + wide - shown - 6) / BAR.letter);
      if (fits >= 3 && kind !== WAIT) bars.push(s("text", { class: "inside", x: shown + 3, y: y + 12 }, clipped(chart.nameOf(i), fits)));
      if (kind === TRANSFER && (end === i + 1 || critical)) this.drawArrow(chart, i, band, critical, isChosen, arrows);
      i = end;
    }
  },

  /* From the device that sends to the one that receives, from when a value leaves until it arrives. */
  drawArrow(chart, i, band, critical, isChosen, arrows) {
    const [from, to] = band.track.split(" -> ").map((track) => chart.bandOf.get(track));
    if (!from || !to) return;
    const a = { x: this.x(chart.start[i] * chart.tick), y: from.y + BAR.row / 2 - 2 };
    const b = { x: this.x(chart.finish[i] * chart.tick), y: to.y + BAR.row / 2 - 2 };
    const bend = Math.max(14, (b.x - a.x) / 2);
    arrows.push(s("path", { class: "arrow" + (critical ? " critical" : "") + (isChosen ? " lit" : ""), d: `M${a.x},${a.y}C${a.x + bend},${a.y} ${b.x - bend},${b.y} ${b.x},${b.y}`,
      "marker-end": "url(#" + (isChosen ? "tip-lit" : critical ? "tip-critical" : "tip-data") + ")" }));
  },

  /* What a device holds, as a share of the most that any device holds. */
  drawMemory(band, under, bars) {
    const { chart, memory } = band;
    const first = chart.memoryStart[memory], last = chart.memoryStart[memory + 1];
    const floor = band.y + band.height - 2;
    const high = (bytes) => floor - (bytes / (this.mostHeld ||= this.charts.flatMap((c) => Array.from(c.memoryBytes)).reduce((a, b) => Math.max(a, b), 1))) * (BAR.memory - 5);
    const points = [];
    let y = floor, most = 0;
    for (let k = first; k < last; k++) {
      const t = chart.memoryAt[k] * chart.tick, next = high(chart.memoryBytes[k]);
      most = Math.max(most, chart.memoryBytes[k]);
      if (t > this.to) break;
      const x = this.x(Math.max(t, this.from)).toFixed(1);
      points.push(x + "," + y.toFixed(1), x + "," + next.toFixed(1));
      y = next;
    }
    const end = this.x(Math.min(this.to, chart.seconds)).toFixed(1);
    if (points.length) bars.push(s("polygon", { class: "held", points: [points[0].split(",")[0] + "," + floor, ...points, end + "," + y.toFixed(1), end + "," + floor].join(" ") }));
    under.push(s("text", { x: this.left - 8, y: floor - 4, class: "soft", "text-anchor": "end" }, "peak " + bytesText(most, chart.memory[memory][1])));
  },

  // -- moving, choosing

  look(a, b, draw = true) {
    const span = Math.min(Math.max(b - a, this.seconds * 1e-7), this.seconds * 1.02);
    this.from = Math.max(-0.01 * this.seconds, Math.min(a, this.seconds * 1.01 - span));
    this.to = this.from + span;
    Object.assign(document.documentElement.dataset, { from: this.from, to: this.to });
    if (draw) this.draw();
  },

  zoom(factor, at = (this.from + this.to) / 2) { this.look(at - (at - this.from) * factor, at + (this.to - at) * factor); },

  act(name) {
    if (name === "in") this.zoom(0.5);
    else if (name === "out") this.zoom(2);
    else if (name === "fit") this.look(0, this.seconds);
    else if (name === "colour") { this.colour = this.colour === "op" ? "scope" : "op"; this.paint(); this.draw(); }
  },

  choose(chart, i, goes = false) {
    this.chosen = { chart, i };
    tip.hide();
    const start = chart.start[i] * chart.tick, finish = chart.finish[i] * chart.tick;
    if (goes) { const room = (finish - start) * 0.5 || this.seconds * 1e-4; this.look(start - room, finish + room, false); }
    const y = this.bands.find((b) => b.chart === chart && b.rows.some(([first, last]) => i >= first && i < last)).y;
    if (y < this.section.scrollTop + BAR.top || y + BAR.row > this.section.scrollTop + this.section.clientHeight) this.section.scrollTop = y - 80;
    this.draw();
    detail.show({ bar: this.chosen });
    say(barLines(chart, i).slice(0, 2).join(": "));
  },

  /* To the next bar of the critical path, or of what is searched for; the first one after the last. */
  next(by = 1) {
    const hits = [];
    for (const chart of this.charts) for (let i = 0; i < chart.start.length; i++) if (this.found ? chart.nameOf(i).toLowerCase().includes(this.found) : chart.critical[i]) hits.push({ chart, i });
    hits.sort((a, b) => this.charts.indexOf(a.chart) - this.charts.indexOf(b.chart) || a.chart.start[a.i] - b.chart.start[b.i]);
    const at = hits.findIndex(({ chart, i }) => chart === this.chosen?.chart && i === this.chosen.i);
    if (hits.length) { const { chart, i } = hits[(at < 0 && by < 0 ? hits.length : at + by + hits.length) % hits.length]; this.choose(chart, i, true); }
  },

  find(text) {
    this.found = text.trim().toLowerCase();
    let count = 0;
    if (this.found) for (const chart of this.charts) for (let i = 0; i < chart.start.length; i++) count += chart.nameOf(i).toLowerCase().includes(this.found);
    say(this.found ? numberText(count) + " found" : "");
    this.draw();
  },

  barAt(event) { const at = event.target.dataset.bar; return at === undefined ? null : this.drawn[at]; },

  key(event) {
    const move = (this.to - this.from) / 8;
    const acts = { ArrowLeft: () => this.look(this.from - move, this.to - move), ArrowRight: () => this.look(this.from + move, this.to + move), c: () => this.act("colour"),
      ArrowDown: () => (this.section.scrollTop += 60), ArrowUp: () => (this.section.scrollTop -= 60), Enter: () => this.next(event.shiftKey ? -1 : 1), n: () => this.next(), p: () => this.next(-1) };
    if (!acts[event.key]) return;
    acts[event.key]();
    event.preventDefault();
  },

  listen() {
    const { svg } = this;
    let held = null;
    svg.addEventListener("wheel", (e) => {
      if (!e.ctrlKey && !e.shiftKey && this.height > this.section.clientHeight && e.offsetX < this.left) return; // beside the bars it scrolls
      if (e.shiftKey || Math.abs(e.deltaX) > Math.abs(e.deltaY)) {
        const move = ((e.deltaX || e.deltaY) / svg.clientWidth) * (this.to - this.from);
        this.look(this.from + move, this.to + move);
      } else this.zoom(1.0015 ** e.deltaY, this.from + (e.clientX - svg.getBoundingClientRect().left - this.left) / this.scale);
      e.preventDefault();
    }, { passive: false });
    svg.addEventListener("pointerdown", (e) => { held = { x: e.clientX, from: this.from, to: this.to, moved: false }; });
    svg.addEventListener("pointermove", (e) => { if (!held) tip.follow(this.barAt(e), e); });
    svg.addEventListener("pointerleave", () => tip.hide());
    addEventListener("pointermove", (e) => {
      if (!held) return;
      if (Math.abs(held.x - e.clientX) > 3) held.moved = true;
      const move = (held.x - e.clientX) / this.scale;
      if (held.moved) { tip.hide(); this.look(held.from + move, held.to + move); }
    });
    addEventListener("pointerup", () => setTimeout(() => (held = null)));
    // Each click draws anew, so there is no double click on one element.
    svg.addEventListener("click", (e) => { const bar = this.barAt(e); if (!held?.moved && bar) this.choose(bar.chart, bar.i, e.detail > 1); });
    svg.addEventListener("keydown", (e) => { if (!e.ctrlKey && !e.metaKey && !e.altKey) this.key(e); });
    this.section.addEventListener("scroll", () => this.draw());
    document.getElementById("bar-tools").addEventListener("click", (e) => this.act(e.target.dataset.do));
    addEventListener("resize", () => { if (!views.timeline.hidden) this.show(); });
  },
};

/* The first bar of a row that ends after a moment: bars of a row do not overlap, so their ends ascend. */
function firstAfter(chart, first, last, moment) {
  while (first < last) {
    const mid = (first + last) >> 1;
    if (chart.finish[mid] * chart.tick < moment) first = mid + 1;
    else last = mid;
  }
  return first;
}

const trackText = (track) => (track.includes(" -> ") ? brief(track) : track);
const clipped = (text, letters) => (text.length <= letters ? text : text.slice(0, letters - 1) + "…");

/* A round time, so that at most `most` of them are in `span`. */
function roundStep(span, most) {
  for (let step = 10 ** Math.floor(Math.log10(span / Math.max(most, 2) || 1)); ; step *= 10) {
    for (const part of [1, 2, 5]) if (span / (step * part) <= Math.max(most, 2)) return step * part;
  }
}

/* A time on the axis, with as many digits as tell it from the next tick. */
function tickText(t, step) {
  return Math.abs(t) < step * 1e-6 ? "0" : timeText(t, Math.max(3, Math.ceil(Math.log10(Math.abs(t) / step) + 1e-9) + 1));
}

/* What a bar says of itself; `end`: behind the last of the bars that are drawn as one. */
function barLines(chart, i, end = i + 1) {
  const more = end - i > 1 ? " and " + numberText(end - i - 1) + " more" : "";
  const lines = [chart.nameOf(i) + more, timeText((chart.finish[end - 1] - chart.start[i]) * chart.tick) + ", from " + timeText(chart.start[i] * chart.tick)];
  if (!more && chart.noteOf(i)) lines.push(chart.noteOf(i));
  if (chart.critical[i]) lines.push("on the critical path");
  return lines;
}

/* How long a node takes in each chart, in all. */
function secondsOf(name) {
  return plan.charts.map((chart) => {
    let sum = 0;
    for (let i = 0; i < chart.start.length; i++) if (chart.kind[i] === KERNEL && chart.nameOf(i) === name) sum += (chart.finish[i] - chart.start[i]) * chart.tick;
    return [chart.label || "takes", sum, chart.exact];
  });
}
