"""Manifests of reward epochs, and the proofs that payees have of their payouts."""

from dataclasses import dataclass
from typing import Any

from blake3 import blake3

from ..errors import VerificationError
from .encoding import Members, canonical, canonical_object, from_b64url, json_object
from .note import ed25519

#: Manifests of epochs that the ledger pays, of those with a claim tree, of corrections, and of several assets.
_LEDGER, _CLAIMS, _CORRECTION, _ASSETS = 1, 2, 3, 4
_AMOUNT_END = 2**128


@dataclass(frozen=True)
class PayoutsRoot:
    root: str
    count: int
    total: int


@dataclass(frozen=True)
class Claims:
    """The claim tree of an epoch whose payees, 0x addresses, claim their payouts elsewhere."""

    #: Root of the tree as OpenZeppelin's StandardMerkleTree has it: 0x and 64 hexadecimal digits.
    root: str
    #: Account of the ledger that holds what they claim.
    account: str


@dataclass(frozen=True)
class Correction:
    """What a correction compares: what is due by its inputs, and what was paid before."""

    #: Commitment of the manifest of the epoch that is corrected.
    of: str
    #: Content id of the file with what is due to every account, and what it was paid.
    accounts: str
    due_pool: int
    due_payout: int
    due_residual: int
    due_recipients: int
    #: What the corrected epoch and its earlier corrections have paid.
    paid: int
    #: What accounts were paid above what is due to them. It is not taken back.
    overpaid: int
    #: Number of these accounts.
    overpaid_accounts: int


@dataclass(frozen=True)
class AlsoPaid:
    """A further asset of an epoch, which has a manifest of its own."""

    asset: str
    #: Commitment of that manifest.
    commitment: str


@dataclass(frozen=True)
class Manifest:
    """A signed manifest: what an epoch pays."""

    tenant: str
    epoch_id: str
    #: The epoch that this one corrects.
    adjusts: str | None
    asset: str
    pool_account: str
    residual_owner: str
    pool: int
    payout: int
    residual: int
    recipients: int
    #: ``None`` for a quarantined epoch, which pays nothing.
    payouts: PayoutsRoot | None
    #: ``None`` for an epoch whose payees the ledger pays.
    claims: Claims | None
    #: ``None`` for an epoch that corrects no other. A correction pays what is due above what was paid before.
    correction: Correction | None
    #: The further assets of the epoch; the other fields are of this manifest's own asset.
    also: tuple[AlsoPaid, ...]
    commitment: str


@dataclass(frozen=True)
class Payout:
    """A proven row of an epoch's payout table."""

    account: str
    amount: int
    index: int
    #: The total of the epoch, to which the proven amounts add up.
    total: int
    #: The signed manifest that the proof ends in.
    manifest: Manifest
    #: The proof for a claim contract that has the root of the manifest's claim tree, which checks it: siblings from the
    #: payee's leaf up. Empty without a claim tree.
    claim: tuple[str, ...]


def verify_manifest(manifest: bytes, signature: bytes, public_key: str) -> Manifest:
    """Checks ``run.json`` against ``run.sig.json`` and the public key of manifests.

    The key is given as in ``verifiers.json``, ``<key version>=<base64url>``, or without the name of the key version.
    """
    value = canonical_object(manifest, "the manifest")
    return _signed_manifest(value, [json_object(signature, "the signature")], public_key)


def _signed_manifest(value: dict[str, Any], signatures: list[Any], public_key: str) -> Manifest:
    """The manifest, once one of the signatures verifies."""
    commitment = _commitment(value)
    refused = VerificationError("the manifest is not signed")
    for signature in signatures:
        try:
            _check_signature(Members(signature, "the signature"), commitment, public_key)
            break
        except VerificationError as error:
            refused = error
    else:
        raise refused
    found = _manifest(Members(value, "the manifest"))
    if found.commitment != "b3:" + commitment.hex():
        raise VerificationError("the commitment of the manifest is not that of its content")
    return found


