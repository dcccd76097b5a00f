//! The private record of an entry: what only its maker, the operator and auditors read.
//!
//! It stands beside the leaf in the log's files. The leaf holds its hash, which is salted, so that
//! the leaf tells nothing of it. The record has parts with salted hashes of their own: a holder of
//! the record can show one part and prove that it belongs to the leaf, and an operator can erase
//! the bytes of a text and keep its hash.
//!
//! ```text
//! private      := salt(16) | caller | text*
//! caller       := length varint | salt(16) | fields
//! fields       := present varint | tenant | principal | [key] | [nonce] | [effective_at] | [batch] | [daily_ceiling] | [budgets] | [up_to] | [terms]
//! text         := tag | state | hash(32) | length varint | salt(16) | value      memo, metadata, reference, in this order
//! state        := 0x01 | 0x00 erased: salt and value are zero bytes
//! private_hash  = SHA-256(salt | (tag | hash)*)       the caller's part has tag 1
//! hash          = SHA-256(salt | fields) or SHA-256(salt | value)
//! ```

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use ron_crypto::hash::sha256;
use ron_proto::ledger::{AccountTerms, BatchTag, BudgetId, MAX_BUDGETS, Metadata};
use ron_proto::{Amount, Timestamp};

use super::codec::{DecodeError, In, Out};
use super::entry::{Budget, Entry, Erased, Header};
use super::terms_codec as terms;

pub(crate) const SALT: usize = 16;

/// Random bytes for the private record of one entry, drawn by the caller of the core. Each entry
/// needs its own: equal salts would show which entries have equal texts.
#[derive(Clone, PartialEq, Eq)]
pub struct Salts([[u8; SALT]; 5]);

impl Salts {
    /// Number of random bytes that one entry needs.
    pub const BYTES: usize = 5 * SALT;

    pub const fn new(random: [[u8; SALT]; 5]) -> Self {
        Self(random)
    }

    /// Salts from [`Salts::BYTES`] random bytes.
    pub fn from_bytes(random: &[u8; Self::BYTES]) -> Self {
        let mut all = [[0; SALT]; 5];
        for (salt, bytes) in all.iter_mut().zip(random.chunks_exact(SALT)) {
            salt.copy_from_slice(bytes);
        }
        Self(all)
    }
}

impl std::fmt::Debug for Salts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Salts(..)")
    }
}

/// A part of a private record, with its tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Part {
    /// Tenant, principal, key, nonce and limits.
    Caller = 1,
    Memo = 2,
    Metadata = 3,
    Reference = 4,
}

impl Part {
    pub const ALL: [Self; 4] = [Self::Caller, Self::Memo, Self::Metadata, Self::Reference];
    const TEXTS: [Self; 3] = [Self::Memo, Self::Metadata, Self::Reference];

    /// The name of the part in a receipt file.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Caller => "caller",
            Self::Memo => "memo",
            Self::Metadata => "metadata",
            Self::Reference => "reference",
        }
    }

    const fn salt(self, salts: &Salts) -> &[u8; SALT] {
        &salts.0[self as usize]
    }
}

/// A private record and its hash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Sealed {
    pub bytes: Arc<[u8]>,
    pub hash: [u8; 32],
}

