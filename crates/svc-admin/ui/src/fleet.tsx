// The fleet: one look tells whether all is well, and if not, what and why. Problems come first.

import { useEffect, useRef, useState } from "preact/hooks";
import type { Num, Overview, OverviewNode, State } from "./api.ts";
import { Age, Card, Figure, Spark, StateBadge, StateIcon, uptime } from "./bits.tsx";
import { Chart, type Line } from "./chart.tsx";
import { percent, rate, seconds, span } from "./format.ts";
import { t } from "./i18n.ts";
import { setQuery, type Route } from "./live.ts";

const STATES: State[] = ["down", "degraded", "unknown", "healthy"];
/** Rows before the rest waits for a click: a thousand nodes stay quick. */
const PAGE = 100;
/** Lines in the fleet chart; what is beyond is added up into one. */
const MOST_LINES = 8;

export interface ViewProps { route: Route; utc: boolean; theme: string }

export function Fleet({ overview, route, utc, theme }: ViewProps & { overview: Overview }) {
  if (!overview.nodes.length) return <div class="empty"><h1>{t("noNodes")}</h1><p>{t("noNodesHint")}</p></div>;
  return (
    <>
      <Verdict overview={overview} utc={utc} />
      <TrafficCard overview={overview} utc={utc} theme={theme} />
      <Table overview={overview} route={route} utc={utc} />
    </>
  );
}

function Verdict({ overview, utc }: { overview: Overview; utc: boolean }) {
  const n = overview.nodes.length;
  const bad = overview.nodes.filter((x) => x.summary.state !== "healthy");
  const words = bad.length === 0 ? (n === 1 ? t("oneHealthy") : t("allHealthy", { n })) : bad.length === 1 ? t("attentionOne", { n }) : t("attention", { k: bad.length, n });
  const slow = overview.nodes.reduce<OverviewNode | null>((a, b) => ((b.rates.p99Seconds ?? -1) > (a?.rates.p99Seconds ?? -1) ? b : a), null);
  const asked = overview.nodes.reduce((sum, x) => sum + (x.rates.requestRate ?? 0), 0);
  const failed = overview.nodes.reduce((sum, x) => sum + (x.rates.requestRate ?? 0) * (x.rates.errorRatio ?? 0), 0);
  const restarts = overview.nodes.reduce((sum, x) => sum + x.summary.restarts, 0);
  return (
    <div class={`verdict v-${overview.state}`}>
      <div class="say" aria-live="polite">
        <StateIcon state={overview.state} size={34} />
        <div>
          <h1>{words}</h1>
          {bad.slice(0, 3).map(({ summary: s }) => (
            <p><a href={`#/nodes/${encodeURIComponent(s.id)}`}>{s.displayName}</a> {t(s.state).toLowerCase()} <span class="quiet">{t("forSpan", { t: "" })}<Age at={s.since} utc={utc} bare /></span>{s.reasons[0] && <> · {s.reasons[0].text}</>}</p>
          ))}
        </div>
      </div>
      <dl class="tiles">
        <div><dt>{t("servicesHealthy")}</dt><dd>{overview.counts.healthy}<small> / {n}</small></dd></div>
        <div><dt>{t("requests")}</dt><dd><Figure value={overview.requestRate} of={rate} /><small> {t("perSecond")}</small></dd></div>
        <div class={failed > 0 ? "bad" : ""}><dt>{t("errors")}</dt><dd><Figure value={asked > 0 ? failed / asked : null} of={percent} /></dd></div>
        <div><dt>{t("slowest")}</dt><dd><Figure value={slow?.rates.p99Seconds ?? null} of={seconds} />{slow?.rates.p99Seconds != null && <small class="under">{slow.summary.displayName}</small>}</dd></div>
        <div><dt>{t("restarts")}</dt><dd>{restarts}</dd></div>
      </dl>
    </div>
  );
}

