//! The issuer's public keys, parsed once per refresh, and the rule by which classical and ML-DSA
//! signatures combine. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use ron_crypto::ecdsa::verify_ecdsa;
use ron_crypto::mldsa::{MlDsaSet, verify_mldsa};
use ron_crypto::{Curve, Hashed, RsaPadding, RsaPublic, Sha2};
use ron_proto::passport::{PQ_TOKEN_BYTES_MAX, TOKEN_BYTES_MAX};
use ron_proto::{b64, strict};
use ron_tlog::note::VerifierKey;
use serde::Deserialize;

use crate::names::IssuerNames;

/// Maximum keys in one set. A rotating issuer has two or three; one that rotated every quarter of a
/// minute, for as long as the maximum token lifetime, would have this many.
const KEYS_MAX: usize = 256;
/// Maximum length of a key id, in bytes.
const KID_BYTES_MAX: usize = 128;

/// Signature algorithm of a key. The list is closed, so `none` and the HMAC family cannot be
/// requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JwsAlg {
    EdDsa,
    Es256,
    Rs256,
    /// Signatures of clients and their issuers only.
    Es384,
    /// As [`Self::Es384`].
    Ps256,
    /// RFC 9964.
    MlDsa(MlDsaSet),
}

impl JwsAlg {
    /// Parses the header's `alg` of what a client has signed: a proof, an assertion or a token of another issuer.
    pub fn of_client(text: &str) -> Option<Self> {
        match text {
            "EdDSA" | "Ed25519" => Some(Self::EdDsa), // the second name is RFC 9864
            "ES256" => Some(Self::Es256),
            "ES384" => Some(Self::Es384),
            "RS256" => Some(Self::Rs256),
            "PS256" => Some(Self::Ps256),
            _ => None,
        }
    }

    /// Parses the header's `alg` of a token of ours, exactly.
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "EdDSA" => Some(Self::EdDsa),
            "ES256" => Some(Self::Es256),
            "RS256" => Some(Self::Rs256),
            "ML-DSA-44" => Some(Self::MlDsa(MlDsaSet::L44)),
            "ML-DSA-65" => Some(Self::MlDsa(MlDsaSet::L65)),
            "ML-DSA-87" => Some(Self::MlDsa(MlDsaSet::L87)),
            _ => None,
        }
    }

    /// Whether it resists a quantum computer.
    pub const fn post_quantum(self) -> bool {
        matches!(self, Self::MlDsa(_))
    }
}

/// Which signatures of a passport must be valid. A hybrid token has a classical and an ML-DSA
/// signature.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PqRule {
    /// Classical tokens only; ML-DSA keys are not read.
    #[default]
    Off,
    /// One valid signature is sufficient.
    Or,
    /// All signatures of a token must be valid, whatever their kinds.
    And,
    /// All must be valid and one must be ML-DSA, unless the issuer marked the token
    /// `pq.fallback=true`.
    Require,
    /// The ML-DSA signature alone decides.
    PqOnly,
}

impl PqRule {
    /// The words that [`Self::parse`] knows.
    pub const WORDS: [&str; 5] = ["off", "or", "and", "require", "pq_only"];

    /// Parses the value of the configuration key.
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "off" => Some(Self::Off),
            "or" => Some(Self::Or),
            "and" => Some(Self::And),
            "require" => Some(Self::Require),
            "pq_only" => Some(Self::PqOnly),
            _ => None,
        }
    }
}

/// What the keys of a set are for, by the member `use` of their JWK.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyUse {
    /// `sig`, or not said.
    Signatures,
    /// `jwt-svid`: keys of a SPIFFE trust bundle.
    JwtSvid,
}

/// A public key for verification.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VerifyKey {
    /// Ed25519, 32 bytes.
    Ed25519([u8; 32]),
    /// P-256, uncompressed SEC1: 0x04, x, y.
    P256([u8; 65]),
    /// P-384, uncompressed SEC1; of a client.
    P384([u8; 97]),
    /// Modulus and exponent, big-endian without leading zeros. `only` is the algorithm that its JWK names; always RS256 for a key
    /// that signs our tokens.
    Rsa {
        n: Arc<[u8]>,
        e: Arc<[u8]>,
        only: Option<JwsAlg>,
    },
    /// ML-DSA, encoded as in FIPS 204.
    MlDsa(MlDsaSet, Arc<[u8]>),
}

impl VerifyKey {
    /// Whether the key signs with this algorithm.
    pub fn takes(&self, alg: JwsAlg) -> bool {
        match (self, alg) {
            (Self::Ed25519(_), JwsAlg::EdDsa)
            | (Self::P256(_), JwsAlg::Es256)
            | (Self::P384(_), JwsAlg::Es384) => true,
            (Self::Rsa { only, .. }, JwsAlg::Rs256 | JwsAlg::Ps256) => {
                only.is_none_or(|only| only == alg)
            }
            (Self::MlDsa(set, _), JwsAlg::MlDsa(asked)) => *set == asked,
            _ => false,
        }
    }

