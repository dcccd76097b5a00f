//! Approvals: nothing that needs them is done without as many valid ones as the rule asks for.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use ron_custody::keys::{Input, SecretKey};
use ron_http::Principal;
use ron_kernel::{DateSource, Dates, GuardedClock, Random as _, SeededRandom, SharedClock};
use ron_proto::kms::{
    ApprovalRule, Approve, Approver, AskApproval, BackupAnswer, BackupKey, Bytes, DestroyKey,
    KeyDoc, KeyOp, KeyPolicy, KeyState, PayloadPolicy, PolicyRule, PutKeyPolicy, RestoreKey,
    RetireKey, approval_text,
};
use ron_proto::values::{Alg, Kid, OpId};

use super::{Rig, TestReply, file_settings, op_id, principal};
use crate::audit::leaf::Op;
use crate::work::key_request::KeyRequest;
use crate::work::{CallContext, Purposes, StoreJob};

const NAMES: [&str; 4] = ["alice", "bob", "carol", "dave"];

struct Person {
    approver: Approver,
    secret: SecretKey,
}

fn people() -> Vec<Person> {
    let algs = [Alg::Ed25519, Alg::EcdsaP256, Alg::Ed25519, Alg::Ed25519];
    let each = NAMES.into_iter().zip(algs).enumerate();
    each.map(|(n, (name, alg))| {
        let (secret, _) = SecretKey::generate(alg, &SeededRandom::new(900 + n as u64));
        Person {
            approver: Approver {
                name: name.to_owned(),
                alg,
                public_key: Bytes(secret.public().raw().to_vec()),
            },
            secret,
        }
    })
    .collect()
}

/// Two of the first three approve, within an hour; everyone may do everything.
fn policy(people: &[Person]) -> KeyPolicy {
    KeyPolicy {
        allow: vec![PolicyRule {
            ops: KeyOp::ALL
                .iter()
                .copied()
                .filter(|op| op.is_governed())
                .collect(),
            ..PolicyRule::default()
        }],
        deny: Vec::new(),
        approvals: Some(ApprovalRule {
            needed: 2,
            ops: vec![KeyOp::Destroy, KeyOp::Export],
            within: "1h".parse().expect("a period"),
            approvers: people[..3].iter().map(|one| one.approver.clone()).collect(),
        }),
    }
}

fn named(name: &str) -> Principal {
    Principal {
        name: name.to_owned(),
        scopes: ["kms:admin".to_owned()].into(),
        ..principal("ron", None)
    }
}

fn destroy(id: OpId) -> DestroyKey {
    DestroyKey {
        delay: Some("30d".parse().expect("a period")),
        op_id: Some(id),
        ..DestroyKey::default()
    }
}

struct Table {
    rig: Rig,
    people: Vec<Person>,
    key: Kid,
}

impl Table {
    fn change(&self, by: &str, request: KeyRequest) -> TestReply {
        self.rig.change_as(&named(by), &self.key, request)
    }

    fn ask(&self, by: &str, id: OpId) -> TestReply {
        let ask = AskApproval {
            destroy: Some(destroy(id)),
            ..AskApproval::default()
        };
        self.change(by, KeyRequest::AskApproval(Box::new(ask)))
    }

    /// An approval in the name of one person, signed by another's key.
    fn approve(&self, name: usize, signer: usize, id: OpId) -> TestReply {
        let index = self.rig.engine.kms.index.load();
        let key = index.keys.get(&self.key).expect("the key");
        let now = ron_proto::values::Timestamp(0);
        let request = key.access.requests.live(now).find(|one| one.id == id);
        let hash = request.map_or("00".repeat(32), |one| one.operation_sha256.clone());
        let text = approval_text(id, &hash);
        let signed = self.people[signer]
            .secret
            .sign(Input::Message(text.as_bytes()), None);
        let ask = Approve {
            approver: NAMES[name].to_owned(),
            signature: signed[0].signature.clone(),
        };
        self.change("relay", KeyRequest::Approve(id, ask))
    }

    fn submit(&self, by: &str, job: impl FnOnce(CallContext) -> StoreJob) -> TestReply {
        let (call, waiter) = self.rig.call_context(&named(by));
        self.rig.engine.kms.submit_store(job(call));
        Rig::wait(waiter)
    }

    fn back_up(&self, by: &str, id: OpId) -> TestReply {
        let (key, ask) = (self.key.clone(), BackupKey { op_id: Some(id) });
        self.submit(by, |call| StoreJob::Backup(call, key, ask))
    }

    fn destroy(&self, by: &str, id: OpId) -> TestReply {
        self.change(by, KeyRequest::Destroy(destroy(id)))
    }

    fn put(&self, by: &str, policy: Option<KeyPolicy>, id: OpId) -> TestReply {
        let ask = PutKeyPolicy {
            policy,
            op_id: Some(id),
        };
        self.change(by, KeyRequest::PutPolicy(Box::new(ask)))
    }

