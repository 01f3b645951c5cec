/* Where everything stands. Inside a box the values flow downwards, laid out by dagre; between tasks they flow to
   the right, as far as there is a direction. Boxes without edges stand in rows below the others. */

const FONT = { name: "600 12.5px system-ui, sans-serif", node: "500 12px system-ui, sans-serif",
  small: "10.5px system-ui, sans-serif", title: "600 13px system-ui, sans-serif", chip: "600 11px system-ui, sans-serif" };
const GAP = 18;       // between boxes of a row
const RANK = 30;      // between rows
const PAD = 14;       // inside a frame
const HEAD = 26;      // of an open scope
const METER = 118;    // width of one load of a device
const MAX_BOX = 206;  // a longer name is cut in its middle
const GUTTER = 130;   // between tasks: a channel's label stands there

const loads = [
  { title: "nodes", of: (d) => d.nodes, text: (d) => countText(d.nodes, "node") },
  { title: "memory", of: (d) => d.held, text: (d) => bytesText(d.held, d.heldExact) + " of variables" },
  { title: "flop", of: (d) => d.flops, text: (d) => flopsText(d.flops, d.flopsExact) },
];

/* Sizes and places all that shows; x and y are of the upper left corner, in the map. `jobs`: each job's tasks, or ranges of them. */
function layOut(jobs, inner, anew) {
  const within = edgesWithin(inner);
  for (const job of jobs) for (const top of job) measure(top, within);
  placeJobs(jobs, anew);
  for (const job of jobs) for (const top of job) shift(top, 0, 0);
}

function subtitle(box) {
  const { nodes, variables, held, exact } = box.stats;
  const scopes = box.kind === "series" ? countText(box.items.length, box.items.some((i) => i.kind !== "node") ? "scope" : "node") : "";
  const words = scopes && box.items.length !== nodes ? scopes + " · " + countText(nodes, "node") : countText(nodes, "node");
  return variables ? words + " · " + bytesText(held, exact) : words;
}

/* Edges by the open box in which they run: between which two of its children, and how strongly. Each edge also
   learns those two (`a`, `b`): the line is drawn between them, with a stub to the part inside. */
function edgesWithin(inner) {
  const within = new Map();
  for (const edge of inner) {
    const above = new Set();
    for (let box = edge.from; box; box = box.parent) above.add(box);
    let to = edge.to;
    while (!above.has(to.parent)) to = to.parent;
    const holder = to.parent;
    let from = edge.from;
    while (from.parent !== holder) from = from.parent;
    Object.assign(edge, { a: from, b: to });
    if (!within.has(holder)) within.set(holder, new Map());
    const pairs = within.get(holder);
    const known = pairs.get(from) || pairs.set(from, new Map()).get(from);
    known.set(to, (known.get(to) || 0) + (edge.values ? 2 : 0.5));
  }
  return within;
}

function measure(box, within) {
  if (!box.isOpen) {
    if (box instanceof Group) {
      box.under = box.size;
      box.width = PAD * 2 + Math.max(METER, textWidth(box.title, FONT.title) * 1.3 + 20, textWidth(box.under, FONT.small)); // from afar it is larger
      box.height = 50 + loads.length * 25 + 6;
    } else if (isIdle(box)) {
      box.width = textWidth(box.label + " idle", FONT.chip) + 26;
      box.height = 24;
    } else if (box.kind === "device") {
      box.width = PAD * 2 + Math.max(METER, textWidth(box.label, FONT.title) + 70, 170);
      box.height = 34 + loads.length * 25 + 6;
    } else if (box.kind === "node") {
      const op = plan.ops[plan.op[box.nodes[0]]][0];
      box.shown = fitText(box.label, FONT.node, MAX_BOX - 26);
      box.under = fitText(op, FONT.small, MAX_BOX - 26);
      box.width = Math.max(64, textWidth(box.shown, FONT.node), textWidth(box.under, FONT.small)) + 26;
      box.height = 38;
    } else {
      box.under = subtitle(box);
      box.shown = fitText(box.label, FONT.name, MAX_BOX - 44);
      box.width = Math.max(76, textWidth(box.shown, FONT.name) + 18, textWidth(box.under, FONT.small)) + 26;
      box.height = 44;
    }
    return;
  }
  for (const child of box.children) measure(child, within);
  if (box instanceof Group) {
    if (box.kind === "task") frameTask(box);
    else frameRange(box);
    return;
  }
  const inside = arrange(box, within.get(box) || new Map());
  const head = box.kind === "device" ? deviceHead(inside.width) : HEAD;
  box.shown = box.kind === "device" ? box.label : fitText(box.label, FONT.name, Math.max(120, inside.width - 30));
  const least = box.kind === "device" ? METER + 60 : textWidth(box.shown, FONT.name) + 40;
  box.width = Math.max(inside.width + PAD * 2, least + PAD);
  box.height = head + inside.height + PAD + 4;
  const indent = (box.width - inside.width) / 2;
  for (const child of box.children) { child.dx += indent; child.dy += head + 4; }
  box.routes = inside.routes;
  for (const route of box.routes.values()) for (const p of route) { p.x += indent; p.y += head + 4; }
}