def _check_signature(signed: Members, commitment: bytes, public_key: str) -> None:
    name, named, public = public_key.rpartition("=")
    if signed.text("alg") != "ed25519":
        raise VerificationError("the signature of the manifest is not one of Ed25519")
    if signed.text("key") != name and named:
        raise VerificationError("the manifest was signed by another key version than the one that is trusted")
    made = from_b64url(signed.text("value"), "the signature of the manifest")
    if (receipt := signed.optional_object("receipt")) is not None:
        receipt.text("log")
        receipt.whole("index")
        receipt.end()
    signed.end()
    message = b"ron-kms/v1/digest\0blake3\0" + commitment
    if not ed25519(from_b64url(public, "the public key"), message, made):
        raise VerificationError("the signature of the manifest is wrong")


def verify_payout(proof: bytes, public_key: str) -> Payout:
    """Checks a payee's proof up to its signed manifest. The key is given as for :func:`verify_manifest`."""
    parsed = Members(json_object(proof, "the proof"), "the proof")
    manifest = _signed_manifest(parsed.raw_object("manifest"), parsed.list("signatures"), public_key)
    root = manifest.payouts
    if root is None:
        raise VerificationError("the manifest has no payouts: its epoch is quarantined")
    row = parsed.object("payout")
    account, amount, index = row.text("account"), row.amount("amount_minor"), row.whole("index")
    row.end()
    path = [Members(step, "a step of the proof") for step in parsed.list("path")]
    claim = _claim_path(parsed, manifest)
    parsed.end()
    name = account.encode()
    found = _b3(
        b"ron-rewarder/v1/leaf\0", index.to_bytes(8, "big"), len(name).to_bytes(4, "big"), name,
        amount.to_bytes(16, "big"),
    )
    total = amount
    # Index and count fix the side of each sibling, so a path of another shape is refused.
    at, width = index, root.count
    if at >= width:
        raise VerificationError("the proof is about a row that the table does not have")
    for step in path:
        while at % 2 == 0 and at == width - 1 and width > 1:
            at, width = at // 2, (width + 1) // 2
        side, other, other_sum = step.text("side"), _hash(step.text("hash")), step.amount("sum_minor")
        step.end()
        if width <= 1 or side != ("left" if at % 2 else "right"):
            raise VerificationError("the proof has another shape than the place of its row demands")
        left, right = ((other, other_sum), (found, total)) if at % 2 else ((found, total), (other, other_sum))
        found = _b3(
            b"ron-rewarder/v1/node\0", left[0], left[1].to_bytes(16, "big"), right[0], right[1].to_bytes(16, "big")
        )
        total += other_sum
        if total >= _AMOUNT_END:
            raise VerificationError("the amounts of the proof do not add up to 128 bits")
        at, width = at // 2, (width + 1) // 2
    while at % 2 == 0 and at == width - 1 and width > 1:
        at, width = at // 2, (width + 1) // 2
    if width != 1:
        raise VerificationError("the proof is too short")
    top = _b3(b"ron-rewarder/v1/root\0", root.count.to_bytes(8, "big"), total.to_bytes(16, "big"), found)
    if total != root.total or "b3:" + top.hex() != root.root:
        raise VerificationError("the proof does not lead to the root and total of the manifest")
    return Payout(account, amount, index, total, manifest, claim)


def _claim_path(proof: Members, manifest: Manifest) -> tuple[str, ...]:
    path = proof.optional_list("claim") or []
    if manifest.claims is None and path:
        raise VerificationError("the proof has the path of a claim, and its manifest has no claim tree")
    return tuple(_claim_hash(step) for step in path)


def _claim_hash(step: Any) -> str:
    digits = step.removeprefix("0x") if isinstance(step, str) else ""
    if len(digits) != 64 or "0x" + digits != step or digits.strip("0123456789abcdef"):
        raise VerificationError("a hash of the claim tree is not 0x and 64 lower-case hexadecimal digits")
    return "0x" + digits


def _commitment(value: dict[str, Any]) -> bytes:
    covered = {name: member for name, member in value.items() if name not in ("status", "commitment")}
    return _b3(b"ron-rewarder/v1/commitment\0", canonical(covered))


