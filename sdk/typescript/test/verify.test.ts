// Offline verification: what a fleet proved verifies, and nothing that was altered does.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { ed25519 } from "@noble/curves/ed25519.js";
import { sha256 } from "@noble/hashes/sha2.js";
import { examine, type Given } from "../../verify-page/src/examine.js";
import { bigEndian, canonical, concat, fromB64, type Json, toB64, utf8 } from "../src/verify/encoding.js";
import { Policy, TlogProof, VerificationError, recordsSignature, verifyAudit, verifyManifest, verifyPayout, verifyReceipt } from "../src/verify/index.js";
import { checkInclusion, leafHash } from "../src/verify/tlog.js";

// Files of a fleet, as `tests/e2e/sdk.rs` collects them.
const VECTORS = process.env["RON_SDK_VECTORS"] ?? fileURLToPath(new URL("../../../../vectors", import.meta.url));
const vector = (name: string): Uint8Array => new Uint8Array(readFileSync(join(VECTORS, name)));
const text = (raw: Uint8Array): string => new TextDecoder().decode(raw);
const KEYS = JSON.parse(text(vector("verifiers.json"))) as Record<"audit_vkey" | "ledger_vkey" | "manifest_public_key" | "policy_public_key", string>;
const POLICY = Policy.parse(text(vector("policy")));

function refuse(call: () => unknown, words = ""): void {
  assert.throws(call, (error) => error instanceof VerificationError && error.message.includes(words));
}

/**
 * Refuses a text with another byte at each place; the Python SDK's tests try three bits of each byte. `hints` are
 * members of the file that nothing authenticates.
 */
function refuseAltered(name: string, check: (raw: Uint8Array) => unknown, hints: readonly string[] = []): void {
  const raw = vector(name);
  check(raw);
  for (const [at, byte] of raw.entries()) {
    const changed = raw.slice();
    changed[at] = byte ^ ([0x01, 0x20, 0x80][at % 3] ?? 0);
    try {
      check(changed);
    } catch (error) {
      assert.ok(error instanceof VerificationError, String(error));
      continue;
    }
    assert.ok(hints.length > 0, `${name} is accepted as ${text(changed)}`);
    // Without the hints, at any depth.
    const read = (bytes: Uint8Array): unknown => JSON.parse(text(bytes), (member, value: unknown) => (hints.includes(member) ? undefined : value));
    assert.deepEqual(read(changed), read(raw));
  }
}

test("an audit entry is verified with its cosigned checkpoint", () => {
  const found = verifyAudit(vector("entry.json"), text(vector("entry.tlog-proof")), POLICY);
  assert.deepEqual([found.op, found.result, found.checkpoint.cosignedBy], ["sign", "ok", ["w"]]);
  const signed = JSON.parse(text(vector("signed.json"))) as { message: string; signature: string };
  const signature = fromB64(signed.signature, "the signature");
  assert.ok(recordsSignature(found, utf8(signed.message), [signature]));
  assert.ok(!recordsSignature(found, utf8(`${signed.message}0`), [signature]));
});

test("every altered byte of an audit entry or its proof is refused", () => {
  const [entry, proof] = [vector("entry.json"), text(vector("entry.tlog-proof"))];
  refuseAltered("entry.json", (raw) => verifyAudit(raw, proof, POLICY));
  refuseAltered("entry.tlog-proof", (raw) => verifyAudit(entry, text(raw), POLICY));
});

test("a policy fails closed", () => {
  const [entry, proof] = [vector("entry.json"), text(vector("entry.tlog-proof"))];
  verifyAudit(entry, proof, new Policy(KEYS.audit_vkey));
  refuse(() => verifyAudit(entry, proof, new Policy()), "no known key");
  refuse(() => verifyAudit(entry, proof, new Policy(KEYS.ledger_vkey)), "no known key");
  const other = signer("other.example/witness", 4);
  const both = text(vector("policy")).replace("quorum w", `witness o ${other.vkey}\ngroup g all w o\nquorum g`);
  refuse(() => verifyAudit(entry, proof, Policy.parse(both)), "too few witnesses");
  verifyAudit(entry, proof, Policy.parse(both.replace("group g all", "group g any")));
  const alone = proof.split("\n").filter((line) => !line.includes("witness")).join("\n");
  verifyAudit(entry, alone, new Policy(KEYS.audit_vkey));
  refuse(() => verifyAudit(entry, alone, POLICY), "too few witnesses");
});

