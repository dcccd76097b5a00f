//! Envelope operations through the whole engine: answers, refusals, leaves, repetition, nonces.

use std::collections::BTreeSet;

use ron_custody::keys::SecretKey;
use ron_custody::keys::envelope::{self, header};
use ron_custody::{Cause, Refusal};
use ron_files::{FaultKind, SimDisk};
use ron_http::{Principal, Response};
use ron_kernel::Deadline;
use ron_proto::kms::{Bytes, PayloadPolicy, PrivateBytes, SignRequest};
use ron_proto::problem::Problem;
use ron_proto::values::{Alg, Kid};

use super::{
    Rig, TestReply, create_request, file_settings, memory_settings, op_id, principal, settings,
};
use crate::audit::entry::Logged;
use crate::audit::leaf::{Leaf, Op};
use crate::work::SignJob;
use crate::work::envelope::{EnvelopeOp, EnvelopeOutput, EnvelopeTask};
use crate::work::operation::{Work, many};

const WRAPS: [Alg; 9] = [
    Alg::Aes128Gcm,
    Alg::Aes256Gcm,
    Alg::ChaCha20Poly1305,
    Alg::Aes256Kwp,
    Alg::X25519HkdfAes256Gcm,
    Alg::X25519MlKem768,
    Alg::RsaOaep2048,
    Alg::RsaOaep3072,
    Alg::RsaOaep4096,
];

pub fn task(key: &Kid, aad: Option<&[u8]>, what: EnvelopeOp) -> EnvelopeTask {
    EnvelopeTask {
        key: Some(key.clone().into()),
        version: None,
        older: false,
        aad: aad.map(Bytes::from),
        key_context: None,
        what,
        flaw: None,
        op: None,
        context: None,
    }
}

pub fn wrap(key: &Kid, aad: Option<&[u8]>, text: &[u8]) -> EnvelopeTask {
    task(key, aad, EnvelopeOp::Wrap(PrivateBytes::from(text)))
}

pub fn unwrap(key: &Kid, aad: Option<&[u8]>, text: &Bytes) -> EnvelopeTask {
    task(key, aad, EnvelopeOp::Unwrap(text.clone()))
}

/// Runs the tasks as one request and returns the result of each.
fn run(
    rig: &Rig,
    caller: &Principal,
    tasks: Vec<EnvelopeTask>,
) -> Vec<Result<Logged<EnvelopeOutput>, Refusal>> {
    let (to, from) = ron_kernel::reply();
    let what = many(tasks.into_iter().map(Ok), move |answers| {
        let _ = to.send(answers.into_vec()); // the test may have ended
        Response::empty(204)
    });
    let got = submit(rig, caller, what);
    match from.wait(Deadline::within(std::time::Duration::ZERO)) {
        Ok(results) => results,
        Err(_) => vec![Err(Refusal::new(Cause::Internal, got.code()))],
    }
}

fn submit(rig: &Rig, caller: &Principal, what: Box<dyn Work>) -> TestReply {
    let (call, waiter) = rig.call_context(caller);
    rig.engine.kms.submit_sign(SignJob { call, what });
    Rig::wait(waiter)
}

fn one_logged(rig: &Rig, task: EnvelopeTask) -> Result<Logged<EnvelopeOutput>, Refusal> {
    logged_as(rig, &rig.caller, task)
}

pub fn logged_as(
    rig: &Rig,
    caller: &Principal,
    task: EnvelopeTask,
) -> Result<Logged<EnvelopeOutput>, Refusal> {
    run(rig, caller, vec![task]).pop().expect("one result")
}

pub fn one(rig: &Rig, task: EnvelopeTask) -> Result<EnvelopeOutput, Refusal> {
    one_logged(rig, task).map(|logged| logged.output)
}

pub fn why<T>(result: Result<T, Refusal>) -> Option<Cause> {
    result.err().map(|refusal| refusal.cause)
}

fn aad_of(alg: Alg) -> Option<&'static [u8]> {
    (alg != Alg::Aes256Kwp).then_some(b"row 7".as_slice())
}