/// Makes the private record of an entry.
pub(super) fn seal(entry: &Entry, salts: &Salts) -> Sealed {
    let mut o = Out(Vec::with_capacity(256));
    let mut table = Table::new(&salts.0[0]);
    o.bytes(&salts.0[0]);
    let header = &entry.header;
    let caller = fields_len(entry);
    o.varint((SALT + caller) as u64);
    let from = o.0.len();
    o.bytes(Part::Caller.salt(salts));
    put_fields(&mut o, entry);
    debug_assert_eq!(
        o.0.len() - from,
        SALT + caller,
        "the length was computed right"
    );
    table.add(Part::Caller, &sha256(&o.0[from..]));
    let mut put = |part: Part, value: &dyn Fn(&mut Out)| {
        let mut body = Out(Vec::with_capacity(SALT + 64));
        body.bytes(part.salt(salts));
        value(&mut body);
        let hash = sha256(&body.0);
        table.add(part, &hash);
        o.bytes(&[part as u8, THERE]);
        o.bytes(&hash);
        o.varint(body.0.len() as u64);
        o.bytes(&body.0);
    };
    if let Some(memo) = &header.memo {
        put(Part::Memo, &|o| o.bytes(memo.as_str().as_bytes()));
    }
    if let Some(metadata) = &header.metadata {
        put(Part::Metadata, &|o| put_metadata(o, metadata));
    }
    if let Some(reference) = &header.reference {
        put(Part::Reference, &|o| o.bytes(reference.as_str().as_bytes()));
    }
    Sealed {
        hash: table.hash(),
        bytes: o.0.into(),
    }
}

const THERE: u8 = 1;
const ERASED: u8 = 0;

/// The hashed bytes of a private record: its salt, then tag and hash of each part.
pub(crate) struct Table {
    bytes: [u8; SALT + Part::ALL.len() * 33],
    len: usize,
}

impl Table {
    pub(crate) fn new(salt: &[u8; SALT]) -> Self {
        let mut bytes = [0; SALT + Part::ALL.len() * 33];
        bytes[..SALT].copy_from_slice(salt);
        Self { bytes, len: SALT }
    }

    /// Adds a part; parts come in the order of their tags.
    pub(crate) fn add(&mut self, part: Part, hash: &[u8; 32]) {
        self.bytes[self.len] = part as u8;
        self.bytes[self.len + 1..self.len + 33].copy_from_slice(hash);
        self.len += 33;
    }

    pub(crate) fn hash(&self) -> [u8; 32] {
        sha256(&self.bytes[..self.len])
    }
}

/// Bits of the number before the fields: which optional ones follow, in this order.
const KEY: u64 = 1;
const NONCE: u64 = 1 << 1;
const EFFECTIVE_AT: u64 = 1 << 2;
const BATCH: u64 = 1 << 3;
const DAILY_CEILING: u64 = 1 << 4;
/// Without a field: the reference is not shared with the payee.
const OWN_REFERENCE: u64 = 1 << 5;
const BUDGETS: u64 = 1 << 6;
const UP_TO: u64 = 1 << 7;
const TERMS: u64 = 1 << 8;
/// All bits, which are the lowest.
const KNOWN: u64 = 2 * TERMS - 1;

fn present(entry: &Entry) -> u64 {
    let h = &entry.header;
    let bits = [
        (KEY, h.key.is_some()),
        (NONCE, entry.body.nonce().is_some()),
        (EFFECTIVE_AT, h.effective_at.is_some()),
        (BATCH, h.batch.is_some()),
        (DAILY_CEILING, h.daily_ceiling.is_some()),
        (OWN_REFERENCE, !h.share_reference),
        (BUDGETS, !h.budgets.is_empty()),
        (UP_TO, entry.body.up_to().is_some()),
        (TERMS, entry.body.account_terms().is_some()),
    ];
    let bits = bits.into_iter().filter(|(_, there)| *there);
    bits.map(|(bit, _)| bit).sum()
}

fn put_fields(o: &mut Out, entry: &Entry) {
    let h = &entry.header;
    o.varint(present(entry));
    o.text(h.tenant.as_str());
    o.text(h.principal.as_str());
    if let Some(key) = &h.key {
        o.text(key.as_str());
    }
    if let Some(nonce) = entry.body.nonce() {
        o.varint(nonce);
    }
    if let Some(at) = h.effective_at {
        o.varint(at.0);
    }
    if let Some(batch) = h.batch {
        o.varint(u64::from(batch.items));
        o.bytes(&batch.digest);
    }
    if let Some(ceiling) = h.daily_ceiling {
        o.amount(ceiling.0);
    }
    if !h.budgets.is_empty() {
        o.varint(h.budgets.len() as u64);
        h.budgets.iter().for_each(|budget| put_budget(o, budget));
    }
    if let Some(most) = entry.body.up_to() {
        o.amount(most.0);
    }
    if let Some(set) = entry.body.account_terms() {
        terms::put_account(o, set);
    }
}

