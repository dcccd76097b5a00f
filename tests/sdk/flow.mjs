// The TypeScript SDK against a running fleet: every call and every outcome, as flow.py does with the Python SDK.
//
//   node flow.mjs DATA_DIR OUT     (DATA_DIR of a running `ron up`; OUT holds what flow.py wrote)

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { Kms, OutcomeUnknown, Passport, Refused, Rewarder, Unreachable, VerificationError, Wallet, newKey, staticToken } from "../../sdk/typescript/dist/index.js";
import { clientFromFile, connect, overSocket } from "../../sdk/typescript/dist/node.js";
import { Policy, recordsSignature, verifyAudit, verifyManifest, verifyPayout, verifyReceipt } from "../../sdk/typescript/dist/verify/index.js";

const [data, out] = process.argv.slice(2);
const json = (path) => JSON.parse(readFileSync(join(data, path), "utf8"));
const { services } = json("run/endpoints.json");
const socket = (name) => services.find((s) => s.service === name).api_socket;
const port = (name) => services.find((s) => s.service === name).api;
const verifiers = json("verifiers.json");
const refused = (code, call) => assert.rejects(call, (error) => error instanceof Refused && error.code === code);

async function eventually(call) {
  for (let left = 100; ; left -= 1) {
    try {
      return await call();
    } catch (error) {
      // Not covered by a checkpoint, or not cosigned yet.
      if (left === 0 || !(error instanceof VerificationError || [404, 409].includes(error.status))) throw error;
    }
    await new Promise((done) => setTimeout(done, 100));
  }
}

const client = (asked) => clientFromFile(socket("svc-passport"), join(data, "clients/operator.json"), { audience: "svc-wallet", ...asked });
const token = client({});
const wallet = new Wallet(connect(socket("svc-wallet")), token);
const other = new Wallet(port("svc-wallet"), token);

const [payer, payee, asset] = ["acct:ts-payer", "acct:ts-payee", "ron"];
const issued = await wallet.submit({ op: "issue", to: payer, asset, amount: 10_000n });
assert.deepEqual([issued.receipt.op, issued.receipt.amount, issued.replayed], ["issue", 10_000n, false]);
const key = newKey();
const about = { basket: "b-1", channel: "web" };
const effectiveAt = "2026-11-25T00:00:00.000Z";
const move = (amount, more = {}) => ({ op: "transfer", from: payer, to: payee, asset, amount, ...more });
const pay = move(250n, { memo: "two books", reference: "order-17", metadata: about, effectiveAt });
const paid = await wallet.submit(pay, { key });
assert.deepEqual(paid.private, { idem: key, memo: "two books", metadata: about, reference: "order-17", effectiveAt });
const again = await other.submit(pay, { key });
assert.ok(again.replayed);
assert.deepEqual(again.receipt, paid.receipt);
await refused("idempotency_mismatch", () => wallet.submit(move(251n), { key }));
const short = await wallet.submit(move(10n ** 9n)).catch((error) => error);
assert.equal(short.code, "insufficient_funds");
assert.deepEqual(await wallet.operation(short.key), { outcome: "refused", code: "insufficient_funds" });
assert.deepEqual((await wallet.operation(key)).receipt, paid.receipt);
assert.equal(await wallet.operation(newKey()), undefined);

await wallet.submit(move(5n, { nonce: 1 }));
const conflict = await wallet.submit(move(5n, { nonce: 7 })).catch((error) => error);
assert.deepEqual([conflict.code, conflict.expected], ["nonce_conflict", 2]);
await wallet.submit(move(5n, { nonce: 7 }), { key: conflict.key, renumber: true });

const expiresAt = new Date(Date.now() + 3_600_000).toISOString();
const reserve = async (amount) => (await wallet.submit({ op: "hold", from: payer, asset, amount, expiresAt })).receipt.txid;
let hold = await reserve(600n);
assert.equal((await wallet.submit({ op: "capture", hold, to: payee, amount: 200n })).receipt.hold, hold);
assert.deepEqual([(await wallet.hold(hold)).remaining, (await wallet.hold(hold)).state], [400n, "open"]);
await wallet.submit({ op: "capture", hold, to: payee, amount: 100n, final: true });
assert.equal((await wallet.hold(hold)).state, "ended");
await wallet.submit({ op: "release", hold: await reserve(30n), memo: "not wanted" });
hold = await reserve(40n);
assert.equal((await wallet.submit({ op: "capture", hold, to: payee })).receipt.amount, 40n);
await wallet.submit({ op: "burn", from: payer, asset, amount: 50n });

