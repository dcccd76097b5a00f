//! What the state keeps of reward epochs.

use ron_proto::{Account, ContentId, EpochId, Tenant};

pub type EpochKey = (Tenant, EpochId);
/// A manifest of an epoch, by its commitment.
pub type VoidKey = (Tenant, EpochId, ContentId);

/// A reward epoch, known by the one manifest that opened it, with all of its assets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EpochRow {
    pub commitment: ContentId,
    /// Hash of the usage that it pays for.
    pub source: ContentId,
    /// The earlier epoch that it corrects.
    pub adjusts: Option<EpochId>,
    /// The settlement of each of its assets, in the order in which they were opened; never empty.
    pub assets: Vec<EpochAsset>,
}

impl EpochRow {
    pub fn of(&self, asset: u32) -> Option<&EpochAsset> {
        self.assets.iter().find(|it| it.asset == asset)
    }

    pub(super) fn of_mut(&mut self, asset: u32) -> Option<&mut EpochAsset> {
        self.assets.iter_mut().find(|it| it.asset == asset)
    }

    pub(super) fn opened_seq(&self) -> u64 {
        self.assets.first().map_or(0, |it| it.opened_seq)
    }
}

/// Settlement of one asset of an epoch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EpochAsset {
    pub asset: u32,
    pub sum_root: ContentId,
    /// The pool account that funded it.
    pub from: Account,
    pub recipients: u64,
    /// The sum of all payouts.
    pub total: u128,
    pub paid: u128,
    pub next_index: u64,
    pub opened_seq: u64,
    pub closed_seq: Option<u64>,
    /// Sequences of the payouts, run-length encoded: (index, seq) of the first of each run of
    /// consecutive entries.
    pub runs: Vec<(u64, u64)>,
}

impl EpochAsset {
    /// The sequence of payout `index`, if it was made.
    pub fn payout_seq(&self, index: u64) -> Option<u64> {
        if index >= self.next_index {
            return None;
        }
        let run = self
            .runs
            .partition_point(|(first, _)| *first <= index)
            .checked_sub(1)?;
        let (first, seq) = self.runs[run];
        Some(seq + (index - first))
    }

    pub(super) fn note_payout(&mut self, seq: u64) {
        let index = self.next_index;
        let follows = self
            .runs
            .last()
            .is_some_and(|(i, s)| index - i == seq.wrapping_sub(*s));
        if !follows {
            self.runs.push((index, seq));
        }
        self.next_index += 1;
    }
}
