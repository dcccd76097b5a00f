/** What the page says about a set of files. No DOM, no network. */
import {
  type AuditEntry, type Manifest, Policy, TlogProof, VerificationError, verifyAudit, verifyManifest, verifyPayout, verifyReceipt,
} from "../../typescript/src/verify/index.js";

export interface Given {
  readonly name: string;
  readonly bytes: Uint8Array;
}

/** What the reader trusts: verifier key lines or a policy, and the public key of manifests. */
export interface Trust {
  readonly logs: string;
  readonly manifestKey: string;
}

export interface Finding {
  /** `open`: a file is missing that the check needs. */
  readonly verdict: "verified" | "refused" | "open";
  readonly title: string;
  readonly facts: readonly (readonly [string, string])[];
}

type Kind = "keys" | "receipt" | "policy" | "proof" | "manifest" | "signature" | "payout" | "entry";

const text = (bytes: Uint8Array): string => new TextDecoder().decode(bytes);

function json(bytes: Uint8Array): Record<string, unknown> {
  try {
    const value: unknown = JSON.parse(text(bytes));
    return typeof value === "object" && value !== null ? (value as Record<string, unknown>) : {};
  } catch {
    return {};
  }
}

/** What a file is, by its content; a file of no known form is taken for an entry of a log. */
export function kindOf(bytes: Uint8Array): Kind {
  const start = text(bytes.subarray(0, 64));
  if (start.startsWith("c2sp.org/tlog-proof@")) return "proof";
  if (/^quorum[ \t]/m.test(text(bytes))) return "policy";
  const has = (...names: readonly string[]): boolean => names.every((name) => name in found);
  const found = json(bytes);
  if (has("audit_vkey", "ledger_vkey")) return "keys";
  if (has("format", "leaf", "vkey")) return "receipt";
  if (has("run_key", "commitment", "totals")) return "manifest";
  if (has("path", "payout", "manifest")) return "payout";
  if (has("alg", "key", "value")) return "signature";
  return "entry";
}

/** The trust that a dropped file adds, if it is one about keys. */
export function trustOf(file: Given): Partial<Trust> | undefined {
  const kind = kindOf(file.bytes);
  if (kind === "policy") return { logs: text(file.bytes) };
  if (kind !== "keys") return undefined;
  const keys = json(file.bytes);
  const line = (name: string): string => (typeof keys[name] === "string" ? keys[name] : "");
  return { logs: [line("audit_vkey"), line("ledger_vkey")].filter((vkey) => vkey !== "").join("\n"), manifestKey: line("manifest_public_key") };
}

/** Verifier key lines, one a line, or a policy file. */
function policyOf(logs: string): Policy {
  const lines = logs.split("\n").map((line) => line.trim()).filter((line) => line !== "");
  if (lines.length === 0) throw new VerificationError("no key of a log is given: without one anybody could have made the proof");
  return lines.some((line) => /^(log|witness|group|quorum)[ \t]/.test(line)) ? Policy.parse(`${lines.join("\n")}\n`) : new Policy(...lines);
}

function tried(title: string, facts: () => Finding["facts"]): Finding {
  try {
    return { verdict: "verified", title, facts: facts() };
  } catch (error) {
    if (!(error instanceof VerificationError)) throw error;
    return { verdict: "refused", title, facts: [["reason", error.message]] };
  }
}

