//! Forms of the OAuth endpoints: what is accepted is written again and read as the same fields.

use std::fmt::Write as _;

use ron_http::form_fields;

/// Every byte encoded, so that nothing depends on which need not be.
fn encoded(text: &str) -> String {
    let mut out = String::new();
    for byte in text.bytes() {
        write!(out, "%{byte:02X}").expect("a string");
    }
    out
}

/// Tries one input.
pub fn run(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let Some(fields) = form_fields(text) else {
        return;
    };
    let written: Vec<String> = fields
        .iter()
        .map(|(name, value)| format!("{}={}", encoded(name), encoded(value)))
        .collect();
    let again = form_fields(&written.join("&"));
    assert_eq!(again.as_ref(), Some(&fields), "{text}");
    for (name, value) in &fields {
        let odd = |c: char| c.is_control() && !matches!(c, '\t' | '\n' | '\r');
        assert!(!name.contains(odd) && !value.contains(odd), "{text:?}");
    }
}