    /// Parses a public JWK of another issuer; an error when it is for something else.
    pub(crate) fn of_issuer(jwk: &serde_json::Value, usage: KeyUse) -> Result<Self, JwksError> {
        let jwk = Jwk::client(jwk)?;
        let fits = match usage {
            KeyUse::Signatures => jwk.for_signatures(),
            KeyUse::JwtSvid => jwk.usage.as_deref() == Some("jwt-svid"),
        };
        if !fits {
            return Err(JwksError::Key("it is for another use"));
        }
        jwk.of_client()?.ok_or(NOT_OF_CLIENTS)
    }

    /// Parses a public JWK of a client, as in the header of a proof: a signature key of a kind in
    /// [`crate::PROOF_ALGS`], nothing private.
    pub fn from_jwk(jwk: &serde_json::Value) -> Result<Self, JwksError> {
        Self::of_issuer(jwk, KeyUse::Signatures)
    }

    /// RFC 7638 SHA-256 thumbprint.
    pub fn thumbprint(&self) -> String {
        match self {
            Self::Ed25519(x) => ron_crypto::jwk::thumbprint_okp(x),
            Self::P256(sec1) => ron_crypto::jwk::thumbprint_ec(Curve::P256, sec1),
            Self::P384(sec1) => ron_crypto::jwk::thumbprint_ec(Curve::P384, sec1),
            Self::Rsa { n, e, .. } => ron_crypto::jwk::thumbprint_rsa(RsaPublic { n, e }),
            Self::MlDsa(set, public) => ron_crypto::jwk::thumbprint_akp(akp_name(*set), public),
        }
    }

    /// Verifies a JWS signature over `message` strictly.
    pub fn verifies(&self, alg: JwsAlg, message: &[u8], signature: &[u8]) -> bool {
        let fixed = || <&[u8; 64]>::try_from(signature).ok();
        if !self.takes(alg) {
            return false;
        }
        match self {
            Self::Ed25519(key) => fixed().is_some_and(|signature| {
                ron_crypto::sign::verify_ed25519_strict(key, message, signature)
            }),
            Self::P256(key) => verify_ecdsa(Curve::P256, key, message, signature),
            Self::P384(key) => verify_ecdsa(Curve::P384, key, message, signature),
            Self::Rsa { n, e, .. } => {
                let padding = match alg {
                    JwsAlg::Ps256 => RsaPadding::Pss,
                    _ => RsaPadding::Pkcs1,
                };
                let hash = Hashed::of(Sha2::Sha256, message);
                RsaPublic { n, e }.verify_hash(padding, &hash, signature)
            }
            Self::MlDsa(set, public) => verify_mldsa(*set, public, message, signature),
        }
    }
}

const fn akp_name(set: MlDsaSet) -> &'static str {
    match set {
        MlDsaSet::L44 => "ML-DSA-44",
        MlDsaSet::L65 => "ML-DSA-65",
        MlDsaSet::L87 => "ML-DSA-87",
    }
}

/// The keys of one refresh.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JwksSnapshot {
    keys: BTreeMap<String, VerifyKey>,
    rule: PqRule,
    /// The pinned keys that signed the policy note which vouches for these keys; empty when no note
    /// was required.
    signers: Vec<VerifierKey>,
    /// The names of the issuer in that note.
    names: Option<IssuerNames>,
    /// The version of their note; 0 without one.
    note: u64,
}

/// Why a key set was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JwksError {
    #[error("the key set is not strict JSON of the form {{\"keys\": [...]}}: {0}")]
    Json(String),
    #[error(
        "the key set holds {keys} keys; at most {max} are read. A key leaves it when the last token it signed has ended: rotate less often"
    )]
    TooMany { keys: usize, max: usize },
    #[error("the key set names one kid twice")]
    DuplicateKid,
    #[error("the key set holds private or symmetric key material; it must not be published")]
    Private,
    #[error("a key of the set is malformed: {0}")]
    Key(&'static str),
    #[error("the key set holds no key that this service can use")]
    Empty,
}

#[derive(Deserialize)]
struct Document {
    keys: Vec<Jwk>,
}

#[derive(Deserialize)]
struct Jwk {
    kty: String,
    #[serde(default)]
    kid: Option<String>,
    crv: Option<String>,
    alg: Option<String>,
    #[serde(rename = "use")]
    usage: Option<String>,
    x: Option<String>,
    y: Option<String>,
    n: Option<String>,
    e: Option<String>,
    #[serde(rename = "pub")]
    public: Option<String>,
    // Parsed only so that private members can be refused.
    d: Option<serde::de::IgnoredAny>,
    k: Option<serde::de::IgnoredAny>,
    #[serde(rename = "priv")]
    seed: Option<serde::de::IgnoredAny>,
}

