//! Status lists (Token Status List): assigns a bit to each token and computes the bits of a list. The bits are derived from
//! the revocations: issuing a token writes nothing to its list, because the token's id names list and position.

use std::collections::BTreeMap;
use std::io::Write as _;

use flate2::Compression;
use flate2::write::ZlibEncoder;
use ron_auth::RevocationView;
use ron_kernel::RankedMutex;
use ron_proto::b64;
use ron_proto::passport::TTL_S_MAX;

use crate::topology::LISTS;

/// Number of tokens in one list. Its bits, encoded in base64 twice, always fit one message of the KMS (64 KiB), however
/// badly they compress.
pub const LIST_TOKENS: u32 = 1 << 18;
/// Seconds after which a list takes no more tokens, even when it is not full.
pub const LIST_AGE_S: u64 = 3600;
/// Seconds after its opening from which a list may be deleted: its age limit, one token lifetime, clock difference.
pub const LIST_KEPT_S: u64 = LIST_AGE_S + TTL_S_MAX + 600;

/// Bits of a list's number that count; those above are drawn where several nodes open lists.
pub const LIST_OWN_BITS: u32 = 32;

/// When a list was opened, or some seconds later: the part of its number that counts is never smaller than that second.
pub const fn opened_at(list: u64) -> u64 {
    list & ((1 << LIST_OWN_BITS) - 1)
}

/// A stored status list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListRow {
    /// Its number, which is never used again.
    pub id: u64,
    /// `kid` of the key that signs the tokens of this list; both keys of hybrids, separated by a space.
    pub kid: String,
    /// The epoch of its tokens.
    pub epoch: u64,
    /// When it was opened (unix seconds).
    pub opened_s: u64,
}

/// All status lists, by number.
pub type KnownLists = BTreeMap<u64, ListRow>;

/// Consecutive positions in a list, taken for a batch of tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Places {
    pub list: u64,
    /// When it was opened (unix seconds).
    pub opened_s: u64,
    /// The first position; the others follow it.
    pub first: u32,
}

/// Maximum lists that are filled at a time. Each key, and each pair of keys of hybrids, has one of its own; a rotated key's stays until
/// newer ones need its place.
const OPEN_MAX: usize = 8;

/// The lists that are being filled, each with its next position; the one that was opened last is the last.
#[derive(Debug)]
pub struct Lists(RankedMutex<Vec<(ListRow, u32)>>);

impl Default for Lists {
    fn default() -> Self {
        Self(RankedMutex::new(&LISTS, Vec::new()))
    }
}

impl Lists {
    /// Takes positions for `count` tokens of this key and epoch. `None`: a new list must be opened.
    pub fn take(&self, kid: &str, epoch: u64, count: u32, now_s: u64) -> Option<Places> {
        let mut open = self.0.lock();
        let (row, next) = open.iter_mut().find(|(row, _)| row.kid == kid)?;
        let fits =
            row.epoch == epoch && now_s < row.opened_s + LIST_AGE_S && LIST_TOKENS - *next >= count;
        if !fits {
            return None;
        }
        let first = *next;
        *next += count;
        Some(Places {
            list: row.id,
            opened_s: row.opened_s,
            first,
        })
    }

    /// Fills this list from now on, instead of the one of the same key.
    pub fn fill(&self, row: ListRow) {
        let mut open = self.0.lock();
        open.retain(|(other, _)| other.kid != row.kid);
        if open.len() >= OPEN_MAX {
            open.remove(0);
        }
        open.push((row, 0));
    }
}

/// The id of the token at a position of a list; `random` makes it unguessable.
pub fn jti(list: u64, idx: u32, random: &[u8; 16]) -> String {
    format!("{list:x}.{idx:x}.{}", b64::url(random))
}

/// List and position of the token with this id.
pub fn place(jti: &str) -> Option<(u64, u32)> {
    let mut parts = jti.split('.');
    let list = u64::from_str_radix(parts.next()?, 16).ok()?;
    let at = u32::from_str_radix(parts.next()?, 16).ok()?;
    Some((list, at))
}

/// Whether a list may still have valid tokens at `now_s`.
pub fn still_kept(row: &ListRow, now_s: u64) -> bool {
    now_s < row.opened_s + LIST_KEPT_S
}

/// URL of a list.
pub fn list_uri(base: &str, id: u64) -> String {
    format!("{base}/v1/passport/status/{id}")
}

/// The bits of a list: all set when its key or epoch is revoked, otherwise those of revoked tokens and of `others`, the
/// positions whose subject is revoked, or a token that theirs was exchanged from.
pub fn bits(row: &ListRow, view: &RevocationView, others: &[u32]) -> Vec<u8> {
    let bytes = (LIST_TOKENS / 8) as usize;
    let key_void = row.kid.split(' ').any(|kid| view.kid_revoked(kid));
    if row.epoch < view.epoch() || key_void {
        return vec![0xff; bytes];
    }
    let mut bits = vec![0; bytes];
    let prefix = format!("{:x}.", row.id);
    let of_tokens = view.jtis_of(&prefix).filter_map(|jti| Some(place(jti)?.1));
    for idx in of_tokens.chain(others.iter().copied()) {
        if idx < LIST_TOKENS {
            bits[(idx / 8) as usize] |= 1 << (idx % 8);
        }
    }
    bits
}

