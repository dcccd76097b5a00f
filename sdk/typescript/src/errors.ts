/** Base of all errors of this package. */
export class RonError extends Error {
  constructor(message: string) {
    super(message);
    this.name = new.target.name;
  }
}

/**
 * The service refused the call, and nothing changed. `retryable` is true when the same request may succeed later; for
 * a write, send it under the same key.
 */
export class Refused extends RonError {
  constructor(
    readonly status: number,
    readonly code: string,
    readonly detail: string,
    readonly retryable: boolean,
    readonly details: unknown,
    readonly requestId: string | undefined,
    /** The idempotency key of the write; absent for a read. */
    readonly key: string | undefined,
  ) {
    super(`${code} (${status}): ${detail}`);
  }

  /** After `nonce_conflict`: the nonce that would be accepted, if the caller may read the account. */
  get expected(): number | undefined {
    const found = typeof this.details === "object" && this.details !== null ? (this.details as { expected?: unknown }).expected : undefined;
    return typeof found === "number" ? found : undefined;
  }

  /** After `not_active`: the URL of the node that does what a standby refused, if it is known. */
  get active(): string | undefined {
    if (this.code !== "not_active" || typeof this.details !== "object" || this.details === null) return undefined;
    const found = (this.details as { active?: unknown }).active;
    return typeof found === "string" ? found : undefined;
  }
}

/**
 * The deadline passed before the service said whether the write happened.
 *
 * Never send the write under another key: it could happen twice. Send the same request with `key` again, now or after
 * a restart of the program, or read `Wallet.operation(key)`.
 */
export class OutcomeUnknown extends RonError {
  constructor(
    readonly key: string,
    readonly doubt: string,
  ) {
    super(`the outcome of ${key} is not known yet (${doubt}); send the same request with this key again`);
  }
}

/** A read got no answer before its deadline, or a write was never sent. */
export class Unreachable extends RonError {}

/** An answer that this version of the package cannot read. */
export class UnexpectedAnswer extends RonError {}

/** A proof, receipt or manifest that does not hold, or does not satisfy the policy. */
export class VerificationError extends RonError {}

export function said(error: unknown): string {
  const cause = error instanceof Error && error.cause instanceof Error ? `: ${error.cause.message}` : "";
  return error instanceof Error ? error.message + cause : String(error);
}
