/** Checkpoints of logs (C2SP tlog-checkpoint), and what a reader demands of them (C2SP tlog-policy). */
import { VerificationError, said } from "../errors.js";
import { decimal, fromB64, same } from "./encoding.js";
import { Note, type VerifierKey, parseVkey } from "./note.js";

const POLICY_CHARS_MAX = 256 * 1024;

/** A log's commitment to all of its entries below `size`. */
export interface Checkpoint {
  readonly origin: string;
  readonly size: bigint;
  readonly root: Uint8Array;
  /** Names, within the policy, of the witnesses that cosigned it. */
  readonly cosignedBy: readonly string[];
}

/** Reads a checkpoint without checking any signature. */
export function readUnverified(note: string): Checkpoint {
  const lines = Note.parse(note).text.slice(0, -1).split("\n");
  const [origin, size, root] = lines;
  if (origin === undefined || size === undefined || root === undefined || lines.includes("")) {
    throw new VerificationError("not a checkpoint: fewer than three lines, or an empty line");
  }
  const hash = fromB64(root, "the root of the checkpoint");
  if (hash.length !== 32) throw new VerificationError("not a checkpoint: the root has not 32 bytes");
  return { origin, size: decimal(size, "the size of the checkpoint"), root: hash, cosignedBy: [] };
}

interface Group {
  readonly needed: number;
  readonly members: readonly string[];
}

/**
 * The logs whose checkpoints count, and the witnesses that must have cosigned them. Fails closed: without a known log,
 * or without the demanded cosignatures, nothing verifies.
 */
export class Policy {
  readonly #logs: VerifierKey[] = [];
  readonly #witnesses = new Map<string, VerifierKey>();
  readonly #groups = new Map<string, Group>();
  #quorum: string | undefined;

  /** Accepts checkpoints of these logs (verifier key lines) and demands no cosignature. */
  constructor(...logVkeys: readonly string[]) {
    for (const line of logVkeys) this.#addLog(line);
  }

  /** Reads a policy file with the lines `log`, `witness`, `group` and `quorum`. */
  static parse(text: string): Policy {
    if (text.length > POLICY_CHARS_MAX) throw new VerificationError("the policy is too long");
    const policy = new Policy();
    let quorum: string | undefined;
    for (const [at, line] of text.split("\n").entries()) {
      const words = line.trim().split(/[ \t]+/);
      if (words[0] === "" || words[0]?.startsWith("#") === true) continue;
      try {
        const [kind, first, second, ...rest] = words;
        if (kind === "log" && first !== undefined && rest.length === 0) policy.#addLog(first);
        else if (kind === "witness" && first !== undefined && second !== undefined && rest.length < 2) policy.#addWitness(first, second);
        else if (kind === "group" && first !== undefined && second !== undefined) policy.#addGroup(first, second, rest);
        else if (kind === "quorum" && first !== undefined && second === undefined && quorum === undefined) quorum = first;
        else throw new VerificationError("not a line of a policy, or a second quorum");
      } catch (error) {
        throw new VerificationError(`line ${at + 1} of the policy: ${said(error)}`);
      }
    }
    if (quorum === undefined) throw new VerificationError("the policy has no quorum line");
    if (quorum !== "none") {
      policy.#defined(quorum);
      policy.#quorum = quorum;
    }
    return policy;
  }

  /** The checkpoint of a signed note, if this policy accepts it. */
  check(note: string): Checkpoint {
    const checkpoint = readUnverified(note);
    const parsed = Note.parse(note);
    const signed = this.#logs.filter((key) => parsed.signedBy(key));
    if (!signed.some((key) => key.name === checkpoint.origin)) {
      throw new VerificationError(`no known key of the log ${checkpoint.origin} signed the checkpoint`);
    }
    const cosigned = [...this.#witnesses].filter(([, key]) => parsed.signedBy(key)).map(([name]) => name);
    if (this.#quorum !== undefined && !this.#holds(this.#quorum, cosigned)) {
      const missing = [...this.#witnesses.keys()].filter((name) => !cosigned.includes(name));
      throw new VerificationError(`too few witnesses have cosigned the checkpoint; without one of: ${missing.join(", ")}`);
    }
    return { ...checkpoint, cosignedBy: cosigned.sort() };
  }

  /** Whether this is the key of a log of the policy. */
  knows(key: VerifierKey): boolean {
    return this.#logs.some((known) => known.name === key.name && same(known.publicKey, key.publicKey));
  }

  #addLog(line: string): void {
    const key = parseVkey(line);
    if (key.witness) throw new VerificationError(`the key of ${key.name} is that of a witness, not of a log`);
    if (this.#logs.some((known) => same(known.publicKey, key.publicKey))) {
      throw new VerificationError(`the key of ${key.name} is there twice`);
    }
    this.#logs.push(key);
  }

  #addWitness(name: string, line: string): void {
    const key = parseVkey(line);
    if (!key.witness) throw new VerificationError(`the key of ${key.name} is that of a log, not of a witness`);
    // One witness must not count as two.
    if ([...this.#witnesses.values()].some((known) => same(known.publicKey, key.publicKey))) {
      throw new VerificationError(`the key of ${key.name} is there twice`);
    }
    this.#undefined(name);
    this.#witnesses.set(name, key);
  }

  #addGroup(name: string, needed: string, members: readonly string[]): void {
    this.#undefined(name);
    for (const member of members) this.#defined(member);
    if (members.length === 0 || new Set(members).size !== members.length) {
      throw new VerificationError(`the group ${name} has no member, or one twice`);
    }
    const count = needed === "all" ? members.length : needed === "any" ? 1 : Number(decimal(needed, "the number of members"));
    if (count < 1 || count > members.length) {
      throw new VerificationError(`the group ${name} demands ${count} of ${members.length} members`);
    }
    this.#groups.set(name, { needed: count, members });
  }

  #undefined(name: string): void {
    if (name === "none" || this.#witnesses.has(name) || this.#groups.has(name)) {
      throw new VerificationError(`the name ${name} is taken`);
    }
  }

  #defined(name: string): void {
    if (!this.#witnesses.has(name) && !this.#groups.has(name)) {
      throw new VerificationError(`no witness or group ${name} stands above`);
    }
  }

  /** Groups have only members that stand above them, so the recursion ends. */
  #holds(name: string, cosigned: readonly string[]): boolean {
    const group = this.#groups.get(name);
    if (group === undefined) return cosigned.includes(name);
    return group.members.filter((member) => this.#holds(member, cosigned)).length >= group.needed;
  }
}
