/* Which visible boxes are joined, and by what. Edges between nodes are summed up for the boxes that hold them,
   anew whenever a box is opened or closed: one pass over the edges, some milliseconds for 100,000 nodes. */

/* leaves: the visible boxes that are not open. Gives inner edges (inside a device) and channels between boxes. */
function joinBoxes(leaves) {
  const owner = new Int32Array(plan.count).fill(-1);
  leaves.forEach((box, at) => { for (const i of box.nodes) owner[i] = at; });
  return { inner: innerEdges(leaves, owner), outer: outerEdges(leaves, owner) };
}

function innerEdges(leaves, owner) {
  const found = new Map();
  const add = (from, to, value) => {
    const a = owner[from];
    const b = owner[to];
    if (a < 0 || b < 0 || a === b || plan.device[from] !== plan.device[to]) return;
    const key = a * leaves.length + b;
    let edge = found.get(key);
    if (!edge) found.set(key, (edge = { from: leaves[a], to: leaves[b], values: 0, controls: 0, bytes: 0, exact: true, samples: [] }));
    if (value === null) edge.controls++;
    else { edge.values++; edge.bytes += value[1]; edge.exact &&= value[2]; }
    if (edge.samples.length < 8) edge.samples.push([from, value]);
  };
  for (let i = 0; i < plan.count; i++) {
    if (owner[i] < 0) continue;
    for (let e = plan.inputStart[i]; e < plan.inputStart[i + 1]; e++) {
      const from = plan.inputFrom[e];
      if (flows(from, plan.inputIndex[e])) add(from, i, plan.values[plan.outputValue[plan.outputStart[from] + plan.inputIndex[e]]]);
    }
    for (let e = plan.controlStart[i]; e < plan.controlStart[i + 1]; e++) add(plan.controlFrom[e], i, null);
  }
  return [...found.values()];
}

/* Channels by the boxes that make and take their values; a value passed on inside a task starts at the device that passes it. */
function outerEdges(leaves, owner) {
  const found = new Map();
  for (let c = 0; c < plan.channelNode.length; c++) {
    const producer = plan.channelNode[c];
    const at = plan.channelRelays[c] ? -1 - plan.channelSource[c] : owner[producer];
    for (const taker of takersOf(c)) {
      const key = at + ":" + owner[taker];
      let edge = found.get(key);
      if (!edge) found.set(key, (edge = new ChannelSum(plan.channelSource[c], plan.channelTarget[c])));
      edge.from = at < 0 ? null : leaves[at];
      edge.to = leaves[owner[taker]];
      edge.add(c);
    }
  }
  return [...found.values()];
}

/* All channels between two devices, or between two boxes on them. */
class ChannelSum {
  constructor(source, target) {
    Object.assign(this, { source, target, from: null, to: null, channels: [], tensors: 0, controls: 0, bytes: 0, exact: true });
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

  get text() { return this.tensors ? bytesText(this.bytes, this.exact) : "control"; }
}

/* One sum per pair of devices, most bytes first; never changes. */
function deviceLinks() {
  const found = new Map();
  for (let c = 0; c < plan.channelNode.length; c++) {
    const key = plan.channelSource[c] * plan.devices.length + plan.channelTarget[c];
    if (!found.has(key)) found.set(key, new ChannelSum(plan.channelSource[c], plan.channelTarget[c]));
    found.get(key).add(c);
  }
  return [...found.values()].sort((a, b) => b.bytes - a.bytes || b.channels.length - a.channels.length);
}
