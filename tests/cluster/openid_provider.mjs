// An OpenID provider for tests: npm's oidc-provider, whose own pages take any password.
// Standard input is a line of JSON: the port, the clients, and the claims of each login.
import { createInterface } from 'node:readline';
import Provider from 'oidc-provider';

createInterface({ input: process.stdin }).once('line', (line) => {
  const { port, clients, people } = JSON.parse(line);
  const provider = new Provider(`http://127.0.0.1:${port}`, {
    clients,
    claims: { openid: ['sub', 'ldap_id', 'preferred_username'] },
    conformIdTokenClaims: false, // they are in the ID token
    features: { devInteractions: { enabled: true } },
    findAccount: (_, login) => ({
      accountId: login,
      claims: () => ({ sub: login, ...people[login] }),
    }),
  });
  provider.listen(port, '127.0.0.1', () => console.log('ready'));
});
