// The timeline: what happened in the fleet, newest first. An incident is one entry, and what repeats is one line.

import { useState } from "preact/hooks";
import type { Incident, State, TimelineEntry, TimelineList } from "./api.ts";
import { Card, StateIcon, Tag } from "./bits.tsx";
import { fold, items, type Folded, type Group } from "./fold.ts";
import { span, stamp } from "./format.ts";
import { t, word, type Key } from "./i18n.ts";
import { serverNow, setQuery, useLive } from "./live.ts";

const SEVERITIES: Record<TimelineEntry["severity"], [State, Key]> = { info: ["healthy", "evInfo"], warn: ["degraded", "evWarn"], error: ["down", "evError"] };
const STATES: State[] = ["healthy", "degraded", "down", "unknown"];

export function Timeline({ everyMs, utc, query }: { everyMs: number; utc: boolean; query: URLSearchParams }) {
  const [before, setBefore] = useState<number | null>(null);
  const [node, least] = [query.get("node") ?? "", query.get("least") ?? ""];
  const ask = new URLSearchParams();
  if (node) ask.set("node", node);
  if (least) ask.set("least", least);
  if (before !== null) ask.set("before", String(before));
  const live = useLive<TimelineList>(`api/timeline?${ask}`, before === null ? everyMs : 0);
  const go = (name: string, value: string) => { setBefore(null); setQuery({ [name]: value }); };
  if (!live.data) return <p class="none" role="status">{live.error ? live.error.message : t("loading")}</p>;
  const { entries, incidents, next, unread } = live.data;
  const pick = (id: string) => go("node", id);
  return (
    <>
      {unread.map((u) => <p class="note" role="status" key={u.node}>{t("eventsUnread", { n: u.node, why: u.problem })}</p>)}
      <Card flush level={1} title={t("timeline")} hint={t("timelineHint")}>
        <p class="tools pad" role="group" aria-label={t("timeline")}>
          {(["", "warn", "error"] as const).map((value) => <button type="button" class="chip" key={value} aria-pressed={least === value} onClick={() => go("least", value)}>{t(value === "" ? "all" : value === "warn" ? "evWarnUp" : "evErrorOnly")}</button>)}
          {node && <button type="button" class="chip" aria-pressed={true} onClick={() => go("node", "")}>{node} ✕<span class="sr"> {t("clear")}</span></button>}
          {before !== null && <button type="button" class="chip" onClick={() => setBefore(null)}>{t("newest")}</button>}
        </p>
        {entries.length === 0 ? <p class="none">{t("noEvents")}</p> : (
          <div class="scroll" tabIndex={0}><table class="timeline stack">
            <thead><tr><th scope="col">{t("time")}</th><th scope="col">{t("service")}</th><th scope="col">{t("what")}</th></tr></thead>
            <tbody>{items(entries, incidents).map((item) => "entry" in item
              ? <Row key={item.entry.seq} line={item} utc={utc} pick={pick} />
              : <IncidentRows key={`i${item.incident.id}`} group={item} utc={utc} pick={pick} />)}</tbody>
          </table></div>
        )}
        {next !== null && <p class="more"><button type="button" class="plain" onClick={() => setBefore(next)}>{t("older")}</button></p>}
      </Card>
    </>
  );
}

interface Shown { utc: boolean; pick: (node: string) => void }

function Time({ at, utc }: { at: string; utc: boolean }) {
  return <time dateTime={at}>{stamp(Date.parse(at), utc)}</time>;
}

/** What an incident was, its cause first; its lines on request. */
function IncidentRows({ group: { incident: i, entries }, utc, pick }: Shown & { group: Group }) {
  const [open, setOpen] = useState(false);
  const [cause, ...others] = i.nodes;
  if (!cause) return null;
  const worst = i.nodes.some((n) => n.worst === "down") ? "down" : "degraded";
  return (
    <>
      <tr class="incident" data-incident={i.id} data-node={cause.node} data-over={String(i.until !== null)}>
        <td class="keep"><Time at={i.since} utc={utc} /><small class="under">{i.until ? <>{t("until")} <Time at={i.until} utc={utc} /></> : t("untilNow")}</small></td>
        <th scope="row"><button type="button" class="plain" onClick={() => pick(cause.node)}>{cause.node}</button>{others.length > 0 && <small>{t("andOthers", { n: others.length })}</small>}</th>
        <td class="why">
          <Tag state={i.until ? "healthy" : worst} words={t(i.until ? "incidentOver" : "incidentOn", { t: lasted(i) })} /> {i.until ? `${t("was")} ${t(cause.worst).toLowerCase()}` : t(cause.worst)}{cause.detail && <>: {cause.detail}</>}
          {others.length > 0 && <small class="under">{t("affected")} {others.map((n, at) => <span key={n.node}>{at > 0 && ", "}{n.node} ({t(n.worst).toLowerCase()}{n.because && <>, {t("because")} {n.because}</>})</span>)}</small>}
          <small class="under"><button type="button" class="plain" aria-expanded={open} onClick={() => setOpen(!open)}>{t(open ? "hideLines" : "showLines", { n: i.lines })}</button></small>
        </td>
      </tr>
      {open && fold(entries).map((line) => <Row key={line.entry.seq} line={line} utc={utc} pick={pick} inside />)}
      {open && entries.length < i.lines && <tr class="inside"><td /><td colSpan={2} class="quiet">{t("linesElsewhere", { n: i.lines - entries.length })}</td></tr>}
    </>
  );
}

function lasted(incident: Incident): string {
  const end = incident.until ? Date.parse(incident.until) : serverNow();
  return span((end - Date.parse(incident.since)) / 1000);
}

function Row({ line: { entry: e, times, since }, utc, pick, inside = false }: Shown & { line: Folded; inside?: boolean }) {
  const state = e.kind === "node_state" ? STATES.find((s) => s === e.reason) : undefined;
  const [tone, words] = SEVERITIES[e.severity];
  const said = e.kind === "node_state" ? t("removed") : word(`ev_${e.kind}`) ?? e.kind;
  return (
    <tr class={inside ? "inside" : ""} data-seq={e.seq} data-kind={e.kind} data-node={e.node}>
      <td class="keep"><Time at={e.at} utc={utc} />{times > 1 && <small class="under">{t("repeated", { n: times })} <Time at={since} utc={utc} /></small>}</td>
      <th scope="row"><button type="button" class="plain" onClick={() => pick(e.node)}>{e.node}</button></th>
      <td class="why">
        {state ? <Tag state={state} words={t(state)} /> : <span class="said">{e.severity !== "info" && <StateIcon state={tone} size={14} />}<span class="sr">{t(words)}: </span>{said}</span>}
        {!state && e.kind !== "node_state" && e.reason && <> <code>{e.reason}</code></>}
        {!state && e.number !== null && <> <code>{e.number}</code></>}
        {e.detail && <small class="under">{e.detail}</small>}
        {e.because && <small class="under because">{t("because")} <a href={`#/nodes/${encodeURIComponent(e.because)}`}>{e.because}</a></small>}
      </td>
    </tr>
  );
}
