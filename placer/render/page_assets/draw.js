/* Boxes and lines as SVG, from back to front: tasks, lines between devices, devices, open scopes, lines between
   boxes, boxes, labels. Elements carry what they stand for in `thing`; map.js handles what is done to them. */

const STUBS = 5;  // lines to parts inside a box that an edge leads to; more of them only where they are selected
const LABELS = 20; // labels of a selection, or of lines between boxes
const LINES = 60; // lines between devices that are drawn at once, those with most bytes; the others when selected

function drawMap(scene) {
  const layers = ["tasks", "bundles", "devices", "scopes", "inner", "outer", "boxes", "titles", "labels"].map((name) => s("g", { class: name }));
  const [tasks, bundles, devices, scopes, inner, outer, boxes, titles, labels] = layers;
  for (const group of scene.frames) {
    tasks.append(drawFrame(group, scene));
    titles.append(...taskTitle(group));
  }
  for (const root of scene.ends) {
    if (root.kind === "flow") { drawInside(root, { scopes, boxes, titles }, scene); continue; }
    devices.append(root instanceof Group ? drawGroup(root, scene) : drawDevice(root, scene));
    if (root.isOpen) for (const child of root.children) drawInside(child, { scopes, boxes, titles }, scene);
  }
  drawInner(scene, inner);
  drawChannels(scene, bundles, outer, labels);
  return layers;
}

function drawInside(box, layers, scene) {
  if (!box.isOpen) {
    layers.boxes.append(box.kind === "node" ? drawNode(box, scene) : drawFolded(box, scene));
    return;
  }
  layers.scopes.append(drawOpen(box, scene));
  layers.titles.append(words(box.shown, box.x + 24, box.y + 18, "name" + sheetOf(box)));
  for (const child of box.children) drawInside(child, layers, scene);
}

const frame = (box, className, rx) => s("rect", { class: className, x: box.x, y: box.y, width: box.width, height: box.height, rx });
const words = (text, x, y, className) => s("text", { x, y, class: className }, text);

function taskTitle(task) {
  const [job, index] = task.title.split("/task:");
  return [s("text", { x: task.x + PAD + (task.isFixed ? 0 : 16), y: task.y + 22, class: "title of-task" }, job, s("tspan", { class: "faint" }, "/task:" + index)),
    task.isMaster ? s("text", { x: task.x + task.width - PAD, y: task.y + 22, class: "badge of-task", "text-anchor": "end" }, "master") : ""];
}

/* What stands for a box: it can have the focus, and says to a screen reader what it is. */
function thing(box, className, scene, label, ...parts) {
  const opens = !box.isLeaf;
  const element = s("g", { class: className + (scene.lit.has(box) ? " lit" : "") + (scene.chosen === box ? " chosen" : ""),
    tabindex: "-1", role: opens ? "button" : "img", "aria-expanded": opens ? String(box.isOpen) : null, "aria-label": label }, ...parts);
  element.thing = box;
  box.element = element;
  return element;
}

/* The frame of an open task, or of an open range of tasks. */
function drawFrame(box, scene) {
  if (box.isFixed) return s("g", { class: "task" }, frame(box, "back", 16));
  return thing(box, "task", scene, box.path + ", open, " + box.size, frame(box, "back", 16),
    s("rect", { class: "handle", x: box.x, y: box.y, width: box.width, height: HEAD + 6, rx: 16 }), chevron(box, box.x + 12, box.y + 18));
}

/* A closed task, or a closed range of tasks. */
function drawGroup(box, scene) {
  const label = box.path + ", " + box.size + ", " + loads.map((l) => l.text(box.load)).join(", ");
  const under = box.kind === "tasks" ? [2, 1].map((i) => s("rect", { class: "under", x: box.x + 4 * i, y: box.y + 3 * i, width: box.width - 8 * i, height: box.height, rx: 12 })) : [];
  return thing(box, "device group", scene, label, ...under, frame(box, "card", 12), chevron(box, box.x + 12, box.y + 18),
    words(box.title, box.x + 28, box.y + 22, "title"), words(box.under, box.x + PAD, box.y + 40, "small"), ...meters(box, box.load, scene, 16));
}

function drawDevice(box, scene) {
  const device = plan.devices[box.device];
  if (isIdle(box)) {
    return thing(box, "device idle", scene, deviceText(box.device) + ", idle", frame(box, "card", 8),
      s("text", { x: box.x + 11, y: box.y + 16, class: "note" }, box.label + " idle"));
  }
  const label = deviceText(box.device) + ", " + loads.map((l) => l.text(device)).join(", ");
  const parts = [frame(box, "card", 12)];
  if (!box.isLeaf) parts.push(s("rect", { class: "handle", x: box.x, y: box.y, width: box.width, height: 34, rx: 12 }), chevron(box, box.x + 12, box.y + 18));
  parts.push(words(box.label, box.x + (box.isLeaf ? 14 : 28), box.y + 22, "title"));
  if (device.emulated) parts.push(s("text", { x: box.x + box.width - PAD, y: box.y + 22, class: "note", "text-anchor": "end" }, "emulated"));
  parts.push(...meters(box, device, scene));
  return thing(box, "device kind-" + device.type.toLowerCase() + (box.isOpen ? " open" : ""), scene, label, ...parts);
}

