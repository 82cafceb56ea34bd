// What the page knows, and its connection.
//
// One stream of server-sent events brings the whole picture and then each change. It is read with
// fetch, which, unlike EventSource, says why a connection was refused. A stream that says nothing
// for SILENCE is as good as broken. After a failure the page waits a little longer each time, and
// a person can ask for an attempt at once.

import { visible } from "./format.js";

const SILENCE_MS = 12_000;
const PAUSES_MS = [1000, 2000, 4000, 8000, 15_000];

/** Names of the columns of a table's row, as the server sends them. */
const COLUMNS = [
  "subscription", "oid", "schema", "name", "state", "pausedSince", "error", "rate", "behind",
  "freshness", "size", "files", "vectors", "version", "rows", "conflicts", "coercions", "severity", "problem",
];

export class Store extends EventTarget {
  state = null;
  problems = { total: 0, errors: 0, problems: [] };
  tables = new Map();
  trouble = null;
  /** connecting, live or lost */
  connection = "connecting";
  /** Reason of the last failure, in words. */
  reason = null;
  lostAt = null;
  #attempts = 0;
  #abort = null;
  #timer = null;

  connect() {
    clearTimeout(this.#timer);
    this.#abort?.abort();
    this.#abort = new AbortController();
    this.#read(this.#abort).catch((error) => this.#lose(String(error?.message ?? error)));
  }

  async #read(abort) {
    let silence = setTimeout(() => abort.abort(), SILENCE_MS);
    let fault = "the connection has ended";
    try {
      const answer = await fetch("api/events", { signal: abort.signal, cache: "no-store" });
      if (!answer.ok) {
        fault = await refusal(answer);
        return;
      }
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      let text = "";
      for (;;) {
        const { value, done } = await reader.read();
        if (done) break;
        clearTimeout(silence);
        silence = setTimeout(() => abort.abort(), SILENCE_MS);
        text += value;
        const events = text.split("\n\n");
        text = events.pop();
        for (const event of events) this.#take(event);
        this.#attempts = 0;
        this.#told();
      }
    } catch (error) {
      fault = abort.signal.aborted ? "the node's web process does not answer" : "the node's web process cannot be reached";
    } finally {
      clearTimeout(silence);
      if (abort === this.#abort) this.#lose(fault);
    }
  }

  #lose(reason) {
    this.reason = reason;
    if (this.connection !== "lost") {
      this.connection = "lost";
      this.lostAt = new Date();
    }
    const pause = PAUSES_MS[Math.min(this.#attempts, PAUSES_MS.length - 1)];
    this.#attempts += 1;
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.connect(), pause);
    this.dispatchEvent(new Event("change"));
  }

  #told() {
    this.connection = "live";
    this.dispatchEvent(new Event("change"));
  }

  #take(event) {
    const lines = event.split("\n");
    const name = lines.find((line) => line.startsWith("event: "))?.slice(7);
    const data = lines.find((line) => line.startsWith("data: "))?.slice(6);
    if (!name || data === undefined) return;
    const value = JSON.parse(data);
    switch (name) {
      case "hello":
        this.state = value.state;
        this.problems = value.problems ?? this.problems;
        this.trouble = value.trouble;
        this.tables = new Map();
        this.#rows(value.tables);
        this.dispatchEvent(new Event("hello"));
        break;
      case "state":
        this.state = value;
        this.dispatchEvent(new Event("sample"));
        break;
      case "problems":
        this.problems = value;
        this.dispatchEvent(new Event("problems"));
        break;
      case "tables":
        for (const [subscription, oid] of value.gone) this.tables.delete(`${subscription}/${oid}`);
        this.#rows(value.rows);
        break;
      case "trouble":
        this.trouble = value;
        break;
    }
  }

  #rows(rows) {
    for (const row of rows) {
      const table = Object.fromEntries(COLUMNS.map((name, i) => [name, row[i]]));
      table.key = `${table.subscription}/${table.oid}`;
      table.qualified = `${table.schema}.${table.name}`;
      table.shown = visible(table.qualified);
      this.tables.set(table.key, table);
    }
  }
}

async function refusal(answer) {
  try {
    return (await answer.json()).error ?? `the server answers ${answer.status}`;
  } catch {
    return `the server answers ${answer.status}`;
  }
}

/** JSON of the server; an Error with its words if it refuses. */
export async function ask(path) {
  const answer = await fetch(path, { cache: "no-store" });
  if (!answer.ok) throw new Error(await refusal(answer));
  return answer.json();
}
