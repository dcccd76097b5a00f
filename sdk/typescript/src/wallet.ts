/** svc-wallet: money for holders of a passport. */
import { OutcomeUnknown, Refused, UnexpectedAnswer, said } from "./errors.js";
import { Fields, Service, segment } from "./service.js";

export const AMOUNT_MAX = 2n ** 128n - 1n;

/** What a caller says about an operation. No decision depends on it, and nobody but its maker sees it. */
export interface Details {
  /** Text for people. */
  readonly memo?: string;
  /** The caller's own reference, such as the number of an order. */
  readonly reference?: string;
  /** False hides the reference in the payee's copy of the receipt. */
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

/** What only the maker of an entry sees of it, and its payee where the reference is shared. */
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
  /** How much of it was reversed so far, and by which transactions. */
  readonly reversed: bigint;
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
  | { readonly outcome: "done"; readonly receipt: Receipt }
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
  readonly amount: bigint;
  /** `amount` less what is held. */
  readonly available: bigint;
  /** The last nonce that was used; unknown for a balance of the past. */
  readonly nonce?: number;
  readonly asOf: string;
  readonly asOfSeq: number;
  readonly staleMs: number;
}

export interface HoldState {
  readonly hold: string;
  readonly from: string;
  readonly asset: string;
  readonly amount: bigint;
  readonly remaining: bigint;
  readonly expiresAt: string;
  readonly state: string;
}

/** An entry as the service describes it (HistoryEntry of the API). */
export type HistoryEntry = Readonly<Record<string, unknown>>;

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
  /** A member of the metadata, as `name=value`. */
  readonly metadata?: string;
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

export interface Submit {
  /** The idempotency key; generated when absent. Store it with what the write is for, before the write is sent. */
  readonly key?: string;
  /** Replace a nonce that is not the account's next one by that one, under the same key. */
  readonly renumber?: boolean;
}

/** A fresh idempotency key. */
export const newKey = (): string => crypto.randomUUID();

/**
 * Calls of svc-wallet. Every write has an idempotency key, given or generated. It happens at most once, however often
 * it is sent.
 */
export class Wallet extends Service {
  /**
   * Sends an operation until its outcome is known or the deadline passes. Throws Refused when nothing changed, and
   * OutcomeUnknown when the deadline passed first.
   */
  async submit(operation: Operation, { key = newKey(), renumber = false }: Submit = {}): Promise<Done> {
    const body = bodyOf(operation);
    const repair = (refusal: Refused): unknown => {
      if (!renumber || refusal.code !== "nonce_conflict" || refusal.expected === undefined) return undefined;
      return { ...body, nonce: refusal.expected };
    };
    const answer = await this.write({ method: "POST", path: pathOf(operation), body, key, headers: { "Idempotency-Key": key }, repair });
    const raw = new Fields(answer.json());
    const replayed = answer.header("idempotency-replayed") === "true";
    return { key, receipt: readReceipt(raw.object("receipt")), private: readPrivate(raw), replayed };
  }

  /** Sends up to 1,000 operations under one key; with `linked` all of them take effect, or none. */
  async batch(items: readonly Item[], { key = newKey(), linked = false }: { key?: string; linked?: boolean } = {}): Promise<BatchDone> {
    const body = { items: items.map(itemOf), linked };
    const answer = await this.write({ method: "POST", path: "/v1/batch", body, key, headers: { "Idempotency-Key": key } });
    return { key, results: results(new Fields(answer.json())), replayed: answer.header("idempotency-replayed") === "true" };
  }

  /**
   * What became of the caller's write with this key; `undefined` when no request with it is known. That is no promise:
   * a request that is still on its way may arrive later.
   */
  async operation(key: string): Promise<Outcome | undefined> {
    const found = await this.read(`/v1/ops/${segment(key)}`).catch((error: unknown) => {
      if (error instanceof Refused && error.status === 404) return undefined;
      throw error;
    });
    return found === undefined ? undefined : readOutcome(new Fields(found.json()));
  }

  /** Gives a write with an unknown outcome up: returns its outcome, or makes the ledger refuse it for ever. */
  async abandon(key: string): Promise<Outcome> {
    const answer = await this.write({ method: "POST", path: `/v1/ops/${segment(key)}/abandon`, body: {}, key });
    return readOutcome(new Fields(answer.json()));
  }

