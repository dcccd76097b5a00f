//! Lines that are read, lines that are skipped, and no panics.

use super::*;
use proptest::prelude::*;
use std::fmt::Write as _;

/// Reads `body`; compares the samples as `key=value`, and the number of skipped lines.
fn check(body: &str, samples: &[&str], skipped: u64) {
    let mut reader = Reader::new(body.as_bytes());
    let mut got = Vec::new();
    for item in reader.by_ref() {
        if let Item::Sample(s) = item {
            got.push(format!("{}={}", s.key, s.value));
        }
    }
    assert_eq!(got, samples, "samples of {body:?}");
    assert_eq!(reader.skipped(), skipped, "skipped lines of {body:?}");
}

#[test]
fn reads_what_exporters_write() {
    check("up 1\n", &["up=1"], 0);
    check("up 1", &["up=1"], 0);
    check("  up\t 1 \r\n", &["up=1"], 0);
    check("a:b{} 2 1395066363000\n", &["a:b{}=2"], 0);
    check("a{b=\"c\",} 1.5e3\n", &["a{b=\"c\",}=1500"], 0);
    check(
        "a { b = \"c\" , d=\"e\" } -0.5\n",
        &["a { b = \"c\" , d=\"e\" }=-0.5"],
        0,
    );
    check("a{b=\"}\"}3\n", &["a{b=\"}\"}=3"], 0);
    check("a +Inf\nb -Inf\nc NaN\n", &["a=inf", "b=-inf", "c=NaN"], 0);
    check(
        "# HELP a help # text\n# TYPE a counter\n\na 1\n",
        &["a=1"],
        0,
    );
    check(
        "a_bucket{le=\"0.1\"} 8 # {trace_id=\"x\"} 0.07 1520879607.789\n",
        &["a_bucket{le=\"0.1\"}=8"],
        0,
    );
    check("a 1 12 # {x=\"y\"} 1\n", &["a=1"], 0);
    check("a 1\n# EOF\nb 2\n", &["a=1"], 0);
    check("a 123456789012345678\n", &["a=123456789012345680"], 0);
}

#[test]
fn skips_what_it_does_not_understand() {
    for odd in [
        "9a 1",
        "a",
        "a{",
        "a{b}",
        "a{b=c} 1",
        "a{b=\"c} 1",
        "a{b=\"c\\\"} 1",
        "a x",
        "a 1 2 3",
        "a 0x1",
        "a 1_0",
        "{a=\"b\"} 1",
        "a{:b=\"c\"} 1",
        "a{,} 1",
        "a{b=\"c\"d=\"e\"} 1",
        "é 1",
        "<html>",
        "a{b=\"c\"}",
        "a 1e",
        "# TYPE a",
        "a-b 1",
    ] {
        check(&format!("{odd}\nok 1\n"), &["ok=1"], 1);
    }
    let mut reader = Reader::new(b"a{b=\"\xff\"} 1\nok 1\n");
    assert_eq!(reader.by_ref().count(), 1, "bad UTF-8 loses its line only");
    assert_eq!(reader.skipped(), 1);
}

#[test]
fn labels_are_unescaped_on_demand() {
    let body = r#"a{x="1",path="C:\\d\"q\"\nend",odd="\t",empty=""} 1"#;
    let Some(Item::Sample(sample)) = Reader::new(body.as_bytes()).next() else {
        panic!("a sample")
    };
    assert!(matches!(
        label(sample.labels, "x"),
        Some(Cow::Borrowed("1"))
    ));
    assert_eq!(
        label(sample.labels, "path").as_deref(),
        Some("C:\\d\"q\"\nend")
    );
    assert_eq!(label(sample.labels, "odd").as_deref(), Some("\\t"));
    assert_eq!(label(sample.labels, "empty").as_deref(), Some(""));
    assert_eq!(label(sample.labels, "none"), None);
}

#[test]
fn families_are_read() {
    let got: Vec<_> = Reader::new(b"#  TYPE  x_total  counter\n# TYPEx y z\n").collect();
    assert_eq!(
        got,
        [Item::Family(Family {
            name: "x_total",
            kind: "counter"
        })]
    );
}

fn escaped(value: &str) -> String {
    value
        .replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}

/// The result of the full reader alone.
fn careful(body: &[u8]) -> (Vec<String>, u64) {
    all(Reader {
        page: Page {
            bytes: body,
            text: None,
        },
        at: 0,
        skipped: 0,
    })
}

fn all(mut reader: Reader<'_>) -> (Vec<String>, u64) {
    let items = reader.by_ref().map(|item| format!("{item:?}")).collect();
    (items, reader.skipped())
}

proptest! {
    #[test]
    fn plain_lines_are_read_as_the_careful_reader_reads_them(
        body in "([a-c_:]{1,12}(\\{([a-b_:]{1,9}=\"[a-zé \\\\\"n\t]{0,10}\"[,}]?){0,2}\\}?)? ?[0-9.eE+\\-Na]{0,10} ?[0-9#]{0,3}[\r]?\n|# TYPE [a-b:0]{0,9} ?[a-b]{0,9} ?\n){0,12}"
    ) {
        prop_assert_eq!(all(Reader::new(body.as_bytes())), careful(body.as_bytes()));
    }

    #[test]
    fn never_panics_on_bytes(body in proptest::collection::vec(any::<u8>(), 0..400)) {
        let mut reader = Reader::new(&body);
        for item in reader.by_ref() {
            if let Item::Sample(s) = item { let _ = Labels::new(s.labels).count(); }
        }
    }

    #[test]
    fn never_panics_on_almost_metrics(body in "([a-z_]{0,3}[{} =\",\\\\#\n0-9.eE+\\-é]{0,6}){0,20}") {
        let _ = Reader::new(body.as_bytes()).count();
    }

    #[test]
    fn what_is_written_is_read(
        rows in proptest::collection::vec(
            ("[a-zA-Z_:][a-zA-Z0-9_:]{0,12}", proptest::collection::vec(("[a-zA-Z_][a-zA-Z0-9_]{0,6}", any::<String>()), 0..4), any::<f64>(), proptest::option::of(any::<i64>())),
            0..12,
        )
    ) {
        let mut body = String::new();
        for (name, labels, value, time) in &rows {
            let block: Vec<String> = labels.iter().map(|(k, v)| format!("{k}=\"{}\"", escaped(v))).collect();
            let block = if labels.is_empty() { String::new() } else { format!("{{{}}}", block.join(",")) };
            let time = time.map(|t| format!(" {t}")).unwrap_or_default();
            writeln!(body, "{name}{block} {value}{time}").expect("writing to a string");
        }
        let mut reader = Reader::new(body.as_bytes());
        for (name, labels, value, time) in &rows {
            let Some(Item::Sample(got)) = reader.next() else { panic!("a sample for {name} in {body:?}") };
            prop_assert_eq!(got.name, name);
            prop_assert!(got.value.to_bits() == value.to_bits() || (got.value.is_nan() && value.is_nan()));
            prop_assert_eq!(got.timestamp.is_some(), time.is_some());
            let pairs: Vec<(String, String)> = Labels::new(got.labels).map(|(k, v)| (k.to_owned(), v.into_owned())).collect();
            prop_assert_eq!(&pairs, labels);
        }
        prop_assert!(reader.next().is_none());
        prop_assert_eq!(reader.skipped(), 0);
    }
}
