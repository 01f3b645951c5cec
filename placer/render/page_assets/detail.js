/* The panel beside the views: the decision for a node, the contents of a box, the tensors of a line, the differences of two plans. The words are those of `plan.explain`, assembled from the plan's tables. */

const MANY = 12; // entries of a list before the rest is only counted, or opened by a click

const detail = {
  element: document.getElementById("detail"),

  show(selection) {
    let parts;
    if (selection?.bar) parts = aboutBar(selection.bar);
    else if (!plan.names) parts = [head("Chart", document.title), chartFacts(), barKeys()];
    else if (!selection) parts = map.tab === "kernels" ? aboutKernels() : map.tab === "diff" ? aboutDiff() : aboutPlan();
    else if (selection.kernel !== undefined) parts = aboutKernel(selection.kernel);
    else if (selection.sum) parts = selection.sum.channels ? aboutChannels(selection.sum) : aboutEdge(selection.sum);
    else if (selection.node !== undefined) parts = aboutNode(selection.node);
    else if (selection.box.kind === "device") parts = aboutDevice(selection.box);
    else if (selection.box instanceof Group) parts = aboutGroup(selection.box);
    else if (selection.box.kind === "node") parts = aboutNode(selection.box.nodes[0]);
    else parts = aboutScope(selection.box);
    this.element.replaceChildren(...parts.filter(Boolean));
    this.element.scrollTop = 0;
  },
};

// -- pieces

const head = (kind, name, ...more) => h("div", { class: "head" }, h("p", { class: "kind" }, kind), h("h2", {}, breakable(name)), ...more);
const section = (title, ...parts) => (parts.flat().filter(Boolean).length ? h("section", {}, h("h3", {}, title), ...parts.flat().filter(Boolean)) : null);
const facts = (rows) => h("dl", {}, rows.filter(Boolean).flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));

/* Long names may break after a slash or an underscore. */
const breakable = (name) => name.split(/(?<=[/_])/).flatMap((part, i) => (i ? [h("wbr"), part] : [part]));

function nodeLink(node, label = plan.names[node]) {
  return h("button", { class: "link", type: "button", title: plan.names[node], onclick: () => goTo(node) }, breakable(label));
}

function deviceTag(at) {
  return h("span", { class: "tag kind-" + plan.devices[at].type.toLowerCase() }, deviceText(at));
}

/* The first entries of a list; the rest come with a click. */
function listOf(items, entry, many = MANY) {
  const list = h("ul", {}, items.slice(0, many).map((item) => h("li", {}, entry(item))));
  if (items.length > many) {
    const rest = Math.min(items.length, many + 500);
    const more = h("button", { class: "link more", type: "button", onclick: () => more.parentNode.replaceWith(...items.slice(many, rest).map((item) => h("li", {}, entry(item))),
      rest < items.length ? h("li", { class: "faint" }, "… and " + numberText(items.length - rest) + " more") : "") },
    "… and " + numberText(items.length - many) + " more");
    list.append(h("li", {}, more));
  }
  return list;
}

function sourceLine(at) {
  const [file, line, code] = plan.lines[at];
  const name = plan.files[file];
  if (!line) return h("p", { class: "faint" }, "line not known");
  return h("div", { class: "code" }, h("p", { class: "where", title: name + ":" + line }, name.split(/[\\/]/).slice(-2).join("/") + ":" + line), code ? h("pre", {}, code) : "");
}

function bar(share, className) {
  const inside = h("i", { class: className });
  inside.style.width = Math.max(share ? 1 : 0, share * 100) + "%";
  return h("span", { class: "bar" }, inside);
}

// -- what there is to say

const isUsed = (device) => device.nodes || device.variables;
const usedDevices = () => plan.devices.filter(isUsed);

