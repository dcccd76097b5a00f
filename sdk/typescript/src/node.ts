/** What needs Node: Unix sockets, and files with secrets. */
import { readFileSync, statSync } from "node:fs";
import { Agent, request } from "node:http";
import { type Asked, ClientCredentials } from "./auth.js";
import { RonError, UnexpectedAnswer, said } from "./errors.js";
import { Answer, NotSent, type Transport, overFetch, overUrls } from "./http.js";

/** Largest answer that is read, in bytes. */
const ANSWER_BYTES_MAX = 16 * 1024 * 1024;

/**
 * A transport over a Unix socket, given as `unix:/path/to/api.sock` or as a path. Node cannot ask which user serves a
 * socket, so use sockets in directories that only trusted users may write to (`ron init` makes such directories).
 */
export function overSocket(socket: string): Transport {
  const socketPath = socket.replace(/^unix:/, "").replace(/:$/, "");
  const agent = new Agent({ keepAlive: true, maxSockets: 16 });
  return ({ method, path, headers, body, timeoutMs }) =>
    new Promise((done, failed) => {
      const signal = AbortSignal.timeout(timeoutMs);
      const call = request({ agent, socketPath, method, path, headers, signal }, (response) => {
        const parts: Buffer[] = [];
        let length = 0;
        response.on("data", (part: Buffer) => {
          parts.push(part);
          length += part.length;
          if (length > ANSWER_BYTES_MAX) response.destroy(new UnexpectedAnswer(`an answer of more than ${ANSWER_BYTES_MAX} bytes`));
        });
        response.on("error", failed);
        response.on("end", () => {
          const header = (name: string): string | null => response.headers[name.toLowerCase()]?.toString() ?? null;
          done(new Answer(response.statusCode ?? 0, header, new Uint8Array(Buffer.concat(parts))));
        });
      });
      call.on("error", (error: NodeJS.ErrnoException) =>
        failed(["ECONNREFUSED", "ENOENT", "EACCES"].includes(error.code ?? "") ? new NotSent(said(error)) : error),
      );
      call.end(body);
    });
}

/** A transport for any address (`unix:/path`, `http://host:port`, `https://host:port`), or for those of a service's nodes. */
export function connect(urls: string | readonly string[]): Transport {
  return overUrls(urls, (url) => (url.startsWith("unix:") ? overSocket(url) : overFetch(url)));
}

/** Tokens for the client of a file as `ron init` and `ron client secret` write it; other users may not be able to read it. */
export function clientFromFile(issuer: Transport | string | readonly string[], path: string, asked: Asked): ClientCredentials {
  if ((statSync(path).mode & 0o077) !== 0) throw new RonError(`${path} can be read by others; run: chmod 600 ${path}`);
  const file = JSON.parse(readFileSync(path, "utf8")) as { client_id: string; client_secret: string };
  return new ClientCredentials(typeof issuer === "function" ? issuer : connect(issuer), file, asked);
}
