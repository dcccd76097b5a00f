/** Requests to one service, over `fetch` here and over Unix sockets in `ron-sdk/node`. */
import { RonError, Refused, UnexpectedAnswer, Unreachable, said } from "./errors.js";

export interface Call {
  readonly method: string;
  readonly path: string;
  readonly headers: Readonly<Record<string, string>>;
  readonly body?: string;
  /** Bounds the whole request; whole milliseconds. */
  readonly timeoutMs: number;
}

/** Sends a request once. Throws {@link NotSent} when it certainly did not leave, and anything else when no whole answer came. */
export type Transport = (call: Call) => Promise<Answer>;

/** There was no connection, so nothing was sent. */
export class NotSent extends RonError {}

/** First and longest pause between two attempts, in milliseconds. */
export const PAUSE_FIRST = 50;
export const PAUSE_MAX = 1000;

/** A complete answer, whatever its status. */
export class Answer {
  constructor(
    readonly status: number,
    readonly header: (name: string) => string | null,
    readonly body: Uint8Array,
  ) {}

  text(): string {
    return new TextDecoder().decode(this.body);
  }

  json(): unknown {
    try {
      return JSON.parse(this.text());
    } catch {
      throw new UnexpectedAnswer(`the answer of status ${this.status} is not JSON`);
    }
  }

  /** Milliseconds of the header Retry-After; 0 without one. */
  retryAfter(): number {
    const text = this.header("retry-after") ?? "";
    return /^[0-9]{1,6}$/.test(text) ? Number(text) * 1000 : 0;
  }

  /** The problem document (RFC 9457) or OAuth error of an answer that is no success. */
  refusal(key?: string): Refused {
    let body: unknown;
    try {
      body = JSON.parse(this.text());
    } catch {
      body = undefined;
    }
    const problem = (typeof body === "object" && body !== null ? body : {}) as Record<string, unknown>;
    const text = (...names: string[]): string => String(names.map((name) => problem[name]).find((value) => value) ?? "");
    const id = typeof problem["request_id"] === "string" ? problem["request_id"] : undefined;
    const code = text("code", "error") || "unexpected_status";
    const detail = text("detail", "error_description", "title");
    return new Refused(this.status, code, detail, problem["retryable"] === true, problem["details"], id, key);
  }
}

/** A transport over `fetch`, for `http://host:port` and `https://host:port`. */
export function overFetch(url: string): Transport {
  const base = new URL(url);
  if (!["http:", "https:"].includes(base.protocol) || base.search || base.hash) {
    throw new TypeError(`not the URL of a service: ${url} (http://host:port or https://host:port; sockets: ron-sdk/node)`);
  }
  const prefix = base.origin + base.pathname.replace(/\/+$/, "");
  return async ({ method, path, headers, body, timeoutMs }) => {
    try {
      const signal = AbortSignal.timeout(timeoutMs);
      const init = { method, headers, redirect: "error", cache: "no-store", credentials: "omit", signal } as const;
      const response = await fetch(prefix + path, body === undefined ? init : { ...init, body });
      const content = new Uint8Array(await response.arrayBuffer());
      return new Answer(response.status, (name) => response.headers.get(name), content);
    } catch (error) {
      const code = error instanceof Error && (error.cause as { code?: unknown } | undefined)?.code;
      throw code === "ECONNREFUSED" ? new NotSent(said(error)) : error;
    }
  };
}

/** A node of a service: its URL and a transport to it. */
export interface Node {
  readonly url: string;
  readonly transport: Transport;
}

/**
 * A transport to a service with several nodes. Calls go to one node until it cannot be reached, does not answer, or takes no
 * calls for now; then to the node that it names as the active one, or to the next.
 */
export function overNodes(nodes: readonly Node[]): Transport {
  const plain = (url: string): string => url.replace(/\/+$/, "");
  const urls = nodes.map(({ url }) => plain(url));
  let at = 0;
  // A credential goes to no URL that only an answer has named.
  const leave = (from: number, active: string | undefined): void => {
    const known = active === undefined ? -1 : urls.indexOf(plain(active));
    if (at === from) at = known < 0 || known === from ? (from + 1) % nodes.length : known;
  };
  return async (call) => {
    for (let left = nodes.length - 1; ; left--) {
      const from = at;
      const node = nodes[from];
      if (node === undefined) throw new TypeError("a service has at least one URL");
      try {
        const answer = await node.transport(call);
        if (answer.status !== 503) return answer;
        leave(from, answer.refusal().active);
        if (left <= 0) return answer;
      } catch (error) {
        leave(from, undefined); // The next attempt goes to another node.
        if (left <= 0 || !(error instanceof NotSent)) throw error;
      }
    }
  };
}

/** A transport over `fetch` to a service at one or several URLs. */
export function overUrls(urls: string | readonly string[], open: (url: string) => Transport = overFetch): Transport {
  if (typeof urls === "string") return open(urls);
  return overNodes(urls.map((url) => ({ url, transport: open(url) })));
}

export const sleep = (ms: number): Promise<void> => new Promise((done) => setTimeout(done, ms));

/**
 * A request that changes nothing, repeated until it gets an answer other than "busy" or "unavailable". `deadlineMs` bounds all
 * attempts, `attemptMs` each of them.
 */
export async function repeat(
  transport: Transport,
  call: Omit<Call, "timeoutMs">,
  deadlineMs: number,
  attemptMs: number,
): Promise<Answer> {
  const end = performance.now() + deadlineMs;
  for (let pause = PAUSE_FIRST; ; pause = Math.min(pause * 2, PAUSE_MAX)) {
    let wait = pause;
    try {
      const timeoutMs = Math.ceil(Math.max(Math.min(attemptMs, end - performance.now()), 100));
      const answer = await transport({ ...call, timeoutMs });
      if (![429, 503, 504].includes(answer.status)) return answer;
      wait = Math.max(wait, answer.retryAfter());
      if (performance.now() + wait > end) return answer;
    } catch (error) {
      if (performance.now() + wait > end) throw new Unreachable(`${call.method} ${call.path}: ${said(error)}`);
    }
    await sleep(wait);
  }
}
