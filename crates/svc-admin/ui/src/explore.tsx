// Explore: any metric of any nodes within the window, and a few for seven days. What is chosen is in the address.

import { useMemo, useState } from "preact/hooks";
import type { MetricNames, Num, Overview, QueryAnswer, UiConfig } from "./api.ts";
import { Card } from "./bits.tsx";
import { Chart } from "./chart.tsx";
import { bytes, number, percent, rate, seconds, span, stamp } from "./format.ts";
import { t } from "./i18n.ts";
import { setQuery, useEach, useLive, type Route } from "./live.ts";
import { merge, narrow, parseLabels } from "./series.ts";

/** Nodes and lines of one chart. */
const MOST = 8;
/** Series that are kept for seven days have a point a minute. */
const MINUTE_MS = 60_000;
const LONG = ["1h", "6h", "24h", "7d"];

export function Explore({ overview, ui, route, everyMs, utc, theme }: { overview: Overview; ui: UiConfig; route: Route; everyMs: number; utc: boolean; theme: string }) {
  const ids = overview.nodes.map((n) => n.summary.id).sort();
  const asked = (route.query.get("nodes") ?? "").split(",").filter((id) => ids.includes(id));
  const nodes = (asked.length ? asked : ids.slice(0, 1)).slice(0, MOST);
  const name = route.query.get("metric") ?? "node:request_rate", labels = route.query.get("labels") ?? "";
  const kept = name.startsWith("node:");
  const windowText = route.query.get("window") ?? (kept ? "1h" : "");
  const ask = new URLSearchParams({ name });
  if (labels && !kept) ask.set("labels", labels);
  if (windowText && kept) ask.set("window", windowText);
  const names = useLive<MetricNames>(nodes[0] ? `api/nodes/${encodeURIComponent(nodes[0])}/metrics/names` : "", 30_000);
  const got = useEach<QueryAnswer>(nodes.map((id) => `api/nodes/${encodeURIComponent(id)}/metrics/query?${ask}`), kept && everyMs > 0 ? Math.max(everyMs, MINUTE_MS / 2) : everyMs);
  const whole = useMemo(() => merge(got.data, nodes, ui.intervalSeconds * 1000), [got.data, nodes.join(), ui.intervalSeconds]);
  const [from, to] = [Number(route.query.get("from")), Number(route.query.get("to"))];
  const zoomed = from > 0 && to > from;
  const shown = useMemo(() => {
    const part = zoomed ? narrow(whole, from, to) : whole;
    return { timesMs: part.timesMs, lines: part.lines.slice(0, MOST) };
  }, [whole, zoomed, from, to]);
  const lines = shown.lines, hidden = whole.lines.length - lines.length;
  const format = formatOf(name, got.data[0]?.kind ?? "value");
  const step = got.data[0]?.stepSeconds ?? null;
  const title = [name, got.data[0]?.kind === "rate" ? t("perSecondOf") : ""].filter(Boolean).join(" ");
  const zoom = (a: number, b: number) => setQuery({ from: String(Math.round(a)), to: String(Math.round(b)) });
  const inward = () => {
    const [a, b] = [shown.timesMs[0] ?? 0, shown.timesMs.at(-1) ?? 0];
    zoom(a + (b - a) / 2, b);
  };
  return (
    <>
      <Card level={1} title={t("explore")} hint={t("exploreHint")}>
        <div class="explore">
          <Nodes ids={ids} chosen={nodes} />
          <Metric names={names.data} name={name} />
          {!kept && <LabelFilter value={labels} lines={whole.lines} />}
          {kept && <p class="tools" role="group" aria-label={t("time")}>{LONG.map((w) => <button type="button" class="chip" key={w} aria-pressed={windowText === w} onClick={() => setQuery({ window: w, from: "", to: "" })}>{w}</button>)}</p>}
        </div>
      </Card>
      <Card title={title} hint={step === null ? t("sampled", { t: span(ui.windowSeconds) }) : t("everyStep", { t: span(step) })} aside={
        <div class="tools" role="group" aria-label={t("zoom")}>
          <button type="button" class="chip" disabled={shown.timesMs.length < 4} onClick={inward}>{t("zoomIn")}</button>
          {zoomed && <button type="button" class="chip" onClick={() => setQuery({ from: "", to: "" })}>{t("zoomOut")}</button>}
        </div>
      }>
        {got.error && <p class="note" role="status">{got.error.message}</p>}
        {got.loading ? <p class="none" role="status">{t("loading")}</p>
          : whole.lines.length === 0 ? <p class="none">{got.error ? t("notReported") : t(kept ? "notKeptYet" : "noSuchMetric")}</p>
          : shown.timesMs.length === 0 ? <p class="none">{t("nothingThere")}</p>
          : <Chart title={title} timesMs={shown.timesMs} lines={lines} format={format} least={leastOf(name)} windowText={zoomed ? t("zoomedTo", { a: stamp(from, utc), b: stamp(to, utc) }) : span((shown.timesMs.at(-1)! - shown.timesMs[0]!) / 1000)} utc={utc} theme={theme} height={320} onZoom={zoom} />}
        {hidden > 0 && <p class="more">{t("moreSeries", { n: hidden })}</p>}
        {got.data.some((a) => a.truncated) && <p class="more">{t("seriesTruncated")}</p>}
        {got.data.length < nodes.length && !got.loading && got.data.length > 0 && <p class="more">{t("someMissing")}</p>}
      </Card>
    </>
  );
}

