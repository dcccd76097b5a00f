/** C2SP signed notes: verifier keys, signature lines, and witnesses' cosignatures (all Ed25519). */
import { ed25519 as curve } from "@noble/curves/ed25519.js";
import { sha256 } from "@noble/hashes/sha2.js";
import { bytesToHex } from "@noble/hashes/utils.js";
import { VerificationError } from "../errors.js";
import { concat, fromB64, utf8 } from "./encoding.js";

const NOTE_CHARS_MAX = 256 * 1024;
const SIGNATURES_MAX = 64;
const LOG = 0x01;
const WITNESS = 0x04;
const TIME_MAX = 2n ** 63n - 1n;

/** Whether a signature holds, by the strict rules of RFC 8032. */
export function ed25519(publicKey: Uint8Array, message: Uint8Array, signature: Uint8Array): boolean {
  try {
    return curve.verify(signature, message, publicKey, { zip215: false });
  } catch {
    return false;
  }
}

/** A line `name+key id+key`: of a log (type 0x01), or of a witness (type 0x04). */
export interface VerifierKey {
  readonly name: string;
  readonly keyId: string;
  readonly publicKey: Uint8Array;
  readonly witness: boolean;
}

const validName = (name: string): boolean => name !== "" && !/[\s+\p{Cc}]/u.test(name);

export function parseVkey(line: string): VerifierKey {
  const [name = "", keyId = "", ...rest] = line.trim().split("+");
  if (!validName(name)) throw new VerificationError(`not a verifier key line (name+key id+key): ${line.slice(0, 80)}`);
  const raw = fromB64(rest.join("+"), "the key of a verifier key line");
  if (bytesToHex(sha256(concat(utf8(`${name}\n`), raw)).subarray(0, 4)) !== keyId) {
    throw new VerificationError(`the key id of ${name} does not belong to its name and key`);
  }
  if (raw.length !== 33 || (raw[0] !== LOG && raw[0] !== WITNESS)) {
    throw new VerificationError(`the key of ${name} is not an Ed25519 key of a log (0x01) or a witness (0x04)`);
  }
  return { name, keyId, publicKey: raw.slice(1), witness: raw[0] === WITNESS };
}

interface Signature {
  readonly name: string;
  readonly keyId: string;
  readonly value: Uint8Array;
}

/** A text and its signature lines, not verified. */
export class Note {
  private constructor(
    readonly text: string,
    readonly signatures: readonly Signature[],
  ) {}

  static parse(note: string): Note {
    if (note.length > NOTE_CHARS_MAX || /[\0-\t\v-\x1f]/.test(note)) {
      throw new VerificationError("not a signed note: too long, or with control characters");
    }
    // The last blank line: the text may contain others.
    const blank = note.lastIndexOf("\n\n");
    if (blank < 0 || !note.endsWith("\n") || blank + 2 >= note.length) {
      throw new VerificationError("not a signed note: no blank line before the signatures, or no newline at the end");
    }
    const rows = note.slice(blank + 2, -1).split("\n");
    if (rows.length > SIGNATURES_MAX) throw new VerificationError("not a signed note: too many signatures");
    return new Note(note.slice(0, blank + 1), rows.map(parseSignature));
  }

  /**
   * Whether a key has signed the note. A wrong signature of a log's key is an error, even beside a right one: the note
   * was altered.
   */
  signedBy(key: VerifierKey): boolean {
    let found = false;
    for (const { name, keyId, value } of this.signatures) {
      if (name !== key.name || keyId !== key.keyId) continue;
      if (key.witness) found ||= cosigned(key, this.text, value);
      else if (ed25519(key.publicKey, utf8(this.text), value)) found = true;
      else throw new VerificationError(`the signature of ${key.name} is wrong`);
    }
    return found;
  }
}

function cosigned(key: VerifierKey, text: string, value: Uint8Array): boolean {
  if (value.length !== 72) return false;
  const time = value.subarray(0, 8).reduce((sum, byte) => (sum << 8n) | BigInt(byte), 0n);
  return time > 0n && time <= TIME_MAX && ed25519(key.publicKey, utf8(`cosignature/v1\ntime ${time}\n${text}`), value.subarray(8));
}

function parseSignature(line: string): Signature {
  const [dash, name = "", ...rest] = line.split(" ");
  if (dash !== "\u2014" || !validName(name)) throw new VerificationError("not a signed note: a signature line of another form");
  const raw = fromB64(rest.join(" "), "a signature");
  if (raw.length < 5) throw new VerificationError("not a signed note: a signature is too short");
  return { name, keyId: bytesToHex(raw.subarray(0, 4)), value: raw.subarray(4) };
}
