//! `ron issuer move`: gives the issuer another name. Its keys sign for one name alone, so it gets new ones; the former name
//! and keys stay in the configuration, so that tokens with them are good until they expire.

use std::time::Duration;

use clap::Args;
use ron_client::{Credential, KmsClient};
use ron_crypto::hash;
use ron_http::Call;
use ron_kernel::{Clock as _, Deadline, SystemClock};
use ron_proto::kms::{CreateKey, JwtPolicy, KeyBackend, PayloadPolicy, RotateEvery};
use ron_proto::passport::TTL_S_MAX;
use ron_proto::{Kid, OpId, Timestamp};
use ron_service::config::BaseUrl;
use svc_passport::explain::Decider;
use toml_edit::{Array, ArrayOfTables, DocumentMut, Item, Table, Value};

use crate::init::{during, issuer_name};
use crate::layout::{Layout, Place, write_atomic};
use crate::{fleet, net};

const WITHIN: Duration = Duration::from_secs(10);
/// Where the configuration has keys that sign tokens.
const KEYS: [(&str, &str); 4] = [
    ("kms", "key"),
    ("kms", "key_es256"),
    ("kms", "key_rs256"),
    ("pq", "key"),
];

#[derive(Args)]
#[command(
    after_help = "The issuer must not be running, because none of its tokens may have the former name after the move; where all services are\n\
    one process, stop `ron up`. Services of this installation know the issuer by its first name and learn the others from its\n\
    signed policy note. Verifiers of others take a list of names for the time being, and then the new one alone.\n\n\
    Examples:\n  ron issuer move https://id.example.org"
)]
pub struct MoveArgs {
    #[command(flatten)]
    place: Place,
    /// The new name: the `iss` of new tokens and the URL by which clients reach the issuer.
    #[arg(value_parser = issuer_name)]
    name: BaseUrl,
}

pub fn run(args: &MoveArgs) -> Result<(), String> {
    let layout = args.place.layout()?;
    layout.read_bootstrap()?;
    let path = layout.config("svc-passport");
    let at = |why: String| format!("{}: {why}", path.display());
    let text = std::fs::read_to_string(&path).map_err(|e| at(e.to_string()))?;
    let mut doc: DocumentMut = text.parse().map_err(|e| at(format!("{e}")))?;
    let config = fleet::load(&layout, "svc-passport", &[])?;
    let name = args.name.0.as_str();
    let before = doc.get("issuer").and_then(Item::as_str);
    let before = before.ok_or_else(|| at("it has no `issuer`; move it by hand".to_owned()))?;
    let before = before.trim_end_matches('/').to_owned();
    if before == name || former_names(&doc).any(|former| former == name) {
        return Err(format!(
            "{name} is the issuer's name, or was it before: its keys for that name are known to verifiers already; take another name"
        ));
    }
    is_stopped(&layout)?;
    let old: Vec<(&str, &str, Kid)> = KEYS
        .into_iter()
        .filter_map(|(section, key)| Some((section, key, doc.get(section)?.get(key)?.as_str()?)))
        .map(|(section, key, kid)| Ok((section, key, kid.parse()?)))
        .collect::<Result<_, ron_proto::ValueError>>()
        .map_err(|e| at(e.to_string()))?;
    let new = with_kms(&layout, |kms| {
        let keys = old.iter();
        keys.map(|(_, _, kid)| successor(kms, kid, &before, name))
            .collect::<Result<Vec<_>, _>>()
    })?;
    let urls = config.chassis().base_urls(config.chassis().bind_addr);
    let moved = Timestamp(SystemClock.unix_ms());
    let keys: Vec<&Kid> = old.iter().map(|(_, _, kid)| kid).collect();
    add_former(&mut doc, &before, &urls[0], &keys, moved).map_err(at)?;
    set(&mut doc, None, "issuer", name.into());
    let urls =
        std::iter::once(name).chain(urls.iter().map(String::as_str).filter(|url| *url != name));
    set(
        &mut doc,
        None,
        "public_url",
        Value::Array(urls.collect::<Array>()),
    );
    for ((section, key, _), kid) in old.iter().zip(&new) {
        set(&mut doc, Some(section), key, kid.to_string().into());
    }
    let text = doc.to_string();
    check(&path, &text)?;
    write_atomic(&path, text.as_bytes(), 0o600)?;
    let end = Timestamp(moved.0 + TTL_S_MAX * 1000);
    println!("the issuer's name is {name}, and was {before}");
    for ((_, _, old), new) in old.iter().zip(&new) {
        println!("  {new} signs, in place of {old}");
    }
    println!(
        "start it now. Tokens with the former name are good until they expire, the last one at {end}. Verifiers of others must take both\n\
         names until then, and client assertions may name either; services of this installation need no change"
    );
    Ok(())
}

fn former_names(doc: &DocumentMut) -> impl Iterator<Item = &str> {
    let blocks = doc.get("former").and_then(Item::as_array_of_tables);
    let names = blocks.into_iter().flat_map(ArrayOfTables::iter);
    names.filter_map(|block| block.get("issuer")?.as_str())
}

/// The issuer answers at no socket of this directory.
fn is_stopped(layout: &Layout) -> Result<(), String> {
    let url = format!(
        "{}/.well-known/jwks.json",
        layout.socket_url("svc-passport", "api")
    );
    match net::client().call(Call::get(&url, Deadline::within(WITHIN))) {
        Err(_) => Ok(()),
        Ok(_) => Err(
            "svc-passport is running: stop it first (where all services are one process, stop `ron up`), because it issues tokens with the \
             former name"
                .to_owned(),
        ),
    }
}

