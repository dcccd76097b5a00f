// A company's OpenID provider: npm oidc-provider with one native application, another one that has a secret, and its own login form. Accounts are members
// of the group "payments-admins", but those whose name begins with "guest" of the group "guests".
// usage: company.mjs PORT CLIENT_ID SECRET METHOD
import { generateKeyPairSync } from 'node:crypto';
import { createServer } from 'node:http';
import Provider from 'oidc-provider';

const [port, id, secret, method] = process.argv.slice(2);
const { privateKey } = generateKeyPairSync('rsa', { modulusLength: 2048 });
const key = { ...privateKey.export({ format: 'jwk' }), kid: 'company-1', alg: 'RS256', use: 'sig' };
const provider = new Provider(`http://127.0.0.1:${port}`, {
  clients: [{
    client_id: id, application_type: 'native', token_endpoint_auth_method: 'none', grant_types: ['authorization_code'],
    response_types: ['code'], redirect_uris: ['http://127.0.0.1/callback'],
  }, {
    client_id: `${id}-with-secret`, client_secret: secret, application_type: 'native', token_endpoint_auth_method: method,
    grant_types: ['authorization_code'], response_types: ['code'], redirect_uris: ['http://127.0.0.1/callback'],
  }],
  clientAuthMethods: ['none', method],
  claims: { openid: ['sub'], groups: ['groups'] },
  // Claims in the ID token itself, as many companies have them.
  conformIdTokenClaims: false,
  cookies: { keys: ['for tests alone'] },
  pkce: { required: () => true },
  jwks: { keys: [key] },
  findAccount: (_, name) => ({
    accountId: name,
    claims: () => ({ sub: name, groups: [name.startsWith('guest') ? 'guests' : 'payments-admins'] }),
  }),
});
createServer(provider.callback()).listen(Number(port), '127.0.0.1', () => console.log('ready'));
