// Lines over time, drawn by uPlot.
//
// A view leaves a place, <div data-chart="lag" data-keep>; mount() puts a chart in each place and
// ends charts whose place is gone. The last hour comes from the server, each second after it from
// the stream. Colours are those of the style sheet, so a change of colours draws anew.

import { amount, bytes, duration } from "./format.js";
import { ask } from "./store.js";

export const STAGES = ["received", "durable", "applied", "visible"];

const KINDS = {
  lag: {
    label: "Seconds behind the source, by stage",
    series: STAGES.map((name, i) => ({ name, color: `--line-${i + 1}`, dash: [[2, 4], [6, 4], [], []][i], width: i === 3 ? 2 : 1.5 })),
    text: duration,
    axis: (v) => (v >= 60 ? duration(v) : `${Number(v.toPrecision(3))} s`),
    steps: [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 28800, 43200, 86400, 172800, 604800],
  },
  rows: {
    label: "Rows per second",
    series: [{ name: "rows", color: "--line-4", fill: true, width: 2 }],
    text: (v) => `${amount(v)} rows/s`,
    axis: (v) => (v < 1000 ? String(Number(v.toPrecision(3))) : amount(v)),
  },
  bytes: {
    label: "WAL received per second",
    series: [{ name: "bytes", color: "--line-2", fill: true, width: 2 }],
    text: (v) => `${bytes(v)}/s`,
    axis: (v) => `${bytes(v)}/s`,
  },
};

const REFRESH_MS = 60_000;

export class Charts {
  #store;
  #plots = new Map();
  #columns = null;
  #wanted = null;
  #asked = 0;
  #failure = null;

