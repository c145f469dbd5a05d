// Sorts tables by their headings, says where a table is cut off, and switches between light and dark.
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

  // A cell is sorted by the number that it begins with; null if there is none.
  function numberIn(cell) {
    const value = parseFloat(cell.textContent);
    return Number.isNaN(value) ? null : value;
  }

  function compareCells(a, b, isNumber, sign) {
    if (!isNumber) return sign * a.textContent.localeCompare(b.textContent, "en", { numeric: true });
    const [x, y] = [numberIn(a), numberIn(b)];
    if (x === null || y === null) return (x === null) - (y === null); // missing values come last, either way
    return sign * (x - y);
  }

  function makeSortable(table) {
    const body = table.tBodies[0];
    const original = [...body.rows];
    const headings = [...table.tHead.rows[0].cells];
    headings.forEach((heading, column) => {
      const isNumber = heading.classList.contains("number");
      // The largest number or the first name comes first; the third time restores the original order.
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

  // Beside the shadow, words: shown as long as something is hidden to the right.
  function sayWhereCut(box) {
    const more = document.createElement("p");
    more.className = "more";
    more.textContent = box.querySelector("table") ? "scroll for more columns \u2192" : "scroll for the rest of the figure \u2192";
    box.after(more);
    const update = () => { more.hidden = box.scrollLeft + box.clientWidth >= box.scrollWidth - 1; };
    box.addEventListener("scroll", update);
    new ResizeObserver(update).observe(box);
  }

  addThemeButton();
  document.querySelectorAll(".wide").forEach(sayWhereCut);
  document.querySelectorAll("table.sortable").forEach(makeSortable);
})();
