//! The reference for `Host` and authorities: `name[:port]` or `[address][:port]`.

use std::net::Ipv6Addr;

/// True for a host that two readers cannot understand differently.
pub fn is_host(text: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(text) else {
        return false;
    };
    if text.len() > 255 {
        return false;
    }
    // The port follows the last colon outside brackets.
    let inside = text.rfind(']').map_or(0, |at| at + 1);
    let (name, port) = match text[inside..].find(':') {
        Some(colon) => (&text[..inside + colon], &text[inside + colon + 1..]),
        None => (text, ""),
    };
    if port.len() > 5 || !port.chars().all(|c| c.is_ascii_digit()) {
        return false;
    }
    if name.starts_with('[') && name.ends_with(']') {
        return name[1..name.len() - 1].parse::<Ipv6Addr>().is_ok();
    }
    let mut parts = name.split('%');
    let plain = |part: &str| {
        part.chars()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | '~'))
    };
    let encoded = |part: &str| {
        part.len() >= 2
            && part.is_char_boundary(2)
            && part[..2].chars().all(|c| c.is_ascii_hexdigit())
            && plain(&part[2..])
    };
    !name.is_empty() && parts.next().is_some_and(plain) && parts.all(encoded)
}