    fn state(&self) -> KeyState {
        self.rig.doc(&self.key).state
    }
}

fn table() -> Table {
    let rig = Rig::memory();
    let people = people();
    let key = rig.create("app", Alg::Ed25519, PayloadPolicy::Any, 1).key;
    let table = Table { rig, people, key };
    let first = table.put("ops", Some(policy(&table.people)), op_id(2));
    assert_eq!(first.status, 200);
    table
}

/// The secrets of a key leave the service in a backup as in an export, and a key that is restored from them is as hard to get at as the
/// one that there is, also when the backup is older than its policy.
#[test]
fn a_backup_goes_around_no_policy() {
    let rig = Rig::memory();
    let people = people();
    let key = rig.create("app", Alg::Ed25519, PayloadPolicy::Any, 1).key;
    let table = Table { rig, people, key };
    let old: BackupAnswer = table.back_up("ops", op_id(2)).json();
    let first = table.put("ops", Some(policy(&table.people)), op_id(3));
    assert_eq!(first.status, 200);

    let id = op_id(10);
    assert_eq!(table.back_up("ops", id).code(), "approval_missing");
    let ask = AskApproval {
        backup: Some(BackupKey { op_id: Some(id) }),
        ..AskApproval::default()
    };
    let asked = table.change("ops", KeyRequest::AskApproval(Box::new(ask)));
    assert_eq!(asked.status, 200);
    assert_eq!(table.approve(0, 0, id).status, 200);
    assert_eq!(table.back_up("ops", id).code(), "approval_missing");
    assert_eq!(table.approve(1, 1, id).status, 200);
    assert_eq!(table.back_up("other", id).code(), "approval_missing");
    let new: BackupAnswer = table.back_up("ops", id).json();

    for (n, backup) in [old.backup, new.backup].into_iter().enumerate() {
        let request = RestoreKey {
            tenant: "ron".parse().expect("a tenant"),
            purpose: Some("copy".parse().expect("a purpose")),
            backup,
            op_id: op_id(20 + n as u128),
        };
        let job = |call| StoreJob::Restore(call, Box::new(request), Purposes::Shared);
        let made: KeyDoc = table.submit("ops", job).json();
        let index = table.rig.engine.kms.index.load();
        let access = &index.keys[&made.key].access;
        assert_eq!(access.policy, Some(policy(&table.people)), "backup {n}");
    }
}

#[test]
fn a_key_is_destroyed_with_enough_approvals_and_not_before() {
    let table = table();
    let id = op_id(10);
    assert_eq!(table.destroy("ops", id).code(), "approval_missing");
    assert_eq!(table.ask("ops", id).status, 200);
    assert_eq!(table.ask("ops", id).code(), "idempotency_mismatch");
    assert_eq!(table.destroy("ops", id).code(), "approval_missing");
    assert_eq!(table.approve(0, 0, id).status, 200);
    assert_eq!(
        table.approve(0, 0, id).code(),
        "approval_refused",
        "one key counts once"
    );
    assert_eq!(
        table.approve(1, 0, id).code(),
        "approval_refused",
        "another's key"
    );
    assert_eq!(
        table.approve(3, 3, id).code(),
        "approval_refused",
        "not enrolled"
    );
    assert_eq!(table.destroy("ops", id).code(), "approval_missing");
    assert_eq!(table.approve(1, 1, id).status, 200);
    assert_eq!(
        table.destroy("other", id).code(),
        "approval_missing",
        "another caller"
    );
    assert_eq!(
        table.destroy("ops", op_id(11)).code(),
        "approval_missing",
        "another id"
    );
    let shorter = DestroyKey {
        delay: Some("8d".parse().expect("a period")),
        ..destroy(id)
    };
    let shorter = table.change("ops", KeyRequest::Destroy(shorter));
    assert_eq!(shorter.code(), "approval_missing", "another request");
    assert_eq!(table.state(), KeyState::Active);
    assert_eq!(table.destroy("ops", id).status, 200);
    assert_eq!(table.state(), KeyState::PendingDestruction);
    // Used once: after a cancellation it takes new approvals.
    let cancel = KeyRequest::CancelDestroy(RetireKey::default());
    assert_eq!(table.change("ops", cancel).status, 200);
    assert_eq!(table.destroy("ops", op_id(12)).code(), "approval_missing");
    let leaves = super::lifecycle::leaves(&table.rig, &table.key);
    let count = |op, result: &str| {
        let of = leaves
            .iter()
            .filter(|leaf| leaf.op == op && leaf.result == result);
        of.count()
    };
    assert_eq!(
        (count(Op::ApprovalAsk, "ok"), count(Op::Approve, "ok")),
        (1, 2)
    );
    assert_eq!(count(Op::Approve, "approval_refused"), 3);
    let done = leaves
        .iter()
        .find(|leaf| leaf.op == Op::Destroy && leaf.result == "ok");
    let context = done
        .and_then(|leaf| leaf.context.clone())
        .expect("a context");
    assert!(context.ends_with("approved_by=alice,bob"), "{context}");
    table.rig.stop();
}

