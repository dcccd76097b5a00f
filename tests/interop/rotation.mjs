// Verifies tokens while the issuer's key is rotated, with npm jose's remote key sets and with key sets that are read again by a timer alone.
//
// usage: rotation.mjs JWKS_URL ISSUER AUDIENCE COOLDOWN_MS   (standard input: a token in each line)
// A remote set keeps its keys for ten minutes and reads unknown ones once in COOLDOWN_MS. One is added each second, so that some were
// read just before any rotation. At the end prints {"verified": n, "refused": {code: n}}.

import { createInterface } from "node:readline";
import { createLocalJWKSet, createRemoteJWKSet, jwtVerify } from "jose";

const [url, issuer, audience, cooldown] = process.argv.slice(2);
const sets = [];
const remote = () => sets.push(createRemoteJWKSet(new URL(url), { cooldownDuration: Number(cooldown) }));
remote();
setInterval(remote, 1000).unref();

// As its Cache-Control says, and never in between.
const timed = async () => {
  let keys;
  const read = async () => {
    const answer = await fetch(url);
    const age = Number(/max-age=(\d+)/.exec(answer.headers.get("cache-control"))[1]);
    keys = createLocalJWKSet(await answer.json());
    setTimeout(read, age * 1000).unref();
  };
  await read();
  sets.push((...asked) => keys(...asked));
};
await timed();

let verified = 0;
const refused = {};
for await (const token of createInterface({ input: process.stdin })) {
  for (const set of [...sets]) {
    try {
      await jwtVerify(token, set, { issuer, audience, typ: "at+jwt", algorithms: ["EdDSA"] });
      verified += 1;
    } catch (e) {
      refused[e.code] = (refused[e.code] ?? 0) + 1;
    }
  }
}
console.log(JSON.stringify({ verified, refused }));