function aboutPlan() {
  const remote = deviceLinksOnce().filter((l) => l.isRemote);
  const idle = plan.devices.filter((d) => !isUsed(d));
  const used = usedDevices();
  return [
    head("Plan", countText(ran(), "node") + " on " + countText(used.length, "device")),
    facts([
      plan.program ? ["program", plan.program] : null,
      ["cluster", plan.cluster],
      ["written", plan.written],
      ["graph", countText(plan.count, "node") + (allNodes().length < plan.count ? ", of which the step runs " + numberText(allNodes().length) : "") +
        (ran() > allNodes().length ? "; copies of constants: " + numberText(ran() - allNodes().length) : "")],
      ["channels", numberText(plan.channelNode.length) + ", between tasks " + numberText(remote.reduce((n, l) => n + l.channels.length, 0))],
      ...chartRows(),
      ["between tasks", bytesText(remote.reduce((n, l) => n + l.bytes, 0), remote.every((l) => l.exact)) + " per step"],
      ["master", shortDevice(plan.master)],
      plan.fetches.length ? ["fetches", listOf(plan.fetches, tensorLink, 4)] : null,
      plan.targets.length ? ["targets", listOf(plan.targets, tensorLink, 4)] : null,
      plan.feeds.length ? ["feeds", listOf(plan.feeds, tensorLink, 4)] : null,
      ...Object.keys(plan.leftOut).filter(hasView).map((view) => ["left out", plan.leftOut[view]]), // its tab shows other things
    ]),
    section("Warnings", plan.warnings.length ? listOf(plan.warnings, ([text, nodes]) => h("div", { class: "note-box" }, text, nodes.map((i) => h("p", {}, nodeLink(i)))), 4) : null),
    section("Devices", loadTable(used), idle.length ? h("p", { class: "faint" }, countText(idle.length, "device") + " idle: " + idle.slice(0, 4).map((d) => deviceText(d.at)).join(", ") + (idle.length > 4 ? " …" : "")) : null),
    section("Traffic per step", linkList(deviceLinksOnce())),
    section("Shared memory (" + plan.access.how + ")", plan.access.used.length || plan.access.refused.length ? listOf([
      ...plan.access.used.map(([task, owner]) => shortDevice(task) + " maps the variables of " + shortDevice(owner)),
      ...plan.access.refused.map(([task, owner, name]) => shortDevice(task) + " cannot map " + (name ? "'" + name + "' in " : "") + "the memory of " + shortDevice(owner)),
    ], (text) => h("p", { class: "faint" }, text), 4) : null),
    section("Relaxed requests", plan.relaxations.length ? listOf(plan.relaxations, ([node, requested, reason]) => [nodeLink(node), h("p", { class: "faint" }, "requested '" + requested + "', assigned " + deviceText(plan.device[node]) + ": " + reason)]) : null),
    h("p", { class: "help" }, "Click a box to open it, a line to see its tensors. ", h("kbd", {}, "/"), " search  ", h("kbd", {}, "←↑↓→"), " move  ",
      h("kbd", {}, "Enter"), " open  ", h("kbd", {}, "+ − 0"), " zoom, fit  ", h("kbd", {}, "Esc"), " back"),
  ];
}

function tensorLink(name) {
  const node = plan.byName.get(plan.byName.has(name) ? name : name.slice(0, name.lastIndexOf(":")));
  return node === undefined ? name : nodeLink(node, name);
}

let ranCount = null; // a constant that several devices have counts for each, as in print(plan)
const ran = () => (ranCount ??= plan.devices.reduce((sum, d) => sum + d.nodes, 0));

function loadTable(devices) {
  const most = map.most;
  const row = (d) => h("button", { class: "load-row", type: "button", onclick: () => pick({ box: map.roots[d.at] }) }, h("b", {}, deviceText(d.at)),
    ...loads.map((load, i) => h("span", { class: "cell" }, load.text(d), bar(most[i] ? load.of(d) / most[i] : 0, load.title))));
  return listOf(devices, row, 16);
}

