// A write ends as done, refused or unknown, whatever the service and the network do; and is sent under one key.
import assert from "node:assert/strict";
import { createServer, type Server } from "node:http";
import type { AddressInfo } from "node:net";
import { test } from "node:test";
import { type Operation, OutcomeUnknown, Refused, Unreachable, Wallet, staticToken } from "../src/index.js";
import { overSocket } from "../src/node.js";

const AMOUNT = 2n ** 128n - 1n;
const RECEIPT = {
  txid: "tx_1", op: "transfer", seq: 7, ts: "2026-11-25T00:00:00.000Z", receipt_hash: "b3:0",
  from: "acct:a", to: "acct:b", asset: "ron", amount_minor: AMOUNT.toString(),
};
type Step = readonly [number, object];
const DONE: Step = [200, { receipt: RECEIPT, private: { idem: "order-1" } }];
const BUSY: Step = [429, { code: "busy", retryable: true }];
const LATER: Step = [503, { code: "retry_later", retryable: true }];
const TIMEOUT: Step = [504, { code: "deadline_exceeded", retryable: true }];
const BROKEN: Step = [500, { code: "internal", retryable: false }];
const SHORT: Step = [409, { code: "insufficient_funds", retryable: false, detail: "too little" }];
const MISMATCH: Step = [422, { code: "idempotency_mismatch", retryable: false }];
const IN_FLIGHT: Step = [409, { code: "in_flight", retryable: true }];
const FORBIDDEN: Step = [403, { code: "forbidden", retryable: false }];
const DROP: Step = [0, {}];
const MOVE = { op: "transfer", from: "acct:a", to: "acct:b", asset: "ron", amount: AMOUNT } as const;

interface Stub {
  readonly server: Server;
  readonly url: string;
  readonly seen: string[];
}

/** A service that answers by a script; the last step repeats. */
async function stub(script: readonly Step[], ops: Step = [404, { code: "not_found" }]): Promise<Stub> {
  const left = [...script];
  const seen: string[] = [];
  const server = createServer((request, response) => {
    let body = "";
    request.on("data", (part: Buffer) => (body += part.toString()));
    request.on("end", () => {
      const write = request.method === "POST";
      if (write) seen.push(JSON.stringify([request.url, request.headers["idempotency-key"], request.headers.authorization, body]));
      const [status, answer] = !write ? ops : left.length > 1 ? (left.shift() ?? DONE) : (left[0] ?? DONE);
      if (status === 0) request.socket.destroy();
      else response.writeHead(status).end(JSON.stringify(answer));
    });
  });
  await new Promise<void>((done) => server.listen(0, "127.0.0.1", done));
  return { server, seen, url: `http://127.0.0.1:${(server.address() as AddressInfo).port}` };
}

async function over<T>(script: readonly Step[], use: (wallet: Wallet, seen: string[]) => Promise<T>, deadlineMs = 5000, ops?: Step): Promise<T> {
  const { server, url, seen } = await stub(script, ops);
  try {
    return await use(new Wallet(url, staticToken("t"), { deadlineMs }), seen);
  } finally {
    server.closeAllConnections();
    server.close();
  }
}

function oneRequest(seen: readonly string[], times: number): void {
  assert.equal(seen.length, times);
  assert.equal(new Set(seen).size, 1, "another key or body was sent");
  const [path, key, credential, body] = JSON.parse(seen[0] ?? "") as [string, string, string, string];
  assert.deepEqual([path, key, credential], ["/v1/transfer", "order-1", "Bearer t"]);
  assert.equal((JSON.parse(body) as { amount_minor: string }).amount_minor, AMOUNT.toString());
}

const submit = (wallet: Wallet): Promise<unknown> => wallet.submit(MOVE, { key: "order-1" });

