//! Tokens, statements that narrow them, and proofs of possession. Text that the issuer has not signed is never accepted.
//! Claims that it has signed, however odd, are accepted only within the limits that services rely on. The same holds
//! for what a holder signs: a statement only takes rights away, and a proof counts for its key, request and time alone.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| ron_fuzz::token::run(data));