pub fn leaf(rig: &Rig, index: u64) -> Leaf {
    let reader = rig.engine.reader.as_ref().expect("a log");
    Leaf::parse(&reader.entry(index).expect("durable")).expect("canonical")
}

#[test]
fn what_is_wrapped_unwraps_through_every_version() {
    let rig = Rig::memory();
    for (n, alg) in WRAPS.into_iter().enumerate() {
        let key = rig.create("app", alg, PayloadPolicy::Any, n as u128).key;
        let aad = aad_of(alg);
        let first = one_logged(&rig, wrap(&key, aad, b"a secret")).expect("wrapped");
        let recorded = leaf(&rig, first.receipt().index);
        let first = first.output;
        let text = first.ciphertext.expect("text");
        assert_eq!(first.version, Some(1));
        assert_eq!(text.0[..6], header(alg, 1));
        assert_eq!((recorded.op, recorded.version), (Op::Wrap, Some(1)));
        assert_eq!(recorded.input_sha256, None, "no hash of the plaintext");
        assert!(recorded.output_sha256.is_some());
        rig.rotated(&key);
        let second = one(&rig, wrap(&key, aad, b"another")).expect("wrapped");
        assert_eq!(second.version, Some(2), "only the head wraps");
        let back = one_logged(&rig, unwrap(&key, aad, &text)).expect("opens");
        assert_eq!(
            (back.output.version, back.output.plaintext.clone()),
            (Some(1), Some(b"a secret".as_slice().into()))
        );
        assert_eq!(leaf(&rig, back.receipt().index).output_sha256, None);
        let moved = one(&rig, task(&key, aad, EnvelopeOp::Rewrap(text.clone()))).expect("moved");
        assert_eq!((moved.from_version, moved.version), (Some(1), Some(2)));
        assert_eq!(moved.plaintext, None, "rewrap shows nothing");
        let back = one(&rig, unwrap(&key, aad, &moved.ciphertext.expect("text"))).expect("opens");
        assert_eq!(
            (back.version, back.plaintext),
            (Some(2), Some(b"a secret".as_slice().into()))
        );
        let fresh = one(&rig, task(&key, aad, EnvelopeOp::Datakey(32, true))).expect("made");
        let back = one(&rig, unwrap(&key, aad, &fresh.ciphertext.expect("text"))).expect("opens");
        assert_eq!(back.plaintext, fresh.plaintext);
        let hidden = one(&rig, task(&key, aad, EnvelopeOp::Datakey(64, false))).expect("made");
        assert_eq!(hidden.plaintext, None);
        let mut pinned = wrap(&key, aad, b"x");
        pinned.version = Some(1);
        let refused = one(&rig, pinned).expect_err("not the head");
        assert_eq!(refused.cause, Cause::VersionNotHead);
        assert!(
            refused.detail.contains("signs and encrypts"),
            "{}",
            refused.detail
        );
        assert!(
            refused.detail.contains("signs and encrypts"),
            "{}",
            refused.detail
        );
    }
    rig.stop();
}

