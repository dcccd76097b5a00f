//! The storage of secret bytes: slots in a few locked pages that live as long as the process or,
//! for large secrets and when the slots are full, separate pages.
//!
//! Slots exist because `mlock` works on whole pages and its limit is small: one page for each
//! 32 byte key would use the limit up, and a system call for each would cost more than the
//! cipher. Taking and returning a slot is one atomic operation on a bitmap; there is no lock.
#![allow(unsafe_code)] // locked memory cannot be had from the allocator; each block says why it is sound

use std::ffi::c_void;
use std::ptr::NonNull;
use std::slice;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mlock, mmap_anonymous, munmap};
use zeroize::Zeroize;

/// Bytes in a slot; enough for an Ed25519 seed, an AES key, a P-256 key in PKCS#8 or a token.
const SLOT: usize = 256;
/// Slots in a slab, 64 for each word of its bitmap.
const SLOTS: usize = 64 * WORDS;
const WORDS: usize = 4;
/// Slabs, each mapped when the ones before it are full; 64 slabs are 4 MiB.
const SLABS: usize = 64;

static ARENA: [OnceLock<Slab>; SLABS] = [const { OnceLock::new() }; SLABS];

/// Memory for the bytes of one secret, zeroed when taken and when freed.
pub(super) struct Room {
    start: NonNull<u8>,
    length: usize,
    place: Place,
}

enum Place {
    /// No bytes at all.
    Nowhere,
    /// A slot of a slab: the slab and the slot's number.
    Slot(&'static Slab, usize),
    Mapping,
}

// SAFETY: a Room owns its bytes as a Box would; the place is only used to free them.
unsafe impl Send for Room {}
// SAFETY: shared access only reads.
unsafe impl Sync for Room {}

impl Room {
    /// Memory of `length` bytes, all zero.
    pub(super) fn zeroed(length: usize) -> Self {
        if length == 0 {
            return Self {
                start: NonNull::dangling(),
                length,
                place: Place::Nowhere,
            };
        }
        if length <= SLOT {
            for slab in &ARENA {
                let slab = slab.get_or_init(Slab::map);
                if let Some(slot) = slab.take() {
                    // SAFETY: slot < SLOTS, so the offset stays inside the slab's mapping.
                    let start = unsafe { slab.start.add(slot * SLOT) };
                    return Self {
                        start,
                        length,
                        place: Place::Slot(slab, slot),
                    };
                }
            }
        }
        Self {
            start: map(length),
            length,
            place: Place::Mapping,
        }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        // SAFETY: start points to length initialised bytes that this Room alone owns.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.length) }
    }

    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in bytes, and the exclusive borrow of self makes it the only access.
        unsafe { slice::from_raw_parts_mut(self.start.as_ptr(), self.length) }
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        // Erased before it is freed: the next owner of a slot relies on the zeros.
        self.bytes_mut().zeroize();
        match self.place {
            Place::Nowhere => {}
            Place::Slot(slab, slot) => slab.give_back(slot),
            // SAFETY: start and length are those of the mapping made in zeroed, and nothing
            // borrows from a Room that is being dropped. Failing to unmap leaks erased pages.
            Place::Mapping => unsafe {
                let _ = munmap(self.start.as_ptr().cast::<c_void>(), self.length);
            },
        }
    }
}

/// A mapping cut into slots; a set bit means the slot is taken.
struct Slab {
    start: NonNull<u8>,
    taken: [AtomicU64; WORDS],
}

// SAFETY: the bitmap gives each slot to one owner at a time.
unsafe impl Send for Slab {}
// SAFETY: as above; the slab itself never reads or writes a slot.
unsafe impl Sync for Slab {}

impl Slab {
    fn map() -> Self {
        Self {
            start: map(SLOTS * SLOT),
            taken: [const { AtomicU64::new(0) }; WORDS],
        }
    }

