/* Which visible boxes are joined, and by what. Edges between nodes are summed up for the boxes that hold them,
   anew whenever a box is opened or closed: one pass over the edges, some milliseconds for 100,000 nodes. */

/* leaves: the visible boxes that are not open. Gives inner edges (inside a device) and channels between boxes. */
function joinBoxes(leaves) {
  const owner = new Int32Array(plan.count).fill(-1);
  const copy = new Map(plan.devices.map((d) => [d.at, new Map()])); // device -> copied constant -> its box there
  leaves.forEach((box, at) => { for (const i of box.nodes) { owner[i] = at; if (plan.copies.has(i)) for (const d of box.devices || [box.device]) copy.get(d)?.set(i, at); } });
  return { inner: innerEdges(leaves, owner, copy), outer: outerEdges(leaves, owner) };
}

function innerEdges(leaves, owner, copy) {
  const found = new Map();
  const add = (from, to, value) => {
    const b = owner[to];
    const a = copy.get(plan.place[to]).get(from) ?? owner[from];
    const crosses = !drawnOn(from).includes(plan.place[to]);
    if (a < 0 || b < 0 || a === b || (crosses && !map.isFlow)) return;
    const key = a * leaves.length + b;
    let edge = found.get(key);
    if (!edge) found.set(key, (edge = { from: leaves[a], to: leaves[b], values: 0, controls: 0, bytes: 0, exact: true, samples: [], crosses: false }));
    edge.crosses ||= crosses;
    if (value === null) edge.controls++;
    else { edge.values++; edge.bytes += value[1]; edge.exact &&= value[2]; }
    if (edge.samples.length < 8) edge.samples.push([from, value]);
  };
  for (let i = 0; i < plan.count; i++) {
    if (owner[i] < 0) continue;
    for (let e = plan.inputStart[i]; e < plan.inputStart[i + 1]; e++) {
      const from = map.isFlow ? readThrough(plan.inputFrom[e]) : plan.inputFrom[e];
      if (from !== plan.inputFrom[e]) add(from, i, plan.values[plan.outputValue[plan.outputStart[plan.inputFrom[e]] + plan.inputIndex[e]]]);
      else if (flows(from, plan.inputIndex[e])) add(from, i, plan.values[plan.outputValue[plan.outputStart[from] + plan.inputIndex[e]]]);
    }
    for (let e = plan.controlStart[i]; e < plan.controlStart[i + 1]; e++) add(plan.controlFrom[e], i, null);
  }
  return [...found.values()];
}

/* What a node is a mere view of that is not run, because its value is read where it lies: the variable. */
function readThrough(node) {
  while (!plan.runs[node] && !plan.hasFed[node] && plan.inputStart[node] < plan.inputStart[node + 1]) node = plan.inputFrom[plan.inputStart[node]];
  return node;
}

/* Channels by the boxes that make and take their values; a value passed on inside a task starts at the device that passes it. */
function outerEdges(leaves, owner) {
  const found = new Map();
  if (map.isFlow) return [];
  const passing = new Map(leaves.map((box, at) => [box, at]));
  for (let c = 0; c < plan.channelNode.length; c++) {
    const source = plan.channelSource[c];
    // What a device passes on, or what is read where it lies in memory, starts at the device: no box there makes it.
    const passedBy = plan.channelRelays[c] || owner[plan.channelNode[c]] < 0 ? anchor(map.roots[source]) : null;
    const at = passedBy ? passing.get(passedBy) ?? leaves.length + source : owner[plan.channelNode[c]];
    for (const taker of takersOf(c)) {
      if (owner[taker] < 0 || owner[taker] === at) continue; // it is hidden, or both are in one closed box
      const key = at * leaves.length + owner[taker];
      let edge = found.get(key);
      if (!edge) found.set(key, (edge = new ChannelSum(source, plan.channelTarget[c])));
      edge.from = passedBy || leaves[at];
      edge.to = leaves[owner[taker]];
      edge.add(c);
    }
  }
  for (const [node, device] of plan.inPlace) {
    const from = leaves[owner[node]];
    const to = anchor(map.roots[device]);
    if (!from || from === to) continue;
    const key = from.id + ":" + device;
    if (!found.has(key)) found.set(key, Object.assign(new ChannelSum(plan.place[node], device), { from, to }));
    found.get(key).inPlace.push(node);
  }
  return [...found.values()];
}

/* All channels between two devices, or between two boxes on them; and the variables of the one that the other changes in its memory. */
class ChannelSum {
  constructor(source, target) {
    Object.assign(this, { source, target, from: null, to: null, channels: [], inPlace: [], tensors: 0, controls: 0, bytes: 0, exact: true });
    this.isRemote = plan.devices[source].task !== plan.devices[target].task;
  }

  add(channel) {
    if (this.channels[this.channels.length - 1] === channel) return; // two takers in one box
    this.channels.push(channel);
    this.bytes += plan.channelBytes[channel];
    if (isControl(channel)) this.controls++;
    else this.tensors++;
    this.exact &&= isExact(channel);
  }

  merge(other) {
    this.channels = this.channels.concat(other.channels);
    this.inPlace = this.inPlace.concat(other.inPlace);
    this.tensors += other.tensors;
    this.controls += other.controls;
    this.bytes += other.bytes;
    this.exact &&= other.exact;
    this.isRemote ||= other.isRemote;
  }

  get text() { return this.tensors ? bytesText(this.bytes, this.exact) : this.controls ? "control" : "in place"; }
}

/* One sum per pair of devices, most bytes first; never changes. */
function deviceLinks() {
  const found = new Map();
  const between = (source, target) => {
    const key = source * plan.devices.length + target;
    if (!found.has(key)) found.set(key, new ChannelSum(source, target));
    return found.get(key);
  };
  for (let c = 0; c < plan.channelNode.length; c++) between(plan.channelSource[c], plan.channelTarget[c]).add(c);
  for (const [node, device] of plan.inPlace) between(plan.place[node], device).inPlace.push(node);
  return [...found.values()].sort(moreBytes);
}

const moreBytes = (a, b) => b.bytes - a.bytes || b.channels.length - a.channels.length;

/* The same between what shows of the devices: one sum per pair of boxes. */
function shownLinks(roots) {
  const found = new Map();
  for (const link of map.isFlow ? [] : deviceLinksOnce()) {
    const from = anchor(roots[link.source]);
    const to = anchor(roots[link.target]);
    if (from === to) continue;
    const key = from.id * boxes + to.id;
    let sum = found.get(key);
    if (!sum) found.set(key, (sum = Object.assign(new ChannelSum(link.source, link.target), { from, to })));
    sum.merge(link);
  }
  return [...found.values()].sort(moreBytes);
}

/* Where the channels of a sum begin and end. */
function endsOf(sum) {
  const name = (box, device) => (box instanceof Group ? box.path : deviceText(device));
  return name(sum.from, sum.source) + " → " + name(sum.to, sum.target);
}
