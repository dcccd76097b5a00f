//! The passports of a person who has signed in: a private file for each service, below the user's state directory.

use std::fs;
use std::path::{Path, PathBuf};

use ron_auth::hybrid;
use ron_auth::narrow;
use ron_client::{Credential, encode};
use ron_http::form_decode;
use ron_proto::Timestamp;
use serde::Deserialize;

use super::now_s;
use crate::layout::{Layout, make_dir, state_dir, write_atomic};

/// What the end of a file's name says: the rest is the audience, percent-encoded.
const ENDING: &str = ".token";

/// A passport that was kept.
#[derive(Debug)]
pub struct StoredPassport {
    pub path: PathBuf,
    pub client: String,
    /// When it expires, in unix seconds.
    pub exp: u64,
}

/// The claims by which commands decide whether a passport is meant for them. Services verify it.
#[derive(Deserialize)]
struct Claims {
    iss: String,
    client_id: String,
    exp: u64,
}

/// The credential of the person who is signed in, for a service of this data directory. `None` if
/// nobody is, or only at another issuer than that of the data directory.
pub fn credential(layout: &Layout, audience: &str) -> Result<Option<Credential>, String> {
    let Ok(dir) = dir() else { return Ok(None) };
    let made = layout.bootstrap().exists().then(|| layout.read_bootstrap());
    let issuer = made.transpose()?.map(|made| made.issuer);
    at(&dir, issuer.as_deref(), audience, now_s())
}

fn at(
    dir: &Path,
    issuer: Option<&str>,
    audience: &str,
    now_s: u64,
) -> Result<Option<Credential>, String> {
    let path = file(dir, audience);
    if !path.exists() {
        return Ok(None);
    }
    let credential = Credential::from_file(&path)?;
    let header = credential.header().unwrap_or_default();
    let claims = claims(header.trim_start_matches("Bearer "))
        .map_err(|why| format!("{}: {why}; run `ron logout`", path.display()))?;
    if issuer.is_some_and(|issuer| issuer != claims.iss) {
        return Ok(None);
    }
    // Not the operator's client instead: it may do more than the person who signed in.
    if claims.exp <= now_s {
        return Err(format!(
            "the login of {} for {audience} has ended at {}; sign in again with `ron login`, or forget it with `ron logout`",
            claims.client_id,
            Timestamp(claims.exp * 1000)
        ));
    }
    Ok(Some(credential))
}

/// Keeps a passport for an audience in place of an earlier one.
pub fn keep(audience: &str, token: &str) -> Result<StoredPassport, String> {
    let claims = claims(token)?;
    let dir = dir()?;
    make_dir(&dir)?;
    let path = file(&dir, audience);
    write_atomic(&path, format!("{token}\n").as_bytes(), 0o600)?;
    Ok(StoredPassport {
        path,
        client: claims.client_id,
        exp: claims.exp,
    })
}

/// Removes the passport for an audience, or all; returns the audiences.
pub fn forget(audience: Option<&str>) -> Result<Vec<String>, String> {
    forget_in(&dir()?, audience)
}

fn forget_in(dir: &Path, audience: Option<&str>) -> Result<Vec<String>, String> {
    let mut forgotten = Vec::new();
    let cannot = |path: &Path, e: std::io::Error| format!("{}: {e}", path.display());
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(forgotten),
        Err(e) => return Err(cannot(dir, e)),
    };
    for entry in entries {
        let path = entry.map_err(|e| cannot(dir, e))?.path();
        let name = path.file_name().and_then(|name| name.to_str());
        let name = name.and_then(|name| form_decode(name.strip_suffix(ENDING)?));
        let Some(name) = name.filter(|name| audience.is_none_or(|wanted| wanted == name)) else {
            continue;
        };
        fs::remove_file(&path).map_err(|e| cannot(&path, e))?;
        forgotten.push(name);
    }
    forgotten.sort();
    Ok(forgotten)
}

/// Beside the default data directory, not in it: `ron init` wants that one for itself.
fn dir() -> Result<PathBuf, String> {
    let state = state_dir().ok_or("there is no home directory to keep a login in")?;
    Ok(state.join("ron-login"))
}

fn file(dir: &Path, audience: &str) -> PathBuf {
    dir.join(encode(audience) + ENDING)
}

fn claims(token: &str) -> Result<Claims, String> {
    let refuse = "it does not hold a passport that can be read";
    let raw = hybrid::payload(narrow::root(token)).map_err(|_| refuse)?;
    serde_json::from_slice(&raw).map_err(|_| refuse.to_owned())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use ron_proto::b64;

    use super::*;

    fn token(iss: &str, exp: u64) -> String {
        let part = |value: serde_json::Value| b64::url(value.to_string().as_bytes());
        let header = part(serde_json::json!({"alg": "EdDSA", "kid": "k", "typ": "at+jwt"}));
        let claims = serde_json::json!({"iss": iss, "client_id": "staff", "exp": exp});
        format!("{header}.{}.{}", part(claims), b64::url(&[0; 64]))
    }

    #[test]
    fn a_login_counts_at_its_issuer_until_it_ends() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = file(dir.path(), "svc-wallet");
        let check = |issuer: Option<&str>, audience: &str, now_s: u64, want: Result<bool, &str>| {
            let got = at(dir.path(), issuer, audience, now_s).map(|found| found.is_some());
            match (&got, want) {
                (Ok(got), Ok(want)) => assert_eq!(*got, want, "{issuer:?} {audience} {now_s}"),
                (Err(why), Err(part)) => assert!(why.contains(part), "{why}"),
                _ => panic!("{got:?} for {issuer:?} {audience} {now_s}"),
            }
        };
        check(Some("https://id"), "svc-wallet", 1, Ok(false));
        write_atomic(&path, token("https://id", 100).as_bytes(), 0o600).expect("written");
        check(Some("https://id"), "svc-wallet", 99, Ok(true));
        check(None, "svc-wallet", 99, Ok(true));
        check(Some("https://id"), "ron-kms", 99, Ok(false));
        check(Some("https://other"), "svc-wallet", 99, Ok(false));
        check(
            Some("https://id"),
            "svc-wallet",
            100,
            Err("has ended at 1970-01-01T00:01:40"),
        );
        check(Some("https://other"), "svc-wallet", 100, Ok(false));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).expect("a mode");
        check(Some("https://id"), "svc-wallet", 99, Err("chmod 600"));
        write_atomic(&path, b"no-token", 0o600).expect("written");
        check(Some("https://id"), "svc-wallet", 99, Err("ron logout"));
    }

    #[test]
    fn one_login_or_all_are_forgotten() {
        let place = tempfile::tempdir().expect("a directory");
        let dir = place.path().join("ron-login");
        assert_eq!(forget_in(&dir, None), Ok(Vec::new()));
        make_dir(&dir).expect("a directory");
        for audience in ["svc-wallet", "https://orders.example.org/", ".."] {
            write_atomic(&file(&dir, audience), b"x", 0o600).expect("written");
        }
        write_atomic(&dir.join("mine"), b"x", 0o600).expect("written");
        let url = "https://orders.example.org/";
        assert_eq!(forget_in(&dir, Some("reports")), Ok(Vec::new()));
        assert_eq!(forget_in(&dir, Some(url)), Ok(vec![url.to_owned()]));
        assert_eq!(
            forget_in(&dir, None).expect("forgotten"),
            ["..", "svc-wallet"]
        );
        assert!(dir.join("mine").exists());
    }
}
