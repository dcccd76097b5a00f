/** Credentials: tokens of the issuer for an OAuth client, or a fixed token. */
import { UnexpectedAnswer } from "./errors.js";
import { type Transport, repeat } from "./http.js";

/** Anything that has a bearer token for the next request. */
export interface Credential {
  token(): Promise<string>;
  /** Called after a service refused the token: the next one must be fresh. */
  renew(): void;
}

/** A token that the program got elsewhere, for instance a passport of an end user. */
export function staticToken(token: string): Credential {
  return { token: () => Promise.resolve(token), renew: () => undefined };
}

export interface Asked {
  readonly audience: string;
  readonly scope?: string;
  readonly ttlS?: number;
  readonly caveats?: readonly string[];
}

/** A token is replaced when it has less than this many milliseconds left. */
const RENEW_BEFORE = 30_000;
const DEADLINE = 10_000;

/**
 * Tokens for an OAuth client that authenticates with its secret (client_credentials), renewed before they expire. The
 * issuer accepts secrets on its Unix socket (`overSocket` of `ron-sdk/node`) and over TLS only.
 */
export class ClientCredentials implements Credential {
  readonly #issuer: Transport;
  readonly #headers: Record<string, string>;
  readonly #form: string;
  #current: Promise<string> | undefined;
  #goodUntil = 0;

  constructor(issuer: Transport, client: { readonly client_id: string; readonly client_secret: string }, asked: Asked) {
    this.#issuer = issuer;
    this.#headers = {
      Authorization: `Basic ${btoa(`${client.client_id}:${client.client_secret}`)}`,
      "Content-Type": "application/x-www-form-urlencoded",
    };
    const form = new URLSearchParams({ grant_type: "client_credentials", audience: asked.audience });
    if (asked.scope !== undefined) form.set("scope", asked.scope);
    if (asked.ttlS !== undefined) form.set("ttl_s", String(asked.ttlS));
    for (const caveat of asked.caveats ?? []) form.append("caveat", caveat);
    this.#form = form.toString();
  }

  token(): Promise<string> {
    // Calls that need a token at the same time wait for the same one.
    if (this.#current === undefined || performance.now() >= this.#goodUntil) {
      this.#goodUntil = Infinity;
      const current = this.#fetch();
      current.catch(() => this.renew());
      this.#current = current;
    }
    return this.#current;
  }

  renew(): void {
    this.#current = undefined;
  }

  async #fetch(): Promise<string> {
    const call = { method: "POST", path: "/oauth2/token", headers: this.#headers, body: this.#form };
    const answer = await repeat(this.#issuer, call, DEADLINE, DEADLINE / 2);
    if (answer.status !== 200) throw answer.refusal();
    const granted = answer.json() as { access_token?: unknown; expires_in?: unknown } | null;
    if (typeof granted?.access_token !== "string" || typeof granted.expires_in !== "number") {
      throw new UnexpectedAnswer("not the answer of a token endpoint");
    }
    const lifetime = granted.expires_in * 1000;
    // A token that lives for less than twice the margin is used for half of its life.
    this.#goodUntil = performance.now() + Math.max(lifetime - RENEW_BEFORE, lifetime / 2);
    return granted.access_token;
  }
}
