//! The configuration files of a new data directory. Paths and peers are the defaults of separate
//! processes on this host; `ron up` gives each service the places of the moment.

use std::fmt::Write as _;

use super::{CALLS, OPERATOR_SCOPES, TokenHashes};
use crate::layout::{Bootstrap, Layout, SERVICES};

/// The configuration of `ron-kms` or `ron-ledger`, which call nobody.
pub fn log_keeper(layout: &Layout, name: &str, base_port: u16, hashes: &TokenHashes) -> String {
    let mut text = head(layout, name, base_port);
    auth(&mut text, base_port);
    principals(&mut text, name, hashes);
    text
}

/// The configuration of a service that calls others.
pub fn service(
    layout: &Layout,
    name: &str,
    base_port: u16,
    bootstrap: &Bootstrap,
    hashes: &TokenHashes,
    secret_sha256: &str,
) -> String {
    let mut text = head(layout, name, base_port);
    let kms = url(base_port, "ron-kms");
    let ledger = url(base_port, "ron-ledger");
    let policy = format!(
        "[policy]\ndir = {}\npublic_keys = [\"{}\"]\n",
        quoted(&layout.policy().display().to_string()),
        bootstrap.policy_public_key
    );
    let token = |callee: &str| quoted(&layout.token(name, callee).display().to_string());
    match name {
        "svc-passport" => {
            let _ = write!(
                text,
                "issuer = \"{}\"\n\n[kms]\nurl = \"{kms}\"\ntoken_file = {}\nkey = \"{}\"\nnote_key = \"{}\"\n\n{policy}\n\
                 [[clients]]\nid = \"operator\"\nsecret_sha256 = [\"{secret_sha256}\"]\n\n",
                bootstrap.issuer,
                token("ron-kms"),
                bootstrap.issuer_key,
                bootstrap.note_key,
            );
        }
        "svc-wallet" => {
            let _ = write!(
                text,
                "[ledger]\nurl = \"{ledger}\"\ntoken_file = {}\n\n{policy}\n",
                token("ron-ledger")
            );
        }
        "svc-rewarder" => {
            let _ = write!(
                text,
                "[kms]\nurl = \"{kms}\"\ntoken_file = {}\nkey = \"{}\"\n\n\
                 [ledger]\nurl = \"{ledger}\"\ntoken_file = {}\n\n\
                 [policy]\ndir = {}\npublic_keys = [\"{}\"]\n\n\
                 [manifest]\npublic_keys = [\"{}\"]\n\n",
                token("ron-kms"),
                bootstrap.manifest_key,
                token("ron-ledger"),
                quoted(&layout.policy().display().to_string()),
                bootstrap.policy_public_key,
                bootstrap.manifest_public_key,
            );
        }
        _ => {}
    }
    if name == "svc-admin" {
        // Passports count only where auth.mode says so; the default lets whoever is on this host look.
        auth(&mut text, base_port);
        nodes(&mut text, layout, base_port, bootstrap);
    } else {
        auth(&mut text, base_port);
        principals(&mut text, name, hashes);
    }
    text
}

fn head(layout: &Layout, name: &str, base_port: u16) -> String {
    let port = port(base_port, name);
    format!(
        "# {name}, made by `ron init`. Every key is explained by `{name} print-example`.\n\
         bind_addr = \"127.0.0.1:{port}\"\nhealth_addr = \"127.0.0.1:{}\"\ndata_dir = {}\n\n",
        port + 5,
        quoted(&layout.data(name).display().to_string()),
    )
}

/// Passports of our issuer are accepted.
fn auth(text: &mut String, base_port: u16) {
    let passport = url(base_port, "svc-passport");
    let _ = write!(
        text,
        "[auth]\nissuer = \"{passport}\"\njwks_url = \"{passport}/.well-known/jwks.json\"\n\n"
    );
}

/// The callers of a service; only the hashes of their tokens are here.
fn principals(text: &mut String, callee: &str, hashes: &TokenHashes) {
    let operator = ("operator", "ron-kms", OPERATOR_SCOPES, "ron/");
    for (caller, of, scopes, prefixes) in CALLS.into_iter().chain([operator]) {
        if of != callee {
            continue;
        }
        let Some((_, _, hash)) = hashes.iter().find(|(c, o, _)| *c == caller && *o == of) else {
            continue;
        };
        let tenant = if of == "ron-kms" { "ron" } else { "default" };
        let _ = write!(
            text,
            "[[auth.principals]]\nname = \"{caller}\"\ntenant = \"{tenant}\"\nscopes = {}\nsha256 = \"{hash}\"\n",
            list(scopes)
        );
        if !prefixes.is_empty() {
            let _ = writeln!(text, "key_prefixes = {}", list(prefixes));
        }
        text.push('\n');
    }
}

fn nodes(text: &mut String, layout: &Layout, base_port: u16, bootstrap: &Bootstrap) {
    for name in SERVICES {
        let port = port(base_port, name);
        let _ = write!(
            text,
            "[[nodes]]\nid = \"{name}\"\nhealth_url = \"http://127.0.0.1:{}\"\napi_url = \"http://127.0.0.1:{port}\"\n",
            port + 5
        );
        let log = match name {
            "ron-kms" => Some(("/audit/v1", &bootstrap.audit_vkey)),
            "ron-ledger" => Some(("/log/v1", &bootstrap.ledger_vkey)),
            _ => None,
        };
        if CALLS
            .iter()
            .any(|(caller, callee, ..)| *caller == "svc-admin" && *callee == name)
        {
            let path = layout.token("svc-admin", name).display().to_string();
            let _ = writeln!(text, "credential_file = {}", quoted(&path));
        }
        if let Some((path, vkey)) = log {
            let _ = writeln!(text, "log_path = \"{path}\"\nlog_vkey = \"{vkey}\"");
        }
        text.push('\n');
    }
}

fn port(base_port: u16, name: &str) -> u16 {
    let index = SERVICES.iter().position(|s| *s == name).unwrap_or(0);
    base_port + index as u16 * 10
}

fn url(base_port: u16, name: &str) -> String {
    format!("http://127.0.0.1:{}", port(base_port, name))
}

fn list(commas: &str) -> String {
    let items: Vec<String> = commas.split(',').map(|s| format!("\"{s}\"")).collect();
    format!("[{}]", items.join(", "))
}

/// A TOML basic string.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}