fn put_budget(o: &mut Out, budget: &Budget) {
    o.bytes(&budget.id.0);
    o.option(budget.total.map(|most| most.0), Out::amount);
    o.option(budget.daily.map(|most| most.0), Out::amount);
    o.varint(budget.until.0);
}

fn budget(i: &mut In<'_>) -> Result<Budget, DecodeError> {
    Ok(Budget {
        id: BudgetId(i.array()?),
        total: i.option(In::amount)?.map(Amount),
        daily: i.option(In::amount)?.map(Amount),
        until: time(i)?,
    })
}

fn budgets(i: &mut In<'_>) -> Result<Vec<Budget>, DecodeError> {
    let n = i.varint()?;
    // None would be a second form of a record without budgets; the maximum is checked here too,
    // before anything is reserved for them.
    if n == 0 || n > MAX_BUDGETS as u64 {
        return i.fail("a record with budgets has 1 to 17");
    }
    (0..n).map(|_| budget(i)).collect()
}

/// Length of what [`put_fields`] writes. Known beforehand, so that the record is written once.
fn fields_len(entry: &Entry) -> usize {
    let h = &entry.header;
    let text = |s: &str| varint_len(s.len() as u64) + s.len();
    varint_len(present(entry))
        + text(h.tenant.as_str())
        + text(h.principal.as_str())
        + h.key.as_ref().map_or(0, |key| text(key.as_str()))
        + entry.body.nonce().map_or(0, varint_len)
        + h.effective_at.map_or(0, |at| varint_len(at.0))
        + h.batch
            .map_or(0, |b| varint_len(u64::from(b.items)) + b.digest.len())
        + h.daily_ceiling.map_or(0, amount_len)
        + budgets_len(&h.budgets)
        + entry.body.up_to().map_or(0, amount_len)
        + entry.body.account_terms().map_or(0, terms::account_len)
}

fn budgets_len(budgets: &[Budget]) -> usize {
    if budgets.is_empty() {
        return 0;
    }
    let limit = |most: Option<Amount>| 1 + most.map_or(0, amount_len);
    let one = |b: &Budget| b.id.0.len() + limit(b.total) + limit(b.daily) + varint_len(b.until.0);
    varint_len(budgets.len() as u64) + budgets.iter().map(one).sum::<usize>()
}

const fn amount_len(amount: Amount) -> usize {
    1 + 16 - (amount.0.leading_zeros() / 8) as usize
}

const fn varint_len(n: u64) -> usize {
    (64 - (n | 1).leading_zeros() as usize).div_ceil(7)
}

pub(super) fn put_metadata(o: &mut Out, metadata: &Metadata) {
    let members = metadata.iter();
    o.varint(members.len() as u64);
    for (name, value) in members {
        o.text(name);
        o.text(value);
    }
}

/// What a private record says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Private {
    pub header: Header,
    pub nonce: Option<u64>,
    /// The maximum of a debit of all that is available.
    pub up_to: Option<Amount>,
    /// What is set for an account.
    pub terms: Option<AccountTerms>,
    pub erased: Erased,
}

/// Where the parts of a private record are in its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Salt and fields of the caller's part.
    caller: Range<usize>,
    texts: Vec<TextAt>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct TextAt {
    part: Part,
    /// Place of the state byte.
    state: usize,
    hash: [u8; 32],
    /// Salt and value; zero bytes when erased.
    opening: Range<usize>,
    erased: bool,
}

