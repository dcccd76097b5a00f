//! The configuration files of a new data directory. Services call each other through the Unix
//! sockets in `run/<service>`; the TCP ports are for callers with passports, browsers and
//! Prometheus.

use std::fmt::Write as _;
use std::path::Path;

use super::host::{CONSOLE, PublicHost};
use super::{CALLS, OPERATOR_SCOPES, TokenHashes};
use ron_services::NAMES;

use crate::fleet;
use crate::layout::{Bootstrap, Layout, api_port};

/// Where the services of a new data directory are.
pub struct Place<'a> {
    pub layout: &'a Layout,
    pub base_port: u16,
    /// `None`: on loopback alone.
    pub host: Option<&'a PublicHost>,
}

impl Place<'_> {
    fn port(&self, name: &str) -> u16 {
        api_port(self.base_port, name)
    }

    /// The name of the host, for a service that other hosts reach.
    fn host_of(&self, name: &str) -> Option<&PublicHost> {
        self.host.filter(|_| name != CONSOLE)
    }

    /// The base URL by which clients reach a service.
    pub fn url(&self, name: &str) -> String {
        match self.host_of(name) {
            Some(host) => host.url(self.port(name)),
            None => format!("http://127.0.0.1:{}", self.port(name)),
        }
    }
}

/// The configuration of `ron-kms` or `ron-ledger`, which call no other service. It has no issuer, and
/// the KMS no key of policies, as long as the KMS has not made these keys.
pub fn log_keeper(
    place: &Place<'_>,
    name: &str,
    bootstrap: Option<&Bootstrap>,
    hashes: &TokenHashes,
) -> String {
    let mut text = head(place, name) + &public_urls(&own_urls(place, name)) + "\n";
    if let Some(bootstrap) = bootstrap {
        if name == "ron-kms" {
            let key = &bootstrap.policy_public_key;
            let _ = write!(text, "[policy]\npublic_keys = [\"{key}\"]\n\n");
        }
        auth(&mut text, place.layout, name, bootstrap);
    }
    principals(&mut text, name, hashes);
    text
}

/// The configuration of a service that calls others.
pub fn service(
    place: &Place<'_>,
    name: &str,
    bootstrap: &Bootstrap,
    hashes: &TokenHashes,
    secret_sha256: &str,
) -> String {
    let layout = place.layout;
    let mut text = head(place, name);
    if name != "svc-passport" {
        text += &(public_urls(&own_urls(place, name)) + "\n");
    }
    let url = |name: &str| quoted(&layout.socket_url(name, "api"));
    let (kms, ledger) = (url("ron-kms"), url("ron-ledger"));
    let policy = format!(
        "[policy]\ndir = {}\npublic_keys = [\"{}\"]\n",
        quoted(&layout.policy().display().to_string()),
        bootstrap.policy_public_key
    );
    let token = |callee: &str| quoted(&layout.token(name, callee).display().to_string());
    match name {
        "svc-passport" => {
            let public = public_urls(&urls_of_issuer(place, name, &bootstrap.issuer));
            let _ = write!(
                text,
                "\nissuer = \"{}\"\n{public}\n[kms]\nurl = {kms}\ntoken_file = {}\nkey = \"{}\"\nnote_key = \"{}\"\n\n{policy}\n\
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
                "[ledger]\nurl = {ledger}\ntoken_file = {}\n\n{policy}\n",
                token("ron-ledger")
            );
        }
        "svc-rewarder" => {
            let _ = write!(
                text,
                "[kms]\nurl = {kms}\ntoken_file = {}\nkey = \"{}\"\n\n\
                 [ledger]\nurl = {ledger}\ntoken_file = {}\n\n{policy}\n\
                 [manifest]\npublic_keys = [\"{}\"]\n\n",
                token("ron-kms"),
                bootstrap.manifest_key,
                token("ron-ledger"),
                bootstrap.manifest_public_key,
            );
        }
        _ => {}
    }
    // The console accepts passports only if auth.mode says so; the default lets every user of this
    // host view it.
    auth(&mut text, layout, name, bootstrap);
    if name == "svc-admin" {
        nodes(&mut text, layout, bootstrap);
    }
    principals(&mut text, name, hashes);
    text
}

