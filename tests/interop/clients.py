"""Verifies passports with PyJWT, joserfc, jwcrypto and authlib, as their users would: metadata, key set, signature,
iss, aud, exp.

usage: clients.py   (standard input: {"base", "audience", "good": [tokens], "bad": [tokens]})
Prints the libraries that accept every good token and refuse every bad one, one per line; exits 1 otherwise.
"""

import json
import sys
import urllib.request

import jwt
from authlib.jose import JsonWebKey, JsonWebToken
from joserfc import jwk as joserfc_jwk
from joserfc import jwt as joserfc_jwt
from jwcrypto import jwk as jwcrypto_jwk
from jwcrypto import jwt as jwcrypto_jwt

ALGS = ["EdDSA", "ES256", "RS256"]


def read(url):
    with urllib.request.urlopen(url, timeout=10) as answer:
        return json.load(answer)


def pyjwt(token, meta, jwks, audience):
    key = jwt.PyJWKClient(meta["jwks_uri"]).get_signing_key_from_jwt(token)
    return jwt.decode(token, key.key, algorithms=ALGS, issuer=meta["issuer"], audience=audience)


def joserfc(token, meta, jwks, audience):
    keys = joserfc_jwk.KeySet.import_key_set(jwks)
    decoded = joserfc_jwt.decode(token, keys, algorithms=ALGS)
    joserfc_jwt.JWTClaimsRegistry(
        iss={"essential": True, "value": meta["issuer"]},
        aud={"essential": True, "value": audience},
        exp={"essential": True},
    ).validate(decoded.claims)
    return decoded.claims


def jwcrypto(token, meta, jwks, audience):
    keys = jwcrypto_jwk.JWKSet.from_json(json.dumps(jwks))
    decoded = jwcrypto_jwt.JWT(
        jwt=token,
        key=keys,
        algs=ALGS,
        check_claims={"iss": meta["issuer"], "aud": audience, "exp": None},
    )
    return json.loads(decoded.claims)


def authlib(token, meta, jwks, audience):
    options = {
        "iss": {"essential": True, "value": meta["issuer"]},
        "aud": {"essential": True, "value": audience},
        "exp": {"essential": True},
    }
    claims = JsonWebToken(ALGS).decode(token, JsonWebKey.import_key_set(jwks), claims_options=options)
    claims.validate()
    return claims


def main():
    asked = json.load(sys.stdin)
    meta = read(asked["base"] + "/.well-known/oauth-authorization-server")
    jwks = read(meta["jwks_uri"])
    for verify in (pyjwt, joserfc, jwcrypto, authlib):
        for token in asked["good"]:
            claims = verify(token, meta, jwks, asked["audience"])
            if claims["client_id"] != "operator":
                sys.exit(f"{verify.__name__}: other claims than were issued")
        for token in asked["bad"]:
            try:
                verify(token, meta, jwks, asked["audience"])
            except Exception:  # each library has its own; any refusal will do
                continue
            sys.exit(f"{verify.__name__} accepted {token[:60]}")
        print(verify.__name__)


if __name__ == "__main__":
    main()
