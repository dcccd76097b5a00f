//! Rows in, sealed bytes out; refusals name a line; the memory limit does not change the result.

use proptest::prelude::*;
use ron_files::{Dir, OsDisk};
use ron_proto::rewarder::METRICS_MAX;

use super::*;
use crate::calculus::Usage;

const HEAD: &str = "account,metric,amount\n";
const PERIOD: usize = 56;
const HEADER: usize = PERIOD + 64;

fn check(format: &str, kind: ImportKind, text: &str) -> Result<Vec<(String, Vec<u128>)>, String> {
    let sealed = match format {
        "csv" => csv(text.as_bytes(), kind),
        _ => ndjson(text.as_bytes(), kind),
    }
    .map_err(|error| error.to_string())?;
    let again = Sealed::parse(sealed.bytes().expect("in memory").to_vec())
        .expect("what was sealed can be read");
    assert_eq!(again.cid(), sealed.cid());
    if sealed.accounts() == 0 {
        return Ok(Vec::new());
    }
    let block = sealed.block(0, sealed.accounts()).expect("in memory");
    let row = |row: usize| {
        let account = String::from_utf8(block.account(row).to_vec()).expect("ASCII");
        let metrics = 0..sealed.metrics().len();
        (account, metrics.map(|m| block.amount(row, m)).collect())
    };
    Ok((0..block.rows()).map(row).collect())
}

#[test]
fn rows_become_sorted_records() {
    let want = vec![("a".to_owned(), vec![0, 7]), ("bb".to_owned(), vec![5, 0])];
    let csv_text = format!("{HEAD}bb,disk,5\r\na,net,7\r\n");
    assert_eq!(
        check("csv", ImportKind::Totals, &csv_text).expect("good"),
        want
    );
    let json = "{\"amount\":\"7\",\"metric\":\"net\",\"account\":\"a\"}\n\
                {\"account\":\"bb\",\"metric\":\"disk\",\"amount\":\"5\"}";
    assert_eq!(
        check("ndjson", ImportKind::Totals, json).expect("good"),
        want
    );
    assert_eq!(
        check("csv", ImportKind::Totals, HEAD).expect("an idle epoch"),
        vec![]
    );
    assert_eq!(
        check("ndjson", ImportKind::Totals, "").expect("an idle epoch"),
        vec![]
    );
}

#[test]
fn events_add_up_to_the_totals() {
    let events = format!("{HEAD}a,net,3\nb,net,1\na,net,4\n");
    let totals = format!("{HEAD}b,net,1\na,net,7\n");
    let cid = |text: &str, kind| csv(text.as_bytes(), kind).expect("good").cid();
    assert_eq!(
        cid(&events, ImportKind::Events),
        cid(&totals, ImportKind::Totals)
    );
    assert_eq!(
        cid(&totals, ImportKind::Events),
        cid(&totals, ImportKind::Totals)
    );
}

