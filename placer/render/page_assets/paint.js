/* What colours mean: on the map the kind of a node, its device (in the other plan, too) or its kernel; on the timeline an op or a
   scope. A paint names a class of page.css for a node; neighbours in a list get different hues, and more of them repeat. */

const HUES = 8;

const paints = {
  kind: { of: kindOf, legend: () => [["state", "state"], ["source", "source"], ["compute", "computes"], ["effect", "effect"]] },
  device: { of: (node) => hueOfDevice(deviceText(plan.device[node])), legend: deviceLegend },
  before: { of: (node) => (plan.was[node] ? hueOfDevice(plan.before.devices[plan.was[node] - 1]) : "none"), legend: deviceLegend },
  kernel: {
    of: (node) => { const k = kernelsOf(node)[0]; return k === undefined ? "none" : "hue" + (k % HUES); },
    legend: () => [["hue0", "nodes of one colour that are joined are one kernel"], ["none", "in no kernel"]],
  },
};

/* Devices that run something, here or in the plan before, by name. */
function huesOfDevices() {
  if (!plan.hues) {
    plan.hues = new Map();
    const put = (name) => { if (!plan.hues.has(name)) plan.hues.set(name, plan.hues.size); };
    for (let i = 0; i < plan.count; i++) {
      if (plan.runs[i]) { put(deviceText(plan.device[i])); if (plan.was?.[i]) put(plan.before.devices[plan.was[i] - 1]); }
    }
    plan.hues = new Map([...plan.hues.keys()].sort().map((name, at) => [name, at]));
  }
  return plan.hues;
}

function hueOfDevice(name) {
  const at = huesOfDevices().get(name);
  return at === undefined ? "none" : "hue" + (at % HUES);
}

function deviceLegend() {
  const names = [...huesOfDevices().keys()];
  return [...names.slice(0, HUES).map((name) => [hueOfDevice(name), brief(name)]), ...(names.length > HUES ? [["", "… and " + countText(names.length - HUES, "device") + " more"]] : [])];
}

/* How many nodes of a box have which class, the most first. */
function sharesOf(box, paint) {
  box.shares ||= new Map();
  if (!box.shares.has(paint)) {
    const counts = new Map();
    for (const i of box.nodes) { const name = paint.of(i); counts.set(name, (counts.get(name) || 0) + 1); }
    box.shares.set(paint, [...counts].sort((a, b) => b[1] - a[1]));
  }
  return box.shares.get(paint);
}

/* The kernels of a node: most have one; one whose value several kernels compute anew has more. */
function kernelsOf(node) {
  if (!plan.kernelsOf) {
    plan.kernelsOf = new Map();
    for (let k = 0; k < plan.kernelSize.length; k++) {
      for (const i of membersOf(k)) plan.kernelsOf.set(i, [...(plan.kernelsOf.get(i) || []), k]);
    }
  }
  return plan.kernelsOf.get(node) || [];
}

const membersOf = (kernel) => plan.kernelMember.subarray(plan.kernelStart[kernel], plan.kernelStart[kernel + 1]);

/* Hues for the keys that take most: key -> class. `sums`: key -> how much. */
function huesByShare(sums) {
  const most = [...sums].sort((a, b) => b[1] - a[1] || (a[0] < b[0] ? -1 : 1)).slice(0, HUES);
  return new Map(most.map(([key], at) => [key, "hue" + at]));
}

function showLegend(element, marks) {
  element.replaceChildren(...marks.map(([name, text]) => h("span", {}, name ? h("i", { class: /^(stroke|line)/.test(name) ? name : "fill-" + name }) : "", text)));
}