export function examine(files: readonly Given[], trust: Trust): Finding[] {
  const of = (kind: Kind): Given[] => files.filter((file) => kindOf(file.bytes) === kind);
  const findings: Finding[] = [];
  const open = (title: string, needs: string): void => void findings.push({ verdict: "open", title, facts: [["needs", needs]] });

  for (const receipt of of("receipt")) {
    findings.push(tried(`Receipt: ${receipt.name}`, () => receiptFacts(receipt.bytes, policyOf(trust.logs))));
  }

  const entries = of("entry");
  for (const proof of of("proof")) {
    const title = `Entry of a log: ${proof.name}`;
    if (entries.length === 0) open(title, "the file with the entry that this proof is about");
    // Several entries may be there: the proof belongs to the one that it leads from.
    const results = entries.map((entry) => tried(`${title} with ${entry.name}`, () => entryFacts(entry, text(proof.bytes), policyOf(trust.logs))));
    const verified = results.filter((result) => result.verdict === "verified");
    findings.push(...(verified.length > 0 ? verified : results));
  }
  if (of("proof").length === 0) for (const entry of entries) open(`File ${entry.name}`, "a proof, if this is an entry of a log; otherwise the page does not know this kind of file");

  const [manifest] = of("manifest");
  const [signature] = of("signature");
  if (manifest === undefined && signature !== undefined) open(`Signature: ${signature.name}`, "the manifest (run.json)");
  if (manifest !== undefined && signature === undefined) open(`Manifest: ${manifest.name}`, "its signature (run.sig.json)");
  const key = (): string => {
    if (trust.manifestKey.trim() === "") throw new VerificationError("no public key of manifests is given");
    return trust.manifestKey.trim();
  };
  if (manifest !== undefined && signature !== undefined) {
    findings.push(tried(`Manifest: ${manifest.name}`, () => {
      const found = verifyManifest(manifest.bytes, signature.bytes, key());
      return [
        ["epoch", `${found.epochId} of ${found.tenant}`],
        ["paid", found.payouts === undefined ? "nothing: the epoch is quarantined" : `${found.payouts.total} minor units of ${found.asset}`],
        ["recipients", String(found.recipients)],
        ...corrected(found),
        ["commitment", found.commitment],
      ];
    }));
  }
  for (const payout of of("payout")) {
    findings.push(tried(`Payout: ${payout.name}`, () => {
      const row = verifyPayout(payout.bytes, key());
      return [
        ["account", row.account],
        ["amount", `${row.amount} minor units of ${row.manifest.asset}`],
        ["epoch", `${row.manifest.epochId} of ${row.manifest.tenant}`],
        ["total of the epoch", String(row.total)],
        ...corrected(row.manifest),
        ...paidElsewhere(row.manifest),
      ];
    }));
  }
  return findings;
}

/** A correction pays what is due above what was paid before. */
function corrected(manifest: Manifest): Finding["facts"] {
  const { adjusts, correction } = manifest;
  if (adjusts === undefined || correction === undefined) return [];
  return [
    ["corrects epoch", adjusts],
    ["paid before", String(correction.paid)],
    ["overpaid, not taken back", String(correction.overpaid)],
  ];
}

/** The ledger pays nobody of an epoch with a claim tree. */
function paidElsewhere(manifest: Manifest): Finding["facts"] {
  const { claims } = manifest;
  return claims === undefined ? [] : [["paid by", `a claim contract with the root ${claims.root}, out of ${claims.account}`]];
}

function receiptFacts(file: Uint8Array, policy: Policy): Finding["facts"] {
  const { shown, ...found } = verifyReceipt(file, policy);
  const facts: readonly (readonly [string, string | bigint | undefined])[] = [
    ["operation", found.op],
    ["from", found.from],
    ["to", found.to],
    ["amount", found.amount === undefined ? undefined : `${found.amount} minor units of ${found.asset ?? "?"}`],
    ["time", found.ts],
    ["transaction", found.txid],
    ["of the hold", found.hold],
    ["of the batch", found.batch],
    ["reverses", found.reverses],
    ["reference", shown.reference],
    ["memo", shown.memo],
    ...[...(shown.metadata ?? [])].map(([name, value]) => [`metadata: ${name}`, value] as const),
    ["for the time", shown.effectiveAt],
    ["made by", shown.principal === undefined ? undefined : `${shown.principal} of ${shown.tenant ?? "?"}`],
    ["idempotency key", shown.key],
    ["nonce", shown.nonce],
    ["entry", `number ${found.seq}`],
  ];
  return [...facts.flatMap(([name, value]) => (value === undefined ? [] : [[name, String(value)] as const])), ...logFacts(found.checkpoint)];
}

function entryFacts(entry: Given, proof: string, policy: Policy): Finding["facts"] {
  if (entry.bytes[0] !== "{".charCodeAt(0)) {
    const parsed = TlogProof.parse(proof);
    const checkpoint = parsed.check(entry.bytes, policy);
    return [["entry", `${entry.bytes.length} bytes, number ${parsed.index}`], ...logFacts(checkpoint)];
  }
  const found = verifyAudit(entry.bytes, proof, policy);
  return [
    ["operation", `${found.op}: ${found.result}`],
    ["by", `${found.actor} of ${found.tenant}`],
    ["time", new Date(found.ts).toISOString()],
    ...(found.key === undefined ? [] : ([["key", `${found.key}${found.version === undefined ? "" : `#v${found.version}`}`]] as const)),
    ...(found.inputSha256 === undefined ? [] : ([["SHA-256 of the input", found.inputSha256]] as const)),
    ...(found.outputSha256 === undefined ? [] : ([["SHA-256 of the output", found.outputSha256]] as const)),
    ["entry", `number ${found.index}`],
    ...logFacts(found.checkpoint),
  ];
}

function logFacts(checkpoint: AuditEntry["checkpoint"]): Finding["facts"] {
  return [
    ["log", `${checkpoint.origin}, checkpoint of ${checkpoint.size} entries`],
    ["cosigned by", checkpoint.cosignedBy.join(", ") || "no witness of the policy"],
  ];
}
