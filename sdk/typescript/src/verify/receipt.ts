/** Receipt files: the proof of one entry of a ledger, for anyone who knows the key of its log (docs/formats/receipt.md). */
import { sha256 } from "@noble/hashes/sha2.js";
import { bytesToHex } from "@noble/hashes/utils.js";
import { VerificationError } from "../errors.js";
import type { Checkpoint, Policy } from "./checkpoint.js";
import { type Json, Members, concat, fromB64, fromUtf8, jsonObject, same, utf8 } from "./encoding.js";
import { Reader, decodeLeaf } from "./leaf.js";
import { Note, parseVkey } from "./note.js";
import { HASHES_MAX, checkInclusion } from "./tlog.js";

const FORMAT = "ron-receipt/v1";
const PARTS = [["caller", 1], ["memo", 2], ["metadata", 3], ["reference", 4]] as const;

/** The parts of the private record that a file shows; absent for what it hides, and for what there is not. */
export interface Shown {
  readonly tenant?: string;
  readonly principal?: string;
  readonly key?: string;
  readonly nonce?: bigint;
  readonly effectiveAt?: string;
  readonly memo?: string;
  readonly metadata?: ReadonlyMap<string, string>;
  readonly reference?: string;
}

/** An entry that took effect, proven by a file. */
export interface ProvenReceipt {
  readonly txid: string;
  readonly op: string;
  readonly from: string | undefined;
  readonly to: string | undefined;
  readonly asset: string | undefined;
  readonly amount: bigint | undefined;
  readonly ts: string;
  readonly seq: bigint;
  readonly hold: string | undefined;
  readonly batch: string | undefined;
  readonly reverses: string | undefined;
  readonly receiptHash: string;
  readonly shown: Shown;
  readonly checkpoint: Checkpoint;
}

/** Checks a receipt file under a policy that names the ledger's log; returns what it proves. */
export function verifyReceipt(file: Uint8Array, policy: Policy): ProvenReceipt {
  const members = new Members(jsonObject(file, "the receipt file"), "the receipt file");
  if (members.text("format") !== FORMAT) {
    throw new VerificationError("not a receipt file of a format that this version of the package knows");
  }
  const [vkey, note] = [members.text("vkey"), members.text("checkpoint")];
  const key = parseVkey(vkey);
  const checkpoint = policy.check(note);
  if (vkey !== vkey.trim() || !policy.knows(key) || !Note.parse(note).signedBy(key)) {
    throw new VerificationError("the key that the receipt file names is not trusted, or did not sign its checkpoint");
  }
  const { privateHash, leafHash, ts, ...leaf } = decodeLeaf(fromB64(members.text("leaf"), "the leaf"));
  const path = members.list("path").map((node) => bytes(node, "a hash of the path", 32));
  if (path.length > HASHES_MAX) throw new VerificationError("the path has too many hashes");
  checkInclusion(leafHash, leaf.seq, checkpoint.size, path, checkpoint.root);
  const parts = members.optionalObject("private");
  members.end();
  return {
    ...leaf,
    ts: new Date(ts).toISOString(),
    receiptHash: `sha256:${bytesToHex(leafHash)}`,
    shown: parts === undefined ? {} : shownParts(parts, privateHash),
    checkpoint,
  };
}

/** The shown parts, if all parts together have the hash in the leaf. */
function shownParts(parts: Members, expected: Uint8Array): Shown {
  const hashed = [bytes(parts.text("salt"), "the salt", 16)];
  const shown = new Map<string, Uint8Array>();
  for (const [name, tag] of PARTS) {
    const part = name === "caller" ? parts.object(name) : parts.optionalObject(name);
    if (part === undefined) continue;
    if (part.has("hash")) {
      hashed.push(Uint8Array.of(tag), bytes(part.text("hash"), "the hash of a part", 32));
    } else {
      const salt = bytes(part.text("salt"), "the salt of a part", 16);
      const value = fromB64(part.text("bytes"), `the part ${name}`);
      shown.set(name, value);
      hashed.push(Uint8Array.of(tag), sha256(concat(salt, value)));
    }
    part.end();
  }
  parts.end();
  if (!same(sha256(concat(...hashed)), expected)) {
    throw new VerificationError("the private parts of the receipt file are not those of the entry");
  }
  const [caller, memo, metadata, reference] = PARTS.map(([name]) => shown.get(name));
  return {
    ...(caller === undefined ? {} : readCaller(caller)),
    ...(memo === undefined ? {} : { memo: fromUtf8(memo, "the memo") }),
    ...(metadata === undefined ? {} : { metadata: readMetadata(metadata) }),
    ...(reference === undefined ? {} : { reference: fromUtf8(reference, "the reference") }),
  };
}

function readCaller(raw: Uint8Array): Shown {
  const read = new Reader(raw, "the caller");
  const present = read.varint();
  if (present >= 1n << 9n) throw new VerificationError("the caller has fields that this version of the package does not know");
  const has = (bit: bigint): boolean => (present & bit) !== 0n;
  const found = {
    tenant: read.text(),
    principal: read.text(),
    ...(has(1n) ? { key: read.text() } : {}),
    ...(has(2n) ? { nonce: read.varint() } : {}),
    ...(has(4n) ? { effectiveAt: new Date(read.time()).toISOString() } : {}),
  };
  if (has(8n)) {
    read.varint();
    read.take(16);
  }
  if (has(16n)) read.amount();
  for (let left = has(64n) ? read.varint() : 0n; left > 0n; left -= 1n) {
    read.take(16);
    if (read.byte() !== 0) read.amount();
    if (read.byte() !== 0) read.amount();
    read.varint();
  }
  if (has(128n)) read.amount();
  if (has(256n)) skipTerms(read);
  read.end();
  return found;
}

/** What was set for an account: closed, frozen sides, required nonces, class, limits; each is there or not. */
function skipTerms(read: Reader): void {
  for (let left = 3; left > 0; left -= 1) if (read.byte() !== 0) read.byte();
  if (read.byte() !== 0) read.text();
  if (read.byte() !== 0) {
    read.text();
    read.amount();
    if (read.byte() !== 0) read.amount();
  }
}

function readMetadata(raw: Uint8Array): ReadonlyMap<string, string> {
  const read = new Reader(raw, "the metadata");
  const found = new Map<string, string>();
  let last: Uint8Array | undefined;
  for (let left = read.varint(); left > 0n; left -= 1n) {
    const name = read.text();
    if (last !== undefined && !ascends(last, utf8(name))) throw new VerificationError("the metadata is not in the order of its names");
    last = utf8(name);
    found.set(name, read.text());
  }
  read.end();
  return found;
}

function ascends(a: Uint8Array, b: Uint8Array): boolean {
  const at = a.findIndex((byte, n) => byte !== b[n]);
  return at < 0 ? a.length < b.length : (a[at] ?? 0) < (b[at] ?? -1);
}

function bytes(text: Json | undefined, what: string, length: number): Uint8Array {
  if (typeof text !== "string") throw new VerificationError(`${what} is not a text`);
  const raw = fromB64(text, what);
  if (raw.length !== length) throw new VerificationError(`${what} has not ${length} bytes`);
  return raw;
}