#[test]
fn what_is_not_right_does_not_open_and_says_so_in_the_log() {
    let rig = Rig::memory();
    for (n, alg) in WRAPS.into_iter().enumerate() {
        let key = rig.create("app", alg, PayloadPolicy::Any, n as u128).key;
        let other = rig
            .create("app", alg, PayloadPolicy::Any, 100 + n as u128)
            .key;
        let aad = aad_of(alg);
        let text = one(&rig, wrap(&key, aad, b"a secret"))
            .expect("wrapped")
            .ciphertext;
        let text = text.expect("text");
        let check = |task: EnvelopeTask, want: Cause| {
            let size = rig.engine.kms.log_size();
            assert_eq!(why(one(&rig, task)), Some(want), "{alg}");
            let recorded = leaf(&rig, size);
            assert_eq!(recorded.result, want.code());
            assert!(matches!(recorded.op, Op::Unwrap | Op::Hmac));
        };
        let mut bad = text.clone();
        *bad.0.last_mut().expect("bytes") ^= 1;
        check(unwrap(&key, aad, &bad), Cause::CiphertextRefused);
        let mut later = text.clone();
        later.0[5] = 2;
        check(unwrap(&key, aad, &later), Cause::CiphertextRefused);
        later.0[5] = 0;
        check(unwrap(&key, aad, &later), Cause::CiphertextRefused);
        check(unwrap(&other, aad, &text), Cause::CiphertextRefused);
        check(
            unwrap(&key, aad, &Bytes(text.0[..5].to_vec())),
            Cause::CiphertextRefused,
        );
        if aad.is_some() {
            check(unwrap(&key, None, &text), Cause::CiphertextRefused);
            check(
                unwrap(&key, Some(b"row 8"), &text),
                Cause::CiphertextRefused,
            );
        } else {
            check(unwrap(&key, Some(b""), &text), Cause::Unsupported);
        }
        check(
            task(&key, aad, EnvelopeOp::Hmac(Bytes::default())),
            Cause::Unsupported,
        );
    }
    rig.stop();
}

impl Rig {
    fn hmac_key(&self, op: u128) -> Kid {
        self.create("app", Alg::HmacSha256, PayloadPolicy::Any, op)
            .key
    }
}

#[test]
fn macs_are_made_by_the_head_and_checked_by_every_version() {
    let rig = Rig::memory();
    let algs = [Alg::HmacSha256, Alg::HmacSha384, Alg::HmacSha512];
    for (op, (alg, length)) in (1..).zip(algs.into_iter().zip([32, 48, 64])) {
        let key = rig.create("app", alg, PayloadPolicy::Any, op).key;
        macs(&rig, &key, length);
    }
    rig.stop();
}

fn macs(rig: &Rig, key: &Kid, length: usize) {
    let key = key.clone();
    let message = Bytes::from(b"message".as_slice());
    let make = || one(rig, task(&key, None, EnvelopeOp::Hmac(message.clone()))).expect("made");
    let first = make();
    let mac = first.mac.clone().expect("a MAC");
    assert_eq!(mac.0.len(), length);
    assert_eq!(make().mac, first.mac, "a MAC repeats");
    rig.rotated(&key);
    assert_ne!(make().mac, first.mac);
    let check = |mac: &Bytes, version: Option<u32>, want: (bool, Option<u32>)| {
        let what = EnvelopeOp::HmacVerify(message.clone(), mac.clone());
        let mut check = task(&key, None, what);
        check.version = version;
        let made = one_logged(rig, check).expect("judged");
        assert_eq!(
            (made.output.ok, made.output.version),
            (Some(want.0), want.1)
        );
        let result = if want.0 { "ok" } else { "no_match" };
        assert_eq!(leaf(rig, made.receipt().index).result, result);
    };
    check(&mac, None, (true, Some(1)));
    check(&mac, Some(1), (true, Some(1)));
    check(&mac, Some(2), (false, None));
    check(&Bytes(mac.0[..length - 1].to_vec()), None, (false, None));
    check(&Bytes::default(), None, (false, None));
    let what = EnvelopeOp::HmacVerify(message.clone(), mac);
    let mut gone = task(&key, None, what);
    gone.version = Some(3);
    assert_eq!(why(one(rig, gone)), Some(Cause::NotFound));
}

