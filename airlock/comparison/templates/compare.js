"use strict";
const root = document.documentElement;
const theme = document.querySelector("button.theme");
const isDark = () => (root.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
const name = () => { theme.textContent = isDark() ? "Light colours" : "Dark colours"; };
theme.addEventListener("click", () => { root.dataset.theme = isDark() ? "light" : "dark"; name(); });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", name);
theme.hidden = false;
name();

function sort(table, heads, column) {
  const up = heads[column].getAttribute("aria-sort") !== "ascending";
  heads.forEach((head) => head.removeAttribute("aria-sort"));
  heads[column].setAttribute("aria-sort", up ? "ascending" : "descending");
  const key = (row) => row.cells[column].dataset.value;
  const order = (a, b) => {
    const [x, y] = [key(a), key(b)];
    if (x === "" || y === "") return (x === "") - (y === "");  // what is not known stands last either way
    const by = heads[column].dataset.kind === "text" ? x.localeCompare(y) : x - y;
    return up ? by : -by;
  };
  table.tBodies[0].append(...[...table.tBodies[0].rows].sort(order));
}

for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    button.addEventListener("click", () => sort(table, heads, column));
    head.append(button);
  });
}
