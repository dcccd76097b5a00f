//! Output of the KMS's responses, for people and for programs.

use ron_proto::kms::{
    KeyChanged, KeyDoc, KeyList, KeyVersionDoc, QuarantinedKey, SignAnswer, VerifyAnswer,
};
use ron_proto::values::Alg;
use serde::Serialize;

/// Prints a response as JSON.
pub fn as_json(value: &impl Serialize) -> Result<(), String> {
    let text = serde_json::to_string_pretty(value).map_err(|e| e.to_string())?;
    println!("{text}");
    Ok(())
}

/// Prints a new key: its name and nothing else, for shells.
pub fn made(doc: &KeyDoc, json: bool) -> Result<(), String> {
    if json {
        return as_json(doc);
    }
    println!("{}", doc.key);
    Ok(())
}

/// A row of a list.
#[derive(Serialize)]
#[serde(untagged)]
enum Listed<'a> {
    Sound(&'a KeyDoc),
    Damaged(&'a QuarantinedKey),
}

/// Prints keys, one per line; those with damaged records come last, with the reason.
pub fn list(list: &KeyList, json: bool) -> Result<(), String> {
    let sound = list.keys.iter().map(Listed::Sound);
    let damaged = list.quarantined.iter().map(Listed::Damaged);
    let rows: Vec<Listed<'_>> = sound.chain(damaged).collect();
    if json {
        return as_json(&rows);
    }
    for row in rows {
        match row {
            Listed::Sound(doc) => println!(
                "{}  head {}  {}  {}",
                doc.key,
                doc.head,
                doc.state.as_str(),
                backend(doc)
            ),
            Listed::Damaged(key) => println!("{}  quarantined  {}", key.key, key.reason),
        }
    }
    Ok(())
}

/// The backend, and the name of the token if it has one.
fn backend(doc: &KeyDoc) -> String {
    match &doc.token {
        Some(name) => format!("{} token {name}", doc.backend),
        None => doc.backend.clone(),
    }
}

/// Prints one key with its versions.
pub fn key(doc: &KeyDoc, versions: &[KeyVersionDoc]) {
    fields(doc);
    rows(versions);
}

/// Prints the public key of a version.
pub fn public(version: &KeyVersionDoc, alg: Alg, form: &str) -> Result<(), String> {
    let none = || format!("keys of {alg} have no public key in this form");
    match form {
        "pem" if !version.public_key_pem.is_empty() => print!("{}", version.public_key_pem),
        "jwk" => return as_json(version.jwk.as_ref().ok_or_else(none)?),
        "raw" if !version.public_key.0.is_empty() => println!("{}", version.public_key),
        _ => return Err(none()),
    }
    Ok(())
}

fn fields(doc: &KeyDoc) {
    let row = |name: &str, value: String| println!("{name:<12} {value}");
    row("key", doc.key.to_string());
    row("state", doc.state.as_str().to_owned());
    row("head", doc.head.to_string());
    row(
        "verifies",
        format!("from version {}", doc.min_verify_version),
    );
    row("payload", doc.payload.kind().to_owned());
    row(
        "backend",
        format!("{} (attestation: {})", backend(doc), doc.attestation),
    );
    row("exportable", doc.exportable.to_string());
    if doc.imported {
        row("origin", "imported".to_owned());
    }
    if let Some(rotation) = &doc.rotation {
        row(
            "rotates",
            format!("every {}, next at {}", rotation.every, rotation.next),
        );
    }
    if let Some(waiting) = &doc.waiting {
        let text = format!(
            "version {} signs from {}",
            waiting.version, waiting.signs_from
        );
        row("waiting", text);
    }
    if let Some(text) = &doc.description {
        row("description", text.clone());
    }
    for alias in &doc.aliases {
        row("alias", alias.to_string());
    }
    for (name, value) in &doc.tags {
        row("tag", format!("{name}={value}"));
    }
    if let Some(at) = &doc.destroy_at {
        row("destroyed", format!("at {at}"));
    }
}

fn rows(versions: &[KeyVersionDoc]) {
    for version in versions {
        let leaf = version.receipt.index;
        let name = format!("version {}", version.version);
        println!("{name:<12} {}  leaf {leaf}", version.created);
    }
}

/// Prints a completed change.
pub fn changed(answer: &KeyChanged, json: bool) -> Result<(), String> {
    if json {
        return as_json(answer);
    }
    fields(&answer.document);
    rows(&answer.document.versions);
    println!("{:<12} {}", "leaf", answer.receipt.index);
    Ok(())
}

/// Prints signatures, one per line and nothing else, for shells.
pub fn signatures(answer: &SignAnswer, json: bool) -> Result<(), String> {
    if json {
        return as_json(answer);
    }
    for signature in &answer.signatures {
        println!("{}", signature.signature);
    }
    eprintln!("version {}, leaf {}", answer.version, answer.receipt.index);
    Ok(())
}

/// Prints whether the signatures are valid; an error if not.
pub fn verdict(answer: &VerifyAnswer, json: bool) -> Result<(), String> {
    if json {
        as_json(answer)?;
    } else {
        for detail in &answer.details {
            let made_by = detail.version.map(|v| format!("holds, version {v}"));
            let reason = detail.reason.clone().unwrap_or_default();
            println!("{}: {}", detail.alg, made_by.unwrap_or(reason));
        }
    }
    if answer.ok {
        return Ok(());
    }
    Err("the signatures are not valid".to_owned())
}
