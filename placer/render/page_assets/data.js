/* The plan and the charts as they travel in this file: page.py packs them, this unpacks them. All that is asked often lies in
   typed arrays; what is asked about one node only is found when somebody asks. */

let plan; // the unpacked plan, set once before anything is drawn; a page of charts alone has no `names`

async function unpack(text) {
  text = text.trim();
  const packed = Uint8Array.fromBase64 ? Uint8Array.fromBase64(text) : Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  const buffer = await new Response(stream).arrayBuffer();
  const length = new DataView(buffer).getUint32(0, true);
  const head = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
  const types = { Uint8: Uint8Array, Uint16: Uint16Array, Uint32: Uint32Array, Int8: Int8Array, Int16: Int16Array,
    Int32: Int32Array, Float64: Float64Array };
  for (const [name, [type, offset, count]] of Object.entries(head.columns)) {
    head[name] = new types[type](buffer, 4 + length + offset, count);
  }
  completeCharts(head);
  return head.names ? complete(head) : head;
}

/* Of each chart its own columns, and the names of its bars. */
function completeCharts(p) {
  const names = p.names || [];
  const texts = p.charts[0]?.texts || [];
  const textOf = (at) => (at < names.length ? names[at] : texts[at - names.length]);
  p.charts.forEach((chart, at) => {
    for (const key of Object.keys(p)) if (key.startsWith("chart" + at + ".")) chart[key.slice(key.indexOf(".") + 1)] = p[key];
    chart.tick = (chart.seconds || 1) / 2 ** 31;
    chart.memoryStart = starts(chart.memorySize);
    chart.nameOf = (i) => textOf(chart.name[i]);
    chart.noteOf = (i) => textOf(chart.note[i]);
  });
}

/* Derived columns: where each node's entries start, and nodes instead of distances. */
function complete(p) {
  const n = (p.count = p.names.length);
  p.outputStart = starts(p.outputCount);
  p.inputStart = starts(p.inputCount);
  p.controlStart = starts(p.controlCount);
  p.takerStart = starts(p.takerCount);
  if (p.kernelSize) p.kernelStart = starts(p.kernelSize);
  p.inputFrom = sources(p.inputStart, p.inputBack, n);
  p.controlFrom = sources(p.controlStart, p.controlBack, n);
  const byName = (p.byName = new Map());
  for (let i = 0; i < n; i++) byName.set(p.names[i], i);
  p.fed = new Set();
  p.hasFed = new Uint8Array(n);
  for (const name of p.feeds) {
    const at = name.lastIndexOf(":");
    const node = byName.get(name.slice(0, at));
    if (node === undefined) continue;
    p.fed.add(node + ":" + name.slice(at + 1));
    p.hasFed[node] = 1;
  }
  p.groups = [];
  p.groupOf = new Map();
  let at = 0;
  for (const size of p.groupSize) {
    const members = p.groupMember.subarray(at, (at += size));
    for (const i of members) p.groupOf.set(i, p.groups.length);
    p.groups.push(members);
  }
  p.notesOf = new Map(); // group, or node that is alone -> texts
  for (const [node, words] of p.notes) {
    const key = p.groupOf.has(node) ? "g" + p.groupOf.get(node) : node;
    p.notesOf.set(key, [...(p.notesOf.get(key) || []), words]);
  }
  p.copies = new Map(p.copies);
  p.inPlace = new Map(p.inPlace); // variable -> the device of another task that changes it in its memory
  p.relaxed = new Map(p.relaxations.map(([node, requested, reason]) => [node, { requested, reason }]));
  p.tasks = [...new Set(p.devices.map((d) => d.task))];
  p.devices.forEach((d, i) => (d.at = i));
  measureDevices(p);
  return p;
}

function starts(counts) {
  const out = new Uint32Array(counts.length + 1);
  for (let i = 0; i < counts.length; i++) out[i + 1] = out[i] + counts[i];
  return out;
}

function sources(start, back, n) {
  const out = new Int32Array(back.length);
  for (let i = 0; i < n; i++) for (let e = start[i]; e < start[i + 1]; e++) out[e] = i - back[e];
  return out;
}

