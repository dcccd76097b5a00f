//! `ron kms derive`: a secret that stays in the KMS, wrapped or used for a MAC.

use std::io::Read;
use std::path::{Path, PathBuf};

use clap::{ArgGroup, Args};
use ron_client::KmsClient;
use ron_custody::keys::{PublicKey, group_of};
use ron_proto::kms::{
    Bytes, DeriveOutput, DeriveRequest, HmacDerived, MESSAGE_BYTES_MAX, WrapDerived,
};
use ron_proto::values::KeyRef;
use ron_proto::{Alg, OpId, b64};

use super::names::named;
use super::{deadline, explain, op_id, show};

#[derive(Args)]
#[command(group(ArgGroup::new("output").required(true).args(["wrap_with", "hmac"])))]
pub struct DeriveArgs {
    /// Key of algorithm ecdh-p256, ecdh-p384, ecdh-x25519 or hkdf-sha256, as tenant/purpose/algorithm/uuid or alias/name.
    key: KeyRef,
    /// What the secret is for, another text for each use: `info` of HKDF.
    #[arg(long)]
    info: String,
    /// File with the public key of the other party, as PEM or as its bytes; for ecdh keys.
    #[arg(long)]
    peer: Option<PathBuf>,
    /// Salt of HKDF, in hex.
    #[arg(long)]
    salt: Option<String>,
    /// Length of the secret, in bytes.
    #[arg(long, default_value_t = 32)]
    bytes: u32,
    /// Wrap the secret under this key and print the ciphertext.
    #[arg(long)]
    wrap_with: Option<KeyRef>,
    /// Text that is bound to the ciphertext, and that unwrapping requires.
    #[arg(long, requires = "wrap_with")]
    aad: Option<String>,
    /// Print the HMAC-SHA-256 of this file under the secret, at most 64 KiB; `-` reads standard input.
    #[arg(long)]
    hmac: Option<PathBuf>,
    /// Version of the key that derives; the head when absent.
    #[arg(long)]
    version: Option<u32>,
    /// Remark for the audit log.
    #[arg(long)]
    context: Option<String>,
    /// Idempotency id: the same id and request returns the same output.
    #[arg(long)]
    op_id: Option<OpId>,
}

pub fn run(kms: &KmsClient, ask: DeriveArgs, json: bool) -> Result<(), String> {
    let key = named(kms, &ask.key)?;
    let peer = ask.peer.as_deref().map(|path| public_key(path, key.alg));
    let salt = ask.salt.map(|text| hex::decode(text.trim()));
    let salt = salt.transpose().map_err(|e| format!("--salt: {e}"))?;
    let output = match (ask.wrap_with, &ask.hmac) {
        (Some(by), _) => DeriveOutput::Wrap(WrapDerived {
            key: by,
            aad: ask.aad.map(|text| Bytes(text.into_bytes())),
        }),
        (None, Some(path)) => DeriveOutput::Hmac(HmacDerived {
            message: Bytes(message(path)?),
        }),
        (None, None) => return Err("give --wrap-with or --hmac".to_owned()),
    };
    let request = DeriveRequest {
        key: key.into(),
        version: ask.version,
        peer_public: peer.transpose()?.map(Bytes),
        salt: salt.map(Bytes),
        info: Bytes(ask.info.into_bytes()),
        bytes: Some(ask.bytes),
        output,
        op_id: Some(op_id(ask.op_id)),
        context: ask.context,
    };
    let answer = explain(kms.derive(&request, deadline()))?;
    if json {
        return show::as_json(&answer);
    }
    for made in [&answer.ciphertext, &answer.mac].into_iter().flatten() {
        println!("{}", b64::url(made.as_slice()));
    }
    let by = answer.wrapped_by.map(|by| format!(", wrapped by {by}"));
    eprintln!(
        "version {}{}, leaf {}",
        answer.version,
        by.unwrap_or_default(),
        answer.receipt.index
    );
    Ok(())
}

/// The bytes of a file that is short enough for a MAC.
fn message(path: &Path) -> Result<Vec<u8>, String> {
    let why = |e: std::io::Error| format!("{}: {e}", path.display());
    let mut bytes = Vec::new();
    let most = MESSAGE_BYTES_MAX as u64 + 1;
    if path == Path::new("-") {
        let read = std::io::stdin().lock().take(most).read_to_end(&mut bytes);
        read.map_err(why)?;
    } else {
        let file = std::fs::File::open(path).map_err(why)?;
        file.take(most).read_to_end(&mut bytes).map_err(why)?;
    }
    if bytes.len() > MESSAGE_BYTES_MAX {
        return Err(format!(
            "{}: a MAC is made of at most {MESSAGE_BYTES_MAX} bytes; make it of the file's hash",
            path.display()
        ));
    }
    Ok(bytes)
}

/// A public key of `alg` in a file, as PEM or as its bytes.
fn public_key(path: &Path, alg: Alg) -> Result<Vec<u8>, String> {
    let bytes = std::fs::read(path).map_err(|e| format!("{}: {e}", path.display()))?;
    let text = std::str::from_utf8(&bytes).ok().map(str::trim);
    let Some(text) = text.filter(|text| text.starts_with("-----BEGIN")) else {
        return Ok(bytes);
    };
    from_pem(text, alg).ok_or_else(|| {
        format!(
            "{}: it must hold a public key (BEGIN PUBLIC KEY) of the group of {alg}",
            path.display()
        )
    })
}

/// The key in a PEM file. It ends the document, and only the document that this key has is accepted.
fn from_pem(text: &str, alg: Alg) -> Option<Vec<u8>> {
    let body = text
        .strip_prefix("-----BEGIN PUBLIC KEY-----")?
        .strip_suffix("-----END PUBLIC KEY-----")?;
    let joined = |text: &str| text.split_whitespace().collect::<String>();
    let document = b64::from_std(&joined(body)).ok()?;
    let at = document.len().checked_sub(group_of(alg)?.public_len())?;
    let key = PublicKey::from_raw(alg, &document[at..])?;
    (joined(&key.pem()) == joined(text)).then(|| key.raw().to_vec())
}

#[cfg(test)]
mod tests {
    use ron_custody::keys::SecretKey;
    use ron_kernel::SeededRandom;

    use super::*;

    #[test]
    fn public_keys_are_read_from_pem() {
        let random = SeededRandom::new(2);
        for alg in [Alg::EcdhP256, Alg::EcdhP384, Alg::EcdhX25519] {
            let public = SecretKey::generate(alg, &random).0.public();
            let pem = public.pem();
            assert_eq!(from_pem(pem.trim(), alg).as_deref(), Some(public.raw()));
            let wide = pem.trim().replace('\n', "\r\n");
            assert_eq!(from_pem(&wide, alg).as_deref(), Some(public.raw()));
            for other in Alg::ALL.into_iter().filter(|other| *other != alg) {
                assert_eq!(from_pem(pem.trim(), other), None, "{alg} as {other}");
            }
            assert_eq!(
                from_pem(&pem.trim().replace("PUBLIC", "PRIVATE"), alg),
                None
            );
        }
    }
}
