//! The trail of issued tokens: a slot for each token that was signed, in one slot file per status list, at the token's position.
//!
//! A slot has no text. Client, tenant, audience and scope are one number, whose texts are in the store; the holder is a hash, so that
//! an administrator who names a holder finds its tokens, and no list of holders is kept. Slots are written after the signature and
//! before the answer, and are not flushed: they survive a kill of the process, and a power failure may lose the newest. The KMS has a
//! leaf for each signature in any case.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use ron_files::{Disk, FileError, Kind, Slot, SlotFile};
use ron_kernel::{Deadline, Snapshot};
use ron_proto::passport::{IssuedToken, IssuedTokens};
use ron_proto::{Tenant, Timestamp, b64};
use serde::{Deserialize, Serialize};

use crate::lists::{LIST_AGE_S, LIST_KEPT_S, LIST_TOKENS, jti, opened_at};

/// Bytes of a slot's content: time of issue, lifetime, grant, holder, random part of the id.
const ENTRY: usize = 4 + 2 + 4 + 8 + 16;
const _: () = assert!(SlotFile::<ENTRY>::SLOT <= 64, "what a token may take");
/// The files; their id is the number of the list.
const KIND: Kind = Kind {
    name: b"ISSU",
    version: 1,
};
/// Slots that are read at a time, 38 KiB.
const CHUNK: usize = 1024;
/// Maximum reads for one page, as many as a full list needs.
const CHUNKS_MAX: u32 = LIST_TOKENS / CHUNK as u32;
/// Maximum grants of one client that are recorded with their scope; a client may ask for any part of its scopes.
const SCOPES_MAX: usize = 1024;

/// What a token was issued for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IssuedFor {
    pub client: String,
    pub tenant: Tenant,
    pub audience: String,
    /// Sorted, each once: the order in which a client names its scopes makes no other grant. `None` for a client with more than
    /// [`SCOPES_MAX`] different grants.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<String>,
}

impl IssuedFor {
    pub fn new(client: &str, tenant: Tenant, audience: &str, scope: &str) -> Self {
        let scopes: BTreeSet<&str> = scope.split(' ').collect();
        Self {
            client: client.to_owned(),
            tenant,
            audience: audience.to_owned(),
            scope: Some(Vec::from_iter(scopes).join(" ")),
        }
    }
}

/// The recorded grants with their numbers. The revoker thread alone adds some.
#[derive(Clone, Debug, Default)]
pub struct Grants {
    numbers: BTreeMap<Arc<IssuedFor>, u32>,
    grants: BTreeMap<u32, Arc<IssuedFor>>,
    /// How many each client has.
    of_clients: BTreeMap<String, usize>,
}

impl Grants {
    pub fn add(&mut self, number: u32, grant: IssuedFor) {
        *self.of_clients.entry(grant.client.clone()).or_default() += 1;
        let grant = Arc::new(grant);
        self.numbers.insert(grant.clone(), number);
        self.grants.insert(number, grant);
    }

    pub fn number(&self, grant: &IssuedFor) -> Option<u32> {
        self.numbers.get(grant).copied()
    }

    /// The grant under which this one is recorded: without its scope, once its client has too many.
    pub fn recorded(&self, grant: IssuedFor) -> IssuedFor {
        let of_client = self.of_clients.get(&grant.client).copied();
        if of_client.unwrap_or(0) < SCOPES_MAX || self.numbers.contains_key(&grant) {
            return grant;
        }
        IssuedFor {
            scope: None,
            ..grant
        }
    }
}

/// A token that was signed.
#[derive(Clone, Debug)]
pub struct Issued<'a> {
    /// Its position in its list.
    pub place: u32,
    pub random: [u8; 16],
    /// Unix seconds.
    pub iat: u64,
    pub ttl_s: u64,
    /// Number of its grant.
    pub grant: u32,
    pub subject: &'a str,
}

/// How long the trail is kept.
#[derive(Clone, Copy, Debug)]
pub struct Retention {
    pub s: u64,
    pub bytes_max: u64,
}

#[derive(Debug)]
pub struct Trail {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    pub grants: Arc<Snapshot<Grants>>,
    retention: Retention,
}

/// Which tokens a reader asks for.
#[derive(Clone, Debug, Default)]
pub struct IssuedAsk {
    pub client: Option<String>,
    pub audience: Option<String>,
    pub subject: Option<String>,
    pub since: Option<Timestamp>,
    pub until: Option<Timestamp>,
    /// Where the page before has ended: a list and a position in it.
    pub before: Option<(u64, u32)>,
    /// Maximum number of tokens in the answer.
    pub limit: usize,
}

