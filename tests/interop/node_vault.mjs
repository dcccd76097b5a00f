// Vault's client of npm, unmodified, against the Transit API of ron-kms.
//
// usage: node_vault.mjs BASE   (the token on standard input)
// Exits 1 at the first difference.

import assert from "node:assert";
import { readFileSync } from "node:fs";
import vault from "node-vault";

const client = vault({ endpoint: process.argv[2], token: readFileSync(0, "utf8").trim() });
const text = Buffer.from("a message").toString("base64");

assert.equal((await client.health()).sealed, false);
assert.equal((await client.tokenLookupSelf()).data.renewable, false);
await assert.rejects(client.tokenRenewSelf(), /not renewable/);

await client.transitCreateKey({ name: "Node-Key" });
const made = await client.encryptData({ name: "Node-Key", plaintext: text });
const back = await client.decryptData({ name: "Node-Key", ciphertext: made.data.ciphertext });
assert.equal(back.data.plaintext, text);
const moved = await client.rewrapData({ name: "Node-Key", ciphertext: made.data.ciphertext });
assert.match(moved.data.ciphertext, /^vault:v1:/);
assert.equal((await client.transitReadKey({ name: "Node-Key" })).data.type, "aes256-gcm96");
assert.deepEqual((await client.transitListKeys()).data.keys, ["Node-Key"]);
await client.write("transit/keys/node-signer", { type: "ed25519", auto_rotate_period: "720h0m0s" });
const signed = await client.write("transit/sign/node-signer", { input: text });
const checked = await client.write("transit/verify/node-signer", { input: text, signature: signed.data.signature });
assert.equal(checked.data.valid, true);
const exported = await client.read("transit/export/public-key/node-signer");
assert.equal(Buffer.from(exported.data.keys["1"], "base64").length, 32);
await assert.rejects(client.read("transit/export/signing-key/node-signer"), /not exportable/);
await assert.rejects(client.decryptData({ name: "nobody", ciphertext: made.data.ciphertext }), /no key of this name/);
await assert.rejects(vault({ endpoint: process.argv[2], token: "no" }).transitListKeys(), (error) => {
  assert.equal(error.response.statusCode, 403);
  assert.ok(error.response.body.errors.length > 0);
  return true;
});
console.log("done");
