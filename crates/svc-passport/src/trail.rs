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
use ron_kernel::Snapshot;
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

    /// One page, the newest list first, in each list the newest token. It reads at most as many slots as one list has, so that a search for
    /// few among many ends soon; then the page may be empty although there is another.
    pub fn page(&self, ask: &IssuedAsk) -> Result<IssuedTokens, FileError> {
        let mut page = IssuedTokens::default();
        let (grants, mut room) = (self.grants.load(), u64::from(LIST_TOKENS));
        let lists = self.lists().map_err(FileError::io(&self.dir))?;
        let from = ask.before.map_or(0, |(list, _)| {
            let after = lists.iter().take_while(|one| newer(**one, list));
            after.count()
        });
        for list in &lists[from..] {
            let opened_s = opened_at(*list);
            if ask
                .since
                .is_some_and(|since| opened_s + LIST_AGE_S < since.0 / 1000)
            {
                return Ok(page);
            }
            let end = match ask.before {
                Some((at, place)) if at == *list => place as usize,
                _ => LIST_TOKENS as usize,
            };
            let path = self.path(*list);
            let Some(file) = SlotFile::<ENTRY>::open(&*self.disk, &path, KIND, *list)? else {
                continue; // deleted meanwhile
            };
            let slots = file.all()?;
            let end = end.min(slots.len());
            if end as u64 > room {
                page.next = Some(cursor(*list, end as u32));
                return Ok(page);
            }
            room -= end as u64;
            for place in (0..end as u32).rev() {
                let Slot::Sound(entry) = &slots[place as usize] else {
                    continue;
                };
                if let Some(token) = shown(entry, (*list, place), ask, &grants) {
                    page.tokens.push(token);
                    if page.tokens.len() == ask.limit {
                        page.next = Some(cursor(*list, place));
                        return Ok(page);
                    }
                }
            }
        }
        Ok(page)
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
    let (iat, ttl_s, grant) = (number(0..4), number(4..6), number(6..10) as u32);
    let issued = Timestamp(iat * 1000);
    let late = ask.until.is_some_and(|until| issued >= until);
    if late || ask.since.is_some_and(|since| issued < since) {
        return None;
    }
    let grant = grants.grants.get(&grant)?;
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
mod tests {
    use ron_files::{MemoryDisk, OsDisk};

    use super::*;

    const LIST: u64 = 1_000_000;

    fn grant(client: &str, scope: &str) -> IssuedFor {
        IssuedFor::new(client, "default".parse().unwrap(), "orders", scope)
    }

    fn trail(disk: Arc<dyn Disk>, dir: PathBuf, bytes_max: u64) -> Trail {
        let mut grants = Grants::default();
        grants.add(1, grant("ci", "read"));
        grants.add(2, grant("shop", "read write"));
        let retention = Retention {
            s: 100_000,
            bytes_max,
        };
        Trail::open(disk, dir, Arc::new(Snapshot::new(grants)), retention).unwrap()
    }

    fn token(place: u32, iat: u64, grant: u32, subject: &str) -> Issued<'_> {
        Issued {
            place,
            random: [place as u8 + 1; 16],
            iat,
            ttl_s: 900,
            grant,
            subject,
        }
    }

    /// Positions of all tokens that fit, read in pages.
    fn places(trail: &Trail, ask: &IssuedAsk) -> Vec<(u64, u32)> {
        let (mut ask, mut found) = (ask.clone(), Vec::new());
        loop {
            let page = trail.page(&ask).unwrap();
            assert!(page.tokens.len() <= ask.limit);
            let at = page.tokens.iter().map(|one| parts(&one.jti).unwrap());
            found.extend(at.map(|(list, place, random)| {
                assert_eq!(random, [place as u8 + 1; 16]);
                (list, place)
            }));
            match page.next {
                Some(next) => ask.before = Some(parse_cursor(&next).unwrap()),
                None => return found,
            }
        }
    }

    #[test]
    fn tokens_are_found_by_client_holder_audience_and_time_newest_first() {
        let dir = tempfile::tempdir().unwrap();
        let disks: [Arc<dyn Disk>; 2] = [Arc::new(OsDisk), Arc::new(MemoryDisk::new())];
        for disk in disks {
            let trail = trail(disk, dir.path().join("issued"), u64::MAX);
            // The KMS has refused the token at position 2.
            let old = [
                token(0, LIST, 1, "ci"),
                token(1, LIST + 5, 2, "user:7"),
                token(3, LIST + 9, 1, "ci"),
            ];
            trail.note(LIST, &old).unwrap();
            let new = [token(0, LIST + 4000, 2, "shop")];
            trail.note(LIST + 4000, &new).unwrap();
            let (a, b) = (LIST, LIST + 4000);
            let check = |change: &dyn Fn(&mut IssuedAsk), want: &[(u64, u32)]| {
                for limit in [1, 2, 100] {
                    let mut ask = IssuedAsk {
                        limit,
                        ..IssuedAsk::default()
                    };
                    change(&mut ask);
                    assert_eq!(places(&trail, &ask), want, "{ask:?}");
                }
            };
            check(&|_| {}, &[(b, 0), (a, 3), (a, 1), (a, 0)]);
            check(&|ask| ask.client = Some("ci".to_owned()), &[(a, 3), (a, 0)]);
            check(&|ask| ask.client = Some("c".to_owned()), &[]);
            check(&|ask| ask.subject = Some("user:7".to_owned()), &[(a, 1)]);
            check(&|ask| ask.audience = Some("other".to_owned()), &[]);
            let at = |s: u64| Some(Timestamp((LIST + s) * 1000));
            check(&|ask| ask.since = at(5), &[(b, 0), (a, 3), (a, 1)]);
            check(&|ask| ask.since = at(4000 + LIST_AGE_S + 1), &[]);
            check(&|ask| ask.until = at(9), &[(a, 1), (a, 0)]);
            let all = IssuedAsk {
                limit: 100,
                ..IssuedAsk::default()
            };
            let page = trail.page(&all).unwrap();
            let brief: Vec<_> = page
                .tokens
                .iter()
                .map(|one| (&one.subject, &one.scope))
                .collect();
            let text = |text: &str| Some(text.to_owned());
            assert_eq!(brief[0], (&text("shop"), &text("read write")));
            assert_eq!(brief[2], (&None, &text("read write")), "no list of holders");
            assert_eq!(page.tokens[1].expires, Timestamp((LIST + 909) * 1000));
        }
    }

    #[test]
    fn old_lists_and_too_many_bytes_are_forgotten_and_valid_tokens_never() {
        let disk: Arc<dyn Disk> = Arc::new(MemoryDisk::new());
        let slot = SlotFile::<ENTRY>::SLOT as u64;
        let trail = trail(disk, "/issued".into(), 2 * slot);
        let lists = || trail.lists().unwrap();
        for list in [LIST, LIST + 10, LIST + 20] {
            trail.note(list, &[token(0, list, 1, "ci")]).unwrap();
        }
        trail.forget(LIST + LIST_KEPT_S).unwrap();
        assert_eq!(lists().len(), 3, "their tokens may be valid");
        trail.forget(LIST + 100 + LIST_KEPT_S).unwrap();
        assert_eq!(lists(), [LIST + 20, LIST + 10], "too many bytes");
        trail.forget(LIST + 10 + 100_000 + LIST_AGE_S).unwrap();
        assert_eq!(lists(), [LIST + 20, LIST + 10]);
        trail.forget(LIST + 11 + 100_000 + LIST_AGE_S).unwrap();
        assert_eq!(lists(), [LIST + 20], "too old");
    }

    #[test]
    fn the_order_in_which_scopes_are_named_makes_no_other_grant() {
        let scopes = ["a:read", "a:write", "b:read", "b:write", "c", "d"];
        let mut orders = vec![scopes.to_vec()];
        for at in 0..scopes.len() {
            let swapped = |order: &Vec<&'static str>| {
                (at..order.len())
                    .map(|with| {
                        let mut order = order.clone();
                        order.swap(at, with);
                        order
                    })
                    .collect::<Vec<_>>()
            };
            orders = orders.iter().flat_map(swapped).collect();
        }
        assert_eq!(orders.len(), 720);
        let one = orders.iter().map(|order| grant("ci", &order.join(" ")));
        let grants: BTreeSet<IssuedFor> = one.collect();
        assert_eq!(grants.len(), 1);
        assert_eq!(grant("ci", "b a b"), grant("ci", "a b"));
        assert_ne!(grant("ci", "a"), grant("ci", "a b"));
        assert_eq!(grant("ci", "").scope.as_deref(), Some(""));
    }

    #[test]
    fn a_client_with_many_grants_is_recorded_without_their_scopes() {
        let mut grants = Grants::default();
        for number in 0..SCOPES_MAX as u32 {
            grants.add(number, grant("ci", &format!("s{number}")));
        }
        let known = grant("ci", "s7");
        assert_eq!(grants.recorded(known.clone()), known);
        assert_eq!(grants.recorded(grant("ci", "new")).scope, None);
        let other = grant("shop", "new");
        assert_eq!(grants.recorded(other.clone()), other);
    }
}
