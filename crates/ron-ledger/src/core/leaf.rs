//! The canonical encoding of a log leaf: time, verdict and request, which is all that a replay
//! needs.
//!
//! ```text
//! leaf    := 0x01 | ts varint (unix ms) | link | verdict | request
//! link    := 0x00 | 0x01 position varint, length varint      (one linked commit)
//! verdict := 0x00 | 0xff from text, asset text, amount | code (1..) (expected | paid_by text)? | 0xfe (0x01 varint | 0x02 amount)
//!            0xff: done, with the effect of a capture, release or expire
//!            expected: a varint with nonce_conflict, index_gap; paid_by: the epoch, with usage_paid
//!            0xfe: refused by the operator's limit of accounts (1) or of one account's total (2)
//! request := 0x00 origin text (genesis) | kind (1..) header fields
//! ```

use ron_proto::{Amount, Timestamp};

use super::codec::{DecodeError, In, Out};
use super::limits::{ACCOUNTS_MAX, Limit};
use super::op::Op;
use super::verdict::{Effect, Refusal, Verdict};

const FORMAT: u8 = 1;

/// Position of an entry in its linked commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    pub position: u32,
    pub length: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leaf {
    /// The writer's time; never decreases.
    pub ts: Timestamp,
    pub link: Option<Link>,
    pub content: Content,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// Leaf 0: the origin of the log.
    Genesis { origin: String },
    /// Every other leaf: an entry and its verdict.
    Entry { op: Op, verdict: Verdict },
}

impl Leaf {
    pub fn encode(&self) -> Vec<u8> {
        match &self.content {
            Content::Entry { op, verdict } => encode(self.ts, self.link, verdict, op),
            Content::Genesis { origin } => {
                let mut o = Out(Vec::with_capacity(origin.len() + 16));
                o.byte(FORMAT);
                o.varint(self.ts.0);
                o.bytes(&[0, 0, 0]);
                o.text(origin);
                o.0
            }
        }
    }

    /// Decodes canonical bytes; every other encoding of the same leaf is an error.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut i = In::new(bytes);
        let format = i.byte()?;
        if format != FORMAT {
            return i.fail(format!(
                "leaf format {format} is not known; a newer version may have written it"
            ));
        }
        let ts = match i.varint()? {
            ms if ms <= Timestamp::MAX.0 => Timestamp(ms),
            _ => return i.fail("the time is past the year 9999"),
        };
        let link = i.option(|i| {
            let link = Link {
                position: small(i)?,
                length: small(i)?,
            };
            if link.position < link.length && link.length > 1 {
                Ok(link)
            } else {
                i.fail("a link outside its commit")
            }
        })?;
        let verdict = read_verdict(&mut i)?;
        let content = if i.rest().first() == Some(&0) {
            i.byte()?;
            let origin = i.text()?.to_owned();
            i.end()?;
            if link.is_some() || verdict != Verdict::Done(None) {
                return i.fail("a genesis leaf has neither link nor verdict");
            }
            Content::Genesis { origin }
        } else {
            let op = Op::decode(&mut i)?;
            if let Verdict::Done(effect) = &verdict
                && effect.is_some() != op.kind().has_effect()
            {
                return i.fail("an effect belongs to capture, release and expire");
            }
            Content::Entry { op, verdict }
        };
        Ok(Self { ts, link, content })
    }
}

fn small(i: &mut In<'_>) -> Result<u32, DecodeError> {
    let n = i.varint()?;
    u32::try_from(n).or_else(|_| i.fail("the number is too large"))
}

fn read_verdict(i: &mut In<'_>) -> Result<Verdict, DecodeError> {
    let why = match i.byte()? {
        0 => return Ok(Verdict::Done(None)),
        EFFECT => {
            let effect = Effect {
                from: i.value()?,
                asset: i.value()?,
                amount: Amount(i.amount()?),
            };
            return Ok(Verdict::Done(Some(effect)));
        }
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
        n => i.fail(format!("limit {n} is not known")),
    }
}

/// Marks an effect; above every refusal number.
const EFFECT: u8 = 0xff;
/// Marks a refusal by a limit of the operator; above every refusal number.
const LIMITED: u8 = 0xfe;

fn put_verdict(o: &mut Out, verdict: &Verdict) {
    let why = match verdict {
        Verdict::Done(None) => return o.byte(0),
        Verdict::Done(Some(effect)) => {
            o.byte(EFFECT);
            o.text(effect.from.as_str());
            o.text(effect.asset.as_str());
            return o.amount(effect.amount.0);
        }
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
        Refusal::Limit(Limit::Accounts(most)) => {
            o.bytes(&[LIMITED, 1]);
            o.varint(u64::from(*most));
        }
        Refusal::Limit(Limit::AccountTotal(most)) => {
            o.bytes(&[LIMITED, 2]);
            o.amount(*most);
        }
    }
}

/// The bytes of an entry's leaf, without building a [`Leaf`].
pub(super) fn encode(ts: Timestamp, link: Option<Link>, verdict: &Verdict, op: &Op) -> Vec<u8> {
    let mut o = Out(Vec::with_capacity(op.request().len() + 32));
    o.byte(FORMAT);
    o.varint(ts.0);
    o.option(link, |o, l| {
        o.varint(u64::from(l.position));
        o.varint(u64::from(l.length));
    });
    put_verdict(&mut o, verdict);
    o.bytes(op.request());
    o.0
}
