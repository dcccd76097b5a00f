"""Verifies tokens while the issuer's key is rotated, with PyJWT's clients of key sets and their caches.

usage: rotation.py JWKS_URL ISSUER AUDIENCE COOLDOWN_MS   (standard input: a token in each line)
A client keeps its keys for five minutes and reads unknown ones once in COOLDOWN_MS. One is added each second, so that some have read
just before any rotation. At the end prints {"verified": n, "refused": {error: n}}.
"""

import json
import sys
import time
from collections import Counter

import jwt

url, issuer, audience, cooldown = sys.argv[1:5]
clients = []
verified, refused = 0, Counter()
for line in sys.stdin:
    token = line.strip()
    if not clients or time.monotonic() - added >= 1:
        clients.append(jwt.PyJWKClient(url, cooldown_duration=int(cooldown) / 1000))
        added = time.monotonic()
    for client in clients:
        try:
            key = client.get_signing_key_from_jwt(token)
            jwt.decode(token, key, algorithms=["EdDSA"], issuer=issuer, audience=audience)
            verified += 1
        except jwt.PyJWTError as e:
            refused[type(e).__name__] += 1
print(json.dumps({"verified": verified, "refused": refused}))
