// Small parts that every view uses: icons, state badges, sparklines, cards, ages.

import type { ComponentChildren } from "preact";
import type { Num, State } from "./api.ts";
import { clock, span } from "./format.ts";
import { t } from "./i18n.ts";
import { serverNow } from "./live.ts";

/** One shape per state, so that colour is never the only sign. */
const shapes: Record<State, string> = {
  healthy: "M8 1.2a6.8 6.8 0 1 1 0 13.6A6.8 6.8 0 0 1 8 1.2Zm3.3 4.3L7 9.8 4.8 7.6l-1 1L7 11.9l5.3-5.3-1-1.1Z",
  degraded: "M8 1.1 15.4 14H.6L8 1.1Zm-.8 4.6v4.2h1.6V5.7H7.2Zm0 5.4v1.6h1.6v-1.6H7.2Z",
  down: "M5 1h6l4 4v6l-4 4H5l-4-4V5l4-4Zm.7 3.6L4.6 5.7 6.9 8l-2.3 2.3 1.1 1.1L8 9.1l2.3 2.3 1.1-1.1L9.1 8l2.3-2.3-1.1-1.1L8 6.9 5.7 4.6Z",
  unknown: "M8 1.2a6.8 6.8 0 1 1 0 13.6A6.8 6.8 0 0 1 8 1.2Zm0 1.5a5.3 5.3 0 1 0 0 10.6A5.3 5.3 0 0 0 8 2.7ZM4.8 7.2h6.4v1.6H4.8V7.2Z",
};

export function StateIcon({ state, size = 16 }: { state: State; size?: number }) {
  return (
    <svg class={`icon s-${state}`} width={size} height={size} viewBox="0 0 16 16" aria-hidden="true">
      <path d={shapes[state]} fill="currentColor" fill-rule="evenodd" />
    </svg>
  );
}

export function StateBadge({ state, big = false }: { state: State; big?: boolean }) {
  return (
    <span class={`badge b-${state}${big ? " big" : ""}`}>
      <StateIcon state={state} size={big ? 18 : 14} />
      {t(state)}
    </span>
  );
}

/** Icon, word and colour for what is not a node's state but reads like one. */
export function Tag({ state, words, title }: { state: State; words: string; title?: string }) {
  return <span class={`badge b-${state}`} {...(title ? { title } : {})}><StateIcon state={state} size={14} />{words}</span>;
}

/** A small line of the recent past. Gaps are gaps. The figure beside it says the same in words. */
export function Spark({ values, width = 112, height = 28 }: { values: Num[]; width?: number; height?: number }) {
  const top = Math.max(...values.map((v) => v ?? 0), 1e-9);
  const x = (i: number) => (values.length < 2 ? 0 : (i / (values.length - 1)) * (width - 3) + 1.5);
  const y = (v: number) => height - 2.5 - (v / top) * (height - 6);
  const runs: string[][] = [[]];
  values.forEach((v, i) => {
    if (v === null) { if (runs.at(-1)!.length) runs.push([]); return; }
    runs.at(-1)!.push(`${x(i).toFixed(1)},${y(v).toFixed(1)}`);
  });
  const lines = runs.filter((r) => r.length);
  return (
    <svg class="spark" width={width} height={height} viewBox={`0 0 ${width} ${height}`} aria-hidden="true">
      {lines.map((r) => {
        const first = r[0]!.split(",")[0], last = r.at(-1)!.split(",");
        return r.length > 1 ? (
          <g>
            <polygon points={`${first},${height} ${r.join(" ")} ${last[0]},${height}`} class="spark-area" />
            <polyline points={r.join(" ")} class="spark-line" />
          </g>
        ) : <circle cx={first} cy={last[1]} r="1.4" class="spark-dot" />;
      })}
      {lines.length > 0 && values.at(-1) !== null && (() => { const [cx, cy] = lines.at(-1)!.at(-1)!.split(","); return <circle cx={cx} cy={cy} r="2" class="spark-dot" />; })()}
    </svg>
  );
}

export function Card({ title, hint, aside, children, flush = false, level = 2 }: { title: string; hint?: string; aside?: ComponentChildren; children: ComponentChildren; flush?: boolean; level?: 1 | 2 }) {
  const H = level === 1 ? "h1" : "h2";
  return (
    <section class={`card${flush ? " flush" : ""}`} aria-label={title}>
      <header>
        <H class="cardtitle">{title}{hint && <small>{hint}</small>}</H>
        {aside}
      </header>
      {children}
    </section>
  );
}

/** How long ago a server time was, with the exact time on hover. */
export function Age({ at, utc, bare = false }: { at: string | null; utc: boolean; bare?: boolean }) {
  if (!at) return <span class="quiet">{t("never")}</span>;
  const ms = Date.parse(at);
  const age = Math.max(0, (serverNow() - ms) / 1000);
  const words = bare ? span(age) : t("ago", { t: span(age) });
  return <time dateTime={at} title={`${at} · ${clock(ms, utc)}`}>{words}</time>;
}

/** How long a node has been up: what it said, and the time since it said so. */
export function uptime(seconds: number | null, at: string | null): number | null {
  return seconds === null || !at ? null : seconds + Math.max(0, (serverNow() - Date.parse(at)) / 1000);
}

/** A figure, or the words that it is not reported. */
export function Figure({ value, of }: { value: Num; of: (v: Num) => string }) {
  return value === null ? <span class="quiet" title={t("notReported")}>–<span class="sr"> {t("notReported")}</span></span> : <>{of(value)}</>;
}
