// The timeline: what happened in the fleet, newest first. What repeats is one line.

import { useState } from "preact/hooks";
import type { State, TimelineEntry, TimelineList } from "./api.ts";
import { Card, StateIcon, Tag } from "./bits.tsx";
import { fold, type Folded } from "./fold.ts";
import { stamp } from "./format.ts";
import { t, word, type Key } from "./i18n.ts";
import { setQuery, useLive } from "./live.ts";

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
  const { entries, next, unread } = live.data;
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
          <div class="scroll" tabIndex={0}><table class="timeline">
            <thead><tr><th scope="col">{t("time")}</th><th scope="col">{t("service")}</th><th scope="col">{t("what")}</th></tr></thead>
            <tbody>{fold(entries).map((line) => <Row key={line.entry.seq} line={line} utc={utc} pick={(id) => go("node", id)} />)}</tbody>
          </table></div>
        )}
        {next !== null && <p class="more"><button type="button" class="plain" onClick={() => setBefore(next)}>{t("older")}</button></p>}
      </Card>
    </>
  );
}

function Row({ line: { entry: e, times, since }, utc, pick }: { line: Folded; utc: boolean; pick: (node: string) => void }) {
  const time = (at: string) => <time dateTime={at}>{stamp(Date.parse(at), utc)}</time>;
  const state = e.kind === "node_state" ? STATES.find((s) => s === e.reason) : undefined;
  const [tone, words] = SEVERITIES[e.severity];
  return (
    <tr data-seq={e.seq} data-kind={e.kind} data-node={e.node}>
      <td class="keep">{time(e.at)}{times > 1 && <small class="under">{t("repeated", { n: times })} {time(since)}</small>}</td>
      <th scope="row"><button type="button" class="plain" onClick={() => pick(e.node)}>{e.node}</button></th>
      <td class="why">
        {state ? <Tag state={state} words={t(state)} /> : <span class="said">{e.severity !== "info" && <StateIcon state={tone} size={14} />}<span class="sr">{t(words)}: </span>{word(`ev_${e.kind}`) ?? e.kind}</span>}
        {!state && e.reason && <> <code>{e.reason}</code></>}
        {!state && e.number !== null && <> <code>{e.number}</code></>}
        {e.detail && <small class="under">{e.detail}</small>}
        {e.because && <small class="under because">{t("because")} <a href={`#/nodes/${encodeURIComponent(e.because)}`}>{e.because}</a></small>}
      </td>
    </tr>
  );
}
