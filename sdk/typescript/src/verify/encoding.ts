/** Encodings that have exactly one form for each value, so that an altered byte never reads as the same value. */
import { VerificationError } from "../errors.js";

/** JSON as `JSON.parse` returns it. */
export type Json = null | boolean | number | string | readonly Json[] | { readonly [name: string]: Json };

export const utf8 = (text: string): Uint8Array => new TextEncoder().encode(text);

export function fromUtf8(raw: Uint8Array, what: string): string {
  try {
    return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(raw);
  } catch {
    throw new VerificationError(`${what} is not UTF-8`);
  }
}

export function concat(...parts: readonly Uint8Array[]): Uint8Array {
  const all = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
  let at = 0;
  for (const part of parts) {
    all.set(part, at);
    at += part.length;
  }
  return all;
}

export const same = (a: Uint8Array, b: Uint8Array): boolean => a.length === b.length && a.every((byte, at) => byte === b[at]);

/** A number as big-endian bytes. */
export function bigEndian(value: bigint | number, bytes: number): Uint8Array {
  const raw = new Uint8Array(bytes);
  let rest = BigInt(value);
  for (let at = bytes - 1; at >= 0; at -= 1, rest >>= 8n) raw[at] = Number(rest & 255n);
  return raw;
}

export function toB64(raw: Uint8Array): string {
  let text = "";
  for (const byte of raw) text += String.fromCharCode(byte);
  return btoa(text);
}

export const b64url = (raw: Uint8Array): string => toB64(raw).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");

/** Decodes base64 with padding; refuses the forms that an encoder does not write. */
export function fromB64(text: string, what: string): Uint8Array {
  let raw: Uint8Array;
  try {
    raw = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  } catch {
    throw new VerificationError(`${what} is not base64`);
  }
  if (toB64(raw) !== text) throw new VerificationError(`${what} is not in the canonical form of base64`);
  return raw;
}

/** Decodes base64url without padding; refuses the forms that an encoder does not write. */
export function fromB64url(text: string, what: string): Uint8Array {
  const raw = fromB64(text.replaceAll("-", "+").replaceAll("_", "/") + "=".repeat((4 - (text.length % 4)) % 4), what);
  if (b64url(raw) !== text) throw new VerificationError(`${what} is not in the canonical form of base64url`);
  return raw;
}

/** A number without sign or leading zeros. */
export function decimal(text: string, what: string, below = 2n ** 64n): bigint {
  if (!/^(0|[1-9][0-9]{0,38})$/.test(text) || BigInt(text) >= below) {
    throw new VerificationError(`${what} is not a plain number below ${below}`);
  }
  return BigInt(text);
}

/** RFC 8785 for objects with ASCII names, texts, whole numbers, true, false and null. */
export function canonical(value: Json): string {
  if (Array.isArray(value)) return `[${value.map(canonical).join(",")}]`;
  if (typeof value === "object" && value !== null) {
    const members = Object.entries(value as { readonly [name: string]: Json });
    members.sort(([a], [b]) => (a < b ? -1 : 1));
    return `{${members.map(([name, member]) => `${JSON.stringify(name)}:${canonical(member)}`).join(",")}}`;
  }
  return JSON.stringify(value);
}

/** Parses an object that must be in canonical form (RFC 8785), byte for byte. */
export function canonicalObject(raw: Uint8Array, what: string): { readonly [name: string]: Json } {
  const { text, value } = parse(raw, what);
  if (canonical(value) !== text) throw new VerificationError(`${what} is not canonical JSON`);
  return value;
}

/** Parses an object without repeated names, and without fractions. */
export function jsonObject(raw: Uint8Array, what: string): { readonly [name: string]: Json } {
  const { text, value } = parse(raw, what);
  if (repeats(text)) throw new VerificationError(`${what} has a member twice`);
  return value;
}

