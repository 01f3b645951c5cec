/* What can be opened: ranges of tasks hold tasks, tasks hold devices, devices hold name scopes, scopes hold scopes and nodes.

   A plan of few devices shows all of them. In a larger one tasks are closed, and a job of many tasks shows ranges of them.

   A graph may also be flat: ten thousand nodes called Add_1, Add_2 ... in no scope. So where a box would hold more
   than LIMIT parts, parts whose names differ only in their number become a series, and a series that is too long
   is cut into ranges. Every opening therefore adds at most LIMIT boxes, whatever the graph. */

const LIMIT = 14;
const SHOWN = 30; // devices up to which all are shown
let boxes = 0;

class Box {
  /* kind: flow | device | scope | series | node; nodes: their numbers, ascending; start: length of the scope's prefix.
     In the flow of the whole model no box has a device (-1). */
  constructor(kind, label, device, nodes, start = 0) {
    Object.assign(this, { id: boxes++, kind, label, device, nodes, start, parent: null, isOpen: false, parts: null, items: null });
  }

  get isLeaf() { return this.kind === "node" || this.nodes.length === 0; }

  get children() {
    if (!this.parts) {
      const items = this.items || split(this.nodes, this.start, this.device);
      this.parts = gather(items, this.device);
      for (const part of this.parts) part.parent = this;
    }
    return this.parts;
  }

  /* Nodes, bytes of state, flop: of all that is inside. */
  get stats() {
    if (!this.sums) {
      const sums = (this.sums = { nodes: this.nodes.length, held: 0, variables: 0, exact: true, flops: 0, flopsExact: true });
      for (const i of this.nodes) {
        sums.flops += plan.flops[i];
        sums.flopsExact &&= !!plan.flopsExact[i];
        if (!plan.isState[i] || (this.device >= 0 && this.device !== plan.device[i])) continue; // another task's memory has it
        sums.variables++;
        sums.held += plan.state[i];
        sums.exact &&= plan.isState[i] !== 1;
      }
    }
    return this.sums;
  }

  /* The name scope that it stands for, or the node. */
  get path() {
    if (this.kind === "node") return plan.names[this.nodes[0]];
    if (this.kind === "scope") return longer(this.nodes, this.start).slice(0, this.start);
    if (this.kind === "device") return deviceText(this.device);
    if (this.kind === "flow") return this.label;
    let scope = this.parent;
    while (scope.kind === "series") scope = scope.parent;
    return (scope.kind === "scope" ? scope.path : "") + this.label;
  }

  holds(node) {
    let low = 0;
    let high = this.nodes.length - 1;
    while (low < high) {
      const mid = (low + high) >> 1;
      if (this.nodes[mid] < node) low = mid + 1;
      else high = mid;
    }
    return this.nodes[low] === node;
  }
}

/* A task (its parts are devices), or a range of a job's tasks. `load` is what its devices do together. */
class Group extends Box {
  constructor(kind, label, parts) {
    super(kind, label, -1, []);
    Object.assign(this, { parts, routes: new Map(), isFixed: plan.devices.length <= SHOWN });
    this.devices = parts.flatMap((part) => (part instanceof Group ? part.devices : [part.device]));
    this.load = { nodes: 0, variables: 0, held: 0, heldExact: true, flops: 0, flopsExact: true };
    for (const part of parts) {
      part.parent = this;
      const load = loadOf(part);
      for (const key of ["nodes", "variables", "held", "flops"]) this.load[key] += load[key];
      this.load.heldExact &&= load.heldExact;
      this.load.flopsExact &&= load.flopsExact;
    }
    const first = plan.devices[this.devices[0]];
    this.title = "/job:" + first.job + "/task:" + label;
  }

  get isLeaf() { return this.isFixed; }
  get path() { return this.title; }

  get size() {
    const tasks = new Set(this.devices.map((d) => plan.devices[d].task)).size;
    return (tasks > 1 ? countText(tasks, "task") + " · " : "") + countText(this.devices.length, "device");
  }

  /* As at first: what is fixed, or small, is open. */
  reset() {
    this.isOpen = this.isFixed || (this.kind === "task" && this.devices.length < 3);
    for (const part of this.parts) if (part instanceof Group) part.reset();
  }
}

/* What a device, a task or a range of tasks does and holds. */
const loadOf = (box) => (box instanceof Group ? box.load : plan.devices[box.device]);

/* What shows of a device: its box, or the outermost closed group around it. */
function anchor(box) {
  let shown = box;
  for (let b = box.parent; b; b = b.parent) if (!b.isOpen) shown = b;
  return shown;
}

/* The nodes of a scope (names share their first `start` characters) as inner scopes and nodes. */
function split(nodes, start, device) {
  const groups = new Map();
  for (const i of nodes) {
    const name = plan.names[i];
    const slash = name.indexOf("/", start);
    // A node that bears the scope's own name (a variable `w` beside `w/read`) is a part of the scope.
    const part = name.length < start ? "/" : slash < 0 ? name.slice(start) : name.slice(start, slash);
    const found = groups.get(part);
    if (found) found.push(i);
    else groups.set(part, [i]);
  }
  const parts = [];
  for (const [part, inside] of groups) {
    const name = plan.names[inside[0]];
    if (inside.length === 1) {
      const own = name.slice(name.lastIndexOf("/") + 1);
      parts.push(new Box("node", part === "/" ? own : name.slice(start) || own, device, inside));
    } else {
      const end = sharedPrefix(inside, start + part.length + 1);
      parts.push(new Box("scope", longer(inside, end).slice(start, end - 1), device, inside, end));
    }
  }
  return parts;
}

