// The pipeline of one subscription as a picture: source, log, tables, downstream.
//
//   Source ──received──▶ Log ──applied──▶ Tables ──published──▶ Downstream
//   source    received   durable  applied  visible                  (stages of the facts)
//
// Each part has the colour and the sign of its stage's problem. On a narrow page the parts stand
// below each other. The words are the same for a screen reader, as the picture's label.

import { s } from "./dom.js";
import { amount, bytes, count, duration, plural, visible } from "./format.js";

const WIDE = 850;
const PATHS = { warning: "M8 2 14.5 13.5H1.5Z M8 6.5V9.5 M8 11.5V11.6", error: "M5.2 1.5H10.8L14.5 5.2V10.8L10.8 14.5H5.2L1.5 10.8V5.2Z M8 4.5V8.5 M8 11V11.1" };

/** The parts of the picture: cards and the pipes between them. */
export function parts(subscription, publisher) {
  const stage = Object.fromEntries(subscription.stages.map((one) => [one.stage, one]));
  const { source, log, tables, rates } = subscription;
  const streaming = ["streaming", "retrying"].includes(subscription.state);
  const subscribers = publisher.subscribers.length;
  const slowest = Math.max(0, ...publisher.slots.map((slot) => slot.behind_bytes));
  return [
    {
      title: "Source",
      severity: stage.source.severity,
      lines: [
        source.slot ? `slot ${visible(source.slot)}` : "slot not asked yet",
        source.retained_bytes === null ? `at ${stage.source.lsn}` : held(source),
      ],
      share: share(source.retained_bytes, source.limit_bytes),
    },
    {
      pipe: streaming ? "received" : subscription.state,
      severity: stage.received.severity ?? (streaming ? null : subscription.severity),
      flows: streaming && subscription.state === "streaming",
      lines: [streaming ? `${duration(stage.received.behind_seconds)} behind` : "", `${bytes(rates.bytes ?? 0)}/s`],
    },
    {
      title: "Log",
      severity: stage.durable.severity,
      lines: [
        either(`durable ${duration(stage.durable.behind_seconds)} behind`, `${duration(stage.durable.behind_seconds)} behind`),
        log.limit_bytes ? `${bytes(log.bytes)} of ${bytes(log.limit_bytes)}` : bytes(log.bytes),
      ],
      share: share(log.bytes, log.limit_bytes),
    },
    {
      pipe: "applied",
      severity: stage.applied.severity,
      flows: (rates.rows ?? 0) > 0,
      lines: [`${duration(stage.applied.behind_seconds)} behind`, `${amount(rates.rows ?? 0)} rows/s`],
    },
    {
      title: "Tables",
      severity: stage.visible.severity,
      lines: [
        either(`visible ${duration(stage.visible.behind_seconds)} behind`, `${duration(stage.visible.behind_seconds)} behind`, duration(stage.visible.behind_seconds)),
        tables.ready === tables.total ? either(`${plural(tables.total, "table")}, ${bytes(tables.size_bytes)}`, plural(tables.total, "table")) : `${count(tables.ready)} of ${count(tables.total)} ready`,
      ],
      share: tables.total > 0 && tables.ready < tables.total ? (100 * tables.ready) / tables.total : null,
    },
    {
      pipe: "published",
      severity: null,
      flows: subscribers > 0,
      faint: publisher.slots.length === 0,
      lines: [publisher.slots.length ? `${bytes(slowest)} behind` : "", ""],
    },
    {
      title: "Downstream",
      severity: null,
      faint: publisher.slots.length === 0,
      lines: publisher.slots.length ? [plural(subscribers, "subscriber"), plural(publisher.slots.length, "slot")] : ["nobody subscribes", "to this node"],
    },
  ];
}

const held = ({ retained_bytes: now, limit_bytes: most }) =>
  most ? either(`holds ${bytes(now)} of ${bytes(most)}`, `${bytes(now)} of ${bytes(most)}`) : either(`holds ${bytes(now)} of WAL`, `holds ${bytes(now)}`);

/** A line with shorter forms, for narrow cards. */
const either = (...forms) => Object.assign([...forms], { toString: () => forms[0] });

const share = (part, whole) => (part !== null && whole ? Math.min(100, (100 * part) / whole) : null);

/** What the picture says, in one sentence per part. */
function words(name, drawn) {
  const said = drawn
    .filter((part) => !part.faint)
    .map((part) => {
      const trouble = part.severity ? ` (${part.severity})` : "";
      return `${part.title ?? part.pipe}${trouble}: ${part.lines.filter(Boolean).join(", ")}`;
    });
  return `Pipeline of ${visible(name)}. ${said.join("; ")}`;
}