#[test]
fn bad_rows_are_named_by_line_without_their_content() {
    let long = "x".repeat(161);
    let max = u128::MAX.to_string();
    for (format, kind, text, want) in [
        ("csv", "t", String::new(), "line 1: the header"),
        ("csv", "t", "a,net,1\n".into(), "line 1: the header must be"),
        ("csv", "t", "account,metric\n".into(), "line 1: 2 fields"),
        (
            "csv",
            "t",
            format!("{HEAD}a,net,1\na,net\n"),
            "line 3: 2 fields",
        ),
        ("csv", "t", format!("{HEAD}a,net,1,9\n"), "line 2: 4 fields"),
        (
            "csv",
            "t",
            format!("{HEAD}a,net,-1\n"),
            "line 2: not a valid amount",
        ),
        (
            "csv",
            "t",
            format!("{HEAD}a,net,1.5\n"),
            "line 2: not a valid amount",
        ),
        (
            "csv",
            "t",
            format!("{HEAD}a,net,1e3\n"),
            "line 2: not a valid amount",
        ),
        (
            "csv",
            "t",
            format!("{HEAD}a,net,\n"),
            "line 2: not a valid amount",
        ),
        (
            "csv",
            "t",
            format!("{HEAD}a,net,{max}0\n"),
            "line 2: not a valid amount",
        ),
        (
            "csv",
            "t",
            format!("{HEAD}a b,net,1\n"),
            "line 2: not a valid account",
        ),
        (
            "csv",
            "t",
            format!("{HEAD}{long},net,1\n"),
            "line 2: not a valid account",
        ),
        (
            "csv",
            "t",
            format!("{HEAD}escrow:ab,net,1\n"),
            "line 2: accounts under escrow:",
        ),
        (
            "csv",
            "t",
            format!("{HEAD}a,NET,1\n"),
            "line 2: not a valid metric",
        ),
        (
            "csv",
            "t",
            format!("{HEAD}a,net,1\n\nb,net,1\na,net,1\n"),
            "line 5: this account",
        ),
        (
            "csv",
            "t",
            format!("{HEAD}a,net,0\na,net,1\n"),
            "line 3: this account",
        ),
        (
            "csv",
            "e",
            format!("{HEAD}a,net,{max}\nb,net,1\n"),
            "line 3: the sum",
        ),
        ("ndjson", "t", "{}\n".into(), "line 1: column"),
        ("ndjson", "t", "\n".into(), "line 1: empty"),
        (
            "ndjson",
            "t",
            "{\"account\":\"a\",\"metric\":\"m\",\"amount\":1}\n".into(),
            "line 1: column",
        ),
        (
            "ndjson",
            "t",
            "{\"account\":\"a\",\"account\":\"b\",\"metric\":\"m\",\"amount\":\"1\"}".into(),
            "line 1: column",
        ),
        (
            "ndjson",
            "t",
            "{\"account\":\"a\",\"metric\":\"m\",\"amount\":\"1\",\"x\":1}".into(),
            "line 1: column",
        ),
        (
            "ndjson",
            "t",
            format!("{}\n", " ".repeat(5_000)),
            "line 1: longer",
        ),
    ] {
        let kind = if kind == "t" {
            ImportKind::Totals
        } else {
            ImportKind::Events
        };
        let error = check(format, kind, &text).expect_err(&text);
        assert!(error.starts_with(want), "{text:?}: {error}");
    }
    let mut many = HEAD.to_owned();
    for metric in 0..=METRICS_MAX {
        many.push_str(&format!("a,m{metric},1\n"));
    }
    let error = check("csv", ImportKind::Totals, &many).expect_err("65 metrics");
    assert_eq!(error, "line 66: more than 64 metrics");
}

#[test]
fn sealed_files_are_refused_when_anything_is_off() {
    let text = format!("{HEAD}a,disk,5\nb,disk,6\nb,net,1\nccc,net,0\n");
    let good = csv(text.as_bytes(), ImportKind::Totals)
        .expect("good")
        .bytes()
        .expect("in memory")
        .to_vec();
    let cid = Sealed::parse(good.clone()).expect("untouched").cid();
    let names = [
        PERIOD..HEADER,
        HEADER..HEADER + 64,
        HEADER + 88..HEADER + 88 + 64,
    ];
    for at in 0..good.len() {
        let mut bad = good.clone();
        bad[at] ^= 1;
        match Sealed::parse(bad) {
            Err(_) => {}
            // A different metric name or period is different, equally well-formed usage with
            // another id.
            Ok(other) => {
                assert!(
                    names.iter().any(|name| name.contains(&at)),
                    "byte {at} flipped"
                );
                assert_ne!(other.cid(), cid);
            }
        }
    }
    for cut in 0..good.len() {
        assert!(Sealed::parse(good[..cut].to_vec()).is_err(), "cut to {cut}");
    }
    let mut long = good.clone();
    long.push(0);
    assert!(matches!(Sealed::parse(long), Err(SealError::Length { .. })));
    let mut newer = good;
    newer[7] = 2;
    assert_eq!(
        Sealed::parse(newer).expect_err("newer"),
        SealError::Newer(2)
    );
}

/// Recomputes the hash, so that the rule itself refuses the file.
fn rehash(mut bytes: Vec<u8>, body: usize) -> Vec<u8> {
    let hash = blake3::hash(&bytes[body..]);
    bytes[24..PERIOD].copy_from_slice(hash.as_bytes());
    bytes
}

