//! The passports of a person who has signed in: a private file for each issuer and service, below the user's state
//! directory.

use std::collections::BTreeSet;
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

/// How the name of a file ends. The rest is the issuer and the audience, each percent-encoded.
const ENDING: &str = ".token";
/// Between issuer and audience in a file's name; in neither of them, because it would be percent-encoded.
const JOINT: char = '@';

/// A passport that was kept.
#[derive(Debug)]
pub struct StoredPassport {
    pub path: PathBuf,
    pub subject: String,
    pub client: String,
    /// When it expires, in unix seconds.
    pub exp: u64,
}

/// The claims by which commands decide whether a passport is meant for them. Services verify it.
#[derive(Deserialize)]
struct Claims {
    iss: String,
    sub: String,
    client_id: String,
    #[serde(default)]
    scope: String,
    exp: u64,
}

/// The credential of the person who is signed in, for a service of this data directory. `None` if
/// nobody is, or only at another issuer than that of the data directory.
pub fn credential(layout: &Layout, audience: &str) -> Result<Option<Credential>, String> {
    Ok(of(layout, audience)?.map(|(credential, _)| credential))
}

/// Refuses other scopes than those of the login: its passport cannot be narrowed without the issuer's secret of its client.
pub fn check_scope(layout: &Layout, audience: &str, scope: &str) -> Result<(), String> {
    let Some((_, claims)) = of(layout, audience)? else {
        return Ok(());
    };
    if is_same_scope(scope, &claims.scope) {
        return Ok(());
    }
    Err(format!(
        "--scope: the login of {} for {audience} has the scope {:?}; sign in again with `ron login --audience {audience} --scope {scope:?}`, or name a client with --client",
        claims.client_id, claims.scope
    ))
}

fn is_same_scope(one: &str, other: &str) -> bool {
    let parts =
        |text: &str| -> BTreeSet<String> { text.split_whitespace().map(str::to_owned).collect() };
    parts(one) == parts(other)
}

fn of(layout: &Layout, audience: &str) -> Result<Option<(Credential, Claims)>, String> {
    let Ok(dir) = dir() else { return Ok(None) };
    let made = layout.bootstrap().exists().then(|| layout.read_bootstrap());
    let issuer = made.transpose()?.map(|made| made.issuer);
    at(&dir, issuer.as_deref(), audience, now_s())
}

/// The login for an audience; without an issuer, as on a host without a data directory, the only one.
fn at(
    dir: &Path,
    issuer: Option<&str>,
    audience: &str,
    now_s: u64,
) -> Result<Option<(Credential, Claims)>, String> {
    let found = files(dir)?.into_iter().filter(|file| {
        file.audience == audience && issuer.is_none_or(|issuer| issuer == file.issuer)
    });
    let found: Vec<LoginFile> = found.collect();
    let path = match found.as_slice() {
        [] => return Ok(None),
        [only] => &only.path,
        _ => {
            let issuers: Vec<&str> = found.iter().map(|file| &*file.issuer).collect();
            return Err(format!(
                "there are logins for {audience} at several issuers ({}); name the data directory of one with --data-dir",
                issuers.join(", ")
            ));
        }
    };
    let credential = Credential::from_file(path)?;
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
    Ok(Some((credential, claims)))
}

/// Keeps a passport for an audience in place of an earlier one of the same issuer.
pub fn keep(audience: &str, token: &str) -> Result<StoredPassport, String> {
    let claims = claims(token)?;
    let dir = dir()?;
    make_dir(&dir)?;
    let path = file(&dir, &claims.iss, audience);
    write_atomic(&path, format!("{token}\n").as_bytes(), 0o600)?;
    Ok(StoredPassport {
        path,
        subject: claims.sub,
        client: claims.client_id,
        exp: claims.exp,
    })
}

/// Removes the passports for an audience, or all; returns the audiences with their issuers.
pub fn forget(audience: Option<&str>) -> Result<Vec<(String, String)>, String> {
    forget_in(&dir()?, audience)
}

fn forget_in(dir: &Path, audience: Option<&str>) -> Result<Vec<(String, String)>, String> {
    let mut forgotten = Vec::new();
    for file in files(dir)? {
        if audience.is_none_or(|wanted| wanted == file.audience) {
            let path = &file.path;
            fs::remove_file(path).map_err(|e| format!("{}: {e}", path.display()))?;
            forgotten.push((file.audience, file.issuer));
        }
    }
    forgotten.sort();
    Ok(forgotten)
}