const whole = await wallet.batch([move(1n), { ...move(2n), to: "acct:ts-fee" }], { linked: true });
assert.deepEqual(whole.results.map((item) => item.receipt.amount), [1n, 2n]);
assert.deepEqual((await wallet.operation(whole.key)).results, whole.results);
const apart = await wallet.batch([{ op: "issue", to: payer, asset, amount: 1n }, move(10n ** 9n)]);
assert.deepEqual([apart.results[0].outcome, apart.results[1].code], ["done", "insufficient_funds"]);

const saver = "acct:ts-other", fee = "acct:ts-fee";
await wallet.submit({ op: "issue", to: saver, asset, amount: 9n });
const own = [{ op: "hold", from: saver, asset, amount: 5n, expiresAt }, { op: "capture", hold: "#0", to: fee, amount: 2n }, { op: "release", hold: "#0" }];
const both = (await wallet.batch(own, { linked: true })).results;
assert.deepEqual(both.map((item) => item.receipt.amount), [5n, 2n, 3n]);
assert.equal(both[1].receipt.hold, both[0].receipt.txid);
const captured = both[1].receipt.txid;
const rest = await wallet.batch([{ op: "transfer", from: saver, to: fee, asset, amount: "max" }, { op: "reverse", txid: captured, amount: 1n }]);
assert.deepEqual(rest.results.map((item) => item.receipt.amount), [7n, 1n]);
assert.equal((await wallet.submit({ op: "burn", from: saver, asset, amount: "max" })).receipt.amount, 1n);

const back = await wallet.submit({ op: "reverse", txid: paid.receipt.txid, amount: 50n });
assert.deepEqual([back.receipt.from, back.receipt.to, back.receipt.reverses], [payee, payer, paid.receipt.txid]);
await refused("reversal_too_large", () => wallet.submit({ op: "reverse", txid: paid.receipt.txid, amount: 201n }));
assert.equal((await wallet.submit({ op: "reverse", txid: paid.receipt.txid })).receipt.amount, 200n);
const found = await wallet.transaction(paid.receipt.txid);
assert.deepEqual([found.receipt, found.private, found.reversed], [paid.receipt, paid.private, 250n]);
const givenUp = newKey();
assert.deepEqual(await wallet.abandon(givenUp), { outcome: "refused", code: "abandoned" });
await refused("abandoned", () => wallet.submit({ op: "issue", to: payer, asset, amount: 1n }, { key: givenUp }));

const mine = await wallet.balance(payer, asset);
assert.deepEqual([mine.amount, mine.available, mine.nonce], [9_598n, 9_598n, 2]);
const minSeq = mine.asOfSeq;
const payments = await wallet.history(payee, { minSeq, direction: "in" });
assert.ok(payments.entries.some((entry) => entry.seq === paid.receipt.seq));
const [entry, ...others] = (await wallet.history(payer, { from: "2020-01-01T00:00:00Z", kind: "transfer", metadata: about })).entries;
assert.deepEqual(others, []);
assert.deepEqual([entry.txid, entry.from, entry.to, entry.amount], [paid.receipt.txid, payer, payee, 250n]);
assert.deepEqual([entry.reference, entry.memo, entry.metadata, entry.effectiveAt], ["order-17", "two books", about, effectiveAt]);
assert.deepEqual((await wallet.history(payer, { metadata: { ...about, channel: "shop" } })).entries, []);
const named = (await wallet.find("order-17", { minSeq, limit: 1 })).entries;
assert.deepEqual(named.map((found) => [found.txid, found.balance]), [[paid.receipt.txid, undefined]]);
const always = ["2020-01-01T00:00:00Z", "2099-01-01T00:00:00Z"];
const statement = await wallet.statement(payer, asset, ...always, { minSeq });
assert.deepEqual([statement.opening, statement.closing, statement.credits - statement.debits], [0n, mine.amount, mine.amount]);
assert.equal(statement.entries.at(-1).balance, mine.amount);
const lines = (await wallet.statementCsv(payer, asset, ...always, { minSeq })).trimEnd().split("\n");
assert.deepEqual([lines.length, lines[0].startsWith("seq,"), lines.at(-1).includes(",closing,")], [statement.entries.length + 3, true, true]);
assert.equal((await wallet.balance(payer, asset, { at: 0 })).amount, 0n);
assert.equal((await wallet.accounts(payer, { minSeq })).get(payer).balances.get(asset).amount, mine.amount);
const ended = await wallet.holds(payer, { asset, state: "ended", minSeq });
assert.deepEqual(ended.map((hold) => hold.captured), [40n, 0n, 300n]);
const { events } = await wallet.events(payee);
assert.ok(events.some((event) => event.seq === paid.receipt.seq));
const first = await wallet.events(payee, 0, { limit: 1 });
assert.deepEqual(first.events.map((event) => event.seq), [events[0].seq]);
assert.ok(first.next < events[1].seq);