#[test]
fn keys_do_what_they_are_for_and_only_for_their_tenant() {
    let rig = Rig::memory();
    let hmac = rig.hmac_key(1);
    let signing = rig.create("app", Alg::Ed25519, PayloadPolicy::Any, 2).key;
    let wrapping = rig.create("app", Alg::Aes256Gcm, PayloadPolicy::Any, 3).key;
    assert_eq!(
        why(one(&rig, wrap(&hmac, None, b"x"))),
        Some(Cause::Unsupported)
    );
    assert_eq!(
        why(one(&rig, wrap(&signing, None, b"x"))),
        Some(Cause::Unsupported)
    );
    for key in [&hmac, &wrapping] {
        let got = rig.sign(SignRequest::message(key.clone(), *b"x"));
        assert_eq!((got.status, got.code().as_str()), (400, "unsupported"));
    }
    let policy = create_request("app", Alg::Aes256Gcm, PayloadPolicy::Digest, 4);
    let got = rig.create_as(&rig.caller.clone(), policy);
    assert_eq!((got.status, got.code().as_str()), (400, "bad_request"));
    let outsiders = [
        principal("other", None),
        principal("ron", Some(&["ron/elsewhere/"])),
    ];
    for outsider in outsiders {
        let got = run(&rig, &outsider, vec![wrap(&wrapping, None, b"x")]).pop();
        assert_eq!(why(got.expect("one")), Some(Cause::Forbidden));
    }
    let mut nobody = wrapping.clone();
    nobody.id = uuid::Uuid::nil();
    assert_eq!(
        why(one(&rig, wrap(&nobody, None, b"x"))),
        Some(Cause::NotFound)
    );
    rig.stop();
}

#[test]
fn the_same_operation_id_gives_the_same_answer() {
    let rig = Rig::memory();
    let key = rig.create("app", Alg::Aes256Gcm, PayloadPolicy::Any, 1).key;
    let with_op = |mut task: EnvelopeTask, op: u128, body: u8| {
        task.op = Some((op_id(op), [body; 32]));
        task
    };
    let first = one_logged(&rig, with_op(wrap(&key, None, b"x"), 1, 1)).expect("wrapped");
    let size = rig.engine.kms.log_size();
    let second = one_logged(&rig, with_op(wrap(&key, None, b"x"), 1, 1)).expect("wrapped");
    assert_eq!(first, second, "the same bytes and the same leaf");
    assert_eq!(rig.engine.kms.log_size(), size, "no second leaf");
    let other = one(&rig, with_op(wrap(&key, None, b"y"), 1, 2));
    assert_eq!(why(other), Some(Cause::OpIdMismatch));
    let text = first.output.ciphertext.expect("text");
    for (op, what) in [
        (2, EnvelopeOp::Unwrap(text)),
        (3, EnvelopeOp::Datakey(32, true)),
    ] {
        let ask =
            || one_logged(&rig, with_op(task(&key, None, what.clone()), op, 7)).expect("done");
        let first = ask();
        assert!(first.output.plaintext.is_some());
        assert_eq!(
            first,
            ask(),
            "the plaintext is found again though it is not kept"
        );
    }
    let outsider = principal("other", None);
    let got = run(&rig, &outsider, vec![with_op(wrap(&key, None, b"x"), 1, 1)]).pop();
    assert_eq!(why(got.expect("one")), Some(Cause::Forbidden));
    rig.stop();
}

#[test]
fn a_batch_fails_item_by_item() {
    let rig = Rig::memory();
    let key = rig.create("app", Alg::Aes256Gcm, PayloadPolicy::Any, 1).key;
    let caller = rig.caller.clone();
    let size = rig.engine.kms.log_size();
    let tasks = vec![
        wrap(&key, None, b"one"),
        unwrap(&key, None, &Bytes(vec![1; 40])),
        wrap(&key, Some(b"aad"), b"three"),
    ];
    let results = run(&rig, &caller, tasks);
    let whys: Vec<_> = results
        .iter()
        .map(|r| r.as_ref().err().map(|e| e.cause))
        .collect();
    assert_eq!(whys, [None, Some(Cause::CiphertextRefused), None]);
    // The first use of a key reserves its first block of nonces, which is a leaf too.
    assert_eq!(leaf(&rig, size).op, Op::ReserveUses);
    assert_eq!(rig.engine.kms.log_size(), size + 4);
    let indexes = [&results[0], &results[2]].map(|r| r.as_ref().expect("made").receipt().index);
    assert_eq!(indexes, [size + 1, size + 3]);
    rig.stop();
}

