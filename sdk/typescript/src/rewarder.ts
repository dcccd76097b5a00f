/** svc-rewarder: what an epoch paid, and the proofs of it. */
import { Fields, Service, segment } from "./service.js";

export interface Epoch {
  readonly epochId: string;
  readonly state: string;
  readonly dryRun: boolean;
  /** Present once it is computed. */
  readonly commitment?: string;
  /** Why the run is held, quarantined or failed. */
  readonly reason?: string;
}

/** Reads of svc-rewarder. The answers of `manifest` and `proof` are the bytes that offline verification takes. */
export class Rewarder extends Service {
  async epoch(epochId: string): Promise<Epoch> {
    const raw = new Fields((await this.read(`/rewarder/epochs/${segment(epochId)}`)).json());
    return {
      epochId: raw.text("epoch_id"),
      state: raw.text("state"),
      dryRun: raw.flag("dry_run"),
      ...(raw.has("commitment") ? { commitment: raw.text("commitment") } : {}),
      ...(raw.has("reason") ? { reason: raw.object("reason").text("detail") } : {}),
    };
  }

  /** The manifest, byte for byte as it is signed. */
  async manifest(epochId: string): Promise<Uint8Array> {
    return (await this.read(`/rewarder/epochs/${segment(epochId)}/manifest`)).body;
  }

  /** The proof of an account's payout and of the epoch's total, up to the signed manifest. */
  async proof(epochId: string, account: string): Promise<Uint8Array> {
    return (await this.read(`/rewarder/epochs/${segment(epochId)}/proof/${segment(account)}`)).body;
  }

  /** The claim tree of an epoch with claims, which OpenZeppelin's `StandardMerkleTree.load` reads. */
  async claims(epochId: string): Promise<unknown> {
    return (await this.read(`/rewarder/epochs/${segment(epochId)}/claims`)).json();
  }

  /** Why the account gets what it gets, as docs/formats/rewarder.md describes it. */
  async explanation(epochId: string, account: string): Promise<unknown> {
    return (await this.read(`/rewarder/epochs/${segment(epochId)}/explain/${segment(account)}`)).json();
  }
}