/// `lst`: the bits compressed with ZLIB, in base64url.
pub fn packed(bits: &[u8]) -> String {
    let mut out = ZlibEncoder::new(Vec::new(), Compression::best());
    let written = out.write_all(bits).and_then(|()| out.finish());
    b64::url(&written.expect("a vector takes all that is written to it"))
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use ron_kernel::{Random as _, SeededRandom};
    use ron_proto::kms::MESSAGE_BYTES_MAX;
    use ron_proto::passport::Revoked;

    use super::*;
    use crate::samples::view;

    fn row() -> ListRow {
        ListRow {
            id: 0x1f,
            kid: "k".to_owned(),
            epoch: 2,
            opened_s: 1_000,
        }
    }

    fn places(first: u32) -> Places {
        Places {
            list: 0x1f,
            opened_s: 1_000,
            first,
        }
    }

    #[test]
    fn positions_are_given_once_and_a_list_serves_one_key_one_epoch_one_hour() {
        let lists = Lists::default();
        assert_eq!(lists.take("k", 2, 1, 1_000), None);
        lists.fill(row());
        assert_eq!(lists.take("k", 2, 3, 1_000), Some(places(0)));
        assert_eq!(lists.take("k", 2, 1, 1_000), Some(places(3)));
        assert_eq!(lists.take("other", 2, 1, 1_000), None);
        assert_eq!(lists.take("k", 3, 1, 1_000), None);
        assert_eq!(lists.take("k", 2, 1, 1_000 + LIST_AGE_S), None);
        assert_eq!(lists.take("k", 2, LIST_TOKENS, 1_000), None, "no room");
    }

    #[test]
    fn keys_that_sign_in_turns_fill_a_list_each() {
        let lists = Lists::default();
        let mut opened = 0;
        let mut take = |kid: &str, epoch: u64, now_s: u64| loop {
            if let Some(places) = lists.take(kid, epoch, 1, now_s) {
                return (places.list, places.first);
            }
            opened += 1;
            lists.fill(ListRow {
                id: opened,
                kid: kid.to_owned(),
                epoch,
                opened_s: now_s,
            });
        };
        for turn in 0..100 {
            assert_eq!(take("eddsa", 2, 1_000), (1, turn));
            assert_eq!(take("es256", 2, 1_000), (2, turn));
        }
        assert_eq!(take("es256", 3, 1_000), (3, 0), "another epoch");
        assert_eq!(take("eddsa", 2, 1_000), (1, 100), "of the other key");
        // Rotations leave lists behind; those of the oldest keys are left as they are.
        for rotation in 0..OPEN_MAX as u64 {
            assert_eq!(take(&format!("k{rotation}"), 3, 1_001), (4 + rotation, 0));
        }
        assert_eq!(lists.0.lock().len(), OPEN_MAX);
        assert_eq!(take("eddsa", 2, 1_002).1, 0, "closed");
    }

    #[test]
    fn the_bits_follow_what_is_revoked() {
        let set = |all: &[Revoked]| {
            let bits = bits(&row(), &view(all, 2, 1_000), &[]);
            bits.iter().map(|b| b.count_ones()).sum::<u32>()
        };
        let jti = |idx: u32, list: u64| Revoked::Jti {
            jti: jti(list, idx, &[7; 16]),
            until: 9_000,
        };
        assert_eq!(set(&[]), 0);
        assert_eq!(
            set(&[jti(0, 0x1f), jti(9, 0x1f), jti(9, 0x1), jti(3, 0x1f0)]),
            2
        );
        assert_eq!(
            bits(&row(), &view(&[jti(9, 0x1f)], 2, 1_000), &[8])[1],
            0b11
        );
        assert_eq!(
            set(&[Revoked::Kid {
                kid: "k".to_owned()
            }]),
            LIST_TOKENS
        );
        assert_eq!(
            set(&[Revoked::Kid {
                kid: "l".to_owned()
            }]),
            0
        );
        assert_eq!(set(&[Revoked::Epoch { epoch: 3 }]), LIST_TOKENS);
    }

    #[test]
    fn the_packed_form_unpacks_and_always_fits_the_kms() {
        let mut worst = vec![0u8; (LIST_TOKENS / 8) as usize];
        SeededRandom::new(1).fill(&mut worst);
        let lst = packed(&worst);
        let raw = b64::from_url(&lst).unwrap();
        let mut back = Vec::new();
        flate2::read::ZlibDecoder::new(&raw[..])
            .read_to_end(&mut back)
            .unwrap();
        assert_eq!(back, worst);
        let message = (lst.len() + 600).div_ceil(3) * 4 + 200;
        assert!(message < MESSAGE_BYTES_MAX, "{message}");
    }
}