#[test]
fn without_the_log_nothing_is_wrapped_or_unwrapped() {
    let rig = Rig::memory();
    let key = rig.create("app", Alg::Aes256Gcm, PayloadPolicy::Any, 1).key;
    let text = one(&rig, wrap(&key, None, b"x"))
        .expect("wrapped")
        .ciphertext
        .expect("text");
    rig.disk.fail_after(1, FaultKind::Io);
    for task in [wrap(&key, None, b"x"), unwrap(&key, None, &text)] {
        let what = many([Ok(task)], |_| Problem::internal("an answer left").into());
        let got = submit(&rig, &rig.caller.clone(), what);
        assert_eq!(
            (got.status, got.code().as_str()),
            (503, "audit_unavailable")
        );
    }
    rig.stop();
}

#[test]
fn nonces_are_counted_across_blocks_to_the_cap_and_not_past_it() {
    let settings = settings(&[
        ("amnesia", "true"),
        ("nonces.block", "8"),
        ("nonces.cap", "21"),
    ]);
    let rig = Rig::start(settings, Some(SimDisk::new())).expect("starts");
    let key = rig.create("app", Alg::Aes256Gcm, PayloadPolicy::Any, 1).key;
    let mut numbers = BTreeSet::new();
    for _ in 0..21 {
        let text = one(&rig, wrap(&key, None, b"x"))
            .expect("wrapped")
            .ciphertext;
        let text = text.expect("text").0;
        numbers.insert(u32::from_be_bytes(text[6..10].try_into().expect("4 bytes")));
    }
    assert_eq!(numbers, (0..21).collect());
    let refused = one(&rig, wrap(&key, None, b"x")).expect_err("past the cap");
    assert_eq!(refused.cause, Cause::UsesExhausted);
    assert!(refused.detail.contains("rotate"));
    rig.rotated(&key);
    let fresh = one(&rig, wrap(&key, None, b"x")).expect("the next version starts at 0");
    assert_eq!(fresh.ciphertext.expect("text").0[6..10], [0; 4]);
    rig.stop();
}

#[test]
fn the_default_settings_reserve_ahead() {
    let mut settings = memory_settings();
    settings.keys.nonce_block = 64;
    let rig = Rig::start(settings, Some(SimDisk::new())).expect("starts");
    let key = rig.create("app", Alg::Aes256Gcm, PayloadPolicy::Any, 1).key;
    let caller = rig.caller.clone();
    let mut nonces = BTreeSet::new();
    for _ in 0..10 {
        let tasks = (0..100).map(|_| wrap(&key, None, b"x")).collect();
        for made in run(&rig, &caller, tasks) {
            let text = made.expect("wrapped").output.ciphertext.expect("text").0;
            assert!(nonces.insert(text[6..18].to_vec()), "a nonce came twice");
        }
    }
    let blocks = rig.engine.kms.metrics.nonce_blocks.get();
    assert!(
        (15..=18).contains(&blocks),
        "{blocks} blocks for 1,000 uses"
    );
    rig.stop();
}

/// Ciphertexts of `docs/formats/envelope.md`: those of envelope.json were made by Python's
/// cryptography (`tests/interop/envelope_golden.py`), the one of xwing.json by this program once.
#[test]
fn golden_ciphertexts_open() {
    #[derive(serde::Deserialize)]
    struct Golden {
        key: Kid,
        secret: String,
        version: u32,
        aad: String,
        plaintext: String,
        ciphertext: String,
    }
    let hex = |text: &str| hex::decode(text).expect("hex");
    let files = [
        include_str!("golden/envelope.json"),
        include_str!("golden/xwing.json"),
    ];
    let mut algs = BTreeSet::new();
    for golden in files
        .iter()
        .flat_map(|text| serde_json::from_str::<Vec<Golden>>(text).expect("golden cases"))
    {
        let alg = golden.key.alg;
        let secret = SecretKey::from_secret(alg, &hex(&golden.secret).into()).expect("a key");
        let text = hex(&golden.ciphertext);
        let (version, body) = envelope::parse(alg, &text).expect("our format");
        assert_eq!(version, golden.version, "{alg}");
        let opened = envelope::open((&golden.key, version), &secret, &hex(&golden.aad), body);
        assert_eq!(
            opened.expect("opens").expose(),
            hex(&golden.plaintext),
            "{alg}"
        );
        algs.insert(alg);
    }
    // OpenSSL is the other side of RSA-OAEP, see `oaep.rs`.
    let wraps = WRAPS.into_iter().filter(|alg| !alg.is_oaep());
    assert_eq!(algs, wraps.collect());
}