interface Signer {
  readonly vkey: string;
  readonly line: (note: string) => string;
  readonly cosign: (note: string, time?: bigint) => string;
  readonly proof: (entry: Uint8Array, more?: string) => string;
}

/** A log or witness of the tests. */
function signer(name: string, kind: number): Signer {
  const secret = sha256(utf8(name));
  const raw = concat(Uint8Array.of(kind), ed25519.getPublicKey(secret));
  const id = sha256(concat(utf8(`${name}\n`), raw)).slice(0, 4);
  const hex = [...id].map((byte) => byte.toString(16).padStart(2, "0")).join("");
  const row = (...parts: Uint8Array[]): string => `\u2014 ${name} ${toB64(concat(id, ...parts))}\n`;
  const sign = (message: string): Uint8Array => ed25519.sign(utf8(message), secret);
  const line = (note: string): string => row(sign(note));
  return {
    vkey: `${name}+${hex}+${toB64(raw)}`,
    line,
    cosign: (note, time = 1_700_000_000n) => row(bigEndian(time, 8), sign(`cosignature/v1\ntime ${time}\n${note}`)),
    proof: (entry, more = "") => {
      const note = `${name}\n1\n${toB64(leafHash(entry))}\n`;
      return `c2sp.org/tlog-proof@v1\nindex 0\n\n${note}\n${line(note)}${more}`;
    },
  };
}

const noteOf = (proof: string): string => `${proof.split("\n\n")[1] ?? ""}\n`;
const E = utf8("e");

test("signatures of known keys must hold, and must be of this log", () => {
  const [log, other] = [signer("log.example", 1), signer("other.example", 1)];
  const proof = log.proof(E, other.line("another text\n"));
  TlogProof.parse(proof).check(E, new Policy(log.vkey));
  refuse(() => TlogProof.parse(proof).check(E, new Policy(log.vkey, other.vkey)), "is wrong");
  const note = noteOf(log.proof(E));
  const forged = log.proof(E).replace(log.line(note), other.line(note));
  refuse(() => TlogProof.parse(forged).check(E, new Policy(log.vkey, other.vkey)), "no known key");
});

test("cosignatures without a time do not count", () => {
  const [log, witness] = [signer("log.example", 1), signer("w.example", 4)];
  const policy = Policy.parse(`log ${log.vkey}\nwitness w ${witness.vkey}\nquorum w\n`);
  const note = noteOf(log.proof(E));
  TlogProof.parse(log.proof(E, witness.cosign(note))).check(E, policy);
  for (const line of [witness.cosign(note, 0n), witness.cosign(note, 2n ** 63n), witness.line(note), witness.cosign("x\n")]) {
    refuse(() => TlogProof.parse(log.proof(E, line)).check(E, policy), "too few witnesses");
  }
});

test("odd policies, keys and proofs are refused", () => {
  const [log, a, b] = [signer("log.example", 1), signer("a.example", 4), signer("b.example", 4)];
  const start = `log ${log.vkey}\nwitness a ${a.vkey}\nwitness b ${b.vkey}\n`;
  Policy.parse(`# comment\n\n${start}group g 2 a b\nquorum g\n`);
  for (const wrong of [
    "", start, `${start}quorum c\n`, `${start}group g 3 a b\nquorum g\n`, `${start}group g 0 a b\nquorum g\n`,
    `${start}group g all\nquorum g\n`, `${start}group g any a a\nquorum g\n`, `${start}quorum a\nquorum none\n`,
    `${start}group g any h\ngroup h any a\nquorum g\n`, `${start}witness c ${a.vkey}\nquorum a\n`,
    `${start}witness a ${signer("c", 4).vkey}\nquorum a\n`, `${start}log ${log.vkey}\nquorum a\n`,
    `log ${a.vkey}\nquorum none\n`, `witness l ${log.vkey}\nquorum none\n`, "rule x\nquorum none\n",
  ]) refuse(() => Policy.parse(wrong));
  const [name = "", id = "", key = ""] = log.vkey.split("+");
  for (const vkey of ["", name, `${name}+${id}`, `+${id}+${key}`, `${name}+00000000+${key}`, `x${log.vkey}`, `${name}+${id}+${key.slice(0, -1)}`, signer("log.example", 6).vkey]) {
    refuse(() => new Policy(vkey));
  }
  const good = log.proof(E);
  for (const wrong of [
    good.replace("@v1", "@v2"), good.replace("index 0", "index 00"), good.replace("index 0\n", ""), good.replace("index 0", "index -1"),
    good.replace("index 0", "extra !\nindex 0"), good.replace("index 0", `index ${"9".repeat(5000)}`), good.replace("\n\n", "\nAAAA\n\n"),
    good.trimEnd(), good.replace("\u2014", "-"), "", good.replace("\n1\n", "\n2\n"),
  ]) refuse(() => TlogProof.parse(wrong).check(E, new Policy(log.vkey)));
  for (const entry of ['{"v":1}', '{"a":1, "v":1}', "\ufffe", "[]", '{"v":1.5}', '{"v":1,"v":1}', '{"v":"\\ud800"}']) {
    refuse(() => verifyAudit(utf8(entry), log.proof(utf8(entry)), new Policy(log.vkey)));
  }
});