/// The KMS of the directory: the running one, or one that runs for this command alone.
fn with_kms<T>(
    layout: &Layout,
    ask: impl FnOnce(&KmsClient) -> Result<T, String>,
) -> Result<T, String> {
    let url = layout.socket_url("ron-kms", "api");
    let credential = || Credential::from_file(&layout.operator_token());
    let running = KmsClient::new(&url, credential()?, net::client());
    if running.audit_vkey(Deadline::within(WITHIN)).is_ok() {
        return ask(&running);
    }
    during(layout, "ron-kms", |url| {
        ask(&KmsClient::new(url, credential()?, net::client()))
    })
}

/// A key like this one, which signs for the new name.
fn successor(kms: &KmsClient, old: &Kid, before: &str, name: &str) -> Result<Kid, String> {
    let fail = |e: ron_client::ClientError| format!("ron-kms: {e}");
    let doc = kms.key(old, Deadline::within(WITHIN)).map_err(fail)?;
    let PayloadPolicy::Jwt(policy) = doc.payload else {
        return Err(format!("{old} has no payload policy for tokens"));
    };
    if policy.iss != before {
        return Err(format!(
            "{old} signs for {}, and the configuration says {before}: correct it first",
            policy.iss
        ));
    }
    // The same for a repeated command: one that was interrupted leaves no second key.
    let print = hash::blake3(format!("{old} {name}").as_bytes());
    let mut id = [0; 16];
    id.copy_from_slice(&print[..16]);
    let backend: Option<KeyBackend> = match doc.backend.as_str() {
        "pkcs11" => Some(KeyBackend::Pkcs11),
        "tpm" => Some(KeyBackend::Tpm),
        _ => None,
    };
    let request = CreateKey {
        tenant: old.tenant.clone(),
        purpose: old.purpose.clone(),
        alg: old.alg,
        backend,
        token: doc.token,
        payload: PayloadPolicy::Jwt(JwtPolicy {
            iss: name.to_owned(),
            ..policy
        }),
        exportable: doc.exportable,
        derived: false,
        rotate_every: doc
            .rotation
            .map(|rotation| RotateEvery::Every(rotation.every)),
        op_id: OpId::from_random(id),
    };
    let made = kms.create_key(&request, Deadline::within(WITHIN));
    Ok(made.map_err(fail)?.key)
}

/// Appends the block of the former name.
fn add_former(
    doc: &mut DocumentMut,
    issuer: &str,
    public_url: &str,
    keys: &[&Kid],
    moved: Timestamp,
) -> Result<(), String> {
    let mut block = Table::new();
    block["issuer"] = toml_edit::value(issuer);
    if public_url != issuer {
        block["public_url"] = toml_edit::value(public_url);
    }
    let keys: Array = keys.iter().map(ToString::to_string).collect();
    block["keys"] = toml_edit::value(keys);
    block["moved"] = toml_edit::value(moved.to_string());
    let blocks = doc
        .entry("former")
        .or_insert(Item::ArrayOfTables(ArrayOfTables::new()));
    let blocks = blocks.as_array_of_tables_mut();
    blocks
        .ok_or("`former` is no list of [[former]] blocks")?
        .push(block);
    Ok(())
}

/// Sets a value; a comment behind it stays.
fn set(doc: &mut DocumentMut, section: Option<&str>, key: &str, mut value: Value) {
    let table = match section {
        Some(section) => &mut doc[section],
        None => doc.as_item_mut(),
    };
    if let Some(old) = table.get(key).and_then(Item::as_value) {
        *value.decor_mut() = old.decor().clone();
    }
    table[key] = Item::Value(value);
}

/// The service would start with this text.
fn check(path: &std::path::Path, text: &str) -> Result<(), String> {
    let config = fleet::load_text("svc-passport", path, text)?;
    Decider::new(&config).map_err(fleet::lines)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_is_changed_in_place() {
        let text = "# ours\nissuer = \"http://a\" # local\n\n[kms]\nkey = \"k\" # signs\nurl = \"u\"\n\n[[clients]]\nid = \"operator\"\n";
        let mut doc: DocumentMut = text.parse().expect("TOML");
        let kid: Kid = "ron/issuer/ed25519/0191e7a0-0000-7000-8000-000000000001"
            .parse()
            .expect("a key");
        let add = |doc: &mut DocumentMut, name: &str| {
            add_former(doc, name, "http://a:1", &[&kid], Timestamp(0)).expect("a list of blocks");
        };
        add(&mut doc, "http://a");
        set(&mut doc, None, "issuer", "https://b".into());
        set(&mut doc, Some("kms"), "key", "n".into());
        assert_eq!(
            doc.to_string(),
            format!(
                "# ours\nissuer = \"https://b\" # local\n\n[kms]\nkey = \"n\" # signs\nurl = \"u\"\n\n[[clients]]\nid = \"operator\"\n\n\
                 [[former]]\nissuer = \"http://a\"\npublic_url = \"http://a:1\"\nkeys = [\"{kid}\"]\nmoved = \"1970-01-01T00:00:00.000Z\"\n"
            )
        );
        add(&mut doc, "https://b");
        assert!(former_names(&doc).eq(["http://a", "https://b"]));
    }
}