function linkList(sums, many = 10) {
  if (!sums.length) return null;
  const most = sums.reduce((most, l) => Math.max(most, l.bytes), 1);
  return listOf(sums, (sum) => h("button", { class: "link-row", type: "button", onclick: () => pick({ sum }) },
    h("span", {}, sum.from instanceof Group || sum.to instanceof Group ? endsOf(sum) : briefDevice(sum.source) + " → " + briefDevice(sum.target)), h("b", {}, sum.text), bar(sum.bytes / most, sum.isRemote ? "remote" : "local")), many);
}

function aboutGroup(box) {
  const mine = map.bundles.filter((l) => within(l.from, box) !== within(l.to, box));
  return [
    head(box.kind === "task" ? "Task" : "Range of tasks", box.path, openButton(box)),
    facts([["devices", box.size], ...loads.map((load) => [{ nodes: "runs", memory: "stores", flop: "work" }[load.title], load.text(box.load)])]),
    section("Devices", loadTable(box.devices.map((d) => plan.devices[d]))),
    section("Traffic per step", linkList(mine)),
    section("Ops", opList(box.nodes)),
  ];
}

function aboutDevice(box) {
  const device = plan.devices[box.device];
  const mine = deviceLinksOnce().filter((l) => l.source === box.device || l.target === box.device);
  const variables = device.variables ? heldBy(box.device) : [];
  const feeds = plan.feeds.map((name) => plan.byName.get(name.slice(0, name.lastIndexOf(":")))).filter((i) => i !== undefined && consumers(i).some((c) => plan.runs[c] && plan.place[c] === box.device));
  return [
    head("Device", deviceText(box.device), openButton(box)),
    facts([
      ["full name", h("code", {}, device.name)],
      device.emulated ? ["emulated", "the machine does not have this device"] : null,
      device.memory ? ["memory", bytesText(device.memory)] : null,
      ["runs", countText(device.nodes, "node") + ", " + flopsText(device.flops, device.flopsExact)],
      ["stores", countText(device.variables, "variable") + ", " + bytesText(device.held, device.heldExact)],
      ["sends", bytesText(device.sent, device.sentExact)], ["receives", bytesText(device.received, device.receivedExact)],
    ]),
    section("Traffic per step", linkList(mine)),
    section("Variables", variables.length ? listOf(variables, (i) => [nodeLink(i), h("span", { class: "size" }, bytesText(plan.state[i], plan.isState[i] === 2))], 8) : null),
    section("Feeds", feeds.length ? listOf(feeds, (i) => nodeLink(i), 6) : null),
    section("Ops", opList(box.nodes)),
  ];
}

/* The variables of a device, the largest first. */
function heldBy(device) {
  const found = [];
  for (let i = 0; i < plan.count; i++) if (plan.isState[i] && plan.device[i] === device) found.push(i);
  return found.sort((a, b) => plan.state[b] - plan.state[a]);
}

function aboutScope(box) {
  const { nodes, variables, held, exact, flops, flopsExact } = box.stats;
  const edges = map.outer.filter((e) => (within(e.from, box)) !== (within(e.to, box)));
  return [
    head(box.kind === "series" ? "Range of names" : box.kind === "flow" ? "Model" : "Name scope", box.path, openButton(box)),
    facts([
      box.device < 0 ? null : ["device", deviceTag(box.device)], ["runs", countText(nodes, "node") + ", " + flopsText(flops, flopsExact)],
      variables ? ["stores", countText(variables, "variable") + ", " + bytesText(held, exact)] : null,
    ]),
    section("On", box.device < 0 ? listOf(tally(box.nodes, (i) => plan.device[i]), ([d, n]) => h("span", { class: "pair" }, deviceTag(d), h("b", {}, numberText(n))), 8) : null),
    section("Channels", edges.length ? linkList(edges.sort((a, b) => b.bytes - a.bytes)) : null),
    section("Ops", opList(box.nodes)),
  ];
}

function openButton(box) {
  if (views.map.hidden) return h("button", { class: "action", type: "button", onclick: () => pick({ box }) }, "Show on the map");
  return box.isLeaf ? null : h("button", { class: "action", type: "button", onclick: () => map.toggle(box) }, box.isOpen ? "Close" : "Open");
}