test("done after every kind of failure", async () => {
  for (const script of [[DONE], [BUSY, DONE], [LATER, BUSY, DONE], [TIMEOUT, DONE], [DROP, DONE], [BROKEN, DONE], [DROP, TIMEOUT, IN_FLIGHT, DONE]]) {
    await over(script, async (wallet, seen) => {
      const done = await wallet.submit(MOVE, { key: "order-1" });
      assert.deepEqual([done.key, done.receipt.seq, done.receipt.amount, done.private], ["order-1", 7, AMOUNT, { idem: "order-1" }]);
      oneRequest(seen, script.length);
    });
  }
});

test("refused when nothing can have happened", async () => {
  for (const script of [[SHORT], [BUSY, SHORT], [LATER, SHORT], [FORBIDDEN], [MISMATCH], [DROP, MISMATCH]]) {
    const { code } = script.at(-1)?.[1] as { code: string };
    await over(script, (wallet) => assert.rejects(submit(wallet), (error) => error instanceof Refused && error.key === "order-1" && error.code === code));
  }
});

test("temporary refusals end with the deadline", async () => {
  await over([BUSY], (wallet) => assert.rejects(submit(wallet), (error) => error instanceof Refused && error.retryable), 400);
});

test("unknown when the deadline passes in doubt", async () => {
  for (const script of [[TIMEOUT], [DROP], [DROP, BUSY], [TIMEOUT, LATER], [BROKEN]]) {
    await over(script, async (wallet, seen) => {
      await assert.rejects(submit(wallet), (error) => error instanceof OutcomeUnknown && error.key === "order-1");
      oneRequest(seen, seen.length);
    }, 400);
  }
});

test("a refusal in doubt is confirmed by the key", async () => {
  // The refusal speaks of its own attempt: the first one may have moved the money.
  await over([DROP, FORBIDDEN], (wallet) => assert.rejects(submit(wallet), OutcomeUnknown));
  const refused: Step = [200, { outcome: "refused", code: "insufficient_funds" }];
  const isShort = (error: unknown): boolean => error instanceof Refused && error.code === "insufficient_funds";
  await over([DROP, SHORT], (wallet) => assert.rejects(submit(wallet), isShort), 5000, refused);
  const done: Step = [200, { outcome: "done", receipt: RECEIPT }];
  await over([DROP, FORBIDDEN, DONE], submit, 5000, done);
});

test("nothing was sent is not unknown", async () => {
  const { server, url } = await stub([DONE]);
  await new Promise((closed) => server.close(closed));
  const nowhere = [new Wallet(url, undefined, { deadlineMs: 300 }), new Wallet(overSocket("unix:/nowhere.sock"), undefined, { deadlineMs: 300 })];
  for (const wallet of nowhere) await assert.rejects(submit(wallet), Unreachable);
});

test("a wrong nonce is replaced under the same key", async () => {
  const conflict: Step = [409, { code: "nonce_conflict", retryable: false, details: { expected: 9 } }];
  const move = { ...MOVE, nonce: 4 };
  await over([conflict, DONE], (wallet) => assert.rejects(wallet.submit(move), (error) => error instanceof Refused && error.expected === 9));
  await over([conflict, DONE], async (wallet, seen) => {
    await wallet.submit(move, { key: "order-2", renumber: true });
    const sent = seen.map((line) => JSON.parse(line) as [string, string, string, string]);
    assert.deepEqual(sent.map(([, key, , body]) => [key, (JSON.parse(body) as { nonce: number }).nonce]), [["order-2", 4], ["order-2", 9]]);
  });
});

test("a refused token is renewed once", async () => {
  let renewed = 0;
  const counting = { token: () => Promise.resolve(`t${renewed}`), renew: () => void (renewed += 1) };
  const { server, url, seen } = await stub([[401, { code: "unauthorized", retryable: false }], DONE]);
  await new Wallet(url, counting).submit(MOVE);
  server.closeAllConnections();
  server.close();
  assert.deepEqual(seen.map((line) => (JSON.parse(line) as string[])[2]), ["Bearer t0", "Bearer t1"]);
});