export function picture(subscription, publisher, width) {
  const drawn = parts(subscription, publisher);
  const wide = width >= WIDE;
  const geometry = wide ? across(drawn, width) : down(drawn, width);
  return s(
    "svg",
    {
      class: "picture",
      role: "img",
      "aria-label": words(subscription.name, drawn),
      viewBox: `0 0 ${width} ${geometry.height}`,
      width,
      height: geometry.height,
    },
    geometry.elements,
  );
}

function across(drawn, width) {
  const card = { width: Math.min(196, Math.max(120, (width - 3 * 118) / 4)), height: 88 };
  const gap = (width - 4 * card.width - 2) / 3;
  const elements = [];
  drawn.forEach((part, i) => {
    const left = 1 + Math.floor(i / 2) * (card.width + gap);
    if (part.title) elements.push(cardOf(part, left, 1, card.width, card.height));
    else {
      const x = left + card.width;
      const y = 1 + card.height / 2;
      const color = classes("pipe", part);
      elements.push(
        s("g", { class: color },
          s("path", { class: "way", d: `M${x + 5} ${y}H${x + gap - 12}` }),
          part.flows ? s("path", { class: "flow", d: `M${x + 5} ${y}H${x + gap - 12}` }) : null,
          s("path", { class: "head", d: `M${x + gap - 14} ${y - 6}l8 6-8 6Z` }),
          mark(part, x + gap / 2 - 8, y - 46),
          label("pipe-title", x + gap / 2, y - 14, part.pipe),
          label("pipe-line", x + gap / 2, y + 22, part.lines[0]),
          label("pipe-line", x + gap / 2, y + 39, part.lines[1]),
        ),
      );
    }
  });
  return { height: card.height + 2, elements };
}

function down(drawn, width) {
  const card = 80;
  const pipe = 58;
  let y = 1;
  const elements = [];
  for (const part of drawn) {
    if (part.title) {
      elements.push(cardOf(part, 1, y, width - 2, card));
      y += card;
      continue;
    }
    const x = 34;
    const middle = y + pipe / 2;
    elements.push(
      s("g", { class: classes("pipe", part) },
        s("path", { class: "way", d: `M${x} ${y + 5}V${y + pipe - 12}` }),
        part.flows ? s("path", { class: "flow", d: `M${x} ${y + 5}V${y + pipe - 12}` }) : null,
        s("path", { class: "head", d: `M${x - 6} ${y + pipe - 14}l6 8 6-8Z` }),
        mark(part, x + 20, middle - 8),
        s("text", { class: "pipe-title left", x: x + (part.severity ? 44 : 24), y: middle + 4 }, part.pipe),
        part.lines.filter(Boolean).map((line, i, all) =>
          s("text", { class: "pipe-line right", x: width - 18, y: middle + 4 + (i - (all.length - 1) / 2) * 17 }, line)),
      ),
    );
    y += pipe;
  }
  return { height: y + 1, elements };
}

function cardOf(part, x, y, width, height) {
  const inset = width < 160 ? 12 : 16;
  const inner = width - 2 * inset;
  const top = height >= 88 ? 28 : 25;
  return s(
    "g",
    { class: classes("stop", part) },
    s("rect", { class: "box", x, y, width, height, rx: 10 }),
    s("text", { class: "title", x: x + inset, y: y + top }, part.title),
    mark(part, x + width - 30, y + 13),
    s("text", { class: "line", x: x + inset, y: y + top + 21 }, fit(part.lines[0], inner)),
    s("text", { class: "line", x: x + inset, y: y + top + 38 }, fit(part.lines[1], inner)),
    part.share === null || part.share === undefined ? null : [
      s("rect", { class: "rail", x: x + inset, y: y + height - 11, width: inner, height: 3, rx: 1.5 }),
      s("rect", { class: "fill", x: x + inset, y: y + height - 11, width: Math.max(3, (inner * part.share) / 100), height: 3, rx: 1.5 }),
    ],
  );
}

const classes = (kind, part) => [kind, part.severity, part.faint ? "faint" : null].filter(Boolean).join(" ");

function mark(part, x, y) {
  if (!part.severity) return null;
  return s("path", { class: "mark", transform: `translate(${x} ${y})`, d: PATHS[part.severity] });
}

const label = (name, x, y, text) => s("text", { class: name, x, y, "text-anchor": "middle" }, text ?? "");

/** The longest form of a line that fits the width; a letter of 13 px is about 6.8 px wide. */
function fit(line, width) {
  const most = Math.floor(width / 6.8);
  const forms = Array.isArray(line) ? line : [line];
  const text = forms.find((form) => form.length <= most) ?? forms.at(-1);
  return text.length <= most ? text : `${text.slice(0, Math.max(1, most - 1))}…`;
}