function TrafficCard({ overview, utc, theme }: { overview: Overview; utc: boolean; theme: string }) {
  const byName = [...overview.nodes].sort((a, b) => a.summary.displayName.localeCompare(b.summary.displayName));
  const first = byName[0]!.series;
  const times = first.requestRate.map((_, i) => first.endMs - (first.requestRate.length - 1 - i) * first.stepMs);
  const latest = (x: OverviewNode) => x.rates.requestRate ?? -1;
  const chosen = byName.length <= MOST_LINES ? byName : [...byName].sort((a, b) => latest(b) - latest(a)).slice(0, MOST_LINES - 1);
  const rest = byName.filter((x) => !chosen.includes(x));
  const lines: Line[] = chosen.map((x) => ({ label: x.summary.displayName, values: x.series.requestRate, href: `#/nodes/${encodeURIComponent(x.summary.id)}` }));
  if (rest.length) lines.push({ label: t("other"), values: times.map((_, i) => rest.reduce<Num>((sum, x) => { const v = x.series.requestRate[i] ?? null; return v === null ? sum : (sum ?? 0) + v; }, null)) });
  const minutes = Math.round(overview.windowSeconds / 60);
  return (
    <Card title={t("requestsPerSecond")} hint={t("trafficHint")}>
      <Chart title={t("requestsPerSecond")} timesMs={times} lines={lines} format={rate} windowText={t("lastMinutes", { n: minutes })} utc={utc} theme={theme} height={230} />
    </Card>
  );
}

const SORTS: Record<string, (a: OverviewNode, b: OverviewNode) => number> = {
  name: (a, b) => a.summary.displayName.localeCompare(b.summary.displayName),
  rate: (a, b) => (b.rates.requestRate ?? -1) - (a.rates.requestRate ?? -1),
  errors: (a, b) => (b.rates.errorRatio ?? -1) - (a.rates.errorRatio ?? -1),
  p99: (a, b) => (b.rates.p99Seconds ?? -1) - (a.rates.p99Seconds ?? -1),
  uptime: (a, b) => (a.summary.uptimeSeconds ?? Infinity) - (b.summary.uptimeSeconds ?? Infinity),
};

function Table({ overview, route, utc }: { overview: Overview; route: Route; utc: boolean }) {
  const q = route.query.get("q") ?? "", only = route.query.get("state") ?? "", sort = route.query.get("sort") ?? "";
  const words = q.toLowerCase().split(/\s+/).filter(Boolean);
  const match = ({ summary: s }: OverviewNode) => {
    const hay = `${s.id} ${s.displayName} ${s.service ?? ""} ${s.environment} ${s.version ?? ""} ${s.state} ${s.reasons.map((r) => r.text).join(" ")}`.toLowerCase();
    return words.every((w) => hay.includes(w)) && (!only || (only === "problems" ? s.state !== "healthy" : s.state === only));
  };
  const [pages, setPages] = useState(1);
  const rows = overview.nodes.filter(match);
  if (SORTS[sort]) rows.sort(SORTS[sort]);
  const problems = overview.nodes.length - overview.counts.healthy;
  const chip = (value: string, label: string, n: number, state?: State) => (
    <button type="button" class="chip" aria-pressed={only === value} onClick={() => setQuery({ state: only === value ? "" : value })}>
      {state && <StateIcon state={state} size={12} />}{label} <b>{n}</b>
    </button>
  );
  const head = (key: string, label: string, cls = "") => (
    <th scope="col" class={cls} aria-sort={sort === key ? (key === "name" || key === "uptime" ? "ascending" : "descending") : "none"}>
      <button type="button" class="sort" onClick={() => setQuery({ sort: sort === key ? "" : key })}>{label}<i aria-hidden="true">{sort === key ? " ↓" : ""}</i></button>
    </th>
  );
  return (
    <Card flush title={t("services")} aside={
      <div class="tools" role="search">
        {chip("", t("all"), overview.nodes.length)}
        {problems > 0 && chip("problems", t("problems"), problems)}
        {STATES.filter((s) => overview.counts[s] > 0 && overview.nodes.length > 1).map((s) => chip(s, t(s), overview.counts[s], s))}
        <Search value={q} />
      </div>
    }>
      <div class="scroll" tabIndex={0}>
        <table class="fleet">
          <thead><tr>
            <th scope="col">{t("state")}</th>{head("name", t("service"))}<th scope="col" class="why">{t("why")}</th>
            {head("rate", t("requests"), "num")}{head("errors", t("errors"), "num")}{head("p99", t("p99"), "num")}<th scope="col">{t("planes")}</th>{head("uptime", t("uptime"), "num")}<th scope="col" class="num">{t("seen")}</th>
          </tr></thead>
          <tbody>{rows.slice(0, pages * PAGE).map((x) => <Row key={x.summary.id} node={x} utc={utc} />)}</tbody>
        </table>
      </div>
      {rows.length > pages * PAGE && <p class="more"><button type="button" class="chip" onClick={() => setPages(pages + 1)}>{t("showMore", { n: Math.min(PAGE, rows.length - pages * PAGE), m: rows.length })}</button></p>}
      {!rows.length && <p class="none">{t("noMatch")} <button type="button" class="plain" onClick={() => setQuery({ q: "", state: "" })}>{t("clear")}</button></p>}
    </Card>
  );
}

