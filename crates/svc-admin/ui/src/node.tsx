// One node in full: what it says about itself, how it does, and how the console fares when it asks.

import type { FacetList, LogNode, Me, MetricsSummary, NodeStatus, Queue, UiConfig } from "./api.ts";
import { HttpError, send } from "./api.ts";
import { Actions } from "./act.tsx";
import { Age, Card, Figure, StateBadge, StateIcon, uptime } from "./bits.tsx";
import { Chart } from "./chart.tsx";
import { percent, rate, seconds, span, whole } from "./format.ts";
import { t } from "./i18n.ts";
import { useLive } from "./live.ts";
import { Topology } from "./topology.tsx";

export interface NodeProps { id: string; everyMs: number; utc: boolean; theme: string; ui: UiConfig | null; me: Me | null }

export function NodeView({ id, everyMs, utc, theme, ui, me }: NodeProps) {
  const base = `api/nodes/${encodeURIComponent(id)}`;
  const status = useLive<NodeStatus>(`${base}/status`, everyMs);
  const metrics = useLive<MetricsSummary>(`${base}/metrics/summary`, everyMs);
  const facets = useLive<FacetList>(`${base}/metrics/facets`, everyMs);
  const back = <a class="back" href="#/">‹ {t("back")}</a>;
  if (status.error instanceof HttpError && status.error.status === 404) {
    return <>{back}<div class="empty"><h1>{t("notFound")}</h1><p>{t("notFoundHint")}</p></div></>;
  }
  const data = status.data;
  if (!data) return <>{back}<p class="none" role="status">{status.error ? status.error.message : t("loading")}</p></>;
  const s = { ...data.summary, consecutive: data.polling.consecutiveFailures };
  // Down while it answers (draining, a critical plane) is current; down because it does not answer makes all below the past.
  const gone = s.stale || s.state === "unknown" || (s.state === "down" && s.consecutive > 0);
  const askNow = () => void send("POST", `${base}/refresh`).catch(() => null).then(() => setTimeout(status.refresh, 600));
  return (
    <>
      {back}
      <Head status={data} utc={utc} askNow={askNow} />
      <Actions id={id} ui={ui} me={me} done={status.refresh} />
      {metrics.data && <Charts m={metrics.data} utc={utc} theme={theme} />}
      {gone && <p class="note past" role="status"><StateIcon state="unknown" /> <span>{s.sampledAt ? <>{t("lastKnown")} <Age at={s.sampledAt} utc={utc} />.</> : t("neverAnswered")}</span></p>}
      <div class={gone ? "parts gone" : "parts"}>
        {data.log && <SharedLog log={data.log} utc={utc} />}
        <div class="pair">
          <Planes status={data} />
          <Queues queues={data.queues} />
        </div>
        <Topology queues={data.queues} />
        {facets.data && facets.data.facets.length > 0 && <Routes facets={facets.data} gone={gone} />}
        <Threads status={data} />
      </div>
    </>
  );
}

function Head({ status, utc, askNow }: { status: NodeStatus; utc: boolean; askNow: () => void }) {
  const s = status.summary;
  const fact = (label: string, value: preact.ComponentChildren) => <div><dt>{label}</dt><dd>{value ?? <span class="quiet">{t("notReported")}</span>}</dd></div>;
  const p = status.polling;
  return (
    <div class={`verdict node v-${s.state}${s.stale ? " stale" : ""}`}>
      <div class="say">
        <div>
          <h1>{s.displayName} <StateBadge state={s.state} big /></h1>
          <p class="quiet">{t("forSpan", { t: "" })}<Age at={s.since} utc={utc} bare /> · {t("seen").toLowerCase()}: <Age at={s.sampledAt} utc={utc} /> <button type="button" class="plain" onClick={askNow}>{t("askNow")}</button></p>
          {s.reasons.length > 0 && <ul class="reasons">{s.reasons.map((r) => <li>{r.text} <code>{r.code}</code></li>)}</ul>}
        </div>
      </div>
      <dl class="facts">
        {fact(t("version"), s.version)}
        {fact(t("uptime"), s.uptimeSeconds === null ? null : span(uptime(s.uptimeSeconds, s.sampledAt)))}
        {fact(t("environment"), s.environment)}
        {fact(t("instance"), s.instance)}
        {fact(t("amnesia"), s.amnesia === null ? null : s.amnesia ? t("amnesiaYes") : t("amnesiaNo"))}
        {fact(t("healthPort"), <code>{status.healthUrl}</code>)}
        {status.apiUrl && fact(t("apiPort"), <code>{status.apiUrl}</code>)}
        {fact(t("polling"), <>{t("pollsFailed", { p: whole(p.polls), f: whole(p.failures) })} · {t("series", { n: whole(p.series) })}{p.lastPollSeconds !== null && <> · {t("pollTook", { t: seconds(p.lastPollSeconds) })}</>}</>)}
      </dl>
    </div>
  );
}

