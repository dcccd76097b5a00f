/** ron-kms: signatures, and the audit log that records them. */
import { Refused } from "./errors.js";
import { Fields, Service } from "./service.js";
import { b64url, fromB64url, utf8 } from "./verify/encoding.js";

/** Where the audit log has the entry of an operation. */
export interface LogReceipt {
  /** The log's origin line. */
  readonly log: string;
  readonly index: number;
}

export interface Signature {
  readonly alg: string;
  readonly signature: Uint8Array;
}

/** A signature, whose audit entry was durable before the answer was sent. */
export interface Signed {
  /** The operation id it was requested with. */
  readonly opId: string;
  readonly key: string;
  readonly version: number;
  /** One signature; two of a hybrid key. */
  readonly signatures: readonly Signature[];
  readonly receipt: LogReceipt;
  /** The proof of the audit entry (c2sp.org/tlog-proof@v1), when the call waited for it. */
  readonly proof?: string;
}

export interface Sign {
  readonly context?: string;
  /** Generated when absent. */
  readonly opId?: string;
  /** Seconds to wait for a checkpoint, so that the answer has the proof of the audit entry. */
  readonly wait?: number;
}

/** Calls of ron-kms. */
export class Kms extends Service {
  /**
   * Signs a message of at most 64 KiB. Repeated under the same operation id until the outcome is known, as writes of
   * the wallet are.
   */
  async sign(kmsKey: string, message: Uint8Array, { context, opId = crypto.randomUUID(), wait = 0 }: Sign = {}): Promise<Signed> {
    const body = { key: kmsKey, message: b64url(message), op_id: opId, context };
    const headers = wait > 0 ? { Prefer: `wait=${wait}` } : {};
    const raw = new Fields((await this.write({ method: "POST", path: "/v1/kms/sign", body, key: opId, headers })).json());
    const receipt = raw.object("receipt");
    return {
      opId,
      key: raw.text("key"),
      version: raw.number("version"),
      signatures: raw.list("signatures").map((s) => ({ alg: s.text("alg"), signature: fromB64url(s.text("signature"), "a signature") })),
      receipt: { log: receipt.text("log"), index: receipt.number("index") },
      ...(raw.has("proof") ? { proof: raw.text("proof") } : {}),
    };
  }

  /** Whether the service accepts the signatures. A wrong signature is an answer, not an error. */
  async verify(kmsKey: string, message: Uint8Array, signatures: readonly Signature[], version?: number): Promise<boolean> {
    const given = signatures.map((s) => ({ alg: s.alg, signature: b64url(s.signature) }));
    return new Fields(await this.ask("/v1/kms/verify", { key: kmsKey, message: b64url(message), signatures: given, version })).flag("ok");
  }

  /** The verifier key line of the audit log, as the service says it. Pin it; do not ask for it each time. */
  async auditVkey(): Promise<string> {
    return (await this.read("/audit/v1/vkey")).text().trim();
  }

  /** The newest checkpoint, a signed note. */
  async auditCheckpoint(): Promise<string> {
    return (await this.read("/audit/v1/checkpoint")).text();
  }

  /** The proof of an audit entry (c2sp.org/tlog-proof@v1). Refused while no checkpoint covers the entry. */
  async auditProof(index: number): Promise<string> {
    return (await this.read(`/audit/v1/proof/${index}`)).text();
  }

  /** The bytes of an audit entry about the caller's own keys and calls. */
  async auditEntry(index: number): Promise<Uint8Array> {
    const page = new Fields((await this.read("/v1/kms/audit/entries", { after: index, limit: 1 })).json());
    const found = page.list("entries").find((entry) => entry.number("index") === index);
    if (found !== undefined) return utf8(found.text("leaf"));
    const detail = `the audit log has no entry ${index}, or it is not the caller's to read`;
    throw new Refused(404, "not_found", detail, false, undefined, undefined, undefined);
  }
}