const metersFit = (width) => width + PAD * 2 >= METER * loads.length + PAD * 2;
const deviceHead = (width) => 36 + (metersFit(width) ? 30 : loads.length * 25 + 6);

/* Places the children of an open box (dx, dy inside it). The result is kept until sizes or edges change. */
function arrange(box, pairs) {
  const children = box.children;
  const at = new Map(children.map((child, i) => [child, i]));
  const edges = [];
  for (const [from, targets] of pairs) for (const [to, weight] of targets) edges.push([at.get(from), at.get(to), weight]);
  const signature = JSON.stringify([children.map((c) => [c.width, c.height]), edges]);
  if (box.arranged?.signature !== signature) box.arranged = { signature, ...compute(children, edges) };
  const { places, routes, width, height } = box.arranged;
  children.forEach((child, i) => { child.dx = places[i].x; child.dy = places[i].y; });
  return { width, height, routes: new Map([...routes].map(([key, points]) => [key, points.map((p) => ({ ...p }))])) };
}

function compute(children, edges) {
  const joined = new Set(edges.flatMap(([a, b]) => [a, b]));
  const places = [];
  const routes = new Map();
  let width = 0;
  let height = 0;
  if (joined.size) {
    const graph = new dagre.graphlib.Graph();
    graph.setGraph({ rankdir: "TB", nodesep: GAP, edgesep: 10, ranksep: RANK, ranker: "network-simplex" });
    for (const i of [...joined].sort((a, b) => a - b)) graph.setNode(String(i), { width: children[i].width, height: children[i].height });
    for (const [a, b, weight] of edges) graph.setEdge(String(a), String(b), { weight: Math.min(weight, 8) });
    dagre.layout(graph);
    for (const i of joined) {
      const { x, y } = graph.node(String(i));
      places[i] = { x: x - children[i].width / 2, y: y - children[i].height / 2 };
    }
    for (const [a, b] of edges) routes.set(a + ":" + b, graph.edge(String(a), String(b)).points.map(({ x, y }) => ({ x, y })));
    ({ width, height } = graph.graph());
  }
  const alone = children.map((_, i) => i).filter((i) => !joined.has(i));
  const area = alone.reduce((sum, i) => sum + (children[i].width + GAP) * (children[i].height + GAP), 0);
  const room = Math.max(width, Math.sqrt(area) * 1.25);
  let x = 0;
  let y = height ? height + RANK : 0;
  let row = 0;
  for (const i of alone) {
    if (x && x + children[i].width > room) { x = 0; y += row + GAP; row = 0; }
    places[i] = { x, y };
    x += children[i].width + GAP;
    row = Math.max(row, children[i].height);
    width = Math.max(width, x - GAP);
    height = Math.max(height, y + children[i].height);
  }
  return { places, routes, width, height };
}

/* A device that neither runs nor holds anything. */
const isIdle = (box) => box.kind === "device" && !box.nodes.length && !plan.devices[box.device].variables;

/* A task's devices in rows, as near to a square as they come; what is idle stands below, small. */
function frameTask(task) {
  const roots = task.children;
  task.isMaster = plan.devices[roots[0].device].task === plan.master;
  const busy = roots.filter((r) => !isIdle(r));
  const area = busy.reduce((sum, r) => sum + (r.width + 40) * (r.height + 40), 0);
  task.width = textWidth(task.title, FONT.title) + (task.isMaster ? 90 : 30) + (task.isFixed ? 0 : 16);
  let y = HEAD + 8;
  const rows = (row, room, gap) => {
    let x = 0;
    let tall = 0;
    for (const root of row) {
      if (x && x + root.width > room) { x = 0; y += tall + gap; tall = 0; }
      root.dx = x + PAD;
      root.dy = y;
      x += root.width + gap;
      tall = Math.max(tall, root.height);
      task.width = Math.max(task.width, x - gap + PAD * 2);
    }
    y += tall + (row.length ? PAD : 0);
  };
  rows(busy, Math.max(Math.sqrt(area) * 1.3, ...busy.map((r) => r.width)), 44);
  rows(roots.filter(isIdle), task.width - PAD * 2, 8);
  task.height = y;
}

