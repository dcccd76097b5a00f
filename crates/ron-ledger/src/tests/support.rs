//! Shared test helpers: entries in few words, engines on a simulated disk.

use std::path::Path;
use std::sync::Arc;

use ron_files::{Disk, SimDisk};
use ron_kernel::SeededRandom;
use ron_proto::ledger::{Details, Entry, HoldRef};
use ron_proto::{Amount, ContentId, Timestamp};

use crate::core::{Op, Outcome, Salts, Verdict};
use crate::engine::{Atomicity, Engine, EngineOptions, Request};

pub(super) const T0: u64 = 1_700_000_000_000;

/// The same for all entries, so that equal entries have equal records.
pub(super) fn salts() -> Salts {
    Salts::new([[1; 16], [2; 16], [3; 16], [4; 16], [5; 16]])
}

pub(super) fn issue(key: &str, to: &str, n: u128) -> Entry {
    Entry::Issue {
        tenant: "t".parse().unwrap(),
        principal: "p".parse().unwrap(),
        key: key.parse().unwrap(),
        to: to.parse().unwrap(),
        asset: "ron".parse().unwrap(),
        amount_minor: Amount(n),
        details: Details::default(),
        batch: None,
        budgets: Vec::new(),
    }
}

pub(super) fn transfer(key: &str, from: &str, to: &str, n: u128, nonce: u64) -> Entry {
    Entry::Transfer {
        tenant: "t".parse().unwrap(),
        principal: "p".parse().unwrap(),
        key: key.parse().unwrap(),
        from: from.parse().unwrap(),
        to: to.parse().unwrap(),
        asset: "ron".parse().unwrap(),
        amount_minor: Amount(n),
        up_to: None,
        nonce: Some(nonce),
        details: Details::default(),
        batch: None,
        daily_ceiling: None,
        budgets: Vec::new(),
    }
}

pub(super) fn hold(key: &str, from: &str, n: u128, nonce: u64, expires_ms: u64) -> Entry {
    Entry::Hold {
        tenant: "t".parse().unwrap(),
        principal: "p".parse().unwrap(),
        key: key.parse().unwrap(),
        from: from.parse().unwrap(),
        asset: "ron".parse().unwrap(),
        amount_minor: Amount(n),
        up_to: None,
        nonce: Some(nonce),
        expires_at: Timestamp(expires_ms),
        details: Details::default(),
        batch: None,
        daily_ceiling: None,
        budgets: Vec::new(),
    }
}

pub(super) fn capture(key: &str, hold: impl Into<HoldRef>, to: &str, n: u128) -> Entry {
    Entry::Capture {
        tenant: "t".parse().unwrap(),
        principal: "p".parse().unwrap(),
        key: key.parse().unwrap(),
        hold: hold.into(),
        to: to.parse().unwrap(),
        amount_minor: Some(Amount(n)),
        ends_hold: false,
        details: Details::default(),
        batch: None,
        budgets: Vec::new(),
    }
}

pub(super) fn epoch_open(
    epoch: &str,
    from: &str,
    total: u128,
    recipients: u64,
    commitment: u8,
) -> Entry {
    Entry::EpochOpen {
        principal: "rewarder".parse().unwrap(),
        tenant: "t".parse().unwrap(),
        epoch: epoch.parse().unwrap(),
        from: from.parse().unwrap(),
        asset: "ron".parse().unwrap(),
        amount_minor: Amount(total),
        commitment: ContentId([commitment; 32]),
        sum_root: ContentId([9; 32]),
        recipients,
        source: ContentId::of(epoch.as_bytes()),
        adjusts: None,
    }
}

/// The same epoch, for this usage instead of its own.
pub(super) fn paying(mut open: Entry, paid: u8, corrects: Option<&str>) -> Entry {
    let Entry::EpochOpen {
        source, adjusts, ..
    } = &mut open
    else {
        panic!("{open:?} is no epoch_open");
    };
    *source = ContentId([paid; 32]);
    *adjusts = corrects.map(|epoch| epoch.parse().unwrap());
    open
}

pub(super) fn payout(epoch: &str, index: u64, to: &str, n: u128) -> Entry {
    Entry::Payout {
        principal: "rewarder".parse().unwrap(),
        tenant: "t".parse().unwrap(),
        epoch: epoch.parse().unwrap(),
        index,
        to: to.parse().unwrap(),
        asset: "ron".parse().unwrap(),
        amount_minor: Amount(n),
    }
}

pub(super) fn epoch_close(epoch: &str, commitment: u8) -> Entry {
    Entry::EpochClose {
        principal: "rewarder".parse().unwrap(),
        tenant: "t".parse().unwrap(),
        epoch: epoch.parse().unwrap(),
        commitment: ContentId([commitment; 32]),
        asset: None,
    }
}

pub(super) fn request(entries: Vec<Entry>, linked: bool) -> Request {
    Request {
        ops: entries
            .into_iter()
            .map(|e| Op::new(e, &salts()).unwrap())
            .collect(),
        atomicity: Atomicity::of(linked, false),
    }
}

pub(super) fn options(segment: u64) -> EngineOptions {
    let mut o = EngineOptions::new("test/ledger");
    o.segment_entries = segment;
    o.random = Arc::new(SeededRandom::new(3));
    o
}

pub(super) fn open(disk: &SimDisk) -> Engine {
    try_open(disk).unwrap()
}

pub(super) fn try_open(disk: &SimDisk) -> Result<Engine, crate::engine::EngineError> {
    let disk: Arc<dyn Disk> = Arc::new(disk.clone());
    Engine::open(disk, Path::new("/ledger"), options(256), Timestamp(T0))
}

/// Commits one request and returns the outcomes of its entries.
pub(super) fn commit(engine: &mut Engine, entries: Vec<Entry>, linked: bool) -> Vec<Outcome> {
    engine
        .commit(Timestamp(T0), &[request(entries, linked)])
        .unwrap()
        .outcomes
        .remove(0)
}

pub(super) fn done(d: &Outcome) -> bool {
    matches!(
        d,
        Outcome::Fresh {
            verdict: Verdict::Done(_),
            ..
        }
    )
}

/// The state's canonical bytes.
pub(super) fn image(engine: &Engine) -> Vec<u8> {
    let mut out = Vec::new();
    engine.shared().state(|s| {
        s.freeze()
            .encode::<()>(|b| {
                out.extend_from_slice(b);
                Ok(())
            })
            .unwrap();
    });
    out
}
