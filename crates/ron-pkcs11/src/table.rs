//! Sessions and object handles of this process. Changed under one lock that is never held over a call to the service.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use cryptoki_sys::{
    CK_OBJECT_HANDLE, CK_SESSION_HANDLE, CKR_OBJECT_HANDLE_INVALID, CKR_SESSION_COUNT,
    CKR_SESSION_HANDLE_INVALID,
};
use ron_crypto::hash::Hasher;
use ron_proto::Kid;

use crate::attributes::Class;
use crate::key::Key;
use crate::operation::Operation;
use crate::rv::Rv;

/// Maximum number of open sessions of a process.
pub const SESSIONS_MAX: usize = 4096;

/// A program's session with one token, and what it has begun there.
pub struct Session {
    pub slot: usize,
    pub writes: bool,
    /// Objects found and not yet fetched.
    pub found: Option<VecDeque<CK_OBJECT_HANDLE>>,
    pub sign: Option<Operation>,
    pub verify: Option<Operation>,
    pub digest: Option<Hasher>,
}

/// What the process knows of one token.
#[derive(Default)]
pub struct Token {
    /// A login is remembered because programs ask for it; it changes nothing.
    pub logged_in: bool,
    /// The keys as they were listed last, by the handle of their private object; that of the public one follows it.
    keys: BTreeMap<CK_OBJECT_HANDLE, Arc<Key>>,
}

pub struct Table {
    sessions: BTreeMap<CK_SESSION_HANDLE, Session>,
    pub tokens: Vec<Token>,
    /// Handles are not used twice, so an old one never names another key.
    next_session: CK_SESSION_HANDLE,
    next_object: CK_OBJECT_HANDLE,
}

impl Table {
    pub fn new(tokens: usize) -> Self {
        Self {
            sessions: BTreeMap::new(),
            tokens: std::iter::repeat_with(Token::default)
                .take(tokens)
                .collect(),
            next_session: 1,
            next_object: 1,
        }
    }

    /// `CKR_SESSION_COUNT` when there are too many.
    pub fn open(&mut self, slot: usize, writes: bool) -> Result<CK_SESSION_HANDLE, Rv> {
        if self.sessions.len() >= SESSIONS_MAX {
            return Err(Rv(CKR_SESSION_COUNT));
        }
        let handle = self.next_session;
        self.next_session += 1;
        let session = Session {
            slot,
            writes,
            found: None,
            sign: None,
            verify: None,
            digest: None,
        };
        self.sessions.insert(handle, session);
        Ok(handle)
    }

    pub fn session(&mut self, handle: CK_SESSION_HANDLE) -> Result<&mut Session, Rv> {
        let found = self.sessions.get_mut(&handle);
        found.ok_or(Rv(CKR_SESSION_HANDLE_INVALID))
    }

    /// The last session of a token takes its login with it.
    pub fn close(&mut self, handle: CK_SESSION_HANDLE) -> Result<(), Rv> {
        let closed = self.sessions.remove(&handle);
        let slot = closed.ok_or(Rv(CKR_SESSION_HANDLE_INVALID))?.slot;
        if self.open_in(slot) == (0, 0) {
            self.tokens[slot].logged_in = false;
        }
        Ok(())
    }

    pub fn close_all(&mut self, slot: usize) {
        self.sessions.retain(|_, session| session.slot != slot);
        self.tokens[slot].logged_in = false;
    }

    /// Numbers of sessions of a token: all, and those that may write.
    pub fn open_in(&self, slot: usize) -> (usize, usize) {
        let of_slot = self
            .sessions
            .values()
            .filter(|session| session.slot == slot);
        of_slot.fold((0, 0), |(all, writing), session| {
            (all + 1, writing + usize::from(session.writes))
        })
    }

    /// The key at this version, if it was listed last time: nothing needs to be read for it.
    pub fn known(&self, slot: usize, kid: &Kid, version: u32) -> Option<Arc<Key>> {
        let mut keys = self.tokens[slot].keys.values();
        keys.find(|key| key.kid == *kid && key.version == version)
            .cloned()
    }

