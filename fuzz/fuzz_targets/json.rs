//! Strict JSON: compared with a reference reader, with serde_json, and with its own output.
#![no_main]

use libfuzzer_sys::fuzz_target;
use ron_fuzz::json::{No, check};
use ron_proto::strict;
use serde_json::Value;

fuzz_target!(|data: &[u8]| {
    let got = strict::from_slice::<Value>(data);
    let lenient = serde_json::from_slice::<Value>(data);
    match check(data) {
        Ok(()) => assert!(got.is_ok(), "refused good JSON: {got:?}"),
        Err(No::Grammar) => {
            assert!(got.is_err(), "took what is not JSON: {got:?}");
            assert!(lenient.is_err(), "the reference is too strict");
        }
        Err(No::Rule) => assert!(got.is_err(), "took what breaks a rule: {got:?}"),
        // serde_json reads an integer beyond 64 bits as a float; a type that needs an integer
        // refuses it.
        Err(No::Huge) => {}
    }
    match (&got, lenient) {
        (Ok(got), Ok(lenient)) => assert_eq!(*got, lenient, "another value than serde_json's"),
        (Ok(got), Err(error)) => panic!("serde_json refuses {got}: {error}"),
        (Err(error), _) => {
            let text = String::from_utf8_lossy(data);
            let word = text
                .split(|c: char| !c.is_alphanumeric())
                .find(|w| w.len() > 24);
            assert!(
                word.is_none_or(|word| !error.reason.contains(word)),
                "the error repeats what was sent: {error}"
            );
        }
    }
    if let Ok(value) = &got {
        let again = serde_json::to_vec(value).expect("a value can be written");
        let again = strict::from_slice::<Value>(&again);
        assert!(again.is_ok(), "its own output is refused: {again:?}");
    }
});