/// One part of a private record, as a holder of the record can show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opening<'r> {
    pub part: Part,
    pub hash: [u8; 32],
    /// Salt and bytes; `None` when they were erased.
    pub opening: Option<(&'r [u8], &'r [u8])>,
}

impl Layout {
    /// Finds the parts of a private record, as the log stores it.
    pub fn of(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut i = In::new(bytes);
        i.take(SALT)?;
        let caller = salted(&mut i)?;
        let mut texts = Vec::new();
        let mut expected = Part::TEXTS.into_iter();
        while !i.rest().is_empty() {
            let tag = i.byte()?;
            let Some(part) = expected.find(|part| *part as u8 == tag) else {
                return i.fail("a text that is not known, or out of order");
            };
            let state = i.at();
            let erased = match i.byte()? {
                THERE => false,
                ERASED => true,
                _ => return i.fail("a text is there or erased"),
            };
            let hash = i.array()?;
            let opening = salted(&mut i)?;
            if erased && bytes[opening.clone()].iter().any(|b| *b != 0) {
                return i.fail("an erased text still has bytes");
            }
            texts.push(TextAt {
                part,
                state,
                hash,
                opening,
                erased,
            });
        }
        Ok(Self { caller, texts })
    }

    /// The parts in their order, with the salt of the whole record.
    pub fn openings<'r>(&self, bytes: &'r [u8]) -> (&'r [u8], Vec<Opening<'r>>) {
        let caller = &bytes[self.caller.clone()];
        let mut all = vec![Opening {
            part: Part::Caller,
            hash: sha256(caller),
            opening: Some(caller.split_at(SALT)),
        }];
        all.extend(self.texts.iter().map(|t| Opening {
            part: t.part,
            hash: t.hash,
            opening: (!t.erased).then(|| bytes[t.opening.clone()].split_at(SALT)),
        }));
        (&bytes[..SALT], all)
    }

    /// The hash that the leaf must hold; `None` when a text does not have its own hash.
    pub fn hash(&self, bytes: &[u8]) -> Option<[u8; 32]> {
        let salt = bytes.get(..SALT)?.try_into().ok()?;
        let mut table = Table::new(salt);
        table.add(Part::Caller, &sha256(&bytes[self.caller.clone()]));
        for t in &self.texts {
            if !t.erased && sha256(&bytes[t.opening.clone()]) != t.hash {
                return None;
            }
            table.add(t.part, &t.hash);
        }
        Some(table.hash())
    }

    /// Reads header, nonce and maximum. Whether the parts have their hashes is checked by [`Self::hash`].
    pub fn read(&self, bytes: &[u8]) -> Result<Private, DecodeError> {
        let fields = self.caller.start + SALT..self.caller.end;
        let within = |at: usize| move |e: DecodeError| DecodeError { at: at + e.at, ..e };
        let Caller {
            mut header,
            nonce,
            up_to,
            terms,
        } = read_caller(&bytes[fields.clone()]).map_err(within(fields.start))?;
        let mut erased = Erased::default();
        for t in &self.texts {
            let at = t.opening.start + SALT;
            let value = &bytes[at..t.opening.end];
            match t.part {
                Part::Memo if t.erased => erased.memo = true,
                Part::Metadata if t.erased => erased.metadata = true,
                Part::Reference if t.erased => erased.reference = true,
                Part::Memo => header.memo = Some(read_text(value).map_err(within(at))?),
                Part::Metadata => {
                    header.metadata = Some(read_metadata(value).map_err(within(at))?);
                }
                Part::Reference => header.reference = Some(read_text(value).map_err(within(at))?),
                Part::Caller => unreachable!("the texts have other tags"),
            }
        }
        Ok(Private {
            header,
            nonce,
            up_to,
            terms,
            erased,
        })
    }

    /// Erases the texts in `bytes`, a private record with this layout: their bytes become zero,
    /// their hashes stay. Returns how many were erased.
    pub fn erase(&self, bytes: &mut [u8]) -> usize {
        let there = self.texts.iter().filter(|t| !t.erased);
        there
            .map(|t| {
                bytes[t.state] = ERASED;
                bytes[t.opening.clone()].fill(0);
            })
            .count()
    }
}

