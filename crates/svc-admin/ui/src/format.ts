// Numbers and times as people read them. Pure; the tests beside this file hold the edges.

/** A rate: three significant digits, never scientific. */
export function rate(value: number | null | undefined): string {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  if (value === 0) return "0";
  if (value < 0.01) return "<0.01";
  if (value < 10) return trim(value.toFixed(2));
  if (value < 100) return trim(value.toFixed(1));
  if (value < 10_000) return Math.round(value).toLocaleString("en-US");
  if (value < 1e6) return `${trim((value / 1e3).toFixed(1))} k`;
  return `${trim((value / 1e6).toFixed(1))} M`;
}

/** A duration in seconds, in the unit that fits: 84 µs, 1.2 ms, 3.4 s. */
export function seconds(value: number | null | undefined): string {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  if (value === 0) return "0";
  if (value < 0.000_9995) return `${sig(value * 1e6)} µs`;
  if (value < 0.9995) return `${sig(value * 1e3)} ms`;
  return `${sig(value)} s`;
}

/** A share of 1 as a percentage. */
export function percent(value: number | null | undefined): string {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  if (value === 0) return "0 %";
  const p = value * 100;
  return p < 0.1 ? "<0.1 %" : `${sig(p)} %`;
}

/** Bytes in binary units. */
export function bytes(value: number | null | undefined): string {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let at = 0, rest = Math.abs(value);
  while (rest >= 1023.5 && at < units.length - 1) { rest /= 1024; at += 1; }
  return `${value < 0 ? "-" : ""}${at === 0 ? Math.round(rest) : sig(rest)} ${units[at]}`;
}

/** A number of any size and sign. */
export function number(value: number | null | undefined): string {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (size >= 1e15 || (size > 0 && size < 0.001)) return value.toExponential(2);
  if (size >= 100) return Math.round(value).toLocaleString("en-US");
  return trim(value.toFixed(size >= 10 ? 1 : 3));
}

/** A whole number with separators. */
export function whole(value: number | null | undefined): string {
  return value === null || value === undefined || !Number.isFinite(value) ? "–" : Math.round(value).toLocaleString("en-US");
}

/** A span in seconds as the two largest units: 42 s, 3 min, 2 h 5 min, 4 d 3 h. */
export function span(total: number | null | undefined): string {
  if (total === null || total === undefined || !Number.isFinite(total)) return "–";
  const s = Math.max(0, Math.floor(total));
  if (s < 60) return `${s} s`;
  const m = Math.floor(s / 60);
  if (m < 60) return `${m} min`;
  const h = Math.floor(m / 60);
  if (h < 24) return m % 60 ? `${h} h ${m % 60} min` : `${h} h`;
  const d = Math.floor(h / 24);
  return h % 24 ? `${d} d ${h % 24} h` : `${d} d`;
}

/** A clock time, local or UTC. */
export function clock(ms: number, utc: boolean): string {
  const d = new Date(ms);
  const parts = utc ? [d.getUTCHours(), d.getUTCMinutes(), d.getUTCSeconds()] : [d.getHours(), d.getMinutes(), d.getSeconds()];
  return parts.map((p) => String(p).padStart(2, "0")).join(":") + (utc ? " UTC" : "");
}

function sig(value: number): string {
  if (value >= 99.95) return Math.round(value).toLocaleString("en-US");
  return trim(value >= 9.995 ? value.toFixed(1) : value.toFixed(2));
}

function trim(text: string): string {
  return text.includes(".") ? text.replace(/\.?0+$/, "") : text;
}

/** Minor units, a decimal string of any length, in groups of three. Never a float. */
export function minor(text: string): string {
  return text.replace(/\B(?=(\d{3})+(?!\d))/g, "\u202f");
}

/** A date and a clock time, local or UTC. */
export function stamp(ms: number, utc: boolean): string {
  const d = new Date(ms);
  const [y, m, day] = utc ? [d.getUTCFullYear(), d.getUTCMonth(), d.getUTCDate()] : [d.getFullYear(), d.getMonth(), d.getDate()];
  return `${y}-${String(m! + 1).padStart(2, "0")}-${String(day).padStart(2, "0")} ${clock(ms, utc)}`;
}
