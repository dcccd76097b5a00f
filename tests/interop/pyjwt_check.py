"""Verifies a passport as any PyJWT user would: key set from the JWKS URL, signature, iss, aud, exp.

usage: pyjwt_check.py JWKS_URL ISSUER AUDIENCE   (the token comes on standard input)
Prints the claims as JSON; exits 1 when PyJWT refuses the token, or accepts a tampered one.
"""

import json
import sys

import jwt


def verify(token, jwks_url, issuer, audience):
    key = jwt.PyJWKClient(jwks_url).get_signing_key_from_jwt(token)
    return jwt.decode(
        token,
        key.key,
        algorithms=["EdDSA", "ES256"],
        issuer=issuer,
        audience=audience,
        options={"require": ["exp", "iat", "nbf", "iss", "aud", "sub", "jti"]},
    )


def main():
    jwks_url, issuer, audience = sys.argv[1:4]
    token = sys.stdin.read().strip()
    claims = verify(token, jwks_url, issuer, audience)
    header = jwt.get_unverified_header(token)
    if header["typ"] != "at+jwt":
        sys.exit("typ is not at+jwt")
    head, body, signature = token.split(".")
    flipped = ("A" if signature[10] != "A" else "B")
    for bad in (
        f"{head}.{body}.{signature[:10]}{flipped}{signature[11:]}",
        f"{head}.{body[:20]}{'A' if body[20] != 'A' else 'B'}{body[21:]}.{signature}",
    ):
        try:
            verify(bad, jwks_url, issuer, audience)
        except (jwt.PyJWTError, ValueError):
            continue
        sys.exit("a tampered token was accepted")
    print(json.dumps(claims))


if __name__ == "__main__":
    main()
