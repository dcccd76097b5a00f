//! `ron kms ssh-sign`: signatures in the form of OpenSSH (`PROTOCOL.sshsig`), which git makes and verifies with its setting
//! `gpg.format = ssh`, and public keys in OpenSSH's form.

use std::ffi::OsString;
use std::fs::File;
use std::io::{Read, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Args;
use ron_client::KmsClient;
use ron_crypto::ecdsa::to_der;
use ron_crypto::hash::Hasher;
use ron_crypto::{Curve, RsaPublic, Sha2, der};
use ron_custody::keys::{curve_of, sha2_of};
use ron_proto::kms::{
    HashAlg, KeyDoc, KeyVersionDoc, PayloadPolicy, Prehash, Scheme, SignRequest, Signature,
};
use ron_proto::{Alg, Kid, b64};

use super::{deadline, explain, op_id};
use crate::layout::write_atomic;

#[derive(Args)]
pub struct SshSignArgs {
    /// What `ssh-keygen` takes: `-Y sign -n NAMESPACE -f PUBLIC_KEY [FILE ...]` signs with the KMS; the
    /// comment of the public key names the key, as `ron kms get KEY --public ssh` prints it. Other
    /// operations, such as `-Y verify`, are passed to ssh-keygen.
    #[arg(
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "ARGS"
    )]
    args: Vec<OsString>,
}

/// The arguments of `ssh-keygen -Y sign`.
#[derive(Debug, Default, PartialEq, Eq)]
struct Asked {
    namespace: String,
    public: PathBuf,
    hash: Option<String>,
    /// Standard input when there is none.
    files: Vec<PathBuf>,
}

impl SshSignArgs {
    /// Whether a KMS is needed: only to sign.
    pub fn signs(&self) -> bool {
        let after = self.args.iter().skip_while(|arg| *arg != "-Y").nth(1);
        after.is_some_and(|operation| operation == "sign")
    }

    /// Becomes ssh-keygen with these arguments; returns only if there is none.
    pub fn pass_on(&self) -> Result<(), String> {
        let error = Command::new("ssh-keygen").args(&self.args).exec();
        Err(format!("ssh-keygen: {error}"))
    }

    fn asked(&self) -> Result<Asked, String> {
        let mut asked = Asked::default();
        let mut args = self.args.iter();
        while let Some(arg) = args.next() {
            let mut value = || {
                let value = args.next();
                value.ok_or_else(|| format!("{} needs a value", arg.display()))
            };
            let text = |value: &OsString| value.to_string_lossy().into_owned();
            match arg.to_str() {
                Some("-Y") => drop(value()?),
                Some("-n") => asked.namespace = text(value()?),
                Some("-f") => asked.public = value()?.into(),
                // The key is never in an agent, and there is nothing to say less of.
                Some("-U" | "-q") => {}
                Some("-O") => match text(value()?).split_once('=') {
                    Some(("hashalg", hash)) => asked.hash = Some(hash.to_owned()),
                    _ => return Err("-O: only hashalg=sha256 and hashalg=sha512".to_owned()),
                },
                Some("-") => {}
                Some(flag) if flag.starts_with('-') => {
                    return Err(format!("{flag} is not an option of -Y sign"));
                }
                _ => asked.files.push(arg.into()),
            }
        }
        if asked.namespace.is_empty() || asked.public.as_os_str().is_empty() {
            return Err("-Y sign needs -n NAMESPACE and -f PUBLIC_KEY".to_owned());
        }
        Ok(asked)
    }
}

pub fn sign(kms: &KmsClient, args: &SshSignArgs) -> Result<(), String> {
    let asked = args.asked()?;
    let line = std::fs::read_to_string(&asked.public)
        .map_err(|e| format!("{}: {e}", asked.public.display()))?;
    let (kid, blob) = named(&line).map_err(|e| format!("{}: {e}", asked.public.display()))?;
    let doc = explain(kms.key(&kid, deadline()))?;
    let head = doc
        .head_version()
        .ok_or("the KMS shows no head of the key")?;
    if blob_of(kid.alg, head.public_key.as_slice()).as_ref() != Some(&blob) {
        return Err(format!(
            "{}: not the public key of the version that signs now, {}; write it again with `ron kms get {kid} --public ssh`, and list it as an allowed signer beside the old one",
            asked.public.display(),
            doc.head
        ));
    }
    let signer = Signer {
        kms,
        doc: &doc,
        asked: &asked,
        blob,
    };
    if asked.files.is_empty() {
        let text = signer.signature(std::io::stdin().lock())?;
        let written = std::io::stdout().write_all(text.as_bytes());
        return written.map_err(|e| format!("standard output: {e}"));
    }
    for path in &asked.files {
        let why = |e: std::io::Error| format!("{}: {e}", path.display());
        let text = signer.signature(File::open(path).map_err(why)?)?;
        let mut beside = path.as_os_str().to_owned();
        beside.push(".sig");
        let beside = std::path::absolute(Path::new(&beside)).map_err(why)?;
        write_atomic(&beside, text.as_bytes(), 0o644)?;
    }
    Ok(())
}