test("an audit entry has a request id since format 2", () => {
  const log = signer("log.example", 1);
  const check = (changed: Record<string, unknown>) => {
    const { request_id: _, ...before } = JSON.parse(text(vector("entry.json"))) as Record<string, unknown>;
    const members = { ...before, ...changed };
    const entry = utf8(JSON.stringify(Object.fromEntries(Object.entries(members).sort(([a], [b]) => (a < b ? -1 : 1)))));
    return verifyAudit(entry, log.proof(entry), new Policy(log.vkey)).requestId;
  };
  assert.equal(check({ v: 1 }), undefined);
  assert.equal(check({ v: 2 }), undefined);
  assert.equal(check({ v: 2, request_id: "find-me-42" }), "find-me-42");
  for (const changed of [{ v: 1, request_id: "a" }, { v: 2, request_id: 7 }, { v: 0 }, { v: 3 }]) {
    refuse(() => check(changed));
  }
});

test("a payee proves a payment and learns nothing private of the payer", () => {
  const [mine, theirs] = [verifyReceipt(vector("payer.receipt.json"), POLICY), verifyReceipt(vector("payee.receipt.json"), POLICY)];
  const { shown, checkpoint, ...receipt } = theirs;
  assert.deepEqual({ ...mine, shown, checkpoint }, theirs);
  assert.deepEqual([receipt.op, receipt.from, receipt.to, receipt.asset, receipt.amount], ["transfer", "acct:py-payer", "acct:py-payee", "ron", 250n]);
  assert.deepEqual([shown, checkpoint.cosignedBy], [{ reference: "order-17" }, ["w"]]);
  const { key, nonce: _, ...more } = mine.shown;
  assert.ok(key !== undefined && !text(vector("payee.receipt.json")).includes(key));
  assert.deepEqual(more, {
    tenant: "default", principal: "operator", effectiveAt: "2026-11-25T00:00:00.000Z", memo: "two books",
    metadata: new Map([["basket", "b-1"], ["channel", "web"]]), reference: "order-17",
  });
});

test("every altered byte of a receipt file is refused", () => {
  for (const name of ["payer.receipt.json", "payee.receipt.json"]) refuseAltered(name, (raw) => verifyReceipt(raw, POLICY));
});

