/** svc-rewarder: what an epoch paid, and the proofs of it. */
import type { Answer } from "./http.js";
import { Fields, Service, segment } from "./service.js";

export interface Epoch {
  readonly epochId: string;
  readonly state: string;
  readonly dryRun: boolean;
  /** Identifies the run: by its inputs and its policy. */
  readonly runKey: string;
  /** Present once it is computed. */
  readonly commitment?: string;
  /** Why the run is held, quarantined or failed. */
  readonly reason?: string;
}

/** What an account is paid of one asset. */
export interface Paid {
  readonly asset: string;
  /** Index of the payout in the asset's table and in the ledger. */
  readonly index: number;
  readonly amount: bigint;
}

const epochOf = (raw: Fields): Epoch => ({
  epochId: raw.text("epoch_id"),
  state: raw.text("state"),
  dryRun: raw.flag("dry_run"),
  runKey: raw.text("run_key"),
  ...(raw.has("commitment") ? { commitment: raw.text("commitment") } : {}),
  ...(raw.has("reason") ? { reason: raw.object("reason").text("detail") } : {}),
});

/**
 * Reads of svc-rewarder. The answers of `manifest` and `proof` are the bytes that offline verification takes. `dryRun` is
 * the run key of a dry run; without it, the live run is read or, while there is none, the newest dry run. `asset` is one
 * of an epoch that pays several; without it, the first of the policy is read.
 */
export class Rewarder extends Service {
  #of(epochId: string, what: string, dryRun: string | undefined, asset?: string): Promise<Answer> {
    return this.read(`/rewarder/epochs/${segment(epochId)}${what}`, { asset, dry_run: dryRun });
  }

  async epoch(epochId: string, dryRun?: string): Promise<Epoch> {
    return epochOf(new Fields((await this.#of(epochId, "", dryRun)).json()));
  }

  /** The dry runs of an epoch that are kept, the newest first. */
  async dryRuns(epochId: string): Promise<Epoch[]> {
    return new Fields((await this.#of(epochId, "/dry-runs", undefined)).json()).list("epochs").map(epochOf);
  }

  /** The manifest, byte for byte as it is signed. */
  async manifest(epochId: string, dryRun?: string, asset?: string): Promise<Uint8Array> {
    return (await this.#of(epochId, "/manifest", dryRun, asset)).body;
  }

  /** What an account is paid, one payout for each asset of the epoch. */
  async payouts(epochId: string, account: string, dryRun?: string): Promise<Paid[]> {
    const answer = await this.#of(epochId, `/payouts/${segment(account)}`, dryRun);
    return new Fields(answer.json()).list("payouts").map((paid) => ({
      asset: paid.text("asset"),
      index: paid.number("index"),
      amount: paid.amount("amount_minor"),
    }));
  }

  /** The proof of an account's payout and of the epoch's total, up to the signed manifest. */
  async proof(epochId: string, account: string, dryRun?: string, asset?: string): Promise<Uint8Array> {
    return (await this.#of(epochId, `/proof/${segment(account)}`, dryRun, asset)).body;
  }

  /** The claim tree of an epoch with claims, which OpenZeppelin's `StandardMerkleTree.load` reads. */
  async claims(epochId: string, dryRun?: string, asset?: string): Promise<unknown> {
    return (await this.#of(epochId, "/claims", dryRun, asset)).json();
  }

  /** Why the account gets what it gets, as docs/formats/rewarder.md describes it. */
  async explanation(epochId: string, account: string, dryRun?: string, asset?: string): Promise<unknown> {
    return (await this.#of(epochId, `/explain/${segment(account)}`, dryRun, asset)).json();
  }
}