    /// A free slot's number. Acquire pairs with the release in `give_back`, so that the zeros
    /// written there are seen here.
    fn take(&self) -> Option<usize> {
        for (index, word) in self.taken.iter().enumerate() {
            let mut bits = word.load(Ordering::Relaxed);
            while bits != u64::MAX {
                let free = bits.trailing_ones() as usize;
                let with = bits | 1 << free;
                match word.compare_exchange_weak(bits, with, Ordering::Acquire, Ordering::Relaxed) {
                    Ok(_) => return Some(index * 64 + free),
                    Err(now) => bits = now,
                }
            }
        }
        None
    }

    fn give_back(&self, slot: usize) {
        let bit = 1_u64 << (slot % 64);
        let before = self.taken[slot / 64].fetch_and(!bit, Ordering::Release);
        assert!(before & bit != 0, "a slot is given back once");
    }
}

/// Zeroed private pages, excluded from core dumps, locked as far as the limit allows.
fn map(length: usize) -> NonNull<u8> {
    // SAFETY: a null hint and an anonymous private mapping touch no existing memory.
    let mapped = unsafe {
        mmap_anonymous(
            std::ptr::null_mut(),
            length,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::PRIVATE,
        )
    };
    // As with the allocator when memory runs out, the process cannot continue.
    let mapped = mapped.expect("memory for secrets can be mapped");
    // SAFETY: the range is the mapping just made. Both are best effort: an old kernel or a low
    // RLIMIT_MEMLOCK weakens the protection and nothing else.
    unsafe {
        let _ = madvise(mapped, length, Advice::LinuxDontDump);
        let _ = mlock(mapped, length);
    }
    NonNull::new(mapped.cast::<u8>()).expect("a successful mmap is not null")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_given_back_slot_is_zero_and_free() {
        // A separate slab: other tests of this process use the shared ones at the same time.
        let slab: &'static Slab = Box::leak(Box::new(Slab::map()));
        let slot = slab.take().expect("a new slab is empty");
        // SAFETY: the slot is inside the slab's mapping.
        let start = unsafe { slab.start.add(slot * SLOT) };
        let mut room = Room {
            start,
            length: 100,
            place: Place::Slot(slab, slot),
        };
        room.bytes_mut().fill(0xee);
        drop(room);
        // SAFETY: the slab lives forever, and no other thread has it.
        assert_eq!(
            unsafe { slice::from_raw_parts(start.as_ptr(), SLOT) },
            [0; SLOT]
        );
        let all: Vec<_> = std::iter::from_fn(|| slab.take()).collect();
        assert_eq!(
            all,
            (0..SLOTS).collect::<Vec<_>>(),
            "each slot is given out once"
        );
    }

    #[test]
    fn large_rooms_and_a_full_slab_still_work() {
        let mut large = Room::zeroed(100_000);
        large.bytes_mut()[99_999] = 1;
        assert!(matches!(large.place, Place::Mapping));
        let many: Vec<Room> = (0..=SLOTS * 2).map(|_| Room::zeroed(SLOT)).collect();
        let mut starts: Vec<_> = many
            .iter()
            .map(|room| room.start.as_ptr() as usize)
            .collect();
        starts.sort_unstable();
        assert!(
            starts.windows(2).all(|pair| pair[1] - pair[0] >= SLOT),
            "rooms do not overlap"
        );
    }

    #[test]
    fn slabs_are_left_out_of_core_dumps() {
        let room = Room::zeroed(32);
        let address = room.start.as_ptr() as usize;
        let maps = std::fs::read_to_string("/proc/self/smaps").expect("Linux has smaps");
        let mut inside = false;
        let mut flags = None;
        for line in maps.lines() {
            let range = line
                .split_once(' ')
                .and_then(|(range, _)| range.split_once('-'));
            if let Some((from, to)) = range
                && let (Ok(from), Ok(to)) = (
                    usize::from_str_radix(from, 16),
                    usize::from_str_radix(to, 16),
                )
            {
                inside = (from..to).contains(&address);
            } else if inside && let Some(found) = line.strip_prefix("VmFlags:") {
                flags = Some(found.to_owned());
            }
        }
        let flags = flags.expect("the mapping is listed");
        assert!(
            flags.split(' ').any(|flag| flag == "dd"),
            "flags are {flags}"
        );
    }
}