test("receipt files under other policies, of other forms, and with other members are refused", () => {
  const file = vector("payee.receipt.json");
  verifyReceipt(file, new Policy(KEYS.ledger_vkey));
  refuse(() => verifyReceipt(file, new Policy()), "no known key");
  refuse(() => verifyReceipt(file, new Policy(KEYS.audit_vkey)), "no known key");
  const both = new Policy(KEYS.ledger_vkey, KEYS.audit_vkey);
  const asFile = (value: object): Uint8Array => utf8(canonical(value as Json));
  const of = (raw: Uint8Array): { checkpoint: string; path: string[]; private: Record<string, { salt: string }> } => JSON.parse(text(raw)) as never;
  refuse(() => verifyReceipt(asFile({ ...of(file), vkey: KEYS.audit_vkey }), both), "not trusted");
  const alone = of(file).checkpoint.split("\n").filter((line) => !line.includes("witness")).join("\n");
  refuse(() => verifyReceipt(asFile({ ...of(file), checkpoint: alone }), POLICY), "too few witnesses");
  const value = of(vector("payer.receipt.json"));
  verifyReceipt(utf8(JSON.stringify(value, undefined, 4)), POLICY);
  const { memo, ...without } = value.private;
  for (const wrong of [
    { ...value, more: 1 }, { ...value, private: { ...value.private, more: 1 } }, { ...value, private: {} }, { ...value, private: without },
    { ...value, private: { ...value.private, salt: memo?.salt } }, { ...value, private: { ...value.private, memo: { ...memo, hash: "AAAA" } } },
    { ...value, private: { ...value.private, memo: value.private["reference"], reference: memo } },
    { ...value, path: value.path.slice(1) }, { ...value, path: [1] }, { ...value, format: "ron-receipt/v2" },
  ]) refuse(() => verifyReceipt(asFile(wrong), POLICY));
  refuse(() => verifyReceipt(utf8(JSON.stringify(value).replace('"format"', '"format":"ron-receipt/v1","format"')), POLICY), "twice");
  const { private: _, ...bare } = value;
  assert.deepEqual(verifyReceipt(asFile(bare), POLICY).shown, {});
});

test("leaves of another form are refused even with a proof", () => {
  const log = signer("log.example", 1);
  const check = (leaf: Uint8Array): bigint | undefined => {
    const note = `log.example\n1\n${toB64(leafHash(leaf))}\n`;
    const file = { format: "ron-receipt/v1", leaf: toB64(leaf), path: [], checkpoint: `${note}\n${log.line(note)}`, vkey: log.vkey };
    return verifyReceipt(utf8(canonical(file)), new Policy(log.vkey)).amount;
  };
  const rest = (n: number, byte = 0): number[] => Array.from({ length: n }, () => byte);
  const fields = { version: [1], kind: [2], seq: [0], ts: [1], link: [0], outcome: [0], present: [15], from: [1, 97], to: [1, 98], asset: [1, 99], amount: [1, 7], detail: [] as number[], hash: rest(32) };
  const leaf = (changes: Partial<typeof fields> = {}): Uint8Array => Uint8Array.from(Object.values({ ...fields, ...changes }).flat());
  assert.equal(check(leaf()), 7n);
  assert.equal(check(leaf({ amount: [0], detail: [1, 2], link: [1, 0, 2] })), 0n);
  assert.equal(check(leaf({ amount: [16, ...rest(16, 255)] })), 2n ** 128n - 1n);
  for (const wrong of [
    leaf({ version: [2] }), leaf({ kind: [0] }), leaf({ kind: [127] }), leaf({ seq: [1] }), leaf({ seq: [128, 0] }),
    leaf({ ts: [...rest(9, 255), 1] }), leaf({ ts: [...rest(9, 255), 2] }), leaf({ ts: rest(11, 255) }), leaf({ link: [2] }),
    leaf({ outcome: [1] }), leaf({ outcome: [254, 1, 1] }), leaf({ present: [143, 1] }), leaf({ to: [1, 255] }),
    leaf({ to: [255, 255, 255, 255, 255, 1, 98] }), leaf({ amount: [2, 0, 7] }), leaf({ amount: [17, ...rest(17, 1)] }),
    leaf({ hash: rest(31) }), leaf().slice(0, 10), new Uint8Array(),
  ]) refuse(() => check(wrong));
});

