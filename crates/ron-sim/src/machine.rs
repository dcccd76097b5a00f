//! The two edges to the machine, and the only `unsafe` code.
//!
//! *Hash seeds.* The standard library seeds every thread's hash maps with `getrandom` of the C library. Defining that
//! symbol puts the simulation in its place, in every program that links this crate; threads outside of a run still get
//! the machine's entropy.
//!
//! *One core.* The threads of a run share a core: exactly one of them runs, and to wake the next one on the same core
//! costs a fraction of what it costs on another.

#![allow(unsafe_code)] // functions of the C library are replaced and called

use std::fs::File;
use std::io::Read;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::fault::hash_seed;
use crate::rng::{Rng, Stream};

/// # Safety
/// As `getrandom(2)`: `out` points to `length` writable bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn getrandom(out: *mut u8, length: usize, _flags: u32) -> isize {
    // SAFETY: the caller owns these bytes. They may be uninitialised, so they are written before a reference is made.
    let out = unsafe {
        std::ptr::write_bytes(out, 0, length);
        std::slice::from_raw_parts_mut(out, length)
    };
    if let Some(seed) = hash_seed() {
        Rng::new(seed, Stream::HashSeeds).fill(out);
        return length as isize;
    }
    let filled = File::open("/dev/urandom").and_then(|mut file| file.read_exact(out));
    if filled.is_err() {
        std::process::abort(); // without entropy no caller may go on, and this function cannot fail
    }
    length as isize
}

/// Makes the linker take this file: the standard library's reference to `getrandom` is a weak one.
pub fn install() {
    std::hint::black_box(getrandom as *const ());
}

/// Bits of a set of 1,024 cores, as the C library has it.
type Cores = [u64; 16];

unsafe extern "C" {
    fn sched_getaffinity(thread: i32, size: usize, cores: *mut Cores) -> i32;
    fn sched_setaffinity(thread: i32, size: usize, cores: *const Cores) -> i32;
}

/// Binds the current thread, and those that it starts, to one of the cores that it may use: another one for each run,
/// so that runs beside each other do not share one. Without effect where the machine refuses it.
pub fn share_one_core() {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let mut usable: Cores = [0; 16];
    // SAFETY: 0 is the current thread, and the set has the size that is said.
    let known = unsafe { sched_getaffinity(0, size_of::<Cores>(), &raw mut usable) };
    let is_usable = |core: &usize| usable[core / 64] >> (core % 64) & 1 == 1;
    let cores: Vec<usize> = (0..size_of::<Cores>() * 8).filter(is_usable).collect();
    if known != 0 || cores.is_empty() {
        return;
    }
    let core = cores[NEXT.fetch_add(1, Ordering::Relaxed) % cores.len()];
    let mut one: Cores = [0; 16];
    one[core / 64] = 1 << (core % 64);
    // SAFETY: as above. A refusal is ignored: the run is slower and otherwise the same.
    unsafe { sched_setaffinity(0, size_of::<Cores>(), &raw const one) };
}