#[test]
fn what_waits_is_listed_over_all_keys_of_the_caller() {
    let mut table = table();
    let first = table.key.clone();
    let keys = [3, 4].map(|n| {
        let key = table.rig.create("app", Alg::Ed25519, PayloadPolicy::Any, n);
        table.key = key.key;
        let put = table.put("ops", Some(policy(&table.people)), op_id(n + 2));
        assert_eq!(put.status, 200);
        table.key.clone()
    });
    let [second, quiet] = keys;
    for (key, id) in [(&first, 10), (&first, 11), (&second, 12)] {
        table.key = key.clone();
        assert_eq!(table.ask("ops", op_id(id)).status, 200);
    }
    let mut wanted = [
        (first.clone(), op_id(10)),
        (first.clone(), op_id(11)),
        (second.clone(), op_id(12)),
    ];
    wanted.sort_by(|a, b| a.0.cmp(&b.0));
    let kms = &table.rig.engine.kms;
    let list = |caller: &Principal, limit: usize| {
        let (mut found, mut after, mut pages) = (Vec::new(), None, 0);
        loop {
            let page = crate::api::approvals_page(kms, caller, after, limit);
            pages += 1;
            let requests = page.requests.into_iter();
            found.extend(requests.map(|one| (one.key, one.id)));
            let Some(next) = page.next else {
                return (found, pages);
            };
            after = Some(next.parse().expect("a key"));
        }
    };
    // A page ends with a key, and the last one says so.
    for (limit, pages) in [
        (1, 2),
        (2, if wanted[0].0 == second { 1 } else { 2 }),
        (3, 1),
        (50, 1),
    ] {
        let listed = list(&named("anyone"), limit);
        assert_eq!(listed, (wanted.to_vec(), pages), "{limit} a page");
    }
    assert_eq!(list(&principal("other", None), 50).0, []);
    let prefix = second.to_string();
    let one = list(&principal("ron", Some(&[&prefix])), 50);
    assert_eq!(one.0, [(second, op_id(12))]);
    let none = list(&principal("ron", Some(&[&quiet.to_string()])), 50);
    assert_eq!(none, (Vec::new(), 1));
    table.rig.stop();
}

#[test]
fn who_asks_does_not_count() {
    let table = table();
    let id = op_id(10);
    assert_eq!(table.ask("alice", id).status, 200);
    assert_eq!(table.approve(0, 0, id).code(), "approval_refused");
    assert_eq!(table.approve(1, 1, id).status, 200);
    assert_eq!(table.destroy("alice", id).code(), "approval_missing");
    assert_eq!(table.approve(2, 2, id).status, 200);
    assert_eq!(table.destroy("alice", id).status, 200);
    table.rig.stop();
}

#[test]
fn a_change_of_the_policy_takes_the_old_approvals_and_voids_what_waits() {
    let table = table();
    let (waits, change) = (op_id(10), op_id(20));
    assert_eq!(table.ask("ops", waits).status, 200);
    assert_eq!(table.approve(0, 0, waits).status, 200);
    assert_eq!(table.approve(1, 1, waits).status, 200);
    let mut weaker = policy(&table.people);
    weaker.approvals.as_mut().expect("a rule").needed = 1;
    assert_eq!(
        table.put("ops", Some(weaker.clone()), change).code(),
        "approval_missing"
    );
    assert_eq!(table.put("ops", None, op_id(21)).code(), "approval_missing");
    let ask = AskApproval {
        policy: Some(PutKeyPolicy {
            policy: Some(weaker.clone()),
            op_id: Some(change),
        }),
        ..AskApproval::default()
    };
    assert_eq!(
        table
            .change("ops", KeyRequest::AskApproval(Box::new(ask)))
            .status,
        200
    );
    assert_eq!(table.approve(0, 0, change).status, 200);
    assert_eq!(
        table.put("ops", Some(weaker.clone()), change).code(),
        "approval_missing"
    );
    assert_eq!(table.approve(2, 2, change).status, 200);
    assert_eq!(table.put("ops", Some(weaker), change).status, 200);
    assert_eq!(
        table.destroy("ops", waits).code(),
        "approval_missing",
        "it is void"
    );
    table.rig.stop();
}

/// A machine whose date can be set; its time since boot goes on.
#[derive(Clone, Debug, Default)]
struct Machine(Arc<(AtomicI64, AtomicI64)>);