impl Trail {
    /// Opens the trail in a directory, which is created if needed.
    pub fn open(
        disk: Arc<dyn Disk>,
        dir: PathBuf,
        grants: Arc<Snapshot<Grants>>,
        retention: Retention,
    ) -> io::Result<Self> {
        disk.create_dir_all(&dir)?;
        Ok(Self {
            disk,
            dir,
            grants,
            retention,
        })
    }

    /// Records tokens of one list, in the order of their positions.
    pub fn note(&self, list: u64, tokens: &[Issued<'_>]) -> Result<(), FileError> {
        let path = self.path(list);
        let file = SlotFile::open_or_create(&*self.disk, &path, KIND, list)?;
        // One write, unless the KMS has refused some of a batch.
        for run in tokens.chunk_by(|one, next| one.place + 1 == next.place) {
            let first = u64::from(run[0].place);
            file.write(first, run.iter().map(|token| entry(list, token)))?;
        }
        Ok(())
    }

    /// Deletes the lists beyond the retention: the old ones, and the oldest while all are too large. Lists whose tokens may be valid stay.
    pub fn forget(&self, now_s: u64) -> io::Result<()> {
        let (mut kept, mut deleted, mut done) = (0_u64, false, Ok(()));
        for list in self.lists()? {
            let path = self.path(list);
            let age_s = now_s.saturating_sub(opened_at(list));
            let bytes = self.disk.open_read(&path).and_then(|file| file.len());
            kept = kept.saturating_add(*bytes.as_ref().unwrap_or(&0));
            let old = age_s > self.retention.s + LIST_AGE_S || kept > self.retention.bytes_max;
            deleted |= old && age_s > LIST_KEPT_S;
            // A file that cannot be read or deleted keeps no other.
            done = done.and(bytes.map(|_| ()));
            if deleted {
                done = done.and(self.disk.remove(&path));
            }
        }
        done
    }

    /// One page, the newest list first, in each list the newest token. It reads at most as many slots as one list has, and nothing more
    /// after `until`, so that a search for few among many ends soon; then the page may be empty although there is another.
    pub fn page(&self, ask: &IssuedAsk, until: Deadline) -> Result<IssuedTokens, FileError> {
        let lists = self.lists().map_err(FileError::io(&self.dir))?;
        let from = ask.before.map_or(0, |(list, _)| {
            let after = lists.iter().take_while(|one| newer(**one, list));
            after.count()
        });
        let mut search = Search {
            ask,
            until,
            chunks: 0,
            page: IssuedTokens::default(),
        };
        for list in &lists[from..] {
            let opened_s = opened_at(*list);
            let over_by = |at: Timestamp| opened_s + LIST_AGE_S < at.0 / 1000;
            if ask.since.is_some_and(over_by) {
                break;
            }
            // A list's number may be ahead of the second in which it was opened, by less than lists are open.
            let later = |at: Timestamp| opened_s > at.0 / 1000 + LIST_AGE_S;
            if ask.until.is_some_and(later) {
                continue;
            }
            let end = match ask.before {
                Some((at, place)) if at == *list => place,
                _ => LIST_TOKENS,
            };
            if !self.search(*list, end, &mut search)? {
                break;
            }
        }
        Ok(search.page)
    }

    /// Searches a list backwards from a position. False when the page ends in it.
    fn search(&self, list: u64, end: u32, search: &mut Search<'_>) -> Result<bool, FileError> {
        let path = self.path(list);
        let Some(file) = SlotFile::<ENTRY>::open(&*self.disk, &path, KIND, list)? else {
            return Ok(true); // deleted meanwhile
        };
        let slots = file.slots()?.min(u64::from(LIST_TOKENS));
        let mut end = end.min(slots as u32);
        while end > 0 {
            if search.is_over() {
                search.page.next = Some(cursor(list, end));
                return Ok(false);
            }
            search.chunks += 1;
            let first = end.saturating_sub(CHUNK as u32);
            let slots = file.read::<CHUNK>(u64::from(first))?;
            // Only now: a slot is written after its grant has got a number.
            let grants = self.grants.load();
            let places = (first..end).zip(&slots);
            for (place, slot) in places.rev() {
                search.add((list, place), slot, &grants);
                if search.page.tokens.len() == search.ask.limit {
                    search.page.next = Some(cursor(list, place));
                    return Ok(false);
                }
            }
            end = first;
        }
        Ok(true)
    }

    /// The lists that have a file, the newest first.
    fn lists(&self) -> io::Result<Vec<u64>> {
        let files = self.disk.list(&self.dir)?;
        let mut lists: Vec<u64> = files.iter().filter_map(|file| file.parse().ok()).collect();
        lists.sort_unstable_by_key(|list| std::cmp::Reverse((opened_at(*list), *list)));
        Ok(lists)
    }

    fn path(&self, list: u64) -> PathBuf {
        self.dir.join(list.to_string())
    }
}

/// A page while it is read.
struct Search<'a> {
    ask: &'a IssuedAsk,
    until: Deadline,
    /// How many were read.
    chunks: u32,
    page: IssuedTokens,
}

