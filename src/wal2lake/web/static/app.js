// The page: which view is shown, what a click or key does, and one drawing per reading.
//
//   store.js    the connection and what it brought     dom.js     elements from data
//   views/*.js  one module for each view               charts.js  lines over time
//
// The address after # names the view: #/, #/tables, #/table/16402, #/copies, #/problems,
// #/publisher. A view is a function from the store and its own choices to elements. Clicks are
// handled here, by data-do.

import { Charts } from "./charts.js";
import { h, show, sign } from "./dom.js";
import { between, count, duration, moment, plural } from "./format.js";
import { Store } from "./store.js";
import * as copies from "./views/copies.js";
import * as overview from "./views/overview.js";
import * as problems from "./views/problems.js";
import * as publisher from "./views/publisher.js";
import * as table from "./views/table.js";
import * as tables from "./views/tables.js";

const VIEWS = { "": overview, tables, table, copies, problems, publisher };
const MENU = [
  ["", "Overview"],
  ["tables", "Tables"],
  ["copies", "Copies"],
  ["problems", "Problems"],
  ["publisher", "Publisher"],
];
const THEMES = ["auto", "light", "dark"];

const store = new Store();
const charts = new Charts(store);
const page = {
  store,
  charts,
  /** Choices of a person, by view. */
  choices: { tables: tables.initial(), overview: overview.initial(), table: table.initial() },
  argument: null,
  width: document.documentElement.clientWidth,
  redraw: schedule,
};
let current = null;

// ---- drawing ----------------------------------------------------------------

let due = false;

function schedule() {
  if (due) return;
  due = true;
  requestAnimationFrame(() => {
    due = false;
    draw();
  });
}

function draw() {
  const view = VIEWS[current];
  show(document.getElementById("nav"), ...menu());
  show(document.getElementById("corner"), ...corner());
  show(document.getElementById("banner"), ...banner());
  show(document.getElementById("foot"), ...foot());
  if (store.state === null && store.trouble === null) return;
  const main = document.getElementById("main");
  show(main, h("div", { class: `view view-${current || "overview"}`, "data-key": current + (page.argument ?? "") },
    store.state === null ? [h("h1", { tabindex: -1 }, "The node cannot be read")] : view.render(page)));
  charts.mount(main);
  if (focusHeading) {
    focusHeading = false;
    main.querySelector("h1")?.focus({ preventScroll: true });
  }
}

function menu() {
  const { total, errors } = store.problems;
  const selected = current === "table" ? "tables" : current;
  return [
    h("ul", {}, MENU.map(([name, label]) =>
      h("li", {}, h(
        "a",
        { href: `#/${name}`, "aria-current": name === selected ? "page" : null },
        h("span", {}, label),
        name === "problems" && total > 0
          ? h("span", { class: `badge ${errors > 0 ? "error" : "warning"}` }, count(total))
          : null,
        name === "copies" && store.state?.copies.length > 0
          ? h("span", { class: "badge" }, count(store.state.copies.length))
          : null,
      )),
    )),
  ];
}

function corner() {
  const theme = document.documentElement.dataset.theme ?? "auto";
  const node = store.state?.node;
  const state = node?.state ?? "unknown";
  const live = store.connection === "live" && !store.trouble;
  const kind = !live ? "off" : { ready: "ok", stopped: "error" }[state] ?? "warning";
  const word = live ? `node ${state}` : store.connection === "connecting" ? "connecting" : "not connected";
  const title = { auto: "as the system", light: "light", dark: "dark" }[theme];
  return [
    h("span", { class: `pill ${kind}` }, h("i", { class: "dot", "aria-hidden": "true" }), word),
    h("button", { type: "button", class: "icon", "data-do": "theme", "aria-label": `Colours: ${title}. Change`, title: `Colours: ${title}` }, sign(theme)),
  ];
}

