//! The faults that each world has to meet: a fault that never happens shows nothing.

use std::collections::BTreeMap;

/// Faults of the network that a world in bad weather meets.
const WEATHER: [&str; 6] = [
    "a segment is slow",
    "a connection is cut",
    "a connection falls silent",
    "a connect is refused",
    "hosts are parted",
    "a service stands still",
];

/// The faults of a world, by the end of its name.
const DUE: [(&str, &[&[&str]]); 16] = [
    (
        "every_request_is_answered_once_and_in_time_in_any_weather",
        &[&WEATHER],
    ),
    (
        "over_kills_of_the_wallet_in_any_weather_callers_the_log_and_the_model_agree",
        &[
            &WEATHER,
            &["the wallet is killed", "the wallet is restarted"],
            &["a date jumps"],
        ],
    ),
    (
        "on_a_good_network_callers_the_log_and_the_model_agree",
        &[&["a segment is slow", "the wallet is restarted"]],
    ),
    ("what_is_answered_is_in_the_log_once", &[&CRASHES]),
    (
        "faults_of_the_disk_lose_nothing_that_was_answered",
        &[&DISK],
    ),
    (
        "a_fault_at_any_operation_of_the_disk_loses_nothing",
        &[&DISK],
    ),
    (
        "a_kill_at_any_moment_loses_nothing_that_was_answered",
        &[&["the ledger is killed"]],
    ),
    (
        "over_kills_and_power_cuts_what_was_answered_stays_and_no_key_is_forgotten",
        &[
            &["a service is killed", "a machine loses its power"],
            &["a date jumps"],
        ],
    ),
    (
        "over_kills_and_power_cuts_an_epoch_is_paid_once_and_what_is_paid_is_on_the_disk",
        &[
            &[
                "a service is killed",
                "a machine loses its power",
                "a disk is inspected",
                "the KMS does not sign",
            ],
            &["a date jumps"],
        ],
    ),
    (
        "over_kills_and_false_answers_nothing_void_pays_or_comes_back",
        &[&["a date jumps", "a payment is made"]],
    ),
    (
        "over_kills_and_power_cuts_no_revocation_comes_back_and_no_signature_is_without_its_leaf",
        &[
            &[
                "a service is killed",
                "a service is restarted",
                "a machine loses its power",
                "a token counts without the KMS",
            ],
            &["a date jumps"],
            &ISSUED,
        ],
    ),
    (
        "on_a_good_network_good_tokens_are_accepted_and_void_ones_are_not",
        &[&ISSUED],
    ),
    (
        "over_kills_and_power_cuts_pages_are_of_one_moment_and_every_message_arrives",
        &[
            &[
                "a service is killed",
                "a service is restarted",
                "a machine loses its power",
                "hosts are parted",
            ],
            &[
                "an endpoint is removed",
                "an endpoint is disabled",
                "a receiver hangs",
                "a receiver is late",
                "a receiver is away",
            ],
        ],
    ),
    (
        "over_kills_and_failovers_of_the_engine_what_was_answered_is_in_one_log_once",
        &[
            &ENGINE,
            &[
                "a service is killed",
                "a service is restarted",
                "a service stands still",
                "a machine loses its power",
                "hosts are parted",
                "a connection is cut",
                "a date jumps",
            ],
        ],
    ),
    (
        "over_kills_and_power_cuts_the_console_shows_the_fleet_as_it_is",
        &[
            &[
                "a segment is slow",
                "a service stands still",
                "a service is killed",
                "a service is restarted",
                "a machine loses its power",
                "a disk fails",
            ],
            &WATCHED,
        ],
    ),
    ("rot_of_a_file_is_noticed", &[&["a bit turns over"]]),
];

/// What becomes of the engine of a log, and of writes to it.
const ENGINE: [&str; 15] = [
    "a node loses the engine with an answer",
    "a provisional tail is lost",
    "a write comes late",
    "a write is at the primary alone",
    "a write is lost",
    "a write is refused",
    "a writer is fenced",
    "an answer of the engine is slow",
    "the answer of a done write is lost",
    "the engine fails over",
    "the engine is away",
    "the engine is not reached",
    "the engine's standby is away",
    "the log is claimed again",
    "a disk fails",
];

/// What becomes of nodes that a console watches.
const WATCHED: [&str; 10] = [
    "a connection breaks while a node acts",
    "a document is the one of before",
    "a log is put back",
    "a node drains",
    "a node hangs",
    "a node is asked to act",
    "a node is away",
    "a node is late",
    "a node is none",
    "a node is not ready",
];

/// What is done with an issuer.
const ISSUED: [&str; 4] = [
    "a policy changes",
    "an old policy is put back",
    "a proof comes twice",
    "a list is read",
];
const CRASHES: [&str; 5] = [
    "unsynced writes are lost",
    "unsynced writes are kept",
    "the last write is torn",
    "a sector of the last write is missing",
    "some unsynced writes are kept",
];
const DISK: [&str; 3] = ["the disk fails", "the disk is full", "the power is cut"];

/// Fails when the world did not meet one of its faults.
pub fn check(world: &str, faults: &BTreeMap<&'static str, u64>) {
    let due = DUE.iter().find(|(name, _)| world.ends_with(name));
    let due = due.map_or(&[][..], |(_, due)| due);
    let due = due.iter().copied().flatten();
    let missing: Vec<_> = due.filter(|name| !faults.contains_key(*name)).collect();
    assert!(
        missing.is_empty(),
        "{world} never met {missing:?}: {faults:?}"
    );
}

/// The faults and how often each happened, as one word of a line.
pub fn line(faults: &BTreeMap<&'static str, u64>) -> String {
    let each = faults
        .iter()
        .map(|(name, number)| format!("{}={number}", name.replace(' ', "_")));
    each.collect::<Vec<_>>().join(",")
}