/* [key, how many nodes have it], the most first. */
function tally(nodes, keyOf) {
  const counts = new Map();
  for (const i of nodes) counts.set(keyOf(i), (counts.get(keyOf(i)) || 0) + 1);
  return [...counts].sort((a, b) => b[1] - a[1]);
}

function opList(nodes) {
  const rows = tally(nodes, (i) => plan.op[i]);
  return rows.length ? listOf(rows, ([op, n]) => h("span", { class: "pair" }, plan.ops[op][0], h("b", {}, numberText(n)), bar(n / rows[0][1], "nodes")), 8) : null;
}

function aboutChannels(sum) {
  const sorted = [...sum.channels].sort((a, b) => plan.channelBytes[b] - plan.channelBytes[a]);
  const oneSided = sorted.filter((c) => plan.channelHow[c] === DIRECT).length;
  const row = (c) => [nodeLink(plan.channelNode[c], channelName(c)),
    h("p", { class: "faint" }, channelValue(c)[0] + (isControl(c) ? "" : " · " + bytesText(plan.channelBytes[c], plan.channelExact[c] > 0)) +
      (plan.channelLoop[c] ? " in each iteration of " + plan.loops[plan.channelLoop[c] - 1] : "") + " · to " + countText(takersOf(c).length, "node") + (plan.channelRelays[c] ? " · forwarded inside the task" : "") +
      (plan.channelHow[c] === DIRECT ? " · one-sided read in shared memory (" + plan.access.how + ")" : ""))];
  return [
    head(!sum.channels.length ? "One-sided updates" : sum.isRemote ? "Channels between tasks" : "Channels inside a task", endsOf(sum)),
    facts([["per step", sum.text], oneSided ? ["one-sided reads", numberText(oneSided)] : null, ["tensors", numberText(sum.tensors)], ["control", numberText(sum.controls)],
      ...[["from", sum.from], ["to", sum.to]].map(([what, box]) => (box && !isPlace(box) ? [what, box.path] : null))]),
    section("Values", sorted.length ? listOf(sorted, row, 40) : null),
    section("Changed in shared memory (" + plan.access.how + ")", sum.inPlace.length ? listOf(sum.inPlace, (node) => nodeLink(node), 40) : null),
  ];
}

function aboutEdge(edge) {
  const row = ([from, value]) => [nodeLink(from, value ? plan.names[from] : "^" + plan.names[from]), h("p", { class: "faint" }, value ? value[0] + " · " + bytesText(value[1], value[2]) : "control edge")];
  return [
    head(edge.crosses ? "Edges between devices" : "Edges inside a device", edge.from.label + " → " + edge.to.label),
    facts([["values", numberText(edge.values) + ", " + bytesText(edge.bytes, edge.exact)], edge.controls ? ["control", numberText(edge.controls)] : null,
      ["from", edge.from.path], ["to", edge.to.path]]),
    section("Examples", listOf(edge.samples, row)),
  ];
}

// -- the decision behind a node

/* What `plan.explain` says, as parts: one definition for the panel and for tests. */
function decisionOf(node) {
  const demand = plan.demands[plan.demand[node]];
  const group = plan.groupOf.has(node) ? plan.groups[plan.groupOf.get(node)] : null;
  const notes = plan.notesOf.get(group ? "g" + plan.groupOf.get(node) : node) || [];
  const against = new Map(demand.refused); // reason -> devices
  const told = new Set([...demand.candidates, ...demand.refused.flatMap(([, devices]) => devices)]);
  const others = plan.devices.map((d) => d.at).filter((d) => !told.has(d));
  if (others.length) against.set(demand.otherwise, others);
  const blocks = [];
  for (let b = plan.block[node]; b; b = plan.blocks[b - 1][2]) blocks.push(plan.blocks[b - 1]);
  return {
    requested: plan.requests[plan.request[node]], required: demand.required, candidates: demand.candidates, against, blocks,
    group: group ? Array.from(group).filter((i) => i !== node) : [],
    colocation: plan.colocation[node] ? plan.colocations[plan.colocation[node] - 1] : [],
    overruled: demand.dropped ? [...notes, demand.dropped] : notes, rule: plan.rules[plan.rule[node]],
  };
}

