//! Reads of the ledger's history: searches, past balances, statements, lists of holds and accounts.
//! They are answered from a projection that follows the log, usually within milliseconds; `min_seq`
//! says which entry it must have.

use std::collections::BTreeMap;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    AccountClass, BalanceDoc, EntryKind, Event, Metadata, PrincipalName, Reference, Sides, TxId,
};
use crate::values::{Account, Amount, Asset, SignedAmount, Tenant, Timestamp, ValueError};

/// Which side of an entry an account is on.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    /// The account was credited.
    In,
    /// The account was debited, or its money reserved or freed.
    Out,
}

impl Direction {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::In => "in",
            Self::Out => "out",
        }
    }
}

impl FromStr for Direction {
    type Err = ValueError;
    fn from_str(text: &str) -> Result<Self, ValueError> {
        match text {
            "in" => Ok(Self::In),
            "out" => Ok(Self::Out),
            _ => Err(ValueError::new("direction", "is in or out")),
        }
    }
}

/// By which time a statement sorts entries into its range.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum StatementTime {
    /// The ledger's time of the entry.
    #[default]
    Entry,
    /// The UTC day of `effective_at`, where an issue, or an entry that debits the account, has one. A payee
    /// has the entry on the day on which it came.
    Effective,
}

impl StatementTime {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Entry => "entry",
            Self::Effective => "effective",
        }
    }
}

impl FromStr for StatementTime {
    type Err = ValueError;
    fn from_str(text: &str) -> Result<Self, ValueError> {
        match text {
            "entry" => Ok(Self::Entry),
            "effective" => Ok(Self::Effective),
            _ => Err(ValueError::new("by", "is entry or effective")),
        }
    }
}

/// A sequence of the log, or a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PointInTime {
    Seq(u64),
    Time(Timestamp),
}

impl FromStr for PointInTime {
    type Err = ValueError;
    fn from_str(text: &str) -> Result<Self, ValueError> {
        if text.bytes().all(|b| b.is_ascii_digit()) {
            let seq = text
                .parse()
                .ok()
                .filter(|seq| *seq <= super::MAX_WIRE_INTEGER);
            return seq
                .map(Self::Seq)
                .ok_or_else(|| ValueError::new("at", "is a sequence below 2^53, or a time"));
        }
        text.parse().map(Self::Time)
    }
}

impl std::fmt::Display for PointInTime {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Seq(seq) => seq.fmt(f),
            Self::Time(ts) => ts.fmt(f),
        }
    }
}

/// A member of an entry's metadata that a search asks for: `name=value`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetadataMember(String, String);

impl MetadataMember {
    pub fn name(&self) -> &str {
        &self.0
    }
    pub fn value(&self) -> &str {
        &self.1
    }
}

impl FromStr for MetadataMember {
    type Err = ValueError;
    fn from_str(text: &str) -> Result<Self, ValueError> {
        let (name, value) = text
            .split_once('=')
            .ok_or_else(|| ValueError::new("metadata", "write it as name=value"))?;
        let members = [(name.to_owned(), value.to_owned())];
        Metadata::try_from(BTreeMap::from(members))?;
        Ok(Self(name.to_owned(), value.to_owned()))
    }
}

impl std::fmt::Display for MetadataMember {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}={}", self.0, self.1)
    }
}

/// A reader of private texts: filters by `reference` and metadata match only entries that it made,
/// those of its tenant that debited the account searched, and references shared with payees; refused
/// entries only those that it made. Without an account, a `reference` is one of its tenant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Viewer {
    pub tenant: Tenant,
    pub principal: PrincipalName,
}