/* The loads of a device, each as a share of the largest among all devices; of a group, among those that show. */
function meters(box, device, scene, down = 0) {
  const most = scene.most(box.kind);
  const inRow = box.isOpen && metersFit(box.width - PAD * 2);
  return loads.flatMap((load, i) => {
    const x = box.x + PAD + (inRow ? i * METER : 0);
    const y = box.y + 46 + down + (inRow ? 0 : i * 25);
    const width = inRow ? METER - 16 : box.isOpen ? METER : box.width - PAD * 2;
    const share = most[i] ? load.of(device) / most[i] : 0;
    return [words(load.text(device), x, y, "small"),
      s("rect", { class: "meter", x, y: y + 5, width, height: 4, rx: 2 }),
      share ? s("rect", { class: "load " + load.title, x, y: y + 5, width: Math.max(2, width * share), height: 4, rx: 2 }) : ""];
  });
}

function chevron(box, x, y) {
  return s("path", { class: "chevron", d: box.isOpen ? `M${x},${y - 2}l4,4l4,-4` : `M${x + 2},${y - 4}l4,4l-4,4` });
}

/* Frames inside frames take turns between two grounds. */
const sheetOf = (box) => { let even = false; for (let b = box.parent; b && b.kind !== "device" && b.kind !== "flow"; b = b.parent) even = !even; return even ? " even" : ""; };

function drawOpen(box, scene) {
  return thing(box, "scope open" + sheetOf(box), scene, box.path + ", open, " + subtitle(box), frame(box, "back", 10),
    s("rect", { class: "handle", x: box.x, y: box.y, width: box.width, height: HEAD, rx: 10 }),
    chevron(box, box.x + 10, box.y + 14));
}

function drawFolded(box, scene) {
  const under = [2, 1].map((i) => s("rect", { class: "under", x: box.x + 4 * i, y: box.y + 3 * i, width: box.width - 8 * i, height: box.height, rx: 9 }));
  return thing(box, "scope" + tint(box, scene), scene, box.path + ", " + subtitle(box), ...under, frame(box, "card", 9),
    chevron(box, box.x + 11, box.y + 17), words(box.shown, box.x + 26, box.y + 19, "name"), words(box.under, box.x + 13, box.y + 34, "small"),
    ...mixture(box, scene));
}

/* The colours of the nodes inside, as shares of the lower rim. */
function mixture(box, scene) {
  const width = box.width - 18;
  const tall = scene.paint === paints.kind ? 2.5 : 4;
  let x = box.x + 9;
  return sharesOf(box, scene.paint).map(([name, count]) => {
    const share = (count / box.stats.nodes) * width;
    const piece = s("rect", { class: "fill-" + name, x, y: box.y + box.height - 1.5 - tall, width: share, height: tall });
    x += share;
    return piece;
  });
}

/* The class of a box whose nodes all have one colour: but for that of kinds, it fills the box. */
function tint(box, scene) {
  const [[name], second] = sharesOf(box, scene.paint);
  return scene.paint === paints.kind || second ? "" : " tint tint-" + name;
}

function drawNode(box, scene) {
  const node = box.nodes[0];
  const kind = scene.paint.of(node);
  return thing(box, "node kind-" + kindOf(node) + tint(box, scene), scene, plan.names[node] + ", " + plan.ops[plan.op[node]][0], frame(box, "card", 8),
    s("path", { class: "fill-" + kind, d: `M${box.x + 8},${box.y}a8,8 0 0 0 -8,8v${box.height - 16}a8,8 0 0 0 8,8h-3v${-box.height}z` }),
    words(box.shown, box.x + 14, box.y + 16, "name"), words(box.under, box.x + 14, box.y + 30, "small"));
}

/* The head of a line grows with it, in steps, for each has to be declared. */
const HEADS = [8, 11, 15];
const headOf = (width) => (width < 2.6 ? 0 : width < 4.4 ? 1 : 2);

function line(path, className, arrow, thing, width) {
  const shown = s("path", { d: path, class: "line", "marker-end": "url(#" + arrow + ")", "stroke-width": width });
  const element = s("g", { class: className }, shown, s("path", { d: path, class: "touch" }));
  element.thing = thing;
  return element;
}

/* Edges inside devices. A line runs between two parts of one open box, as dagre has routed it around the others;
   from its ends, stubs lead to the parts further inside. So many edges share few lines. */