impl JwksSnapshot {
    /// Parses a JWK set (RFC 7517). Keys of other kinds are skipped, as the RFC requires. A set
    /// that leaks private material, repeats a kid or contains a malformed supported key is refused
    /// as a whole, so that the last good one stays in use.
    pub fn parse(bytes: &[u8]) -> Result<Self, JwksError> {
        let keys = read(bytes, Jwk::classical)?;
        if keys.is_empty() {
            return Err(JwksError::Empty);
        }
        Ok(Self {
            keys,
            rule: PqRule::Off,
            signers: Vec::new(),
            names: None,
            note: 0,
        })
    }

    /// Adds the post-quantum set, which may be empty, and the rule for tokens signed with its keys.
    pub fn with_pq(mut self, bytes: &[u8], rule: PqRule) -> Result<Self, JwksError> {
        for (kid, key) in read(bytes, Jwk::akp)? {
            if self.keys.insert(kid, key).is_some() {
                return Err(JwksError::DuplicateKid);
            }
        }
        self.rule = rule;
        Ok(self)
    }

    /// Removes the keys that `keep` rejects.
    pub(crate) fn retain(&mut self, mut keep: impl FnMut(&str, &VerifyKey) -> bool) {
        self.keys.retain(|kid, key| keep(kid, key));
    }

    pub(crate) fn signed_off_by(
        &mut self,
        signers: &[VerifierKey],
        note: u64,
        names: &IssuerNames,
    ) {
        self.signers = signers.to_vec();
        self.note = note;
        self.names = Some(names.clone());
    }

    /// The `iss` that tokens may have at this time: the names in the note, or without one the configured name.
    pub(crate) fn issuers<'a>(
        &'a self,
        configured: &'a str,
        now_s: u64,
    ) -> impl Iterator<Item = &'a str> {
        let noted = self.names.as_ref().map(|names| names.at(now_s));
        let configured = noted.is_none().then_some(configured);
        noted.into_iter().flatten().chain(configured)
    }

    /// The version of the note that vouches for these keys; 0 without one.
    pub(crate) const fn note(&self) -> u64 {
        self.note
    }

    /// The pinned keys whose note vouches for these keys.
    pub(crate) fn signers(&self) -> &[VerifierKey] {
        &self.signers
    }

    /// Which signatures must be valid.
    pub const fn rule(&self) -> PqRule {
        self.rule
    }

    /// Maximum length of a token that is processed, in bytes.
    pub const fn token_bytes_max(&self) -> usize {
        match self.rule {
            PqRule::Off => TOKEN_BYTES_MAX,
            _ => PQ_TOKEN_BYTES_MAX,
        }
    }

    pub fn find(&self, kid: &str) -> Option<&VerifyKey> {
        self.keys.get(kid)
    }
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }
    pub fn len(&self) -> usize {
        self.keys.len()
    }
    /// Whether the set still has exactly this key under this kid.
    pub fn still_holds(&self, kid: &str, key: &VerifyKey) -> bool {
        self.keys.get(kid) == Some(key)
    }
}

fn read(
    bytes: &[u8],
    kind: fn(&Jwk) -> Result<Option<VerifyKey>, JwksError>,
) -> Result<BTreeMap<String, VerifyKey>, JwksError> {
    let document: Document =
        strict::from_slice(bytes).map_err(|error| JwksError::Json(error.to_string()))?;
    if document.keys.len() > KEYS_MAX {
        return Err(JwksError::TooMany {
            keys: document.keys.len(),
            max: KEYS_MAX,
        });
    }
    let mut keys = BTreeMap::new();
    for jwk in document.keys {
        if jwk.private() {
            return Err(JwksError::Private);
        }
        let Some(key) = kind(&jwk)? else { continue };
        let Some(kid) = jwk.kid.filter(|kid| !kid.is_empty()) else {
            continue;
        };
        if kid.len() > KID_BYTES_MAX {
            return Err(JwksError::Key("its kid is longer than 128 bytes"));
        }
        if keys.insert(kid, key).is_some() {
            return Err(JwksError::DuplicateKid);
        }
    }
    Ok(keys)
}

const NOT_OF_CLIENTS: JwksError = JwksError::Key(
    "it is not a signature key of Ed25519, P-256, P-384 or RSA with 2048 to 4096 bits",
);

