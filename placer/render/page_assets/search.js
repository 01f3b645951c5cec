/* Finding nodes by name or op, and tasks and devices by name. On the map, matches are listed and Enter goes to one; in a table, rows are filtered. */

const FOUND = 40;  // nodes
const PLACES = 4; // tasks, and devices

const finder = {
  field: document.getElementById("search"),
  list: document.getElementById("results"),
  found: [],
  at: -1,

  start() {
    this.field.addEventListener("input", () => this.look());
    this.field.addEventListener("focus", () => this.look());
    this.field.addEventListener("blur", () => setTimeout(() => this.close(), 150));
    this.field.addEventListener("keydown", (event) => this.key(event));
    this.list.addEventListener("pointerdown", (event) => {
      const row = event.target.closest("[role=option]");
      event.preventDefault(); // the field keeps the focus until the choice is made
      if (row) this.choose(Number(row.dataset.at));
    });
  },

  look() {
    const wanted = this.field.value.trim().toLowerCase();
    if (!views.leftOut.hidden) views.show("map");
    if (!views.map.hidden) this.fill(wanted);
    else if (!views.timeline.hidden) timeline.find(wanted);
    else tableView.filter(this.field.value);
  },

  fill(wanted) {
    if (!wanted) { this.close(); return; }
    const { best, count, isNear } = search(wanted);
    const places = searchPlaces(wanted)
      .map((box) => ({ box, name: box.path, more: box instanceof Group ? box.size : countText(box.nodes.length, "node") }));
    const nodes = best.map((node) => ({ node, name: plan.names[node], more: plan.ops[plan.op[node]][0] + " · " + deviceText(plan.device[node]) }));
    this.found = wanted.includes(":") ? [...places, ...nodes] : [...nodes, ...places];
    this.at = this.found.length ? 0 : -1;
    const rows = this.found.map(({ name, more }, at) => h("div", { role: "option", id: "found-" + at, "data-at": at, "aria-selected": String(at === this.at) },
      h("span", { class: "name" }, marked(name, wanted)), h("span", { class: "faint" }, more)));
    this.list.replaceChildren(...rows, h("p", { class: "faint" },
      (isNear ? "No node has “" + wanted + "” in its name or op" : "") + (count && isNear ? "; like it: " : "") +
      (count ? (count > best.length ? "best " + best.length + " of " : "") + countText(count, "node") : "")));
    this.list.hidden = false;
    this.field.setAttribute("aria-expanded", "true");
    this.mark();
  },

  mark() {
    [...this.list.querySelectorAll("[role=option]")].forEach((row, at) => {
      row.setAttribute("aria-selected", String(at === this.at));
      if (at === this.at) row.scrollIntoView({ block: "nearest" });
    });
    this.field.setAttribute("aria-activedescendant", this.at < 0 ? "" : "found-" + this.at);
  },

  key(event) {
    if (event.key === "Escape") { this.close(); if (this.field.value) { this.field.value = ""; this.look(); } else this.field.blur(); event.stopPropagation(); }
    else if (event.key === "Enter" && !views.timeline.hidden) timeline.next(event.shiftKey ? -1 : 1);
    else if (this.list.hidden) return;
    else if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      this.at = Math.max(0, Math.min(this.found.length - 1, this.at + (event.key === "ArrowDown" ? 1 : -1)));
      this.mark();
      event.preventDefault();
    } else if (event.key === "Enter" && this.at >= 0) this.choose(this.at);
  },

  choose(at) {
    const { node, box } = this.found[at];
    this.close();
    this.field.blur();
    if (box) pick({ box });
    else goTo(node);
    map.focus?.element?.focus({ preventScroll: true });
  },

  close() {
    this.list.hidden = true;
    this.field.setAttribute("aria-expanded", "false");
  },
};

/* The best matches and how many there are: whole names first, then beginnings, then the shortest names; ops last. */
function search(wanted) {
  const lower = (plan.lowerNames ||= plan.names.map((name) => name.toLowerCase()));
  const ops = plan.ops.map(([op]) => op.toLowerCase().includes(wanted));
  const best = []; // [rank, not run, length, node], the best first
  const before = (a, b) => a[0] - b[0] || a[1] - b[1] || a[2] - b[2] || a[3] - b[3];
  let count = 0;
  const keep = (entry) => {
    count++;
    if (best.length === FOUND && before(best[FOUND - 1], entry) < 0) return;
    if (best.length === FOUND) best.pop();
    let place = best.length;
    while (place && before(entry, best[place - 1]) < 0) place--;
    best.splice(place, 0, entry);
  };
  for (let i = 0; i < plan.count; i++) {
    const at = lower[i].indexOf(wanted);
    if (at < 0 && !ops[plan.op[i]]) continue;
    const own = lower[i].lastIndexOf("/") + 1;
    const rank = at < 0 ? 5 : lower[i] === wanted ? 0 : lower[i].slice(own) === wanted ? 1 : at === own || at === 0 ? 2 : lower[i].indexOf(wanted, own) >= 0 ? 3 : 4;
    keep([rank, plan.runs[i] ? 0 : 1, lower[i].length, i]);
  }
  const isNear = count === 0;
  if (isNear) {
    const letters = wanted.replace(/\s+/g, "");
    for (let i = 0; i < plan.count; i++) {
      const span = spanOf(lower[i], letters);
      if (span <= 3 * letters.length) keep([span, plan.runs[i] ? 0 : 1, lower[i].length, i]);
    }
  }
  return { best: best.map((entry) => entry[3]), count, isNear };
}

/* How many letters of a name the wanted ones stand in, in their order: 'hidwei' in 'hidden/weights' in 10; Infinity: they don't. */
function spanOf(name, letters) {
  let at = -1;
  for (const letter of letters) if ((at = name.indexOf(letter, at + 1)) < 0) return Infinity;
  let first = at;
  for (let k = letters.length - 2; k >= 0; k--) first = name.lastIndexOf(letters[k], first - 1);
  return at - first + 1;
}

/* Tasks, then devices, that have all the words in their names, a few of each. */
function searchPlaces(wanted) {
  const words = wanted.split(/[\s/]+/).filter(Boolean);
  const few = (boxes) => {
    const found = [];
    for (const box of boxes) {
      const parts = box.path.toLowerCase().split("/");
      if (words.every((word) => parts.some((part) => part.includes(word))) && found.push(box) === PLACES) break;
    }
    return found;
  };
  const tasks = map.roots.filter((root, i) => i === 0 || root.parent !== map.roots[i - 1].parent).map((root) => root.parent);
  return [...few(tasks.filter((task) => !task.isFixed)), ...few(map.roots)];
}

function marked(name, wanted) {
  const at = name.toLowerCase().lastIndexOf(wanted);
  return at < 0 ? [name] : [name.slice(0, at), h("mark", {}, name.slice(at, at + wanted.length)), name.slice(at + wanted.length)];
}
