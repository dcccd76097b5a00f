/** What svc-wallet answers. Amounts are minor units. */
import type { Details } from "./operations.js";

/** What the ledger recorded. It never changes. */
export interface Receipt {
  readonly txid: string;
  readonly op: string;
  readonly seq: number;
  readonly ts: string;
  readonly receiptHash: string;
  readonly from?: string;
  readonly to?: string;
  readonly asset?: string;
  readonly amount?: bigint;
  /** The hold that was captured, released or expired. */
  readonly hold?: string;
  /** The transaction id of the first item of its batch. */
  readonly batch?: string;
  /** The transaction that it reverses. */
  readonly reverses?: string;
  /** The JSON that it was read from, with members that this version of the package does not name. */
  readonly raw: Readonly<Record<string, unknown>>;
}

/** What the caller may see of an entry beside its receipt: all of it for its maker, the reference at most for others. */
export interface Private {
  readonly idem?: string;
  readonly nonce?: number;
  readonly memo?: string;
  readonly metadata?: Readonly<Record<string, string>>;
  readonly reference?: string;
  readonly effectiveAt?: string;
}

export interface Transaction {
  readonly receipt: Receipt;
  readonly private: Private;
  /** How much of it was reversed so far; absent while the service cannot tell, and `reversals` is empty then. */
  readonly reversed?: bigint;
  /** The transactions that reversed it, oldest first, at most 100. */
  readonly reversals: readonly string[];
}

/** A write that took effect. */
export interface Done {
  /** The idempotency key it was sent with. */
  readonly key: string;
  readonly receipt: Receipt;
  readonly private: Private;
  /** True when an earlier request with this key had taken effect already. */
  readonly replayed: boolean;
}

export type ItemResult =
  | { readonly outcome: "done"; readonly receipt: Receipt; readonly private: Private }
  | { readonly outcome: "refused"; readonly code: string };

/** A batch that was decided. */
export interface BatchDone {
  readonly key: string;
  readonly results: readonly ItemResult[];
  readonly replayed: boolean;
}

/** What is known of a key. */
export type Outcome = ItemResult | { readonly outcome: "batch"; readonly results: readonly ItemResult[] } | { readonly outcome: "open" };

export interface Balance {
  readonly account: string;
  readonly asset: string;
  /** Below zero when the account is overdrawn. */
  readonly amount: bigint;
  /** What the next debit may take: the balance and the credit limit, less what is held. */
  readonly available: bigint;
  /** The last nonce that was used; unknown for a balance of the past. */
  readonly nonce?: number;
  readonly asOf: string;
  readonly asOfSeq: number;
  readonly staleMs: number;
}

/** Balance of an account in one asset, in minor units. */
export interface AccountBalance {
  /** Below zero when the account is overdrawn. */
  readonly amount: bigint;
  /** Reserved by open holds. */
  readonly held: bigint;
  /** What the next debit may take. */
  readonly available: bigint;
  /** All that was ever credited and debited. */
  readonly credits: bigint;
  readonly debits: bigint;
  readonly creditLimit: bigint;
  readonly maxBalance?: bigint;
}

/** Sides of an account. */
export type Sides = "debits" | "credits" | "both";

/** A hold that still reserves money of an account. */
export interface OpenHold {
  readonly hold: string;
  readonly asset: string;
  readonly remaining: bigint;
  readonly expiresAt: string;
}

/** An account in a list; the balances are those that the caller may read. */
export interface ListedAccount {
  readonly account: string;
  readonly closed: boolean;
  /** The sides that are frozen: `none`, `debits`, `credits` or `both`. */
  readonly frozen: string;
  /** Label by which trial balances sum. */
  readonly class?: string;
  /** Whether every debit has to carry the next nonce. */
  readonly requireNonce: boolean;
  /** By asset. */
  readonly balances: ReadonlyMap<string, AccountBalance>;
}

export interface Account extends ListedAccount {
  /** The last nonce used. */
  readonly nonce: number;
  /** Oldest first, at most 1,000; `Wallet.holds` lists all. */
  readonly holds: readonly OpenHold[];
}

/** What is set for an account; what is absent stays as it is. */
export interface AccountTerms extends Details {
  readonly closed?: boolean;
  readonly frozen?: Sides | "none";
  /** Label by which trial balances sum; an empty one takes it away. */
  readonly class?: string;
  /** Whether every debit has to carry the account's next nonce. */
  readonly requireNonce?: boolean;
  /** Credit limit (0 when absent) and maximum in one asset, set together. */
  readonly limits?: { readonly asset: string; readonly creditLimit?: bigint; readonly maxBalance?: bigint };
}

