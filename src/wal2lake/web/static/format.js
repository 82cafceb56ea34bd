// Numbers, sizes and times for people. What is not known is a dash.

export const UNKNOWN = "–";

const known = (value) => value !== null && value !== undefined && !Number.isNaN(value);

const digits = [0, 1, 2].map(
  (n) => new Intl.NumberFormat("en", { minimumFractionDigits: n, maximumFractionDigits: n }),
);

/** 1,234,567 */
export function count(value) {
  return known(value) ? digits[0].format(value) : UNKNOWN;
}

/** 0, 3.2, 1,240, 12.4 k, 1.20 M: at most four digits. */
export function amount(value) {
  if (!known(value)) return UNKNOWN;
  if (value >= 999.5e6) return `${digits[2].format(value / 1e9)} G`;
  if (value >= 9.995e6) return `${digits[1].format(value / 1e6)} M`;
  if (value >= 999.5e3) return `${digits[2].format(value / 1e6)} M`;
  if (value >= 9995) return `${digits[1].format(value / 1e3)} k`;
  if (value >= 10 || value === 0) return digits[0].format(value);
  return digits[value < 0.05 ? 2 : 1].format(value);
}

const UNITS = ["bytes", "kB", "MB", "GB", "TB", "PB"];

/** As pg_size_pretty: a kB has 1024 bytes. */
export function bytes(value) {
  if (!known(value)) return UNKNOWN;
  let unit = 0;
  let size = Number(value);
  while (Math.abs(size) >= 1000 && unit < UNITS.length - 1) {
    size /= 1024;
    unit += 1;
  }
  const whole = unit === 0 || Math.abs(size) >= 100 || Number.isInteger(Number(size.toFixed(1)));
  return `${digits[whole ? 0 : 1].format(size)} ${UNITS[unit]}`;
}

/** 40 ms, 0.4 s, 12 s, 3 min 20 s, 2 h 5 min, 3 d 4 h */
export function duration(seconds) {
  if (!known(seconds)) return UNKNOWN;
  const value = Math.max(0, seconds);
  if (value < 0.0005) return "0 s";
  if (value < 0.0995) return `${Math.max(1, Math.round(value * 1000))} ms`;
  if (value < 9.95) return `${digits[1].format(value)} s`;
  const whole = Math.round(value);
  if (whole < 60) return `${whole} s`;
  const parts = [
    [Math.floor(whole / 86400), "d"],
    [Math.floor(whole / 3600) % 24, "h"],
    [Math.floor(whole / 60) % 60, "min"],
    [whole % 60, "s"],
  ];
  const first = parts.findIndex(([n]) => n > 0);
  return parts
    .slice(first, first + 2)
    .filter(([n]) => n > 0)
    .map(([n, unit]) => `${n} ${unit}`)
    .join(" ");
}

const clock = new Intl.DateTimeFormat("en-GB", {
  hour: "2-digit",
  minute: "2-digit",
  second: "2-digit",
});
const calendar = new Intl.DateTimeFormat("en-GB", {
  day: "numeric",
  month: "short",
  year: "numeric",
  hour: "2-digit",
  minute: "2-digit",
  second: "2-digit",
});

/** The time of day for today, else with its date; the reader's time zone. */
export function moment(text, now = new Date()) {
  if (!text) return UNKNOWN;
  const time = new Date(text);
  if (Number.isNaN(time.getTime())) return String(text);
  return time.toDateString() === now.toDateString() ? clock.format(time) : calendar.format(time);
}

/** Seconds from one time to another. */
export function between(from, to) {
  return from && to ? (new Date(to) - new Date(from)) / 1000 : null;
}

export function percent(part, whole) {
  return known(part) && whole > 0 ? Math.min(100, Math.max(0, (part / whole) * 100)) : null;
}

export function plural(number, one, many = `${one}s`) {
  return `${count(number)} ${number === 1 ? one : many}`;
}

/** A name whose control and direction characters are shown as escapes, so that it cannot pass for
 * another name. */
export function visible(name) {
  return plain(name).replace(/[\t\n]/g, escape);
}

/** A text of several lines, with the same care. */
export function plain(text) {
  return text.replace(/[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200e\u200f\u202a-\u202e\u2066-\u2069]/g, escape);
}

const escape = (c) => `\\u${c.codePointAt(0).toString(16).padStart(4, "0")}`;

/** An SQL identifier, quoted if it must be. */
export function identifier(name) {
  return /^[a-z_][a-z0-9_]*$/.test(name) ? name : `"${name.replaceAll('"', '""')}"`;
}

/** An SQL string. */
export function literal(text) {
  return `'${text.replaceAll("'", "''")}'`;
}
