// A client of the issuer with oauth4webapi and a DPoP key: the issuer demands a nonce, the library answers with it, and the token is bound.
//
// usage: nonces.mjs BASE CLIENT SECRET AUDIENCE RESOURCE   (RESOURCE is a URL that takes the token)
// Prints {"first": the error without a nonce, "requests": requests to the token endpoint, "tokens": n, "statuses": of RESOURCE}.

import * as oauth from "oauth4webapi";

const [base, id, secret, audience, resource] = process.argv.slice(2);
const insecure = { [oauth.allowInsecureRequests]: true };
let requests = 0;
const counted = {
  ...insecure,
  [oauth.customFetch]: (...asked) => {
    requests += 1;
    return fetch(...asked);
  },
};

// Read by hand: the issuer of a test has another name than the address at which it listens.
const server = await (await fetch(`${base}/.well-known/oauth-authorization-server`)).json();
const client = { client_id: id };
const keys = await oauth.generateKeyPair("ES256");
const DPoP = oauth.DPoP(client, keys);

const ask = async () => {
  const answer = await oauth.clientCredentialsGrantRequest(
    server, client, oauth.ClientSecretBasic(secret), { audience }, { DPoP, ...counted });
  return oauth.processClientCredentialsResponse(server, client, answer);
};
let first;
const token = async () => {
  try {
    return await ask();
  } catch (e) {
    if (!oauth.isDPoPNonceError(e)) throw e;
    first ??= { error: e.error, status: e.status };
    return ask();
  }
};

const tokens = [await token(), await token()];
const statuses = [];
for (const { access_token, token_type } of tokens) {
  if (token_type !== "dpop") throw new Error(`a ${token_type} token`);
  const asked = [access_token, "GET", new URL(resource), new Headers(), null];
  const answer = await oauth.protectedResourceRequest(...asked, { DPoP, ...insecure });
  statuses.push(answer.status);
}
console.log(JSON.stringify({ first, requests, tokens: tokens.length, statuses }));
