"use strict";
// Shared by all reports. Foreign text reaches the page through textContent and attributes that have no
// meaning beyond text; nothing is ever parsed as HTML but whole pages of the console's own server.
const data = JSON.parse(document.getElementById("data").textContent);

// The characters of `is_unsafe` in crates/base/src/text.rs.
const UNSAFE = /[\u0000-\u0008\u000a-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]|[\u{e0000}-\u{e007f}]/gu;

function shown(text, longest = 400) {
  let cut = text;
  if (text.length > longest) {
    const characters = Array.from(text);
    if (characters.length > longest) cut = characters.slice(0, longest).join("");
    cut = cut.replace(UNSAFE, spell);
    return characters.length > longest ? `${cut}… (${characters.length} characters)` : cut;
  }
  return cut.replace(UNSAFE, spell);
}

function spell(character) {
  return `\\u{${character.codePointAt(0).toString(16)}}`;
}

function human(bytes) {
  const units = ["B", "kB", "MB", "GB", "TB", "PB", "EB"];
  let value = bytes, unit = 0;
  while (value >= 999.5 && unit + 1 < units.length) { value /= 1000; unit += 1; }
  const digits = unit === 0 ? 0 : value < 9.995 ? 2 : value < 99.95 ? 1 : 0;
  return `${value.toFixed(digits)} ${units[unit]}`;
}

function count(number) {
  return String(number).replace(/\B(?=(\d{3})+$)/g, "\u202f");
}

function element(name, attributes = {}, ...children) {
  return build(document.createElement(name), attributes, children);
}

function svg(name, attributes = {}, ...children) {
  return build(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);
}

function build(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== undefined && value !== false) node.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children) if (child !== undefined && child !== null) node.append(child);
  return node;
}

// A search field above each table that asks for one. Of a long table, the first rows are shown: laying out
// thousands at each key would make the reader wait.
const MOST_ROWS = 250;
const filters = new Map();
function addFilter(table) {
  const status = element("p", { class: "status", role: "status" });
  const field = element("input", { type: "search", autocomplete: "off", spellcheck: "false", oninput: () => apply() });
  const more = element("button", { type: "button", hidden: true, onclick: () => { shows = Infinity; apply(); field.focus(); } });
  const caption = table.caption ? table.caption.textContent : "rows";
  const controls = element("div", { class: "controls filter", "data-own": true }, element("label", {}, `Search: ${caption}`, field), status, more);
  // Rows with their text, read at the first search.
  let rows = null, shows = MOST_ROWS;
  function apply() {
    const wanted = field.value.toLowerCase(), all = table.tBodies[0].rows;
    if (!wanted && rows === null && all.length <= shows && more.hidden) return;
    if (rows === null) rows = Array.from(all, (row) => [row, row.textContent.toLowerCase()]);
    let found = 0;
    for (const [row, text] of rows) {
      const fits = text.includes(wanted);
      found += fits ? 1 : 0;
      const hides = !fits || found > shows;
      if (row.hidden !== hides) row.hidden = hides;
    }
    more.hidden = found <= shows;
    more.textContent = `Show all ${count(found)}`;
    status.textContent = [wanted ? `${count(found)} of ${count(rows.length)} rows` : "", found > shows ? `the first ${count(shows)} are shown` : ""].filter(Boolean).join("; ");
  }
  table.parentElement.before(controls);
  filters.set(table, { controls, changed: () => { rows = null; apply(); }, whole: (is) => { shows = is ? Infinity : MOST_ROWS; apply(); } });
  apply();
}
function updateFilters() {
  for (const [table, filter] of filters) {
    if (table.isConnected && table.matches("[data-filter]")) continue;
    filter.controls.remove();
    filters.delete(table);
  }
  for (const table of document.querySelectorAll("table[data-filter]")) {
    if (filters.has(table)) filters.get(table).changed();
    else addFilter(table);
  }
}
updateFilters();

// Everything is printed, also what is folded.
window.addEventListener("beforeprint", () => {
  for (const filter of filters.values()) filter.whole(true);
  for (const folded of document.querySelectorAll("details:not([open])")) {
    folded.open = true;
    folded.dataset.folded = "";
  }
});
window.addEventListener("afterprint", () => {
  for (const filter of filters.values()) filter.whole(false);
  for (const opened of document.querySelectorAll("details[data-folded]")) {
    opened.open = false;
    delete opened.dataset.folded;
  }
});
