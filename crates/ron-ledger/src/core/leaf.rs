//! The canonical encoding of a log leaf: the public side of an entry, which alone is in the tree.
//!
//! ```text
//! leaf    := 0x01 | kind | seq varint | ts varint (unix ms) | link | outcome | facts | detail | private_hash(32)
//! genesis := 0x01 | 0x00 | 0x00 | ts varint | origin text
//! link    := 0x00 | 0x01 position varint, length varint      (one linked commit)
//! outcome := 0x00 done | code (1..) (expected | paid_by text)? | 0xfe (0x01 varint | 0x02 amount | 0x03)
//!            expected: a varint with nonce_conflict, index_gap; paid_by: the epoch, with usage_paid
//!            0xfe: refused by the operator's limit of accounts (1), of one account's total (2), or
//!            because only registered assets may be issued (3)
//! facts   := present varint | [from] [to] [asset] [amount] [hold] [batch] [reverses]
//! detail  := by kind
//! ```
//!
//! A done capture, release or expiry has the account, asset and amount of its effect among the
//! facts. What is left of an entry is in its private record.

use ron_proto::Timestamp;
use ron_proto::ledger::TxId;

use super::codec::{DecodeError, In, Out};
use super::entry::Kind;
use super::entry_codec::{Facts, effect, put_detail, read_entry};
use super::limits::{ACCOUNTS_MAX, Limit};
use super::op::Op;
use super::private::Layout;
use super::verdict::{Refusal, Verdict};

/// Version of the leaf, of the private record beside it, and of the receipt that is made of them.
const FORMAT: u8 = 1;
const GENESIS: u8 = 0;
const HASH: usize = 32;

/// Position of an entry in its linked commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    pub position: u32,
    pub length: u32,
}

/// How an entry came with others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    pub link: Option<Link>,
    /// The transaction id of the first item of its batch or linked commit.
    pub batch: Option<TxId>,
}

/// The public side of an entry, read from its leaf alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublicLeaf {
    pub kind: Kind,
    pub seq: u64,
    /// The writer's time; never decreases.
    pub ts: Timestamp,
    pub link: Option<Link>,
    pub verdict: Verdict,
    pub facts: Facts<'static>,
    pub private_hash: [u8; HASH],
    /// Where the detail of the kind begins.
    detail: usize,
}

/// An entry as the log holds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leaf {
    pub seq: u64,
    pub ts: Timestamp,
    pub place: Place,
    pub op: Op,
    pub verdict: Verdict,
}

/// Bytes of leaf 0, which names the log.
pub fn genesis(ts: Timestamp, origin: &str) -> Vec<u8> {
    let mut o = Out(Vec::with_capacity(origin.len() + 16));
    o.bytes(&[FORMAT, GENESIS, 0]);
    o.varint(ts.0);
    o.text(origin);
    o.0
}

/// The origin in leaf 0.
pub fn read_genesis(bytes: &[u8]) -> Result<&str, DecodeError> {
    let mut i = In::new(bytes);
    format(&mut i)?;
    if (i.byte()?, i.varint()?) != (GENESIS, 0) {
        return i.fail("it is not a genesis record");
    }
    time(&mut i)?;
    let origin = i.text()?;
    i.end()?;
    Ok(origin)
}

fn format(i: &mut In<'_>) -> Result<(), DecodeError> {
    match i.byte()? {
        FORMAT => Ok(()),
        other => i.fail(format!(
            "leaf format {other} is not known; another version may have written it"
        )),
    }
}