function aboutNode(node) {
  const d = decisionOf(node);
  const { sent, taken } = channelsAt(node);
  const colocated = (name) => (plan.byName.has(name) ? nodeLink(plan.byName.get(name)) : name);
  return [
    head(plan.ops[plan.op[node]][0], plan.names[node], document.getElementById("view-map").hidden && plan.runs[node] ? h("button", { class: "action", type: "button", onclick: () => goTo(node) }, "Show on the map") : null),
    h("div", { class: "answer" }, deviceTag(plan.device[node]), h("p", {}, d.rule)),
    section("Runs on", runsElsewhere(node) ? listOf(runsOn(node), (d) => deviceTag(d), 8) : null),
    plan.runs[node] ? null : h("p", { class: "note-box" }, isFed(node) ? "Fed: its value comes from the client." : "Not run in this step."),
    section("Requested", h("p", {}, d.requested ? h("code", {}, d.requested) : h("span", { class: "faint" }, "no device")),
      d.required !== d.requested ? h("p", {}, "group constraint: ", d.required ? h("code", {}, d.required) : "none") : null,
      d.overruled.map((text) => h("p", { class: "note-box" }, "Relaxed: " + text))),
    section("Created at", sourceLine(plan.line[node])),
    section("Attributes", plan.attrs[node] ? facts(plan.attrTexts[plan.attrs[node] - 1]) : null),
    plan.was && plan.was[node] && plan.before.devices[plan.was[node] - 1] !== deviceText(plan.device[node])
      ? section("Moved from", h("span", { class: "tag" }, plan.before.devices[plan.was[node] - 1])) : null,
    section("Time", timesOf(node)),
    section("Kernel", plan.kernelSize && plan.runs[node] ? kernelOfNode(node) : null),
    section("Device blocks, innermost first", d.blocks.map(([what, line]) => h("div", { class: "block" }, h("code", {}, what), sourceLine(line)))),
    section("Explicitly colocated with", d.colocation.length ? listOf(d.colocation, colocated, 6) : null),
    section("Colocation group", d.group.length ? listOf(d.group, (i) => nodeLink(i), 6) : null),
    section("Candidate devices, best first", listOf([...d.candidates], (c) => deviceTag(c), 8)),
    section("Excluded", [...d.against].map(([reason, devices]) => h("div", { class: "excluded" }, h("p", {}, reason), listOf(devices, (c) => deviceTag(c), 6)))),
    section("Inputs", inputsList(node)),
    section("Outputs", outputsList(node)),
    section("Sent", sent.length ? listOf(sent, (c) => channelRow(c, "to", plan.channelTarget[c])) : null),
    section("Received", taken.length ? listOf(taken, (c) => channelRow(c, "from", plan.channelSource[c])) : null),
    section("Consumers", consumers(node).length ? listOf(consumers(node), (i) => nodeLink(i), 8) : null),
  ];
}

const isFed = (node) => plan.hasFed[node] > 0;

function channelRow(c, direction, device) {
  return [h("span", {}, channelName(c)), h("p", { class: "faint" }, (isControl(c) ? "control edge" : bytesText(plan.channelBytes[c], plan.channelExact[c] > 0)) + " " + direction + " " + deviceText(device) + (crossesTasks(c) ? "" : ", inside the task"))];
}