/// The key that the comment of an OpenSSH public key names, and the key itself.
fn named(line: &str) -> Result<(Kid, Vec<u8>), String> {
    let mut words = line.split_whitespace();
    let (Some(_), Some(blob)) = (words.next(), words.next()) else {
        return Err("not a public key of OpenSSH".to_owned());
    };
    let blob = b64::from_std(blob).map_err(|_| "not a public key of OpenSSH".to_owned())?;
    let kid = words.next().unwrap_or_default();
    let kid = kid.parse().map_err(|_| {
        "its comment must name a key of the KMS (tenant/purpose/algorithm/uuid), as `ron kms get KEY --public ssh` prints it"
            .to_owned()
    })?;
    Ok((kid, blob))
}

struct Signer<'a> {
    kms: &'a KmsClient,
    doc: &'a KeyDoc,
    asked: &'a Asked,
    blob: Vec<u8>,
}

impl Signer<'_> {
    /// The armoured signature of these bytes, of which there may be any number.
    fn signature(&self, mut from: impl Read) -> Result<String, String> {
        let (name, by) = match self.asked.hash.as_deref() {
            None | Some("sha512") => ("sha512", Sha2::Sha512),
            Some("sha256") => ("sha256", Sha2::Sha256),
            Some(other) => return Err(format!("hashalg={other}: only sha256 and sha512")),
        };
        let mut hasher = Hasher::new(by);
        let mut part = vec![0; 64 * 1024];
        loop {
            match from
                .read(&mut part)
                .map_err(|e| format!("cannot read: {e}"))?
            {
                0 => break,
                length => hasher.update(&part[..length]),
            }
        }
        let hash = hasher.finish();
        let namespace = self.asked.namespace.as_bytes();
        let rest = [string(namespace), string(b""), string(name.as_bytes())].concat();
        let signed = [&MAGIC[..], &rest, &string(hash.as_bytes())].concat();
        let signature = signature_of(
            self.kms,
            self.doc,
            &signed,
            (Scheme::RsaPkcs1Sha512, "ssh signature"),
        )?;
        let signature = encoded(self.doc.key.alg, signature.signature.as_slice())
            .ok_or_else(|| unsupported(self.doc.key.alg))?;
        let version = 1_u32.to_be_bytes();
        let whole = [
            &MAGIC[..],
            &version,
            &string(&self.blob),
            &rest,
            &string(&signature),
        ];
        Ok(armoured(&whole.concat()))
    }
}

const MAGIC: [u8; 6] = *b"SSHSIG";

fn unsupported(alg: Alg) -> String {
    format!("OpenSSH has no keys of {alg}; use ed25519, ecdsa-p256, ecdsa-p384 or RSA")
}

/// The signature of a message by the version that the document shows as head, under `of_rsa` if it is a key of RSA. The hash
/// alone leaves this program where the key's payload policy says so. `context` is a remark for the audit log.
pub fn signature_of(
    kms: &KmsClient,
    doc: &KeyDoc,
    message: &[u8],
    (of_rsa, context): (Scheme, &str),
) -> Result<Signature, String> {
    let alg = doc.key.alg;
    let scheme = alg.is_rsa().then_some(of_rsa);
    let request = match doc.payload {
        PayloadPolicy::Prehash => {
            let by = scheme.or_else(|| Scheme::usual(alg));
            let by = by.map_or(HashAlg::Sha256, Scheme::hash);
            let hash = ron_crypto::Hashed::of(sha2_of(by), message);
            SignRequest::prehash(doc.key.clone(), Prehash::new(by, hash.as_bytes()))
        }
        _ => SignRequest::message(doc.key.clone(), message),
    };
    let request = SignRequest {
        version: Some(doc.head),
        scheme,
        op_id: Some(op_id(None)),
        context: Some(context.to_owned()),
        ..request
    };
    let answer = explain(kms.sign(&request, deadline()))?;
    let first = answer.signatures.into_iter().next();
    first.ok_or_else(|| "no signature came back".to_owned())
}

/// A line with the public key, as OpenSSH has it; the comment names the key.
pub fn public_line(kid: &Kid, version: &KeyVersionDoc) -> Result<String, String> {
    let blob = blob_of(kid.alg, version.public_key.as_slice());
    let blob = blob.ok_or_else(|| unsupported(kid.alg))?;
    let name = name_of(kid.alg).ok_or_else(|| unsupported(kid.alg))?;
    Ok(format!("{name} {} {kid}", b64::std(&blob)))
}

/// The name of the key type.
fn name_of(alg: Alg) -> Option<&'static str> {
    match (alg, curve_of(alg)) {
        (Alg::Ed25519, _) => Some("ssh-ed25519"),
        (_, Some(Curve::P256)) => Some("ecdsa-sha2-nistp256"),
        (_, Some(Curve::P384)) => Some("ecdsa-sha2-nistp384"),
        _ if alg.is_rsa() => Some("ssh-rsa"),
        _ => None,
    }
}

