//! The edges to the machine, and the only `unsafe` code.
//!
//! *Clocks.* The standard library reads every clock with `clock_gettime` of the C library. Defining that symbol makes the
//! clocks of the standard library, and of every library above it, virtual in a simulated thread.
//!
//! *Hash seeds.* The standard library seeds every thread's hash maps with `getrandom` of the C library. Defining that
//! symbol puts the simulation in its place, in every program that links this crate; threads outside of a run still get
//! the machine's entropy.
//!
//! *One core.* The threads of a run share a core: exactly one of them runs, and to wake the next one on the same core
//! costs a fraction of what it costs on another.

#![allow(unsafe_code)] // functions of the C library are replaced and called

use std::cell::Cell;
use std::fs::File;
use std::io::Read;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use crate::fault::hash_seed;
use crate::rng::{Rng, Stream};
use crate::world::{Me, with_me};

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

/// A moment as the C library has it.
#[repr(C)]
struct Moment {
    seconds: i64,
    nanoseconds: i64,
}

/// The date at which every run starts: 2026-01-01 00:00:00 UTC, in seconds since 1970.
const DATE_START_S: u64 = 1_767_225_600;

/// Seconds of the monotonic clocks at the start of every run; not 0, so that an earlier instant is one too.
const MONOTONIC_START_S: u64 = 1_000_000;

thread_local! {
    /// The current thread reads the start of every run instead of the present.
    static AT_START: Cell<bool> = const { Cell::new(false) };
}

/// The virtual moment of a clock, in nanoseconds; `None` outside of a run, and for the clocks of used processor time.
fn virtual_moment(clock: i32) -> Option<u64> {
    // The date and its coarse form; then monotonic, raw, coarse, and since boot.
    let start_s = match clock {
        0 | 5 => DATE_START_S,
        1 | 4 | 6 | 7 => MONOTONIC_START_S,
        _ => return None,
    };
    let since = if AT_START.try_with(Cell::get) == Ok(true) {
        0
    } else {
        with_me(Me::now)?
    };
    Some(start_s * 1_000_000_000 + since)
}

/// # Safety
/// As `clock_gettime(2)`: `out` points to a moment that may be written.
#[unsafe(no_mangle)]
unsafe extern "C" fn clock_gettime(clock: i32, out: *mut Moment) -> i32 {
    let Some(ns) = virtual_moment(clock) else {
        // SAFETY: the arguments of this function, for the same call of the operating system.
        return unsafe { syscall(SYS_CLOCK_GETTIME, clock, out) } as i32;
    };
    let moment = Moment {
        seconds: (ns / 1_000_000_000) as i64,
        nanoseconds: (ns % 1_000_000_000) as i64,
    };
    // SAFETY: the caller says that it may be written.
    unsafe { out.write(moment) };
    0
}

/// The instant at which every run starts: the same in every process.
pub fn start_of_every_run() -> Instant {
    AT_START.set(true);
    let start = Instant::now();
    AT_START.set(false);
    start
}

/// Makes the linker take this file: the standard library's reference to `getrandom` is a weak one.
pub fn install() {
    std::hint::black_box((getrandom as *const (), clock_gettime as *const ()));
}

/// Bits of a set of 1,024 cores, as the C library has it.
type Cores = [u64; 16];

#[cfg(target_arch = "x86_64")]
const SYS_CLOCK_GETTIME: i64 = 228;
#[cfg(target_arch = "aarch64")]
const SYS_CLOCK_GETTIME: i64 = 113;

unsafe extern "C" {
    fn syscall(number: i64, clock: i32, out: *mut Moment) -> i64;
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
