//! The bytes to sign, and the check against the key's payload policy. Pure: the time is an argument.

use std::borrow::Cow;

use super::input::{Input, sha2_of};
use super::jwt::Head;
use super::{jwt, note};
use crate::{Cause, Refusal};
use ron_crypto::Hashed;
use ron_proto::kms::{
    Bytes, CONTEXT_BYTES_MAX, Digest, DigestAlg, HashAlg, JWT_TTL_S_MAX, JwtPolicy,
    MESSAGE_BYTES_MAX, POLICY_LIST_MAX, POLICY_TEXT_BYTES_MAX, PayloadPolicy, Prehash, Scheme,
};
use ron_proto::passport::IssuerPolicy;
use ron_proto::policy::digest_message;
use ron_proto::values::{Alg, is_control};

/// Messages of an `any` key must not begin like the framed bytes of a digest request: a signature must not be valid
/// for both.
const RESERVED_PREFIX: &[u8] = b"ron-kms/";

/// The bytes of one sign or verify request, parsed.
#[derive(Clone)]
pub enum Payload {
    /// A message, at most 64 KiB.
    Message(Vec<u8>),
    /// A digest and the function that made it.
    Digest(DigestAlg, [u8; 32]),
    /// A hash that is signed as it is.
    Prehash(HashAlg, Hashed),
}

impl Payload {
    /// The payload from exactly one of the three fields, within limits.
    pub fn parse(
        message: Option<Bytes>,
        digest: Option<&Digest>,
        prehash: Option<&Prehash>,
    ) -> Result<Self, Refusal> {
        let bad = |detail: &str| Refusal::new(Cause::BadRequest, detail);
        match (message, digest, prehash) {
            (Some(message), None, None) if message.0.len() > MESSAGE_BYTES_MAX => {
                Err(Refusal::new(
                    Cause::TooLarge,
                    format!(
                        "`message` has {} bytes; at most {MESSAGE_BYTES_MAX} are signed at once. \
                         Sign a digest or a prehash of it instead.",
                        message.0.len()
                    ),
                ))
            }
            (Some(message), None, None) => Ok(Self::Message(message.0)),
            (None, Some(digest), None) => {
                let raw = digest.raw();
                let raw =
                    raw.ok_or_else(|| bad("`digest.value` must be 64 lower-case hex digits"))?;
                Ok(Self::Digest(digest.alg, raw))
            }
            (None, None, Some(prehash)) => {
                let raw = prehash.raw();
                let hash = raw.and_then(|raw| Hashed::new(sha2_of(prehash.alg), &raw));
                let hash = hash.ok_or_else(|| {
                    bad("`prehash.value` must be lower-case hex, as many digits as `prehash.alg` has")
                })?;
                Ok(Self::Prehash(prehash.alg, hash))
            }
            _ => Err(bad("give exactly one of `message`, `digest` and `prehash`")),
        }
    }

    /// What the key signs: the message itself, the framed digest, or the hash.
    pub fn signed_bytes(&self) -> Cow<'_, [u8]> {
        match self {
            Self::Message(message) => Cow::Borrowed(message),
            Self::Digest(alg, raw) => Cow::Owned(digest_message(alg.as_str(), raw)),
            Self::Prehash(_, hash) => Cow::Borrowed(hash.as_bytes()),
        }
    }

    /// Those bytes as a key takes them.
    pub fn input<'a>(&self, signed_bytes: &'a [u8]) -> Input<'a> {
        match self {
            Self::Message(_) | Self::Digest(..) => Input::Message(signed_bytes),
            Self::Prehash(_, hash) => Input::Hash(*hash),
        }
    }

    /// The scheme of a signature over this by a key of `alg`: the one that the caller names, or the one of the prehash's
    /// function; `None` for the usual one.
    pub fn scheme(&self, alg: Alg, named: Option<Scheme>) -> Result<Option<Scheme>, Refusal> {
        let bad = |detail: String| Err(Refusal::new(Cause::BadRequest, detail));
        if let Some(scheme) = named.filter(|scheme| !scheme.fits(alg)) {
            let name = scheme.as_str();
            return bad(format!("keys of {alg} do not sign with `scheme` {name}"));
        }
        match (self, named) {
            (Self::Prehash(hash, _), Some(scheme)) if scheme.hash() != *hash => bad(format!(
                "`scheme` {} is not over a hash of {}",
                scheme.as_str(),
                hash.as_str()
            )),
            (Self::Prehash(hash, _), None) => Ok(Scheme::over(alg, *hash)),
            _ => Ok(named),
        }
    }
}