  constructor(store) {
    this.#store = store;
    store.addEventListener("sample", () => this.#sample());
    store.addEventListener("hello", () => this.reload());
  }

  /** Show this subscription (an OID) over this many seconds. */
  choose(subscription, seconds) {
    const key = `${subscription}/${seconds}`;
    if (this.#wanted?.key === key) {
      if (Date.now() - this.#asked > REFRESH_MS) this.reload();
      return;
    }
    this.#wanted = { key, subscription, seconds };
    this.#columns = null;
    this.reload();
  }

  async reload() {
    const wanted = this.#wanted;
    if (!wanted?.subscription) return;
    this.#asked = Date.now();
    try {
      const columns = await ask(`api/history?subscription=${wanted.subscription}&seconds=${wanted.seconds}`);
      if (wanted !== this.#wanted) return;
      this.#columns = columns;
      this.#failure = null;
    } catch (error) {
      this.#failure = error.message;
    }
    this.#draw();
  }

  /** The newest values of a chart, in words. */
  newest(kind, name) {
    const column = this.#columns?.[name];
    return column?.length ? KINDS[kind].text(column.at(-1)) : null;
  }

  label(kind) {
    return KINDS[kind].label;
  }

  series(kind) {
    return KINDS[kind].series;
  }

  #sample() {
    const columns = this.#columns;
    const wanted = this.#wanted;
    const state = this.#store.state;
    const subscription = state?.subscriptions.find((one) => one.oid === wanted?.subscription);
    if (!columns || !subscription) return;
    const now = new Date(state.taken_at).getTime() / 1000;
    if (columns.times.length && now <= columns.times.at(-1)) return;
    columns.times.push(now);
    for (const name of STAGES) {
      columns[name].push(subscription.stages.find((one) => one.stage === name).behind_seconds);
    }
    columns.rows.push(subscription.rates.rows);
    columns.bytes.push(subscription.rates.bytes);
    while (columns.times.length && columns.times[0] < now - wanted.seconds) {
      for (const name of ["times", "rows", "bytes", ...STAGES]) columns[name].shift();
    }
    this.#draw();
  }

  /** Put charts into the places of a view. */
  mount(root) {
    const places = new Map([...root.querySelectorAll("[data-chart]")].map((place) => [place.dataset.chart, place]));
    for (const [kind, plot] of this.#plots) {
      if (places.get(kind) !== plot.place) {
        plot.chart.destroy();
        this.#plots.delete(kind);
      }
    }
    for (const [kind, place] of places) {
      if (!this.#plots.has(kind) && place.clientWidth > 0) {
        this.#plots.set(kind, { place, chart: this.#make(kind, place) });
        this.#draw(kind);
      }
    }
  }

  resize() {
    for (const { place, chart } of this.#plots.values()) {
      chart.setSize({ width: place.clientWidth, height: height(place) });
    }
  }

  repaint() {
    for (const { chart } of this.#plots.values()) chart.destroy();
    this.#plots.clear();
    this.mount(document.getElementById("main"));
  }

  #draw(only = null) {
    for (const [kind, { place, chart }] of this.#plots) {
      if (only !== null && only !== kind) continue;
      const columns = this.#columns;
      const names = KINDS[kind].series.map((one) => one.name);
      const now = this.#store.state ? new Date(this.#store.state.taken_at).getTime() / 1000 : Date.now() / 1000;
      chart.setData(columns ? [columns.times, ...names.map((name) => columns[name])] : [[], ...names.map(() => [])], false);
      chart.batch(() => {
        chart.setScale("x", { min: now - (this.#wanted?.seconds ?? 300), max: now });
      });
      tell(chart, place, KINDS[kind]);
      place.setAttribute("aria-label", `${KINDS[kind].label}. ${this.#words(kind, names)}`);
    }
  }

  #words(kind, names) {
    if (this.#failure) return this.#failure;
    const values = names.map((name) => [name, this.newest(kind, name)]).filter(([, value]) => value);
    return values.length ? `Now ${values.map(([name, value]) => `${name} ${value}`).join(", ")}` : "No values yet";
  }

  #make(kind, place) {
    const style = getComputedStyle(document.documentElement);
    const color = (name) => style.getPropertyValue(name).trim();
    const definition = KINDS[kind];
    const axis = { stroke: color("--muted"), font: "12px Inter, sans-serif", grid: { stroke: color("--line"), width: 1 }, ticks: { show: false } };
    place.setAttribute("role", "img");
    return new uPlot(
      {
        width: place.clientWidth,
        height: height(place),
        padding: [8, 8, 0, 0],
        cursor: { sync: { key: "page" }, drag: { x: false, y: false }, points: { size: 6 } },
        legend: { show: false },
        scales: {
          x: { time: true },
          y: { range: (_, __, max) => [0, Math.max(max * 1.15, kind === "lag" ? 1 : 10)] },
        },
        axes: [
          { ...axis, size: 30, space: 70, values: clockTimes },
          { ...axis, size: 72, space: 34, values: (_, marks) => marks.map((v) => definition.axis(v)), ...(definition.steps ? { incrs: definition.steps } : {}) },
        ],
        series: [
          {},
          ...definition.series.map((one) => ({
            label: one.name,
            stroke: color(one.color),
            width: one.width,
            dash: one.dash,
            fill: one.fill ? color(one.color) + "1f" : undefined,
            points: { show: false },
            spanGaps: false,
          })),
        ],
        hooks: { setCursor: [(chart) => tell(chart, place, definition)] },
      },
      [[], ...definition.series.map(() => [])],
      place,
    );
  }
}

const height = (place) => (place.clientWidth < 480 ? 170 : 210);

function clockTimes(chart, marks, _, __, increment) {
  const options = { hour: "2-digit", minute: "2-digit", ...(increment < 60 ? { second: "2-digit" } : {}) };
  const format = new Intl.DateTimeFormat("en-GB", options);
  return marks.map((mark) => format.format(new Date(mark * 1000)));
}

/** Write the values under the pointer into the legend of the chart's card. */
function tell(chart, place, definition) {
  const legend = place.closest(".card")?.querySelectorAll("[data-value]") ?? [];
  const index = chart.cursor.idx;
  legend.forEach((element, i) => {
    const column = chart.data[i + 1];
    const at = index === null || index === undefined ? column.length - 1 : index;
    element.textContent = column.length ? definition.text(column[at]) : "–";
  });
}
