// A client of the issuer with oauth4webapi and a certificate: it reads the metadata at the address that asks for no certificate,
// and finds the endpoints that do in them (RFC 8705 section 5).
//
// usage: mtls.mjs BASE CLIENT AUDIENCE CA CERT KEY   (the last three are PEM files)
// Prints {"asked": the URL of the token request, "status", "bound": the `cnf` of the token}.

import { readFileSync } from "node:fs";
import https from "node:https";
import * as oauth from "oauth4webapi";

const [base, id, audience, ca, cert, key] = process.argv.slice(2);
const trust = { ca: readFileSync(ca) };
const own = { ...trust, cert: readFileSync(cert), key: readFileSync(key) };

// `fetch` of Node has no client certificates.
const request = (url, { method = "GET", headers = {}, body }, tls) =>
  new Promise((done, failed) => {
    const call = https.request(url, { method, headers, ...tls }, (answer) => {
      const parts = [];
      answer.on("data", (part) => parts.push(part));
      answer.on("end", () => {
        const type = answer.headers["content-type"] ?? "";
        done(new Response(Buffer.concat(parts), { status: answer.statusCode, headers: { "content-type": type } }));
      });
    });
    call.on("error", failed);
    call.end(body?.toString());
  });

// Read by hand: the issuer of a test has another name than the address at which it listens.
const found = await request(`${base}/.well-known/oauth-authorization-server`, {}, trust);
const server = await found.json();
let asked;
const certified = {
  [oauth.customFetch]: (url, options) => {
    asked = url;
    return request(url, options, own);
  },
};
const client = { client_id: id, use_mtls_endpoint_aliases: true };
const answer = await oauth.clientCredentialsGrantRequest(
  server, client, oauth.TlsClientAuth(), { audience }, certified);
const { status } = answer;
const { access_token } = await oauth.processClientCredentialsResponse(server, client, answer);
const { cnf } = JSON.parse(Buffer.from(access_token.split(".")[1], "base64url"));
console.log(JSON.stringify({ asked, status, bound: cnf }));
