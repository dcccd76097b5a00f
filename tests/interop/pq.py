"""Verifies post-quantum passports with jwcrypto, as its users would: metadata, key sets, signatures, iss, aud, exp.

usage: pq.py   (standard input: {"base", "audience", "good": [tokens], "bad": [tokens]})
A token with dots is a compact JWT signed with ML-DSA; one without is the base64url of a JWS JSON serialization with
two signatures, both of which must verify. Says how many it verified and refused; exits 1 otherwise.
"""

import base64
import json
import sys
import time
import urllib.request

from jwcrypto import jwk, jws, jwt

PQ = ["ML-DSA-44", "ML-DSA-65", "ML-DSA-87"]


def read(url):
    with urllib.request.urlopen(url, timeout=10) as answer:
        return json.load(answer)


def hybrid(text, keys):
    """Every signature, each by the key its own header names."""
    raw = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode()
    general = json.loads(raw)
    algs = []
    for one in general["signatures"]:
        header = json.loads(base64.urlsafe_b64decode(one["protected"] + "=" * (-len(one["protected"]) % 4)))
        algs.append(header["alg"])
        single = jws.JWS()
        single.allowed_algs = ["EdDSA", *PQ]
        single.deserialize(json.dumps({"payload": general["payload"], **one}))
        single.verify(keys.get_key(header["kid"]))
    assert algs[0] == "EdDSA" and algs[1] in PQ, algs
    # All of it again in one call, as the library reads a general serialization.
    whole = jws.JWS()
    whole.allowed_algs = ["EdDSA", *PQ]
    whole.deserialize(raw)
    whole.verify(keys)
    return json.loads(whole.payload)


def verify(token, meta, classical, pq):
    if "." in token:
        checks = {"iss": meta["issuer"], "exp": None}
        return json.loads(jwt.JWT(jwt=token, key=pq, algs=PQ, check_claims=checks).claims)
    both = jwk.JWKSet()
    for key in [*classical["keys"], *pq["keys"]]:
        both.add(key)
    return hybrid(token, both)


def main():
    asked = json.load(sys.stdin)
    meta = read(asked["base"] + "/.well-known/oauth-authorization-server")
    sets = [jwk.JWKSet.from_json(json.dumps(read(meta[name]))) for name in ("jwks_uri", "pq_jwks_uri")]
    for token in asked["good"]:
        claims = verify(token, meta, *sets)
        assert (claims["iss"], claims["aud"]) == (meta["issuer"], asked["audience"])
        assert claims["client_id"] == "operator" and claims["exp"] > time.time()
    for token in asked["bad"]:
        try:
            verify(token, meta, *sets)
        except Exception:  # any refusal will do
            continue
        sys.exit(f"jwcrypto accepted {token[:60]}")
    print(f"jwcrypto verified {len(asked['good'])} and refused {len(asked['bad'])}")


if __name__ == "__main__":
    main()
