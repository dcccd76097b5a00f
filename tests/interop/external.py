"""Another issuer, made of PyJWT, joserfc and cryptography: it has keys of all kinds and signs what it is told.

usage: external.py keys DIR   writes a private key of each kind into DIR and prints their public JWK sets by name
       external.py sign DIR   (standard input: a list of {"with", "alg", "header", "claims"}) prints one token a line

"with" is the library, or "hand" for what no library signs: "none", and an HMAC whose secret is the public key.
"""

import base64
import hashlib
import hmac
import json
import pathlib
import sys

import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from joserfc import jwk as joserfc_jwk
from joserfc import jwt as joserfc_jwt

KINDS = {
    "rsa": lambda: rsa.generate_private_key(65537, 2048),
    "rsa-next": lambda: rsa.generate_private_key(65537, 3072),
    "p256": lambda: ec.generate_private_key(ec.SECP256R1()),
    "p384": lambda: ec.generate_private_key(ec.SECP384R1()),
    "ed25519": ed25519.Ed25519PrivateKey.generate,
}


def public(private):
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    return private.public_key().public_bytes(serialization.Encoding.PEM, form)


def keys(home):
    sets = {}
    for name, make in KINDS.items():
        private = make()
        pem = private.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        (home / f"{name}.pem").write_bytes(pem)
        sets[name] = joserfc_jwk.import_key(public(private), {"ed25519": "OKP", "p256": "EC", "p384": "EC"}.get(name, "RSA"))
    print(json.dumps({name: dict(key.as_dict(private=False), kid=name) for name, key in sets.items()}))


def part(value):
    return base64.urlsafe_b64encode(value).rstrip(b"=").decode()


def by_hand(key, alg, header, claims):
    signed = ".".join(part(json.dumps(one).encode()) for one in (dict(header, alg=alg), claims))
    mac = hmac.new(public(key), signed.encode(), hashlib.sha256).digest() if alg == "HS256" else b""
    return f"{signed}.{part(mac)}"


def sign(home):
    for one in json.load(sys.stdin):
        pem = (home / f"{one['key']}.pem").read_bytes()
        private = serialization.load_pem_private_key(pem, None)
        header, claims, alg = one.get("header", {}), one["claims"], one["alg"]
        if header.get("jwk") == "own":
            header["jwk"] = {k: v for k, v in joserfc_jwk.import_key(public(private)).as_dict(private=False).items() if k != "kid"}
        library = one["with"]
        if library == "hand":
            print(by_hand(private, alg, header, claims))
        elif library == "pyjwt":
            print(jwt.encode(claims, private, algorithm=alg, headers=header))
        else:
            key = joserfc_jwk.import_key(pem)
            print(joserfc_jwt.encode(dict(header, alg=alg), claims, key, algorithms=[alg]))


if __name__ == "__main__":
    {"keys": keys, "sign": sign}[sys.argv[1]](pathlib.Path(sys.argv[2]))
