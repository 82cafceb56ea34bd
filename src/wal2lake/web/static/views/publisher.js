// Publisher: slots of this node, the subscribers that read them, and how far they are.

import { h } from "../dom.js";
import { bytes, plural, visible } from "../format.js";
import { grid, sqlBlock } from "./parts.js";

export const title = () => "Publisher";

export function render(page) {
  const { publisher, node } = page.store.state;
  const head = h("div", { class: "head" }, h("h1", { tabindex: -1 }, "Publisher"),
    h("p", { class: "lead" }, [plural(publisher.slots.length, "slot"), plural(publisher.subscribers.length, "subscriber"), publisher.lsn ? `log at ${publisher.lsn}` : null].filter(Boolean).join(" · ")));
  if (publisher.slots.length === 0 && publisher.subscribers.length === 0) return [head, none(page, node)];
  return [
    head,
    h("section", { class: "card" }, h("h2", {}, "Subscribers"), grid(
      "Subscribers",
      [["Subscriber", ""], ["State", ""], ["Slot", ""], ["Behind", "number"], ["Sent", "code"], ["Flushed", "code"], ["Replayed", "code"]],
      publisher.subscribers.map((one) => [
        h("span", {}, visible(one.application_name) || "(no name)", h("small", {}, ` ${one.client}, PID ${one.pid}`)),
        h("span", { class: `pill ${one.state === "streaming" ? "ok" : "busy"}` }, h("i", { class: "dot", "aria-hidden": "true" }), one.state),
        one.slot ?? "–",
        bytes(one.behind_bytes),
        h("code", {}, one.sent_lsn), h("code", {}, one.flushed_lsn), h("code", {}, one.replayed_lsn),
      ]),
      "No subscriber is connected.")),
    h("section", { class: "card" }, h("h2", {}, "Replication slots"), grid(
      "Replication slots",
      [["Slot", ""], ["Plugin", ""], ["Active", ""], ["Confirmed", "code"], ["Behind", "number"], ["Keeps", "number"], ["Log", ""]],
      publisher.slots.map((one) => [
        one.name,
        one.plugin,
        one.active_pid ? `PID ${one.active_pid}` : "no",
        h("code", {}, one.confirmed_lsn),
        bytes(one.behind_bytes),
        h("span", {}, bytes(one.retained_bytes), one.limit_bytes ? h("small", {}, ` of ${bytes(one.limit_bytes)}`) : null),
        h("span", { class: `pill ${{ reserved: "ok", lost: "error", unreserved: "error", extended: "warning" }[one.wal_status] ?? "off"}` }, h("i", { class: "dot", "aria-hidden": "true" }), one.wal_status),
      ]),
      "There is no slot.")),
  ];
}

function none(page, node) {
  const address = node.address ? `host=${node.address} port=${node.port}` : "host=lake.example.com port=5480";
  return h("section", { class: "card start" },
    h("h2", {}, "Nobody subscribes to this node"),
    h("p", {}, "A PostgreSQL server can follow tables of the lake. Publish them here:"),
    sqlBlock(page, "CREATE PUBLICATION lake FOR TABLES IN SCHEMA public;"),
    h("p", {}, "At the PostgreSQL server, with tables of the same names, subscribe:"),
    sqlBlock(page, `CREATE SUBSCRIPTION lake\n    CONNECTION '${address} dbname=lake user=replicator'\n    PUBLICATION lake;`));
}
