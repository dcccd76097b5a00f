/** svc-passport: tokens for the subjects that the issuer policy allows the caller. */
import type { Asked } from "./auth.js";
import { Fields, Service } from "./service.js";

/** A token of a subject, to be handed to it. */
export interface IssuedToken {
  readonly token: string;
  /** When it expires, in seconds since 1970. */
  readonly exp: number;
  /** All restrictions on it: those asked for, and those of the policy. */
  readonly caveats: readonly string[];
}

/** Calls of svc-passport. The credential needs the audience `svc-passport` and the scope `passport:issue`. */
export class Passport extends Service {
  /**
   * A token of `subject`, an opaque reference without personal data, for the service `asked.audience`. Without a scope it
   * has all scopes that the policy allows the caller there. An attempt without an answer is repeated: a token that nobody
   * got expires unused.
   */
  async issue(subject: string, { audience, scope, ttlS, caveats = [] }: Asked): Promise<IssuedToken> {
    const body = { subject_ref: subject, audience, scope, ttl_s: ttlS, caveats };
    const raw = new Fields(await this.ask("/v1/passport/issue", body));
    return { token: raw.text("token"), exp: raw.number("exp"), caveats: raw.texts("caveats") };
  }
}
