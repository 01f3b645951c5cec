/* Tables of all nodes and all channels. Only the rows in the window exist, so a hundred thousand are like ten. */

const ROW = 30;
const TALLEST = 15e6; // px; browsers draw no element that is much taller

const tables = {
  nodes: {
    noun: "node",
    count: () => plan.count,
    columns: [
      { title: "Name", width: "minmax(180px, 2.2fr)", of: (i) => plan.names[i], className: "name" },
      { title: "Op", width: "minmax(102px, 0.8fr)", of: (i) => plan.ops[plan.op[i]][0] },
      { title: "Device", width: "minmax(132px, 0.7fr)", of: (i) => briefDevice(plan.device[i]), hint: "job:task device" },
      { title: "Requested", width: "minmax(140px, 1.3fr)", of: (i) => shortDevice(plan.requests[plan.request[i]]) },
      { title: "Rule", width: "minmax(146px, 1.6fr)", of: (i) => plan.rules[plan.rule[i]] },
      { title: "Stored", width: "80px", of: (i) => plan.state[i], text: (i) => (plan.isState[i] ? bytesText(plan.state[i], plan.isState[i] === 2) : ""), number: true },
      { title: "Work", width: "98px", of: (i) => (plan.runs[i] ? plan.flops[i] : -1), text: (i) => (plan.runs[i] ? flopsText(plan.flops[i], plan.flopsExact[i]) : ""), number: true },
      { title: "Runs", width: "64px", of: (i) => plan.runs[i], text: (i) => (plan.runs[i] ? numberText(plan.runs[i]) : isFed(i) ? "fed" : "no"), number: true,
        hint: "place in the order of its device" },
    ],
    words: (i) => plan.names[i] + "\n" + plan.ops[plan.op[i]][0],
    select: (i) => ({ node: i }),
  },
  devices: {
    noun: "device",
    count: () => plan.devices.length,
    columns: [
      { title: "Device", width: "minmax(190px, 2fr)", of: (i) => deviceText(i), className: "name" },
      { title: "Nodes", width: "90px", of: (i) => plan.devices[i].nodes, text: (i) => numberText(plan.devices[i].nodes), number: true },
      { title: "Work", width: "110px", of: (i) => plan.devices[i].flops, text: (i) => flopsText(plan.devices[i].flops, plan.devices[i].flopsExact), number: true },
      { title: "Stored", width: "100px", of: (i) => plan.devices[i].held, text: (i) => bytesText(plan.devices[i].held, plan.devices[i].heldExact), number: true },
      { title: "Memory", width: "100px", of: (i) => plan.devices[i].memory || 0, text: (i) => (plan.devices[i].memory ? bytesText(plan.devices[i].memory) : ""), number: true },
      { title: "Sends", width: "100px", of: (i) => plan.devices[i].sent, text: (i) => bytesText(plan.devices[i].sent, plan.devices[i].sentExact), number: true },
      { title: "Receives", width: "100px", of: (i) => plan.devices[i].received, text: (i) => bytesText(plan.devices[i].received, plan.devices[i].receivedExact), number: true },
    ],
    words: (i) => deviceText(i) + "\n" + plan.devices[i].name + "\n" + briefDevice(i),
    select: (i) => ({ box: map.roots[i] }),
  },
  channels: {
    noun: "channel",
    count: () => plan.channelNode.length,
    columns: [
      { title: "Tensor", width: "minmax(190px, 3fr)", of: channelName, className: "name" },
      { title: "Value", width: "minmax(130px, 1.2fr)", of: (c) => channelValue(c)[0] },
      { title: "From", width: "minmax(128px, 0.8fr)", of: (c) => briefDevice(plan.channelSource[c]) },
      { title: "To", width: "minmax(128px, 0.8fr)", of: (c) => briefDevice(plan.channelTarget[c]) },
      { title: "Bytes", width: "84px", of: (c) => plan.channelBytes[c], text: (c) => (isControl(c) ? "" : bytesText(plan.channelBytes[c], plan.channelExact[c] > 0)), number: true },
      { title: "Path", width: "112px", of: (c) => (plan.channelHow[c] === DIRECT ? "shared memory" : crossesTasks(c) ? "message" : plan.channelRelays[c] ? "forwarded" : "in the task") },
      { title: "When", width: "108px", of: (c) => (plan.channelLoop[c] ? "each iteration of " + plan.loops[plan.channelLoop[c] - 1] : "once"),
        text: (c) => (plan.channelLoop[c] ? "each iteration" : "once") },
      { title: "Consumers", width: "104px", of: (c) => takersOf(c).length, text: (c) => numberText(takersOf(c).length), number: true },
    ],
    words: channelName,
    select: (c) => { const sum = new ChannelSum(plan.channelSource[c], plan.channelTarget[c]); sum.add(c); return { sum }; },
  },
};