/// The place of a salt and the bytes after it, behind their length.
fn salted(i: &mut In<'_>) -> Result<Range<usize>, DecodeError> {
    let length = usize::try_from(i.varint()?).unwrap_or(usize::MAX);
    if length < SALT {
        return i.fail("a part is shorter than its salt");
    }
    let from = i.at();
    i.take(length)?;
    Ok(from..from + length)
}

/// The caller's part of a private record.
pub(crate) struct Caller {
    /// Its texts stand in parts of their own.
    pub(crate) header: Header,
    pub(crate) nonce: Option<u64>,
    pub(crate) up_to: Option<Amount>,
    pub(crate) terms: Option<AccountTerms>,
}

/// Reads the fields of a caller's part.
pub(crate) fn read_caller(fields: &[u8]) -> Result<Caller, DecodeError> {
    let mut i = In::new(fields);
    let present = i.varint()?;
    if present & !KNOWN != 0 {
        return i.fail(
            "the private record has a field that is not known; a newer version may have written it",
        );
    }
    let mut h = Header::new(i.value()?, i.value()?);
    let has = |bit| present & bit != 0;
    h.key = has(KEY).then(|| i.value()).transpose()?;
    let nonce = has(NONCE).then(|| i.varint()).transpose()?;
    h.effective_at = has(EFFECTIVE_AT).then(|| time(&mut i)).transpose()?;
    h.batch = has(BATCH).then(|| batch(&mut i)).transpose()?;
    h.daily_ceiling = has(DAILY_CEILING)
        .then(|| i.amount().map(Amount))
        .transpose()?;
    h.share_reference = !has(OWN_REFERENCE);
    if has(BUDGETS) {
        h.budgets = budgets(&mut i)?;
    }
    let up_to = has(UP_TO).then(|| i.amount().map(Amount)).transpose()?;
    let terms = has(TERMS).then(|| terms::account(&mut i)).transpose()?;
    i.end()?;
    Ok(Caller {
        header: h,
        nonce,
        up_to,
        terms,
    })
}

pub(super) fn time(i: &mut In<'_>) -> Result<Timestamp, DecodeError> {
    match i.varint()? {
        ms if ms <= Timestamp::MAX.0 => Ok(Timestamp(ms)),
        _ => i.fail("the time is past the year 9999"),
    }
}

fn batch(i: &mut In<'_>) -> Result<BatchTag, DecodeError> {
    let items = i.varint()?;
    let Ok(items) = u32::try_from(items) else {
        return i.fail("the number is too large");
    };
    Ok(BatchTag {
        items,
        digest: i.array()?,
    })
}

/// A text that fills `value`.
pub(crate) fn read_text<T: std::str::FromStr<Err = ron_proto::ValueError>>(
    value: &[u8],
) -> Result<T, DecodeError> {
    let bad = |why: String| DecodeError { at: 0, why };
    let text = std::str::from_utf8(value).map_err(|_| bad("the text is not UTF-8".to_owned()))?;
    text.parse()
        .map_err(|e: ron_proto::ValueError| bad(e.to_string()))
}

/// Metadata that fills `value`.
pub(crate) fn read_metadata(value: &[u8]) -> Result<Metadata, DecodeError> {
    let mut i = In::new(value);
    let mut members = BTreeMap::new();
    let mut last: Option<&str> = None;
    for _ in 0..i.varint()? {
        let (name, value) = (i.text()?, i.text()?);
        if last.is_some_and(|last| last >= name) {
            return i.fail("the names of the metadata are not ascending");
        }
        last = Some(name);
        members.insert(name.to_owned(), value.to_owned());
    }
    i.end()?;
    Metadata::try_from(members).or_else(|e| i.fail(e.to_string()))
}
