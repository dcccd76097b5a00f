"""Makes the golden ciphertexts of docs/formats/envelope.md with Python's cryptography, so that the
format does not rest on our own code: AES-GCM, ChaCha20-Poly1305, AES-256-KWP and HPKE over X25519.

    python tests/interop/envelope_golden.py > crates/ron-kms/src/tests/golden/envelope.json
"""

import json

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite
from cryptography.hazmat.primitives.keywrap import aes_key_wrap_with_padding

ID = "0190f0a0-0000-7000-8000-000000000000"
KEY = bytes(range(32))
TEXT = b"sixteen ton keys"
CODES = {"aes256-gcm": 1, "aes256-kwp": 2, "x25519-hkdf-aes256-gcm": 3, "aes128-gcm": 5, "chacha20-poly1305": 6}


def case(alg, version, aad, body, key=KEY):
    head = bytes([1, CODES[alg]]) + version.to_bytes(4, "big")
    return {
        "key": f"ron/golden/{alg}/{ID}",
        "secret": key.hex(),
        "version": version,
        "aad": aad.hex(),
        "plaintext": TEXT.hex(),
        "ciphertext": (head + body).hex(),
    }


def aead(alg, cipher, key=KEY):
    nonce = bytes.fromhex("0001117b") + bytes(range(0xA0, 0xA8))
    return case(alg, 3, b"row 7", nonce + cipher(key).encrypt(nonce, TEXT, b"row 7"), key)


def kwp():
    return case("aes256-kwp", 3, b"", aes_key_wrap_with_padding(KEY, TEXT))


def hpke():
    alg = "x25519-hkdf-aes256-gcm"
    public = X25519PrivateKey.from_private_bytes(KEY).public_key()
    suite = Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.AES_256_GCM)
    info = b"ron-kms/v1/wrap\0" + f"ron/golden/{alg}/{ID}#v3".encode()
    return case(alg, 3, b"", suite.encrypt(TEXT, public, info=info))


made = [
    aead("aes256-gcm", AESGCM),
    kwp(),
    hpke(),
    aead("aes128-gcm", AESGCM, KEY[:16]),
    aead("chacha20-poly1305", ChaCha20Poly1305),
]
print(json.dumps(made, indent=1))
