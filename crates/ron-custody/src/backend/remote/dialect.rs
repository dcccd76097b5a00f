//! The requests to the other service: to the routes of a ron-kms, or to those of Vault's Transit engine.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ron_crypto::hash::sha256;
use ron_crypto::secret::SecretBytes;
use ron_http::{Method, Reply};
use ron_kernel::Deadline;
use ron_proto::kms::{
    CreateKey, DestroyKey, KeyDoc, PayloadPolicy, UnwrapAnswer, UnwrapRequest, WrapAnswer,
    WrapRequest,
};
use ron_proto::values::{Alg, Kid, OpId, Purpose, Tenant};
use serde::Serialize;
use serde_json::{Value, json};
use zeroize::Zeroizing;

use super::{Api, Link, RemoteSettings, refused};
use crate::backend::session_pool::Fault;

/// The API of the other service.
pub(super) enum Dialect {
    Ron {
        /// Tenant of keys made there.
        tenant: Tenant,
        purpose: Purpose,
    },
    /// To a Transit engine.
    VaultTransit,
}

impl Dialect {
    pub(super) fn of(settings: &RemoteSettings) -> Self {
        match settings.api {
            Api::VaultTransit => Self::VaultTransit,
            Api::Ron => Self::Ron {
                tenant: settings.tenant.clone(),
                purpose: settings.purpose.clone(),
            },
        }
    }

    /// Checks that the service answers and accepts the credential.
    pub(super) fn probe(&self, link: &Link, deadline: Deadline) -> Result<(), Fault> {
        let path = match self {
            Self::Ron { .. } => "/v1/kms/keys?limit=1",
            Self::VaultTransit => "/keys?list=true",
        };
        let reply = link.call(Method::GET, path, None, false, deadline)?;
        match reply.status {
            500.. => Err(Fault::Gone(format!("it answers {}", reply.status))),
            // A 403 passes: the credential needs no right to list keys for anything else.
            _ => Ok(()),
        }
    }

    /// Makes the key that is to hold the version `name`; returns its name in the other service.
    pub(super) fn make(
        &self,
        link: &Link,
        alg: Alg,
        name: &str,
        deadline: Deadline,
    ) -> Result<String, Fault> {
        match self {
            Self::Ron { tenant, purpose } => {
                let request = CreateKey {
                    tenant: tenant.clone(),
                    purpose: purpose.clone(),
                    alg,
                    payload: PayloadPolicy::Any,
                    exportable: false,
                    derived: false,
                    rotate_every: None,
                    backend: None,
                    token: None,
                    op_id: op_id("make", name),
                };
                let path = "/v1/kms/keys";
                let reply = link.call(Method::POST, path, Some(text(&request)), true, deadline)?;
                let doc: KeyDoc = read(&reply)?;
                Ok(doc.key.to_string())
            }
            Self::VaultTransit => {
                let there = transit_name(name);
                let body = json!({"type": "aes256-gcm96", "exportable": false});
                let path = format!("/keys/{there}");
                let reply = link.call(Method::POST, &path, Some(text(&body)), true, deadline)?;
                if !reply.is_success() {
                    return Err(refused(&reply));
                }
                Ok(there)
            }
        }
    }

    /// Has the other service wrap bytes. Never retried.
    pub(super) fn wrap(
        &self,
        link: &Link,
        name: &str,
        aad: &[u8],
        plaintext: &[u8],
        deadline: Deadline,
    ) -> Result<Vec<u8>, Fault> {
        match self {
            Self::Ron { .. } => {
                let request = WrapRequest {
                    key: kid(name)?.into(),
                    version: None,
                    plaintext: plaintext.into(),
                    aad: bound(aad),
                    op_id: None,
                    context: None,
                };
                let path = "/v1/kms/wrap";
                let reply = link.call(Method::POST, path, Some(text(&request)), false, deadline)?;
                key_is_there(&reply)?;
                let answer: WrapAnswer = read(&reply)?;
                Ok(answer.ciphertext.0)
            }
            Self::VaultTransit => {
                let plain = Zeroizing::new(STANDARD.encode(plaintext));
                let body = json!({
                    "plaintext": plain.as_str(), "associated_data": STANDARD.encode(aad),
                });
                let path = format!("/encrypt/{name}");
                let reply = link.call(Method::POST, &path, Some(text(&body)), false, deadline)?;
                key_is_there(&reply)?;
                Ok(data(&reply, "ciphertext")?.into_bytes())
            }
        }
    }

