// Verifies passports with npm jose and fast-jwt, as their users would: metadata, key set, signature, iss, aud, exp.
//
// usage: clients.mjs   (standard input: {"base", "audience", "good": [tokens], "bad": [tokens]})
// Prints the libraries that accept every good token and refuse every bad one, one per line; exits 1 otherwise.

import { createPublicKey } from "node:crypto";
import { readFileSync } from "node:fs";
import { createVerifier } from "fast-jwt";
import { createRemoteJWKSet, jwtVerify } from "jose";

const asked = JSON.parse(readFileSync(0, "utf8"));
const read = async (url) => (await fetch(url)).json();
const meta = await read(`${asked.base}/.well-known/oauth-authorization-server`);
const algorithms = ["EdDSA", "ES256", "RS256"];

const set = createRemoteJWKSet(new URL(meta.jwks_uri));
const jose = async (token) =>
  (await jwtVerify(token, set, { issuer: meta.issuer, audience: asked.audience, typ: "at+jwt", algorithms })).payload;

const jwks = await read(meta.jwks_uri);
const fast = createVerifier({
  key: async ({ header }) => {
    const jwk = jwks.keys.find((key) => key.kid === header.kid);
    return createPublicKey({ key: jwk, format: "jwk" }).export({ type: "spki", format: "pem" });
  },
  algorithms,
  allowedIss: meta.issuer,
  allowedAud: asked.audience,
});

for (const [name, verify] of [["jose", jose], ["fast-jwt", fast]]) {
  for (const token of asked.good) {
    const claims = await verify(token);
    if (claims.client_id !== "operator") throw new Error(`${name}: other claims than were issued`);
  }
  for (const token of asked.bad) {
    const accepted = await Promise.resolve()
      .then(() => verify(token))
      .then(() => true, () => false);
    if (accepted) throw new Error(`${name} accepted ${token.slice(0, 60)}`);
  }
  console.log(name);
}