/* What each device runs and holds. */
function measureDevices(p) {
  for (const d of p.devices) Object.assign(d, { variables: 0, held: 0, heldExact: true, sent: 0, sentExact: true, received: 0, receivedExact: true });
  for (let i = 0; i < p.count; i++) {
    const d = p.devices[p.device[i]];
    if (p.isState[i]) { d.variables++; d.held += p.state[i]; if (p.isState[i] === 1) d.heldExact = false; }
  }
  for (let c = 0; c < p.channelNode.length; c++) {
    const from = p.devices[p.channelSource[c]], to = p.devices[p.channelTarget[c]], exact = isExact(c, p);
    from.sent += p.channelBytes[c];
    to.received += p.channelBytes[c];
    from.sentExact &&= exact;
    to.receivedExact &&= exact;
  }
}

/* The devices on which a node is drawn: `place`, and for a constant that is copied others. */
const drawnOn = (node) => plan.copies.get(node) || [plan.place[node]];

/* The devices that run it: a variable that another task changes is drawn where it lies. `device` is the one that a node is assigned to. */
const runsOn = (node) => (plan.inPlace.has(node) ? [plan.inPlace.get(node)] : drawnOn(node));
const runsElsewhere = (node) => plan.runs[node] > 0 && runsOn(node).join() !== String(plan.device[node]);

/* Whether an input is computed in this step, rather than fed or left out. */
const flows = (from, index) => plan.runs[from] > 0 && !(plan.hasFed[from] && plan.fed.has(from + ":" + index));

const NARROW = 1, PACES = 2, DIRECT = 3; // how values cross: page_data.py

const isControl = (channel) => plan.channelOutput[channel] < 0;
const crossesTasks = (channel) => plan.devices[plan.channelSource[channel]].task !== plan.devices[plan.channelTarget[channel]].task;
const takersOf = (channel) => plan.taker.subarray(plan.takerStart[channel], plan.takerStart[channel + 1]);

function channelName(channel) {
  const name = plan.names[plan.channelNode[channel]];
  return isControl(channel) ? "^" + name : name + ":" + plan.channelOutput[channel];
}

/* [words, bytes, whether the bytes are known] of the value on a channel. */
function channelValue(channel) {
  if (isControl(channel)) return [plan.channelHow[channel] === PACES ? "pace of the receiver" : "control edge", 0, true];
  const [words, bytes, exact] = plan.values[plan.outputValue[plan.outputStart[plan.channelNode[channel]] + plan.channelOutput[channel]]];
  return plan.channelHow[channel] === NARROW ? [words.replace(/^float32/, "bfloat16"), bytes / 2, exact] : [words, bytes, exact];
}

/* Whether its bytes per step are known: the number of a loop's iterations is not known. */
const isExact = (channel, of = plan) => of.channelExact[channel] > 0 && (of.channelOutput[channel] < 0 || !of.channelLoop[channel]);

/* Who takes what a node makes: built once, for all nodes. */
function consumers(node) {
  if (!plan.consumerStart) {
    const counts = new Uint32Array(plan.count);
    for (const from of plan.inputFrom) counts[from]++;
    for (const from of plan.controlFrom) counts[from]++;
    const start = (plan.consumerStart = starts(counts));
    const next = start.slice(0, plan.count);
    plan.consumer = new Uint32Array(start[plan.count]);
    for (let i = 0; i < plan.count; i++) {
      for (let e = plan.inputStart[i]; e < plan.inputStart[i + 1]; e++) plan.consumer[next[plan.inputFrom[e]]++] = i;
      for (let e = plan.controlStart[i]; e < plan.controlStart[i + 1]; e++) plan.consumer[next[plan.controlFrom[e]]++] = i;
    }
  }
  return [...new Set(plan.consumer.subarray(plan.consumerStart[node], plan.consumerStart[node + 1]))];
}

/* Channels that carry what a node makes, and channels that bring what it takes. */
function channelsAt(node) {
  if (!plan.sentBy) {
    plan.sentBy = new Map();
    plan.takenBy = new Map();
    const put = (map, key, value) => (map.has(key) ? map.get(key).push(value) : map.set(key, [value]));
    for (let c = 0; c < plan.channelNode.length; c++) {
      put(plan.sentBy, plan.channelNode[c], c);
      for (const i of takersOf(c)) put(plan.takenBy, i, c);
    }
  }
  return { sent: plan.sentBy.get(node) || [], taken: plan.takenBy.get(node) || [] };
}

/* What kind of node it is, for its colour. */
function kindOf(node) {
  const kind = plan.ops[plan.op[node]][1];
  if (kind !== "compute") return kind;
  if (plan.outputCount[node] === 0) return "effect";
  return plan.inputCount[node] === 0 ? "source" : "compute";
}
