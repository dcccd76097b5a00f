// oidc-provider as an issuer of client_credentials tokens, in its fastest setup here: a cluster of two processes that keep
// connections alive. JWT access tokens signed with EdDSA for issuing; opaque ones for introspection, because its
// introspection knows no others. Their records are shared by message, so that each process knows every token.
// usage: server.mjs PORT CLIENT_ID CLIENT_SECRET PROCESSES
import cluster from 'node:cluster';
import { generateKeyPairSync } from 'node:crypto';
import { createServer } from 'node:http';
import Provider from 'oidc-provider';

const [port, id, secret, processes] = process.argv.slice(2);

if (cluster.isPrimary) {
  const { privateKey } = generateKeyPairSync('ed25519');
  const key = JSON.stringify({ ...privateKey.export({ format: 'jwk' }), alg: 'EdDSA', use: 'sig' });
  const workers = Array.from({ length: Number(processes) }, () => cluster.fork({ SIGNING_KEY: key }));
  let listening = 0;
  for (const worker of workers) {
    worker.on('message', (record) => workers.filter((w) => w !== worker).forEach((w) => w.send(record)));
    worker.on('listening', () => {
      listening += 1;
      if (listening === workers.length) console.log('ready');
    });
    worker.on('exit', () => process.exit(1));
  }
  process.on('SIGTERM', () => process.exit(0));
} else {
  const records = new Map();
  const keep = ({ key, payload }) => records.set(key, payload);
  process.on('message', keep);
  class Shared {
    constructor(kind) { this.kind = kind; }
    async upsert(name, payload) {
      const record = { key: `${this.kind}:${name}`, payload };
      keep(record);
      process.send(record);
    }
    async find(name) { return records.get(`${this.kind}:${name}`); }
    async findByUid() {}
    async findByUserCode() {}
    async consume() {}
    async destroy(name) { records.delete(`${this.kind}:${name}`); }
    async revokeByGrantId() {}
  }
  const provider = new Provider(`http://127.0.0.1:${port}`, {
    adapter: Shared,
    clients: [{
      client_id: id, client_secret: secret, grant_types: ['client_credentials'], redirect_uris: [], response_types: [],
      token_endpoint_auth_method: 'client_secret_post', id_token_signed_response_alg: 'EdDSA',
    }],
    jwks: { keys: [JSON.parse(process.env.SIGNING_KEY)] },
    scopes: ['wallet:read'],
    features: {
      devInteractions: { enabled: false },
      clientCredentials: { enabled: true },
      introspection: { enabled: true, allowedPolicy: () => true },
      resourceIndicators: {
        enabled: true,
        defaultResource: () => 'urn:wallet:jwt',
        useGrantedResource: () => true,
        getResourceServerInfo: (_, resource) => ({
          scope: 'wallet:read', audience: 'svc-wallet', accessTokenTTL: 900,
          accessTokenFormat: resource.endsWith(':jwt') ? 'jwt' : 'opaque', jwt: { sign: { alg: 'EdDSA' } },
        }),
      },
    },
  });
  const server = createServer(provider.callback());
  server.keepAliveTimeout = 60_000;
  server.listen(Number(port), '127.0.0.1');
}