  /** The balance now, or after the last entry at or before `at`, a sequence or a time. */
  async balance(account: string, asset: string, { at, minSeq }: { at?: number | string; minSeq?: number } = {}): Promise<Balance> {
    const raw = new Fields((await this.read("/v1/balance", { account, asset, at, min_seq: minSeq })).json());
    return {
      account: raw.text("account"),
      asset: raw.text("asset"),
      amount: raw.amount("amount_minor"),
      available: raw.amount("available_minor"),
      ...(raw.has("nonce") ? { nonce: raw.number("nonce") } : {}),
      asOf: raw.text("as_of"),
      asOfSeq: raw.number("as_of_seq"),
      staleMs: raw.number("stale_ms"),
    };
  }

  async hold(hold: string): Promise<HoldState> {
    return readHold(new Fields((await this.read(`/v1/hold/${segment(hold)}`)).json()));
  }

  async transaction(txid: string): Promise<Transaction> {
    const raw = new Fields((await this.read(`/v1/tx/${segment(txid)}`)).json());
    const now = raw.object("now");
    return {
      receipt: readReceipt(raw.object("receipt")),
      private: readPrivate(raw),
      reversed: now.amount("reversed_minor"),
      reversals: now.texts("reversals"),
    };
  }

  /**
   * The receipt as a file that verifies alone (`verifyReceipt`). The maker of the entry gets all of its private record,
   * everybody else the shared reference at most. The service waits up to `wait` seconds for a checkpoint that covers it.
   */
  async receipt(txid: string, wait = 5): Promise<Uint8Array> {
    return (await this.read(`/v1/tx/${segment(txid)}/receipt`, {}, wait)).body;
  }

  /** Entries of an account, newest first. */
  async history(account: string, { before, after, limit, minSeq, ...filters }: Cursors & Filters = {}): Promise<HistoryPage> {
    const query = { before, after, limit, min_seq: minSeq, ...filters };
    return readPage(new Fields((await this.read(`/v1/account/${segment(account)}/history`, query)).json()));
  }

  /** Transactions that were made with a reference, newest first. */
  async find(reference: string, { before, after, limit, minSeq }: Cursors = {}): Promise<HistoryPage> {
    const query = { reference, before, after, limit, min_seq: minSeq };
    return readPage(new Fields((await this.read("/v1/tx", query)).json()));
  }

  /** Opening balance, entries and closing balance of a range. It reads all pages. */
  async statement(account: string, asset: string, from: string, until: string, by: "entry" | "effective" = "entry"): Promise<Statement> {
    const page = async (after?: number): Promise<Fields> =>
      new Fields((await this.read(`/v1/account/${segment(account)}/statement`, { asset, from, until, by, after })).json());
    let raw = await page();
    const opening = raw.amount("opening_minor");
    const entries = raw.list("entries").map((entry) => entry.raw);
    while (raw.has("next")) {
      raw = await page(raw.number("next"));
      entries.push(...raw.list("entries").map((entry) => entry.raw));
    }
    return {
      account: raw.text("account"),
      asset: raw.text("asset"),
      opening,
      credits: raw.amount("credits_minor"),
      debits: raw.amount("debits_minor"),
      closing: raw.amount("closing_minor"),
      entries,
    };
  }

  /** The accounts that ever moved money and that the caller may read: their balances, by account and asset. */
  async accounts(prefix?: string): Promise<Map<string, Map<string, bigint>>> {
    const found = new Map<string, Map<string, bigint>>();
    for (let after: string | undefined; ; ) {
      const raw = new Fields((await this.read("/v1/accounts", { prefix, after, limit: 500 })).json());
      for (const listed of raw.list("accounts")) {
        const balances = listed.list("balances").map((b): [string, bigint] => [b.text("asset"), b.amount("amount_minor")]);
        found.set(listed.text("account"), new Map(balances));
      }
      if (!raw.has("next")) return found;
      after = raw.text("next");
    }
  }

  /** Holds of an account, newest first. */
  async holds(account: string, { asset, state }: { asset?: string; state?: "open" | "ended" } = {}): Promise<HoldState[]> {
    const found: HoldState[] = [];
    for (let before: number | undefined; ; ) {
      const raw = new Fields((await this.read("/v1/holds", { account, asset, state, before, limit: 500 })).json());
      found.push(...raw.list("holds").map(readHold));
      if (!raw.has("older")) return found;
      before = raw.number("older");
    }
  }

  /**
   * What happened to an account after a sequence, oldest first and without gaps, and the next `after`. The service waits
   * up to `wait` seconds for something, 30 at most.
   */
  async events(account: string, after = 0, wait = 0): Promise<{ readonly events: readonly HistoryEntry[]; readonly next: number }> {
    const raw = new Fields((await this.read("/v1/events", { account, after }, wait)).json());
    return { events: raw.list("events").map((event) => event.raw), next: raw.number("next") };
  }