struct LoginFile {
    path: PathBuf,
    issuer: String,
    audience: String,
}

/// The files of all logins.
fn files(dir: &Path) -> Result<Vec<LoginFile>, String> {
    let cannot = |e: std::io::Error| format!("{}: {e}", dir.display());
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(cannot(e)),
    };
    let mut found = Vec::new();
    for entry in entries {
        let path = entry.map_err(cannot)?.path();
        let name = path.file_name().and_then(|name| name.to_str());
        let named = name.and_then(|name| {
            let (issuer, audience) = name.strip_suffix(ENDING)?.split_once(JOINT)?;
            Some((form_decode(issuer)?, form_decode(audience)?))
        });
        if let Some((issuer, audience)) = named {
            found.push(LoginFile {
                path,
                issuer,
                audience,
            });
        }
    }
    Ok(found)
}

/// Beside the default data directory, not in it: `ron init` wants that one for itself.
fn dir() -> Result<PathBuf, String> {
    let state = state_dir().ok_or("there is no home directory to keep a login in")?;
    Ok(state.join("ron-login"))
}

fn file(dir: &Path, issuer: &str, audience: &str) -> PathBuf {
    let (issuer, audience) = (encode(issuer), encode(audience));
    dir.join(format!("{issuer}{JOINT}{audience}{ENDING}"))
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
        let claims =
            serde_json::json!({"iss": iss, "sub": "ada", "client_id": "staff", "exp": exp});
        format!("{header}.{}.{}", part(claims), b64::url(&[0; 64]))
    }

    #[test]
    fn a_login_counts_at_its_issuer_until_it_ends() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = file(dir.path(), "https://id", "svc-wallet");
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
        // A file under the name of one issuer with the passport of another.
        write_atomic(&path, token("https://other", 100).as_bytes(), 0o600).expect("written");
        check(Some("https://id"), "svc-wallet", 99, Ok(false));
        check(Some("https://other"), "svc-wallet", 99, Ok(false));
    }

    #[test]
    fn a_login_at_a_second_issuer_replaces_none_at_the_first() {
        let dir = tempfile::tempdir().expect("a directory");
        for issuer in ["https://one", "https://two"] {
            let path = file(dir.path(), issuer, "ron-kms");
            write_atomic(&path, token(issuer, 100).as_bytes(), 0o600).expect("written");
        }
        for issuer in ["https://one", "https://two"] {
            let (_, claims) = at(dir.path(), Some(issuer), "ron-kms", 1)
                .expect("readable")
                .expect("a login");
            assert_eq!(claims.iss, issuer);
        }
        let several = at(dir.path(), None, "ron-kms", 1).map(|_| ());
        let why = several.expect_err("which of the two is unclear");
        assert!(
            why.contains("https://one") && why.contains("https://two"),
            "{why}"
        );
    }

    #[test]
    fn scopes_are_the_same_in_any_order() {
        assert!(is_same_scope(
            "admin:view admin:operate",
            "admin:operate  admin:view"
        ));
        assert!(!is_same_scope("admin:view", "admin:operate admin:view"));
        assert!(!is_same_scope("", "admin:view"));
    }

    #[test]
    fn one_login_or_all_are_forgotten() {
        let place = tempfile::tempdir().expect("a directory");
        let dir = place.path().join("ron-login");
        assert_eq!(forget_in(&dir, None), Ok(Vec::new()));
        make_dir(&dir).expect("a directory");
        for audience in ["svc-wallet", "https://orders.example.org/", ".."] {
            write_atomic(&file(&dir, "https://id", audience), b"x", 0o600).expect("written");
        }
        let named = |audience: &str| (audience.to_owned(), "https://id".to_owned());
        write_atomic(&dir.join("mine"), b"x", 0o600).expect("written");
        let url = "https://orders.example.org/";
        assert_eq!(forget_in(&dir, Some("reports")), Ok(Vec::new()));
        assert_eq!(forget_in(&dir, Some(url)), Ok(vec![named(url)]));
        assert_eq!(
            forget_in(&dir, None).expect("forgotten"),
            [named(".."), named("svc-wallet")]
        );
        assert!(dir.join("mine").exists());
    }
}