test("every entry of small trees is proven at its place only", () => {
  const leaves = Array.from({ length: 20 }, (_, n) => leafHash(Uint8Array.of(n)));
  const node = (left: Uint8Array, right: Uint8Array): Uint8Array => sha256(concat(Uint8Array.of(1), left, right));
  const split = (n: number): number => 2 ** (Math.ceil(Math.log2(n)) - 1);
  // By the recursive definitions of RFC 6962, which the verifier does not use.
  const root = (part: readonly Uint8Array[]): Uint8Array => {
    const [only] = part;
    if (part.length === 1 && only !== undefined) return only;
    return node(root(part.slice(0, split(part.length))), root(part.slice(split(part.length))));
  };
  const path = (at: number, part: readonly Uint8Array[]): Uint8Array[] => {
    if (part.length === 1) return [];
    const k = split(part.length);
    return at < k ? [...path(at, part.slice(0, k)), root(part.slice(k))] : [...path(at - k, part.slice(k)), root(part.slice(0, k))];
  };
  for (let size = 1; size <= leaves.length; size += 1) {
    const tree = leaves.slice(0, size);
    for (const [at, leaf] of tree.entries()) {
      const good = path(at, tree);
      const check = (index: number, hashes: readonly Uint8Array[]): void => checkInclusion(leaf, BigInt(index), BigInt(size), hashes, root(tree));
      check(at, good);
      if (good.length > 0) refuse(() => check(at, good.slice(0, -1)));
      if (good.length > 1) refuse(() => check(at, good.toReversed()));
      refuse(() => check(at, [...good, leaf]));
      for (let index = 0; index < size + 2; index += 1) if (index !== at) refuse(() => check(index, good));
    }
  }
});

const signedManifest = (): ReturnType<typeof verifyManifest> => verifyManifest(vector("run.json"), vector("run.sig.json"), KEYS.manifest_public_key);

test("a payout is proven down from the signed manifest", () => {
  const manifest = signedManifest();
  const payout = verifyPayout(vector("payout.json"), KEYS.manifest_public_key);
  assert.deepEqual(payout.manifest, manifest);
  assert.deepEqual([payout.account, payout.amount, payout.total], ["acct:bob", 2_209_737_827_715_355_805n, manifest.payouts?.total]);
  const by = (key: string): unknown => verifyManifest(vector("run.json"), vector("run.sig.json"), key);
  const [name = "", alone = ""] = KEYS.manifest_public_key.split("=");
  const other = KEYS.policy_public_key.split("=")[1] ?? "";
  by(alone);
  refuse(() => by(other), "is wrong");
  refuse(() => by(`${name}=${other}`), "is wrong");
  refuse(() => by(`${name}0=${alone}`), "another key version");
  for (const key of ["", "AAAA", `${KEYS.manifest_public_key}=`, ` ${KEYS.manifest_public_key}`, ` ${alone}`, `=${alone}`]) refuse(() => by(key));
});

test("every altered byte of a manifest, its signature or a payout's proof is refused", () => {
  const [run, signature] = [vector("run.json"), vector("run.sig.json")];
  refuseAltered("run.json", (raw) => verifyManifest(raw, signature, KEYS.manifest_public_key));
  // The receipt helps to find the audit entry of the signature; nothing signs it.
  refuseAltered("run.sig.json", (raw) => verifyManifest(run, raw, KEYS.manifest_public_key), ["receipt"]);
  refuseAltered("payout.json", (raw) => verifyPayout(raw, KEYS.manifest_public_key), ["receipt"]);
});

test("a payout that is claimed elsewhere is proven, and has the proof for the contract", () => {
  // Not collected again with the other files: an epoch with claims has a policy of its own.
  const claims = fileURLToPath(new URL("../../../../vectors/claims", import.meta.url));
  const read = (name: string): { [name: string]: Json } => JSON.parse(readFileSync(join(claims, name), "utf8")) as { [name: string]: Json };
  const proof = read("payout.json");
  const key = read("verifiers.json")["manifest_public_key"] as string;
  const payout = verifyPayout(utf8(canonical(proof)), key);
  assert.deepEqual(payout.claim, proof["claim"]);
  assert.equal(payout.manifest.claims?.account, "claims:bridge");
  const refused = (changes: object, why: string): void => refuse(() => verifyPayout(utf8(canonical({ ...proof, ...changes })), key), why);
  refused({ claim: ["0x12"] }, "claim tree");
  const manifest = proof["manifest"] as { [name: string]: Json };
  const { claims: _, ...without } = manifest;
  refused({ manifest: without }, "signature");
  refused({ manifest: { ...manifest, claims: { ...(manifest["claims"] as object), account: "claims:other" } } }, "signature");
});

