/** Leaves of the ledger's log: the public facts of an entry, in binary (docs/formats/receipt.md). */
import { bytesToHex } from "@noble/hashes/utils.js";
import { VerificationError } from "../errors.js";
import { fromUtf8 } from "./encoding.js";
import { leafHash } from "./tlog.js";

const VERSION = 1;
/** The last millisecond of the year 9999. */
const TIME_MAX = 253_402_300_799_999n;
const KINDS: readonly (string | undefined)[] = [
  undefined, "issue", "transfer", "burn", "hold", "capture", "release", "expire", "freeze", "unfreeze",
  "epoch_open", "payout", "epoch_close", undefined, "reverse", "account", "asset", "epoch_void",
];

/** Reads binary values of which only the shortest form counts. */
export class Reader {
  #at = 0;

  constructor(
    readonly raw: Uint8Array,
    readonly what: string,
  ) {}

  take(count: number): Uint8Array {
    if (count > this.raw.length - this.#at) throw new VerificationError(`${this.what} ends early`);
    this.#at += count;
    return this.raw.subarray(this.#at - count, this.#at);
  }

  byte(): number {
    return this.take(1)[0] ?? 0;
  }

  varint(): bigint {
    let value = 0n;
    for (let shift = 0n; ; shift += 7n) {
      const byte = this.byte();
      value |= BigInt(byte & 0x7f) << shift;
      if (byte >= 0x80 && shift < 63n) continue;
      if (byte >= 0x80 || value >= 2n ** 64n || (shift > 0n && byte === 0)) {
        throw new VerificationError(`${this.what} has a number that is not in its shortest form`);
      }
      return value;
    }
  }

  time(): number {
    const value = this.varint();
    if (value > TIME_MAX) throw new VerificationError(`${this.what} has a time after the year 9999`);
    return Number(value);
  }

  text(): string {
    const length = this.varint();
    if (length > BigInt(this.raw.length)) throw new VerificationError(`${this.what} ends early`);
    return fromUtf8(this.take(Number(length)), this.what);
  }

  amount(): bigint {
    const length = this.byte();
    const raw = this.take(length);
    if (length > 16 || raw[0] === 0) throw new VerificationError(`${this.what} has an amount that is not in its shortest form`);
    return raw.reduce((sum, byte) => (sum << 8n) | BigInt(byte), 0n);
  }

  txid(): string {
    return `tx_${bytesToHex(this.take(16))}`;
  }

  rest(): Uint8Array {
    return this.take(this.raw.length - this.#at);
  }

  end(): void {
    if (this.#at !== this.raw.length) throw new VerificationError(`${this.what} is longer than its fields`);
  }
}

/** The public facts of an entry that took effect. */
export interface Leaf {
  readonly op: string;
  readonly txid: string;
  readonly seq: bigint;
  /** Unix milliseconds. */
  readonly ts: number;
  readonly from: string | undefined;
  readonly to: string | undefined;
  readonly asset: string | undefined;
  readonly amount: bigint | undefined;
  readonly hold: string | undefined;
  readonly batch: string | undefined;
  readonly reverses: string | undefined;
  readonly privateHash: Uint8Array;
  /** The hash of the leaf in the log's tree (RFC 6962). */
  readonly leafHash: Uint8Array;
}

export function decodeLeaf(raw: Uint8Array): Leaf {
  const read = new Reader(raw, "the leaf");
  if (read.byte() !== VERSION) throw new VerificationError("the leaf has a format that this version of the package does not know");
  const op = KINDS[read.byte()];
  if (op === undefined) throw new VerificationError("the leaf is of a kind that this version of the package does not know");
  const [seq, ts, linked] = [read.varint(), read.time(), read.byte()];
  if (linked > 1) throw new VerificationError("the leaf has a link that is neither 0 nor 1");
  for (let left = 2 * linked; left > 0; left -= 1) read.varint();
  if (read.byte() !== 0) throw new VerificationError("the entry was refused: there is no receipt");
  const present = read.varint();
  if (present >= 1n << 7n) throw new VerificationError("the leaf has facts that this version of the package does not know");
  const has = (bit: bigint): boolean => (present & bit) !== 0n;
  const from = has(1n) ? read.text() : undefined;
  const to = has(2n) ? read.text() : undefined;
  const asset = has(4n) ? read.text() : undefined;
  const amount = has(8n) ? read.amount() : undefined;
  const hold = has(16n) ? read.txid() : undefined;
  const batch = has(32n) ? read.txid() : undefined;
  const reverses = has(64n) ? read.txid() : undefined;
  // What else its kind has, then the hash.
  const rest = read.rest();
  if (rest.length < 32) throw new VerificationError("the leaf ends early");
  const privateHash = rest.subarray(-32);
  const txid = `tx_${seq.toString(16).padStart(16, "0")}${bytesToHex(privateHash.subarray(0, 8))}`;
  return { op, txid, seq, ts, from, to, asset, amount, hold, batch, reverses, privateHash, leafHash: leafHash(raw) };
}