impl Jwk {
    /// A public key in the JWK of a client or another issuer.
    fn client(jwk: &serde_json::Value) -> Result<Self, JwksError> {
        let jwk: Self = serde_json::from_value(jwk.clone())
            .map_err(|_| JwksError::Key("it is not a JWK object"))?;
        if jwk.private() {
            return Err(JwksError::Private);
        }
        Ok(jwk)
    }

    fn private(&self) -> bool {
        self.d.is_some() || self.k.is_some() || self.seed.is_some()
    }

    fn for_signatures(&self) -> bool {
        self.usage.as_deref().is_none_or(|usage| usage == "sig")
    }

    /// `None` when the key is for something else.
    fn classical(&self) -> Result<Option<VerifyKey>, JwksError> {
        if !self.for_signatures() {
            return Ok(None);
        }
        self.signs_tokens()
    }

    /// A key of a kind with which tokens of ours are signed, whatever its `use`.
    fn signs_tokens(&self) -> Result<Option<VerifyKey>, JwksError> {
        let coordinate = |text: &Option<String>| -> Result<[u8; 32], JwksError> {
            let text = text
                .as_deref()
                .ok_or(JwksError::Key("a coordinate is missing"))?;
            b64::from_url_array(text)
                .map_err(|_| JwksError::Key("a coordinate is not 32 base64url bytes"))
        };
        match (self.kty.as_str(), self.crv.as_deref(), self.alg.as_deref()) {
            ("OKP", Some("Ed25519"), None | Some("EdDSA")) => {
                Ok(Some(VerifyKey::Ed25519(coordinate(&self.x)?)))
            }
            ("EC", Some("P-256"), None | Some("ES256")) => {
                let mut sec1 = [4u8; 65];
                sec1[1..33].copy_from_slice(&coordinate(&self.x)?);
                sec1[33..].copy_from_slice(&coordinate(&self.y)?);
                Ok(Some(VerifyKey::P256(sec1)))
            }
            ("RSA", _, Some("RS256")) => self.rsa().map(Some),
            _ => Ok(None),
        }
    }

    /// A key of a client; `None` when it is of another kind.
    fn of_client(&self) -> Result<Option<VerifyKey>, JwksError> {
        let alg = self.alg.as_deref();
        match (self.kty.as_str(), self.crv.as_deref(), alg) {
            ("OKP", Some("Ed25519"), Some("Ed25519")) => {
                let x = self.x.as_deref().unwrap_or_default();
                let x = b64::from_url_array(x).map_err(|_| JwksError::Key("x is not 32 bytes"))?;
                Ok(Some(VerifyKey::Ed25519(x)))
            }
            ("EC", Some("P-384"), None | Some("ES384")) => {
                let point = [vec![4], bytes(self.x.as_ref())?, bytes(self.y.as_ref())?].concat();
                let point = point.try_into();
                let point = point.map_err(|_| JwksError::Key("a coordinate is not 48 bytes"))?;
                Ok(Some(VerifyKey::P384(point)))
            }
            ("RSA", _, None | Some("RS256" | "PS256")) => self.rsa().map(Some),
            _ => self.signs_tokens(),
        }
    }

    fn rsa(&self) -> Result<VerifyKey, JwksError> {
        let (n, e) = (bytes(self.n.as_ref())?, bytes(self.e.as_ref())?);
        if !(RsaPublic { n: &n, e: &e }).is_usable() {
            let why = "an RSA key has 2048 to 4096 bits and a short exponent";
            return Err(JwksError::Key(why));
        }
        Ok(VerifyKey::Rsa {
            n: n.into(),
            e: e.into(),
            only: self.alg.as_deref().and_then(JwsAlg::of_client),
        })
    }

    /// An algorithm key pair of an ML-DSA (RFC 9964); its `alg` is part of the key.
    fn akp(&self) -> Result<Option<VerifyKey>, JwksError> {
        let alg = self.alg.as_deref().and_then(JwsAlg::parse);
        let (true, "AKP", Some(JwsAlg::MlDsa(set))) =
            (self.for_signatures(), self.kty.as_str(), alg)
        else {
            return Ok(None);
        };
        let text = self.public.as_deref();
        let public = b64::from_url(text.ok_or(JwksError::Key("pub is missing"))?)
            .map_err(|_| JwksError::Key("pub is not base64url"))?;
        if public.len() != set.public_len() {
            return Err(JwksError::Key("pub is not as long as such a key"));
        }
        Ok(Some(VerifyKey::MlDsa(set, public.into())))
    }
}

fn bytes(member: Option<&String>) -> Result<Vec<u8>, JwksError> {
    let text = member.ok_or(JwksError::Key("a member is missing"))?;
    b64::from_url(text).map_err(|_| JwksError::Key("a member is not base64url"))
}

#[cfg(test)]
#[path = "jwks_tests.rs"]
mod tests;
