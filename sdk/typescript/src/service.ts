/** What the clients of all services share: authorised reads, and writes that are repeated until their outcome is known. */
import type { Credential } from "./auth.js";
import { OutcomeUnknown, type Refused, Unreachable, UnexpectedAnswer, said } from "./errors.js";
import { type Answer, NotSent, PAUSE_FIRST, PAUSE_MAX, type Transport, overUrls, repeat, sleep } from "./http.js";

export interface Options {
  /** Bounds each call with all its attempts, in milliseconds; 30,000 by default. */
  readonly deadlineMs?: number;
  /** Bounds each attempt, in milliseconds; 10,000 by default. */
  readonly attemptTimeoutMs?: number;
}

/** The value of a parameter; a list is a parameter with several values. */
type QueryValue = string | number | readonly string[] | undefined;

export interface Write {
  readonly method: string;
  readonly path: string;
  readonly body: unknown;
  readonly key: string;
  readonly headers?: Readonly<Record<string, string>>;
  /** May make another body for the same key after a refusal that left the key unused. */
  readonly repair?: (refusal: Refused) => unknown;
}

/** A client of one service: an address, or those of its nodes, and a credential. */
export class Service {
  protected readonly transport: Transport;
  readonly #credential: Credential | undefined;
  readonly #deadline: number;
  readonly #attemptTimeout: number;

  constructor(service: Transport | string | readonly string[], credential?: Credential, options: Options = {}) {
    this.transport = typeof service === "function" ? service : overUrls(service);
    this.#credential = credential;
    this.#deadline = options.deadlineMs ?? 30_000;
    this.#attemptTimeout = options.attemptTimeoutMs ?? 10_000;
  }

