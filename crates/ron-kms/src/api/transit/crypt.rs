//! `encrypt`, `decrypt`, `rewrap`, `datakey`, `hmac`, `random`, and `verify` of a MAC.

use std::sync::Arc;

use ron_custody::Refusal;
use ron_custody::index::Key;
use ron_custody::keys::envelope::{HEADER_LEN, header};
use ron_http::{Method, Request, Route};
use ron_proto::kms::transit::{Create, Crypt, Datakey, Draw};
use ron_proto::kms::{Bytes, PrivateBytes};
use ron_proto::scope;
use ron_proto::values::{Alg, Kid};
use serde_json::{Value, json};

use super::form::Form;
use super::{
    CONVERGENT, bad, base64, body, form, given, key_for_use, pinned, tagged, unsupported, untagged,
    upsert_route, writes,
};
use crate::api::Action;
use crate::api::envelope::task;
use crate::work::Kms;
use crate::work::envelope::{EnvelopeOp, EnvelopeOutput, EnvelopeTask};
use crate::work::operation::{many, one};

/// The routes of this file.
pub fn routes(kms: &Arc<Kms>) -> Vec<Route> {
    const MAC: &str = "Vault: make MACs with a key of type hmac";
    let batch = |path, scope, summary, handler| {
        writes::<Crypt>(kms, path, scope, summary, handler).map(form::batches)
    };
    let draws = |path| writes::<Draw>(kms, path, scope::KMS_WRAP, "Vault: random bytes", random);
    let datakeys = "/v1/transit/datakey/{kind}/{name}";
    let encrypts = [Method::POST, Method::PUT].map(|method| {
        let path = "/v1/transit/encrypt/{name}";
        upsert_route(kms, (method, path), scope::KMS_WRAP, encrypt)
            .summary("Vault: encrypt one value or a batch; makes the key when there is none and the caller has kms:create")
            .body::<Crypt>()
    });
    let routes = [
        batch(
            "/v1/transit/decrypt/{name}",
            scope::KMS_UNWRAP,
            "Vault: decrypt one value or a batch",
            decrypt,
        ),
        batch(
            "/v1/transit/rewrap/{name}",
            scope::KMS_WRAP,
            "Vault: encrypt ciphertexts again under the newest version",
            rewrap,
        ),
        batch("/v1/transit/hmac/{name}", scope::KMS_SIGN, MAC, hmac),
        batch(
            "/v1/transit/hmac/{name}/{algorithm}",
            scope::KMS_SIGN,
            MAC,
            hmac,
        ),
        writes::<Datakey>(
            kms,
            datakeys,
            scope::KMS_WRAP,
            "Vault: make a data key (plaintext or wrapped)",
            datakey,
        ),
        draws("/v1/transit/random"),
        draws("/v1/transit/random/{bytes}"),
        draws("/v1/transit/random/{source}/{bytes}"),
    ];
    let encrypts = encrypts.map(form::batches).into_iter();
    encrypts.chain(routes.into_iter().flatten()).collect()
}

/// Refuses options that this service does not support.
fn offered(item: &Crypt) -> Result<(), Refusal> {
    if given(item.nonce.as_ref()) || item.convergent_encryption == Some(true) {
        return Err(unsupported(CONVERGENT));
    }
    if item.batch_input.is_some() {
        return Err(bad("a batch item must not hold a batch"));
    }
    Ok(())
}

/// The context of a use, as the key asks for it.
fn context(key: &Key, text: Option<&String>) -> Result<Option<Bytes>, Refusal> {
    match (key.derived, text.filter(|text| !text.is_empty())) {
        (true, Some(text)) => Ok(Some(Bytes(base64("context", text)?))),
        (true, None) => Err(bad(
            "missing 'context' for key derivation; the key was created using a derived key, which means additional, per-request information must be included in order to perform operations with the key",
        )),
        (false, Some(_)) => Err(unsupported(
            "this key is not derived: leave context out, or make a key with derived set",
        )),
        (false, None) => Ok(None),
    }
}

fn aad(item: &Crypt) -> Result<Option<Bytes>, Refusal> {
    let given = item
        .associated_data
        .as_ref()
        .filter(|text| !text.is_empty());
    given
        .map(|text| base64("associated_data", text).map(Bytes))
        .transpose()
}

/// The native ciphertext of `vault:vN:...`.
fn native(key: &Key, item: &Crypt) -> Result<Bytes, Refusal> {
    let text = item.ciphertext.as_deref();
    let (version, raw) = untagged("ciphertext", text.unwrap_or_default())?;
    Ok(Bytes([&header(key.kid.alg, version)[..], &raw].concat()))
}