function drawInner(scene, layer) {
  const lines = new Map();
  for (const edge of scene.inner) {
    const key = edge.a.id + ":" + edge.b.id;
    const known = lines.get(key);
    if (known) known.push(edge);
    else lines.set(key, [edge]);
  }
  for (const edges of lines.values()) {
    const { a, b } = edges[0];
    const at = a.parent.children;
    const points = a.parent.routes.get(at.indexOf(a) + ":" + at.indexOf(b));
    const sum = edges.length === 1 ? edges[0] : sumOfEdges(edges);
    const isLit = edges.some(scene.isLit);
    const arrow = isLit ? "tip-lit" : sum.crosses ? "tip-remote0" : sum.values ? "tip-data" : "tip-control";
    const className = "edge" + (sum.values ? "" : " control") + (sum.crosses ? " remote" : "") + (isLit ? " lit" : "");
    layer.append(line(smooth(points), className, arrow, sum));
    const stubs = new Map();
    for (const edge of edges) {
      const isLitEdge = scene.isLit(edge);
      if (edge.from !== a) stubs.set(edge.from.id, [bottomOf(edge.from), points[0], isLitEdge || stubs.get(edge.from.id)?.[2]]);
      if (edge.to !== b) stubs.set(edge.to.id, [points[points.length - 1], topOf(edge.to), isLitEdge || stubs.get(edge.to.id)?.[2]]);
    }
    for (const [from, to, isLitStub] of stubs.values()) {
      if (isLitStub || stubs.size <= STUBS) layer.append(s("path", { d: gentle(from, to), class: "stub" + (isLitStub ? " lit" : "") }));
    }
  }
}

const topOf = (box) => ({ x: box.x + box.width / 2, y: box.y });
const bottomOf = (box) => ({ x: box.x + box.width / 2, y: box.y + box.height });

function sumOfEdges(edges) {
  const sum = { from: edges[0].a, to: edges[0].b, values: 0, controls: 0, bytes: 0, exact: true, samples: [], crosses: edges.some((e) => e.crosses) };
  for (const edge of edges) {
    sum.values += edge.values;
    sum.controls += edge.controls;
    sum.bytes += edge.bytes;
    sum.exact &&= edge.exact;
    if (sum.samples.length < 8) sum.samples.push(...edge.samples.slice(0, 8 - sum.samples.length));
  }
  return sum;
}

/* Channels: one line per pair of devices, or per pair of boxes; a selected box shows its own in any case. */
function drawChannels(scene, bundles, outer, labels) {
  const most = scene.bundles.reduce((most, l) => Math.max(most, l.bytes), 1);
  const marks = [];
  const put = (lines) => {
    for (const line of lines) {
      line.width = line.sum.tensors ? 1.4 + 5 * Math.sqrt(line.sum.bytes / most) : 1.2;
      line.tip = HEADS[headOf(line.width)];
    }
    spread(lines);
    for (const { sum, curve, width, a, b } of lines) {
      const kind = sum.isRemote ? "remote" : "local";
      const isLit = scene.isLit(sum);
      const layer = isPlace(a) && isPlace(b) ? bundles : outer; // between devices: behind them
      layer.append(line(curve.path, "channel " + kind + (sum.tensors ? "" : " control") + (isLit ? " lit" : ""), "tip-" + kind + headOf(width), sum, width.toFixed(2)));
      marks.push({ sum, curve, width: textWidth(sum.text, FONT.chip) + 14, isLit, kind });
    }
  };
  const ends = (sum, order) => ({ sum, order, a: sum.from, b: sum.to });
  if (scene.bundle) put(scene.bundles.filter((sum, i) => i < LINES || scene.isLit(sum)).map(ends));
  const isOwn = (sum) => scene.picked && !isPlace(scene.picked) && scene.isLit(sum);
  put((scene.bundle ? scene.outer.filter(isOwn) : scene.outer).map(ends));
  marks.sort((a, b) => b.isLit - a.isLit || b.sum.bytes - a.sum.bytes);
  // Many labels say nothing: the largest ones, and those of the selection.
  const labelled = marks.filter((mark, i) => i < LABELS || (scene.bundle && !mark.isLit && i < LINES));
  placeLabels(labelled, scene.solid);
  for (const mark of labelled) if (mark.place) labels.append(drawLabel(mark));
}

/* Whether a box is a device, or holds devices. */
const isPlace = (box) => box.kind === "device" || box instanceof Group;

function drawLabel({ sum, place: { x, y }, width, kind, isLit }) {
  const element = s("g", { class: "chip " + kind + (isLit ? " lit" : "") },
    s("rect", { x: x - width / 2, y: y - 9, width, height: 18, rx: 9 }), s("text", { x, y: y + 4, "text-anchor": "middle" }, sum.text));
  element.thing = sum;
  return element;
}

let links = null;
const deviceLinksOnce = () => (links ||= deviceLinks());

function arrowHeads() {
  const head = (kind, size, name) => s("marker", { id: "tip-" + name, class: "tip " + kind, viewBox: "0 0 8 8", refX: "0.5", refY: "4", markerWidth: String(size),
    markerHeight: String(size), markerUnits: "userSpaceOnUse", orient: "auto" }, s("path", { d: "M0,0.4L8,4L0,7.6z" }));
  return s("defs", {}, ...["data", "control", "lit", "critical"].map((kind) => head(kind, TIP, kind)),
    ...["remote", "local"].flatMap((kind) => HEADS.map((size, i) => head(kind, size, kind + i))));
}
