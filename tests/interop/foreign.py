"""A service of its own, outside of the installation, that protects itself with PyJWT: key set and issuer from discovery;
signature, iss, aud, exp and typ checked; then the scope.

usage: foreign.py   (standard input: {"base", "audience", "scope", "tokens": [tokens]})
Prints the status that it answers each token with: 200, 401, or 403 when the scope is missing.
"""

import json
import sys
import urllib.request

import jwt


def main():
    asked = json.load(sys.stdin)
    with urllib.request.urlopen(asked["base"] + "/.well-known/oauth-authorization-server") as reply:
        meta = json.load(reply)
    keys = jwt.PyJWKClient(meta["jwks_uri"])
    if asked["scope"] not in meta["scopes_supported"]:
        sys.exit("the metadata do not list the scope")
    for token in asked["tokens"]:
        print(status(token, keys, meta["issuer"], asked["audience"], asked["scope"]))


def status(token, keys, issuer, audience, scope):
    try:
        key = keys.get_signing_key_from_jwt(token)
        claims = jwt.decode(
            token,
            key.key,
            algorithms=["EdDSA", "ES256"],
            issuer=issuer,
            audience=audience,
            options={"require": ["exp", "iat", "iss", "aud", "sub", "jti", "client_id"]},
        )
        if jwt.get_unverified_header(token)["typ"] != "at+jwt":
            return 401
    except jwt.PyJWTError:
        return 401
    return 200 if scope in claims["scope"].split(" ") else 403


if __name__ == "__main__":
    main()
