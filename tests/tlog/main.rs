//! The verifiable log end to end, on real processes: witnesses, proofs, derivations by third
//! parties, and every way to damage a data directory.

#![allow(clippy::disallowed_methods, clippy::unwrap_used)] // tests may panic and wait

mod kill;
mod node;
mod rotation;
mod tamper;
mod third_parties;
mod witness;
