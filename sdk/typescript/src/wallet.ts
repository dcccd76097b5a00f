/** svc-wallet: money for holders of a passport. */
import type {
  Account, AccountTerms, Asset, Balance, BatchDone, Budget, Cursors, Done, Filters, HistoryEntry,
  HistoryPage, HoldState, ListedAccount, Outcome, Sides, Statement, StatementAsked, Transaction, TrialBalance, Webhook,
} from "./answers.js";
import { OutcomeUnknown, Refused, said } from "./errors.js";
import { type Item, type Operation, bodyOf, detailed, itemOf, minor, pathOf, type Details } from "./operations.js";
import {
  balanceOf, readAsset, readBudget, readDone, readEntry, readHold, readListed, readOutcome, readPage, readPrivate, readReceipt, readWebhook,
  results,
} from "./read.js";
import { Fields, Service, segment } from "./service.js";

export interface Submit {
  /** The idempotency key; generated when absent. Store it with what the write is for, before the write is sent. */
  readonly key?: string;
  /** Replace a nonce that is not the account's next one by that one, under the same key. */
  readonly renumber?: boolean;
}

/** Cursors and filters as the service has them. */
function searched({ minSeq, metadata, ...rest }: Cursors & Filters) {
  const members = metadata && Object.entries(metadata).map(([name, value]) => `${name}=${value}`);
  return { ...rest, min_seq: minSeq, metadata: members };
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
    return {
      ...readListed(raw),
      nonce: raw.number("nonce"),
      holds: raw.list("holds").map((h) => ({
        hold: h.text("hold"),
        asset: h.text("asset"),
        remaining: h.amount("amount_minor"),
        expiresAt: h.text("expires_at"),
      })),
    };
  }

  /** Opens or closes an account, or sets frozen sides, class, whether debits require a nonce, or limits. */
  async setAccount(account: string, terms: AccountTerms, key = newKey()): Promise<Done> {
    const { limits, requireNonce, ...rest } = terms;
    const body = {
      ...detailed(rest),
      require_nonce: requireNonce,
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

  async asset(asset: string, { minSeq }: { minSeq?: number } = {}): Promise<Asset> {
    return readAsset(new Fields((await this.read(`/v1/assets/${segment(asset)}`, { min_seq: minSeq })).json()));
  }

  /** The assets in which the caller may read something, by name. */
  async assets({ minSeq }: { minSeq?: number } = {}): Promise<Asset[]> {
    const found: Asset[] = [];
    for (let after: string | undefined; ; ) {
      const raw = new Fields((await this.read("/v1/assets", { after, limit: 500, min_seq: minSeq })).json());
      found.push(...raw.list("assets").map(readAsset));
      if (!raw.has("next")) return found;
      after = raw.text("next");
    }
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
      issued: raw.amount("issued_minor"),
      burned: raw.amount("burned_minor"),
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

  async hold(hold: string, { minSeq }: { minSeq?: number } = {}): Promise<HoldState> {
    return readHold(new Fields((await this.read(`/v1/hold/${segment(hold)}`, { min_seq: minSeq })).json()));
  }

  /** A transaction, with what the caller may see of its private side, and what was reversed of it. */
  async transaction(txid: string, { minSeq }: { minSeq?: number } = {}): Promise<Transaction> {
    const raw = new Fields((await this.read(`/v1/tx/${segment(txid)}`, { min_seq: minSeq })).json());
    const now = raw.has("now") ? raw.object("now") : undefined;
    return {
      receipt: readReceipt(raw.object("receipt")),
      private: readPrivate(raw),
      ...(now === undefined ? {} : { reversed: now.amount("reversed_minor") }),
      reversals: now === undefined ? [] : now.texts("reversals"),
    };
  }

  /**
   * The receipt as a file that verifies alone (`verifyReceipt`). The maker of the entry gets all of its private record,
   * everybody else the shared reference at most. The service waits up to `wait` seconds for a checkpoint that covers it.
   */
  async receipt(txid: string, wait = 5, { minSeq }: { minSeq?: number } = {}): Promise<Uint8Array> {
    return (await this.read(`/v1/tx/${segment(txid)}/receipt`, { min_seq: minSeq }, wait)).body;
  }

  /** Entries of an account, newest first. */
  async history(account: string, asked: Cursors & Filters = {}): Promise<HistoryPage> {
    return readPage(new Fields((await this.read(`/v1/account/${segment(account)}/history`, searched(asked))).json()));
  }

  /** Transactions that were made with a reference, newest first. Directions and counterparties are seen from an account. */
  async find(reference: string, asked: Cursors & Omit<Filters, "reference" | "direction" | "counterparty"> = {}): Promise<HistoryPage> {
    return readPage(new Fields((await this.read("/v1/tx", { ...searched(asked), reference })).json()));
  }

  /** Opening balance, entries and closing balance of a range. It reads all pages. */
  async statement(account: string, asset: string, from: string, until: string, { by, minSeq }: StatementAsked = {}): Promise<Statement> {
    const path = `/v1/account/${segment(account)}/statement`;
    const page = async (after?: number): Promise<Fields> =>
      new Fields((await this.read(path, { asset, from, until, by, after, min_seq: minSeq })).json());
    let raw = await page();
    const opening = raw.signed("opening_minor");
    const entries = raw.list("entries").map(readEntry);
    while (raw.has("next")) {
      raw = await page(raw.number("next"));
      entries.push(...raw.list("entries").map(readEntry));
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

  /** The same as comma-separated values: a line for the opening balance, each entry and the closing balance. */
  async statementCsv(account: string, asset: string, from: string, until: string, { by, minSeq }: StatementAsked = {}): Promise<string> {
    const path = `/v1/account/${segment(account)}/statement`;
    let text = "";
    for (let after: string | undefined; ; ) {
      const answer = await this.read(path, { asset, from, until, by, after, min_seq: minSeq, format: "csv" });
      const page = new TextDecoder().decode(answer.body);
      // Every page begins with the headings.
      text += text === "" ? page : page.slice(page.indexOf("\n") + 1);
      after = /[?&]after=([0-9]+)[^>]*>; rel="next"/.exec(answer.header("link") ?? "")?.[1];
      if (after === undefined) return text;
    }
  }

  /** The accounts that were ever opened, used or given terms and that the caller may read, by name. */
  async accounts(prefix?: string, { minSeq }: { minSeq?: number } = {}): Promise<Map<string, ListedAccount>> {
    const found = new Map<string, ListedAccount>();
    for (let after: string | undefined; ; ) {
      const raw = new Fields((await this.read("/v1/accounts", { prefix, after, limit: 500, min_seq: minSeq })).json());
      for (const listed of raw.list("accounts")) found.set(listed.text("account"), readListed(listed));
      if (!raw.has("next")) return found;
      after = raw.text("next");
    }
  }

  /** Holds of an account, newest first. */
  async holds(account: string, { asset, state, minSeq }: { asset?: string; state?: "open" | "ended"; minSeq?: number } = {}): Promise<HoldState[]> {
    const found: HoldState[] = [];
    for (let before: number | undefined; ; ) {
      const query = { account, asset, state, before, limit: 500, min_seq: minSeq };
      const raw = new Fields((await this.read("/v1/holds", query)).json());
      found.push(...raw.list("holds").map(readHold));
      if (!raw.has("older")) return found;
      before = raw.number("older");
    }
  }

  /**
   * What happened to an account after a sequence, oldest first and without gaps, and the next `after`. The service waits
   * up to `wait` seconds for something, 30 at most.
   */
  async events(
    account: string, after = 0, { wait = 0, limit, minSeq }: { wait?: number; limit?: number; minSeq?: number } = {},
  ): Promise<{ readonly events: readonly HistoryEntry[]; readonly next: number }> {
    const raw = new Fields((await this.read("/v1/events", { account, after, limit, min_seq: minSeq }, wait)).json());
    return { events: raw.list("events").map(readEntry), next: raw.number("next") };
  }

  /** What the caller's token may still spend: its caveats `ceiling.total` and `ceiling.daily`. */
  async budget({ minSeq }: { minSeq?: number } = {}): Promise<Budget> {
    return readBudget(new Fields((await this.read("/v1/budget", { min_seq: minSeq })).json()));
  }

  /** The webhook endpoints of the caller's tenant, in the order of the configuration. */
  async webhooks(): Promise<Webhook[]> {
    return new Fields((await this.read("/v1/webhooks")).json()).list("webhooks").map(readWebhook);
  }

  /** Sends to a disabled or failing endpoint again at once: from its cursor, or everything after a sequence. */
  async resumeWebhook(name: string, { after }: { after?: number } = {}): Promise<Webhook> {
    return readWebhook(new Fields(await this.ask(`/v1/webhooks/${segment(name)}/resume`, { after })));
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