test("a service with several nodes is called where it answers", async () => {
  const stubs: Stub[] = [];
  const node = async (...script: Step[]): Promise<Stub> => {
    stubs.push(await stub(script));
    return stubs.at(-1) as Stub;
  };
  const submitted = async (...urls: string[]): Promise<void> => {
    const done = await new Wallet(urls, staticToken("t"), { deadlineMs: 5000 }).submit(MOVE, { key: "order-1" });
    assert.equal(done.receipt.seq, 7);
  };
  const standby = (active: string): Step => [503, { code: "not_active", retryable: true, details: { active } }];
  try {
    const good = await node(DONE);
    for (const [script, times] of [[[DROP], 1], [[LATER], 1], [[TIMEOUT, DONE], 2]] as const) {
      const first = await node(...script);
      await submitted(first.url, good.url);
      oneRequest(first.seen, times);
    }
    const [first, other] = [await node(standby(`${good.url}/`)), await node(SHORT)];
    await submitted(first.url, other.url, good.url);
    assert.deepEqual([first.seen.length, other.seen.length], [1, 0], "the active node is known");
    const before = good.seen.length;
    const [second, next] = [await node(standby(good.url)), await node(DONE)];
    await submitted("http://127.0.0.1:1", second.url, next.url);
    assert.deepEqual([next.seen.length, good.seen.length], [1, before], "no other URL gets a credential");
    oneRequest(good.seen, good.seen.length);
  } finally {
    for (const { server } of stubs) {
      server.closeAllConnections();
      server.close();
    }
  }
});

test("each operation is sent as the API wants it", async () => {
  const about = { memo: "m", reference: "r", shareReference: false, metadata: { a: "b" }, effectiveAt: "e" };
  const sentAbout = { memo: "m", reference: "r", share_reference: false, metadata: { a: "b" }, effective_at: "e" };
  const to = { to: "b", asset: "ron" };
  const cases: readonly (readonly [Operation, string, object])[] = [
    [{ op: "issue", ...to, amount: 5n }, "/v1/issue", { ...to, amount_minor: "5" }],
    [{ op: "issue", ...to, amount: 5n, ...about }, "/v1/issue", { ...to, amount_minor: "5", ...sentAbout }],
    [{ op: "transfer", from: "a", ...to, amount: 5n, nonce: 1, ...about }, "/v1/transfer", { from: "a", ...to, amount_minor: "5", nonce: 1, ...sentAbout }],
    [{ op: "burn", from: "a", asset: "ron", amount: 5n }, "/v1/burn", { from: "a", asset: "ron", amount_minor: "5" }],
    [{ op: "hold", from: "a", asset: "ron", amount: 5n, expiresAt: "t", nonce: 2 }, "/v1/hold", { from: "a", asset: "ron", amount_minor: "5", expires_at: "t", nonce: 2 }],
    [{ op: "capture", hold: "tx_1/", to: "b", amount: 5n, ...about }, "/v1/hold/tx_1%2F/capture", { to: "b", amount_minor: "5", ...sentAbout }],
    [{ op: "capture", hold: "tx_1", to: "b", final: true }, "/v1/hold/tx_1/capture", { to: "b", final: true }],
    [{ op: "reverse", txid: "tx_1" }, "/v1/tx/tx_1/reverse", {}],
    [{ op: "reverse", txid: "tx_1", amount: 5n, ...about }, "/v1/tx/tx_1/reverse", { amount_minor: "5", ...sentAbout }],
    [{ op: "release", hold: "tx_1", memo: "m" }, "/v1/hold/tx_1/release", { memo: "m" }],
  ];
  for (const [operation, path, body] of cases) {
    await over([DONE], async (wallet, seen) => {
      await wallet.submit(operation);
      const [sentTo, , , sent] = JSON.parse(seen[0] ?? "") as [string, string, string, string];
      assert.deepEqual([sentTo, JSON.parse(sent)], [path, body]);
    });
  }
});

test("amounts are checked before they are sent", async () => {
  for (const amount of [-1n, 2n ** 128n, 1, "1"]) {
    await over([DONE], async (wallet, seen) => {
      await assert.rejects(wallet.submit({ ...MOVE, amount: amount as bigint }), RangeError);
      assert.equal(seen.length, 0);
    });
  }
});