impl DateSource for Machine {
    fn dates(&self) -> Dates {
        let (boot, ahead) = &*self.0;
        let boot = boot.load(Ordering::Relaxed);
        Dates {
            boot,
            wall: 1_700_000_000_000 + boot + ahead.load(Ordering::Relaxed),
        }
    }
}

impl Machine {
    fn pass(&self, s: u64) {
        self.0.0.fetch_add(s as i64 * 1_000, Ordering::Relaxed);
    }

    /// Sets the date ahead of the right one, or behind it.
    fn set_ahead(&self, s: i64) {
        self.0.1.store(s * 1_000, Ordering::Relaxed);
    }
}

/// A request for approvals, as somebody who reads the steps knows it.
struct Asked {
    by: &'static str,
    until: u64,
    signers: BTreeSet<usize>,
}

impl Asked {
    /// The approvals that count.
    fn count(&self) -> usize {
        let counts = |signer: &&usize| NAMES[**signer] != self.by && **signer < 3;
        self.signers.iter().filter(counts).count()
    }
}

/// Steps in any order, by anyone under any name, with restarts, and time that passes. Whoever holds the issuer's credential has
/// every name and every scope, but not the approvers' keys.
#[test]
fn no_order_of_steps_destroys_with_fewer_approvals() {
    destroyed_in_some(None);
}

/// As above, with a date that jumps by up to two days either way, which a start may believe.
#[test]
fn no_jump_of_the_date_destroys_with_fewer_approvals() {
    destroyed_in_some(Some(2 * 86_400));
}

fn destroyed_in_some(jumps: Option<u64>) {
    let destroyed = (1..=20).filter(|seed| run(*seed, jumps)).count();
    // The runs reach the end that they are about.
    assert!(destroyed > 0, "no run has destroyed its key");
}

/// True when the key was destroyed. `jumps` is how far the date jumps at most, in seconds.
fn run(seed: u64, jumps: Option<u64>) -> bool {
    println!("seed {seed}");
    let dir = tempfile::tempdir().expect("a directory");
    let machine = Machine::default();
    let start = || {
        let clock = GuardedClock::over(machine.clone(), Duration::from_hours(30 * 24));
        let clock: SharedClock = Arc::new(clock);
        let rig = Rig::start_at(file_settings(dir.path()), None, clock.clone());
        (rig.expect("starts"), clock)
    };
    let (rig, mut clock) = start();
    let people = people();
    let key = rig.create("app", Alg::Ed25519, PayloadPolicy::Any, 1).key;
    let mut table = Table { rig, people, key };
    let put = table.put("ops", Some(policy(&table.people)), op_id(2));
    assert_eq!(put.status, 200);
    let random = SeededRandom::new(seed);
    let pick = |below: u64| {
        let mut bytes = [0; 8];
        random.fill(&mut bytes);
        u64::from_le_bytes(bytes) % below
    };
    let mut asked: BTreeMap<u128, Asked> = BTreeMap::new();
    for _ in 0..60 {
        let (n, who) = (10 + u128::from(pick(3)), pick(4) as usize);
        let (id, now) = (op_id(n), clock.unix_ms());
        let by = ["ops", "alice", "mallory", "bob"][pick(4) as usize];
        match pick(10) {
            0 | 1 => {
                if table.ask(by, id).status == 200 {
                    let (until, signers) = (now + 3_600_000, BTreeSet::new());
                    asked.insert(n, Asked { by, until, signers });
                }
            }
            2..=5 => {
                let signer = if pick(3) == 0 { pick(4) as usize } else { who };
                if table.approve(who, signer, id).status == 200 {
                    assert_eq!(who, signer, "seed {seed}: another's key has approved");
                    asked.get_mut(&n).expect("asked").signers.insert(who);
                }
            }
            6 | 7 => {
                let reply = table.destroy(by, id);
                let of_caller = asked.get(&n).filter(|asked| asked.by == by);
                // A request that has lapsed is void even when the date goes back; whether it has is the service's to
                // know once the date jumps.
                let live = of_caller.filter(|asked| jumps.is_some() || now < asked.until);
                let count = live.map_or(0, Asked::count);
                let (done, code) = (reply.status == 200, reply.code());
                assert!(
                    !done || count >= 2,
                    "seed {seed}: {count} approvals, {code}"
                );
                let refused = !done && count >= 2 && jumps.is_none();
                assert!(!refused, "seed {seed}: {count} approvals, {code}");
                if done {
                    return true;
                }
            }
            8 => {
                machine.pass(pick(1_500));
                if let Some(most) = jumps.filter(|_| pick(2) == 0) {
                    machine.set_ahead(pick(2 * most) as i64 - most as i64);
                }
            }
            _ => {
                table.rig.stop();
                (table.rig, clock) = start();
            }
        }
        assert_eq!(table.state(), KeyState::Active, "seed {seed}");
    }
    table.rig.stop();
    false
}