/// Query of `GET /v1/ledger/entries`. Each condition narrows the result; without any of `account`,
/// `reference`, `batch` and `hold` it is all entries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EntrySearch {
    pub account: Option<Account>,
    pub reference: Option<Reference>,
    pub batch: Option<TxId>,
    pub hold: Option<TxId>,
    pub asset: Option<Asset>,
    pub kind: Option<EntryKind>,
    /// Only with `account`.
    pub direction: Option<Direction>,
    pub counterparty: Option<Account>,
    /// A member of the metadata with this value.
    pub metadata: Vec<MetadataMember>,
    /// First time of the range.
    pub from: Option<Timestamp>,
    /// End of the range; the time itself is not part of it.
    pub until: Option<Timestamp>,
    pub viewer: Option<Viewer>,
    /// Entries below this sequence, the newest of them first.
    pub before: Option<u64>,
    /// Entries above this sequence, the oldest of them; a page is newest first all the same.
    pub after: Option<u64>,
    /// Maximum entries of the page.
    pub limit: u64,
    /// The sequence that the projection must have reached.
    pub min_seq: u64,
}

/// The names of [`EntrySearch`]'s members in a query.
pub const SEARCH_NAMES: [&str; 17] = [
    "account",
    "reference",
    "batch",
    "hold",
    "asset",
    "kind",
    "direction",
    "counterparty",
    "metadata",
    "from",
    "until",
    "viewer_tenant",
    "viewer",
    "before",
    "after",
    "limit",
    "min_seq",
];

impl EntrySearch {
    /// The query's names and values, to be percent-encoded.
    pub fn pairs(&self) -> Vec<(&'static str, String)> {
        let text = |name, value: Option<String>| value.map(|value| (name, value));
        let viewer = self.viewer.as_ref();
        let some = [
            text("account", self.account.as_ref().map(ToString::to_string)),
            text(
                "reference",
                self.reference.as_ref().map(|r| r.as_str().to_owned()),
            ),
            text("batch", self.batch.map(|id| id.to_string())),
            text("hold", self.hold.map(|id| id.to_string())),
            text("asset", self.asset.as_ref().map(ToString::to_string)),
            text("kind", self.kind.map(|kind| kind.to_string())),
            text("direction", self.direction.map(|d| d.as_str().to_owned())),
            text(
                "counterparty",
                self.counterparty.as_ref().map(ToString::to_string),
            ),
            text("from", self.from.map(|ts| ts.to_string())),
            text("until", self.until.map(|ts| ts.to_string())),
            text("viewer_tenant", viewer.map(|v| v.tenant.to_string())),
            text("viewer", viewer.map(|v| v.principal.to_string())),
            text("before", self.before.map(|seq| seq.to_string())),
            text("after", self.after.map(|seq| seq.to_string())),
            text("limit", Some(self.limit.to_string())),
            text(
                "min_seq",
                (self.min_seq > 0).then(|| self.min_seq.to_string()),
            ),
        ];
        let members = self.metadata.iter();
        let members = members.map(|member| ("metadata", member.to_string()));
        some.into_iter().flatten().chain(members).collect()
    }
}

/// An entry that a search found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FoundEntry {
    pub event: Event,
    /// Balance of the account searched after the entry, in the asset of the entry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub balance_minor: Option<SignedAmount>,
}

/// Response of `GET /v1/ledger/entries`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EntryPage {
    /// Newest first. A page may have fewer entries than asked for, also none, and still be followed
    /// by others.
    pub entries: Vec<FoundEntry>,
    /// Value of `before` for older entries; absent when there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub older: Option<u64>,
    /// Value of `after` for newer entries, also for those to come.
    pub newer: u64,
    /// The last durable sequence number when the page was made.
    pub head: u64,
}

/// Response of `GET /v1/ledger/accounts/{a}/balance?asset&at`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PastBalance {
    /// Balance, including held amounts; 0 when the account was overdrawn.
    pub amount_minor: Amount,
    /// How far the account was overdrawn.
    pub overdrawn_minor: Amount,
    /// Amount reserved by holds that were open then.
    pub held_minor: Amount,
    /// The last entry of the ledger that counts.
    pub seq: u64,
    /// The ledger's time of that entry.
    pub ts: Timestamp,
}