impl PublicLeaf {
    /// Reads the public side of an entry's leaf.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let Some(end) = bytes.len().checked_sub(HASH) else {
            return In::new(bytes).fail("it ends too early");
        };
        let mut i = In::new(&bytes[..end]);
        format(&mut i)?;
        let number = i.byte()?;
        let Some(kind) = Kind::from_number(number) else {
            return i.fail(format!(
                "kind {number} is not known; a newer version may have written it"
            ));
        };
        let seq = i.varint()?;
        let ts = time(&mut i)?;
        let link = i.option(link)?;
        let verdict = read_verdict(&mut i)?;
        let facts = Facts::read(&mut i)?;
        let mut private_hash = [0; HASH];
        private_hash.copy_from_slice(&bytes[end..]);
        let verdict = match verdict {
            Verdict::Done(_) if kind.has_effect() => match effect(&facts) {
                Some(effect) => Verdict::Done(Some(effect)),
                None => return i.fail("the leaf lacks a fact of its kind"),
            },
            verdict => verdict,
        };
        Ok(Self {
            kind,
            seq,
            ts,
            link,
            verdict,
            facts,
            private_hash,
            detail: i.at(),
        })
    }

    pub fn txid(&self) -> TxId {
        TxId::new(self.seq, &self.private_hash)
    }
}

impl Leaf {
    /// Reads an entry from its leaf and its private record. Whether the two belong together is
    /// checked by [`Op::check_private`].
    pub fn decode(bytes: &[u8], private: &[u8]) -> Result<Self, DecodeError> {
        let public = PublicLeaf::decode(bytes)?;
        let mut i = In::new(&bytes[..bytes.len() - HASH]);
        i.take(public.detail)?;
        let record = Layout::of(private).and_then(|layout| layout.read(private));
        let record = record.map_err(|e| DecodeError {
            at: bytes.len() + e.at,
            why: format!("in the private record: {}", e.why),
        })?;
        let erased = record.erased;
        let entry = read_entry(public.kind, &public.facts, &mut i, record)?;
        i.end()?;
        let op = Op::read(entry, private, public.private_hash, erased);
        let op = op.map_err(|e| DecodeError {
            at: 0,
            why: e.to_string(),
        })?;
        Ok(Self {
            seq: public.seq,
            ts: public.ts,
            place: Place {
                link: public.link,
                batch: public.facts.batch,
            },
            op,
            verdict: public.verdict,
        })
    }

    pub fn txid(&self) -> TxId {
        self.op.txid(self.seq)
    }
}

fn time(i: &mut In<'_>) -> Result<Timestamp, DecodeError> {
    super::private::time(i)
}

fn link(i: &mut In<'_>) -> Result<Link, DecodeError> {
    let link = Link {
        position: small(i)?,
        length: small(i)?,
    };
    if link.position < link.length && link.length > 1 {
        Ok(link)
    } else {
        i.fail("a link outside its commit")
    }
}

fn small(i: &mut In<'_>) -> Result<u32, DecodeError> {
    let n = i.varint()?;
    u32::try_from(n).or_else(|_| i.fail("the number is too large"))
}

fn read_verdict(i: &mut In<'_>) -> Result<Verdict, DecodeError> {
    let why = match i.byte()? {
        0 => return Ok(Verdict::Done(None)),
        1 => Refusal::InsufficientFunds,
        2 => Refusal::NonceConflict {
            expected: i.varint()?,
        },
        3 => Refusal::LimitsExceeded,
        4 => Refusal::AmountOverflow,
        5 => Refusal::AccountFrozen,
        6 => Refusal::ReservedAccount,
        7 => Refusal::HoldNotFound,
        8 => Refusal::HoldTooSmall,
        9 => Refusal::HoldExpired,
        10 => Refusal::EpochConflict,
        11 => Refusal::EpochUnknown,
        12 => Refusal::EpochClosed,
        13 => Refusal::IndexGap {
            expected: i.varint()?,
        },
        14 => Refusal::EpochIncomplete,
        15 => Refusal::LinkedFailed,
        16 => Refusal::Abandoned,
        18 => Refusal::UsagePaid { by: i.value()? },
        19 => Refusal::AssetSpelling,
        20 => Refusal::RefusalBudget,
        21 => Refusal::NotReversible,
        22 => Refusal::ReversalTooLarge,
        23 => Refusal::AccountClosed,
        24 => Refusal::AccountNotEmpty,
        25 => Refusal::CreditInUse,
        26 => Refusal::MaxBalance,
        27 => Refusal::AssetScale,
        28 => Refusal::EpochOpened,
        29 => Refusal::EpochVoid,
        LIMITED => Refusal::Limit(read_limit(i)?),
        n => return i.fail(format!("refusal {n} is not known")),
    };
    Ok(Verdict::Refused(why))
}

