/* The small panel that follows the pointer: what a box, a line or a bar of the timeline is. */

const tip = {
  element: document.getElementById("tip"),

  follow(thing, event) {
    if (thing === this.thing && thing) { this.move(event.clientX, event.clientY); return; }
    this.thing = thing;
    if (!thing) { this.hide(); return; }
    this.element.replaceChildren(...this.about(thing));
    this.element.hidden = false;
    this.move(event.clientX, event.clientY);
  },

  at(box) {
    const { left, bottom } = box.element.getBoundingClientRect();
    this.follow(box, { clientX: left, clientY: bottom });
  },

  move(x, y) {
    const { width, height } = this.element.getBoundingClientRect();
    this.element.style.left = Math.max(8, Math.min(innerWidth - width - 12, x + 14)) + "px";
    this.element.style.top = (y + 18 + height > innerHeight - 8 ? Math.max(8, y - height - 12) : y + 18) + "px";
  },

  hide() { this.thing = null; this.element.hidden = true; },

  about(thing) {
    if (thing.bar) { const [name, ...lines] = barLines(thing.chart, thing.i, thing.end); return [h("b", {}, name), ...lines.map((line) => h("p", {}, line))]; }
    if (!(thing instanceof Box)) return thing.channels ? tipOfChannels(thing) : tipOfEdge(thing);
    if (thing.kind === "node") return tipOfNode(thing.nodes[0]);
    const lines = isPlace(thing) ? loads.map((l) => l.text(loadOf(thing))).join(" · ") : subtitle(thing) + " · " + flopsText(thing.stats.flops, thing.stats.flopsExact);
    return [h("b", {}, thing.kind === "device" ? deviceText(thing.device) : thing.path), thing instanceof Group ? h("p", {}, thing.size) : "", h("p", {}, lines),
      thing.isLeaf || thing.isOpen ? "" : h("p", { class: "faint" }, "click to open")];
  },
};

function tipOfNode(node) {
  const d = decisionOf(node);
  const [file, line, code] = plan.lines[plan.line[node]];
  return [h("b", {}, plan.names[node]), h("p", {}, plan.ops[plan.op[node]][0] + " on " + deviceText(plan.device[node])),
    runsElsewhere(node) ? h("p", {}, "runs on " + runsOn(node).slice(0, 3).map(deviceText).join(", ") + (runsOn(node).length > 3 ? " …" : "")) : "",
    h("p", {}, d.rule), h("p", {}, d.requested ? "requested '" + d.requested + "'" : "requested no device"),
    ...d.blocks.slice(0, 3).map(([what, at]) => h("p", { class: "faint" }, "in device block " + what + (plan.lines[at][1] ? " at line " + plan.lines[at][1] : ""))),
    line ? h("p", { class: "faint" }, plan.files[file].split(/[\\/]/).pop() + ":" + line) : "", code ? h("pre", {}, code) : ""];
}

function tipOfChannels(sum) {
  const sorted = [...sum.channels].sort((a, b) => plan.channelBytes[b] - plan.channelBytes[a]);
  const what = sum.channels.length ? sum.text + (sum.isRemote ? " between tasks" : " inside a task") : "changed in shared memory";
  return [h("b", {}, what), h("p", {}, endsOf(sum)),
    ...sum.inPlace.slice(0, 8).map((node) => h("p", { class: "pair" }, h("span", {}, plan.names[node]), h("i", {}, "in place"))),
    ...sorted.slice(0, 8).map((c) => h("p", { class: "pair" }, h("span", {}, channelName(c)), h("i", {}, isControl(c) ? "control" : bytesText(plan.channelBytes[c], plan.channelExact[c] > 0)))),
    sorted.length > 8 ? h("p", { class: "faint" }, "… and " + numberText(sorted.length - 8) + " more") : ""];
}

function tipOfEdge(edge) {
  return [h("b", {}, edge.from.label + " → " + edge.to.label), h("p", {}, edge.values ? countText(edge.values, "value") + ", " + bytesText(edge.bytes, edge.exact) : countText(edge.controls, "control edge")),
    ...edge.samples.slice(0, 5).map(([from, value]) => h("p", { class: "faint" }, plan.names[from] + (value ? " · " + value[0] : "")))];
}