fn copy(from: &std::path::Path, to: &std::path::Path) {
    std::fs::create_dir_all(to).expect("dir");
    for entry in std::fs::read_dir(from)
        .expect("dir")
        .map(|e| e.expect("entry"))
    {
        let target = to.join(entry.file_name());
        if entry.file_type().expect("type").is_dir() {
            copy(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).expect("copies");
        }
    }
}

fn number(made: Result<EnvelopeOutput, Refusal>) -> u32 {
    let text = made.expect("wrapped").ciphertext.expect("text").0;
    u32::from_be_bytes(text[6..10].try_into().expect("4 bytes"))
}

/// The machine stops after each wrap in turn, and so after each write of the store: a KMS that starts from the disk of
/// that moment never gives out a number a second time.
#[test]
fn a_crash_after_any_write_gives_no_number_twice() {
    let dir = tempfile::tempdir().expect("dir");
    let mut settings = file_settings(dir.path());
    settings.keys.nonce_block = 3;
    let rig = Rig::start_on(settings.clone(), None).expect("starts");
    let key = rig.create("app", Alg::Aes256Gcm, PayloadPolicy::Any, 1).key;
    let crashes = tempfile::tempdir().expect("dir");
    let mut given = Vec::new();
    for n in 0..8 {
        copy(dir.path(), &crashes.path().join(n.to_string()));
        given.push(number(one(&rig, wrap(&key, None, b"x"))));
    }
    rig.stop();
    assert_eq!(given, (0..8).collect::<Vec<_>>());
    for n in 0..8_usize {
        let mut settings = settings.clone();
        settings.data_dir = Some(crashes.path().join(n.to_string()));
        settings.seal = crate::settings::SealSource::KeyFile {
            path: crashes.path().join(n.to_string()).join("seal.key"),
            may_create: false,
        };
        let rig = Rig::start_on(settings, None).expect("starts again");
        let again: Vec<u32> = (0..4)
            .map(|_| number(one(&rig, wrap(&key, None, b"x"))))
            .collect();
        let before = &given[..n];
        assert!(
            again.iter().all(|number| before.iter().all(|b| b < number)),
            "crash {n}: {again:?} after {before:?}"
        );
        assert!(again.is_sorted_by(|a, b| a < b));
        rig.stop();
    }
}

/// A store that was rolled back to before a reservation: the log records a later store version, so nothing is wrapped
/// under numbers that may have been used.
#[test]
fn an_older_store_beside_the_log_wraps_nothing() {
    let dir = tempfile::tempdir().expect("dir");
    let rig = Rig::file(dir.path()).expect("starts");
    let key = rig.create("app", Alg::Aes256Gcm, PayloadPolicy::Any, 1).key;
    rig.stop();
    let old = std::fs::read(dir.path().join(ron_custody::store::FILE_NAME)).expect("reads");
    let rig = Rig::file(dir.path()).expect("starts");
    assert_eq!(number(one(&rig, wrap(&key, None, b"x"))), 0);
    rig.stop();
    for suffix in ["-wal", "-shm"] {
        let name = format!("{}{suffix}", ron_custody::store::FILE_NAME);
        let _ = std::fs::remove_file(dir.path().join(name)); // gone after an orderly stop
    }
    std::fs::write(dir.path().join(ron_custody::store::FILE_NAME), old).expect("writes");
    let rig = Rig::file(dir.path()).expect("starts, to verify only");
    let refused = run(&rig, &rig.caller.clone(), vec![wrap(&key, None, b"x")]).pop();
    let refused = refused.expect("one").expect_err("nothing is wrapped");
    assert_eq!(refused.detail, "audit_tampered");
    rig.stop();
}
