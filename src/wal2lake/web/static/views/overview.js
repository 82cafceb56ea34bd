// Overview: a verdict, each subscription as a picture, lag and rates over time, the node.

import { h, sign } from "../dom.js";
import { bytes, count, duration, percent, plural, visible } from "../format.js";
import { picture } from "../picture.js";
import { problemCard, sqlBlock } from "./parts.js";

const WINDOWS = [[300, "5 min"], [900, "15 min"], [3600, "1 h"]];
const LANES = 6;
const PROBLEMS = 3;

export const title = () => "Overview";
export const initial = () => ({ seconds: 300, subscription: null, all: false });

export const actions = {
  window: (element, page) => {
    page.choices.overview.seconds = Number(element.dataset.arg);
  },
  subscription: (element, page) => {
    page.choices.overview.subscription = Number(element.value);
  },
  all: (_, page) => {
    page.choices.overview.all = true;
  },
};

export function render(page) {
  const { state } = page.store;
  const subscriptions = state.subscriptions;
  if (subscriptions.length === 0) return [verdict(page), first(page), node(state)];
  const choice = page.choices.overview;
  const ordered = [...subscriptions].sort((a, b) => rank(a) - rank(b) || a.name.localeCompare(b.name));
  const chosen = subscriptions.find((one) => one.oid === choice.subscription) ?? ordered[0];
  page.charts.choose(chosen.oid, choice.seconds);
  const lanes = choice.all ? ordered : ordered.slice(0, LANES);
  return [
    verdict(page),
    h("section", { "aria-label": "Pipelines" },
      lanes.map((one) => lane(page, one, state.publisher)),
      lanes.length < ordered.length
        ? h("button", { type: "button", class: "more", "data-do": "all" }, `Show all ${count(ordered.length)} subscriptions`)
        : null),
    problemsOf(page),
    over(page, ordered, chosen, choice),
    node(state),
  ];
}

const rank = (one) => {
  const all = [one.severity, ...one.stages.map((stage) => stage.severity)];
  return all.includes("error") ? 0 : all.includes("warning") ? 1 : 2;
};

function verdict(page) {
  const { state, problems } = page.store;
  const warnings = problems.total - problems.errors;
  const tables = state.subscriptions.reduce((sum, one) => sum + one.tables.total, 0);
  const lags = state.subscriptions
    .map((one) => one.stages.at(-1).behind_seconds)
    .filter((value) => value !== null);
  let words;
  if (state.subscriptions.length === 0) words = "No subscription yet";
  else if (problems.errors > 0) words = warnings > 0 ? `${plural(problems.errors, "error")}, ${plural(warnings, "warning")}` : plural(problems.errors, "error");
  else if (warnings > 0) words = plural(warnings, "warning");
  else words = "All is well";
  const kind = problems.errors > 0 ? "error" : problems.total > 0 ? "warning" : state.subscriptions.length ? "ok" : "none";
  return h("div", { class: `verdict ${kind}` },
    kind === "none" ? null : sign(kind),
    h("div", {},
      h("h1", { tabindex: -1 }, words),
      h("p", { class: "lead" }, state.subscriptions.length
        ? `${plural(state.subscriptions.length, "subscription")}, ${plural(tables, "table")}` + (lags.length ? `; readers are ${duration(Math.max(...lags))} behind the source` : "")
        : "This node follows no PostgreSQL server.")));
}

function first(page) {
  const directory = page.store.state.node.directory;
  return h("section", { class: "card start" },
    h("h2", {}, "Begin here"),
    h("p", {}, "At the source, a PostgreSQL server with ", h("code", {}, "wal_level = logical"), ", publish the tables:"),
    sqlBlock(page, "CREATE PUBLICATION shop FOR ALL TABLES;"),
    h("p", {}, "At this node (", h("code", {}, `wal2lake sql -D ${directory}`), "), subscribe to them. The tables are made and copied, then they follow:"),
    sqlBlock(page, "CREATE SUBSCRIPTION shop\n    CONNECTION 'host=db.example.com dbname=app user=replicator'\n    PUBLICATION shop;"));
}