  async #headers(more: Readonly<Record<string, string>> = {}): Promise<Record<string, string>> {
    const token = await this.#credential?.token();
    return token === undefined ? { ...more } : { ...more, Authorization: `Bearer ${token}` };
  }

  /**
   * A GET; returns its answer of success and throws Refused for any other one. `wait` is the time in seconds that the
   * service may wait, which comes on top of the deadline.
   */
  protected read(path: string, query: Readonly<Record<string, QueryValue>> = {}, wait = 0): Promise<Answer> {
    const asked = new URLSearchParams();
    for (const [name, value] of Object.entries(query)) {
      const values = Array.isArray(value) ? (value as readonly string[]) : value === undefined ? [] : [String(value)];
      for (const one of values) asked.append(name, one);
    }
    return this.#repeat({ method: "GET", path: asked.size > 0 ? `${path}?${asked.toString()}` : path }, wait);
  }

  /** A POST that may be sent any number of times, such as a verification. */
  protected async ask(path: string, body: unknown): Promise<unknown> {
    return (await this.#repeat({ method: "POST", path, body: JSON.stringify(body) })).json();
  }

  async #repeat(call: { readonly method: string; readonly path: string; readonly body?: string }, wait = 0): Promise<Answer> {
    const once = async (): Promise<Answer> => {
      const type = call.body === undefined ? {} : { "Content-Type": "application/json" };
      const headers = await this.#headers(wait > 0 ? { ...type, Prefer: `wait=${wait}` } : type);
      return repeat(this.transport, { ...call, headers }, this.#deadline + wait * 1000, this.#attemptTimeout + wait * 1000);
    };
    let answer = await once();
    if (answer.status === 401 && this.#credential !== undefined) {
      this.#credential.renew();
      answer = await once();
    }
    if (answer.status !== 200 && answer.status !== 202) throw answer.refusal();
    return answer;
  }

  /**
   * Sends the same bytes under the same key until the outcome is known or the deadline passes. Returns an answer of
   * success. Throws Refused when nothing changed, and OutcomeUnknown otherwise.
   */
  protected async write({ method, path, body, key, headers, repair }: Write): Promise<Answer> {
    let sent = JSON.stringify(body);
    const end = performance.now() + this.#deadline;
    /** Why an earlier attempt may have taken effect; empty when none can have. */
    let doubt = "";
    let renewed = false;
    for (let pause = PAUSE_FIRST; ; pause = Math.min(pause * 2, PAUSE_MAX)) {
      let wait = pause * (0.8 + 0.4 * Math.random());
      let failure: Error;
      const authorised = await this.#headers({ "Content-Type": "application/json", ...headers }).catch((error: unknown) => {
        throw doubt === "" ? error : new OutcomeUnknown(key, `${doubt}; then no token: ${said(error)}`);
      });
      const timeoutMs = Math.ceil(Math.max(Math.min(this.#attemptTimeout, end - performance.now()), 100));
      const attempt = this.transport({ method, path, headers: authorised, body: sent, timeoutMs });
      const answer = await attempt.catch((error: unknown) => (error instanceof Error ? error : new Error(String(error))));
      if (answer instanceof NotSent) {
        failure = new Unreachable(`${method} ${path}: ${answer.message}; nothing was sent`);
      } else if (answer instanceof Error) {
        doubt = said(answer);
        failure = answer;
      } else {
        if (answer.status === 200) return answer;
        const refusal = answer.refusal(key);
        failure = refusal;
        wait = Math.max(wait, answer.retryAfter());
        let repaired: unknown;
        if ([500, 502, 504].includes(refusal.status) || refusal.code === "in_flight") {
          doubt = `${refusal.code} (${refusal.status})`;
        } else if (refusal.code === "idempotency_mismatch") {
          throw refusal;
        } else if ((repaired = repair?.(refusal)) !== undefined) {
          sent = JSON.stringify(repaired);
        } else if (refusal.status === 401 && this.#credential !== undefined && !renewed) {
          this.#credential.renew();
          renewed = true;
          wait = 0;
        } else if (!refusal.retryable) {
          if (doubt === "") throw refusal;
          await this.confirm(key, doubt, refusal);
        }
      }
      if (performance.now() + wait > end) throw doubt === "" ? failure : new OutcomeUnknown(key, doubt);
      await sleep(wait);
    }
  }

  /**
   * Called for a final refusal after an attempt that may have taken effect. The refusal speaks of its own attempt, so
   * the outcome stays unknown unless a service can tell it by the key: returns when the same request shall be sent again.
   */
  protected confirm(key: string, doubt: string, refusal: Refused): Promise<void> {
    return Promise.reject(new OutcomeUnknown(key, `${doubt}; then ${refusal.code} (${refusal.status})`));
  }
}

/** One segment of a path. */
export const segment = (text: string): string => encodeURIComponent(text);

/** Reads the members of an answer with the types that the API promises. */
export class Fields {
  readonly #value: Record<string, unknown>;

  constructor(value: unknown) {
    if (typeof value !== "object" || value === null) throw new UnexpectedAnswer("an answer that is no object");
    this.#value = value as Record<string, unknown>;
  }

  #missing(name: string): never {
    throw new UnexpectedAnswer(`an answer without the expected ${name}`);
  }

  has(name: string): boolean {
    return this.#value[name] !== undefined && this.#value[name] !== null;
  }

  text(name: string): string {
    const value = this.#value[name];
    return typeof value === "string" ? value : this.#missing(name);
  }

  number(name: string): number {
    const value = this.#value[name];
    return typeof value === "number" ? value : this.#missing(name);
  }

  flag(name: string): boolean {
    const value = this.#value[name];
    return typeof value === "boolean" ? value : this.#missing(name);
  }

  amount(name: string): bigint {
    const value = this.text(name);
    return /^[0-9]{1,39}$/.test(value) ? BigInt(value) : this.#missing(name);
  }

  /** A balance, which may be below zero. */
  signed(name: string): bigint {
    const value = this.text(name);
    return /^-?[0-9]{1,39}$/.test(value) ? BigInt(value) : this.#missing(name);
  }

  list(name: string): Fields[] {
    const value = this.#value[name];
    return Array.isArray(value) ? value.map((item) => new Fields(item)) : this.#missing(name);
  }

  texts(name: string): string[] {
    const value = this.#value[name];
    return Array.isArray(value) && value.every((item) => typeof item === "string") ? value : this.#missing(name);
  }

  object(name: string): Fields {
    return this.has(name) ? new Fields(this.#value[name]) : this.#missing(name);
  }

  /** The value itself, with members that this version of the package does not name. */
  get raw(): Readonly<Record<string, unknown>> {
    return this.#value;
  }
}
