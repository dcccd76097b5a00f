/** svc-wallet: money for holders of a passport. */
import { OutcomeUnknown, Refused, UnexpectedAnswer, said } from "./errors.js";
import type { Answer } from "./http.js";
import { type Details, type Item, type Operation, bodyOf, detailed, itemOf, minor, pathOf } from "./operations.js";
import { Fields, Service, segment } from "./service.js";

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

export interface Account {
  readonly account: string;
  readonly closed: boolean;
  /** The sides that are frozen: `none`, `debits`, `credits` or `both`. */
  readonly frozen: string;
  /** Label by which trial balances sum. */
  readonly class?: string;
  readonly nonce: number;
  /** By asset. */
  readonly balances: ReadonlyMap<string, AccountBalance>;
}

/** What is set for an account; what is absent stays as it is. */
export interface AccountTerms extends Details {
  readonly closed?: boolean;
  readonly frozen?: Sides | "none";
  /** Label by which trial balances sum; an empty one takes it away. */
  readonly class?: string;
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
    return readDone(key, await this.write({ method: "POST", path: pathOf(operation), body, key, headers: { "Idempotency-Key": key }, repair }));
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
      amount: balanceOf(raw),
      available: raw.amount("available_minor"),
      ...(raw.has("nonce") ? { nonce: raw.number("nonce") } : {}),
      asOf: raw.text("as_of"),
      asOfSeq: raw.number("as_of_seq"),
      staleMs: raw.number("stale_ms"),
    };
  }

  /** Balances in all assets, limits, class, and whether the account is frozen or closed. */
  async account(account: string, { minSeq }: { minSeq?: number } = {}): Promise<Account> {
    const raw = new Fields((await this.read(`/v1/account/${segment(account)}`, { min_seq: minSeq })).json());
    const balance = (b: Fields): [string, AccountBalance] => [
      b.text("asset"),
      {
        amount: balanceOf(b),
        available: b.amount("available_minor"),
        credits: b.amount("credits_minor"),
        debits: b.amount("debits_minor"),
        creditLimit: b.amount("credit_limit_minor"),
        ...(b.has("max_balance_minor") ? { maxBalance: b.amount("max_balance_minor") } : {}),
      },
    ];
    return {
      account: raw.text("account"),
      closed: raw.flag("closed"),
      frozen: raw.text("frozen"),
      ...(raw.has("class") ? { class: raw.text("class") } : {}),
      nonce: raw.number("nonce"),
      balances: new Map(raw.list("balances").map(balance)),
    };
  }

  /** Opens or closes an account, or sets frozen sides, class or limits. */
  async setAccount(account: string, terms: AccountTerms, key = newKey()): Promise<Done> {
    const { limits, ...rest } = terms;
    const body = {
      ...detailed(rest),
      limits: limits && {
        asset: limits.asset,
        credit_limit_minor: minor(limits.creditLimit ?? 0n),
        max_balance_minor: limits.maxBalance === undefined ? undefined : minor(limits.maxBalance),
      },
    };
    return this.set("PUT", `/v1/account/${segment(account)}`, body, key);
  }

  /** Makes an account refuse debits, credits or both. */
  async freeze(account: string, sides: Sides = "debits", details: Details = {}, key = newKey()): Promise<Done> {
    return this.set("POST", `/v1/account/${segment(account)}/freeze`, { sides, ...detailed(details) }, key);
  }

  /** Lets an account accept debits, credits or both again. */
  async unfreeze(account: string, sides: Sides = "both", details: Details = {}, key = newKey()): Promise<Done> {
    return this.set("POST", `/v1/account/${segment(account)}/unfreeze`, { sides, ...detailed(details) }, key);
  }

  async asset(asset: string): Promise<Asset> {
    const raw = new Fields((await this.read(`/v1/assets/${segment(asset)}`)).json());
    return {
      asset: raw.text("asset"),
      ...(raw.has("scale") ? { scale: raw.number("scale") } : {}),
      ...(raw.has("title") ? { title: raw.text("title") } : {}),
    };
  }

  /** Registers an asset, or changes its title. */
  async setAsset(asset: string, terms: Details & { readonly scale: number; readonly title?: string }, key = newKey()): Promise<Done> {
    return this.set("PUT", `/v1/assets/${segment(asset)}`, detailed(terms), key);
  }

  /** Credits and debits by class of account, now or after the last entry at or before `at`, a sequence or a time. */
  async trialBalance(asset: string, { at, minSeq }: { at?: number | string; minSeq?: number } = {}): Promise<TrialBalance> {
    const query = { at, min_seq: minSeq };
    const raw = new Fields((await this.read(`/v1/assets/${segment(asset)}/trial-balance`, query)).json());
    return {
      asset: raw.text("asset"),
      supply: raw.amount("supply_minor"),
      credits: raw.amount("credits_minor"),
      debits: raw.amount("debits_minor"),
      classes: raw.list("classes").map((c) => ({
        ...(c.has("class") ? { class: c.text("class") } : {}),
        accounts: c.number("accounts"),
        credits: c.amount("credits_minor"),
        debits: c.amount("debits_minor"),
        balance: c.signed("balance_minor"),
      })),
      seq: raw.number("seq"),
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
    const opening = raw.signed("opening_minor");
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
      closing: raw.signed("closing_minor"),
      entries,
    };
  }

  /** The accounts that ever moved money and that the caller may read: their balances, by account and asset. */
  async accounts(prefix?: string): Promise<Map<string, Map<string, bigint>>> {
    const found = new Map<string, Map<string, bigint>>();
    for (let after: string | undefined; ; ) {
      const raw = new Fields((await this.read("/v1/accounts", { prefix, after, limit: 500 })).json());
      for (const listed of raw.list("accounts")) {
        const balances = listed.list("balances").map((b): [string, bigint] => [b.text("asset"), balanceOf(b)]);
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

  private async set(method: string, path: string, body: unknown, key: string): Promise<Done> {
    return readDone(key, await this.write({ method, path, body, key, headers: { "Idempotency-Key": key } }));
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

function readDone(key: string, answer: Answer): Done {
  const raw = new Fields(answer.json());
  const replayed = answer.header("idempotency-replayed") === "true";
  return { key, receipt: readReceipt(raw.object("receipt")), private: readPrivate(raw), replayed };
}

const balanceOf = (raw: Fields): bigint => raw.amount("amount_minor") - raw.amount("overdrawn_minor");

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