function lane(page, subscription, publisher) {
  const broken = subscription.state !== "streaming";
  const { paused, copying, troubled } = subscription.tables;
  const notes = [
    troubled ? plural(troubled, "table") + " in trouble" : null,
    copying ? `${count(copying)} copying` : null,
    paused ? `${count(paused)} paused` : null,
    subscription.conflicts ? plural(subscription.conflicts, "conflict") : null,
  ].filter(Boolean);
  // Margins of the page and of the card, and its border.
  const inner = Math.min(page.width, 1288) - (page.width <= 700 ? 32 + 32 : 48 + 48) - 2;
  return h("article", { class: "card lane", "data-key": `lane-${subscription.oid}` },
    h("header", {},
      h("h2", {}, visible(subscription.name)),
      h("span", { class: `pill ${broken ? subscription.severity ?? "off" : "ok"}` },
        h("i", { class: "dot", "aria-hidden": "true" }), subscription.state),
      h("p", {}, notes.join(" · "))),
    picture(subscription, publisher, Math.max(240, inner)));
}

function problemsOf(page) {
  const { problems, total } = page.store.problems;
  if (total === 0) return null;
  return h("section", { "data-key": "problems", "aria-label": "Problems" },
    h("div", { class: "head" }, h("h2", {}, "Problems"),
      total > PROBLEMS ? h("a", { href: "#/problems" }, `All ${count(total)} problems`) : null),
    problems.slice(0, PROBLEMS).map((one) => problemCard(page, one)));
}

function over(page, subscriptions, chosen, choice) {
  return h("section", { "data-key": "over", "aria-label": "Over time" },
    h("div", { class: "head" },
      h("h2", {}, "Over time"),
      subscriptions.length > 1
        ? h("select", { "data-do": "subscription", "aria-label": "Subscription" },
            subscriptions.map((one) => h("option", { value: one.oid, selected: one === chosen }, visible(one.name))))
        : null,
      h("div", { class: "choices", role: "group", "aria-label": "Time shown" },
        WINDOWS.map(([seconds, label]) =>
          h("button", { type: "button", "data-do": "window", "data-arg": seconds, "aria-pressed": String(seconds === choice.seconds) }, label)))),
    h("div", { class: "charts" }, ["lag", "rows"].map((kind) => chart(page, kind))));
}

function chart(page, kind) {
  const series = page.charts.series(kind);
  return h("figure", { class: "card chart", "data-key": `chart-${kind}` },
    h("figcaption", {},
      h("h3", {}, page.charts.label(kind)),
      h("ul", { class: "legend" }, series.map((one, i) =>
        h("li", {}, h("i", { class: `key ${one.color.slice(2)}`, "aria-hidden": "true" }),
          series.length > 1 ? `${one.name} ` : null,
          h("span", { "data-value": i, "data-keep": true }, "–"))))),
    h("div", { class: "plot", "data-chart": kind, "data-keep": true }));
}

function node(state) {
  const { heap_bytes: heap, heap_limit_bytes: limit } = state.node;
  const memory = state.processes.reduce((sum, one) => sum + (one.rss_bytes ?? 0), 0);
  const restarts = state.processes.reduce((sum, one) => sum + one.restarts, 0);
  return h("section", { "data-key": "node", "aria-label": "Node" },
    h("div", { class: "head" }, h("h2", {}, "Node")),
    h("div", { class: "facts card" },
      state.disks.map((disk) => meter(`Disk of the ${disk.purpose}`, `${bytes(disk.free_bytes)} free`, percent(disk.size_bytes - disk.free_bytes, disk.size_bytes))),
      heap ? meter("JVM heap", limit ? `${bytes(heap)} of ${bytes(limit)}` : bytes(heap), percent(heap, limit)) : null,
      fact("Processes", plural(state.processes.length, "process", "processes") + (restarts ? `, ${plural(restarts, "restart")}` : "")),
      memory ? fact("Memory", bytes(memory)) : null,
      state.node.certificate_ends ? fact("Certificate", `valid until ${state.node.certificate_ends.slice(0, 10)}`) : null));
}

const fact = (name, value) => h("dl", {}, h("dt", {}, name), h("dd", {}, value));

function meter(name, value, used) {
  return h("dl", {}, h("dt", {}, name), h("dd", {}, value,
    used === null ? null : h("progress", { max: 100, value: used.toFixed(1), "aria-label": `${name}, used` })));
}
