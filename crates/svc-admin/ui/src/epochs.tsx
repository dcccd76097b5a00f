// Reward epochs: how far each one is, its totals, and what holds it up.

import type { Epoch, EpochAsset, EpochList, State } from "./api.ts";
import { Age, Card, Tag } from "./bits.tsx";
import { minor, span, whole } from "./format.ts";
import { t } from "./i18n.ts";
import { useLive } from "./live.ts";

const STATES: Record<string, State> = { settled: "healthy", held: "degraded", review: "degraded", quarantined: "down", failed: "down" };

export function Epochs({ everyMs, utc }: { everyMs: number; utc: boolean }) {
  const live = useLive<EpochList>("api/epochs", everyMs);
  if (!live.data) return <p class="none" role="status">{live.error ? live.error.message : t("loading")}</p>;
  const { epochs, sources } = live.data;
  return (
    <>
      {sources.filter((s) => s.problem).map((s) => <p class="note" role="status" key={s.node}>{t("epochsUnread", { n: s.node, why: s.problem! })}</p>)}
      <Card flush level={1} title={t("epochsTitle")} hint={t("epochsHint")}>
        {epochs.length === 0 ? <p class="none">{sources.length ? t("noEpochs") : t("noRewarder")}</p> : (
          <div class="scroll" tabIndex={0}><table class="epochs">
            <thead><tr><th scope="col">{t("state")}</th><th scope="col">{t("epoch")}</th><th scope="col">{t("progress")}</th><th scope="col" class="num">{t("pool")}</th><th scope="col" class="num">{t("paid")}</th><th scope="col" class="num">{t("residual")}</th><th scope="col" class="num">{t("recipients")}</th><th scope="col" class="num">{t("updatedAt")}</th></tr></thead>
            <tbody>{epochs.map((e) => <Row key={`${e.node} ${e.tenant} ${e.epoch}`} epoch={e} utc={utc} />)}</tbody>
          </table></div>
        )}
        {sources.some((s) => s.truncated) && <p class="more">{t("truncated")}</p>}
      </Card>
    </>
  );
}

function Row({ epoch: e, utc }: { epoch: Epoch; utc: boolean }) {
  const [done, all] = e.intentsTotal ? [e.intentsSettled, e.intentsTotal] : [e.sharesComputed, e.rowsTotal];
  const none = <span class="quiet">–<span class="sr"> {t("notReported")}</span></span>;
  // One line for each asset, in every column alike. The pool's has its name.
  const sums = (of: (asset: EpochAsset) => string) => e.assets.length === 0 ? none : e.assets.map((a) => <span class="line" key={a.asset}>{of(a)}</span>);
  return (
    <tr data-epoch={e.epoch} data-state={e.runState}>
      <td><Tag state={STATES[e.runState] ?? "unknown"} words={e.runState} />{e.dryRun && <small class="tag">{t("dryRun")}</small>}</td>
      <th scope="row">{e.epoch}<small>{e.tenant} · {e.policy}</small>{e.reason && <small class="cause" title={e.reasonCode ?? ""}>{e.reason}</small>}</th>
      <td class="keep">{all > 0 ? <><progress max={all} value={done} aria-label={t("progress")} /> <small>{whole(done)} / {whole(all)}</small></> : <span class="quiet">–</span>}{e.etaMs !== null && <small> {t("left", { t: span(e.etaMs / 1000) })}</small>}</td>
      <td class="num">{sums((a) => [minor(a.poolMinor), a.asset].filter(Boolean).join("\u00a0"))}</td><td class="num">{sums((a) => minor(a.payoutMinor))}</td><td class="num">{sums((a) => minor(a.residualMinor))}</td>
      <td class="num">{sums((a) => whole(a.recipients))}</td><td class="num"><Age at={e.updatedAt} utc={utc} /></td>
    </tr>
  );
}
