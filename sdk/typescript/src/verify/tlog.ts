/** Inclusion of an entry in a log: Merkle trees of RFC 6962 and the text format c2sp.org/tlog-proof@v1. */
import { sha256 } from "@noble/hashes/sha2.js";
import { VerificationError } from "../errors.js";
import type { Checkpoint, Policy } from "./checkpoint.js";
import { concat, decimal, fromB64, same } from "./encoding.js";

const HEADER = "c2sp.org/tlog-proof@v1";
/** Levels of a tree whose size has 64 bits. */
export const HASHES_MAX = 64;

export const leafHash = (entry: Uint8Array): Uint8Array => sha256(concat(Uint8Array.of(0), entry));

const nodeHash = (left: Uint8Array, right: Uint8Array): Uint8Array => sha256(concat(Uint8Array.of(1), left, right));

/** RFC 9162, 2.1.3.2: the leaf hash is that of the entry at `index` of the tree of this size and root. */
export function checkInclusion(leaf: Uint8Array, index: bigint, size: bigint, path: readonly Uint8Array[], root: Uint8Array): void {
  if (index >= size) throw new VerificationError(`the tree has ${size} entries, and the proof is about entry ${index}`);
  let [node, last, found] = [index, size - 1n, leaf];
  for (const sibling of path) {
    if (last === 0n) throw new VerificationError("the proof has too many hashes");
    if ((node & 1n) === 1n || node === last) {
      found = nodeHash(sibling, found);
      for (; (node & 1n) === 0n && node !== 0n; node >>= 1n) last >>= 1n;
    } else {
      found = nodeHash(found, sibling);
    }
    node >>= 1n;
    last >>= 1n;
  }
  if (last !== 0n) throw new VerificationError("the proof has too few hashes");
  if (!same(found, root)) throw new VerificationError("the proof does not lead to the root of the checkpoint");
}

/** A proof that can be checked with the entry, a policy and this text alone. */
export class TlogProof {
  private constructor(
    readonly index: bigint,
    readonly path: readonly Uint8Array[],
    /** The signed checkpoint, as it is. */
    readonly checkpoint: string,
  ) {}

  static parse(text: string): TlogProof {
    const blank = text.indexOf("\n\n");
    const lines = text.slice(0, Math.max(blank, 0)).split("\n");
    if (blank < 0 || lines.shift() !== HEADER) {
      throw new VerificationError(`not a proof: the first line is not ${HEADER}, or there is no blank line`);
    }
    // Not authenticated by anything, so it is not handed on.
    if (lines[0]?.startsWith("extra ") === true) fromB64((lines.shift() ?? "").slice("extra ".length), "the extra data of the proof");
    const first = lines.shift();
    if (first?.startsWith("index ") !== true) throw new VerificationError("not a proof: there is no index line");
    const path = lines.map((line) => fromB64(line, "a hash of the proof"));
    if (path.length > HASHES_MAX || path.some((node) => node.length !== 32)) {
      throw new VerificationError("not a proof: too many hashes, or one that has not 32 bytes");
    }
    return new TlogProof(decimal(first.slice("index ".length), "the index of the proof"), path, text.slice(blank + 2));
  }

  /** Checks that `entry` is in a log that the policy accepts; returns the checkpoint that covers it. */
  check(entry: Uint8Array, policy: Policy): Checkpoint {
    const checkpoint = policy.check(this.checkpoint);
    checkInclusion(leafHash(entry), this.index, checkpoint.size, this.path, checkpoint.root);
    return checkpoint;
  }
}