type Build = fn(&Key, &Crypt) -> Result<EnvelopeTask, Refusal>;
type Show = fn(EnvelopeOutput) -> Option<Value>;

/// A task that may name an older version, as Vault allows.
fn at_version(
    key: &Key,
    item: &Crypt,
    aad: Option<Bytes>,
    what: EnvelopeOp,
) -> Result<EnvelopeTask, Refusal> {
    let version = pinned(item.key_version);
    if version.is_some_and(|number| number > key.head) {
        return Err(bad(format!("key_version: the newest is {}", key.head)));
    }
    Ok(EnvelopeTask {
        older: true,
        ..task(Some(key.kid.clone()), version, aad, None, what)
    })
}

/// One job for all items.
fn run(kms: &Kms, request: &Request, build: Build, show: Show) -> Result<Action, Refusal> {
    let mut whole: Crypt = body(request)?;
    let (batch, failed) = (
        whole.batch_input.take(),
        whole.partial_failure_response_code,
    );
    let (items, form) = form::items(whole, batch, failed)?;
    let key = key_for_use(kms, request)?;
    let references: Vec<Option<String>> = items.iter().map(|i| i.reference.clone()).collect();
    let build = |item: &Crypt| {
        offered(item)?;
        let key_context = context(&key, item.context.as_ref())?;
        let task = build(&key, item)?;
        Ok(EnvelopeTask {
            key_context,
            ..task
        })
    };
    let tasks: Vec<_> = items.iter().map(build).collect();
    Ok(Action::Work(many(tasks, move |answers| {
        let shown = answers.into_iter().zip(references);
        form.results(
            shown.map(|(answer, reference)| Ok(with_reference(show(answer?.output), reference))),
        )
    })))
}

fn with_reference(value: Option<Value>, reference: Option<String>) -> Value {
    let mut value = value.unwrap_or_default();
    if let Some(reference) = reference {
        value["reference"] = reference.into();
    }
    value
}

/// One operation whose answer is shown as a single value.
fn single(
    task: EnvelopeTask,
    show: impl FnOnce(EnvelopeOutput) -> Value + Send + 'static,
) -> Action {
    Action::Work(one(task, |answer| Ok(form::data(&show(answer?.output)))))
}

fn encrypt(kms: &Kms, request: &Request) -> Result<Action, Refusal> {
    let build: Build = |key, item| {
        let text = item
            .plaintext
            .as_ref()
            .ok_or_else(|| bad("missing plaintext to encrypt"))?;
        let what = EnvelopeOp::Wrap(PrivateBytes::new(base64("plaintext", &text.0)?));
        at_version(key, item, aad(item)?, what)
    };
    run(kms, request, build, show_ciphertext)
}

/// The key that a request to encrypt needs, for one that does not exist yet: its type, and derived when the value, or the first
/// of a batch, has a context.
pub fn wanted(request: &Request) -> Result<Create, Refusal> {
    let whole: Crypt = body(request)?;
    let first = whole.batch_input.as_ref().and_then(|items| items.first());
    let context = first.unwrap_or(&whole).context.as_ref();
    Ok(Create {
        derived: Some(given(context)),
        convergent_encryption: whole.convergent_encryption,
        kind: whole.kind,
        ..Create::default()
    })
}

fn show_ciphertext(made: EnvelopeOutput) -> Option<Value> {
    let (version, text) = (made.version?, made.ciphertext?);
    let text = tagged(version, text.0.get(HEADER_LEN..)?);
    Some(json!({ "ciphertext": text, "key_version": version }))
}

fn decrypt(kms: &Kms, request: &Request) -> Result<Action, Refusal> {
    let build: Build = |key, item| {
        let what = EnvelopeOp::Unwrap(native(key, item)?);
        Ok(task(Some(key.kid.clone()), None, aad(item)?, None, what))
    };
    let show: Show = |made| {
        let text = ron_proto::b64::std(made.plaintext?.expose());
        Some(json!({ "plaintext": text }))
    };
    run(kms, request, build, show)
}

fn rewrap(kms: &Kms, request: &Request) -> Result<Action, Refusal> {
    let build: Build = |key, item| {
        let what = EnvelopeOp::Rewrap(native(key, item)?);
        at_version(key, item, aad(item)?, what)
    };
    run(kms, request, build, show_ciphertext)
}

