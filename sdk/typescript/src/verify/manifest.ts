/** Manifests of reward epochs, and the proofs that payees have of their payouts. */
import { blake3 } from "@noble/hashes/blake3.js";
import { bytesToHex, hexToBytes } from "@noble/hashes/utils.js";
import { VerificationError } from "../errors.js";
import { type Json, Members, bigEndian, canonical, canonicalObject, concat, fromB64url, jsonObject, utf8 } from "./encoding.js";
import { ed25519 } from "./note.js";

/** Manifests of epochs that the ledger pays, of those with a claim tree, of corrections, and of several assets. */
const [LEDGER, CLAIMS, CORRECTION, ASSETS] = [1, 2, 3, 4];
const AMOUNT_END = 2n ** 128n;

export interface PayoutsRoot {
  readonly root: string;
  readonly count: number;
  readonly total: bigint;
}

/** The claim tree of an epoch whose payees, 0x addresses, claim their payouts elsewhere. */
export interface Claims {
  /** Root of the tree as OpenZeppelin's StandardMerkleTree has it: 0x and 64 hexadecimal digits. */
  readonly root: string;
  /** Account of the ledger that holds what they claim. */
  readonly account: string;
}

/** What a correction compares: what is due by its inputs, and what was paid before. */
export interface Correction {
  /** Commitment of the manifest of the epoch that is corrected. */
  readonly of: string;
  /** Content id of the file with what is due to every account, and what it was paid. */
  readonly accounts: string;
  readonly duePool: bigint;
  readonly duePayout: bigint;
  readonly dueResidual: bigint;
  readonly dueRecipients: number;
  /** What the corrected epoch and its earlier corrections have paid. */
  readonly paid: bigint;
  /** What accounts were paid above what is due to them. It is not taken back. */
  readonly overpaid: bigint;
  /** Number of these accounts. */
  readonly overpaidAccounts: number;
}

/** A further asset of an epoch, which has a manifest of its own. */
export interface AlsoPaid {
  readonly asset: string;
  /** Commitment of that manifest. */
  readonly commitment: string;
}

/** A signed manifest: what an epoch pays. */
export interface Manifest {
  readonly tenant: string;
  readonly epochId: string;
  /** The epoch that this one corrects. */
  readonly adjusts: string | undefined;
  readonly asset: string;
  readonly poolAccount: string;
  readonly residualOwner: string;
  readonly pool: bigint;
  readonly payout: bigint;
  readonly residual: bigint;
  readonly recipients: number;
  /** Absent for a quarantined epoch, which pays nothing. */
  readonly payouts: PayoutsRoot | undefined;
  /** Absent for an epoch whose payees the ledger pays. */
  readonly claims: Claims | undefined;
  /** Absent for an epoch that corrects no other. A correction pays what is due above what was paid before. */
  readonly correction: Correction | undefined;
  /** The further assets of the epoch; the other members are of this manifest's own asset. */
  readonly also: readonly AlsoPaid[];
  readonly commitment: string;
}

/** A proven row of an epoch's payout table. */
export interface Payout {
  readonly account: string;
  readonly amount: bigint;
  readonly index: number;
  /** The total of the epoch, to which the proven amounts add up. */
  readonly total: bigint;
  /** The signed manifest that the proof ends in. */
  readonly manifest: Manifest;
  /**
   * The proof for a claim contract that has the root of the manifest's claim tree, which checks it: siblings from the
   * payee's leaf up. Empty without a claim tree.
   */
  readonly claim: readonly string[];
}

/**
 * Checks `run.json` against `run.sig.json` and the public key of manifests, given as in `verifiers.json`
 * (`<key version>=<base64url>`), or without the name of the key version.
 */
export function verifyManifest(manifest: Uint8Array, signature: Uint8Array, publicKey: string): Manifest {
  const value = canonicalObject(manifest, "the manifest");
  return signedManifest(value, [jsonObject(signature, "the signature")], publicKey);
}

/** The manifest, once one of the signatures verifies. */
function signedManifest(value: { readonly [name: string]: Json }, signatures: readonly Json[], publicKey: string): Manifest {
  const commitment = commitmentOf(value);
  let refused: VerificationError | undefined = new VerificationError("the manifest is not signed");
  for (const signature of signatures) {
    try {
      checkSignature(new Members(signature, "the signature"), commitment, publicKey);
      refused = undefined;
      break;
    } catch (error) {
      if (!(error instanceof VerificationError)) throw error;
      refused = error;
    }
  }
  if (refused !== undefined) throw refused;
  const found = read(new Members(value, "the manifest"));
  if (found.commitment !== `b3:${bytesToHex(commitment)}`) {
    throw new VerificationError("the commitment of the manifest is not that of its content");
  }
  return found;
}

