// The audit: every attempt to act, newest first.

import type { AuditEntry, AuditList, State } from "./api.ts";
import { Card, Tag } from "./bits.tsx";
import { stamp } from "./format.ts";
import { t, type Key } from "./i18n.ts";
import { useLive } from "./live.ts";

const RESULTS: Record<AuditEntry["result"], [State, Key]> = {
  done: ["healthy", "rDone"], denied: ["degraded", "rDenied"], failed: ["down", "rFailed"], unknown: ["down", "rUnknown"], started: ["unknown", "rStarted"],
};
const ACTIONS: Record<string, Key> = { reload: "aReload", shutdown: "aShutdown", session: "aSession" };

export function Audit({ everyMs, utc }: { everyMs: number; utc: boolean }) {
  const live = useLive<AuditList>("api/audit", everyMs);
  if (!live.data) return <p class="none" role="status">{live.error ? live.error.message : t("loading")}</p>;
  const { entries, durable, dropped } = live.data;
  return (
    <>
      {!durable && <p class="note" role="status">{t("notDurable")}</p>}
      {dropped > 0 && <p class="note" role="status">{t("auditDropped", { n: dropped })}</p>}
      <Card flush level={1} title={t("auditTitle")} hint={t("auditHint")}>
        {entries.length === 0 ? <p class="none">{t("noAudit")}</p> : (
          <div class="scroll" tabIndex={0}><table class="audit">
            <thead><tr><th scope="col">{t("result")}</th><th scope="col">{t("what")}</th><th scope="col">{t("who")}</th><th scope="col">{t("detail")}</th><th scope="col" class="num">{t("time")}</th></tr></thead>
            <tbody>{entries.map((e) => {
              const [state, words] = RESULTS[e.result];
              return (
                <tr key={e.seq} data-seq={e.seq} data-result={e.result}>
                  <td><Tag state={state} words={t(words)} /></td>
                  <th scope="row">{t(ACTIONS[e.action] ?? "aOther")}{e.node && <small>{e.node}</small>}</th>
                  <td>{e.subject}<small class="under">{[e.roles.join(", "), `${t("from_")} ${e.peer}`].filter(Boolean).join(" · ")}</small></td>
                  <td class="why">{e.detail ?? <span class="quiet">–</span>}{e.reason && <small class="under"><code>{e.reason}</code></small>}</td>
                  <td class="num"><time dateTime={e.at} title={e.requestId}>{stamp(Date.parse(e.at), utc)}</time></td>
                </tr>
              );
            })}</tbody>
          </table></div>
        )}
      </Card>
    </>
  );
}
