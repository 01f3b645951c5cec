/* What can be opened: devices hold name scopes, scopes hold scopes and nodes.

   A graph may also be flat: ten thousand nodes called Add_1, Add_2 ... in no scope. So where a box would hold more
   than LIMIT parts, parts whose names differ only in their number become a series, and a series that is too long
   is cut into ranges. Every opening therefore adds at most LIMIT boxes, whatever the graph. */

const LIMIT = 14;
let boxes = 0;

class Box {
  /* kind: device | scope | series | node; nodes: their numbers, ascending; start: length of the scope's prefix. */
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
      const sums = (this.sums = { nodes: this.nodes.length, held: 0, variables: 0, exact: true, flops: 0, kinds: {} });
      for (const i of this.nodes) {
        sums.flops += plan.flops[i];
        const kind = kindOf(i);
        sums.kinds[kind] = (sums.kinds[kind] || 0) + 1;
        if (plan.isState[i]) { sums.variables++; sums.held += plan.state[i]; if (plan.isState[i] === 1) sums.exact = false; }
      }
    }
    return this.sums;
  }

  /* The name scope that it stands for, or the node. */
  get path() {
    if (this.kind === "node") return plan.names[this.nodes[0]];
    if (this.kind === "scope") return longer(this.nodes, this.start).slice(0, this.start);
    if (this.kind === "device") return plan.devices[this.device].name;
    let scope = this.parent;
    while (scope.kind === "series") scope = scope.parent;
    return (scope.kind === "device" ? "" : scope.path) + this.label;
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

/* One box per device of the cluster, with the nodes that the step runs there. */
function plantTree() {
  const nodes = plan.devices.map(() => []);
  for (let i = 0; i < plan.count; i++) if (plan.runs[i]) nodes[plan.device[i]].push(i);
  return plan.devices.map((d, at) => new Box("device", d.type + ":" + d.number, at, nodes[at]));
}

/* Close everything, then open what is largest while at most `budget` boxes show. Devices open together. */
function openSome(roots, budget) {
  const close = (box) => { box.isOpen = false; if (box.parts) box.parts.forEach(close); };
  roots.forEach(close);
  const used = roots.filter((box) => !box.isLeaf);
  let shown = used.reduce((sum, box) => sum + box.children.length, 0);
  if (shown > budget) return;
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

/* The smallest box that shows when all of `node`'s ancestors are opened; opens them. */
function uncover(roots, node) {
  let box = roots[plan.device[node]];
  while (!box.isLeaf) {
    box.isOpen = true;
    box = box.children.find((child) => child.holds(node));
  }
  return box;
}
