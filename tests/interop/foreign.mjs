// A service of its own, outside of the installation, that protects itself with npm jose: key set and issuer from discovery;
// signature, iss, aud, exp and typ checked; then the scope.
//
// usage: foreign.mjs   (standard input: {"base", "audience", "scope", "tokens": [tokens]})
// Prints the status that it answers each token with: 200, 401, or 403 when the scope is missing.

import { readFileSync } from "node:fs";
import { createRemoteJWKSet, errors, jwtVerify } from "jose";

const asked = JSON.parse(readFileSync(0, "utf8"));
const meta = await (await fetch(`${asked.base}/.well-known/oauth-authorization-server`)).json();
if (!meta.scopes_supported.includes(asked.scope)) throw new Error("the metadata do not list the scope");
const set = createRemoteJWKSet(new URL(meta.jwks_uri));
const options = { issuer: meta.issuer, audience: asked.audience, typ: "at+jwt", algorithms: ["EdDSA", "ES256"] };

for (const token of asked.tokens) {
  try {
    const { payload } = await jwtVerify(token, set, options);
    console.log(payload.scope.split(" ").includes(asked.scope) ? 200 : 403);
  } catch (error) {
    if (!(error instanceof errors.JOSEError)) throw error;
    console.log(401);
  }
}
