/* Puts the page together: views, theme, the keys that work everywhere. */

const views = {
  map: document.getElementById("view-map"),
  timeline: document.getElementById("view-timeline"),
  table: document.getElementById("view-table"),
  leftOut: document.getElementById("view-left-out"),
  name: "map",

  show(name) {
    const isLeftOut = !hasView(name);
    const isMap = !isLeftOut && ["map", "kernels", "diff"].includes(name);
    const isTimeline = !isLeftOut && name === "timeline";
    this.name = name;
    this.map.hidden = !isMap;
    this.timeline.hidden = !isTimeline;
    this.leftOut.hidden = !isLeftOut;
    this.table.hidden = isMap || isTimeline || isLeftOut;
    for (const tab of document.querySelectorAll("#views [role=tab]")) {
      const isThis = tab.dataset.view === name;
      tab.setAttribute("aria-selected", String(isThis));
      tab.tabIndex = isThis ? 0 : -1;
    }
    finder.close();
    tip.hide();
    if (isMap) {
      if (map.selection?.kernel !== undefined) map.selection = null;
      map.turn(name);
      if (!map.selection) detail.show(null);
      this.map.setAttribute("aria-labelledby", "tab-" + name);
    } else if (isLeftOut) {
      this.leftOut.replaceChildren(h("p", {}, plan.leftOut[name]));
      this.leftOut.setAttribute("aria-labelledby", "tab-" + name);
    } else if (isTimeline) timeline.show();
    else tableView.show(name);
    this.table.setAttribute("aria-labelledby", "tab-" + name);
    finder.field.placeholder = isMap ? "Search nodes" : name === "timeline" ? "Find by name" : "Filter " + name;
  },
};

const theme = {
  button: document.getElementById("theme"),

  get isDark() {
    const said = document.documentElement.dataset.theme;
    return said ? said === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  },

  start() {
    try { const kept = localStorage.getItem("dovetail-theme"); if (kept) document.documentElement.dataset.theme = kept; } catch { /* no storage: the system's theme */ }
    this.button.addEventListener("click", () => {
      const next = this.isDark ? "light" : "dark";
      document.documentElement.dataset.theme = next;
      try { localStorage.setItem("dovetail-theme", next); } catch { /* not kept */ }
      this.label();
    });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.label());
    this.label();
  },

  label() { this.button.textContent = this.isDark ? "Light" : "Dark"; this.button.setAttribute("aria-label", "Use the " + (this.isDark ? "light" : "dark") + " theme"); },
};

/* Whether the page has what a tab shows; a large plan's page may leave it out. */
function hasView(name) {
  const has = { timeline: plan.charts.length, kernels: plan.kernelSize?.length, diff: plan.before };
  return Boolean(name in has ? has[name] : plan.names);
}

function say(text) { document.getElementById("said").textContent = text; }

/* To a node, on the map; one that the step does not run has no box and is only told about. */
function goTo(node) {
  if (views.map.hidden && plan.runs[node]) views.show("map");
  map.reveal(node);
  say(plan.names[node] + " on " + deviceText(plan.device[node]));
}

/* To a box or a line. */
function pick(selection) {
  if (views.map.hidden || map.tab === "diff") views.show("map");
  if (map.isFlow) map.act("flow"); // devices and channels stand on the map by task
  if (selection.box && !map.isVisible(selection.box)) map.uncover(selection.box);
  map.select(selection);
  map.show(selection.box || (selection.sum.to && map.isVisible(selection.sum.to) ? selection.sum.to : anchor(map.roots[selection.sum.target])));
}

function keys(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|TEXTAREA)$/.test(event.target.tagName)) return;
  const acts = { "+": "in", "=": "in", "-": "out", 0: "fit", f: "fold", b: "bundle", m: "flow", i: "initializers" };
  if (event.key === "/") { finder.field.focus(); finder.field.select(); event.preventDefault(); }
  else if (event.key === "Escape") { tip.hide(); timeline.chosen = null; if (plan.names) map.select(null); else detail.show(null); if (!views.timeline.hidden) timeline.draw(); }
  else if (acts[event.key] && !views.map.hidden) map.act(acts[event.key]);
  else if (acts[event.key] && !views.timeline.hidden) timeline.act(acts[event.key]);
}

/* 'plan.html#layer/MatMul' opens at that node. */
function goToAsked() {
  let node;
  try { node = plan.byName?.get(decodeURIComponent(location.hash.slice(1))); } catch { /* no name */ }
  if (node !== undefined) goTo(node);
  return node !== undefined;
}

function openPlan() {
  if (plan.program) {
    document.querySelector("h1").textContent = plan.program;
    document.title += " · " + plan.program;
  }
  const remote = deviceLinksOnce().filter((l) => l.isRemote);
  document.getElementById("summary").textContent = [countText(ran(), "node"), countText(usedDevices().length, "device"), countText(plan.tasks.length, "task"),
    bytesText(remote.reduce((n, l) => n + l.bytes, 0), remote.every((l) => l.exact)) + " between tasks per step", ...plan.charts.map((c) => lasts(c) + " " + c.label)].join(" · ");
  map.start(); // it fits the map into what the head leaves
}

async function openPage() {
  theme.start();
  const data = document.getElementById("data");
  plan = await unpack(data.textContent);
  data.remove(); // megabytes that are not needed any more
  for (const tab of document.querySelectorAll("#views [role=tab]")) {
    tab.hidden = !hasView(tab.dataset.view) && !plan.leftOut?.[tab.dataset.view];
    tab.addEventListener("click", () => views.show(tab.dataset.view));
    tab.addEventListener("keydown", (event) => {
      let next = tab;
      const step = { ArrowRight: "nextElementSibling", ArrowLeft: "previousElementSibling" }[event.key];
      do next = step && next?.[step]; while (next?.hidden);
      if (next) { next.focus(); next.click(); }
    });
  }
  if (plan.names) openPlan();
  else document.querySelector("h1").textContent = document.title;
  if (plan.charts.length) timeline.start(plan.charts);
  finder.start();
  addEventListener("keydown", keys);
  if (!goToAsked()) { views.show(plan.names ? plan.view : "timeline"); detail.show(null); }
  addEventListener("hashchange", goToAsked);
  document.getElementById("opening").remove();
  document.documentElement.dataset.ready = "yes";
}

openPage().catch((error) => {
  document.getElementById("opening").textContent = "The plan could not be opened: " + error.message + ". A browser of 2023 or newer is needed.";
  throw error;
});