function inputsList(node) {
  const rows = [];
  for (let e = plan.inputStart[node]; e < plan.inputStart[node + 1]; e++) rows.push([plan.inputFrom[e], plan.inputIndex[e]]);
  for (let e = plan.controlStart[node]; e < plan.controlStart[node + 1]; e++) rows.push([plan.controlFrom[e], -1]);
  if (!rows.length) return null;
  return listOf(rows, ([from, output]) => {
    const name = output < 0 ? "^" + plan.names[from] : plan.names[from] + ":" + output;
    const value = output < 0 ? "control edge" : plan.values[plan.outputValue[plan.outputStart[from] + output]][0];
    const fed = output >= 0 && plan.fed.has(from + ":" + output) ? " · fed" : "";
    return [nodeLink(from, name), h("p", { class: "faint" }, value + fed)];
  });
}

function outputsList(node) {
  const rows = [];
  for (let e = plan.outputStart[node]; e < plan.outputStart[node + 1]; e++) rows.push(plan.values[plan.outputValue[e]]);
  if (plan.isState[node]) rows.push(["state", plan.state[node], plan.isState[node] === 2]);
  return rows.length ? listOf(rows, ([what, bytes, exact]) => h("span", { class: "pair" }, what, h("b", {}, bytesText(bytes, exact)))) : null;
}

// -- kernels

function kernelLink(k) {
  const inside = membersOf(k);
  const last = inside[inside.length - 1];
  return h("button", { class: "link", type: "button", onclick: () => { if (views.name !== "kernels") views.show("kernels"); map.revealKernel(k); } },
    h("i", { class: "dot fill-hue" + (k % HUES) }), countText(inside.length, "node") + (last === undefined ? "" : ", " + (inside.length > 1 ? "up to " : "") + plan.names[last]));
}

const kernelBytes = (k, bytes) => bytesText(bytes, plan.kernelExact[k] > 0);

function kernelOfNode(node) {
  const found = kernelsOf(node);
  if (found.length) return listOf(found, kernelLink);
  return h("p", {}, plan.reason[node] ? "In none: " + plan.reasons[plan.reason[node] - 1] : "In none: it is not fused, or computes nothing.");
}

function aboutKernels() {
  const all = Array.from(plan.kernelSize, (_, k) => k);
  const saved = all.reduce((sum, k) => sum + plan.kernelSaved[k], 0);
  const row = (k) => [kernelLink(k), h("p", { class: "faint" }, deviceText(plan.kernelDevice[k]) + " · reads " + kernelBytes(k, plan.kernelRead[k]) + ", writes " + kernelBytes(k, plan.kernelWritten[k]) +
    (plan.kernelSaved[k] ? " · fusion saves " + kernelBytes(k, plan.kernelSaved[k]) : ""))];
  const by = (column) => [...all].sort((a, b) => column[b] - column[a] || a - b);
  return [
    head("Kernels", countText(all.length, "kernel") + " of " + countText(plan.kernelMember.length, "node")),
    facts([["memory traffic", bytesText(all.reduce((sum, k) => sum + plan.kernelRead[k] + plan.kernelWritten[k], 0), plan.kernelExact.every(Boolean))],
      ["saved", bytesText(saved, plan.kernelExact.every(Boolean)) + " by fusion"]]),
    section("Fused kernels, largest saving first", saved ? listOf(by(plan.kernelSaved).filter((k) => plan.kernelSaved[k]), row) : null),
    section("Largest memory traffic", listOf(by(plan.kernelRead.map((read, k) => read + plan.kernelWritten[k])), row)),
    section("Nodes in no kernel", listOf(tally(allNodes().filter((i) => plan.reason[i]), (i) => plan.reason[i]), ([at, n]) => h("span", { class: "pair" }, plan.reasons[at - 1], h("b", {}, numberText(n))), 8)),
  ];
}

const allNodes = () => Array.from({ length: plan.count }, (_, i) => i).filter((i) => plan.runs[i]);

