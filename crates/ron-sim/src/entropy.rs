//! Hash seeds from the seed. The standard library seeds every thread's hash maps with `getrandom` of the C library.
//! Defining that symbol puts the simulation in its place, in every program that links this crate; threads outside of a
//! run still get the machine's entropy.

#![allow(unsafe_code)] // the one edge: a function of the C library is replaced

use std::fs::File;
use std::io::Read;

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
