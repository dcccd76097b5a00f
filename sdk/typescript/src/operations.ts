/** Operations that a wallet takes. */
import { segment } from "./service.js";

export const AMOUNT_MAX = 2n ** 128n - 1n;

/**
 * What a caller says about an operation. No decision depends on it. Its maker sees all of it, and so do readers of the
 * debited account in the maker's tenant; a payee sees the reference, unless `shareReference` is false.
 */
export interface Details {
  /** Text for people. */
  readonly memo?: string;
  /** The caller's own reference, such as the number of an order. */
  readonly reference?: string;
  /** False hides the reference from the payee, in histories and in its copy of the receipt. */
  readonly shareReference?: boolean;
  /** At most 16 members. */
  readonly metadata?: Readonly<Record<string, string>>;
  /** The time for statements (RFC 3339, UTC). */
  readonly effectiveAt?: string;
}

/** Creates money in `to`. */
export interface Issue extends Details {
  readonly op: "issue";
  readonly to: string;
  readonly asset: string;
  readonly amount: bigint;
}

/** Moves money. `nonce`, where it is given, must be the next one of `from`. */
export interface Transfer extends Details {
  readonly op: "transfer";
  readonly from: string;
  readonly to: string;
  readonly asset: string;
  /** Minor units, or `"max"`: all that is available. */
  readonly amount: bigint | "max";
  readonly nonce?: number;
}

/** Destroys money of `from`. */
export interface Burn extends Details {
  readonly op: "burn";
  readonly from: string;
  readonly asset: string;
  /** Minor units, or `"max"`: all that is available. */
  readonly amount: bigint | "max";
  readonly nonce?: number;
}

/** Reserves money of `from` until `expiresAt` (RFC 3339, UTC). */
export interface Hold extends Details {
  readonly op: "hold";
  readonly from: string;
  readonly asset: string;
  /** Minor units, or `"max"`: all that is available. */
  readonly amount: bigint | "max";
  readonly expiresAt: string;
  readonly nonce?: number;
}

/** Pays out of a hold: `amount`, or all that is left of it. The rest stays reserved, unless it is `final`. */
export interface Capture extends Details {
  readonly op: "capture";
  readonly hold: string;
  readonly to: string;
  readonly amount?: bigint;
  readonly final?: boolean;
}

/** Ends a hold; the rest becomes available again. */
export interface Release extends Details {
  readonly op: "release";
  readonly hold: string;
}

/** Moves back what a transfer, capture or payout moved: `amount`, or all that earlier reversals left of it. */
export interface Reverse extends Details {
  readonly op: "reverse";
  readonly txid: string;
  readonly amount?: bigint;
}

/** An operation that `Wallet.submit` sends. */
export type Operation = Issue | Transfer | Burn | Hold | Capture | Release | Reverse;
/**
 * An operation that may be an item of a batch. In a linked batch the `hold` of a capture or release may be `#i`, the hold
 * that item `i` (from 0) makes.
 */
export type Item = Operation;

export function minor(amount: bigint | "max"): string {
  if (amount === "max") return amount;
  if (typeof amount !== "bigint" || amount < 0n || amount > AMOUNT_MAX) {
    throw new RangeError(`an amount is a bigint of minor units from 0 to 2^128-1, not ${String(amount)}`);
  }
  return amount.toString();
}

/** A request with the names of the API; JSON leaves out what is undefined. */
export function detailed(request: Details): Record<string, unknown> {
  const { shareReference, effectiveAt, ...rest } = request;
  return { ...rest, share_reference: shareReference, effective_at: effectiveAt };
}

/** The body of an operation. */
export function bodyOf(operation: Operation): Record<string, unknown> {
  const { op: _, ...named } = operation;
  const { amount, hold: __, txid: ___, expiresAt, ...rest } = detailed(named);
  return {
    ...rest,
    amount_minor: amount === undefined ? undefined : minor(amount as bigint | "max"),
    expires_at: expiresAt,
  };
}

export function itemOf(item: Item): Record<string, unknown> {
  const body = { op: item.op, ...bodyOf(item) };
  switch (item.op) {
    case "capture":
    case "release":
      return { ...body, hold: item.hold };
    case "reverse":
      return { ...body, txid: item.txid };
    case "issue":
    case "transfer":
    case "burn":
    case "hold":
      return body;
  }
}

export function pathOf(operation: Operation): string {
  switch (operation.op) {
    case "capture":
    case "release":
      return `/v1/hold/${segment(operation.hold)}/${operation.op}`;
    case "reverse":
      return `/v1/tx/${segment(operation.txid)}/reverse`;
    case "issue":
    case "transfer":
    case "burn":
    case "hold":
      return `/v1/${operation.op}`;
  }
}