/// What the signer must do before it signs an allowed payload.
#[derive(Debug, PartialEq, Eq)]
pub enum Allowed {
    Plain,
    /// A checkpoint: sign only if it does not shrink the log, and remember it first.
    Checkpoint(note::Checkpoint),
}

/// Checks whether `policy` lets the head version sign `payload` at `now_s` (Unix seconds). `rules` is the issuer policy in
/// force.
pub fn check(
    policy: &PayloadPolicy,
    rules: Option<&IssuerPolicy>,
    head: Head<'_>,
    payload: &Payload,
    now_s: u64,
) -> Result<Allowed, Refusal> {
    let refuse = |why: String| Refusal::new(Cause::PayloadRefused, why);
    match (policy, payload) {
        (PayloadPolicy::Any, Payload::Message(message)) if message.starts_with(RESERVED_PREFIX) => {
            Err(refuse(
                "a message may not begin with `ron-kms/`: that prefix frames digests".into(),
            ))
        }
        (PayloadPolicy::Any, Payload::Message(_) | Payload::Digest(..))
        | (PayloadPolicy::Digest, Payload::Digest(..))
        // The signature over a message is the one over its hash: nothing that a caller could not have signed anyway.
        | (PayloadPolicy::Prehash, Payload::Message(_) | Payload::Prehash(..)) => {
            Ok(Allowed::Plain)
        }
        // The hash could be that of a framed digest.
        (PayloadPolicy::Any, Payload::Prehash(..)) => Err(refuse(
            "this key signs no hashes of callers; make one with the payload policy `prehash`".into(),
        )),
        (PayloadPolicy::Prehash, Payload::Digest(..)) => Err(refuse(
            "this key signs standard forms only; send `prehash` or `message` instead of `digest`"
                .into(),
        )),
        (PayloadPolicy::Digest, Payload::Message(_) | Payload::Prehash(..)) => Err(refuse(
            "this key signs digests only; send `digest`".into(),
        )),
        (PayloadPolicy::Note(note), Payload::Message(text)) => note::check(note, text)
            .map_err(refuse)
            .map(|checkpoint| match checkpoint {
                Some(checkpoint) => Allowed::Checkpoint(checkpoint),
                None => Allowed::Plain,
            }),
        (PayloadPolicy::Jwt(jwt), Payload::Message(input)) => {
            jwt::check(jwt, rules, head, input, now_s)
                .map_err(refuse)
                .map(|()| Allowed::Plain)
        }
        (PayloadPolicy::Note(_) | PayloadPolicy::Jwt(_), Payload::Digest(..) | Payload::Prehash(..)) => {
            Err(refuse(format!(
                "a `{}` key parses what it signs; send `message`",
                policy.kind()
            )))
        }
    }
}

/// Checks the parameters of a policy before a key of `alg` is made with it.
pub fn check_policy(policy: &PayloadPolicy, alg: Alg) -> Result<(), Refusal> {
    let refuse = |why: String| Err(Refusal::new(Cause::BadRequest, why));
    match policy {
        PayloadPolicy::Any | PayloadPolicy::Digest => Ok(()),
        PayloadPolicy::Prehash if alg.is_ecdsa() || alg.is_rsa() => Ok(()),
        PayloadPolicy::Prehash => refuse(format!(
            "payload `prehash` is for ECDSA and RSA; {alg} signs the message itself"
        )),
        PayloadPolicy::Note(note) => {
            if line_ok(&note.origin) {
                Ok(())
            } else {
                refuse(bad_text("payload.note.origin"))
            }
        }
        PayloadPolicy::Jwt(JwtPolicy {
            typ,
            iss,
            aud,
            issuer_policy,
            max_ttl_s,
        }) => {
            let list_ok = |list: &[String]| {
                list.len() <= POLICY_LIST_MAX && list.iter().all(|text| line_ok(text))
            };
            if typ.is_empty() || !list_ok(typ) {
                return refuse(format!(
                    "payload.jwt.typ: 1 to {POLICY_LIST_MAX} entries; {TEXT_RULE}"
                ));
            }
            let access = typ.iter().any(|t| t == jwt::ACCESS_TOKEN);
            if *issuer_policy {
                let known = |t: &String| [jwt::ACCESS_TOKEN, jwt::STATUS_LIST].contains(&&**t);
                if !access || !typ.iter().all(known) || !aud.is_empty() {
                    return refuse(
                        "payload.jwt.issuer_policy: typ must be at+jwt, with statuslist+jwt beside it or not, and aud \
                         absent, because the issuer policy names the audiences"
                            .into(),
                    );
                }
            } else if !list_ok(aud) || (aud.is_empty() && access) {
                return refuse(format!(
                    "payload.jwt.aud: at most {POLICY_LIST_MAX} entries, at least one for at+jwt; \
                     {TEXT_RULE}"
                ));
            }
            if !line_ok(iss) {
                return refuse(bad_text("payload.jwt.iss"));
            }
            if *max_ttl_s == 0 || *max_ttl_s > JWT_TTL_S_MAX {
                return refuse(format!(
                    "payload.jwt.max_ttl_s must be 1..={JWT_TTL_S_MAX} seconds"
                ));
            }
            Ok(())
        }
    }
}

