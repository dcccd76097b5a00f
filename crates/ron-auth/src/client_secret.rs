//! Secrets of OAuth clients, `ron_cs_<client>_<43 base64url>`. They are generated from 256 random
//! bits, so the issuer can store a plain SHA-256 and a check costs a microsecond. A secret chosen
//! by a person could be guessed from such a hash, therefore only this form is accepted.

use ron_proto::{Timestamp, b64};

use crate::service_token::RANDOM_CHARS;

const PREFIX: &str = "ron_cs_";

/// Makes a secret from 32 random bytes.
pub fn generate(client: &str, random: &[u8; 32]) -> String {
    format!("{PREFIX}{client}_{}", b64::url(random))
}

/// The client in a well-formed secret; `None` for anything else.
pub fn parse(secret: &str) -> Option<&str> {
    let rest = secret.strip_prefix(PREFIX)?;
    // The random part may contain `_`, so it is split off by length.
    let at = rest.len().checked_sub(RANDOM_CHARS)?;
    let (client, random) = rest.split_at_checked(at)?;
    let client = client.strip_suffix('_')?;
    let good = b64::from_url_array::<32>(random).is_ok();
    (good && !client.is_empty()).then_some(client)
}

/// Parses the expiry of a secret: RFC 3339 in UTC, with or without milliseconds.
pub fn parse_end(text: &str) -> Result<Timestamp, String> {
    let end = match text.strip_suffix('Z') {
        Some(whole) if !whole.contains('.') => format!("{whole}.000Z").parse(),
        _ => text.parse(),
    };
    end.map_err(|_| "a time is written as in 2027-01-01T00:00:00Z".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_we_make_has_a_client() {
        let made = generate("my_app", &[0; 32]);
        assert_eq!(made, format!("ron_cs_my_app_{}", "A".repeat(43)));
        assert_eq!(parse(&made), Some("my_app"));
        let random = "A".repeat(43);
        for secret in [
            String::new(),
            "correct horse".to_owned(),
            random.clone(),
            format!("ron_cs_{random}"),
            format!("ron_cs__{random}"),
            format!("ron_app_{random}"),
            format!("ron_cs_app_{}", &random[1..]),
            format!("ron_cs_app_{}B", &random[1..]), // trailing bits set: not canonical
            format!("ron_cs_app_é{}", &random[1..]),
        ] {
            let held = parse(&secret);
            assert!(held.is_none_or(|client| client != "app"), "{secret}");
        }
    }

    #[test]
    fn an_end_may_leave_its_milliseconds_out() {
        let end = Ok(Timestamp(1_800_000_000_000));
        assert_eq!(parse_end("2027-01-15T08:00:00Z"), end);
        assert_eq!(parse_end("2027-01-15T08:00:00.000Z"), end);
        for bad in ["", "Z", "soon", "2027-01-15", "2027-01-15T08:00:00+01:00"] {
            assert!(parse_end(bad).is_err(), "{bad}");
        }
    }
}
