"""Unmodified hvac against the Transit API of ron-kms at another mount, and not at hvac's default one.

Called with the base URL and the mount; the token comes on standard input. Any difference ends it with an exception."""

import base64
import sys

import hvac


def b64(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


def missing(call, **arguments):
    try:
        call(**arguments)
    except hvac.exceptions.InvalidPath:
        return
    raise AssertionError(f"{call.__name__} {arguments} was found")


url, mount, token = sys.argv[1], sys.argv[2], sys.stdin.read().strip()
client = hvac.Client(url=url, token=token)
assert client.is_authenticated(), "auth/token/lookup-self does not move"
assert client.sys.read_health_status(method="GET")["initialized"], "nor does sys/health"
transit, there = client.secrets.transit, {"mount_point": mount}

transit.create_key(name="mail", **there)
sealed = transit.encrypt_data(name="mail", plaintext=b64(b"one"), **there)["data"]["ciphertext"]
opened = transit.decrypt_data(name="mail", ciphertext=sealed, **there)["data"]["plaintext"]
assert base64.b64decode(opened) == b"one"
transit.create_key(name="doc", key_type="ed25519", **there)
signed = transit.sign_data(name="doc", hash_input=b64(b"text"), **there)["data"]["signature"]
for text, valid in ((b"text", True), (b"test", False)):
    answer = transit.verify_signed_data(name="doc", hash_input=b64(text), signature=signed, **there)
    assert answer["data"]["valid"] is valid, answer
client.write_data(f"{mount}/keys/tag", data={"type": "hmac"})
made = transit.generate_hmac(name="tag", hash_input=b64(b"text"), **there)["data"]["hmac"]
assert transit.verify_signed_data(name="tag", hash_input=b64(b"text"), hmac=made, **there)["data"]["valid"]
assert transit.list_keys(**there)["data"]["keys"] == ["doc", "mail", "tag"]

missing(transit.list_keys)
missing(transit.create_key, name="mail")
missing(transit.read_key, name="mail")
missing(transit.encrypt_data, name="mail", plaintext=b64(b"one"))
missing(transit.decrypt_data, name="mail", ciphertext=sealed)
missing(transit.sign_data, name="doc", hash_input=b64(b"text"))
print("done")