def _manifest(members: Members) -> Manifest:
    version = members.whole("version")
    if version not in (_LEDGER, _CLAIMS, _CORRECTION, _ASSETS):
        raise VerificationError("the manifest has a format that this version of the package does not know")
    totals, payouts, inputs = members.object("totals"), members.optional_object("payouts"), members.object("inputs")
    for name in ("snapshot", "policy_id", "policy_hash"):
        inputs.text(name)
    for name in ("accounts", "policy_version"):
        inputs.whole(name)
    inputs.end()
    for name in ("run_key", "rule_set"):
        members.text(name)
    found = Manifest(
        tenant=members.text("tenant"),
        epoch_id=members.text("epoch_id"),
        adjusts=members.optional_text("adjusts"),
        asset=members.text("asset"),
        pool_account=members.text("pool_account"),
        residual_owner=members.text("residual_owner"),
        pool=totals.amount("pool_minor"),
        payout=totals.amount("payout_minor"),
        residual=totals.amount("residual_minor"),
        recipients=totals.whole("recipients"),
        payouts=None if payouts is None else _payouts_root(payouts),
        claims=_optional_claims(members, version),
        correction=_optional_correction(members, version),
        also=_also(members) if version == _ASSETS else (),
        commitment=members.text("commitment"),
    )
    totals.end()
    status = members.text("status")
    members.end()
    if status != ("quarantined" if found.payouts is None else "ok"):
        raise VerificationError("the status of the manifest does not fit its payouts")
    if found.payouts is not None and found.payout + found.residual != found.pool:
        raise VerificationError("payouts and residual of the manifest do not add up to the pool")
    if found.correction is not None:
        _check_correction(found, found.correction)
    return found


def _check_correction(found: Manifest, correction: Correction) -> None:
    if found.adjusts is None:
        raise VerificationError("the manifest of a correction does not name the epoch that it corrects")
    if correction.due_payout + correction.due_residual != correction.due_pool:
        raise VerificationError("what is due in the manifest does not add up to the pool")
    # A residual that the pool keeps is due to nobody.
    residual = correction.due_residual if found.residual_owner != found.pool_account else 0
    if correction.due_payout + residual + correction.overpaid != correction.paid + found.payout:
        raise VerificationError("what the manifest has as due does not add up to what was paid and what it pays")


def _payouts_root(members: Members) -> PayoutsRoot:
    root = PayoutsRoot(members.text("root"), members.whole("count"), members.amount("total_minor"))
    members.end()
    return root


def _optional_claims(members: Members, version: int) -> Claims | None:
    if version == _LEDGER:
        return None
    if version == _CLAIMS:
        return _claims(members.object("claims"))
    claims = members.optional_object("claims")
    return None if claims is None else _claims(claims)


def _optional_correction(members: Members, version: int) -> Correction | None:
    if version == _CORRECTION:
        return _correction(members.object("correction"))
    correction = members.optional_object("correction") if version == _ASSETS else None
    return None if correction is None else _correction(correction)


def _also(members: Members) -> tuple[AlsoPaid, ...]:
    found = []
    for paid in [Members(paid, "a further asset of the manifest") for paid in members.list("also")]:
        found.append(AlsoPaid(paid.text("asset"), paid.text("commitment")))
        paid.end()
    if not found:
        raise VerificationError("the manifest of several assets names one alone")
    return tuple(found)


def _correction(members: Members) -> Correction:
    due = members.object("due")
    found = Correction(
        of=members.text("of"),
        accounts=members.text("accounts"),
        due_pool=due.amount("pool_minor"),
        due_payout=due.amount("payout_minor"),
        due_residual=due.amount("residual_minor"),
        due_recipients=due.whole("recipients"),
        paid=members.amount("paid_minor"),
        overpaid=members.amount("overpaid_minor"),
        overpaid_accounts=members.whole("overpaid"),
    )
    due.end()
    members.end()
    return found


def _claims(members: Members) -> Claims:
    found = Claims(_claim_hash(members.text("root")), members.text("account"))
    members.end()
    return found


def _hash(text: str) -> bytes:
    raw = text.removeprefix("b3:")
    if len(raw) != 64 or "b3:" + raw != text or raw.strip("0123456789abcdef"):
        raise VerificationError("a hash is not b3: and 64 lower-case hexadecimal digits")
    return bytes.fromhex(raw)


def _b3(*parts: bytes) -> bytes:
    return blake3(b"".join(parts)).digest()
