//! Caveats: the typed restrictions a passport carries. All of them must be satisfied; an unknown
//! caveat makes the token invalid.
//!
//! A caveat is written `key=value`. Inside a token the caveats are members of one
//! `authorization_details` object of type `ron`, with an array of values for a key that occurs more
//! than once.

mod ip;
mod keys;

use std::{fmt, str::FromStr};

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use serde_json::{Map, Value};

use crate::{Account, Amount, Asset, Tenant, ValueError, b64};
pub use ip::IpBlock;
pub use keys::{KeyOps, KeyOrLabel};

/// Maximum number of caveats in one token.
pub const MAX_CAVEATS: usize = 32;
/// Maximum length of a caveat as `key=value`, in bytes.
pub const MAX_CAVEAT_LEN: usize = 256;

/// Why a caveat was rejected; reported as status 400 with this code.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{detail}")]
pub struct CaveatError {
    /// `unknown_caveat`, `bad_caveat` or `caveat_over_max`.
    pub code: &'static str,
    /// What is wrong; contains no input.
    pub detail: String,
}

impl CaveatError {
    /// The caveat's key is not in the list.
    pub const UNKNOWN: &'static str = "unknown_caveat";
    /// The caveat's value is not valid for its key, or there are too many caveats.
    pub const BAD: &'static str = "bad_caveat";
    /// The caveat's value exceeds the configured maximum.
    pub const OVER_MAX: &'static str = "caveat_over_max";

    fn bad(detail: impl Into<String>) -> Self {
        Self {
            code: Self::BAD,
            detail: detail.into(),
        }
    }
}

/// One restriction on the use of a token.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Caveat {
    /// `svc`: only at this service (name of the binary).
    Svc(String),
    /// `route`: only for paths with this prefix.
    Route(String),
    /// `method`: only with this HTTP method.
    Method(String),
    /// `region`: only in this region.
    Region(String),
    /// `account`: only for this account as the one debited or read.
    Account(Account),
    /// `asset`: only for this asset.
    Asset(Asset),
    /// `key`: only keys of a key service with this name, or below this part of it (`tenant/purpose`), or with this alias or tag at
    /// the time of use.
    Key(KeyOrLabel),
    /// `op`: only these operations on keys.
    Op(KeyOps),
    /// `ceiling.per_op`: maximum of one operation, in minor units.
    CeilingPerOp(Amount),
    /// `ceiling.daily`: maximum per UTC day, in minor units.
    CeilingDaily(Amount),
    /// `ceiling.total`: maximum over the token's life, in minor units.
    CeilingTotal(Amount),
    /// `budget.bytes`: maximum number of body bytes over the token's lifetime.
    BudgetBytes(u64),
    /// `budget.reqs`: maximum number of requests over the token's lifetime.
    BudgetReqs(u64),
    /// `rate.rps`: maximum number of requests per second.
    RateRps(u64),
    /// `ip_cidr`: only from addresses in this block.
    IpCidr(IpBlock),
    /// `tenant`: only in this tenant.
    Tenant(Tenant),
    /// `proof.bind`: only with proof of possession of this key (RFC 7638 SHA-256 thumbprint).
    ProofBind(String),
    /// `pq.fallback`: set by the issuer when a post-quantum signature was required but could not be
    /// made.
    PqFallback(bool),
}

impl Caveat {
    /// Every key, in the order of the documentation.
    pub const KEYS: [&'static str; 18] = [
        "svc",
        "route",
        "method",
        "region",
        "account",
        "asset",
        "key",
        "op",
        "ceiling.per_op",
        "ceiling.daily",
        "ceiling.total",
        "budget.bytes",
        "budget.reqs",
        "rate.rps",
        "ip_cidr",
        "tenant",
        "proof.bind",
        "pq.fallback",
    ];