function checkSignature(signed: Members, commitment: Uint8Array, publicKey: string): void {
  const at = publicKey.lastIndexOf("=");
  if (signed.text("alg") !== "ed25519") throw new VerificationError("the signature of the manifest is not one of Ed25519");
  if (signed.text("key") !== publicKey.slice(0, Math.max(at, 0)) && at >= 0) {
    throw new VerificationError("the manifest was signed by another key version than the one that is trusted");
  }
  const made = fromB64url(signed.text("value"), "the signature of the manifest");
  const receipt = signed.optionalObject("receipt");
  receipt?.text("log");
  receipt?.whole("index");
  receipt?.end();
  signed.end();
  const message = concat(utf8("ron-kms/v1/digest\0blake3\0"), commitment);
  if (!ed25519(fromB64url(publicKey.slice(at + 1), "the public key"), message, made)) {
    throw new VerificationError("the signature of the manifest is wrong");
  }
}

/** Checks a payee's proof up to its signed manifest. The key is given as for `verifyManifest`. */
export function verifyPayout(proof: Uint8Array, publicKey: string): Payout {
  const parsed = new Members(jsonObject(proof, "the proof"), "the proof");
  const manifest = signedManifest(parsed.rawObject("manifest"), parsed.list("signatures"), publicKey);
  const root = manifest.payouts;
  if (root === undefined) throw new VerificationError("the manifest has no payouts: its epoch is quarantined");
  const row = parsed.object("payout");
  const [account, amount, index] = [row.text("account"), row.amount("amount_minor"), row.whole("index")];
  row.end();
  const path = parsed.list("path").map((step) => new Members(step, "a step of the proof"));
  const claim = claimPath(parsed, manifest);
  parsed.end();
  const name = utf8(account);
  let found = b3(utf8("ron-rewarder/v1/leaf\0"), bigEndian(index, 8), bigEndian(name.length, 4), name, bigEndian(amount, 16));
  let total = amount;
  // Index and count fix the side of each sibling, so a path of another shape is refused.
  let [at, width] = [index, root.count];
  if (at >= width) throw new VerificationError("the proof is about a row that the table does not have");
  const up = (): void => {
    at = Math.floor(at / 2);
    width = Math.ceil(width / 2);
  };
  const alone = (): boolean => width > 1 && at % 2 === 0 && at === width - 1;
  for (const step of path) {
    while (alone()) up();
    const [side, other, sum] = [step.text("side"), hash(step.text("hash")), step.amount("sum_minor")];
    step.end();
    const left = at % 2 === 1;
    if (width <= 1 || side !== (left ? "left" : "right")) {
      throw new VerificationError("the proof has another shape than the place of its row demands");
    }
    const pair = [other, bigEndian(sum, 16)];
    const own = [found, bigEndian(total, 16)];
    found = b3(utf8("ron-rewarder/v1/node\0"), ...(left ? [...pair, ...own] : [...own, ...pair]));
    total += sum;
    if (total >= AMOUNT_END) throw new VerificationError("the amounts of the proof do not add up to 128 bits");
    up();
  }
  while (alone()) up();
  if (width !== 1) throw new VerificationError("the proof is too short");
  const top = b3(utf8("ron-rewarder/v1/root\0"), bigEndian(root.count, 8), bigEndian(total, 16), found);
  if (total !== root.total || `b3:${bytesToHex(top)}` !== root.root) {
    throw new VerificationError("the proof does not lead to the root and total of the manifest");
  }
  return { account, amount, index, total, manifest, claim };
}

function claimPath(proof: Members, manifest: Manifest): readonly string[] {
  const path = proof.optionalList("claim") ?? [];
  if (manifest.claims === undefined && path.length > 0) {
    throw new VerificationError("the proof has the path of a claim, and its manifest has no claim tree");
  }
  return path.map((step) => claimHash(step));
}

function claimHash(step: Json): string {
  if (typeof step === "string" && /^0x[0-9a-f]{64}$/.test(step)) return step;
  throw new VerificationError("a hash of the claim tree is not 0x and 64 lower-case hexadecimal digits");
}

function commitmentOf(value: { readonly [name: string]: Json }): Uint8Array {
  const covered = Object.entries(value).filter(([name]) => name !== "status" && name !== "commitment");
  return b3(utf8("ron-rewarder/v1/commitment\0"), utf8(canonical(Object.fromEntries(covered))));
}