/* The tasks of an open range in rows, or the ranges. */
function frameRange(range) {
  const list = range.children;
  const rows = (columns) => grid(list, columns, GAP * 2, GAP * 2);
  // As near to a window's shape as it was when it was opened, so that nothing jumps.
  range.columns ??= list.map((_, i) => i + 1).sort((a, b) => Math.max(rows(a).width, 1.45 * rows(a).height) - Math.max(rows(b).width, 1.45 * rows(b).height))[0];
  const { places, width, height } = rows(range.columns);
  list.forEach((b, i) => { b.dx = PAD + places[i].x; b.dy = HEAD + 8 + places[i].y; });
  range.width = Math.max(width + PAD * 2, textWidth(range.title, FONT.title) + 60);
  range.height = HEAD + 8 + height + PAD;
}

/* A column, or several, for each job: the jobs from left to right as they first send. */
function placeJobs(jobs, anew) {
  const jobOf = (list) => plan.devices[list[0].devices[0]].job;
  const rank = new Map();
  for (const d of plan.channelSource) if (!rank.has(plan.devices[d].job)) rank.set(plan.devices[d].job, rank.size);
  const ordered = [...jobs].sort((a, b) => (rank.get(jobOf(a)) ?? 99) - (rank.get(jobOf(b)) ?? 99) || (jobOf(a) < jobOf(b) ? -1 : 1));
  if (anew || !columnsOfJobs) columnsOfJobs = chooseColumns(ordered);
  const grids = ordered.map((list, i) => grid(list, columnsOfJobs[i]));
  const tallest = Math.max(...grids.map((g) => g.height));
  let x = 0;
  for (const { places, width, height, list } of grids) {
    list.forEach((t, i) => { t.dx = x + places[i].x; t.dy = (tallest - height) / 2 + places[i].y; });
    x += width + GUTTER;
  }
}

let columnsOfJobs = null; // chosen for the first view and kept, so that nothing jumps when a box is opened

/* Columns per job: the fewest for which no job is taller than some limit; the limit that fills a window best. */
function chooseColumns(jobs) {
  let best = null;
  for (const limit of new Set(jobs.flatMap((list) => list.map((_, i) => grid(list, i + 1).height)))) {
    const columns = jobs.map((list) => {
      let n = 1;
      while (n < list.length && grid(list, n).height > limit) n++;
      return n;
    });
    const grids = jobs.map((list, i) => grid(list, columns[i]));
    const width = grids.reduce((sum, g) => sum + g.width, GUTTER * (grids.length - 1));
    // Lines between jobs have to pass behind further columns, so a few percent of size do not make up for one.
    const passed = jobs.length > 1 ? 0.8 ** columns.reduce((sum, n) => sum + n - 1, 0) : 1;
    const scale = passed * Math.min(1.2, 1100 / width, 760 / Math.max(...grids.map((g) => g.height)));
    if (!best || scale > best.scale) best = { scale, columns };
  }
  return best.columns;
}

function grid(list, columns, across = GUTTER, down = 64) {
  const widths = Array(columns).fill(0);
  list.forEach((t, i) => (widths[i % columns] = Math.max(widths[i % columns], t.width)));
  const places = [];
  let y = 0;
  for (let start = 0; start < list.length; start += columns) {
    const row = list.slice(start, start + columns);
    let x = 0;
    row.forEach((t, i) => { places.push({ x, y }); x += widths[i] + across; });
    y += Math.max(...row.map((t) => t.height)) + down;
  }
  return { list, places, width: widths.reduce((sum, w) => sum + w, across * (columns - 1)), height: y - down };
}

/* From places inside the parent to places in the map. */
function shift(box, x, y) {
  box.x = x + box.dx;
  box.y = y + box.dy;
  if (!box.isOpen) return;
  for (const route of box.routes.values()) for (const p of route) { p.x += box.x; p.y += box.y; }
  for (const child of box.children) shift(child, box.x, box.y);
}
