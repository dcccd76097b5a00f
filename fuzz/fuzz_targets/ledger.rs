//! Sequences of ledger operations: the core and the reference model agree. Also arbitrary bytes as
//! a leaf or as an image.
#![no_main]

use libfuzzer_sys::fuzz_target;
use ron_fuzz::ledger;
use ron_ledger::core::{Leaf, PublicLeaf, State};

fuzz_target!(|data: &[u8]| {
    ledger::run(data);
    // The first byte says where the leaf ends and its private record begins.
    if let [at, rest @ ..] = data {
        let (public, private) = rest.split_at(rest.len().min(usize::from(*at)));
        if let Ok(leaf) = Leaf::decode(public, private) {
            assert_eq!(
                PublicLeaf::decode(public).map(|read| read.txid()),
                Ok(leaf.txid())
            );
            let _ = leaf.op.check_private();
        }
    }
    let _ = State::from_image(data);
});