/// Refuses every hash function but the only supported one.
pub fn check_hash(name: Option<&str>) -> Result<(), Refusal> {
    match name {
        None | Some("" | "sha2-256") => Ok(()),
        Some(_) => Err(unsupported("the only hash function here is sha2-256")),
    }
}

fn hmac(kms: &Kms, request: &Request) -> Result<Action, Refusal> {
    check_hash(request.param_if_any("algorithm"))?;
    let build: Build = |key, item| {
        check_hash(item.algorithm.as_deref())?;
        mac_key(key)?;
        let input = item.input.as_deref().ok_or_else(|| bad("missing input"))?;
        let what = EnvelopeOp::Hmac(Bytes(base64("input", input)?));
        at_version(key, item, None, what)
    };
    let show: Show = |made| Some(json!({ "hmac": tagged(made.version?, &made.mac?.0) }));
    run(kms, request, build, show)
}

fn mac_key(key: &Key) -> Result<(), Refusal> {
    if key.kid.alg == Alg::HmacSha256 {
        return Ok(());
    }
    Err(unsupported(
        "MACs need a key of type hmac: other keys have no implicit MAC key here, unlike in Vault",
    ))
}

/// The verification of one MAC given as `vault:vN:<base64>`.
pub fn mac_check(key: &Key, input: &str, mac: &str) -> Result<EnvelopeTask, Refusal> {
    mac_key(key)?;
    let (version, mac) = untagged("hmac", mac)?;
    let what = EnvelopeOp::HmacVerify(Bytes(base64("input", input)?), Bytes(mac));
    let kid = Some(key.kid.clone());
    Ok(task(kid, Some(version), None, None, what))
}

/// The verifications of MACs; the answer has `valid` for each.
pub fn verify_macs(tasks: Vec<Result<EnvelopeTask, Refusal>>, form: Form) -> Action {
    Action::Work(many(tasks, move |answers| {
        let answers = answers.into_iter();
        form.results(answers.map(|one| Ok(json!({ "valid": one?.output.ok == Some(true) }))))
    }))
}

fn datakey(kms: &Kms, request: &Request) -> Result<Action, Refusal> {
    let body: Datakey = body(request)?;
    if given(body.nonce.as_ref()) {
        return Err(unsupported(CONVERGENT));
    }
    let bytes = match body.bits.unwrap_or(256) {
        128 => 16,
        256 => 32,
        512 => 64,
        _ => return Err(bad("bits must be 128, 256 or 512")),
    };
    let show = match request.param("kind") {
        "plaintext" => true,
        "wrapped" => false,
        _ => return Err(bad("the path must name plaintext or wrapped")),
    };
    let key = key_for_use(kms, request)?;
    let what = EnvelopeOp::Datakey(bytes, show);
    let task = EnvelopeTask {
        key_context: context(&key, body.context.as_ref())?,
        ..task(Some(key.kid.clone()), None, None, None, what)
    };
    Ok(single(task, |mut made| {
        let plaintext = made.plaintext.take();
        let mut value = show_ciphertext(made).unwrap_or_default();
        if let Some(plaintext) = plaintext {
            value["plaintext"] = ron_proto::b64::std(plaintext.expose()).into();
        }
        value
    }))
}

fn random(_: &Kms, request: &Request) -> Result<Action, Refusal> {
    let body: Draw = body(request)?;
    let encode = match body.format.as_deref() {
        None | Some("base64") => ron_proto::b64::std,
        Some("hex") => |raw: &[u8]| hex::encode(raw),
        Some(_) => return Err(bad("format must be base64 or hex")),
    };
    let in_path = ["source", "bytes"].map(|name| request.param_if_any(name));
    // Alone, the segment after `random` is either.
    let (source, bytes) = match in_path.into() {
        (None, Some(source @ ("platform" | "all"))) => (Some(source), None),
        given => given,
    };
    if !matches!(
        source.or(body.source.as_deref()),
        None | Some("platform" | "all")
    ) {
        return Err(unsupported(
            "the source is always the operating system: platform or all",
        ));
    }
    let bytes = match bytes.map(str::parse) {
        Some(bytes) => bytes.map_err(|_| bad("bytes in the path must be a number"))?,
        None => body.bytes.unwrap_or(32) as usize,
    };
    let task = task(None::<Kid>, None, None, None, EnvelopeOp::Random(bytes));
    Ok(single(task, move |made| {
        let raw = made.plaintext.unwrap_or_default();
        json!({ "random_bytes": encode(raw.expose()) })
    }))
}