// What is set for accounts and assets.
const kept = "acct:ts-kept", coin = "ts-coin";
await refused("not_found", () => wallet.asset(coin));
assert.deepEqual((await wallet.account(kept)).balances, new Map());
await wallet.setAsset(coin, { scale: 2, title: "Coin of the tests", memo: "new" });
assert.deepEqual(await wallet.asset(coin), { asset: coin, scale: 2, title: "Coin of the tests" });
assert.deepEqual((await wallet.assets()).filter((found) => found.asset === coin), [await wallet.asset(coin)]);
await wallet.setAccount(kept, { class: "ts-kept", limits: { asset: coin, creditLimit: 40n, maxBalance: 500n } });
await wallet.submit({ op: "issue", to: kept, asset: coin, amount: 500n });
await refused("max_balance", () => wallet.submit({ op: "issue", to: kept, asset: coin, amount: 1n }));
await wallet.setAccount(kept, { requireNonce: true });
await refused("nonce_conflict", () => wallet.submit({ op: "burn", from: kept, asset: coin, amount: 1n }));
assert.equal((await wallet.account(kept)).requireNonce, true);
await wallet.setAccount(kept, { requireNonce: false });
await wallet.freeze(kept);
await refused("account_frozen", () => wallet.submit({ op: "burn", from: kept, asset: coin, amount: 1n }));
await wallet.freeze(kept, "credits", { memo: "case 9" });
assert.equal((await wallet.account(kept)).frozen, "both");
await wallet.unfreeze(kept, "debits");
await wallet.submit({ op: "transfer", from: kept, to: "acct:ts-paid", asset: coin, amount: 520n });
await wallet.submit({ op: "burn", from: "acct:ts-paid", asset: coin, amount: 30n });
const reserved = (await wallet.submit({ op: "hold", from: kept, asset: coin, amount: 5n, expiresAt })).receipt;
const shown = await wallet.account(kept, { minSeq: reserved.seq });
assert.deepEqual([shown.frozen, shown.closed, shown.class], ["credits", false, "ts-kept"]);
assert.deepEqual(shown.balances.get(coin), { amount: -20n, held: 5n, available: 15n, credits: 500n, debits: 520n, creditLimit: 40n, maxBalance: 500n });
assert.deepEqual(shown.holds, [{ hold: reserved.txid, asset: coin, remaining: 5n, expiresAt }]);
const sums = await wallet.trialBalance(coin, { minSeq: reserved.seq });
const classes = sums.classes.map((c) => [c.class, c.accounts, c.balance]);
assert.deepEqual([sums.issued, sums.burned, classes], [500n, 30n, [[undefined, 1, 490n], ["ts-kept", 1, -20n]]]);
const closed = await wallet.setAccount("acct:ts-closed", { closed: true });
assert.ok((await wallet.account("acct:ts-closed", { minSeq: closed.receipt.seq })).closed);

// What is left of the token that flow.py spent 5 of, and the tenant's webhook endpoint, which is not there.
assert.deepEqual(await wallet.budget(), {});
const capped = new Wallet(connect(socket("svc-wallet")), staticToken(readFileSync(join(out, "capped.token"), "utf8").trim()));
assert.deepEqual(await capped.budget(), { total: { limit: 20n, left: 15n } });
await refused("limits_exceeded", () => capped.submit({ op: "transfer", from: payer, to: fee, asset, amount: 16n }));
const [hook] = await wallet.webhooks();
assert.deepEqual([hook.name, hook.accounts], ["sdk", ["acct:py-hooked"]]);
assert.equal((await wallet.resumeWebhook("sdk", { after: 1 })).name, "sdk");
await refused("not_found", () => wallet.resumeWebhook("other"));

const narrow = new Wallet(overSocket(socket("svc-wallet")), client({ scope: "wallet:read" }));
assert.equal((await narrow.balance(payee, asset)).amount, 351n);
await refused("forbidden", () => narrow.submit({ op: "issue", to: payer, asset, amount: 1n }));
await refused("unauthorized", () => new Wallet(port("svc-wallet"), staticToken("wrong")).balance(payer, asset));
const nowhere = new Wallet(overSocket(join(out, "nowhere.sock")), token, { deadlineMs: 200 });
await assert.rejects(() => nowhere.submit({ op: "issue", to: payer, asset, amount: 1n }), Unreachable);