test("a manifest names the further assets of its epoch", () => {
  const assets = fileURLToPath(new URL("../../../../vectors/assets", import.meta.url));
  const read = (name: string): { [name: string]: Json } => JSON.parse(readFileSync(join(assets, name), "utf8")) as { [name: string]: Json };
  const proof = read("payout.json");
  const key = read("verifiers.json")["manifest_public_key"] as string;
  const payout = verifyPayout(utf8(canonical(proof)), key);
  assert.deepEqual([payout.account, payout.manifest.asset], ["acct:node-00006", "ron"]);
  const manifest = proof["manifest"] as { [name: string]: Json };
  assert.deepEqual(payout.manifest.also, manifest["also"]);
  for (const also of [[], [{ asset: "eur", commitment: manifest["commitment"] }]]) {
    const other = { ...manifest, also };
    refuse(() => verifyPayout(utf8(canonical({ ...proof, manifest: other } as Json)), key), "signature");
  }
});

test("a correction says what was paid before", () => {
  const correction = fileURLToPath(new URL("../../../../vectors/correction", import.meta.url));
  const read = (name: string): { [name: string]: Json } => JSON.parse(readFileSync(join(correction, name), "utf8")) as { [name: string]: Json };
  const proof = read("payout.json");
  const key = read("verifiers.json")["manifest_public_key"] as string;
  const payout = verifyPayout(utf8(canonical(proof)), key);
  assert.deepEqual([payout.account, payout.amount, payout.manifest.adjusts], ["acct:bob", 250n, "e"]);
  const found = payout.manifest.correction;
  assert.deepEqual([found?.paid, found?.duePayout, found?.overpaid, found?.overpaidAccounts], [1000n, 1000n, 250n, 1]);
  const manifest = proof["manifest"] as { [name: string]: Json };
  for (const changes of [{ paid_minor: "999" }, { overpaid: 2 }, { of: manifest["commitment"] }]) {
    const other = { ...manifest, correction: { ...(manifest["correction"] as object), ...changes } };
    refuse(() => verifyPayout(utf8(canonical({ ...proof, manifest: other } as Json)), key), "signature");
  }
});

test("a payout's proof of another shape is refused", () => {
  type Proof = { payout: { index: number }; path: { side: string }[]; manifest: object; signatures: object[] };
  const proof = JSON.parse(text(vector("payout.json"))) as Proof;
  const changed = (changes: object): unknown => verifyPayout(utf8(canonical({ ...proof, ...changes } as unknown as Json)), KEYS.manifest_public_key);
  const refused = (changes: object): void => refuse(() => changed(changes));
  const [first, ...rest] = proof.path;
  refused({ path: proof.path.slice(0, -1) });
  refused({ path: [...proof.path, first] });
  refused({ path: [{ ...first, side: first?.side === "left" ? "right" : "left" }, ...rest] });
  refused({ path: [{ ...first, sum_minor: (2n ** 128n - 1n).toString() }, ...rest] });
  refused({ extra: 1 });
  refused({ signatures: [] });
  refused({ manifest: { ...proof.manifest, asset: "other" } });
  const wrong = { ...proof.signatures[0], value: "A".repeat(86) };
  refused({ signatures: [wrong] });
  changed({ signatures: [wrong, ...proof.signatures] });
  for (let index = 0; index < 5; index += 1) if (index !== proof.payout.index) refused({ payout: { ...proof.payout, index } });
});

test("the page says of files what the functions say, and what is missing", () => {
  const file = (name: string): Given => ({ name, bytes: vector(name) });
  const trust = { logs: text(vector("policy")), manifestKey: KEYS.manifest_public_key };
  const all = ["payee.receipt.json", "entry.json", "entry.tlog-proof", "run.json", "run.sig.json", "payout.json"].map(file);
  const verdicts = (files: readonly Given[], trusted = trust): string[] => examine(files, trusted).map((finding) => finding.verdict);
  assert.deepEqual(verdicts(all), ["verified", "verified", "verified", "verified"]);
  assert.deepEqual(verdicts(all, { logs: "", manifestKey: "" }), ["refused", "refused", "refused", "refused"]);
  for (const one of all) assert.deepEqual(verdicts([one]), [one === all[0] || one === all[5] ? "verified" : "open"], one.name);
  for (const [at, one] of all.entries()) {
    const bytes = one.bytes.slice();
    // Not at the end: nothing signs the receipt of a manifest's signature.
    bytes[36] = (bytes.at(36) ?? 0) ^ 1;
    assert.ok(verdicts(all.with(at, { ...one, bytes })).some((verdict) => verdict !== "verified"), one.name);
  }
  assert.deepEqual(examine([], trust), []);
});