/** Whether an object in a JSON text has a name twice, of which `JSON.parse` keeps the last. */
function repeats(text: string): boolean {
  const open: Set<unknown>[] = [];
  let last = "";
  // Outside of texts, a colon stands only behind a name.
  for (const [token] of text.matchAll(/"(?:[^"\\]|\\.)*"|[{}:]/g)) {
    if (token === "{") open.push(new Set());
    else if (token === "}") open.pop();
    else if (token !== ":") last = token;
    else {
      const names = open.at(-1);
      const name: unknown = JSON.parse(last);
      if (names === undefined || names.has(name)) return true;
      names.add(name);
    }
  }
  return false;
}

function parse(raw: Uint8Array, what: string): { text: string; value: { readonly [name: string]: Json } } {
  const text = fromUtf8(raw, what);
  let value: Json;
  try {
    value = JSON.parse(text) as Json;
  } catch {
    throw new VerificationError(`${what} is not JSON`);
  }
  check(value, what);
  if (typeof value !== "object" || value === null || Array.isArray(value)) {
    throw new VerificationError(`${what} is not a JSON object`);
  }
  return { text, value: value as { readonly [name: string]: Json } };
}

/** Whole numbers that a double holds exactly, ASCII names, and no half of a surrogate pair. */
function check(value: Json, what: string): void {
  if (typeof value === "number" && !Number.isSafeInteger(value)) {
    throw new VerificationError(`${what} has a number that is not whole, or too large`);
  }
  if (typeof value === "string" && /[\ud800-\udfff]/u.test(value)) {
    throw new VerificationError(`${what} has a text that is not Unicode`);
  }
  if (typeof value === "object" && value !== null) {
    for (const [name, member] of Object.entries(value)) {
      if (!/^[\x20-\x7e]*$/.test(name)) throw new VerificationError(`${what} has a name that is not ASCII`);
      check(member as Json, what);
    }
  }
}

/** The members of an object, each read once with its type; none may be left over. */
export class Members {
  readonly #left: Map<string, Json>;

  constructor(
    value: Json | undefined,
    readonly what: string,
  ) {
    if (typeof value !== "object" || value === null || Array.isArray(value)) {
      throw new VerificationError(`${what} is not an object`);
    }
    this.#left = new Map(Object.entries(value as { readonly [name: string]: Json }));
  }

  #take(name: string): Json | undefined {
    const value = this.#left.get(name);
    this.#left.delete(name);
    return value;
  }

  #wrong(name: string): never {
    throw new VerificationError(`${this.what} has no ${name}, or one of another type`);
  }

  /** Whether a member is there and not null. */
  has(name: string): boolean {
    if (this.#left.get(name) === null) this.#left.delete(name);
    return this.#left.has(name);
  }

  text(name: string): string {
    const value = this.#take(name);
    return typeof value === "string" ? value : this.#wrong(name);
  }

  rawObject(name: string): { readonly [name: string]: Json } {
    const value = this.#take(name);
    if (typeof value !== "object" || value === null || Array.isArray(value)) this.#wrong(name);
    return value as { readonly [name: string]: Json };
  }

  optionalText(name: string): string | undefined {
    return this.has(name) ? this.text(name) : undefined;
  }

  whole(name: string): number {
    const value = this.#take(name);
    return typeof value === "number" && value >= 0 ? value : this.#wrong(name);
  }

  optionalWhole(name: string): number | undefined {
    return this.has(name) ? this.whole(name) : undefined;
  }

  amount(name: string): bigint {
    return decimal(this.text(name), `${this.what}: ${name}`, 2n ** 128n);
  }

  list(name: string): readonly Json[] {
    const value = this.#take(name);
    return Array.isArray(value) ? (value as readonly Json[]) : this.#wrong(name);
  }

  object(name: string): Members {
    return new Members(this.#take(name), `${this.what}: ${name}`);
  }

  optionalObject(name: string): Members | undefined {
    return this.has(name) ? this.object(name) : undefined;
  }

  optionalList(name: string): readonly Json[] | undefined {
    return this.has(name) ? this.list(name) : undefined;
  }

  end(): void {
    const [name] = this.#left.keys();
    if (name !== undefined) throw new VerificationError(`${this.what} has an unknown member ${JSON.stringify(name)}`);
  }
}