/// Checks a caller's remark before it goes into a leaf.
pub fn check_context(context: Option<&str>) -> Result<(), Refusal> {
    let ok = context.is_none_or(|text| {
        (1..=CONTEXT_BYTES_MAX).contains(&text.len())
            && text.bytes().all(|b| (b' '..=b'~').contains(&b))
    });
    if ok {
        return Ok(());
    }
    Err(Refusal::new(
        Cause::BadRequest,
        format!("`context` must be 1..={CONTEXT_BYTES_MAX} bytes of printable ASCII"),
    ))
}

const TEXT_RULE: &str = "each 1..=256 bytes without control characters";

fn bad_text(what: &str) -> String {
    format!("{what}: 1..={POLICY_TEXT_BYTES_MAX} bytes without control characters")
}

fn line_ok(text: &str) -> bool {
    (1..=POLICY_TEXT_BYTES_MAX).contains(&text.len()) && !text.chars().any(is_control)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ron_proto::kms::NotePolicy;

    const HEAD: Head<'static> = Head {
        alg: Alg::Ed25519,
        scheme: None,
        thumbprint: "t",
    };

    #[test]
    fn which_payload_fits_which_policy() {
        let message = |text: &str| Payload::Message(text.as_bytes().to_vec());
        let digest = Payload::Digest(DigestAlg::Blake3, [7; 32]);
        let note = PayloadPolicy::Note(NotePolicy { origin: "o".into() });
        let jwt = PayloadPolicy::Jwt(JwtPolicy {
            typ: vec!["at+jwt".into()],
            iss: "i".into(),
            aud: vec!["a".into()],
            issuer_policy: false,
            max_ttl_s: 60,
        });
        let check = |policy: &PayloadPolicy, payload: &Payload, ok: bool| {
            let got = check(policy, None, HEAD, payload, 1_000);
            assert_eq!(got.is_ok(), ok, "{}", policy.kind());
        };
        check(&PayloadPolicy::Any, &message("hello"), true);
        check(&PayloadPolicy::Any, &message(""), true);
        check(&PayloadPolicy::Any, &digest, true);
        // The bytes of a digest request, sent as a message: the signature would mean two things.
        let framed = Payload::Message(digest.signed_bytes().into_owned());
        check(&PayloadPolicy::Any, &framed, false);
        check(&PayloadPolicy::Any, &message("ron-kms/v2/other"), false);
        check(&PayloadPolicy::Digest, &digest, true);
        check(&PayloadPolicy::Digest, &message("hello"), false);
        check(&PayloadPolicy::Digest, &framed, false);
        let prehash = Payload::Prehash(
            HashAlg::Sha384,
            Hashed::of(sha2_of(HashAlg::Sha384), b"data"),
        );
        check(&PayloadPolicy::Prehash, &prehash, true);
        check(&PayloadPolicy::Prehash, &message("hello"), true);
        // Its hash could be sent as well.
        check(&PayloadPolicy::Prehash, &framed, true);
        check(&PayloadPolicy::Prehash, &digest, false);
        for other in [&PayloadPolicy::Any, &PayloadPolicy::Digest, &note, &jwt] {
            check(other, &prehash, false);
        }
        check(&note, &message("o\ntext\n"), true);
        check(&note, &digest, false);
        check(&jwt, &digest, false);
        check(&jwt, &message("hello"), false);
    }

    #[test]
    fn payload_is_one_of_three_and_bounded() {
        let digest = Digest::new(DigestAlg::Sha256, &[1; 32]);
        let prehash = Prehash::new(HashAlg::Sha512, &[1; 64]);
        let bytes = |n: usize| Some(Bytes(vec![0; n]));
        let check = |message, digest, prehash, want: Option<Cause>| {
            let parsed = Payload::parse(message, digest, prehash);
            assert_eq!(parsed.err().map(|e| e.cause), want);
        };
        let bad = Some(Cause::BadRequest);
        check(bytes(0), None, None, None);
        check(bytes(MESSAGE_BYTES_MAX), None, None, None);
        let large = bytes(MESSAGE_BYTES_MAX + 1);
        check(large, None, None, Some(Cause::TooLarge));
        check(None, Some(&digest), None, None);
        check(None, None, Some(&prehash), None);
        check(None, None, None, bad);
        check(bytes(1), Some(&digest), None, bad);
        check(bytes(1), None, Some(&prehash), bad);
        check(None, Some(&digest), Some(&prehash), bad);
        let odd = Digest {
            value: "AA".repeat(32),
            ..digest.clone()
        };
        check(None, Some(&odd), None, bad);
        let short = Prehash {
            alg: HashAlg::Sha512,
            ..Prehash::new(HashAlg::Sha256, &[1; 32])
        };
        check(None, None, Some(&short), bad);
    }

    #[test]
    fn the_scheme_fits_key_and_hash() {
        let message = Payload::Message(b"m".to_vec());
        let hash = HashAlg::Sha384;
        let prehash = Payload::Prehash(hash, Hashed::of(sha2_of(hash), b"m"));
        let check = |payload: &Payload, alg, named: Option<Scheme>, want| {
            let got = payload.scheme(alg, named);
            assert_eq!(got.map_err(|e| e.cause), want, "{alg} {named:?}");
        };
        let bad = || Err(Cause::BadRequest);
        let pkcs1 = Scheme::RsaPkcs1Sha384;
        check(&message, Alg::Ed25519, None, Ok(None));
        check(&message, Alg::Ed25519, Some(Scheme::EcdsaSha256), bad());
        check(&message, Alg::EcdsaP256, Some(pkcs1), bad());
        check(&message, Alg::Rsa2048, Some(pkcs1), Ok(Some(pkcs1)));
        check(&prehash, Alg::Rsa2048, Some(pkcs1), Ok(Some(pkcs1)));
        check(&prehash, Alg::Rsa2048, None, Ok(Some(Scheme::RsaPssSha384)));
        check(
            &prehash,
            Alg::EcdsaP256,
            None,
            Ok(Some(Scheme::EcdsaSha384)),
        );
        check(&prehash, Alg::EcdsaP256, Some(Scheme::EcdsaSha256), bad());
    }

    #[test]
    fn senseless_policies_are_refused() {
        let check = |ok: bool, change: &dyn Fn(&mut JwtPolicy)| {
            let mut policy = JwtPolicy {
                typ: vec!["at+jwt".into()],
                iss: "i".into(),
                aud: vec!["a".into()],
                issuer_policy: false,
                max_ttl_s: 60,
            };
            change(&mut policy);
            let got = check_policy(&PayloadPolicy::Jwt(policy.clone()), Alg::Ed25519);
            assert_eq!(got.is_ok(), ok, "{policy:?}");
        };
        check(true, &|_| ());
        check(false, &|p| p.typ.clear());
        check(false, &|p| p.aud.clear());
        check(true, &|p| {
            (p.typ, p.aud) = (vec!["statuslist+jwt".into()], vec![]);
        });
        let follows = |p: &mut JwtPolicy| {
            p.aud.clear();
            p.issuer_policy = true;
        };
        check(true, &follows);
        check(true, &|p| {
            follows(p);
            p.typ.push("statuslist+jwt".into());
        });
        check(false, &|p| p.issuer_policy = true);
        check(false, &|p| {
            follows(p);
            p.typ.push("JWT".into());
        });
        check(false, &|p| {
            follows(p);
            p.typ = vec!["statuslist+jwt".into()];
        });
        check(false, &|p| p.iss.clear());
        check(false, &|p| p.iss = "a\nb".into());
        check(false, &|p| p.max_ttl_s = 0);
        check(true, &|p| p.max_ttl_s = JWT_TTL_S_MAX);
        check(false, &|p| p.max_ttl_s = JWT_TTL_S_MAX + 1);
        check(false, &|p| p.aud = vec!["a".into(); POLICY_LIST_MAX + 1]);
        let origin = |o: &str| PayloadPolicy::Note(NotePolicy { origin: o.into() });
        let is_good = |policy: &PayloadPolicy| check_policy(policy, Alg::Ed25519).is_ok();
        assert!(is_good(&origin("example.org/log")));
        assert!(!is_good(&origin("")));
        assert!(!is_good(&origin("two\nlines")));
        for alg in Alg::ALL {
            let made = check_policy(&PayloadPolicy::Prehash, alg).is_ok();
            assert_eq!(made, alg.is_ecdsa() || alg.is_rsa(), "{alg}");
        }
    }
}