#[test]
fn well_hashed_files_still_have_to_keep_the_rules() {
    let text = format!("{HEAD}a,disk,5\nb,disk,6\n");
    let good = csv(text.as_bytes(), ImportKind::Totals)
        .expect("good")
        .bytes()
        .expect("in memory")
        .to_vec();
    let body = HEADER + 88;
    let check = |edit: &dyn Fn(&mut [u8]), want: &str| {
        let mut bytes = good.clone();
        edit(&mut bytes);
        let error = Sealed::parse(rehash(bytes, body))
            .expect_err(want)
            .to_string();
        assert!(error.contains(want), "{error}");
    };
    check(
        &|bytes| bytes[body] = b'b',
        "record 2: its account is out of order",
    );
    check(
        &|bytes| bytes[body] = b'c',
        "record 2: its account is out of order",
    );
    check(
        &|bytes| bytes[body] = b' ',
        "record 1: its account is malformed",
    );
    check(
        &|bytes| bytes[body] = 0,
        "record 1: its account is malformed",
    );
    check(&|bytes| bytes[body + 16] = 6, "sums do not match");
    check(&|bytes| bytes[body + 16] = 0, "counts do not match");
    check(&|bytes| bytes[HEADER + 87] ^= 1, "sums do not match");
    check(&|bytes| bytes[HEADER + 71] ^= 1, "counts do not match");
    check(&|bytes| bytes[HEADER] = b'D', "metric 1 in the header");
    check(&|bytes| bytes[PERIOD] = b'/', "its period is malformed");
    check(&|bytes| bytes[PERIOD + 1] = b'x', "its period is malformed");
}

#[test]
fn the_same_usage_of_another_period_is_another_snapshot() {
    let text = format!("{HEAD}a,disk,5\n");
    let of = |period: Option<&str>| {
        let options = Options {
            period: period.map(|name| name.parse().expect("a period")),
            ..Options::in_memory(ImportKind::Totals)
        };
        let sealed = import([(Format::Csv, text.as_bytes())], options).expect("good rows");
        let told = sealed.info().period.map(|period| period.to_string());
        assert_eq!(told.as_deref(), period);
        sealed.cid()
    };
    let longest = "9".repeat(64);
    let cids = [None, Some("2026-10"), Some("2026-11"), Some(&*longest)].map(of);
    for (at, cid) in cids.iter().enumerate() {
        assert!(!cids[at + 1..].contains(cid));
    }
    let plain = csv(text.as_bytes(), ImportKind::Totals).expect("good rows");
    assert_eq!(plain.cid(), cids[0], "no period is none");
}

/// Imports into a file, with memory for a few rows only.
fn spilled(
    sources: Vec<(Format, &[u8])>,
    kind: ImportKind,
    memory: usize,
) -> Result<Vec<u8>, String> {
    let dir = tempfile::tempdir().expect("a directory");
    let target = dir.path().join("snapshot.bin");
    let options = Options {
        kind,
        period: None,
        target: Target::file(&OsDisk, &target).expect("writable"),
        rows_max: u64::MAX,
        cancel: None,
        spill: Some(Spill {
            memory,
            dir: Dir::os(dir.path().join("import")),
        }),
    };
    let sealed = import(sources, options).map_err(|(number, error)| format!("{number}: {error}"));
    let left = std::fs::read_dir(dir.path()).expect("there").count();
    assert_eq!(left, 1, "scratch files are gone, whatever happened");
    let sealed = sealed?;
    let bytes = sealed.bytes().expect("readable").into_owned();
    assert_eq!(
        Sealed::parse(bytes.clone()).expect("good").cid(),
        sealed.cid()
    );
    Ok(bytes)
}

/// A few accounts and metrics, so that rows collide; now and then a row that must be refused.
fn row() -> impl Strategy<Value = (u8, u8, u128, bool)> {
    let amount = prop_oneof![8 => 0..1_000_u128, 1 => 0..=u128::MAX / 4];
    (0..30_u8, 0..5_u8, amount, prop::bool::weighted(0.01))
}