/** The same figure for seven days. */
function Longer({ id, metric }: { id: string; metric: string }) {
  return <a class="longer" href={`#/explore?nodes=${encodeURIComponent(id)}&metric=${encodeURIComponent(metric)}&window=24h`}>{t("longer")}</a>;
}

function Charts({ m, utc, theme }: { m: MetricsSummary; utc: boolean; theme: string }) {
  const win = t("lastMinutes", { n: Math.round(m.windowSeconds / 60) });
  const common = { timesMs: m.timesMs, windowText: win, utc, theme, height: 190 };
  return (
    <div class="charts">
      <Card title={t("requestsPerSecond")} aside={<Longer id={m.id} metric="node:request_rate" />}>
        <Chart {...common} title={t("requestsPerSecond")} lines={[{ label: t("requests"), values: m.requestRate }]} format={rate} />
      </Card>
      <Card title={t("latency")} aside={<Longer id={m.id} metric="node:latency_p99_seconds" />}>
        <Chart {...common} title={t("latency")} tone={1} least={0.001} lines={[{ label: "p50", values: m.p50Seconds }, { label: "p95", values: m.p95Seconds }, { label: "p99", values: m.p99Seconds }]} format={seconds} />
      </Card>
      <Card title={t("errors")} hint={t("errorsHint")} aside={<Longer id={m.id} metric="node:error_ratio" />}>
        <Chart {...common} title={t("errors")} tone={5} least={0.01} lines={[{ label: t("errorShare"), values: m.errorRatio }]} format={percent} />
      </Card>
    </div>
  );
}

function Planes({ status }: { status: NodeStatus }) {
  return (
    <Card flush title={t("planes")} hint={t("planesHint")}>
      {status.planes.length === 0 ? <p class="none">{t("notReported")}</p> : (
        <div class="scroll" tabIndex={0}><table>
          <thead><tr><th scope="col">{t("state")}</th><th scope="col">{t("plane")}</th><th scope="col" class="num">{t("restarts")}</th><th scope="col">{t("reason")}</th></tr></thead>
          <tbody>{status.planes.map((p) => (
            <tr><td><StateBadge state={p.health} /></td><th scope="row"><code>{p.name}</code></th><td class="num">{p.restartCount}</td><td>{p.reason ?? <span class="quiet">–</span>}</td></tr>
          ))}</tbody>
        </table></div>
      )}
    </Card>
  );
}

function SharedLog({ log, utc }: { log: LogNode; utc: boolean }) {
  const fact = (label: string, value: preact.ComponentChildren) => <div><dt>{label}</dt><dd>{value ?? <span class="quiet">{t("notReported")}</span>}</dd></div>;
  const { engine } = log;
  // A log without epochs is one that all of its nodes write.
  const role = log.epoch > 0 ? (log.active ? "activeNode" : "standbyNode") : log.active ? "sharedWriter" : "sharedWriterAway";
  return (
    <Card flush title={t("sharedLog")} hint={t("sharedLogHint")}>
      <dl class="facts">
        {fact(t("role"), t(role))}
        {log.activeSinceMs !== null && fact(t("activeSince"), <Age at={new Date(log.activeSinceMs).toISOString()} utc={utc} />)}
        {log.epoch > 0 && !log.active && fact(t("activeNode"), log.holder && <code>{log.holder}</code>)}
        {log.epoch > 0 && fact(t("logEpoch"), whole(log.epoch))}
        {fact(t("entries"), <>{whole(log.entries)}{log.behind > 0 && <> · {t("entriesBehind", { n: whole(log.behind) })}</>}</>)}
        {engine && fact(t("database"), <><code>{engine.server}</code> · {t("partitionsAhead", { n: whole(engine.partitionsAhead) })} · {t("oldestTransaction", { n: whole(engine.oldestTransaction) })}</>)}
      </dl>
      {engine && (engine.standbys.length === 0 ? <p class="none">{t("noStandby")}</p> : (
        <div class="scroll" tabIndex={0}><table>
          <thead><tr><th scope="col">{t("databaseStandby")}</th><th scope="col">{t("replication")}</th><th scope="col" class="num">{t("behindBytes")}</th></tr></thead>
          <tbody>{engine.standbys.map((standby) => (
            <tr><th scope="row"><code>{standby.name}</code></th><td>{standby.synchronous ? t("synchronous") : t("asynchronous")}</td><td class="num"><Figure value={standby.behindBytes} of={whole} /></td></tr>
          ))}</tbody>
        </table></div>
      ))}
    </Card>
  );
}

