//! Service tokens, `ron_<name>_<43 base64url>`: services call each other without any other service
//! running. The callee stores only the SHA-256 of the whole token.

use ron_crypto::{ct, hash};
use ron_proto::b64;

/// Characters of the random part: 32 bytes in base64url without padding.
pub(crate) const RANDOM_CHARS: usize = 43;
const NAME_CHARS_MAX: usize = 64;

/// Makes a token from 32 random bytes.
///
/// # Panics
/// When `name` is not 1 to 64 of `[a-z0-9-]`; names come from checked configuration.
pub fn generate(name: &str, random: &[u8; 32]) -> String {
    assert!(
        good_name(name),
        "a service token's name is 1 to 64 of a-z, 0-9 and -"
    );
    format!("ron_{name}_{}", b64::url(random))
}

/// SHA-256 of the whole token as lower-case hex, for `auth.principals`; the same as `printf %s
/// TOKEN | sha256sum`.
pub fn hash(token: &str) -> String {
    hex::encode(hash::sha256(token.as_bytes()))
}

/// The name in a well-formed token; `None` for anything else.
pub fn parse(token: &str) -> Option<&str> {
    let rest = token.strip_prefix("ron_")?;
    // The random part may contain `_`, so it is split off by length.
    let at = rest.len().checked_sub(RANDOM_CHARS)?;
    if !rest.is_char_boundary(at) {
        return None;
    }
    let (name, random) = rest.split_at(at);
    let name = name.strip_suffix('_')?;
    let random_is_good = b64::from_url_array::<32>(random).is_ok();
    (good_name(name) && random_is_good).then_some(name)
}

/// Whether a bearer token has the prefix of a service token; then it is never tried as a passport.
pub fn looks_like(token: &str) -> bool {
    token.starts_with("ron_")
}

/// Whether `token` has this SHA-256, compared in constant time.
pub fn matches(token: &str, sha256: &[u8; 32]) -> bool {
    ct::eq(&hash::sha256(token.as_bytes()), sha256)
}

pub(crate) fn good_name(name: &str) -> bool {
    (1..=NAME_CHARS_MAX).contains(&name.len())
        && name
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_hash_is_what_sha256sum_prints() {
        let token = generate("svc-wallet", &[0; 32]);
        assert_eq!(token, format!("ron_svc-wallet_{}", "A".repeat(43)));
        assert_eq!(parse(&token), Some("svc-wallet"));
        let digest: [u8; 32] = hex::decode(hash(&token)).unwrap().try_into().unwrap();
        assert!(matches(&token, &digest));
        assert!(!matches(&format!("{token}x"), &digest));
    }

    #[test]
    fn malformed_tokens_have_no_name() {
        let random = "A".repeat(43);
        for token in [
            String::new(),
            "ron_".into(),
            format!("ron_{random}"),
            format!("ron__{random}"),
            format!("ron_Svc_{random}"),
            format!("ron_a_b_{random}"),
            format!("ron_a_{random}A"),
            format!("ron_a_{}", &random[1..]),
            format!("ron_a_{}=", &random[1..]),
            format!("ron_a_{}B", &random[1..]), // trailing bits set: not canonical
            format!("RON_a_{random}"),
            format!("ron_é_{random}"),
            format!("ron_{}_{random}", "a".repeat(65)),
        ] {
            assert_eq!(parse(&token), None, "{token}");
        }
    }

    proptest! {
        #[test]
        fn every_made_token_parses_and_no_text_panics(name in "[a-z0-9-]{1,64}", random in any::<[u8; 32]>(), text in "\\PC{0,80}") {
            let token = generate(&name, &random);
            prop_assert_eq!(parse(&token), Some(name.as_str()));
            let _ = parse(&text);
            let _ = parse(&format!("ron_{text}"));
        }
    }
}