/* A name among those of the nodes that is not the scope's own. */
const longer = (nodes, start) => plan.names[nodes.find((i) => plan.names[i].length >= start)];

/* A scope that holds nothing but one scope is shown as one: 'gradients/tower_0'. */
function sharedPrefix(nodes, start) {
  for (;;) {
    const name = longer(nodes, start);
    const slash = name.indexOf("/", start);
    if (slash < 0) return start;
    const prefix = name.slice(0, slash + 1);
    if (!nodes.every((i) => plan.names[i].startsWith(prefix))) return start;
    start = slash + 1;
  }
}

/* At most LIMIT boxes in place of any number. */
function gather(items, device) {
  if (items.length <= LIMIT) return items;
  const stems = new Map();
  for (const item of items) {
    const stem = item.label.replace(/_?\d+$/, "");
    const found = stems.get(stem);
    if (found) found.push(item);
    else stems.set(stem, [item]);
  }
  if (stems.size > 1) {
    items = [...stems.values()].flatMap((alike) => (alike.length > 3 ? [series(alike, device)] : alike));
    items.sort((a, b) => a.nodes[0] - b.nodes[0]);
    if (items.length <= LIMIT) return items;
  }
  let size = 1; // ranges of a power of LIMIT: few, and the same on every level
  while (Math.ceil(items.length / size) > LIMIT) size *= 10;
  const ranges = [];
  for (let i = 0; i < items.length; i += size) {
    const range = items.slice(i, i + size);
    ranges.push(range.length === 1 ? range[0] : series(range, device));
  }
  return ranges;
}

function series(items, device) {
  const nodes = items.flatMap((item) => Array.from(item.nodes)).sort((a, b) => a - b);
  const first = items[0].label;
  const last = items[items.length - 1].label;
  const stem = last.replace(/\d+$/, "");
  const isCounted = stem.length > 3 && stem !== last && (first.startsWith(stem) || first + "_" === stem);
  const box = new Box("series", first + " … " + (isCounted ? last.slice(stem.length) : last), device, nodes);
  box.items = items;
  return box;
}

/* One box per device of the cluster, with the nodes that the step runs there; for each job its tasks, or ranges of them; and the
   whole model in one flow. `shows`: whether a node has a box. */
function plantTree(shows) {
  const roots = plan.devices.map((d, at) => new Box("device", d.type + ":" + d.number, at, []));
  const tasks = new Map();
  for (const root of roots) {
    const { task } = plan.devices[root.device];
    if (tasks.has(task)) tasks.get(task).push(root);
    else tasks.set(task, [root]);
  }
  const jobs = new Map();
  for (const parts of tasks.values()) {
    const { job, index } = plan.devices[parts[0].device];
    if (!jobs.has(job)) jobs.set(job, []);
    jobs.get(job).push(new Group("task", String(index), parts));
  }
  const tops = [...jobs.values()].map((list) => ranges(list.sort((a, b) => a.label - b.label)));
  const flow = Object.assign(new Box("flow", plan.program || "Model", -1, []), { devices: [0] });
  for (let i = 0; i < plan.count; i++) {
    if (!shows(i)) continue;
    for (const device of drawnOn(i)) for (let b = roots[device]; b; b = b.parent) b.nodes.push(i);
    flow.nodes.push(i);
  }
  return { roots, tops, flow };
}

/* At most LIMIT boxes in place of any number of tasks. */
function ranges(tasks) {
  if (tasks.length <= LIMIT || tasks[0].isFixed) return tasks;
  let size = 10;
  while (Math.ceil(tasks.length / size) > LIMIT) size *= 10;
  const found = [];
  for (let i = 0; i < tasks.length; i += size) {
    const inside = tasks.slice(i, i + size);
    found.push(inside.length === 1 ? inside[0] : new Group("tasks", inside[0].label + " … " + inside[inside.length - 1].label, ranges(inside)));
  }
  return found;
}

/* Close everything, then open what is largest while at most `budget` boxes show. Devices open together. */
function openSome(roots, budget) {
  const close = (box) => { box.isOpen = false; if (box.parts) box.parts.forEach(close); };
  roots.forEach(close);
  const used = roots.filter((box) => !box.isLeaf);
  let shown = used.reduce((sum, box) => sum + box.children.length, 0);
  if (shown > budget && roots[0]?.kind !== "flow") return; // one box alone says nothing
  used.forEach((box) => (box.isOpen = true));
  const closed = used.flatMap((box) => box.children.filter((c) => !c.isLeaf));
  while (closed.length) {
    closed.sort((a, b) => a.nodes.length - b.nodes.length);
    const box = closed.pop();
    if (shown - 1 + box.children.length > budget) continue;
    shown += box.children.length - 1;
    box.isOpen = true;
    closed.push(...box.children.filter((c) => !c.isLeaf));
  }
}

/* The smallest box that shows when all of `node`'s ancestors are opened, from its outermost box on; opens them. */
function uncover(box, node) {
  for (let b = box.parent; b; b = b.parent) b.isOpen = true;
  while (!box.isLeaf) {
    box.isOpen = true;
    box = box.children.find((child) => child.holds(node));
  }
  return box;
}
