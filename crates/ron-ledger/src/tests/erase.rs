//! Texts of an entry are erased from the disk; everything that was proved stays proved.

use std::path::Path;
use std::sync::Arc;

use ron_crypto::sign::Ed25519Key;
use ron_files::OsDisk;
use ron_proto::Timestamp;
use ron_proto::ledger::{Entry, TxId};
use ron_tlog::Ed25519NoteSigner;
use serde_json::json;

use super::support::*;
use crate::core::{Op, Outcome};
use crate::engine::{Atomicity, Engine, Request, read_entry};
use crate::erase::{ERASURES, erase};
use crate::verify::verify_dir;

fn payment() -> Entry {
    let entry = json!({"kind": "transfer", "tenant": "t", "principal": "p", "key": "pay", "from": "a", "to": "b",
        "asset": "ron", "amount_minor": "5", "nonce": 1, "memo": "memo-marker",
        "metadata": {"name-marker": "value-marker"}, "reference": "order-marker"});
    serde_json::from_value(entry).unwrap()
}

fn engine(dir: &Path) -> Engine {
    Engine::open(Arc::new(OsDisk), dir, options(256), Timestamp(T0)).unwrap()
}

/// Whether any file below the directory holds the text.
fn found(dir: &Path, text: &str) -> bool {
    std::fs::read_dir(dir).unwrap().any(|entry| {
        let path = entry.unwrap().path();
        if path.is_dir() {
            return found(&path, text);
        }
        let bytes = std::fs::read(path).unwrap();
        bytes.windows(text.len()).any(|w| w == text.as_bytes())
    })
}

#[test]
fn erased_texts_are_gone_and_everything_else_stays() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let signer = Ed25519NoteSigner::new("test/ledger", Ed25519Key::from_seed(&[5; 32])).unwrap();
    let mut e = engine(dir);
    // The payment is in a full segment, in the middle of a batch.
    commit(&mut e, vec![issue("i", "a", 9)], false);
    let mut all = vec![issue("i0", "c", 1), payment()];
    all.extend((1..300).map(|n| issue(&format!("i{n}"), "c", 1)));
    commit(&mut e, all, false);
    e.take_checkpointer().unwrap().publish(&[&signer]).unwrap();
    let root = e.shared().reader().head().root;
    let (leaf, _) = read_entry(e.shared().reader(), 3).unwrap();
    drop(e);
    let markers = ["memo-marker", "name-marker", "value-marker", "order-marker"];
    for marker in markers {
        assert!(found(dir, marker), "{marker}");
    }
    let now = Timestamp(T0 + 1);
    let other = TxId(leaf.txid().0 ^ 1);
    let why = erase(dir, other, "a wrong id", "uid 0", now).unwrap_err();
    assert!(why.to_string().contains("no entry with this id"), "{why}");
    assert_eq!(
        erase(dir, leaf.txid(), "asked for", "uid 0", now).unwrap(),
        3
    );
    for marker in markers {
        assert!(!found(dir, marker), "{marker}");
    }
    let lines = std::fs::read_to_string(dir.join(ERASURES)).unwrap();
    let last: serde_json::Value = serde_json::from_str(lines.lines().last().unwrap()).unwrap();
    assert_eq!(
        (&last["reason"], &last["seq"]),
        (&json!("asked for"), &json!(3))
    );

    let report = verify_dir(dir, signer.verifier(), &mut |_, _| {}).unwrap();
    assert_eq!((report.erased, report.root), (1, root));
    assert!(erase(dir, leaf.txid(), "again", "uid 0", now).is_err());
    // The ledger opens, and the key still has its answer.
    let mut e = engine(dir);
    let (left, _) = read_entry(e.shared().reader(), 3).unwrap();
    left.op.check_private().unwrap();
    assert_eq!(left.txid(), leaf.txid());
    assert_eq!(left.op.entry().header.key, leaf.op.entry().header.key);
    assert_eq!(left.op.entry().header.memo, None);
    let again = Request {
        ops: vec![Op::new(payment(), &salts()).unwrap()],
        atomicity: Atomicity::Independent,
    };
    assert!(again.ops[0].repeats(&left.op));
    let said = e.commit(now, &[again]).unwrap();
    assert_eq!(said.outcomes[0][0], Outcome::Known { seq: 3 });
}
