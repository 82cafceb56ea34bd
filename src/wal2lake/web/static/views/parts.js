// Parts that several views share.

import { h, sign } from "../dom.js";
import { between, duration, moment, plain, visible } from "../format.js";

const CONCERNS = {
  operator: "You can end it",
  source: "The source’s administrator can end it",
  nobody: "It passes by itself",
};

/** SQL with a button that copies it. */
export function sqlBlock(page, sql) {
  const done = page.copied?.text === sql ? page.copied : null;
  return h("div", { class: "sql", "data-sql": sql },
    h("pre", { tabindex: 0, "aria-label": "SQL", role: "group" }, h("code", {}, plain(sql))),
    h("button", { type: "button", "data-do": "copy" }, sign(done?.copied ? "ok" : "copy"), h("span", {}, done ? (done.copied ? "Copied" : "Refused") : "Copy")));
}

/** One problem: what, since when, whom it concerns, and what repairs it. */
export function problemCard(page, problem, level = "h3") {
  const key = ["problem", problem.kind, problem.subscription, problem.table, problem.subject].join("\u0000");
  return h("article", { class: `card problem ${problem.severity}`, "data-key": key },
    h("header", {},
      sign(problem.severity),
      h("div", {},
        h(level, { class: "what" }, h("span", { class: "unseen" }, `${problem.severity}: `), sentence(problem.message)),
        h("p", { class: "facts-line" },
          where(page, problem),
          problem.since ? h("span", { title: moment(problem.since) }, `for ${duration(between(problem.since, page.store.state.taken_at))}`) : null,
          h("span", { class: `concern ${problem.concern}` }, CONCERNS[problem.concern]),
          problem.sqlstate ? h("span", {}, "SQLSTATE ", h("code", {}, problem.sqlstate)) : null))),
    problem.detail ? h("p", { class: "detail" }, sentence(problem.detail)) : null,
    problem.hint ? h("p", { class: "hint" }, sentence(problem.hint)) : null,
    problem.remedy ? sqlBlock(page, problem.remedy) : null);
}

function where(page, { subscription, table, subject, stage }) {
  const known = table && [...page.store.tables.values()].find(
    (one) => one.qualified === table && (!subscription || nameOf(page, one.subscription) === subscription));
  return [
    table ? h("span", {}, "table ", known ? h("a", { href: `#/table/${known.oid}` }, visible(table)) : h("strong", {}, visible(table))) : null,
    subscription ? h("span", {}, "subscription ", h("strong", {}, visible(subscription))) : null,
    subject && subject !== subscription ? h("span", {}, visible(subject)) : null,
    stage && !table ? h("span", {}, "stage ", h("strong", {}, stage)) : null,
  ];
}

export function nameOf(page, oid) {
  return page.store.state.subscriptions.find((one) => one.oid === oid)?.name ?? String(oid);
}

/** A message in PostgreSQL's style as a sentence. */
function sentence(message) {
  const text = plain(message);
  const first = /^[a-z]+[ ,]/.test(text) ? text[0].toUpperCase() + text.slice(1) : text;
  return /[.!?…:]$/.test(first) ? first : `${first}.`;
}

const STATES = { i: "waiting", d: "copying", f: "copied", s: "catching up", r: "ready" };

const KINDS = { table_errored: "errored", paused_long: "paused", copy_stuck: "stuck" };

/** State of a table's row, or the kind of its worst problem, in a word. */
export function stateWord(table) {
  return KINDS[table.problem] ?? table.problem?.replaceAll("_", " ") ?? (table.pausedSince ? "paused" : STATES[table.state] ?? table.state);
}

/** A state, with the colour of the table's problem. */
export function statePill(table) {
  const word = stateWord(table);
  const kind = table.severity ?? (word === "ready" ? "ok" : word === "paused" ? "off" : "busy");
  return h("span", { class: `pill ${kind}` }, h("i", { class: "dot", "aria-hidden": "true" }), word,
    table.severity ? h("span", { class: "unseen" }, `, ${table.severity}`) : null);
}

/** A table of facts: heads are [text, class]; rows are arrays of cells. */
export function grid(caption, heads, rows, empty) {
  if (rows.length === 0) return h("p", { class: "empty" }, empty);
  return h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": caption },
    h("table", {},
      h("caption", { class: "unseen" }, caption),
      h("thead", {}, h("tr", {}, heads.map(([text, name]) => h("th", { scope: "col", class: name }, text)))),
      h("tbody", {}, rows.map((cells) =>
        h("tr", {}, cells.map((cell, i) => h(i === 0 ? "th" : "td", { class: heads[i][1], scope: i === 0 ? "row" : null }, cell)))))));
}