    /// The keys of a token are these from now on. Keys that stay keep their handles; the handles of others end.
    pub fn list(&mut self, slot: usize, listed: Vec<Arc<Key>>) {
        let keys = &mut self.tokens[slot].keys;
        keys.retain(|_, key| listed.contains(key));
        let kept: BTreeSet<Kid> = keys.values().map(|key| key.kid.clone()).collect();
        for key in listed.into_iter().filter(|key| !kept.contains(&key.kid)) {
            keys.insert(self.next_object, key);
            self.next_object += 2;
        }
    }

    /// All objects of a token in the order of their handles.
    pub fn objects(&self, slot: usize) -> impl Iterator<Item = (CK_OBJECT_HANDLE, Class, &Key)> {
        let keys = self.tokens[slot].keys.iter();
        keys.flat_map(|(handle, key)| {
            let key: &Key = key;
            [
                (*handle, Class::Private, key),
                (handle + 1, Class::Public, key),
            ]
        })
    }

    /// `CKR_OBJECT_HANDLE_INVALID` also for keys that were rotated or retired since.
    pub fn object(&self, slot: usize, handle: CK_OBJECT_HANDLE) -> Result<(Class, Arc<Key>), Rv> {
        let keys = &self.tokens[slot].keys;
        let at = |handle: CK_OBJECT_HANDLE| keys.get(&handle).cloned();
        let found = match handle % 2 {
            1 => at(handle).map(|key| (Class::Private, key)),
            _ => handle
                .checked_sub(1)
                .and_then(at)
                .map(|key| (Class::Public, key)),
        };
        found.ok_or(Rv(CKR_OBJECT_HANDLE_INVALID))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::Public;

    fn key(last: u8, version: u32) -> Arc<Key> {
        let kid = format!("default/web/ed25519/018f8e9e-0000-7000-8000-0000000000{last:02x}");
        Arc::new(Key {
            kid: kid.parse().unwrap(),
            version,
            ..Key::sample("ed25519", Public::Ed25519([last; 32]))
        })
    }

    fn handles(table: &Table) -> Vec<CK_OBJECT_HANDLE> {
        table.objects(0).map(|(handle, ..)| handle).collect()
    }

    #[test]
    fn handles_stay_with_their_version() {
        let mut table = Table::new(1);
        table.list(0, vec![key(1, 1), key(2, 1)]);
        assert_eq!(handles(&table), [1, 2, 3, 4]);
        assert_eq!(table.object(0, 4).unwrap(), (Class::Public, key(2, 1)));
        assert!(table.known(0, &key(1, 1).kid, 1).is_some());
        // The first is rotated, the second stays.
        table.list(0, vec![key(1, 2), key(2, 1)]);
        assert_eq!(handles(&table), [3, 4, 5, 6]);
        assert_eq!(table.object(0, 1), Err(Rv(CKR_OBJECT_HANDLE_INVALID)));
        assert_eq!(table.object(0, 5).unwrap(), (Class::Private, key(1, 2)));
        for handle in [0, 7, 100] {
            assert_eq!(table.object(0, handle), Err(Rv(CKR_OBJECT_HANDLE_INVALID)));
        }
    }

    #[test]
    fn the_last_session_takes_the_login_with_it() {
        let mut table = Table::new(2);
        let (one, two) = (table.open(1, false).unwrap(), table.open(1, true).unwrap());
        table.tokens[1].logged_in = true;
        assert_eq!(table.open_in(1), (2, 1));
        table.close(one).unwrap();
        assert!(table.tokens[1].logged_in);
        table.close(two).unwrap();
        assert!(!table.tokens[1].logged_in);
        assert_eq!(table.close(two), Err(Rv(CKR_SESSION_HANDLE_INVALID)));
    }

    #[test]
    fn sessions_have_a_bound() {
        let mut table = Table::new(1);
        for _ in 0..SESSIONS_MAX {
            table.open(0, false).unwrap();
        }
        assert_eq!(table.open(0, false), Err(Rv(CKR_SESSION_COUNT)));
        table.close_all(0);
        assert!(table.open(0, false).is_ok());
    }
}