/// Response of `GET /v1/ledger/accounts/{a}/statement`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StatementPage {
    /// Balance before the first entry of the range.
    pub opening_minor: SignedAmount,
    /// Balance after the last entry of the range.
    pub closing_minor: SignedAmount,
    /// Sum of what the range credited.
    pub credits_minor: Amount,
    /// Sum of what the range debited.
    pub debits_minor: Amount,
    /// Entries of the range that moved money, oldest first.
    pub entries: Vec<FoundEntry>,
    /// Value of `after` for the entries that follow; absent when there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<u64>,
    /// The last entry of the ledger that the statement knows.
    pub seq: u64,
}

/// A hold, open or ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HoldRecord {
    /// Id of the hold: the txid of the entry that made it.
    pub hold: TxId,
    /// The account whose money is or was reserved.
    pub from: Account,
    pub asset: Asset,
    /// Amount reserved initially, in minor units.
    pub amount_minor: Amount,
    /// Amount still reserved, in minor units; 0 when the hold has ended.
    pub remaining_minor: Amount,
    /// Sum of its captures, in minor units.
    pub captured_minor: Amount,
    /// When the remaining amount becomes available again.
    pub expires_at: Timestamp,
    pub state: HoldState,
}

/// Whether a hold is open.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum HoldState {
    /// Some money is still reserved.
    Open,
    /// Captured completely, released or expired.
    Ended,
}

impl HoldState {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Ended => "ended",
        }
    }
}

impl FromStr for HoldState {
    type Err = ValueError;
    fn from_str(text: &str) -> Result<Self, ValueError> {
        match text {
            "open" => Ok(Self::Open),
            "ended" => Ok(Self::Ended),
            _ => Err(ValueError::new("state", "is open or ended")),
        }
    }
}

/// Response of `GET /v1/ledger/holds?account`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HoldPage {
    /// Newest first.
    pub holds: Vec<HoldRecord>,
    /// Value of `before` for older holds; absent when there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub older: Option<u64>,
}

/// An account in a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ListedAccount {
    pub account: Account,
    /// Whether every debit has to carry a nonce.
    pub require_nonce: bool,
    /// The sides that are frozen.
    pub frozen: Sides,
    /// Whether the account is closed: it refuses debits and credits.
    pub closed: bool,
    /// Label by which the trial balance sums; absent without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<AccountClass>,
    /// Balances with their holds and limits, sorted by asset; assets that the account never had and that
    /// no limits are set for are absent.
    pub balances: Vec<BalanceDoc>,
}

/// Response of `GET /v1/ledger/accounts?prefix`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AccountPage {
    /// Accounts that were ever opened, used or given terms, sorted by name. A page may have fewer than
    /// asked for, also none, and still be followed by others.
    pub accounts: Vec<ListedAccount>,
    /// Value of `after` for the next page; absent when there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<Account>,
    /// The last entry of the ledger that the balances count. An account that was first used a moment
    /// before may be missing, unless `min_seq` asks for its entry.
    pub seq: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_point_in_time_is_a_sequence_or_a_time() {
        let read = |text: &str| text.parse::<PointInTime>();
        assert_eq!(read("17"), Ok(PointInTime::Seq(17)));
        let time = read("2026-03-01T00:00:00Z").unwrap();
        assert_eq!(time.to_string(), "2026-03-01T00:00:00.000Z");
        assert!(read("99999999999999999999").is_err() && read("yesterday").is_err());
    }

    #[test]
    fn a_query_has_what_was_asked_and_nothing_else() {
        let search = EntrySearch {
            account: Some("a".parse().unwrap()),
            direction: Some(Direction::Out),
            metadata: vec!["order=7".parse().unwrap()],
            limit: 10,
            ..EntrySearch::default()
        };
        let pairs = search.pairs();
        let names: Vec<&str> = pairs.iter().map(|(name, _)| *name).collect();
        assert_eq!(names, ["account", "direction", "limit", "metadata"]);
        assert!(names.iter().all(|name| SEARCH_NAMES.contains(name)));
        assert!("order".parse::<MetadataMember>().is_err());
        assert!("a b=7".parse::<MetadataMember>().is_err());
    }
}