/** The nodes to compare: one at least. */
function Nodes({ ids, chosen }: { ids: string[]; chosen: string[] }) {
  const set = (next: string[]) => setQuery({ nodes: next.join(",") });
  const rest = ids.filter((id) => !chosen.includes(id));
  return (
    <div class="tools" role="group" aria-label={t("services")}>
      {chosen.map((id) => <button type="button" class="chip" key={id} aria-pressed={true} disabled={chosen.length === 1} onClick={() => set(chosen.filter((c) => c !== id))}>{id}{chosen.length > 1 && <> ✕<span class="sr"> {t("clear")}</span></>}</button>)}
      {rest.length > 0 && chosen.length < MOST && (
        <select aria-label={t("compareWith")} value="" onChange={(e) => { const id = e.currentTarget.value; e.currentTarget.value = ""; if (id) set([...chosen, id]); }}>
          <option value="">{t("compareWith")}</option>
          {rest.map((id) => <option key={id} value={id}>{id}</option>)}
        </select>
      )}
    </div>
  );
}

function Metric({ names, name }: { names: MetricNames | null; name: string }) {
  const [typed, setTyped] = useState("");
  const known = names?.metrics ?? [];
  const words = typed.toLowerCase().split(/\s+/).filter(Boolean);
  const fits = known.filter((m) => m.name === name || words.every((w) => m.name.toLowerCase().includes(w)));
  const option = (m: MetricNames["metrics"][number]) => <option key={m.name} value={m.name} selected={m.name === name}>{m.name}{m.series > 1 ? ` (${m.series})` : ""}</option>;
  const pick = (metric: string) => setQuery({ metric, labels: "", window: "", from: "", to: "" });
  return (
    <div class="tools">
      <input type="search" class="search" value={typed} placeholder={t("findMetric")} aria-label={t("findMetric")} onInput={(e) => setTyped(e.currentTarget.value)} />
      <select aria-label={t("metric")} value={name} onChange={(e) => pick(e.currentTarget.value)}>
        {!known.some((m) => m.name === name) && <option value={name} selected>{name}</option>}
        <optgroup label={t("keptLong")}>{fits.filter((m) => m.kept).map(option)}</optgroup>
        <optgroup label={t("keptShort")}>{fits.filter((m) => !m.kept).map(option)}</optgroup>
      </select>
    </div>
  );
}

/** The labels that must match, and those by which the series that are shown differ. */
function LabelFilter({ value, lines }: { value: string; lines: { labels: string }[] }) {
  const chosen = parseLabels(value);
  const seen = new Map<string, Set<string>>();
  for (const line of lines) for (const [name, quoted] of parseLabels(line.labels)) {
    if (!seen.has(name)) seen.set(name, new Set());
    seen.get(name)!.add(quoted);
  }
  const set = (pairs: [string, string][]) => setQuery({ labels: pairs.map(([name, quoted]) => `${name}=${quoted}`).join(",") });
  const open = [...seen].filter(([name, values]) => values.size > 1 && !chosen.some(([known]) => known === name));
  if (chosen.length === 0 && open.length === 0) return null;
  return (
    <div class="tools" role="group" aria-label={t("labels")}>
      {chosen.map(([name, quoted]) => <button type="button" class="chip" key={name} aria-pressed={true} onClick={() => set(chosen.filter(([known]) => known !== name))}>{name}={quoted} ✕<span class="sr"> {t("clear")}</span></button>)}
      {open.map(([name, values]) => (
        <select key={name} aria-label={name} value="" onChange={(e) => { const quoted = e.currentTarget.value; if (quoted) set([...chosen, [name, quoted]]); }}>
          <option value="">{name}</option>
          {[...values].sort().map((quoted) => <option key={quoted} value={quoted}>{quoted.slice(1, -1)}</option>)}
        </select>
      ))}
    </div>
  );
}

function formatOf(name: string, kind: "value" | "rate"): (v: Num) => string {
  if (name.endsWith("_ratio")) return percent;
  if (name.endsWith("_bytes")) return bytes;
  if (kind === "rate") return rate;
  return name.endsWith("_seconds") && !name.includes("time_seconds") ? seconds : number;
}

/** The least height of the axis, by unit. */
function leastOf(name: string): number {
  return name.endsWith("_ratio") ? 0.01 : name.endsWith("_seconds") ? 0.001 : name === "node:cpu_cores" ? 0.1 : 1;
}