fn text(rows: &[(u8, u8, u128, bool)], format: Format) -> String {
    let mut text = String::from(if format == Format::Csv { HEAD } else { "" });
    for (account, metric, amount, bad) in rows {
        // Names of several lengths.
        let account = format!(
            "acc:{}",
            "x".repeat(usize::from(*account) % 7) + &account.to_string()
        );
        let account = if *bad { "not an account" } else { &account };
        text += &match format {
            Format::Csv => format!("{account},m{metric},{amount}\n"),
            _ => format!(
                "{{\"account\":\"{account}\",\"metric\":\"m{metric}\",\"amount\":\"{amount}\"}}\n"
            ),
        };
    }
    text
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// The memory limit changes neither the bytes nor the error.
    #[test]
    fn spilling_changes_nothing(rows in prop::collection::vec(row(), 0..120),
                                events in any::<bool>(), memory in 0..3_000_usize,
                                cut in 0..120_usize, second in any::<bool>()) {
        let kind = if events { ImportKind::Events } else { ImportKind::Totals };
        let (one, two) = rows.split_at(cut.min(rows.len()));
        let format = if second { Format::Ndjson } else { Format::Csv };
        let (one, two) = (text(one, Format::Csv), text(two, format));
        let sources = || vec![(Format::Csv, one.as_bytes()), (format, two.as_bytes())];
        let whole = import(sources(), Options::in_memory(kind))
            .map(|sealed| sealed.bytes().expect("in memory").into_owned())
            .map_err(|(number, error)| format!("{number}: {error}"));
        prop_assert_eq!(spilled(sources(), kind, memory), whole);
    }

    /// The order of the rows changes neither, and events give the same snapshot as totals.
    #[test]
    fn the_order_of_rows_changes_nothing(rows in prop::collection::vec(row(), 0..80),
                                         seed in any::<u64>(), memory in 0..3_000_usize) {
        let mut sums = std::collections::BTreeMap::new();
        for (account, metric, amount, _) in &rows {
            *sums.entry((*account, *metric)).or_insert(0_u128) += *amount % 1_000_000;
        }
        let events: Vec<_> =
            rows.iter().map(|(a, m, amount, _)| (*a, *m, *amount % 1_000_000, false)).collect();
        let mut shuffled = events.clone();
        let mut state = seed | 1;
        for at in (1..shuffled.len()).rev() {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            shuffled.swap(at, (state >> 33) as usize % (at + 1));
        }
        let totals: Vec<_> = sums.into_iter().map(|((a, m), amount)| (a, m, amount, false)).collect();
        let cid = |rows: &[_], format, kind, memory| {
            let text = text(rows, format);
            spilled(vec![(format, text.as_bytes())], kind, memory).expect("good rows")
        };
        let want = cid(&totals, Format::Csv, ImportKind::Totals, usize::MAX);
        prop_assert_eq!(&cid(&events, Format::Ndjson, ImportKind::Events, memory), &want);
        prop_assert_eq!(&cid(&shuffled, Format::Csv, ImportKind::Events, memory), &want);
        prop_assert_eq!(&cid(&totals, Format::Ndjson, ImportKind::Totals, memory), &want);
    }

    /// Arbitrary bytes give a snapshot or an error.
    #[test]
    fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..400),
                                at in 0..400_usize) {
        let _ = csv(bytes.as_slice(), ImportKind::Events);
        let _ = ndjson(bytes.as_slice(), ImportKind::Events);
        let _ = Sealed::parse(bytes.clone());
        let good = csv(format!("{HEAD}a,m,1\nb,m,2\n").as_bytes(), ImportKind::Totals);
        let mut mixed = good.expect("good").bytes().expect("in memory").to_vec();
        let at = at % mixed.len();
        let more = bytes.len().min(mixed.len() - at);
        mixed[at..at + more].copy_from_slice(&bytes[..more]);
        if let Ok(sealed) = Sealed::parse(mixed.clone()) {
            let bytes = sealed.bytes().expect("in memory").into_owned();
            prop_assert_eq!(bytes, mixed);
        }
    }
}
