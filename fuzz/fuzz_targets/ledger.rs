//! Sequences of ledger operations: the core and the reference model agree. Also arbitrary bytes as
//! a leaf or as an image.
#![no_main]

use libfuzzer_sys::fuzz_target;
use ron_ledger::core::{Leaf, State};

fuzz_target!(|data: &[u8]| {
    ron_fuzz::ledger::run(data);
    if let Ok(leaf) = Leaf::decode(data) {
        assert_eq!(leaf.encode(), data, "two spellings of one leaf");
    }
    let _ = State::from_image(data);
});