const tableView = {
  element: document.getElementById("view-table"),

  show(kind) {
    this.kind = kind;
    this.table = tables[kind];
    this.sort = null;
    const { columns } = this.table;
    this.heads = columns.map((column, i) => h("div", { role: "columnheader", "aria-sort": "none", class: column.number ? "number" : "" },
      h("button", { type: "button", title: column.hint || null, onclick: () => this.sortBy(i) }, column.title)));
    this.body = h("div", { class: "rows", role: "rowgroup" });
    this.grid = h("div", { class: "grid", role: "grid", tabindex: "0", "aria-label": "All " + this.table.noun + "s", onscroll: () => this.draw(), onkeydown: (event) => this.key(event),
      onclick: (event) => { const row = event.target.closest("[data-at]"); if (row) this.pick(Number(row.dataset.at)); } },
    h("div", { class: "row heads", role: "row", "aria-rowindex": "1" }, this.heads), this.body);
    this.note = h("p", { class: "count", role: "status" });
    this.element.replaceChildren(this.note, this.grid);
    this.template = columns.map((c) => c.width).join(" ");
    this.grid.querySelector(".heads").style.gridTemplateColumns = this.template;
    this.at = -1;
    this.filter(document.getElementById("search").value);
  },

  filter(text) {
    const { count, words, noun } = this.table;
    const wanted = text.trim().toLowerCase();
    let rows = Array.from({ length: count() }, (_, i) => i);
    if (wanted) rows = rows.filter((i) => words(i).toLowerCase().includes(wanted));
    this.rows = Uint32Array.from(rows);
    this.note.textContent = wanted ? numberText(rows.length) + " of " + countText(count(), noun) + " with “" + text.trim() + "”" : countText(count(), noun);
    this.order();
  },

  sortBy(column) {
    const down = this.sort?.column === column ? !this.sort.down : Boolean(this.table.columns[column].number);
    this.sort = { column, down };
    this.heads.forEach((head, i) => head.setAttribute("aria-sort", i !== column ? "none" : down ? "descending" : "ascending"));
    this.order();
  },

  order() {
    this.rows.sort();
    if (this.sort) {
      const { of } = this.table.columns[this.sort.column];
      const keys = new Map();
      for (const i of this.rows) keys.set(i, of(i));
      const sign = this.sort.down ? -1 : 1;
      this.rows.sort((a, b) => { const x = keys.get(a); const y = keys.get(b); return x < y ? -sign : x > y ? sign : a - b; });
    }
    this.grid.scrollTop = 0;
    this.at = -1;
    this.grid.setAttribute("aria-rowcount", String(this.rows.length + 1));
    this.height = Math.min(TALLEST, this.rows.length * ROW);
    this.body.style.height = this.height + "px";
    this.draw();
  },

  /* The first row to show: beyond TALLEST the scroll bar moves several rows per pixel. */
  first() {
    const { scrollTop, clientHeight } = this.grid;
    const all = this.rows.length * ROW;
    if (all <= TALLEST) return Math.floor(scrollTop / ROW);
    return Math.floor((scrollTop / (this.height - clientHeight)) * (this.rows.length - clientHeight / ROW));
  },

  draw() {
    const first = Math.max(0, this.first() - 4);
    const last = Math.min(this.rows.length, first + Math.ceil(this.grid.clientHeight / ROW) + 10);
    const drawn = [];
    const offset = this.rows.length * ROW <= TALLEST ? first * ROW : this.grid.scrollTop;
    for (let at = first; at < last; at++) {
      const i = this.rows[at];
      const row = h("div", { class: "row" + (at === this.at ? " chosen" : ""), role: "row", id: "row-" + at, "data-at": at, "aria-rowindex": at + 2, "aria-selected": String(at === this.at) },
        this.table.columns.map((c) => { const text = String(c.text ? c.text(i) : c.of(i)); return h("div", { role: "gridcell", class: (c.number ? "number " : "") + (c.className || ""), title: c.number ? text : String(c.of(i)) }, text); }));
      row.style.gridTemplateColumns = this.template;
      row.style.top = offset + (at - first) * ROW + "px";
      drawn.push(row);
    }
    this.body.replaceChildren(...drawn);
  },

  pick(at) {
    this.at = at;
    this.draw();
    this.grid.setAttribute("aria-activedescendant", "row-" + at);
    const selection = this.table.select(this.rows[at]);
    map.selection = selection;
    detail.show(selection);
  },

  key(event) {
    const page = Math.floor(this.grid.clientHeight / ROW) - 2;
    const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity };
    if (steps[event.key] === undefined || event.target !== this.grid || !this.rows.length) return;
    event.preventDefault();
    const at = Math.max(0, Math.min(this.rows.length - 1, this.at + steps[event.key]));
    const top = this.rows.length * ROW <= TALLEST ? at * ROW : (at / this.rows.length) * this.height;
    if (top < this.grid.scrollTop) this.grid.scrollTop = top;
    else if (top + 2 * ROW > this.grid.scrollTop + this.grid.clientHeight) this.grid.scrollTop = top + 2 * ROW - this.grid.clientHeight;
    this.pick(at);
  },
};
