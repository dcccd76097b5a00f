// What reads ask for, and what they make of answers that leave something out or come in pages.
import assert from "node:assert/strict";
import { test } from "node:test";
import { Answer, Passport, type Transport, UnexpectedAnswer, Wallet, staticToken } from "../src/index.js";

const RECEIPT = { txid: "tx_1", op: "transfer", seq: 7, ts: "2026-11-25T00:00:00.000Z", receipt_hash: "b3:0" };
const ENTRY = { seq: 7, ts: "2026-11-25T00:00:00.000Z", op: "transfer", amount_minor: "5", balance_minor: "-3", to: "acct:b" };

interface Asked {
  readonly method: string;
  readonly path: string;
  readonly query: URLSearchParams;
  readonly body: unknown;
}

const says = (body: unknown, status = 200, link: string | null = null): Answer =>
  new Answer(status, (name) => (name.toLowerCase() === "link" ? link : null), new TextEncoder().encode(typeof body === "string" ? body : JSON.stringify(body)));

/** A wallet whose service answers by a script, and what it was asked. */
function scripted(...answers: readonly Answer[]): { readonly wallet: Wallet; readonly issuer: Passport; readonly asked: Asked[] } {
  const left = [...answers];
  const asked: Asked[] = [];
  const transport: Transport = (call) => {
    const url = new URL(call.path, "http://wallet");
    asked.push({ method: call.method, path: url.pathname, query: url.searchParams, body: call.body === undefined ? undefined : JSON.parse(call.body) });
    const answer = left.shift();
    return answer === undefined ? Promise.reject(new Error("asked too often")) : Promise.resolve(answer);
  };
  return { wallet: new Wallet(transport, staticToken("t")), issuer: new Passport(transport, staticToken("t")), asked };
}

test("a transaction is shown while the service cannot tell its reversals", async () => {
  const { wallet } = scripted(says({ receipt: RECEIPT }), says({ receipt: RECEIPT, now: { reversed_minor: "5", reversals: ["tx_2"] } }));
  const found = await wallet.transaction("tx_1");
  assert.deepEqual([found.receipt.seq, found.private, found.reversed, found.reversals], [7, {}, undefined, []]);
  const later = await wallet.transaction("tx_1");
  assert.deepEqual([later.reversed, later.reversals], [5n, ["tx_2"]]);
});

test("a token of a subject is asked for as the API wants it", async () => {
  const answer = { token: "secret", kid: "k", alg: "EdDSA", exp: 9, caveats: ["asset=ron"], epoch: 1 };
  const { issuer, asked } = scripted(says(answer), says(answer), says({ token: "secret" }));
  const whole = await issuer.issue("ada", { audience: "svc-wallet", scope: "wallet:read", ttlS: 60, caveats: ["asset=ron"] });
  assert.deepEqual(whole, { token: "secret", exp: 9, caveats: ["asset=ron"] });
  await issuer.issue("ada", { audience: "svc-wallet" });
  const few = { subject_ref: "ada", audience: "svc-wallet", caveats: [] };
  assert.deepEqual(asked.map(({ body }) => body), [{ ...few, scope: "wallet:read", ttl_s: 60, caveats: ["asset=ron"] }, few]);
  assert.deepEqual([asked[0]?.method, asked[0]?.path], ["POST", "/v1/passport/issue"]);
  await assert.rejects(issuer.issue("ada", { audience: "svc-wallet" }), UnexpectedAnswer);
});

test("filters are sent as the API wants them", async () => {
  const { wallet, asked } = scripted(says({ entries: [ENTRY], newer: 9 }), says({ entries: [{ seq: 7 }], newer: 9 }));
  const page = await wallet.history("acct:a", { from: "s", direction: "in", metadata: { a: "1", b: "x=y" }, minSeq: 7, limit: 5 });
  const [{ path, query }] = asked as [Asked];
  assert.equal(path, "/v1/account/acct%3Aa/history");
  assert.deepEqual([...query].sort(), [["direction", "in"], ["from", "s"], ["limit", "5"], ["metadata", "a=1"], ["metadata", "b=x=y"], ["min_seq", "7"]]);
  const [entry] = page.entries;
  assert.deepEqual([entry?.seq, entry?.amount, entry?.balance, entry?.from, entry?.txid], [7, 5n, -3n, undefined, undefined]);
  assert.deepEqual(entry?.raw, ENTRY);
  await assert.rejects(wallet.history("acct:a"), UnexpectedAnswer);
});

test("lists follow their pages", async () => {
  const sums = { account: "a", asset: "ron", opening_minor: "-1", closing_minor: "9", credits_minor: "10", debits_minor: "0" };
  const pages = scripted(says({ ...sums, entries: [ENTRY], next: 7 }), says({ ...sums, entries: [{ ...ENTRY, seq: 8 }] }));
  const whole = await pages.wallet.statement("a", "ron", "s", "u", { minSeq: 8 });
  assert.deepEqual([whole.opening, whole.closing, whole.entries.map((entry) => entry.seq)], [-1n, 9n, [7, 8]]);
  assert.deepEqual(pages.asked.map(({ query }) => [query.get("after"), query.get("min_seq")]), [[null, "8"], ["7", "8"]]);

  const link = '</v1/account/a/statement?asset=ron&from=s&until=u&by=entry&format=csv&after=7&limit=500>; rel="next"';
  const csv = scripted(says("seq,op\n,opening\n7,issue\n", 200, link), says("seq,op\n8,burn\n,closing\n"));
  assert.equal(await csv.wallet.statementCsv("a", "ron", "s", "u"), "seq,op\n,opening\n7,issue\n8,burn\n,closing\n");
  assert.deepEqual(csv.asked.map(({ query }) => query.get("after")), [null, "7"]);

  const hold = { hold: "tx_1", from: "a", asset: "ron", amount_minor: "9", remaining_minor: "0", captured_minor: "4", expires_at: "t", state: "ended" };
  const holds = scripted(says({ holds: [hold], older: 3 }), says({ holds: [{ ...hold, hold: "tx_0" }] }));
  assert.deepEqual((await holds.wallet.holds("a", { minSeq: 1 })).map((h) => [h.hold, h.captured]), [["tx_1", 4n], ["tx_0", 4n]]);
  assert.equal(holds.asked[1]?.query.get("before"), "3");
});

test("a webhook is resumed without a key", async () => {
  const doc = { name: "shop", url: "https://x/", accounts: ["a*"], state: "failing", after: 5, behind: 2 };
  const { wallet, asked } = scripted(says(doc, 202), says(doc, 202), says({}));
  assert.equal((await wallet.resumeWebhook("shop", { after: 5 })).state, "failing");
  assert.equal((await wallet.resumeWebhook("shop")).failure, undefined);
  const path = "/v1/webhooks/shop/resume";
  assert.deepEqual(asked.map((call) => [call.method, call.path, call.body]), [["POST", path, { after: 5 }], ["POST", path, {}]]);
  assert.deepEqual(await wallet.budget(), {});
});