function read(members: Members): Manifest {
  const version = members.whole("version");
  if (version !== LEDGER && version !== CLAIMS && version !== CORRECTION && version !== ASSETS) {
    throw new VerificationError("the manifest has a format that this version of the package does not know");
  }
  const [totals, payouts, inputs] = [members.object("totals"), members.optionalObject("payouts"), members.object("inputs")];
  for (const name of ["snapshot", "policy_id", "policy_hash"]) inputs.text(name);
  for (const name of ["accounts", "policy_version"]) inputs.whole(name);
  inputs.end();
  for (const name of ["run_key", "rule_set"]) members.text(name);
  const found = {
    tenant: members.text("tenant"),
    epochId: members.text("epoch_id"),
    adjusts: members.optionalText("adjusts"),
    asset: members.text("asset"),
    poolAccount: members.text("pool_account"),
    residualOwner: members.text("residual_owner"),
    pool: totals.amount("pool_minor"),
    payout: totals.amount("payout_minor"),
    residual: totals.amount("residual_minor"),
    recipients: totals.whole("recipients"),
    payouts: payouts === undefined ? undefined : payoutsRoot(payouts),
    claims: optionalClaims(members, version),
    correction: optionalCorrection(members, version),
    also: version === ASSETS ? alsoPaid(members) : [],
    commitment: members.text("commitment"),
  };
  totals.end();
  const status = members.text("status");
  members.end();
  if (status !== (found.payouts === undefined ? "quarantined" : "ok")) {
    throw new VerificationError("the status of the manifest does not fit its payouts");
  }
  if (found.payouts !== undefined && found.payout + found.residual !== found.pool) {
    throw new VerificationError("payouts and residual of the manifest do not add up to the pool");
  }
  if (found.correction !== undefined) checkCorrection(found, found.correction);
  return found;
}

function checkCorrection(found: Manifest, correction: Correction): void {
  if (found.adjusts === undefined) {
    throw new VerificationError("the manifest of a correction does not name the epoch that it corrects");
  }
  if (correction.duePayout + correction.dueResidual !== correction.duePool) {
    throw new VerificationError("what is due in the manifest does not add up to the pool");
  }
  // A residual that the pool keeps is due to nobody.
  const residual = found.residualOwner === found.poolAccount ? 0n : correction.dueResidual;
  if (correction.duePayout + residual + correction.overpaid !== correction.paid + found.payout) {
    throw new VerificationError("what the manifest has as due does not add up to what was paid and what it pays");
  }
}

function optionalClaims(members: Members, version: number): Claims | undefined {
  if (version === LEDGER) return undefined;
  if (version === CLAIMS) return claims(members.object("claims"));
  const found = members.optionalObject("claims");
  return found === undefined ? undefined : claims(found);
}

function optionalCorrection(members: Members, version: number): Correction | undefined {
  if (version === CORRECTION) return correctionOf(members.object("correction"));
  const found = version === ASSETS ? members.optionalObject("correction") : undefined;
  return found === undefined ? undefined : correctionOf(found);
}

function alsoPaid(members: Members): readonly AlsoPaid[] {
  const found = members.list("also").map((value) => {
    const paid = new Members(value, "a further asset of the manifest");
    const also = { asset: paid.text("asset"), commitment: paid.text("commitment") };
    paid.end();
    return also;
  });
  if (found.length === 0) throw new VerificationError("the manifest of several assets names one alone");
  return found;
}

function correctionOf(members: Members): Correction {
  const due = members.object("due");
  const found = {
    of: members.text("of"),
    accounts: members.text("accounts"),
    duePool: due.amount("pool_minor"),
    duePayout: due.amount("payout_minor"),
    dueResidual: due.amount("residual_minor"),
    dueRecipients: due.whole("recipients"),
    paid: members.amount("paid_minor"),
    overpaid: members.amount("overpaid_minor"),
    overpaidAccounts: members.whole("overpaid"),
  };
  due.end();
  members.end();
  return found;
}

function payoutsRoot(members: Members): PayoutsRoot {
  const root = { root: members.text("root"), count: members.whole("count"), total: members.amount("total_minor") };
  members.end();
  return root;
}

function claims(members: Members): Claims {
  const found = { root: claimHash(members.text("root")), account: members.text("account") };
  members.end();
  return found;
}

function hash(text: string): Uint8Array {
  if (!/^b3:[0-9a-f]{64}$/.test(text)) throw new VerificationError("a hash is not b3: and 64 lower-case hexadecimal digits");
  return hexToBytes(text.slice(3));
}

const b3 = (...parts: readonly Uint8Array[]): Uint8Array => blake3(concat(...parts));