function banner() {
  if (store.connection === "lost") {
    const since = store.state ? ` What you see is of ${moment(store.state.taken_at)}.` : "";
    return [
      h("div", { class: "notice error" }, sign("error"),
        h("p", {}, h("strong", {}, "Connection lost: "), `${store.reason}. Trying again.${since}`),
        h("button", { type: "button", "data-do": "reconnect" }, "Try now")),
    ];
  }
  if (store.trouble) {
    return [h("div", { class: "notice error" }, sign("error"),
      h("p", {}, h("strong", {}, "The node cannot be read: "), store.trouble))];
  }
  const told = store.state?.node.engine_told_at;
  const silent = between(told, store.state?.taken_at);
  if (store.state?.node.state === "stopped") {
    return [h("div", { class: "notice warning" }, sign("warning"),
      h("p", {}, h("strong", {}, "The node is stopped. "),
        told ? `Its engine last reported ${duration(silent)} ago.` : "Its engine has not reported yet."))];
  }
  return [];
}

function foot() {
  const node = store.state?.node;
  if (!node) return [];
  const address = node.address ? `${node.address}:${node.port}` : "no address";
  return [
    h("p", {}, `wal2lake ${node.version ?? ""} · ${address} · `, h("span", { class: "path" }, node.directory)),
    h("p", {}, node.started_at ? `up ${duration(between(node.started_at, store.state.taken_at))}` : "not running",
      ` · read at ${moment(store.state.taken_at)}`),
  ];
}

// ---- where we are -----------------------------------------------------------

let focusHeading = false;

function route() {
  const [, name = "", argument = null] = location.hash.split("/");
  const known = name in VIEWS ? name : "";
  const moved = current !== null && (known !== current || argument !== page.argument);
  current = known;
  page.argument = argument;
  const view = VIEWS[current];
  document.title = `${view.title(page)} · wal2lake`;
  view.enter?.(page);
  if (moved) {
    focusHeading = true;
    scrollTo(0, 0);
  }
  draw();
}

// ---- what a person does -----------------------------------------------------

const ACTIONS = {
  theme() {
    const now = document.documentElement.dataset.theme ?? "auto";
    const next = THEMES[(THEMES.indexOf(now) + 1) % THEMES.length];
    if (next === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = next;
    try {
      localStorage.setItem("wal2lake.theme", next);
    } catch {
      // Storage is refused: the choice lasts as long as the page.
    }
    charts.repaint();
    announce(`Colours: ${next === "auto" ? "as the system" : next}`);
  },
  reconnect() {
    store.connect();
  },
  async copy(button) {
    const text = button.closest(".sql").dataset.sql;
    const copied = await copyText(text);
    announce(copied ? "Copied" : "Not copied: the browser refuses it");
    page.copied = { text, copied };
    schedule();
    setTimeout(() => {
      page.copied = null;
      schedule();
    }, 2000);
  },
};

async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // Not a secure context: the older way.
    const area = h("textarea", { class: "unseen", "aria-hidden": "true" });
    const focused = document.activeElement;
    area.value = text;
    document.body.append(area);
    area.select();
    const copied = document.execCommand("copy");
    area.remove();
    focused?.focus();
    return copied;
  }
}

document.addEventListener("click", (event) => {
  const element = event.target.closest("[data-do]");
  if (!element || element.matches("input, select")) return;
  const action = ACTIONS[element.dataset.do] ?? VIEWS[current].actions?.[element.dataset.do];
  action?.(element, page);
  schedule();
});

for (const kind of ["input", "change"]) {
  document.addEventListener(kind, (event) => {
    const element = event.target.closest("[data-do]");
    if (!element?.matches("input, select")) return;
    VIEWS[current].actions?.[element.dataset.do]?.(element, page);
    schedule();
  });
}

document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  document.getElementById("main").focus();
});

function announce(text) {
  document.getElementById("announcer").textContent = text;
}

// ---- beginning --------------------------------------------------------------

let announced = null;

store.addEventListener("problems", () => {
  const { total, errors } = store.problems;
  const words = total === 0 ? "No problems" : `${plural(total, "problem")}, ${plural(errors, "error")}`;
  if (announced !== words) announce(words);
  announced = words;
});
store.addEventListener("change", schedule);
store.addEventListener("hello", () => VIEWS[current].enter?.(page));
addEventListener("hashchange", route);
addEventListener("resize", () => {
  page.width = document.documentElement.clientWidth;
  charts.resize();
  schedule();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => charts.repaint());
route();
store.connect();
