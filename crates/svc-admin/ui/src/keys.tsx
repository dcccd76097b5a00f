// Keys: what the key services and issuers of the fleet hold, what is due, and what waits for people.

import type { ComponentChildren } from "preact";
import type { IssuerView, KeyOverview, KeyView, State } from "./api.ts";
import { Age, Card, Figure, Tag } from "./bits.tsx";
import { span, stamp, whole } from "./format.ts";
import { t, word } from "./i18n.ts";
import { serverNow, useLive } from "./live.ts";

const STATES: Record<string, State> = { active: "healthy", retired: "unknown", pending_destruction: "degraded", destroyed: "unknown", quarantined: "down" };

export function Keys({ everyMs, utc }: { everyMs: number; utc: boolean }) {
  const live = useLive<KeyOverview>("api/keys", everyMs);
  if (!live.data) return <p class="none" role="status">{live.error ? live.error.message : t("loading")}</p>;
  const { sources, approvals, keys, issuers } = live.data;
  const old = (node: string) => sources.some((s) => s.node === node && s.problem);
  return (
    <>
      {sources.filter((s) => s.problem).map((s) => <p class="note" role="status" key={s.node}>{t("keysUnread", { n: s.node, why: s.problem! })}{s.readAt && <small class="under">{t("lastKnown2")} <Age at={s.readAt} utc={utc} />.</small>}</p>)}
      {approvals.length > 0 && (
        <Card flush title={t("approvals")} hint={t("approvalsHint")}>
          <div class="scroll" tabIndex={0}><table class="approvals stack">
            <thead><tr><th scope="col">{t("state")}</th><th scope="col">{t("what")}</th><th scope="col">{t("key")}</th><th scope="col">{t("who")}</th><th scope="col" class="num">{t("lapses")}</th></tr></thead>
            <tbody>{approvals.map((a) => (
              <tr key={a.id} data-approval={a.id}>
                <td><Tag state="degraded" words={t("approvedOf", { n: a.approvedBy.length, m: a.needed })} title={a.approvedBy.join("\n")} /></td>
                <th scope="row"><code>{a.op}</code><small><code>{a.id}</code></small></th><td data-label={t("key")}><code class="root">{a.key}</code></td><td data-label={t("who")}>{a.requester}</td><td class="num" data-label={t("lapses")}><When at={a.expires} utc={utc} /></td>
              </tr>
            ))}</tbody>
          </table></div>
          {sources.some((s) => s.approvalsTruncated) && <p class="more">{t("approvalsTruncated", { n: whole(approvals.length) })} <code>ron kms approvals list KEY</code>, <code>GET /v1/kms/approvals</code></p>}
        </Card>
      )}
      {issuers.map((i) => <Issuer key={i.node} issuer={i} utc={utc} old={old(i.node)} />)}
      <Card flush title={t("keysTitle")} hint={t("keysHint")}>
        {keys.length === 0 ? <p class="none">{t(sources.some((s) => s.problem) ? "notReported" : "noKeys")}</p> : (
          <div class="scroll" tabIndex={0}><table class="keys-table stack">
            <thead><tr><th scope="col">{t("state")}</th><th scope="col">{t("key")}</th><th scope="col" class="num">{t("keyVersion")}</th><th scope="col">{t("nextRotation")}</th><th scope="col">{t("backend")}</th></tr></thead>
            <tbody>{keys.map((k) => <Key key={`${k.node} ${k.key}`} k={k} utc={utc} />)}</tbody>
          </table></div>
        )}
        {sources.some((s) => s.truncated) && <p class="more">{t("keysTruncated", { n: whole(keys.length) })} <code>ron kms list</code></p>}
      </Card>
    </>
  );
}

function Key({ k, utc }: { k: KeyView; utc: boolean }) {
  const [tenant, purpose, alg, id] = k.key.split("/");
  const known = STATES[k.state];
  return (
    <tr data-key={k.key} data-state={k.state}>
      <td><Tag state={known ?? "unknown"} words={word(`k_${k.state}`) ?? k.state} />{k.destroyAt && <small class="under">{t("destroyedAt")} <When at={k.destroyAt} utc={utc} /></small>}</td>
      <th scope="row">{tenant}/{purpose} <code>{alg}</code><small><code>{id}</code> · {k.node}</small>{k.description && <small>{k.description}</small>}{k.problem && <small class="cause">{k.problem}</small>}</th>
      <td class="num" data-label={t("keyVersion")}>{k.version === null ? <Missing /> : <>v{k.version}{k.versionSince && <small class="under"><Age at={k.versionSince} utc={utc} /></small>}{k.waiting !== null && <small class="under">{t("waitingVersion", { n: k.waiting })}</small>}</>}</td>
      <td data-label={t("nextRotation")}>{k.nextRotation ? <When at={k.nextRotation} utc={utc} /> : k.state === "active" ? <span class="quiet">{t("onRequest")}</span> : <span class="quiet">–</span>}</td>
      <td data-label={t("backend")}>{k.backend ?? <Missing />}</td>
    </tr>
  );
}

function Issuer({ issuer: i, utc, old }: { issuer: IssuerView; utc: boolean; old: boolean }) {
  const fact = (label: string, value: ComponentChildren) => <div><dt>{label}</dt><dd>{value ?? <Missing />}</dd></div>;
  const now = serverNow();
  const state = (k: IssuerView["keys"][number]): [State, string] => k.revoked ? ["down", t("kRevoked")]
    : k.verifiesUntil ? ["unknown", t("kVerifies")]
    : Date.parse(k.signsFrom) > now ? ["unknown", t("kNext")] : ["healthy", t("kSigns")];
  return (
    <div class={old ? "parts gone" : "parts"}>
      <Card flush title={t("issuer")} hint={i.node}>
        <dl class="facts">
          {fact(t("issuer"), <code>{i.issuer}</code>)}
          {fact(t("epochNow"), whole(i.epoch))}
          {fact(t("revocations"), whole(i.revocations))}
          {fact(t("policyVersion"), i.policy === null ? null : <Figure value={i.policy} of={whole} />)}
        </dl>
        {i.keys.length === 0 ? <p class="none">{t("notReported")}</p> : (
          <div class="scroll" tabIndex={0}><table class="issuer-keys stack">
            <thead><tr><th scope="col">{t("state")}</th><th scope="col">{t("key")}</th><th scope="col">{t("signsFrom")}</th><th scope="col">{t("verifiesUntil")}</th></tr></thead>
            <tbody>{i.keys.map((k) => { const [s, words] = state(k); return (
              <tr key={k.kid} data-kid={k.kid}><td><Tag state={s} words={words} /></td><th scope="row"><code class="root">{k.kid}</code><small>{k.alg}</small></th><td data-label={t("signsFrom")}><When at={k.signsFrom} utc={utc} /></td><td data-label={t("verifiesUntil")}>{k.verifiesUntil ? <When at={k.verifiesUntil} utc={utc} /> : <span class="quiet">–</span>}</td></tr>
            ); })}</tbody>
          </table></div>
        )}
      </Card>
    </div>
  );
}

function Missing() { return <span class="quiet">{t("notReported")}</span>; }

/** A time that may be ahead, and how far. */
function When({ at, utc }: { at: string; utc: boolean }) {
  const ms = Date.parse(at), away = (ms - serverNow()) / 1000;
  return <time dateTime={at} class="keep">{stamp(ms, utc)} <small>{away >= 0 ? t("inTime", { t: span(away) }) : t("ago", { t: span(-away) })}</small></time>;
}
