//! The routes against a real log, and the pacing of checkpoints as a table.

use std::path::Path;

use ron_files::SimDisk;
use ron_http::{Headers, Method, Principal, Responder};
use ron_kernel::{Clock, Shutdown, SystemClock};
use ron_tlog::append::{Log, LogOptions};
use ron_tlog::note::Ed25519NoteSigner;

use super::*;

struct Rig {
    log: Log,
    room: Arc<CheckpointRoom>,
    host: LogHost,
    ready: ReadyBoard,
    registry: Registry,
}

fn rig() -> Rig {
    let signer = Ed25519NoteSigner::new(
        "test/log",
        ron_crypto::sign::Ed25519Key::from_seed(&[1; 32]),
    )
    .expect("a good name");
    let keys = KeyView::of(signer.verifier().clone());
    let options = LogOptions::new("test/log").verified_by(signer.verifier().clone());
    let mut log =
        Log::open(Arc::new(SimDisk::new()), Path::new("log"), options).expect("an empty log");
    let checkpointer = log.take_checkpointer().expect("taken once");
    let registry = Registry::new("t");
    let ready = ReadyBoard::new(&registry);
    let room = CheckpointRoom::new(
        checkpointer,
        Arc::new(signer),
        log.reader(),
        CheckpointPlan::default(),
        ready.clone(),
        SystemClock::shared(),
        &registry,
        "audit",
    );
    let host = LogHost {
        reader: log.reader(),
        keys,
        entries_scope: ron_proto::scope::KMS_AUDIT,
        cosigned: CosignedView::default(),
    };
    Rig {
        log,
        room,
        host,
        ready,
        registry,
    }
}