function Queues({ queues }: { queues: Queue[] }) {
  return (
    <Card flush title={t("queues")} hint={t("queuesHint")}>
      {queues.length === 0 ? <p class="none">{t("notReported")}</p> : (
        <div class="scroll" tabIndex={0}><table>
          <thead><tr><th scope="col">{t("queue")}</th><th scope="col">{t("fill")}</th><th scope="col">{t("whenFull")}</th><th scope="col" class="num">{t("dropped")}</th><th scope="col" class="num">{t("rejected")}</th></tr></thead>
          <tbody>{queues.map((q) => (
            <tr>
              <th scope="row"><code>{q.name}</code>{q.from && q.to && <small>{q.from} → {q.to}</small>}</th>
              <td class="keep">{q.capacity ? <meter min={0} max={q.capacity} high={q.capacity * 0.8} value={q.depth ?? 0}>{q.depth}</meter> : null} <Figure value={q.depth} of={whole} />{q.capacity && <small> / {whole(q.capacity)}</small>}</td>
              <td class="keep">{q.overflow?.replaceAll("_", " ") ?? <span class="quiet">–</span>}</td>
              <td class="num"><Figure value={q.dropped} of={whole} /></td>
              <td class="num"><Figure value={q.rejected} of={whole} /></td>
            </tr>
          ))}</tbody>
        </table></div>
      )}
    </Card>
  );
}

function Routes({ facets, gone }: { facets: FacetList; gone: boolean }) {
  const called = facets.facets.filter((f) => f.requestsTotal > 0);
  const quiet = facets.facets.length - called.length;
  return (
    <Card flush title={t("routes")} hint={gone ? t("routesPast") : t("routesHint")}>
      <div class="scroll" tabIndex={0}><table>
        <thead><tr><th scope="col">{t("route")}</th><th scope="col" class="num">{t("perSecond")}</th><th scope="col" class="num">{t("errors")}</th><th scope="col" class="num">{t("refused")}</th><th scope="col" class="num">p50</th><th scope="col" class="num">p95</th><th scope="col" class="num">p99</th><th scope="col" class="num">{t("total")}</th></tr></thead>
        <tbody>{called.map((f) => (
          <tr>
            <th scope="row"><code>{f.facet}</code></th><td class="num"><Figure value={f.requestRate} of={rate} /></td><td class="num"><Figure value={f.errorRatio} of={percent} /></td><td class="num"><Figure value={f.refusedRatio} of={percent} /></td>
            <td class="num"><Figure value={f.p50Seconds} of={seconds} /></td><td class="num"><Figure value={f.p95Seconds} of={seconds} /></td><td class="num"><Figure value={f.p99Seconds} of={seconds} /></td><td class="num">{whole(f.requestsTotal)}</td>
          </tr>
        ))}</tbody>
      </table></div>
      {quiet > 0 && !gone && <p class="more">{t("quietRoutes", { n: quiet })}</p>}
    </Card>
  );
}

function Threads({ status }: { status: NodeStatus }) {
  if (!status.threads.length) return null;
  return (
    <Card flush title={t("threads")}>
      <div class="scroll" tabIndex={0}><table>
        <thead><tr><th scope="col">{t("thread")}</th><th scope="col" class="num">{t("live")}</th><th scope="col" class="num">{t("restarts")}</th><th scope="col">{t("job")}</th></tr></thead>
        <tbody>{status.threads.map((x) => (
          <tr><th scope="row"><code>{x.name}</code></th><td class="num"><Figure value={x.live} of={whole} /><small> / {whole(x.total)}</small></td><td class="num"><Figure value={x.restarts} of={whole} /></td><td>{x.job}</td></tr>
        ))}</tbody>
      </table></div>
    </Card>
  );
}
