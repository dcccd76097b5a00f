// Keys and logs: the heads of the fleet's verifiable logs, and what the console itself could check about them.

import type { LogHead, LogHeads, State } from "./api.ts";
import { Age, Card, Tag } from "./bits.tsx";
import { whole } from "./format.ts";
import { t, type Key } from "./i18n.ts";
import { Keys } from "./keys.tsx";
import { useLive } from "./live.ts";

const VERDICT: Record<LogHead["verdict"], State> = { verified: "healthy", unverified: "unknown", failed: "down", unreachable: "degraded" };
const GROWTH: Record<LogHead["consistency"], [State, Key]> = {
  first: ["unknown", "firstReading"], unchanged: ["healthy", "unchangedHead"], proven: ["healthy", "proven"], notProven: ["degraded", "notProven"], broken: ["down", "broken"],
};

export function KeysAndLogs(p: { everyMs: number; utc: boolean }) {
  return <><Logs {...p} /><Keys {...p} /></>;
}

function Logs({ everyMs, utc }: { everyMs: number; utc: boolean }) {
  const live = useLive<LogHeads>("api/log-heads", everyMs);
  if (!live.data) return <p class="none" role="status">{live.error ? live.error.message : t("loading")}</p>;
  return (
    <Card flush level={1} title={t("logsTitle")} hint={t("logsHint")}>
      {live.data.logs.length === 0 ? <p class="none">{t("noLogs")}</p> : (
        <div class="scroll" tabIndex={0}><table class="logs">
          <thead><tr><th scope="col">{t("verdict")}</th><th scope="col">{t("log")}</th><th scope="col" class="num">{t("size")}</th><th scope="col">{t("consistency")}</th><th scope="col">{t("witness")}</th><th scope="col" class="num">{t("unchanged")}</th><th scope="col" class="num">{t("seen")}</th></tr></thead>
          <tbody>{live.data.logs.map((l) => <Head key={l.id} log={l} utc={utc} />)}</tbody>
        </table></div>
      )}
    </Card>
  );
}

function Head({ log: l, utc }: { log: LogHead; utc: boolean }) {
  const [state, words] = GROWTH[l.consistency];
  const signed = l.witnesses.filter((w) => w.signed).length;
  return (
    <tr data-log={l.id} data-verdict={l.verdict}>
      <td><Tag state={VERDICT[l.verdict]} words={t(l.verdict)} title={l.reason} /></td>
      <th scope="row"><a href={`#/nodes/${encodeURIComponent(l.id)}`}>{l.origin ?? l.id}</a><small>{l.reason}</small>{l.root && <code class="root" title={t("root")}>{l.root}</code>}</th>
      <td class="num">{whole(l.size)}</td>
      <td><Tag state={state} words={t(words)} />{l.comparedWith !== null && <small> {t("from", { n: whole(l.comparedWith) })}</small>}</td>
      <td>{l.witnesses.length === 0 ? <span class="quiet">{t("noWitness")}</span>
        : <Tag state={signed === l.witnesses.length ? "healthy" : "degraded"} words={signed === l.witnesses.length ? t("witnessSigned", { n: signed }) : t("witnessMissing", { n: l.witnesses.length - signed })} title={l.witnesses.map((w) => w.name).join("\n")} />}</td>
      <td class="num"><Age at={l.unchangedSince} utc={utc} bare /></td><td class="num"><Age at={l.readAt} utc={utc} /></td>
    </tr>
  );
}
