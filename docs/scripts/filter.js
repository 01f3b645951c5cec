/* A field above each long table of a page that asks for it (<div class="filtered" markdown>): it hides the rows that lack its words. */
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
      count.textContent = words.length ? `${shown} of ${rows.length} rows` : "";
    };
    field.addEventListener("input", apply);
    box.prepend(field, count);
  }
});
