// Copies: initial copies that run, with the time left.

import { h } from "../dom.js";
import { between, bytes, count, duration, moment, plain, plural, visible } from "../format.js";
import { nameOf } from "./parts.js";

export const title = () => "Copies";

export function render(page) {
  const { state } = page.store;
  const waiting = state.subscriptions.reduce((sum, one) => sum + one.tables.waiting, 0);
  const ready = state.subscriptions.reduce((sum, one) => sum + one.tables.ready, 0);
  const head = h("div", { class: "head" }, h("h1", { tabindex: -1 }, "Copies"),
    h("p", { class: "lead" }, [state.copies.length ? `${count(state.copies.length)} running` : null, waiting ? `${plural(waiting, "table")} waiting` : null, `${plural(ready, "table")} ready`].filter(Boolean).join(" · ")));
  if (state.copies.length === 0) {
    const all = state.subscriptions.reduce((sum, one) => sum + one.tables.total, 0);
    return [head, h("p", { class: "empty" },
      all === 0 ? "No copy runs. Each table of a new subscription is copied first, and is shown here meanwhile."
        : waiting ? "No copy runs at this moment; tables wait for their turn."
        : "No copy runs. Every table has been copied and follows the source.")];
  }
  return [
    head,
    state.subscriptions.map((one) => whole(one, state)),
    h("section", { "aria-label": "Running copies" }, [...state.copies]
      .sort((a, b) => a.schema.localeCompare(b.schema) || a.name.localeCompare(b.name))
      .map((copy) => card(page, copy))),
  ];
}

/** One bar over all tables of a subscription. */
function whole(subscription, state) {
  const { total, ready, copying } = subscription.tables;
  if (copying === 0) return null;
  const ends = state.copies.filter((one) => one.subscription === subscription.oid).map((one) => one.ends_at);
  const last = ends.every(Boolean) ? ends.reduce((a, b) => (a > b ? a : b)) : null;
  return h("section", { class: "card whole", "data-key": `whole-${subscription.oid}` },
    h("header", {}, h("h2", {}, visible(subscription.name)),
      h("p", {}, `${count(ready)} of ${plural(total, "table")} ready`, last && subscription.tables.waiting === 0 ? `, ${left(last, state)}` : null)),
    h("progress", { max: total, value: ready, "aria-label": `Tables of ${subscription.name} that are ready` }));
}

function card(page, copy) {
  const { state } = page.store;
  const done = copy.share === null ? null : 100 * copy.share;
  const name = visible(`${copy.schema}.${copy.name}`);
  const passed = between(copy.started_at, state.taken_at);
  return h("article", { class: "card copy", "data-key": `copy-${copy.subscription}-${copy.oid}` },
    h("header", {},
      h("h3", {}, h("a", { href: `#/table/${copy.oid}` }, name)),
      h("p", { class: "left" }, copy.ends_at ? left(copy.ends_at, state) : "time left not known yet")),
    h("progress", { max: 100, value: done === null ? null : done.toFixed(1), "aria-label": `Copy of ${name}` }),
    h("p", { class: "facts-line" },
      done === null ? null : h("strong", {}, `${Math.floor(done)} %`),
      h("span", {}, copy.rows_expected ? `${count(copy.rows)} of about ${count(copy.rows_expected)} rows` : `${count(copy.rows)} rows`),
      h("span", {}, copy.bytes_expected ? `${bytes(copy.bytes)} written, ${bytes(copy.bytes_expected)} at the source` : `${bytes(copy.bytes)} written`),
      copy.ranges ? h("span", {}, `${count(copy.ranges_done)} of ${plural(copy.ranges, "range")}`) : null,
      passed > 1 && copy.rows ? h("span", {}, `${count(copy.rows / passed)} rows/s`) : null,
      copy.started_at ? h("span", {}, `since ${moment(copy.started_at)}`) : null,
      state.subscriptions.length > 1 ? h("span", {}, nameOf(page, copy.subscription)) : null),
    copy.error ? h("p", { class: "error" }, plain(copy.error)) : null);
}

const left = (ends, state) => {
  const seconds = between(state.taken_at, ends);
  return seconds > 0 ? `about ${duration(Math.max(1, seconds))} left` : "about to end";
};