    /// The key on the wire.
    pub const fn key(&self) -> &'static str {
        match self {
            Self::Svc(_) => "svc",
            Self::Route(_) => "route",
            Self::Method(_) => "method",
            Self::Region(_) => "region",
            Self::Account(_) => "account",
            Self::Asset(_) => "asset",
            Self::Key(_) => "key",
            Self::Op(_) => "op",
            Self::CeilingPerOp(_) => "ceiling.per_op",
            Self::CeilingDaily(_) => "ceiling.daily",
            Self::CeilingTotal(_) => "ceiling.total",
            Self::BudgetBytes(_) => "budget.bytes",
            Self::BudgetReqs(_) => "budget.reqs",
            Self::RateRps(_) => "rate.rps",
            Self::IpCidr(_) => "ip_cidr",
            Self::Tenant(_) => "tenant",
            Self::ProofBind(_) => "proof.bind",
            Self::PqFallback(_) => "pq.fallback",
        }
    }

    /// The value on the wire.
    pub fn value(&self) -> String {
        match self {
            Self::Svc(text)
            | Self::Route(text)
            | Self::Method(text)
            | Self::Region(text)
            | Self::ProofBind(text) => text.clone(),
            Self::Key(keys) => keys.to_string(),
            Self::Op(ops) => ops.to_string(),
            Self::Account(account) => account.to_string(),
            Self::Asset(asset) => asset.to_string(),
            Self::CeilingPerOp(amount)
            | Self::CeilingDaily(amount)
            | Self::CeilingTotal(amount) => amount.to_string(),
            Self::BudgetBytes(count) | Self::BudgetReqs(count) | Self::RateRps(count) => {
                count.to_string()
            }
            Self::IpCidr(block) => block.to_string(),
            Self::Tenant(tenant) => tenant.to_string(),
            Self::PqFallback(flag) => flag.to_string(),
        }
    }

    /// Parses a caveat from its key and value.
    pub fn from_parts(key: &str, value: &str) -> Result<Self, CaveatError> {
        if key.len() + 1 + value.len() > MAX_CAVEAT_LEN {
            return Err(CaveatError::bad(format!(
                "a caveat is longer than {MAX_CAVEAT_LEN} bytes"
            )));
        }
        let Some(key) = Self::KEYS.into_iter().find(|known| *known == key) else {
            return Err(CaveatError {
                code: CaveatError::UNKNOWN,
                detail: format!("unknown caveat; known are {}", Self::KEYS.join(", ")),
            });
        };
        Self::of_known(key, value).map_err(|why| CaveatError::bad(format!("caveat {key}: {why}")))
    }

    fn of_known(key: &'static str, value: &str) -> Result<Self, String> {
        let name = || plain_name(value);
        let count = || {
            small_number(value, u64::MAX)
                .ok_or_else(|| "write a whole number without sign or leading zeros".to_owned())
        };
        let reason = |error: ValueError| error.to_string();
        Ok(match key {
            "svc" => Self::Svc(name()?),
            "route" => Self::Route(route(value)?),
            "method" => Self::Method(method(value)?),
            "region" => Self::Region(name()?),
            "account" => Self::Account(value.parse().map_err(reason)?),
            "asset" => Self::Asset(value.parse().map_err(reason)?),
            "key" => Self::Key(value.parse()?),
            "op" => Self::Op(value.parse()?),
            "ceiling.per_op" => Self::CeilingPerOp(value.parse().map_err(reason)?),
            "ceiling.daily" => Self::CeilingDaily(value.parse().map_err(reason)?),
            "ceiling.total" => Self::CeilingTotal(value.parse().map_err(reason)?),
            "budget.bytes" => Self::BudgetBytes(count()?),
            "budget.reqs" => Self::BudgetReqs(count()?),
            "rate.rps" => Self::RateRps(count()?),
            "ip_cidr" => Self::IpCidr(value.parse().map_err(reason)?),
            "tenant" => Self::Tenant(value.parse().map_err(reason)?),
            "proof.bind" => Self::ProofBind(thumbprint(value)?),
            "pq.fallback" => Self::PqFallback(match value {
                "true" => true,
                "false" => false,
                _ => return Err("write true or false".to_owned()),
            }),
            _ => return Err("it is not in the list".to_owned()),
        })
    }

    /// True for caveats that only the issuer sets; callers may not request them.
    pub const fn issuer_only(&self) -> bool {
        matches!(self, Self::PqFallback(_))
    }
}

fn plain_name(value: &str) -> Result<String, String> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    if (1..=64).contains(&value.len()) && value.bytes().all(fits) {
        Ok(value.to_owned())
    } else {
        Err("write 1 to 64 of [A-Za-z0-9._-]".to_owned())
    }
}

fn route(value: &str) -> Result<String, String> {
    let fits = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b'?' | b'#' | b'\\' | b'"');
    if value.starts_with('/') && value.bytes().all(fits) && !value.contains("..") {
        Ok(value.to_owned())
    } else {
        Err("write a path that starts with / and has no query, space or ..".to_owned())
    }
}

fn method(value: &str) -> Result<String, String> {
    let known = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"];
    if known.contains(&value) {
        Ok(value.to_owned())
    } else {
        Err(format!("write one of {}", known.join(", ")))
    }
}

fn thumbprint(value: &str) -> Result<String, String> {
    match b64::from_url_array::<32>(value) {
        Ok(_) => Ok(value.to_owned()),
        Err(_) => Err("write an RFC 7638 SHA-256 thumbprint, 43 of base64url".to_owned()),
    }
}

/// Decimal digits without leading zeros, at most `max`.
fn small_number(text: &str, max: u64) -> Option<u64> {
    let plain =
        text.bytes().all(|byte| byte.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
    plain
        .then(|| text.parse().ok())
        .flatten()
        .filter(|number| *number <= max)
}

impl FromStr for Caveat {
    type Err = CaveatError;
    fn from_str(text: &str) -> Result<Self, CaveatError> {
        let (key, value) = text
            .split_once('=')
            .ok_or_else(|| CaveatError::bad("write caveats as key=value"))?;
        Self::from_parts(key, value)
    }
}

impl fmt::Display for Caveat {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}={}", self.key(), self.value())
    }
}

