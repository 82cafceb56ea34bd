// Tables: all of them, sorted, filtered, 50 at a time.

import { h, sign } from "../dom.js";
import { amount, bytes, count, duration, plural, visible } from "../format.js";
import { nameOf, statePill, stateWord } from "./parts.js";

const PAGE = 50;
const SEVERITY = { error: 0, warning: 1 };

const COLUMNS = [
  { id: "name", label: "Table", by: (t) => t.qualified, text: true },
  { id: "state", label: "State", by: (t) => `${SEVERITY[t.severity] ?? 2}${stateWord(t)}`, text: true },
  { id: "rate", label: "Rows/s", by: (t) => t.rate, number: true },
  { id: "behind", label: "Behind", by: (t) => t.behind, number: true },
  { id: "size", label: "Size", by: (t) => t.size, number: true, roomy: true },
  { id: "files", label: "Files", by: (t) => t.files, number: true, roomy: true },
  { id: "error", label: "Last error", by: (t) => t.error ?? "", text: true, wide: true },
];

const FILTERS = [
  ["all", "All states", () => true],
  ["trouble", "In trouble", (t) => t.severity !== null],
  ["copying", "Being copied", (t) => !t.pausedSince && t.state !== "r"],
  ["paused", "Paused", (t) => t.pausedSince !== null],
  ["busy", "With changes now", (t) => t.rate > 0],
];

export const title = () => "Tables";
export const initial = () => ({ sort: "name", descending: false, filter: "all", search: "", page: 0 });

export const actions = {
  sort(element, page) {
    const choice = page.choices.tables;
    const id = element.dataset.arg;
    if (choice.sort === id) choice.descending = !choice.descending;
    // Numbers are most interesting when they are large.
    else Object.assign(choice, { sort: id, descending: Boolean(COLUMNS.find((c) => c.id === id).number) });
    choice.page = 0;
  },
  search(element, page) {
    Object.assign(page.choices.tables, { search: element.value, page: 0 });
  },
  filter(element, page) {
    Object.assign(page.choices.tables, { filter: element.value, page: 0 });
  },
  turn(element, page) {
    page.choices.tables.page += Number(element.dataset.arg);
    document.getElementById("tables-top")?.scrollIntoView({ block: "nearest" });
  },
};

export function render(page) {
  const choice = page.choices.tables;
  const all = [...page.store.tables.values()];
  if (all.length === 0) {
    return [h("h1", { tabindex: -1 }, "Tables"), h("p", { class: "empty" }, "No table yet. A subscription brings them: ", h("a", { href: "#/" }, "see the overview"), ".")];
  }
  const found = select(all, choice);
  const pages = Math.max(1, Math.ceil(found.length / PAGE));
  choice.page = Math.min(Math.max(0, choice.page), pages - 1);
  const start = choice.page * PAGE;
  const shown = found.slice(start, start + PAGE);
  const several = page.store.state.subscriptions.length > 1;
  return [
    h("div", { class: "head", id: "tables-top" }, h("h1", { tabindex: -1 }, "Tables"),
      h("p", { class: "lead" }, found.length === all.length ? plural(all.length, "table") : `${count(found.length)} of ${plural(all.length, "table")}`)),
    h("form", { class: "tools", role: "search", "data-key": "tools" },
      h("input", { type: "search", "data-do": "search", placeholder: "Filter by name or error", "aria-label": "Filter by name or error", value: choice.search, autocomplete: "off", spellcheck: "false", enterkeyhint: "search" }),
      h("select", { "data-do": "filter", "aria-label": "State" }, FILTERS.map(([id, label]) => h("option", { value: id, selected: id === choice.filter }, label)))),
    shown.length === 0 ? h("p", { class: "empty" }, "No table matches.") : list(page, shown, choice, several),
    pages > 1 ? pager(choice.page, pages, start, shown.length, found.length) : null,
  ];
}

function select(all, choice) {
  const [, , matches] = FILTERS.find(([id]) => id === choice.filter);
  const words = choice.search.toLowerCase().split(/\s+/).filter(Boolean);
  const found = all.filter((table) => {
    if (!matches(table)) return false;
    if (words.length === 0) return true;
    const text = `${table.qualified} ${table.error ?? ""}`.toLowerCase();
    return words.every((word) => text.includes(word));
  });
  const column = COLUMNS.find((one) => one.id === choice.sort);
  const way = choice.descending ? -1 : 1;
  const by = new Map(found.map((table) => [table, column.by(table)]));
  return found.sort((a, b) => {
    const [x, y] = [by.get(a), by.get(b)];
    const order = compare(x, y, way);
    return order || compare(a.qualified, b.qualified, 1);
  });
}

/** What is unknown or empty comes last, whichever way. */
function compare(x, y, way) {
  const [noX, noY] = [x === null || x === "", y === null || y === ""];
  if (noX || noY) return noX - noY;
  return x < y ? -way : x > y ? way : 0;
}

function list(page, shown, choice, several) {
  return h("table", { class: "tables", "data-key": "list" },
    h("caption", { class: "unseen" }, "Tables of all subscriptions"),
    h("thead", {}, h("tr", {}, COLUMNS.map((column) => {
      const sorted = column.id === choice.sort;
      return h("th", { scope: "col", class: classes(column), "aria-sort": sorted ? (choice.descending ? "descending" : "ascending") : null },
        h("button", { type: "button", "data-do": "sort", "data-arg": column.id }, column.label, sorted ? sign(choice.descending ? "down" : "up") : null));
    }))),
    h("tbody", {}, shown.map((table) => row(page, table, several))));
}

const classes = (column) => [column.number ? "number" : null, column.roomy ? "roomy" : null, column.wide ? "wide" : null].filter(Boolean).join(" ") || null;

function row(page, table, several) {
  return h("tr", { "data-key": table.key },
    h("th", { scope: "row" },
      h("a", { href: `#/table/${table.oid}` }, table.schema === "public" ? null : h("bdi", { class: "schema" }, `${visible(table.schema)}.`), h("bdi", {}, visible(table.name))),
      several ? h("small", {}, visible(nameOf(page, table.subscription))) : null,
      table.error ? h("small", { class: "error narrow" }, visible(table.error)) : null),
    h("td", {}, statePill(table)),
    h("td", { class: "number" }, table.rate ? amount(table.rate) : h("span", { class: "faint" }, table.rate === null ? "–" : "0")),
    h("td", { class: "number" }, duration(table.behind),
      table.freshness ? h("small", {}, `owes ${duration(table.freshness)}`) : null),
    h("td", { class: "number roomy" }, bytes(table.size)),
    h("td", { class: "number roomy" }, count(table.files)),
    h("td", { class: "wide error", title: table.error }, visible(table.error ?? "")));
}

function pager(number, pages, start, shown, total) {
  return h("nav", { class: "pager", "aria-label": "Pages", "data-key": "pager" },
    h("button", { type: "button", "data-do": "turn", "data-arg": -1, disabled: number === 0 }, "Previous"),
    h("p", {}, `${count(start + 1)} to ${count(start + shown)} of ${count(total)}`),
    h("button", { type: "button", "data-do": "turn", "data-arg": 1, disabled: number === pages - 1 }, "Next"));
}
