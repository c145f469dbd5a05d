// Tables that are sorted by their headings, and the choice between light and dark.
(() => {
  "use strict";
  const root = document.documentElement;
  root.classList.add("has-script");

  function addThemeButton() {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "theme";
    const isDark = () =>
      root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    const name = () => { button.textContent = isDark() ? "Light" : "Dark"; };
    button.addEventListener("click", () => {
      root.dataset.theme = isDark() ? "light" : "dark";
      name();
    });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", name);
    name();
    document.querySelector("header").append(button);
  }

  // What a cell is sorted by: the number that it begins with, or null where it has none.
  function numberIn(cell) {
    const value = parseFloat(cell.textContent);
    return Number.isNaN(value) ? null : value;
  }

  function compareCells(a, b, isNumber, sign) {
    if (!isNumber) return sign * a.textContent.localeCompare(b.textContent, "en", { numeric: true });
    const [x, y] = [numberIn(a), numberIn(b)];
    if (x === null || y === null) return (x === null) - (y === null); // what is missing comes last, either way
    return sign * (x - y);
  }

  function makeSortable(table) {
    const body = table.tBodies[0];
    const original = [...body.rows];
    const headings = [...table.tHead.rows[0].cells];
    headings.forEach((heading, column) => {
      const isNumber = heading.classList.contains("number");
      // Of numbers the largest are wanted first, of names the first; the third time all is as it was.
      const orders = isNumber ? ["descending", "ascending", "none"] : ["ascending", "descending", "none"];
      heading.querySelector("button").addEventListener("click", () => {
        const order = orders[(orders.indexOf(heading.ariaSort) + 1) % 3];
        headings.forEach((other) => { other.ariaSort = "none"; });
        heading.ariaSort = order;
        const sign = order === "ascending" ? 1 : -1;
        const rows = [...original];
        if (order !== "none") rows.sort((a, b) => compareCells(a.cells[column], b.cells[column], isNumber, sign));
        body.append(...rows);
      });
    });
  }

  addThemeButton();
  document.querySelectorAll("table.sortable").forEach(makeSortable);
})();
