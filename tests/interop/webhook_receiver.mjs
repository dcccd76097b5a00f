// A receiver of webhooks that checks each message with the library of the Standard Webhooks project.
// usage: node webhook_receiver.mjs SECRET DIR
// Writes its port to DIR/port, and for every request a JSON line to DIR/seen.
import { appendFileSync, renameSync, writeFileSync } from "node:fs";
import { createServer } from "node:http";
import { join } from "node:path";
import { Webhook } from "standardwebhooks";

const [secret, directory] = process.argv.slice(2);

const server = createServer(async (request, response) => {
  const chunks = [];
  for await (const chunk of request) chunks.push(chunk);
  const body = Buffer.concat(chunks).toString();
  let genuine = true;
  try {
    new Webhook(secret).verify(body, request.headers);
  } catch (why) {
    genuine = String(why);
  }
  const seen = { genuine, id: request.headers["webhook-id"], how: "ok", body: JSON.parse(body) };
  appendFileSync(join(directory, "seen"), JSON.stringify(seen) + "\n");
  response.writeHead(204).end();
});

server.listen(0, "127.0.0.1", () => {
  writeFileSync(join(directory, "port.part"), String(server.address().port));
  renameSync(join(directory, "port.part"), join(directory, "port"));
});