function aboutKernel(k) {
  return [
    head("Kernel", "Kernel on " + deviceText(plan.kernelDevice[k]), h("button", { class: "action", type: "button", onclick: () => map.select(null) }, "All kernels")),
    facts([["reads", kernelBytes(k, plan.kernelRead[k])], ["writes", kernelBytes(k, plan.kernelWritten[k])],
      plan.kernelSaved[k] ? ["saves", kernelBytes(k, plan.kernelSaved[k]) + ": values between its nodes are not stored in memory"] : null,
      ["work", flopsText(plan.kernelFlops[k], plan.kernelExact[k] > 0)]]),
    section("Nodes, in order", listOf(Array.from(membersOf(k)), (i) => [nodeLink(i), h("p", { class: "faint" }, plan.ops[plan.op[i]][0])], 40)),
  ];
}

// -- two plans

function aboutDiff() {
  const { headings, lists, amounts, moved, devices } = plan.before;
  const went = moved ? allNodes().filter((i) => plan.was[i] && devices[plan.was[i] - 1] !== deviceText(plan.device[i])) : [];
  const ways = tally(went, (i) => devices[plan.was[i] - 1] + " → " + deviceText(plan.device[i]));
  const amount = (in_bytes) => ([what, old, now, oldExact, nowExact]) => {
    const text = (count, exact) => (in_bytes ? bytesText(count, exact) : numberText(count));
    return [h("span", {}, what), h("span", { class: "pair" }, h("span", { class: "faint" }, text(old, oldExact) + " → " + text(now, nowExact)),
      h("b", {}, oldExact && nowExact ? (now > old ? "+" : "−") + text(Math.abs(now - old), true) : "?"))];
  };
  return [
    head("Two plans", moved ? countText(moved, "node") + " moved" : "No node moved"),
    section("Before", ...headings[0].map((text) => h("p", {}, text))),
    section("After", ...headings[1].map((text) => h("p", {}, text))),
    section("Moved, of the nodes that run", listOf(ways, ([way, n]) => h("span", { class: "pair" }, way, h("b", {}, numberText(n))), 8)),
    section("Nodes that moved and run", listOf(went, (i) => nodeLink(i), 8)),
    ...lists.map(([title, count, names]) => (count ? section(title + ": " + countText(count, "node"), listOf(names, tensorLink, 6)) : null)),
    ...amounts.map(([title, rows]) => (rows.length ? section(title, listOf(rows, amount(title !== "Messages per step"), 8)) : null)),
  ];
}

// -- time

const lasts = (chart) => (chart.exact ? "" : AT_LEAST) + timeText(chart.seconds);
const chartRows = () => plan.charts.map((c) => [c.label || c.title, lasts(c) + (c.facts[0] ? ", " + c.facts[0].join(" ") : "")]);
const chartFacts = () => h("div", {}, plan.charts.map((c) => section(c.label || "Step", facts([["time", lasts(c)], ...c.facts]))));
const barKeys = () => h("p", { class: "help" }, "Drag or ", h("kbd", {}, "←→"), " to move, the wheel or ", h("kbd", {}, "+ − 0"), " to zoom. ", h("kbd", {}, "Enter"), " goes along the critical path.");

function timesOf(node) {
  const found = plan.charts.length && plan.runs[node] ? secondsOf(plan.names[node]).filter(([, seconds]) => seconds) : [];
  return found.length ? facts(found.map(([label, seconds, exact]) => [label, (exact ? "" : AT_LEAST) + timeText(seconds)])) : null;
}

function aboutBar({ chart, i }) {
  const [name, time, ...more] = barLines(chart, i);
  const kind = ["Kernel", "Transfer", "Waiting"][chart.kind[i]];
  const node = plan.byName?.get(name);
  const band = timeline.bands.find((b) => b.chart === chart && b.rows.some(([first, last]) => i >= first && i < last));
  return [
    h("div", { class: "bar-head" }, node === undefined || chart.kind[i] !== KERNEL ? head(kind, name) : h("p", { class: "kind" }, kind + (chart.label ? ", " + chart.label : "")),
      facts([["on", band.track], ["takes", time], ...more.map((text) => ["", text])])),
    ...(node === undefined ? [chartFacts()] : aboutNode(node)),
  ];
}