/// The public key in OpenSSH's encoding.
fn blob_of(alg: Alg, raw: &[u8]) -> Option<Vec<u8>> {
    let name = name_of(alg)?;
    let parts = if alg.is_rsa() {
        let RsaPublic { n, e } = RsaPublic::read(raw)?;
        [number(e), number(n)].concat()
    } else if let Some(curve) = name.strip_prefix("ecdsa-sha2-") {
        [string(curve.as_bytes()), string(raw)].concat()
    } else {
        string(raw)
    };
    Some([string(name.as_bytes()), parts].concat())
}

/// A signature in OpenSSH's encoding.
fn encoded(alg: Alg, raw: &[u8]) -> Option<Vec<u8>> {
    let name = match name_of(alg)? {
        "ssh-rsa" => "rsa-sha2-512",
        other => other,
    };
    let bytes = if curve_of(alg).is_some() {
        // The numbers of a DER signature are encoded as SSH's are.
        let whole = to_der(raw);
        let (r, rest) = der::read_unsigned(der::only(der::SEQUENCE, &whole)?)?;
        let (s, _) = der::read_unsigned(rest)?;
        [number(r), number(s)].concat()
    } else {
        raw.to_vec()
    };
    Some([string(name.as_bytes()), string(&bytes)].concat())
}

/// A string of RFC 4251: its length, then its bytes.
fn string(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u32).to_be_bytes()[..], bytes].concat()
}

/// A positive `mpint` of RFC 4251: no leading zeros but the one that keeps it positive.
fn number(digits: &[u8]) -> Vec<u8> {
    let zeros = digits.iter().take_while(|digit| **digit == 0).count();
    let digits = &digits[zeros..];
    let sign: &[u8] = match digits.first() {
        Some(first) if first & 0x80 != 0 => &[0],
        _ => &[],
    };
    string(&[sign, digits].concat())
}

fn armoured(blob: &[u8]) -> String {
    let text = b64::std(blob);
    let lines: Vec<&str> = text
        .as_bytes()
        .chunks(70)
        .map(|line| std::str::from_utf8(line).expect("base64"))
        .collect();
    format!(
        "-----BEGIN SSH SIGNATURE-----\n{}\n-----END SSH SIGNATURE-----\n",
        lines.join("\n")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(args: &[&str]) -> Result<Asked, String> {
        let args = args.iter().map(OsString::from).collect();
        SshSignArgs { args }.asked()
    }

    #[test]
    fn arguments_of_git_and_of_people_are_read() {
        let want = |files: &[&str]| Asked {
            namespace: "git".into(),
            public: "id.pub".into(),
            hash: None,
            files: files.iter().map(PathBuf::from).collect(),
        };
        let git = ["-Y", "sign", "-n", "git", "-f", "id.pub", "/tmp/buffer"];
        assert_eq!(asked(&git), Ok(want(&["/tmp/buffer"])));
        let literal = [
            "-Y",
            "sign",
            "-n",
            "git",
            "-f",
            "id.pub",
            "-U",
            "/tmp/buffer",
        ];
        assert_eq!(asked(&literal), Ok(want(&["/tmp/buffer"])));
        let piped = ["-Y", "sign", "-q", "-f", "id.pub", "-n", "git"];
        assert_eq!(asked(&piped), Ok(want(&[])));
        for bad in [
            &["-Y", "sign", "-n", "git"][..],
            &["-Y", "sign", "-f", "id.pub", "-n"],
            &["-Y", "sign", "-f", "id.pub", "-n", "git", "-t", "rsa"],
            &[
                "-Y",
                "sign",
                "-f",
                "id.pub",
                "-n",
                "git",
                "-O",
                "verify-time=1",
            ],
        ] {
            assert!(asked(bad).is_err(), "{bad:?}");
        }
        let of = |args: &[&str]| SshSignArgs {
            args: args.iter().map(OsString::from).collect(),
        };
        assert!(of(&git).signs());
        assert!(!of(&["-Y", "verify", "-n", "sign"]).signs());
        assert!(!of(&["-l"]).signs());
    }

    #[test]
    fn numbers_are_as_short_as_they_can_be_and_positive() {
        assert_eq!(number(&[0, 0, 1]), [0, 0, 0, 1, 1]);
        assert_eq!(number(&[0x80]), [0, 0, 0, 2, 0, 0x80]);
        assert_eq!(number(&[0]), [0, 0, 0, 0]);
    }

    #[test]
    fn the_comment_names_the_key() {
        let kid = "ron/git/ed25519/0190f0a0-0000-7000-8000-000000000000";
        let (found, blob) = named(&format!("ssh-ed25519 AQI= {kid}\n")).expect("reads");
        assert_eq!((found.to_string().as_str(), &blob[..]), (kid, &[1, 2][..]));
        assert!(named("ssh-ed25519 AQI= me@host").is_err());
        assert!(named("ssh-ed25519").is_err());
    }
}