fn read_limit(i: &mut In<'_>) -> Result<Limit, DecodeError> {
    match i.byte()? {
        1 => match small(i)? {
            n if n <= ACCOUNTS_MAX => Ok(Limit::Accounts(n)),
            _ => i.fail("there can never be so many accounts"),
        },
        2 => i.amount().map(Limit::AccountTotal),
        3 => Ok(Limit::RegisteredAssets),
        n => i.fail(format!("limit {n} is not known")),
    }
}

/// Marks a refusal by a limit of the operator; above every refusal number.
const LIMITED: u8 = 0xfe;

fn put_verdict(o: &mut Out, verdict: &Verdict) {
    let why = match verdict {
        Verdict::Done(_) => return o.byte(0),
        Verdict::Refused(why) => why,
    };
    match why {
        Refusal::InsufficientFunds => o.byte(1),
        Refusal::NonceConflict { expected } => {
            o.byte(2);
            o.varint(*expected);
        }
        Refusal::LimitsExceeded => o.byte(3),
        Refusal::AmountOverflow => o.byte(4),
        Refusal::AccountFrozen => o.byte(5),
        Refusal::ReservedAccount => o.byte(6),
        Refusal::HoldNotFound => o.byte(7),
        Refusal::HoldTooSmall => o.byte(8),
        Refusal::HoldExpired => o.byte(9),
        Refusal::EpochConflict => o.byte(10),
        Refusal::EpochUnknown => o.byte(11),
        Refusal::EpochClosed => o.byte(12),
        Refusal::IndexGap { expected } => {
            o.byte(13);
            o.varint(*expected);
        }
        Refusal::EpochIncomplete => o.byte(14),
        Refusal::LinkedFailed => o.byte(15),
        Refusal::Abandoned => o.byte(16),
        Refusal::UsagePaid { by } => {
            o.byte(18);
            o.text(by.as_str());
        }
        Refusal::AssetSpelling => o.byte(19),
        Refusal::RefusalBudget => o.byte(20),
        Refusal::NotReversible => o.byte(21),
        Refusal::ReversalTooLarge => o.byte(22),
        Refusal::AccountClosed => o.byte(23),
        Refusal::AccountNotEmpty => o.byte(24),
        Refusal::CreditInUse => o.byte(25),
        Refusal::MaxBalance => o.byte(26),
        Refusal::AssetScale => o.byte(27),
        Refusal::EpochOpened => o.byte(28),
        Refusal::EpochVoid => o.byte(29),
        Refusal::Limit(Limit::Accounts(most)) => {
            o.bytes(&[LIMITED, 1]);
            o.varint(u64::from(*most));
        }
        Refusal::Limit(Limit::AccountTotal(most)) => {
            o.bytes(&[LIMITED, 2]);
            o.amount(*most);
        }
        Refusal::Limit(Limit::RegisteredAssets) => o.bytes(&[LIMITED, 3]),
    }
}

/// The bytes of an entry's leaf.
pub(super) fn encode(seq: u64, ts: Timestamp, place: Place, verdict: &Verdict, op: &Op) -> Vec<u8> {
    let mut o = Out(Vec::with_capacity(160));
    o.bytes(&[FORMAT, op.kind() as u8]);
    o.varint(seq);
    o.varint(ts.0);
    o.option(place.link, |o, l| {
        o.varint(u64::from(l.position));
        o.varint(u64::from(l.length));
    });
    put_verdict(&mut o, verdict);
    let effect = match verdict {
        Verdict::Done(effect) => effect.as_ref(),
        Verdict::Refused(_) => None,
    };
    Facts::of(op.entry(), effect, place.batch).put(&mut o);
    put_detail(&op.entry().body, &mut o);
    o.bytes(op.private_hash());
    o.0
}
