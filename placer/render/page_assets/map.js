/* The map: draws the scene, and what mouse and keyboard do to it. */

const map = {
  svg: document.getElementById("map"),
  roots: [],        // the box of each device
  jobs: [],         // each job's tasks, or ranges of them
  frames: [],       // tasks and ranges that are open
  ends: [],         // what shows of devices: their boxes, and closed tasks and ranges
  flow: null,       // the box of the whole model
  tab: "map",       // or kernels, or diff: the same map with other colours
  wantsFlow: false, // whether the whole model is drawn in one flow; a diff always is
  initializers: false, // whether they have boxes
  stages: [],       // what is drawn; of a diff two, side by side
  bundle: true,
  view: { x: 0, y: 0, k: 1 },
  focus: null,      // the box that the keyboard is at
  selection: null,  // {node} | {box} | {sum}, or nothing

  start() {
    this.most = mostOf(plan.devices);
    this.svg.append(arrowHeads());
    this.hidden = plan.isInitializer.reduce((sum, is, i) => sum + (is && plan.runs[i] > 0), 0);
    this.tool("initializers").textContent = "Initialisers (" + numberText(this.hidden) + ")";
    this.tool("initializers").hidden = !this.hidden;
    this.plant();
    // Few channels say more when each is drawn between the nodes that it joins.
    this.bundle = this.outer.length > 14 || this.ends.some((r) => r.nodes.length && !r.isOpen);
    this.turn("map", true);
    this.listen();
  },

  tool: (name) => document.querySelector("#tools [data-do=" + name + "]"),
  shows(node) { return plan.runs[node] > 0 && (this.initializers || !plan.isInitializer[node]); },
  get isFlow() { return this.wantsFlow || this.tab === "diff"; },
  get tops() { return this.isFlow ? [[this.flow]] : this.jobs; },
  rootOf(node) { return this.isFlow ? this.flow : this.roots[plan.place[node]]; },
  get paint() { return this.tab === "kernels" ? paints.kernel : this.isFlow ? paints.device : paints.kind; },

  plant() {
    const { roots, tops, flow } = plantTree((node) => this.shows(node));
    Object.assign(this, { roots, jobs: tops, flow, focus: null });
    this.reset();
  },

  /* What a tab shows: the same boxes in other colours, or, when `anew`, other boxes. */
  turn(tab, anew = false) {
    const wasFlow = this.isFlow;
    const panes = tab === "diff" ? 2 : 1;
    this.tab = tab;
    anew ||= wasFlow !== this.isFlow || panes !== this.stages.length;
    if (panes !== this.stages.length) {
      for (const stage of this.stages) stage.parentNode.remove();
      this.svg.querySelectorAll(".pane").forEach((e) => e.remove());
      this.stages = Array.from({ length: panes }, () => s("g", { class: "stage" }));
      this.svg.append(...this.stages.map((stage, i) => s("svg", { x: (100 * i) / panes + "%", width: 100 / panes + "%", height: "100%" }, stage)));
      if (panes > 1) this.svg.append(s("line", { class: "pane", x1: "50%", x2: "50%", y2: "100%" }), ...["Before", "After"].map((text, i) => s("text", { class: "pane title", x: 50 * i + "%", dx: 16, y: 26 }, text)));
    }
    if (anew) { if (this.selection?.node === undefined) this.selection = null; this.focus = null; this.reset(); }
    this.tool("flow").hidden = tab === "diff";
    this.tool("flow").setAttribute("aria-pressed", String(this.wantsFlow));
    this.tool("bundle").hidden = this.isFlow;
    this.tool("initializers").setAttribute("aria-pressed", String(this.initializers));
    const lines = this.isFlow ? [["stroke-remote", "between devices"]] : [["stroke-remote", "between tasks"], ["stroke-local", "in a task"]];
    showLegend(document.getElementById("legend"), [...this.paint.legend(), ...lines, ["stroke-data", "in a device"], ["stroke-control", "control"]]);
    this.draw();
    if (anew) this.fit(false, this.isFlow ? 0.6 : 0.05); // a flow may be much wider than high: its middle can be read
  },

  window() {
    const { width, height } = this.svg.getBoundingClientRect();
    return { width: width / Math.max(1, this.stages.length), height };
  },

  /* The first view: as much opened as can still be read. */
  reset() {
    const { width, height } = this.window();
    const tops = this.tops.flat();
    for (const top of tops) top.reset?.();
    if (tops.length === 1) tops[0].isOpen = true;
    const devices = this.isFlow ? [this.flow] : this.roots.filter((root) => this.isVisible(root));
    for (let budget = devices.length ? 48 : 0; budget > 0; budget = Math.floor(budget / 2)) {
      openSome(devices, budget);
      this.arrange(true);
      if (this.fitting(width, height) > 0.78) return;
    }
    openSome(devices, 0);
    this.arrange(true);
  },

  arrange(anew = false) {
    const leaves = [];
    const frames = [];
    const ends = [];
    const collect = (box) => {
      if (box instanceof Group && box.isOpen) frames.push(box);
      else if (isPlace(box) || box === this.flow) ends.push(box);
      if (box.isOpen) box.children.forEach(collect);
      else leaves.push(box);
    };
    const tops = this.tops.flat();
    tops.forEach(collect);
    const { inner, outer } = joinBoxes(leaves);
    layOut(this.tops, inner, anew);
    Object.assign(this, { leaves, inner, outer, frames, ends, bundles: shownLinks(this.roots) });
    const right = Math.max(...tops.map((t) => t.x + t.width));
    const bottom = Math.max(...tops.map((t) => t.y + t.height));
    this.size = { width: right, height: bottom };
  },

  /* Draws anew, and keeps the focus where it was. */
  draw() {
    const had = this.svg.contains(document.activeElement) && document.activeElement !== this.svg;
    const picked = this.pickedBox();
    const lit = new Set();
    const sum = this.selection?.sum;
    const isLit = (edge) => {
      if (sum) return edge === sum || (edge.channels && (sum.from ? edge.from === sum.from && edge.to === sum.to : this.isBetween(edge, sum)));
      if (!picked) return false;
      return within(edge.from, picked) !== within(edge.to, picked) && edge.from !== undefined;
    };
    if (picked) {
      lit.add(picked);
      for (const edge of [...this.inner, ...this.outer]) if (edge.from && isLit(edge)) lit.add(edge.from).add(edge.to);
      if (picked.isOpen) this.tops.flat().forEach(function visit(b) { if (within(b, picked)) lit.add(b); if (b.isOpen) b.children.forEach(visit); });
    }
    const kernel = this.selection?.kernel;
    if (kernel !== undefined) for (const node of membersOf(kernel)) if (this.shows(node)) lit.add(this.boxOf(node));
    const scene = { frames: this.frames, ends: this.ends, inner: this.inner, outer: this.outer, bundles: this.bundles, most: this.mostAmong(),
      bundle: this.bundle, lit, isLit, picked, chosen: picked, solid: this.solid(), paint: this.paint };
    this.stages.forEach((stage, i) => {
      stage.replaceChildren(...drawMap(this.tab === "diff" && i === 0 ? { ...scene, paint: paints.before } : scene));
      stage.setAttribute("class", "stage" + (picked || sum || lit.size ? " has-choice" : ""));
    });
    this.place();
    const focus = this.focus && this.isVisible(this.focus) ? this.focus : picked || this.ends.find((r) => r.nodes.length) || this.ends[0];
    this.setFocus(focus, had);
    this.tool("bundle").setAttribute("aria-pressed", String(this.bundle));
  },

  /* Where no label may stand: heads of frames, and closed boxes; whole devices when lines run between devices. */
  solid() {
    const out = [];
    const add = (b, height = b.height) => out.push({ x: b.x, y: b.y, right: b.x + b.width, bottom: b.y + height });
    for (const t of this.frames) add(t, 30);
    const visit = (box) => { add(box, box.isOpen ? (box.kind === "device" ? deviceHead(box.width) : HEAD) : box.height); if (box.isOpen) box.children.forEach(visit); };
    for (const root of this.ends) if (this.bundle && !this.isFlow) add(root); else visit(root);
    return out;
  },

  /* Whether a line is between what shows of the same two devices as a sum of channels. */
  isBetween(edge, sum) {
    const shown = (device) => anchor(this.roots[device]);
    return shown(edge.source) === shown(sum.source) && shown(edge.target) === shown(sum.target);
  },

  /* The largest loads, by the kind of box: among all devices, among the closed tasks and ranges that show. */
  mostAmong() {
    const known = new Map([["device", this.most]]);
    return (kind) => known.get(kind) || known.set(kind, mostOf(this.ends.filter((b) => b.kind === kind).map((b) => b.load))).get(kind);
  },

  isVisible(box) { for (let b = box.parent; b; b = b.parent) if (!b.isOpen) return false; return true; },

  /* The visible box that is, or holds, what is selected. */
  pickedBox() {
    if (!this.selection) return null;
    if (this.selection.box) {
      let box = this.selection.box;
      for (let b = box.parent; b; b = b.parent) if (!b.isOpen) box = b;
      return box;
    }
    const node = this.selection.node;
    return node === undefined || !this.shows(node) ? null : this.boxOf(node);
  },

  /* The visible box that is, or holds, a node. */
  boxOf(node) {
    let box = anchor(this.rootOf(node));
    while (box.isOpen) box = box.children.find((c) => c.holds(node));
    return box;
  },

  // -- looking at it

  place() {
    const { x, y, k } = this.view;
    for (const stage of this.stages) stage.setAttribute("transform", `translate(${x.toFixed(2)},${y.toFixed(2)}) scale(${k.toFixed(4)})`);
    this.svg.classList.toggle("far", k < 0.6);
  },

  fitting(width, height) { return Math.min(1.15, (width - 48) / this.size.width, (height - 104) / this.size.height); },

  fit(smoothly = true, least = 0.05) {
    const { width, height } = this.window();
    const k = Math.max(least, this.fitting(width, height));
    this.go({ k, x: (width - this.size.width * k) / 2, y: Math.max(24, (height - 56 - this.size.height * k) / 2) }, smoothly);
  },

  go(view, smoothly = true) {
    cancelAnimationFrame(this.moving);
    if (!smoothly || matchMedia("(prefers-reduced-motion: reduce)").matches) {
      this.view = view;
      this.place();
      return;
    }
    const from = this.view;
    const begin = performance.now();
    const step = (now) => {
      const t = Math.min(1, (now - begin) / 200);
      const e = 1 - (1 - t) ** 3;
      this.view = { x: from.x + (view.x - from.x) * e, y: from.y + (view.y - from.y) * e, k: from.k + (view.k - from.k) * e };
      this.place();
      if (t < 1) this.moving = requestAnimationFrame(step);
    };
    this.moving = requestAnimationFrame(step);
  },

  zoom(factor, cx, cy) {
    const { width, height } = this.window();
    cx = cx === undefined ? width / 2 : cx % width; // of two panes the one under the pointer
    cy ??= height / 2;
    const k = Math.min(3, Math.max(0.03, this.view.k * factor));
    const r = k / this.view.k;
    this.go({ k, x: cx - (cx - this.view.x) * r, y: cy - (cy - this.view.y) * r }, false);
  },

  /* Moves as little as needed for a box to be in the window; zooms out when it is larger, not further than can be read. */
  show(box, center = false) {
    const { width, height } = this.window();
    let { x, y, k } = this.view;
    if (center && k < 0.8) k = 1;
    const least = Math.min((width - 80) / box.width, (height - 120) / box.height);
    if (k > least) k = Math.max(Math.min(k, least), Math.min(k, 0.6));
    if (k !== this.view.k) {
      const r = k / this.view.k;
      const cx = box.x * this.view.k + this.view.x;
      const cy = box.y * this.view.k + this.view.y;
      x = cx - (cx - x) * r;
      y = cy - (cy - y) * r;
    }
    const left = box.x * k + x;
    const top = box.y * k + y;
    if (center) {
      x += width / 2 - (left + (box.width * k) / 2);
      y += (height - 40) / 2 - (top + (box.height * k) / 2);
    } else {
      if (left + box.width * k > width - 30) x += width - 30 - left - box.width * k;
      if (box.x * k + x < 30) x = 30 - box.x * k;
      if (top + box.height * k > height - 70) y += height - 70 - top - box.height * k;
      if (box.y * k + y < 30) y = 30 - box.y * k;
    }
    this.go({ x, y, k });
  },

  // -- doing something

  select(selection) {
    this.selection = selection;
    this.draw();
    detail.show(selection);
  },

  toggle(box) {
    if (box.isLeaf) return;
    const { x, y, k } = this.view;
    const left = box.x * k + x;
    const top = box.y * k + y;
    box.isOpen = !box.isOpen;
    // A scope with a single part says nothing by itself.
    for (let b = box; b.isOpen && b.children.length === 1 && !b.children[0].isLeaf; b = b.children[0]) b.children[0].isOpen = true;
    this.arrange();
    this.view = { k, x: left - box.x * k, y: top - box.y * k }; // it stays under the pointer
    this.focus = box;
    this.selection = { box };
    this.draw();
    detail.show(this.selection);
    this.show(box);
    say((box.isOpen ? "Opened " : "Closed ") + box.path);
  },

  /* Opens what hides a node, and goes there. */
  reveal(node) {
    if (plan.runs[node]) {
      if (!this.shows(node)) this.act("initializers");
      const box = uncover(this.rootOf(node), node);
      this.arrange();
      this.focus = box;
    }
    this.select({ node });
    if (plan.runs[node]) this.show(this.focus, true);
  },

  /* Opens what hides the nodes of a kernel. */
  revealKernel(kernel) {
    const boxes = Array.from(membersOf(kernel)).filter((node) => this.shows(node)).map((node) => uncover(this.rootOf(node), node));
    this.arrange();
    this.select({ kernel });
    if (boxes.length) this.show(boxes[boxes.length - 1], true);
  },

  /* Opens what hides a box. */
  uncover(box) {
    for (let b = box.parent; b; b = b.parent) b.isOpen = true;
    this.arrange();
  },

  act(name) {
    if (name === "in") this.zoom(1.3);
    else if (name === "out") this.zoom(1 / 1.3);
    else if (name === "fit") this.fit();
    else if (name === "fold") { this.selection = null; this.reset(); this.draw(); this.fit(); detail.show(null); }
    else if (name === "bundle") { this.bundle = !this.bundle; this.draw(); }
    else if (name === "flow" && this.tab !== "diff") { const { tab } = this; this.wantsFlow = !this.wantsFlow; this.turn(tab, true); }
    else if (name === "initializers" && this.hidden) { this.initializers = !this.initializers; this.plant(); this.turn(this.tab, true); }
  },

  setFocus(box, move = true) {
    this.focus?.element?.setAttribute("tabindex", "-1");
    this.focus = box;
    box.element.setAttribute("tabindex", "0");
    if (move) box.element.focus({ preventScroll: true });
  },

  /* The nearest box in the direction of an arrow key. */
  step(dx, dy) {
    const center = (b) => ({ x: b.x + b.width / 2, y: b.y + (b.isOpen ? 14 : b.height / 2) });
    const here = center(this.focus);
    let best = null;
    let least = Infinity;
    const look = (box) => {
      if (box !== this.focus && !(box.isOpen && box.isFixed)) {
        const c = center(box);
        const along = (c.x - here.x) * dx + (c.y - here.y) * dy;
        const aside = Math.abs((c.x - here.x) * dy) + Math.abs((c.y - here.y) * dx);
        const far = along + 2 * aside;
        if (along > 4 && far < least) { least = far; best = box; }
      }
      if (box.isOpen) box.children.forEach(look);
    };
    this.jobs.flat().forEach(look);
    if (!best) return;
    this.setFocus(best);
    this.show(best.isOpen ? { x: best.x, y: best.y, width: Math.min(best.width, 300), height: 60 } : best);
    tip.at(best);
  },

  listen() {
    const { svg } = this;
    let drag = null;
    const thingAt = (event) => { let e = event.target; while (e && e !== svg && !e.thing) e = e.parentNode; return e && e !== svg ? e.thing : null; };
    svg.addEventListener("pointerdown", (event) => {
      if (event.button) return;
      drag = { x: event.clientX, y: event.clientY, from: this.view, moved: false, id: event.pointerId };
    });
    svg.addEventListener("pointermove", (event) => {
      if (!drag) { tip.follow(thingAt(event), event); return; }
      const dx = event.clientX - drag.x;
      const dy = event.clientY - drag.y;
      if (!drag.moved && Math.hypot(dx, dy) < 5) return;
      if (!drag.moved) { drag.moved = true; svg.setPointerCapture(drag.id); svg.classList.add("dragging"); tip.hide(); }
      this.go({ ...drag.from, x: drag.from.x + dx, y: drag.from.y + dy }, false);
    });
    const drop = () => { svg.classList.remove("dragging"); setTimeout(() => (drag = null)); };
    svg.addEventListener("pointerup", drop);
    svg.addEventListener("pointercancel", drop);
    svg.addEventListener("pointerleave", () => tip.hide());
    svg.addEventListener("click", (event) => {
      if (drag?.moved) return;
      tip.hide();
      const thing = thingAt(event);
      if (!thing) this.select(null);
      else if (thing instanceof Box) this.press(thing, event.target.classList.contains("handle") || event.target.classList.contains("chevron"));
      else this.select({ sum: thing });
    });
    svg.addEventListener("wheel", (event) => {
      event.preventDefault();
      const { left, top } = svg.getBoundingClientRect();
      if (event.shiftKey) this.go({ ...this.view, x: this.view.x - event.deltaY - event.deltaX }, false);
      else this.zoom(Math.exp(-Math.max(-80, Math.min(80, event.deltaY)) * (event.ctrlKey ? 0.01 : 0.003)), event.clientX - left, event.clientY - top);
    }, { passive: false });
    svg.addEventListener("keydown", (event) => this.key(event));
    svg.addEventListener("focusin", (event) => { const thing = thingAt(event); if (thing instanceof Box && thing !== this.focus) this.setFocus(thing, false); });
    document.getElementById("tools").addEventListener("click", (event) => this.act(event.target.dataset.do));
    addEventListener("resize", () => tip.hide());
  },

  /* A click on a box, or Enter: opens what is closed; an open one is closed by its head. */
  press(box, onHead) {
    this.focus = box;
    if (box.kind === "node") this.select({ node: box.nodes[0] });
    else if (box.isLeaf || (box.isOpen && !onHead)) this.select({ box });
    else this.toggle(box);
  },

  key(event) {
    const steps = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (steps[event.key]) this.step(...steps[event.key]);
    else if (event.key === "Enter" || event.key === " ") this.press(this.focus, true);
    else return;
    event.preventDefault();
  },
};

const mostOf = (all) => loads.map((load) => all.reduce((most, d) => Math.max(most, load.of(d)), 0));

function within(box, outer) {
  for (let b = box; b; b = b.parent) if (b === outer) return true;
  return false;
}
