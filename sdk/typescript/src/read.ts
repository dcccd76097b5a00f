/** Reads the answers of svc-wallet. */
import type {
  AccountBalance, Allowance, Asset, Budget, Done, HistoryEntry, HistoryPage, HoldState, ItemResult, ListedAccount, Outcome, Private, Receipt,
  Webhook,
} from "./answers.js";
import { UnexpectedAnswer } from "./errors.js";
import type { Answer } from "./http.js";
import { Fields } from "./service.js";

export function readDone(key: string, answer: Answer): Done {
  const raw = new Fields(answer.json());
  const replayed = answer.header("idempotency-replayed") === "true";
  return { key, receipt: readReceipt(raw.object("receipt")), private: readPrivate(raw), replayed };
}

export const balanceOf = (raw: Fields): bigint => raw.amount("amount_minor") - raw.amount("overdrawn_minor");

export function readReceipt(raw: Fields): Receipt {
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

export function readPrivate(answer: Fields): Private {
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

export function readAsset(raw: Fields): Asset {
  return {
    asset: raw.text("asset"),
    ...(raw.has("scale") ? { scale: raw.number("scale") } : {}),
    ...(raw.has("title") ? { title: raw.text("title") } : {}),
  };
}

export function readListed(raw: Fields): ListedAccount {
  const balance = (b: Fields): [string, AccountBalance] => [
    b.text("asset"),
    {
      amount: balanceOf(b),
      held: b.amount("held_minor"),
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
    requireNonce: raw.flag("require_nonce"),
    balances: new Map(raw.list("balances").map(balance)),
  };
}

export function readHold(raw: Fields): HoldState {
  return {
    hold: raw.text("hold"),
    from: raw.text("from"),
    asset: raw.text("asset"),
    amount: raw.amount("amount_minor"),
    remaining: raw.amount("remaining_minor"),
    ...(raw.has("captured_minor") ? { captured: raw.amount("captured_minor") } : {}),
    expiresAt: raw.text("expires_at"),
    state: raw.text("state"),
  };
}

export function readEntry(raw: Fields): HistoryEntry {
  return {
    seq: raw.number("seq"),
    ts: raw.text("ts"),
    op: raw.text("op"),
    ...(raw.has("txid") ? { txid: raw.text("txid") } : {}),
    ...(raw.has("refused") ? { refused: raw.text("refused") } : {}),
    ...(raw.has("from") ? { from: raw.text("from") } : {}),
    ...(raw.has("to") ? { to: raw.text("to") } : {}),
    ...(raw.has("asset") ? { asset: raw.text("asset") } : {}),
    ...(raw.has("amount_minor") ? { amount: raw.amount("amount_minor") } : {}),
    ...(raw.has("balance_minor") ? { balance: raw.signed("balance_minor") } : {}),
    ...(raw.has("nonce") ? { nonce: raw.number("nonce") } : {}),
    ...(raw.has("hold") ? { hold: raw.text("hold") } : {}),
    ...(raw.has("batch") ? { batch: raw.text("batch") } : {}),
    ...(raw.has("reverses") ? { reverses: raw.text("reverses") } : {}),
    ...(raw.has("reference") ? { reference: raw.text("reference") } : {}),
    ...(raw.has("memo") ? { memo: raw.text("memo") } : {}),
    ...(raw.has("metadata") ? { metadata: raw.object("metadata").raw as Readonly<Record<string, string>> } : {}),
    ...(raw.has("effective_at") ? { effectiveAt: raw.text("effective_at") } : {}),
    raw: raw.raw,
  };
}

export function readBudget(raw: Fields): Budget {
  const allowance = (name: string): Allowance => {
    const limit = raw.object(name);
    return { limit: limit.amount("limit_minor"), left: limit.amount("left_minor") };
  };
  return {
    ...(raw.has("total") ? { total: allowance("total") } : {}),
    ...(raw.has("daily") ? { daily: allowance("daily") } : {}),
  };
}

export const readWebhook = (raw: Fields): Webhook => ({
  name: raw.text("name"),
  url: raw.text("url"),
  accounts: raw.texts("accounts"),
  state: raw.text("state"),
  after: raw.number("after"),
  behind: raw.number("behind"),
  ...(raw.has("failing_since") ? { failingSince: raw.text("failing_since") } : {}),
  ...(raw.has("failure") ? { failure: raw.text("failure") } : {}),
});

export const readPage = (raw: Fields): HistoryPage => ({
  entries: raw.list("entries").map(readEntry),
  ...(raw.has("older") ? { older: raw.number("older") } : {}),
  newer: raw.number("newer"),
});

export function readOutcome(raw: Fields): Outcome {
  const outcome = raw.text("outcome");
  if (outcome === "batch") return { outcome, results: results(raw) };
  return outcome === "open" ? { outcome } : itemResult(raw);
}

function itemResult(raw: Fields): ItemResult {
  const outcome = raw.text("outcome");
  switch (outcome) {
    case "done":
      return { outcome, receipt: readReceipt(raw.object("receipt")), private: readPrivate(raw) };
    case "refused":
      return { outcome, code: raw.text("code") };
    default:
      throw new UnexpectedAnswer(`not an outcome: ${outcome}`);
  }
}

export const results = (raw: Fields): ItemResult[] => raw.list("results").map(itemResult);