export interface Asset {
  readonly asset: string;
  /** Decimal places between a minor unit and the unit that people write; absent for an asset that is not registered. */
  readonly scale?: number;
  readonly title?: string;
}

/** Sums over the accounts of one class, in minor units. */
export interface ClassTotal {
  /** Absent for accounts without a class. */
  readonly class?: string;
  readonly accounts: number;
  readonly credits: bigint;
  readonly debits: bigint;
  /** Credits less debits. */
  readonly balance: bigint;
}

export interface TrialBalance {
  readonly asset: string;
  /** What was issued and not burned; the sum of all balances. */
  readonly supply: bigint;
  /** All that was ever issued and burned. */
  readonly issued: bigint;
  readonly burned: bigint;
  readonly credits: bigint;
  readonly debits: bigint;
  readonly classes: readonly ClassTotal[];
  readonly seq: number;
}

export interface HoldState {
  readonly hold: string;
  readonly from: string;
  readonly asset: string;
  readonly amount: bigint;
  readonly remaining: bigint;
  /** What was paid out of it; absent when the hold has ended and the history does not have its end yet. */
  readonly captured?: bigint;
  readonly expiresAt: string;
  readonly state: string;
}

/** An entry that concerned an account. */
export interface HistoryEntry {
  readonly seq: number;
  readonly ts: string;
  readonly op: string;
  /** Absent for an attempt that was refused, which only its maker sees. */
  readonly txid?: string;
  /** The code of the refusal. */
  readonly refused?: string;
  readonly from?: string;
  readonly to?: string;
  readonly asset?: string;
  readonly amount?: bigint;
  /** Balance of the account after the entry, below zero when it is overdrawn; only in answers about one account. */
  readonly balance?: bigint;
  readonly nonce?: number;
  /** The hold that was captured, released or expired. */
  readonly hold?: string;
  /** The transaction id of the first item of its batch. */
  readonly batch?: string;
  /** The transaction that it reverses. */
  readonly reverses?: string;
  readonly reference?: string;
  readonly memo?: string;
  readonly metadata?: Readonly<Record<string, string>>;
  readonly effectiveAt?: string;
  /** The JSON that it was read from, with members that this version of the package does not name. */
  readonly raw: Readonly<Record<string, unknown>>;
}

export interface HistoryPage {
  /** Newest first. A page may have fewer entries than asked for, also none, and still be followed by others. */
  readonly entries: readonly HistoryEntry[];
  /** `before` for older entries; absent when there are none. */
  readonly older?: number;
  /** `after` for newer entries, also for those to come. */
  readonly newer: number;
}

/** Which page of entries, and `minSeq`, the `seq` of a receipt that the answer must know. */
export interface Cursors {
  readonly before?: number;
  readonly after?: number;
  readonly limit?: number;
  readonly minSeq?: number;
}

/** Filters of a history. */
export interface Filters {
  /** First time of the range. */
  readonly from?: string;
  /** End of the range, not part of it. */
  readonly until?: string;
  readonly asset?: string;
  readonly kind?: string;
  readonly direction?: "in" | "out";
  readonly counterparty?: string;
  readonly reference?: string;
  readonly batch?: string;
  readonly hold?: string;
  /** Members of the metadata that an entry must have, all of them. */
  readonly metadata?: Readonly<Record<string, string>>;
}

export interface Statement {
  readonly account: string;
  readonly asset: string;
  readonly opening: bigint;
  readonly credits: bigint;
  readonly debits: bigint;
  readonly closing: bigint;
  /** Oldest first. */
  readonly entries: readonly HistoryEntry[];
}

/** Which time a statement goes by, and `minSeq`, the `seq` of a receipt that it must know. */
export interface StatementAsked {
  /** The ledger's time of the entry (the default), or the day of its `effectiveAt`. */
  readonly by?: "entry" | "effective";
  readonly minSeq?: number;
}

/** A limit of a token, and what is left of it, in minor units. */
export interface Allowance {
  readonly limit: bigint;
  readonly left: bigint;
}

/** What a token may still spend; absent where it has no such limit. */
export interface Budget {
  /** Over its life. */
  readonly total?: Allowance;
  /** On this UTC day. */
  readonly daily?: Allowance;
}

/** A webhook endpoint, and how far it is. */
export interface Webhook {
  readonly name: string;
  readonly url: string;
  /** Accounts whose entries it gets: exact, or a prefix ending in `*`. */
  readonly accounts: readonly string[];
  /** `active`, `failing` or `disabled`. */
  readonly state: string;
  /** The cursor: entries up to this sequence were delivered or do not concern the endpoint. */
  readonly after: number;
  /** Entries of the ledger that it has yet to look at. */
  readonly behind: number;
  readonly failingSince?: string;
  readonly failure?: string;
}