    /// Has the other service unwrap bytes.
    pub(super) fn unwrap(
        &self,
        link: &Link,
        name: &str,
        aad: &[u8],
        wrapped: &[u8],
        deadline: Deadline,
    ) -> Result<SecretBytes, Fault> {
        match self {
            Self::Ron { .. } => {
                let request = UnwrapRequest {
                    key: kid(name)?.into(),
                    ciphertext: wrapped.to_vec().into(),
                    aad: bound(aad),
                    op_id: None,
                    context: None,
                };
                let path = "/v1/kms/unwrap";
                let reply = link.call(Method::POST, path, Some(text(&request)), false, deadline)?;
                key_is_there(&reply)?;
                let code = reply.problem().map(|p| p.code);
                if code.as_deref() == Some("ciphertext_refused") {
                    return Err(Fault::Mismatch);
                }
                let answer: UnwrapAnswer = read(&reply)?;
                Ok(SecretBytes::from_slice(answer.plaintext.expose()))
            }
            Self::VaultTransit => {
                let Ok(wrapped) = std::str::from_utf8(wrapped) else {
                    return Err(Fault::Mismatch);
                };
                let body = json!({
                    "ciphertext": wrapped, "associated_data": STANDARD.encode(aad),
                });
                let path = format!("/decrypt/{name}");
                let reply = link.call(Method::POST, &path, Some(text(&body)), false, deadline)?;
                key_is_there(&reply)?;
                if reply.status == 400 {
                    return Err(Fault::Mismatch);
                }
                let plain = Zeroizing::new(data(&reply, "plaintext")?);
                let plain = STANDARD.decode(plain.as_bytes()).map_err(|_| unread())?;
                Ok(SecretBytes::from_slice(&Zeroizing::new(plain)))
            }
        }
    }

    /// Orders the destruction of the key, which the other service carries out after its default delay.
    pub(super) fn destroy(&self, link: &Link, name: &str, deadline: Deadline) -> Result<(), Fault> {
        let Self::Ron { .. } = self else {
            return Err(Fault::Unsupported("destroying".into()));
        };
        let request = DestroyKey {
            below_version: None,
            delay: None,
            expected_head: None,
            op_id: Some(op_id("destroy", name)),
        };
        let path = format!("/v1/kms/keys/{}/destroy", kid(name)?);
        let reply = link.call(Method::POST, &path, Some(text(&request)), true, deadline)?;
        let code = reply.problem().map(|p| p.code).unwrap_or_default();
        match reply.status {
            200..300 | 404 => Ok(()),
            // The destruction was ordered before, or is done.
            409 if code == "key_not_active" => Ok(()),
            _ => Err(refused(&reply)),
        }
    }
}

/// An operation id that depends only on the operation and the key version, so that a retry is idempotent.
fn op_id(what: &str, name: &str) -> OpId {
    let digest = sha256(format!("ron-kms/v1/remote\0{what}\0{name}").as_bytes());
    let bytes = *digest.first_chunk().expect("16 of 32 bytes");
    OpId(uuid::Builder::from_custom_bytes(bytes).into_uuid())
}

/// Whether the other service knows the key that a call has named.
fn key_is_there(reply: &Reply) -> Result<(), Fault> {
    match reply.status {
        404 => Err(Fault::Missing("it answers 404".into())),
        _ => Ok(()),
    }
}

/// `ron-<id>-v<N>` of `tenant/purpose/alg/id#vN`.
fn transit_name(name: &str) -> String {
    let last = name.rsplit('/').next().unwrap_or(name);
    format!("ron-{}", last.replace('#', "-"))
}

fn kid(name: &str) -> Result<Kid, Fault> {
    name.parse()
        .map_err(|_| Fault::Refused("the key's name is damaged".into()))
}

fn bound(aad: &[u8]) -> Option<ron_proto::kms::Bytes> {
    (!aad.is_empty()).then(|| aad.to_vec().into())
}

fn text(body: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(body).expect("a request holds strings and integers")
}

fn unread() -> Fault {
    Fault::Refused("its answer is not of the expected format".into())
}

fn read<T: serde::de::DeserializeOwned>(reply: &Reply) -> Result<T, Fault> {
    if !reply.is_success() {
        return Err(refused(reply));
    }
    reply.json().map_err(|_| unread())
}

/// A text field in the `data` of a Transit answer.
fn data(reply: &Reply, field: &str) -> Result<String, Fault> {
    if !reply.is_success() {
        return Err(refused(reply));
    }
    let body: Value = serde_json::from_slice(&reply.body).map_err(|_| unread())?;
    let found = body["data"][field].as_str();
    found.map(str::to_owned).ok_or_else(unread)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_operation_ids_follow_from_the_version() {
        let name = "t/p/aes256-gcm/0190f0a0-0000-7000-8000-000000000000#v2";
        assert_eq!(
            transit_name(name),
            "ron-0190f0a0-0000-7000-8000-000000000000-v2"
        );
        assert_eq!(op_id("make", name), op_id("make", name));
        assert_ne!(op_id("make", name), op_id("destroy", name));
        assert_ne!(op_id("make", name), op_id("make", &name.replace('2', "3")));
    }
}
