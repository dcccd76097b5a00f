// A line chart with what a canvas lacks: a label, a keyboard cursor and a table behind it.

import { useEffect, useRef, useState } from "preact/hooks";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import type { Num } from "./api.ts";
import { bytes, clock, stamp } from "./format.ts";
import { t } from "./i18n.ts";

/** An undefined value is no hole: another line has a point there. */
export interface Line { label: string; values: (Num | undefined)[]; href?: string }
export interface ChartProps {
  title: string; timesMs: number[]; lines: Line[]; format: (v: Num) => string;
  windowText: string; utc: boolean; theme: string; height?: number;
  /** The least height of the value axis, so that a flat zero line does not look like a full scale. */
  least?: number;
  /** Colour index of the first line. */
  tone?: number;
  /** Called with the time that was marked on the chart. */
  onZoom?: (fromMs: number, toMs: number) => void;
}

/** A time in a chart: with its date where a clock alone would be ambiguous. */
function moment(p: ChartProps, ms: number): string {
  return isLong(p) ? stamp(ms, p.utc) : clock(ms, p.utc);
}

function isLong(p: ChartProps): boolean { return (p.timesMs.at(-1) ?? 0) - (p.timesMs[0] ?? 0) > 20 * 3_600_000; }

const TONES = 8;
/** Steps of an axis of bytes. */
const BINARY = Array.from({ length: 60 }, (_, i) => 2 ** i);

function css(name: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function alpha(hex: string, share: string): string {
  return /^#[0-9a-f]{6}$/i.test(hex) ? hex + share : hex;
}

/** Too few samples for a line to be seen: they are shown as points. */
function young(line: Line): boolean { return line.values.filter((v) => v != null).length < 3; }

function options(p: ChartProps, width: number, onCursor: (at: number | null) => void): uPlot.Options {
  const ink = css("--muted"), grid = css("--line-soft");
  const axis = { stroke: ink, grid: { stroke: grid, width: 1 }, ticks: { show: false }, font: `11px ${css("--font")}`, gap: 8 };
  return {
    width, height: p.height ?? 220,
    tzDate: (ts) => (p.utc ? uPlot.tzDate(new Date(ts * 1000), "Etc/UTC") : new Date(ts * 1000)),
    legend: { show: false },
    padding: [10, 26, 0, 0],
    cursor: { y: false, points: { size: 7, width: 2 }, drag: { x: p.onZoom !== undefined, y: false, setScale: false } },
    scales: { x: { time: true }, y: { range: (_u, min, max) => [Math.min(0, min * 1.12), Math.max(max * 1.12, p.least ?? 1)] } },
    axes: [
      { ...axis, grid: { show: false }, space: isLong(p) ? 84 : 48, size: 28, values: (_u, ticks) => ticks.map((s) => moment(p, s * 1000).replace(" UTC", "").replace(/:00$/, "").replace(/^\d+-/, "")) },
      { ...axis, size: 56, space: 44, ...(p.format === bytes ? { incrs: BINARY } : {}), values: (_u, ticks) => ticks.map((v) => p.format(v)) },
    ],
    series: [
      {},
      ...p.lines.map((line, i) => {
        const tone = css(`--tone-${((p.tone ?? 0) + i) % TONES}`);
        return {
          label: line.label, stroke: tone, width: 1.75, spanGaps: false, points: { show: young(line) },
          ...(p.lines.length === 1 ? { fill: alpha(tone, "22") } : {}),
        } as uPlot.Series;
      }),
    ],
    hooks: {
      setCursor: [(u) => onCursor(u.cursor.idx ?? null)],
      setSelect: [(u) => {
        const { left, width } = u.select;
        if (!p.onZoom || width < 4) return;
        p.onZoom(u.posToVal(left, "x") * 1000, u.posToVal(left + width, "x") * 1000);
        u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
      }],
    },
  };
}

export function Chart(p: ChartProps) {
  const box = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const [at, setAt] = useState<number | null>(null);
  const [table, setTable] = useState(false);
  const data = [p.timesMs.map((ms) => ms / 1000), ...p.lines.map((l) => l.values)] as uPlot.AlignedData;
  const shape = `${p.lines.map((l) => l.label + (young(l) ? "." : "")).join("|")}·${p.theme}·${p.utc}·${isLong(p)}·${p.title}·${document.documentElement.lang}`;

  useEffect(() => {
    const host = box.current!;
    const make = options(p, Math.max(host.clientWidth, 120), setAt);
    const made = new uPlot(make, data, host);
    plot.current = made;
    const fit = new ResizeObserver(() => made.setSize({ width: Math.max(host.clientWidth, 120), height: make.height }));
    fit.observe(host);
    return () => { fit.disconnect(); made.destroy(); plot.current = null; };
  }, [shape]);

  useEffect(() => { plot.current?.setData(data); }, [p.timesMs, p.lines]);

  const last = p.timesMs.length - 1;
  const shown = at !== null && at <= last ? at : null;
  const figure = (line: Line) => {
    if (shown !== null) return p.format(line.values[shown] ?? null);
    // The newest point may not have come yet; two missing ones mean that there is nothing to show.
    const known = line.values.filter((v) => v !== undefined);
    return p.format(known.at(-1) ?? known.at(-2) ?? null);
  };
  const onKey = (event: KeyboardEvent) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (step === undefined || !plot.current || last < 0) return;
    event.preventDefault();
    const next = Math.min(last, Math.max(0, (shown ?? (step < 0 ? last + 1 : -1)) + step));
    plot.current.setCursor({ left: plot.current.valToPos(p.timesMs[next]! / 1000, "x"), top: 0 });
    setAt(next);
  };
  const latest = p.lines.map((l) => `${l.label} ${figure(l)}`).join(", ");
  const empty = !p.lines.some((l) => l.values.some((v) => v != null));

  return (
    <figure class="chart">
      <div class="legend">
        {p.lines.map((line, i) => (
          <span class="key">
            <svg width="10" height="10" aria-hidden="true"><circle cx="5" cy="5" r="4" class={`tone-${((p.tone ?? 0) + i) % TONES}`} /></svg>
            {line.href ? <a href={line.href}>{line.label}</a> : line.label} <b>{figure(line)}</b>
          </span>
        ))}
        <span class="when">{shown !== null ? moment(p, p.timesMs[shown]!) : p.windowText}</span>
      </div>
      <div class="canvas" ref={box} tabIndex={0} role="img" onKeyDown={onKey} onBlur={() => setAt(null)}
        aria-label={t("chartLabel", { title: p.title, n: p.lines.length, w: p.windowText, latest })} />
      {empty && <p class="none">{t("noTraffic")}</p>}
      <details class="astable" onToggle={(e) => setTable((e.currentTarget as HTMLDetailsElement).open)}>
        <summary>{t("asTable")}</summary>
        {table && <div class="scroll" tabIndex={0}>
          <table>
            <caption class="sr">{p.title}</caption>
            <thead><tr><th scope="col">{t("time")}</th>{p.lines.map((l) => <th scope="col" class="num">{l.label}</th>)}</tr></thead>
            <tbody>
              {p.timesMs.map((ms, i) => <tr><th scope="row">{moment(p, ms)}</th>{p.lines.map((l) => <td class="num">{l.values[i] === undefined ? "" : p.format(l.values[i])}</td>)}</tr>).reverse()}
            </tbody>
          </table>
        </div>}
      </details>
    </figure>
  );
}