fn head(place: &Place<'_>, name: &str) -> String {
    let (layout, port) = (place.layout, place.port(name));
    let socket = |which| quoted(&layout.socket(name, which).display().to_string());
    let mut text = format!(
        "# {name}, made by `ron init`. Every key is explained by `{name} print-example`.\n"
    );
    if let Some(host) = place.host_of(name) {
        let file = |path: &Path| quoted(&path.display().to_string());
        let _ = write!(
            text,
            "bind_addr = \"{}\"\ntls.enabled = true\ntls.cert_path = {}\ntls.key_path = {}\n",
            host.bind(port),
            file(&host.cert),
            file(&host.key),
        );
    } else {
        let _ = writeln!(text, "bind_addr = \"127.0.0.1:{port}\"");
    }
    let _ = write!(
        text,
        "health_addr = \"127.0.0.1:{}\"\n\
         # Services and operators come here: nobody else can take these while the service is down.\n\
         uds_path = {}\nhealth_uds_path = {}\ndata_dir = {}\n",
        port + 5,
        socket("api"),
        socket("health"),
        quoted(&layout.data(name).display().to_string()),
    );
    text
}

/// The URLs by which clients reach a service, where they are not those of its address.
fn own_urls(place: &Place<'_>, name: &str) -> Vec<String> {
    let host = place.host_of(name);
    host.map(|host| host.url(place.port(name)))
        .into_iter()
        .collect()
}

/// The same of the issuer. A public name is what documents carry; commands on this host come by its port.
fn urls_of_issuer(place: &Place<'_>, name: &str, issuer: &str) -> Vec<String> {
    let port = place.port(name);
    let local = ["127.0.0.1", "localhost"].map(|host| format!("http://{host}:{port}"));
    if local.iter().any(|url| url == issuer) {
        return Vec::new();
    }
    let own = match place.host_of(name) {
        Some(_) => own_urls(place, name),
        None => local.to_vec(),
    };
    let others = own.into_iter().filter(|url| url != issuer);
    std::iter::once(issuer.to_owned()).chain(others).collect()
}

fn public_urls(urls: &[String]) -> String {
    if urls.is_empty() {
        return String::new();
    }
    format!("public_url = [\"{}\"]\n", urls.join("\", \""))
}

/// Accepts this issuer's passports if its policy note lists the key that signed them. The issuer's
/// name is a public one; its keys are read from a place where no other user of the host can serve
/// keys.
fn auth(text: &mut String, layout: &Layout, name: &str, bootstrap: &Bootstrap) {
    let (issuer, note_vkey) = (&bootstrap.issuer, &bootstrap.note_vkey);
    let _ = write!(
        text,
        "[auth]\nissuer = \"{issuer}\"\njwks_url = {}\nnote_vkey = [\"{note_vkey}\"]\ntoken_file = {}\n\n",
        quoted(&fleet::jwks_url(layout)),
        quoted(&layout.token(name, "svc-passport").display().to_string())
    );
}

/// The callers of a service; the file contains only the hashes of their tokens.
fn principals(text: &mut String, callee: &str, hashes: &TokenHashes) {
    let operator = ("operator", "ron-kms", OPERATOR_SCOPES, "ron/");
    for (caller, of, scopes, prefixes) in CALLS.into_iter().chain([operator]) {
        if of != callee {
            continue;
        }
        let Some((_, _, hash)) = hashes.iter().find(|(c, o, _)| *c == caller && *o == of) else {
            continue;
        };
        // The console shows the epochs of tenant `default`; everything else acts for the installation.
        let tenant = if of == "svc-rewarder" {
            "default"
        } else {
            "ron"
        };
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

fn nodes(text: &mut String, layout: &Layout, bootstrap: &Bootstrap) {
    for name in NAMES {
        let url = |which| quoted(&layout.socket_url(name, which));
        let _ = write!(
            text,
            "[[nodes]]\nid = \"{name}\"\nhealth_url = {}\napi_url = {}\n",
            url("health"),
            url("api")
        );
        let log = match name {
            "ron-kms" => Some(("/audit/v1", &bootstrap.audit_vkey)),
            "ron-ledger" => Some(("/log/v1", &bootstrap.ledger_vkey)),
            "svc-passport" => Some(("/revocations/v1", &bootstrap.revocations_vkey)),
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

fn list(commas: &str) -> String {
    let items: Vec<String> = commas.split(',').map(|s| format!("\"{s}\"")).collect();
    format!("[{}]", items.join(", "))
}

fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}
