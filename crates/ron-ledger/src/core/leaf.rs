//! The canonical encoding of a log leaf: time, verdict and request, which is all that a replay
//! needs.
//!
//! ```text
//! leaf    := 0x01 | ts varint (unix ms) | link | verdict | request
//! link    := 0x00 | 0x01 position varint, length varint      (one linked commit)
//! verdict := 0x00 (0xff from text, asset text, amount)? | code (1..) (expected | paid_by text)? | 0xfe (0x01 varint | 0x02 amount)
//!            0xfe: refused by the operator's limit of accounts (1) or of one account's total (2)
//!            the effect: of a done capture, release, expire; expected: a varint with nonce_conflict, index_gap;
//!            paid_by: the epoch, with usage_paid
//! request := 0x00 origin text (genesis) | kind (1..13) fields
//! ```

use ron_proto::ledger::{EntryKind, RefusalCode};
use ron_proto::{Amount, Timestamp};

use super::codec::{DecodeError, In, Out};
use super::limits::{ACCOUNTS_MAX, Limit};
use super::op::Op;
use super::{Effect, Verdict};

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
    pub body: Body,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// Leaf 0: the origin of the log.
    Genesis { origin: String },
    /// Every other leaf: an entry and its verdict.
    Entry { op: Op, verdict: Verdict },
}

impl Leaf {
    pub fn encode(&self) -> Vec<u8> {
        match &self.body {
            Body::Entry { op, verdict } => encode(self.ts, self.link, verdict, op),
            Body::Genesis { origin } => {
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
        if i.rest().first() == Some(&0) {
            i.byte()?;
            let origin = i.text()?.to_owned();
            i.end()?;
            if link.is_some() || verdict.is_some() {
                return i.fail("a genesis leaf has neither link nor verdict");
            }
            return Ok(Self {
                ts,
                link,
                body: Body::Genesis { origin },
            });
        }
        finish(ts, link, verdict, &mut i)
    }
}

fn small(i: &mut In<'_>) -> Result<u32, DecodeError> {
    let n = i.varint()?;
    u32::try_from(n).or_else(|_| i.fail("the number is too large"))
}

/// A refusal, or `None` for an entry that took effect.
fn read_verdict(i: &mut In<'_>) -> Result<Option<Verdict>, DecodeError> {
    let code = match i.byte()? {
        0 => return Ok(None),
        LIMITED => return read_limit(i).map(|limit| Some(Verdict::Limited(limit))),
        n => match RefusalCode::ALL.get(usize::from(n) - 1) {
            Some(RefusalCode::UsagePaid) => return Ok(Some(Verdict::Paid(i.value()?))),
            Some(code) => *code,
            None => return i.fail(format!("refusal {n} is not known")),
        },
    };
    let expected = if carries_expected(code) {
        Some(i.varint()?)
    } else {
        None
    };
    Ok(Some(Verdict::Refused { code, expected }))
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

fn finish(
    ts: Timestamp,
    link: Option<Link>,
    verdict: Option<Verdict>,
    i: &mut In<'_>,
) -> Result<Leaf, DecodeError> {
    let kind = i.rest().first().copied();
    let verdict = match verdict {
        Some(v) => v,
        // The effect is stored between verdict and request; its marker byte tells whether there is
        // one.
        None if kind == Some(EFFECT) => {
            i.byte()?;
            let effect = Effect {
                from: i.value()?,
                asset: i.value()?,
                amount: Amount(i.amount()?),
            };
            Verdict::Done(Some(effect))
        }
        None => Verdict::Done(None),
    };
    let op = Op::decode(i)?;
    let wants = matches!(
        op.kind(),
        EntryKind::Capture | EntryKind::Release | EntryKind::Expire
    );
    if let Verdict::Done(effect) = &verdict
        && effect.is_some() != wants
    {
        return i.fail("an effect belongs to capture, release and expire");
    }
    Ok(Leaf {
        ts,
        link,
        body: Body::Entry { op, verdict },
    })
}

/// Marks an effect; above every kind number.
const EFFECT: u8 = 0xff;
/// Marks a refusal by a limit of the operator; above every refusal number.
const LIMITED: u8 = 0xfe;

const fn carries_expected(code: RefusalCode) -> bool {
    matches!(code, RefusalCode::NonceConflict | RefusalCode::IndexGap)
}

/// The number of a refusal in the log: its position in the closed list, from 1.
fn refusal_number(code: RefusalCode) -> u8 {
    let at = RefusalCode::ALL
        .iter()
        .position(|c| *c == code)
        .expect("the list holds every code");
    at as u8 + 1
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
    match verdict {
        Verdict::Done(None) => o.byte(0),
        Verdict::Done(Some(effect)) => {
            o.bytes(&[0, EFFECT]);
            o.text(effect.from.as_str());
            o.text(effect.asset.as_str());
            o.amount(effect.amount.0);
        }
        Verdict::Refused { code, expected } => {
            o.byte(refusal_number(*code));
            if carries_expected(*code) {
                o.varint(expected.unwrap_or(0));
            }
        }
        Verdict::Paid(epoch) => {
            o.byte(refusal_number(RefusalCode::UsagePaid));
            o.text(epoch.as_str());
        }
        Verdict::Limited(Limit::Accounts(most)) => {
            o.bytes(&[LIMITED, 1]);
            o.varint(u64::from(*most));
        }
        Verdict::Limited(Limit::AccountTotal(most)) => {
            o.bytes(&[LIMITED, 2]);
            o.amount(*most);
        }
    }
    o.bytes(op.request());
    o.0
}
