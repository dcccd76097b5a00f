//! Tokens as their holders see them, and what is void of them: a model of a verifier that is written from
//! docs/formats/passport.md.

use std::time::Instant;

use ron_crypto::sign::Ed25519Key;
use ron_proto::b64;
use ron_proto::passport::{RevocationEvent, Revoked};
use serde_json::Value;

/// What a request for a token was answered with.
#[derive(Clone, Debug)]
pub struct Token {
    /// In the order of the answers.
    pub number: usize,
    pub text: String,
    /// Whether the issuer gave it; otherwise it is made up.
    pub genuine: bool,
    pub jti: String,
    pub sub: String,
    pub kid: String,
    /// Ids and keys of the tokens that it was exchanged from.
    pub from: Vec<(String, Vec<String>)>,
    pub iat: u64,
    pub epoch: u64,
    /// Whether it is bound to the key of its holder.
    pub bound: bool,
    /// When it was asked for, and answered.
    pub asked: Instant,
    pub answered: Instant,
    /// Whether its time of issue is that of the world: the date of the issuer's machine may have been wrong.
    pub timely: bool,
    /// The leaf that the answer names.
    pub leaf: Option<u64>,
}

fn part(text: &str, at: usize) -> Value {
    let part = text.split('.').nth(at).expect("a JWS has three parts");
    let bytes = b64::from_url(part).expect("base64url");
    serde_json::from_slice(&bytes).expect("JSON")
}

fn text(value: &Value) -> String {
    value.as_str().expect("a text").to_owned()
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

/// Id and keys of a member of `ron_from`.
fn ancestor(member: &Value) -> (String, Vec<String>) {
    (
        text(&member["jti"]),
        list(&member["kids"]).map(text).collect(),
    )
}

fn number(value: &Value) -> u64 {
    value.as_u64().expect("a number")
}

impl Token {
    /// A token that was asked for at `asked` and is answered now, at this second.
    pub fn read(token: &str, asked: Instant, leaf: Option<u64>) -> Self {
        let (header, claims) = (part(token, 0), part(token, 1));
        let (iat, now_s) = (number(&claims["iat"]), ron_sim::time::date().as_secs());
        Self {
            number: 0,
            text: token.to_owned(),
            genuine: true,
            jti: text(&claims["jti"]),
            sub: text(&claims["sub"]),
            kid: text(&header["kid"]),
            from: list(&claims["ron_from"]).map(ancestor).collect(),
            iat,
            epoch: number(&claims["ron_epoch"]),
            bound: claims["cnf"]["jkt"].is_string(),
            asked,
            answered: ron_sim::time::now(),
            timely: now_s.abs_diff(iat) <= 5,
            leaf,
        }
    }

    /// The same for another holder, with the signature of this one or of a key that names itself as the issuer's.
    pub fn forged(&self, signed: bool) -> Self {
        let parts: Vec<&str> = self.text.split('.').collect();
        let mut claims = part(&self.text, 1);
        claims["sub"] = "user:mallory".into();
        let input = format!("{}.{}", parts[0], b64::url(claims.to_string().as_bytes()));
        let own = Ed25519Key::from_seed(&[99; 32]).sign(input.as_bytes());
        let signature = if signed {
            b64::url(&own)
        } else {
            parts[2].to_owned()
        };
        Self {
            text: format!("{input}.{signature}"),
            genuine: false,
            leaf: None,
            ..self.clone()
        }
    }

    /// What was signed, and the signature.
    pub fn signed(&self) -> (&str, Vec<u8>) {
        let (input, signature) = self.text.rsplit_once('.').expect("a JWS has three parts");
        (input, b64::from_url(signature).expect("base64url"))
    }

    /// Whether this is its id, or that of a token that it was exchanged from.
    pub fn has_id(&self, jti: &str) -> bool {
        self.jti == jti || self.from.iter().any(|(of, _)| of == jti)
    }

    /// Whether this key has signed it, or a token that it was exchanged from.
    pub fn has_key(&self, kid: &str) -> bool {
        let mut before = self.from.iter().flat_map(|(_, kids)| kids);
        self.kid == kid || before.any(|of| of == kid)
    }

    pub fn is_voided_by(&self, revoked: &Revoked) -> bool {
        match revoked {
            Revoked::Jti { jti, .. } => self.has_id(jti),
            Revoked::Subject {
                subject_ref,
                issued_until,
            } => *subject_ref == self.sub && self.iat <= *issued_until,
            Revoked::Kid { kid } => self.has_key(kid),
            Revoked::Epoch { epoch } => self.epoch < *epoch,
            Revoked::Keys { .. } | Revoked::Policy { .. } => false,
        }
    }

    /// The number of the first event that voids it.
    pub fn void(&self, events: &[RevocationEvent]) -> Option<u64> {
        let first = events
            .iter()
            .find(|event| self.is_voided_by(&event.revoked));
        first.map(|event| event.seq)
    }
}