// Receipts verify alone: one's own, and that of the payee of another payment.
const policy = Policy.parse(readFileSync(join(out, "policy"), "utf8"));
const receiptOf = async (client, txid) => verifyReceipt(await client.receipt(txid, 10), policy);
const proven = await eventually(() => receiptOf(wallet, paid.receipt.txid));
assert.deepEqual([proven.txid, proven.amount, proven.receiptHash], [paid.receipt.txid, 250n, paid.receipt.receiptHash]);
assert.deepEqual([proven.shown.key, proven.shown.memo], [key, "two books"]);
const reader = new Wallet(connect(socket("svc-wallet")), staticToken(readFileSync(join(out, "payee.token"), "utf8")));
const { txid } = verifyReceipt(new Uint8Array(readFileSync(join(out, "payee.receipt.json"))), policy);
assert.deepEqual((await receiptOf(reader, txid)).shown, { reference: "order-17" });
await refused("forbidden", () => reader.balance(payee, asset));

// A token of the payee, as flow.py got it too.
const right = client({ audience: "svc-passport", scope: "passport:issue" });
const issuer = new Passport(connect(socket("svc-passport")), right);
const granted = await issuer.issue("payee", { audience: "svc-wallet", scope: "wallet:read", ttlS: 600, caveats: ["asset=ron"] });
const left = granted.exp - Date.now() / 1000;
assert.ok(left > 0 && left <= 601 && granted.caveats.includes("asset=ron"), `${left} ${granted.caveats}`);
const held = new Wallet(connect(socket("svc-wallet")), staticToken(granted.token));
assert.ok((await held.balance("acct:py-payee", asset)).amount > 0n);
await refused("forbidden", () => held.balance("acct:py-payee", "eur"));
await refused("forbidden", () => issuer.issue("somebody", { audience: "svc-wallet" }));

const kms = new Kms(connect(socket("ron-kms")), staticToken(readFileSync(join(data, "clients/operator.kms.token"), "utf8").trim()));
const signingKey = readFileSync(join(out, "signing-key"), "utf8");
const message = new TextEncoder().encode("invoice 17: 250 minor units");
const signed = await kms.sign(signingKey, message, { wait: 5 });
assert.ok(await kms.verify(signingKey, message, signed.signatures));
assert.ok(!(await kms.verify(signingKey, message.slice(1), signed.signatures)));
assert.equal(await kms.auditVkey(), verifiers.audit_vkey);
const audit = await kms.auditEntry(signed.receipt.index);
const audited = verifyAudit(audit, signed.proof ?? (await eventually(() => kms.auditProof(signed.receipt.index))), new Policy(verifiers.audit_vkey));
assert.deepEqual([audited.index, audited.opId], [BigInt(signed.receipt.index), signed.opId]);
assert.ok(recordsSignature(audited, message, signed.signatures.map((s) => s.signature)));
const unknown = new Kms(connect(socket("ron-kms")), staticToken("wrong"));
await assert.rejects(() => unknown.sign(signingKey, message), (error) => error instanceof Refused && !(error instanceof OutcomeUnknown) && error.status === 401);

const asked = { audience: "svc-rewarder", scope: "rewarder:read" };
const rewarder = new Rewarder(connect(socket("svc-rewarder")), client(asked));
assert.equal((await rewarder.epoch("sdk:1")).state, "settled");
const signature = new Uint8Array(readFileSync(join(out, "run.sig.json")));
const manifest = verifyManifest(await rewarder.manifest("sdk:1"), signature, verifiers.manifest_public_key);
const payout = verifyPayout(await rewarder.proof("sdk:1", "acct:bob"), verifiers.manifest_public_key);
assert.equal(payout.amount, (await wallet.balance("acct:bob", manifest.asset)).amount);
assert.equal((await rewarder.explanation("sdk:1", "acct:bob")).paid_minor, String(payout.amount));
await refused("not_found", () => rewarder.proof("sdk:1", "acct:nobody"));
const dryRuns = await rewarder.dryRuns("sdk:1");
const [rehearsal] = dryRuns;
assert.ok(rehearsal.dryRun && dryRuns.length === 1);
assert.deepEqual(await rewarder.epoch("sdk:1", rehearsal.runKey), rehearsal);
assert.equal((await rewarder.explanation("sdk:1", "acct:bob", rehearsal.runKey)).paid_minor, String(payout.amount));
await refused("not_found", () => rewarder.manifest("sdk:1", `b3:${"0".repeat(64)}`));
console.log("typescript: everything as expected");