impl Search<'_> {
    /// Whether no more may be read. Each page reads something, so that the next one begins behind it.
    fn is_over(&self) -> bool {
        self.chunks > 0 && (self.chunks >= CHUNKS_MAX || self.until.expired())
    }

    /// Adds the token of a slot, if the reader asks for it. A position whose signature was refused has an empty slot.
    fn add(&mut self, at: (u64, u32), slot: &Slot<ENTRY>, grants: &Grants) {
        match slot {
            Slot::Empty => {}
            Slot::Sound(entry) if grants.grants.contains_key(&number_in(entry)) => {
                let token = shown(entry, at, self.ask, grants);
                self.page.tokens.extend(token);
            }
            Slot::Sound(_) | Slot::Damaged => self.page.lost += 1,
        }
    }
}

fn newer(list: u64, than: u64) -> bool {
    (opened_at(list), list) > (opened_at(than), than)
}

/// Where a page ends, as text: `before` of the next.
fn cursor(list: u64, place: u32) -> String {
    format!("{list}.{place}")
}

/// The list and position of [`cursor`].
pub fn parse_cursor(text: &str) -> Option<(u64, u32)> {
    let (list, place) = text.split_once('.')?;
    Some((list.parse().ok()?, place.parse().ok()?))
}

fn entry(list: u64, token: &Issued<'_>) -> [u8; ENTRY] {
    let mut bytes = [0; ENTRY];
    bytes[..4].copy_from_slice(&(token.iat as u32).to_be_bytes());
    bytes[4..6].copy_from_slice(&(token.ttl_s as u16).to_be_bytes());
    bytes[6..10].copy_from_slice(&token.grant.to_be_bytes());
    bytes[10..18].copy_from_slice(&holder(list, token.subject));
    bytes[18..].copy_from_slice(&token.random);
    bytes
}

/// 64 bits of a hash over list and holder.
fn holder(list: u64, subject: &str) -> [u8; 8] {
    let text = [
        b"ron-issued/v1\0",
        &list.to_be_bytes()[..],
        subject.as_bytes(),
    ]
    .concat();
    let hash = ron_crypto::hash::blake3(&text);
    std::array::from_fn(|at| hash[at])
}

/// Number of the grant.
fn number_in(entry: &[u8; ENTRY]) -> u32 {
    u32::from_be_bytes(std::array::from_fn(|at| entry[6 + at]))
}

/// The token of a slot, if the reader asks for it.
fn shown(
    entry: &[u8; ENTRY],
    (list, place): (u64, u32),
    ask: &IssuedAsk,
    grants: &Grants,
) -> Option<IssuedToken> {
    let number = |range: std::ops::Range<usize>| {
        let bytes = entry[range].iter();
        bytes.fold(0_u64, |sum, byte| sum << 8 | u64::from(*byte))
    };
    let (iat, ttl_s) = (number(0..4), number(4..6));
    let issued = Timestamp(iat * 1000);
    let late = ask.until.is_some_and(|until| issued >= until);
    if late || ask.since.is_some_and(|since| issued < since) {
        return None;
    }
    let grant = grants.grants.get(&number_in(entry))?;
    let differs = |asked: &Option<String>, is: &str| asked.as_ref().is_some_and(|a| a != is);
    if differs(&ask.client, &grant.client) || differs(&ask.audience, &grant.audience) {
        return None;
    }
    let is_for = |subject: &String| entry[10..18] == holder(list, subject);
    let subject = match &ask.subject {
        Some(subject) if !is_for(subject) => return None,
        Some(subject) => Some(subject.clone()),
        None => Some(grant.client.clone()).filter(is_for),
    };
    let random: [u8; 16] = std::array::from_fn(|at| entry[18 + at]);
    Some(IssuedToken {
        jti: jti(list, place, &random),
        issued,
        expires: Timestamp((iat + ttl_s) * 1000),
        client_id: grant.client.clone(),
        subject,
        tenant: grant.tenant.clone(),
        audience: grant.audience.clone(),
        scope: grant.scope.clone(),
    })
}

/// List, position and random part of a token's id.
pub fn parts(jti: &str) -> Option<(u64, u32, [u8; 16])> {
    let mut parts = jti.split('.');
    let list = u64::from_str_radix(parts.next()?, 16).ok()?;
    let place = u32::from_str_radix(parts.next()?, 16).ok()?;
    let random = b64::from_url(parts.next()?).ok()?;
    Some((list, place, random.try_into().ok()?))
}

#[cfg(test)]
#[path = "trail_tests.rs"]
mod tests;