fn request(params: &[(&'static str, &str)]) -> Request {
    Request {
        method: Method::GET,
        path: "/".into(),
        params: params
            .iter()
            .map(|(name, value)| (*name, (*value).to_owned()))
            .collect(),
        query: Vec::new(),
        headers: Headers::default(),
        body: Vec::new(),
        memory: ron_http::HeldBytes::default(),
        upload: None,
        principal: Principal::public(),
        trace: ron_http::Trace::new("r").unwrap(),
        deadline: Deadline::within(Duration::from_secs(5)),
        peer: "127.0.0.1:1".parse().unwrap(),
        transport: ron_http::Transport::Tcp,
        client_cert: None,
        route: "/",
    }
}

fn body(response: &Response) -> String {
    String::from_utf8(response.body.as_bytes().to_vec()).unwrap()
}

#[test]
fn a_log_is_served_once_its_checkpoint_is_out() {
    let mut rig = rig();
    assert_eq!(
        serve_checkpoint(&rig.host, &request(&[]))
            .unwrap_err()
            .status,
        404
    );
    rig.log.append(&[b"one".to_vec(), b"two".to_vec()]).unwrap();
    let early = serve_proof(&rig.host, &request(&[("index", "1")])).unwrap_err();
    assert_eq!(
        (
            early.status,
            early.code,
            early.retryable,
            early.retry_after_s
        ),
        (409, "not_yet_covered", true, Some(1))
    );
    rig.room.finish();
    let note = body(&serve_checkpoint(&rig.host, &request(&[])).unwrap());
    assert!(note.starts_with("test/log\n2\n"), "{note}");
    assert!(body(&serve_vkey(&rig.host, &request(&[])).unwrap()).starts_with("test/log+"));
    let keys = body(&serve_keys(&rig.host, &request(&[])).unwrap());
    assert_eq!(keys, format!("{}\n", rig.host.keys.vkey()));
    let proof = body(&serve_proof(&rig.host, &request(&[("index", "1")])).unwrap());
    assert!(
        proof.starts_with("c2sp.org/tlog-proof@v1\n") && proof.ends_with(&note),
        "{proof}"
    );
    let tile = serve_tile(&rig.host, &request(&[("tile", "0/000.p/2")])).unwrap();
    assert_eq!(tile.body.as_bytes().len(), 64);
    let bundle = serve_bundle(&rig.host, &request(&[("bundle", "000.p/2")])).unwrap();
    assert_eq!(bundle.body.as_bytes(), b"\0\x03one\0\x03two");
}

#[test]
fn what_is_not_there_or_not_spelt_so_is_refused() {
    let mut rig = rig();
    rig.log.append(&[b"secret".to_vec()]).unwrap();
    rig.room.finish();
    for index in ["", "x", "-1", "+1", "01", "1.0", "18446744073709551616"] {
        assert_eq!(
            serve_proof(&rig.host, &request(&[("index", index)]))
                .unwrap_err()
                .status,
            400,
            "{index:?}"
        );
    }
    assert_eq!(
        serve_proof(&rig.host, &request(&[("index", "7")]))
            .unwrap_err()
            .status,
        404
    );
    // The public route serves hashes only, in every spelling of the path.
    for tile in [
        "entries/000.p/1",
        "0/000",
        "0/000.p/2",
        "9/000",
        "0/001.p/1",
        "",
        "0",
        "../checkpoint",
        "0/000.p/01",
    ] {
        assert_eq!(
            serve_tile(&rig.host, &request(&[("tile", tile)]))
                .unwrap_err()
                .status,
            404,
            "{tile:?}"
        );
    }
    for bundle in ["000", "000.p/2", "entries/000.p/1", ""] {
        assert_eq!(
            serve_bundle(&rig.host, &request(&[("bundle", bundle)]))
                .unwrap_err()
                .status,
            404,
            "{bundle:?}"
        );
    }
}

#[test]
fn bundles_need_their_scope_and_nothing_else_does() {
    let rig = rig();
    for (base, path) in [
        (Base::Audit, "/audit/v1/"),
        (Base::Log, "/log/v1/"),
        (Base::Revocations, "/revocations/v1/"),
    ] {
        let info = ron_http::ApiInfo {
            title: "t",
            version: "0",
            description: "",
        };
        let router = ron_http::Router::new(info).add_all(routes(base, &rig.host));
        for (_, pattern, need, summary) in router.routes() {
            let wanted = if pattern.contains("/tile/entries/") {
                Need::Scope("kms:audit")
            } else {
                Need::Public
            };
            assert_eq!(need, wanted, "{pattern}");
            assert!(pattern.starts_with(path) && !summary.is_empty());
        }
        assert_eq!(router.routes().count(), 6);
    }
    let (responder, waiter) = Responder::detached(Deadline::within(Duration::from_secs(1)));
    responder.send(serve_vkey(&rig.host, &request(&[])));
    assert_eq!(
        waiter
            .wait(Deadline::within(Duration::from_secs(1)))
            .unwrap()
            .status,
        200
    );
}

#[test]
fn the_thread_publishes_in_time_and_an_idle_log_gets_nothing() {
    let mut rig = rig();
    let (stop, token) = Shutdown::pair();
    let ctx = ThreadCtx {
        shutdown: token,
        index: 0,
        name: "t".into(),
    };
    rig.log.append(&[b"one".to_vec()]).unwrap();
    let reader = rig.log.reader();
    let begin = SystemClock.now();
    let room = rig.room.clone();
    let took = ron_kernel::scoped(2, |worker| {
        if worker == 0 {
            room.run(&ctx);
            return Duration::ZERO;
        }
        let (_keep, never) = Shutdown::pair();
        while reader.checkpoint_size() == 0 && SystemClock.now() - begin < Duration::from_secs(10) {
            never.wait(Deadline::within(Duration::from_millis(5)));
        }
        let took = SystemClock.now() - begin;
        stop.fire();
        took
    });
    assert!(
        took[1] > Duration::from_millis(500) && took[1] < Duration::from_secs(10),
        "{took:?}"
    );
    let note = reader.checkpoint();
    rig.room.finish();
    assert_eq!(reader.checkpoint(), note, "nothing new, nothing signed");
    assert!(rig.ready.snapshot().ready);
    assert!(
        rig.registry
            .render()
            .contains("t_audit_checkpoint_age_seconds")
    );
}

#[test]
fn pacing() {
    let plan = CheckpointPlan::default();
    let mut pacer = Pacer::default();
    let mut check = |uncovered: u64, now_ms: u64, wanted: Pace| {
        assert_eq!(
            pacer.pace(uncovered, now_ms, &plan),
            wanted,
            "{uncovered} at {now_ms}"
        );
    };
    check(0, 0, Pace::Nothing);
    check(0, 59_750, Pace::Nothing);
    check(0, 60_000, Pace::Nothing);
    check(1, 60_250, Pace::Nothing); // since 60,000, when everything was covered
    check(4_999, 60_700, Pace::Nothing);
    check(4_999, 60_800, Pace::Due);
    check(5_000, 60_801, Pace::Due);
    check(5_001, 61_999, Pace::Due);
    check(5_001, 62_000, Pace::Late { first: true });
    check(5_001, 62_100, Pace::Late { first: false });
    check(0, 62_200, Pace::Nothing);
    check(5_000, 62_300, Pace::Due);
    assert!(!pacer.is_idle());
    pacer.published(1, 62_400);
    assert!(!pacer.is_idle());
    assert_eq!(pacer.pace(1, 63_100, &plan), Pace::Nothing);
    assert_eq!(pacer.pace(1, 63_200, &plan), Pace::Due);
    pacer.published(0, 63_200);
    assert!(pacer.is_idle());
    assert_eq!(pacer.pace(1, 63_450, &plan), Pace::Nothing);
    assert_eq!(pacer.pace(1, 64_000, &plan), Pace::Due);
}
