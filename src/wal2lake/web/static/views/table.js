// Table: one table's versions, methods, proof, conflicts, coercions, and changes of its columns.

import { h } from "../dom.js";
import { amount, bytes, count, duration, identifier, literal, moment, plural, visible } from "../format.js";
import { ask } from "../store.js";
import { grid, nameOf, problemCard, sqlBlock, statePill } from "./parts.js";

const REFRESH_MS = 5000;

export const initial = () => ({ oid: null, document: null, failure: null, timer: null });

export function title(page) {
  return [...page.store.tables.values()].find((one) => String(one.oid) === page.argument)?.shown ?? "Table";
}

/** Ask for the table's history, and again while it is shown. */
export function enter(page) {
  const choice = page.choices.table;
  clearTimeout(choice.timer);
  if (choice.oid !== page.argument) Object.assign(choice, { oid: page.argument, document: null, failure: null });
  const oid = choice.oid;
  const shown = () => location.hash === `#/table/${oid}`;
  const refresh = async () => {
    try {
      const document = await ask(`api/table/${encodeURIComponent(oid)}`);
      if (!shown()) return;
      Object.assign(choice, { document, failure: null });
    } catch (error) {
      if (!shown()) return;
      choice.failure = error.message;
    }
    clearTimeout(choice.timer);
    choice.timer = setTimeout(() => shown() && refresh(), REFRESH_MS);
    page.redraw();
  };
  refresh();
}

export function render(page) {
  const { document: found, failure } = page.choices.table;
  const rows = [...page.store.tables.values()].filter((one) => String(one.oid) === page.argument);
  const name = rows[0]?.qualified ?? (found ? `${found.schema}.${found.name}` : "Table");
  document.title = `${visible(name)} · wal2lake`;
  return [
    h("p", { class: "back" }, h("a", { href: "#/tables" }, "← All tables")),
    h("h1", { tabindex: -1 }, visible(name)),
    failure && !found ? h("p", { class: "empty" }, `Nothing is known of this table: ${failure}.`) : null,
    rows.map((row) => now(page, row, found)),
    page.store.problems.problems.filter((one) => one.table === name).map((one) => problemCard(page, one, "h2")),
    found ? found.subscriptions.map((one) => history(found, one, found.subscriptions.length > 1)) : null,
    found && found.subscriptions.length ? reading(page, found) : null,
  ];
}

function now(page, row, found) {
  const fact = (name, value) => h("dl", {}, h("dt", {}, name), h("dd", {}, value));
  return h("div", { class: "facts card", "data-key": `now-${row.key}` },
    fact(`In ${nameOf(page, row.subscription)}`, statePill(row)),
    fact("Behind", `${duration(row.behind)}${row.freshness ? ` (owes ${duration(row.freshness)})` : ""}`),
    fact("Rows per second", amount(row.rate)),
    fact("Version", count(row.version)),
    fact("Size", bytes(row.size)),
    found?.key.length ? fact("Key", visible(found.key.join(", "))) : null,
    found ? fact("Columns", count(found.columns.length)) : null,
    fact("Files", `${count(row.files)}${row.vectors ? `, ${plural(row.vectors, "deletion vector")}` : ""}`));
}

function history(table, one, several) {
  const where = several ? ` in ${one.name}` : "";
  const batches = Object.entries(one.batches).sort((a, b) => b[1] - a[1]);
  const most = Math.max(1, ...batches.map(([, n]) => n));
  const rows = Object.entries(one.rows).filter(([, n]) => n > 0);
  return h("div", { class: "columns", "data-key": `history-${one.oid}` },
    section(`Versions${where}`, grid(
      "Versions",
      [["Version", "number"], ["From LSN", "code"], ["Published", ""]],
      one.versions.map((v) => [count(v.version), h("code", {}, v.lsn), h("span", {}, moment(v.published_at), v.apart ? h("small", {}, " apart from the other tables") : null)]),
      "No version has been published yet.")),
    h("div", {},
      section("Changes applied since the engine’s start", rows.length
        ? h("ul", { class: "counts" }, rows.map(([kind, n]) => h("li", {}, h("strong", {}, count(n)), ` ${kind}`)))
        : h("p", { class: "empty" }, "None.")),
      section("Commits by method", batches.length
        ? h("ul", { class: "bars" }, batches.map(([method, n]) =>
            h("li", {}, h("span", {}, method), h("progress", { max: most, value: n, "aria-label": method }), h("span", { class: "number" }, count(n)))))
        : h("p", { class: "empty" }, "None.")),
    section("Compared with the source", proof(one.verification)),
    section("Conflicts", grid(
      "Conflicts",
      [["Type", ""], ["Resolution", ""], ["Changes", "number"], ["Commit LSN", "code"], ["When", ""]],
      one.conflicts.map((c) => [c.type, c.resolution, count(c.events), h("code", {}, c.lsn), moment(c.noted_at)]),
      "No change has met a conflict.")),
    section("Coercions", grid(
      "Coercions",
      [["Column", ""], ["Policy", ""], ["Why", ""], ["Values", "number"], ["Last LSN", "code"]],
      one.coercions.map((c) => [c.column, `${c.policy}, in the ${c.phase}`, c.reason, count(c.events), h("code", {}, c.last_lsn)]),
      "Every value is stored as it was sent.")),
    section("Changes of its columns", grid(
      "Changes of its columns",
      [["LSN", "code"], ["Change", "code"], ["Outcome", ""], ["When", ""]],
      one.schema_history.map((c) => [h("code", {}, c.lsn), h("code", {}, c.change), c.outcome, moment(c.noted_at)]),
      "The source has not changed them since the copy."))));
}

function proof(found) {
  if (!found) return h("p", { class: "empty" }, "VERIFY has not compared this table since its copy.");
  const rows = found.differing_rows;
  return [
    h("p", {}, found.verified_through
      ? ["Equal to the source at ", h("code", {}, found.verified_through), ", ", moment(found.verified_at), "."]
      : "Never found equal to the source."),
    h("p", {}, rows
      ? [`${plural(rows, "row")} of ${count(found.rows)} differ at `, h("code", {}, found.compared_lsn), ", ", moment(found.compared_at), "."]
      : `${plural(found.rows, "row")} compared.`),
    found.repaired_rows ? h("p", {}, `${plural(found.repaired_rows, "row")} repaired since the copy.`) : null,
  ];
}

function reading(page, table) {
  const name = `${identifier(table.schema)}.${identifier(table.name)}`;
  const which = `schemaname = ${literal(table.schema)} AND tablename = ${literal(table.name)}`;
  const version = table.subscriptions[0].versions[0];
  return section("Look closer",
    h("p", {}, "Keys of conflicting rows, examples of coerced values and differing rows are in the node’s views:"),
    sqlBlock(page, `SELECT * FROM wal2lake.conflicts WHERE ${which};\nSELECT * FROM wal2lake.coercions WHERE ${which};\nSELECT * FROM wal2lake.differences WHERE ${which};`),
    version ? h("p", {}, "The table as it was at a position of the source:") : null,
    version ? sqlBlock(page, `SET wal2lake.as_of_lsn = '${version.lsn}';\nSELECT count(*) FROM ${name};`) : null);
}

const section = (heading, ...content) => h("section", { class: "card", "data-key": `s-${heading}` }, h("h2", {}, heading), content);
