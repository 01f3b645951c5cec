/* A field above the tables in <div class="filtered" markdown>: it hides the rows that lack its words, and marks the words in the others. */
function mark(rows, words) {
  if (!CSS.highlights) return;  // an older browser: rows are filtered, words are not marked
  const ranges = [];
  for (const row of words.length ? rows : []) {
    const texts = document.createTreeWalker(row, NodeFilter.SHOW_TEXT);
    while (texts.nextNode()) {
      const text = texts.currentNode.data.toLowerCase();
      for (const word of words) {
        for (let at = text.indexOf(word); at >= 0; at = text.indexOf(word, at + word.length)) {
          const range = new Range();
          range.setStart(texts.currentNode, at);
          range.setEnd(texts.currentNode, at + word.length);
          ranges.push(range);
        }
      }
    }
  }
  CSS.highlights.set("found", new Highlight(...ranges));
}

document.addEventListener("DOMContentLoaded", () => {
  for (const box of document.querySelectorAll(".filtered")) {
    const tables = [...box.querySelectorAll("table")];
    const rows = tables.flatMap((table) => [...table.tBodies[0].rows]);
    const field = document.createElement("input");
    const count = document.createElement("small");
    field.className = "filter";
    field.type = "search";
    field.placeholder = box.dataset.hint || "Filter";
    field.setAttribute("aria-label", field.placeholder);
    const apply = () => {
      const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
      let shown = 0;
      for (const row of rows) {
        const text = row.textContent.toLowerCase();
        row.hidden = !words.every((word) => text.includes(word));
        shown += row.hidden ? 0 : 1;
      }
      mark(rows.filter((row) => !row.hidden), words);
      count.textContent = words.length ? `${shown} of ${rows.length} rows` : "";
    };
    field.addEventListener("input", apply);
    box.prepend(field, count);
  }
});
