"""Unmodified hvac against the Transit API of ron-kms: keys, batches, versions, and refusals.

Called with the base URL; the token comes on standard input. Prints one line per part; any
difference ends it with an exception."""

import base64
import hashlib
import sys

import hvac
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding


def b64(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


def refused(kind, call, *args, **more):
    try:
        call(*args, **more)
    except kind as error:
        assert error.errors, "the refusal says why"
        return error
    raise AssertionError(f"{call.__name__}{args} {more} was not refused")


def create(name, kind):
    """hvac's create_key knows fewer types than Vault; its generic write takes them all."""
    client.write_data(f"transit/keys/{name}", data={"type": kind})


def encryption(transit):
    transit.create_key(name="mail", key_type="aes256-gcm96")
    transit.create_key(name="mail")  # there already: stays as it is
    first = transit.encrypt_data(name="mail", plaintext=b64(b"one"))["data"]
    assert first["ciphertext"].startswith("vault:v1:") and first["key_version"] == 1
    rotated = transit.rotate_key(name="mail")["data"]
    assert rotated["latest_version"] == 2, rotated
    bound = b64(b"row 7")
    batch = [{"plaintext": b64(f"item {n}".encode()), "associated_data": bound, "reference": str(n)} for n in range(50)]
    made = transit.encrypt_data(name="mail", batch_input=batch)["data"]["batch_results"]
    assert [r["reference"] for r in made] == [str(n) for n in range(50)]
    assert len({r["ciphertext"] for r in made}) == 50
    back = [{"ciphertext": r["ciphertext"], "associated_data": bound} for r in made]
    plain = transit.decrypt_data(name="mail", batch_input=back)["data"]["batch_results"]
    assert [base64.b64decode(r["plaintext"]) for r in plain] == [f"item {n}".encode() for n in range(50)]
    old = transit.decrypt_data(name="mail", ciphertext=first["ciphertext"])["data"]["plaintext"]
    assert base64.b64decode(old) == b"one"
    moved = transit.rewrap_data(name="mail", ciphertext=first["ciphertext"])["data"]
    assert moved["ciphertext"].startswith("vault:v2:")
    assert transit.decrypt_data(name="mail", ciphertext=moved["ciphertext"])["data"]["plaintext"] == b64(b"one")
    refused(hvac.exceptions.InvalidRequest, transit.decrypt_data, name="mail", ciphertext=first["ciphertext"][:-8] + "AAAAAAA=")
    refused(hvac.exceptions.InvalidRequest, transit.decrypt_data, name="mail", ciphertext=made[0]["ciphertext"])
    refused(hvac.exceptions.InvalidRequest, transit.decrypt_data, name="nobody", ciphertext=first["ciphertext"])
    refused(hvac.exceptions.InvalidRequest, transit.encrypt_data, name="mail", plaintext="not base64!")
    half = [{"plaintext": b64(b"x")}, {"plaintext": "!"}]
    error = None
    try:
        transit.encrypt_data(name="mail", batch_input=half)
    except hvac.exceptions.InvalidRequest as caught:
        error = caught
    results = error.json["data"]["batch_results"]
    assert "ciphertext" in results[0] and "error" in results[1], results
    print("encryption")
    return first


def data_keys(transit):
    fresh = transit.generate_data_key(name="mail", key_type="plaintext")["data"]
    assert len(base64.b64decode(fresh["plaintext"])) == 32
    again = transit.decrypt_data(name="mail", ciphertext=fresh["ciphertext"])["data"]["plaintext"]
    assert again == fresh["plaintext"]
    hidden = transit.generate_data_key(name="mail", key_type="wrapped", bits=512)["data"]
    assert "plaintext" not in hidden
    assert len(base64.b64decode(transit.decrypt_data(name="mail", ciphertext=hidden["ciphertext"])["data"]["plaintext"])) == 64
    raw = transit.generate_random_bytes(n_bytes=24)["data"]["random_bytes"]
    assert len(base64.b64decode(raw)) == 24
    assert len(transit.generate_random_bytes(n_bytes=8, output_format="hex")["data"]["random_bytes"]) == 16
    print("data keys")


def derived_keys(transit):
    transit.create_key(name="rows", derived=True)
    shown = transit.read_key(name="rows")["data"]
    assert shown["derived"] and shown["kdf"] == "hkdf_sha256", shown
    one, two = b64(b"row 1"), b64(b"row 2")
    sealed = transit.encrypt_data(name="rows", plaintext=b64(b"x"), context=one)["data"]["ciphertext"]
    opened = transit.decrypt_data(name="rows", ciphertext=sealed, context=one)["data"]["plaintext"]
    assert base64.b64decode(opened) == b"x"
    refused(hvac.exceptions.InvalidRequest, transit.decrypt_data, name="rows", ciphertext=sealed, context=two)
    missing = refused(hvac.exceptions.InvalidRequest, transit.decrypt_data, name="rows", ciphertext=sealed)
    assert "missing 'context'" in missing.errors[0], missing
    transit.rotate_key(name="rows")
    moved = transit.rewrap_data(name="rows", ciphertext=sealed, context=one)["data"]["ciphertext"]
    assert moved.startswith("vault:v2:")
    batch = [{"plaintext": b64(b"x"), "context": c} for c in (one, two)]
    made = transit.encrypt_data(name="rows", batch_input=batch)["data"]["batch_results"]
    back = [{"ciphertext": r["ciphertext"], "context": c} for r, c in zip(made, (one, two))]
    plain = transit.decrypt_data(name="rows", batch_input=back)["data"]["batch_results"]
    assert [r["plaintext"] for r in plain] == [b64(b"x")] * 2
    fresh = transit.generate_data_key(name="rows", key_type="plaintext", context=two)["data"]
    assert transit.decrypt_data(name="rows", ciphertext=fresh["ciphertext"], context=two)["data"]["plaintext"] == fresh["plaintext"]
    same = refused(hvac.exceptions.InvalidRequest, transit.create_key, name="same", derived=True, convergent_encryption=True)
    assert "convergent_encryption" in same.errors[0], same
    print("derived keys")


def signatures(transit):
    kinds = [("doc", "ed25519"), ("cert", "ecdsa-p256"), ("root", "ecdsa-p384"), ("tls", "rsa-2048"), ("pq", "ml-dsa")]
    for name, kind in kinds:
        create(name, kind)
        signed = transit.sign_data(name=name, hash_input=b64(b"text"))["data"]["signature"]
        assert signed.startswith("vault:v1:")
        third_party(transit, name, kind, signed, b"text")
        transit.rotate_key(name=name)
        check = lambda text, sig: transit.verify_signed_data(name=name, hash_input=b64(text), signature=sig)["data"]["valid"]
        assert check(b"text", signed) and not check(b"test", signed)
        newer = transit.sign_data(name=name, hash_input=b64(b"text"))["data"]["signature"]
        assert newer.startswith("vault:v2:") and check(b"text", newer)
        batch = [{"input": b64(f"{n}".encode())} for n in range(20)]
        made = transit.sign_data(name=name, hash_input=None, batch_input=batch)["data"]["batch_results"]
        assert all(check(f"{n}".encode(), r["signature"]) for n, r in enumerate(made)), name
        if kind.startswith(("ecdsa", "rsa")):
            hashed(transit, name, kind)
        else:
            refused(hvac.exceptions.InvalidRequest, transit.sign_data, name=name, hash_input=b64(b"x"), prehashed=True)
    pkcs1 = {"signature_algorithm": "pkcs1v15", "hash_algorithm": "sha2-512"}
    signed = transit.sign_data(name="tls", hash_input=b64(b"text"), **pkcs1)["data"]["signature"]
    assert transit.verify_signed_data(name="tls", hash_input=b64(b"text"), signature=signed, **pkcs1)["data"]["valid"]
    assert not transit.verify_signed_data(name="tls", hash_input=b64(b"text"), signature=signed)["data"]["valid"]
    pem_of(transit, "tls", "2").verify(base64.b64decode(signed.split(":")[2]), b"text", padding.PKCS1v15(), hashes.SHA512())
    jws = transit.sign_data(name="cert", hash_input=b64(b"text"), marshaling_algorithm="jws")["data"]["signature"]
    assert transit.verify_signed_data(name="cert", hash_input=b64(b"text"), signature=jws, marshaling_algorithm="jws")["data"]["valid"]
    refused(hvac.exceptions.InvalidRequest, transit.sign_data, name="mail", hash_input=b64(b"x"))
    print("signatures")


def pem_of(transit, name, version):
    public = transit.read_key(name=name)["data"]["keys"][version]["public_key"]
    return serialization.load_pem_public_key(public.encode())


def hashed(transit, name, kind):
    """The signature of a hash that the client made is one of the text."""
    made = {"hash_input": b64(hashlib.sha384(b"large").digest()), "hash_algorithm": "sha2-384", "prehashed": True}
    signed = transit.sign_data(name=name, **made)["data"]["signature"]
    assert transit.verify_signed_data(name=name, signature=signed, **made)["data"]["valid"]
    text = {"hash_input": b64(b"large"), "hash_algorithm": "sha2-384"}
    assert transit.verify_signed_data(name=name, signature=signed, **text)["data"]["valid"]
    verified(pem_of(transit, name, "2"), kind, base64.b64decode(signed.split(":")[2]), b"large", hashes.SHA384())
    refused(hvac.exceptions.InvalidRequest, transit.sign_data, name=name, hash_input=b64(b"short"), prehashed=True)


def verified(key, kind, raw, text, by):
    if kind.startswith("ecdsa"):
        key.verify(raw, text, ec.ECDSA(by))
    else:
        key.verify(raw, text, padding.PSS(padding.MGF1(by), by.digest_size), by)


def third_party(transit, name, kind, signed, text):
    """A third-party library verifies with the public key that the API returns."""
    public = transit.read_key(name=name)["data"]["keys"]["1"]["public_key"]
    raw = base64.b64decode(signed.split(":")[2])
    if kind == "ed25519":
        key = ed25519.Ed25519PublicKey.from_public_bytes(base64.b64decode(public))
        key.verify(raw, text)
        try:
            key.verify(raw, text + b"!")
        except InvalidSignature:
            return
        raise AssertionError("verified another text")
    if kind.startswith(("ecdsa", "rsa")):
        verified(serialization.load_pem_public_key(public.encode()), kind, raw, text, hashes.SHA256())


def macs(transit):
    create("tag", "hmac")
    made = transit.generate_hmac(name="tag", hash_input=b64(b"text"))["data"]["hmac"]
    assert made.startswith("vault:v1:")
    check = lambda text: transit.verify_signed_data(name="tag", hash_input=b64(text), hmac=made)["data"]["valid"]
    assert check(b"text") and not check(b"test")
    transit.rotate_key(name="tag")
    assert check(b"text"), "older versions still count"
    refused(hvac.exceptions.InvalidRequest, transit.generate_hmac, name="tag", hash_input=b64(b"x"), algorithm="sha2-512")
    print("macs")


def history(transit):
    """A key that its first use makes: older versions, backup and restore, trim, delete."""
    transit.encrypt_data(name="used", plaintext=b64(b"x"))
    for _ in range(2):
        transit.rotate_key(name="used")
    # hvac itself wants the first limit below the second one.
    transit.update_key_configuration(name="used", min_decryption_version=1, min_encryption_version=2)
    limits = {"min_decryption_version": 2, "deletion_allowed": True}
    configured = transit.update_key_configuration(name="used", **limits)["data"]
    limits["min_encryption_version"] = 2
    assert {key: configured[key] for key in limits} == limits, configured
    older = transit.encrypt_data(name="used", plaintext=b64(b"old"), key_version=2)["data"]["ciphertext"]
    assert older.startswith("vault:v2:")
    sealed = transit.backup_key(name="used")["data"]["backup"]
    transit.restore_key(backup=sealed, name="again")
    assert transit.decrypt_data(name="again", ciphertext=older)["data"]["plaintext"] == b64(b"old")
    refused(hvac.exceptions.InvalidRequest, transit.restore_key, backup=sealed, name="used", force=True)
    transit.trim_key(name="used", min_version=2)
    transit.delete_key(name="used")
    refused(hvac.exceptions.InvalidPath, transit.read_key, name="used")
    refused(hvac.exceptions.InvalidRequest, transit.create_key, name="used")
    print("history")


def keys(transit, old):
    names = transit.list_keys()["data"]["keys"]
    assert names == ["again", "cert", "doc", "mail", "pq", "root", "rows", "tag", "tls"], names
    mail = transit.read_key(name="mail")["data"]
    assert (mail["type"], mail["latest_version"], mail["supports_encryption"]) == ("aes256-gcm96", 2, True)
    assert sorted(mail["keys"]) == ["1", "2"] and isinstance(mail["keys"]["1"], int)
    configured = transit.update_key_configuration(name="mail", min_decryption_version=2, auto_rotate_period="24h")["data"]
    assert configured["min_decryption_version"] == 2, configured
    refused(hvac.exceptions.InvalidRequest, transit.decrypt_data, name="mail", ciphertext=old["ciphertext"])
    refused(hvac.exceptions.InvalidRequest, transit.update_key_configuration, name="mail", min_decryption_version=9)
    refused(hvac.exceptions.InvalidPath, transit.read_key, name="nobody")
    refused(hvac.exceptions.InvalidRequest, transit.create_key, name="r", key_type="ecdsa-p521")
    refused(hvac.exceptions.InvalidRequest, transit.create_key, name="r", exportable=True)
    transit.create_key(name="Upper", key_type="ed25519")
    assert "Upper" in transit.list_keys()["data"]["keys"]
    exported = client.read("transit/export/public-key/Upper")["data"]["keys"]
    assert len(base64.b64decode(exported["1"])) == 32, exported
    refused(hvac.exceptions.Forbidden, transit.export_key, name="Upper", key_type="signing-key")
    hashed = transit.hash_data(hash_input=b64(b"abc"), algorithm="sha2-384", output_format="hex")["data"]["sum"]
    assert hashed.startswith("cb00753f45a35e8b"), hashed
    print("keys")


def third_parties(url, token):
    assert not hvac.Client(url=url, token=token[:-1] + ("A" if token[-1] != "A" else "B")).is_authenticated()
    anyone = hvac.Client(url=url, token="nonsense")
    for kind in (hvac.exceptions.Forbidden,):
        try:
            anyone.secrets.transit.encrypt_data(name="mail", plaintext=b64(b"x"))
        except kind:
            continue
        raise AssertionError("a wrong token was taken")
    print("third_parties")


url, token = sys.argv[1], sys.stdin.read().strip()
client = hvac.Client(url=url, token=token)
assert client.is_authenticated()
api = client.secrets.transit
first = encryption(api)
data_keys(api)
derived_keys(api)
signatures(api)
macs(api)
history(api)
keys(api, first)
third_parties(url, token)
print("done")