  protected override async confirm(key: string, doubt: string, refusal: Refused): Promise<void> {
    const known = await this.operation(key).catch((error: unknown) => {
      throw new OutcomeUnknown(key, `${doubt}; then ${refusal.code}; then ${said(error)}`);
    });
    if (known?.outcome === "refused") {
      throw new Refused(refusal.status, known.code, refusal.detail, false, refusal.details, refusal.requestId, key);
    }
    if (known === undefined) await super.confirm(key, doubt, refusal);
    // Done, decided as a batch, or open: the same request gets the answer.
  }
}

function minor(amount: bigint | "max"): string {
  if (amount === "max") return amount;
  if (typeof amount !== "bigint" || amount < 0n || amount > AMOUNT_MAX) {
    throw new RangeError(`an amount is a bigint of minor units from 0 to 2^128-1, not ${String(amount)}`);
  }
  return amount.toString();
}

/** The body of a request; JSON leaves out what is undefined. */
function bodyOf(operation: Operation): Record<string, unknown> {
  const { op: _, shareReference, effectiveAt, ...rest } = operation;
  const details = { share_reference: shareReference, effective_at: effectiveAt };
  switch (operation.op) {
    case "issue":
    case "transfer":
    case "burn":
    case "reverse":
    case "capture": {
      const { amount, hold: __, txid: ___, ...more } = rest as { amount?: bigint | "max"; hold?: string; txid?: string };
      return { ...more, ...details, amount_minor: amount === undefined ? undefined : minor(amount) };
    }
    case "hold": {
      const { amount, expiresAt, ...more } = rest as { amount: bigint | "max"; expiresAt: string };
      return { ...more, ...details, amount_minor: minor(amount), expires_at: expiresAt };
    }
    case "release": {
      const { hold: __, ...more } = rest as { hold: string };
      return { ...more, ...details };
    }
  }
}

function itemOf(item: Item): Record<string, unknown> {
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

function pathOf(operation: Operation): string {
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

function readReceipt(raw: Fields): Receipt {
  return {
    txid: raw.text("txid"),
    op: raw.text("op"),
    seq: raw.number("seq"),
    ts: raw.text("ts"),
    receiptHash: raw.text("receipt_hash"),
    ...(raw.has("from") ? { from: raw.text("from") } : {}),
    ...(raw.has("to") ? { to: raw.text("to") } : {}),
    ...(raw.has("asset") ? { asset: raw.text("asset") } : {}),
    ...(raw.has("amount_minor") ? { amount: raw.amount("amount_minor") } : {}),
    ...(raw.has("hold") ? { hold: raw.text("hold") } : {}),
    ...(raw.has("batch") ? { batch: raw.text("batch") } : {}),
    ...(raw.has("reverses") ? { reverses: raw.text("reverses") } : {}),
    raw: raw.raw,
  };
}

function readPrivate(answer: Fields): Private {
  if (!answer.has("private")) return {};
  const raw = answer.object("private");
  return {
    ...(raw.has("idem") ? { idem: raw.text("idem") } : {}),
    ...(raw.has("nonce") ? { nonce: raw.number("nonce") } : {}),
    ...(raw.has("memo") ? { memo: raw.text("memo") } : {}),
    ...(raw.has("metadata") ? { metadata: raw.object("metadata").raw as Readonly<Record<string, string>> } : {}),
    ...(raw.has("reference") ? { reference: raw.text("reference") } : {}),
    ...(raw.has("effective_at") ? { effectiveAt: raw.text("effective_at") } : {}),
  };
}

function readHold(raw: Fields): HoldState {
  return {
    hold: raw.text("hold"),
    from: raw.text("from"),
    asset: raw.text("asset"),
    amount: raw.amount("amount_minor"),
    remaining: raw.amount("remaining_minor"),
    expiresAt: raw.text("expires_at"),
    state: raw.text("state"),
  };
}

const readPage = (raw: Fields): HistoryPage => ({
  entries: raw.list("entries").map((entry) => entry.raw),
  ...(raw.has("older") ? { older: raw.number("older") } : {}),
  newer: raw.number("newer"),
});

function readOutcome(raw: Fields): Outcome {
  const outcome = raw.text("outcome");
  if (outcome === "batch") return { outcome, results: results(raw) };
  return outcome === "open" ? { outcome } : itemResult(raw);
}

function itemResult(raw: Fields): ItemResult {
  const outcome = raw.text("outcome");
  switch (outcome) {
    case "done":
      return { outcome, receipt: readReceipt(raw.object("receipt")) };
    case "refused":
      return { outcome, code: raw.text("code") };
    default:
      throw new UnexpectedAnswer(`not an outcome: ${outcome}`);
  }
}

const results = (raw: Fields): ItemResult[] => raw.list("results").map(itemResult);