impl Serialize for Caveat {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// The object form of a caveat in JSON.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Typed {
    key: String,
    value: String,
}

impl<'de> Deserialize<'de> for Caveat {
    /// Accepts `"key=value"` or `{"key": ..., "value": ...}`.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Form;
        impl<'de> de::Visitor<'de> for Form {
            type Value = Caveat;
            fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                out.write_str("a caveat as key=value or {key, value}")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Caveat, E> {
                text.parse().map_err(|error| custom(&error))
            }
            fn visit_map<A: de::MapAccess<'de>>(self, map: A) -> Result<Caveat, A::Error> {
                let typed = Typed::deserialize(de::value::MapAccessDeserializer::new(map))?;
                Caveat::from_parts(&typed.key, &typed.value).map_err(|error| custom(&error))
            }
        }
        deserializer.deserialize_any(Form)
    }
}

/// Converts to a `ValueError`, which the strict reader recognises as free of input.
fn custom<E: de::Error>(error: &CaveatError) -> E {
    E::custom(ValueError::new("caveat", error.detail.clone()))
}

impl JsonSchema for Caveat {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Caveat".into()
    }
    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "description": "A restriction, written key=value",
            "type": "string",
            "maxLength": MAX_CAVEAT_LEN,
            "pattern": format!("^({})=.*$", Caveat::KEYS.join("|").replace('.', "\\."))
        })
    }
}

/// The largest values an issuer accepts in requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CaveatMaxima {
    /// Maximum of `budget.bytes`.
    pub budget_bytes: u64,
    /// Maximum of `budget.reqs`.
    pub budget_reqs: u64,
    /// Maximum of `rate.rps`.
    pub rate_rps: u64,
}

impl Default for CaveatMaxima {
    fn default() -> Self {
        Self {
            budget_bytes: 1 << 20,
            budget_reqs: 100,
            rate_rps: 5,
        }
    }
}

impl CaveatMaxima {
    /// Rejects a list that is too long, contains a caveat reserved for the issuer, or exceeds one
    /// of the maxima.
    pub fn check(&self, caveats: &[Caveat]) -> Result<(), CaveatError> {
        if caveats.len() > MAX_CAVEATS {
            return Err(CaveatError::bad(format!("more than {MAX_CAVEATS} caveats")));
        }
        for caveat in caveats {
            if caveat.issuer_only() {
                let key = caveat.key();
                return Err(CaveatError::bad(format!(
                    "caveat {key} can be set by the issuer only"
                )));
            }
            let (requested, max) = match caveat {
                Caveat::BudgetBytes(count) => (*count, self.budget_bytes),
                Caveat::BudgetReqs(count) => (*count, self.budget_reqs),
                Caveat::RateRps(count) => (*count, self.rate_rps),
                _ => continue,
            };
            if requested > max {
                let detail = format!("caveat {}: the maximum is {max}", caveat.key());
                return Err(CaveatError {
                    code: CaveatError::OVER_MAX,
                    detail,
                });
            }
        }
        Ok(())
    }
}

/// The object in `authorization_details` that carries the caveats: `{"type": "ron", key: value}`,
/// with an array of values where a key occurs more than once.
pub fn to_detail(caveats: &[Caveat]) -> Value {
    let mut detail = Map::new();
    detail.insert("type".into(), "ron".into());
    for caveat in caveats {
        let value = Value::String(caveat.value());
        match detail.get_mut(caveat.key()) {
            None => {
                detail.insert(caveat.key().into(), value);
            }
            Some(Value::Array(values)) => values.push(value),
            Some(first) => *first = Value::Array(vec![first.take(), value]),
        }
    }
    Value::Object(detail)
}

/// The caveats of an object in `authorization_details` of type `ron`. The whole object is rejected
/// when any part of it is not understood: a restriction added by a newer version must not be
/// ignored.
pub fn from_detail(detail: &Value) -> Result<Vec<Caveat>, CaveatError> {
    let refuse = || CaveatError::bad("authorization_details of type ron hold strings only");
    let map = detail.as_object().ok_or_else(refuse)?;
    if map.get("type").and_then(Value::as_str) != Some("ron") {
        return Err(CaveatError::bad(
            "authorization_details must have the type ron",
        ));
    }
    let mut caveats = Vec::new();
    for (key, value) in map.iter().filter(|(key, _)| *key != "type") {
        let values = match value {
            Value::Array(values) => values.as_slice(),
            single => std::slice::from_ref(single),
        };
        for value in values {
            caveats.push(Caveat::from_parts(key, value.as_str().ok_or_else(refuse)?)?);
            if caveats.len() > MAX_CAVEATS {
                return Err(CaveatError::bad(format!("more than {MAX_CAVEATS} caveats")));
            }
        }
    }
    Ok(caveats)
}

#[cfg(test)]
mod tests;