function Row({ node, utc }: { node: OverviewNode; utc: boolean }) {
  const { summary: s, rates, planes } = node;
  const gone = s.stale || s.state === "down" || s.state === "unknown";
  return (
    <tr class={`row r-${s.state}${s.stale ? " stale" : ""}`} data-node={s.id} data-state={s.state}>
      <td><StateBadge state={s.state} /></td>
      <th scope="row">
        <a href={`#/nodes/${encodeURIComponent(s.id)}`}>{s.displayName}</a>
        <small>{[s.environment, s.version && `v${s.version}`].filter(Boolean).join(" · ")}</small>
      </th>
      <td class="why">
        {s.reasons.length ? s.reasons.slice(0, 2).map((r) => <div title={r.code}>{r.text}</div>) : <span class="quiet">–</span>}
        {s.reasons.length > 2 && <small class="quiet">+{s.reasons.length - 2}</small>}
      </td>
      <td class="num wide"><Spark values={node.series.requestRate} /><span class="fig"><Figure value={gone ? null : rates.requestRate} of={rate} /></span></td>
      <td class={`num${!gone && rates.errorRatio ? " bad" : ""}`}><Figure value={gone ? null : rates.errorRatio} of={percent} /></td>
      <td class="num wide"><Spark values={node.series.p99Seconds} width={72} /><span class="fig"><Figure value={gone ? null : rates.p99Seconds} of={seconds} /></span></td>
      <td><PlaneDots planes={planes} gone={gone} /></td>
      <td class="num">{gone ? <span class="quiet">–</span> : span(uptime(s.uptimeSeconds, s.sampledAt))}</td>
      <td class="num seen"><Age at={s.sampledAt} utc={utc} />{s.stale && <small class="tag">{t("stale")}</small>}</td>
    </tr>
  );
}

function PlaneDots({ planes, gone }: { planes: OverviewNode["planes"]; gone: boolean }) {
  if (gone || !planes.length) return <span class="quiet">–</span>;
  const ok = planes.filter((p) => p.health === "healthy" && p.ready).length;
  const bad = planes.find((p) => p.health !== "healthy" || !p.ready);
  return <span class="planes" title={planes.map((p) => `${p.name}: ${p.health}`).join("\n")}>{bad && <StateIcon state={bad.health === "healthy" ? "degraded" : bad.health} size={12} />}{ok}<small> / {planes.length}</small></span>;
}

function Search({ value }: { value: string }) {
  const input = useRef<HTMLInputElement>(null);
  useEffect(() => {
    const focus = () => input.current?.focus();
    addEventListener("ron:search", focus);
    return () => removeEventListener("ron:search", focus);
  }, []);
  return <input ref={input} type="search" class="search" value={value} placeholder={t("search")} aria-label={t("search")} onInput={(e) => setQuery({ q: e.currentTarget.value })} />;
}
