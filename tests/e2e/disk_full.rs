//! The disk of all services fills up and gets room again: writes are refused before it is full,
//! nothing is lost, and everything continues without a restart.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use ron_proto::ContentId;
use ron_tests::{Fleet, json, ok, until};
use serde_json::{Value, json};

/// A file system in memory of its own.
struct SmallDisk(PathBuf);

impl SmallDisk {
    /// `None` where this process may not mount.
    fn mount(place: &Path, size: &str) -> Option<Self> {
        let options = format!("size={size}");
        let mount = ["-t", "tmpfs", "-o", &options, "tmpfs"];
        let mounted = Command::new("mount").args(mount).arg(place).output();
        let mounted = mounted.unwrap().status.success();
        mounted.then(|| Self(place.to_owned()))
    }

    fn grow(&self, size: &str) {
        let options = format!("remount,size={size}");
        let mount = ["-o", &options];
        ok(&Command::new("mount")
            .args(mount)
            .arg(&self.0)
            .output()
            .unwrap());
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

struct Users {
    key: Value,
    wallet: String,
    passport: String,
    rewarder: String,
}

impl Users {
    fn of(fleet: &Fleet) -> Self {
        let key = json!({"tenant": "ron", "purpose": "app", "alg": "ed25519", "payload": "any", "op_id": "018f3c4e-0000-7000-9000-000000000000"});
        Self {
            key: fleet.kms("keys", &key, 201)["key"].clone(),
            wallet: fleet.token("svc-wallet", None),
            passport: fleet.token("svc-passport", None),
            rewarder: fleet.token("svc-rewarder", None),
        }
    }

    /// The status and the document of a signature.
    fn sign(&self, fleet: &Fleet) -> (u16, Value) {
        let url = format!("{}/v1/kms/sign", fleet.api_socket("ron-kms"));
        let body = json!({"key": self.key, "message": "eA"}).to_string();
        let reply = fleet.post(&url, Some(&fleet.operator_token()), &body, &[]);
        (reply.status, serde_json::from_slice(&reply.body).unwrap())
    }

    fn issue(&self, fleet: &Fleet, key: &str) -> (u16, Value) {
        let url = format!("{}/v1/issue", fleet.api("svc-wallet"));
        let body = json!({"to": "a", "asset": "ron", "amount_minor": "1"}).to_string();
        let headers = [("Idempotency-Key", key)];
        let reply = fleet.post(&url, Some(&self.wallet), &body, &headers);
        (reply.status, serde_json::from_slice(&reply.body).unwrap())
    }

    /// A run of an epoch that pays nothing.
    fn compute(&self, fleet: &Fleet, cid: &Value, epoch: &str) -> (u16, Value) {
        let base = fleet.api("svc-rewarder");
        let url = format!("{base}/rewarder/epochs/{epoch}/compute");
        let body = dry_run(fleet, cid).to_string();
        let reply = fleet.post(&url, Some(&self.rewarder), &body, &[("Prefer", "wait=20")]);
        (reply.status, serde_json::from_slice(&reply.body).unwrap())
    }

    fn revoke(&self, fleet: &Fleet) -> (u16, Value) {
        let url = format!("{}/v1/passport/revoke", fleet.api("svc-passport"));
        let body = json!({"jti": "j", "reason": "drill"}).to_string();
        let reply = fleet.post(&url, Some(&self.passport), &body, &[]);
        (reply.status, serde_json::from_slice(&reply.body).unwrap())
    }
}

/// The request of a run that pays nothing, by the policy that `ron init` made.
pub fn dry_run(fleet: &Fleet, cid: &Value) -> Value {
    let policy = std::fs::read(fleet.dir().join("policy/reward.json")).unwrap();
    let hash = ContentId::of(&policy).to_string();
    let policy: Value = serde_json::from_slice(&policy).unwrap();
    json!({"snapshot": cid, "policy_id": policy["id"], "policy_hash": hash, "dry_run": true})
}

/// Stores usage at the rewarder; its content id.
pub fn upload(fleet: &Fleet, token: &str) -> Value {
    let url = format!("{}/rewarder/snapshots", fleet.api("svc-rewarder"));
    let usage = "account,metric,amount\nacct:alice,smoothing_pool,3\n";
    let kind = [("Content-Type", "text/csv")];
    let reply = fleet.post(&url, Some(token), usage, &kind);
    assert!(matches!(reply.status, 200 | 201), "{}", reply.status);
    serde_json::from_slice::<Value>(&reply.body).unwrap()["cid"].clone()
}

const WRITERS: [&str; 5] = [
    "ron-kms",
    "ron-ledger",
    "svc-passport",
    "svc-wallet",
    "svc-rewarder",
];

fn names_the_reserve((status, doc): &(u16, Value)) {
    assert_eq!((*status, &doc["retryable"]), (503, &json!(true)), "{doc}");
    let detail = doc["detail"].as_str().unwrap();
    assert!(detail.contains("limits.disk_reserve"), "{detail}");
}

/// Refused while it is full, and done after `make_room`, by the same processes.
fn refused_until_there_is_room(
    fleet: &Fleet,
    users: &Users,
    cid: &Value,
    make_room: impl FnOnce(),
) {
    fleet.wait_disk_full(&WRITERS, true);
    names_the_reserve(&users.sign(fleet));
    names_the_reserve(&users.revoke(fleet));
    names_the_reserve(&users.compute(fleet, cid, "refused"));
    until("the wallet says why", || {
        let (status, doc) = users.issue(fleet, "refused");
        assert_eq!(status, 503, "{doc}");
        doc["details"]["cause"] == "disk_full"
    });
    make_room();
    fleet.wait_disk_full(&WRITERS, false);
    assert_eq!(users.sign(fleet).0, 200);
    assert_eq!(users.revoke(fleet).0, 200);
    let (status, run) = users.compute(fleet, cid, "refused");
    assert_eq!((status, &run["state"]), (200, &json!("sealed")), "{run}");
    until("the wallet goes on", || {
        users.issue(fleet, "refused").0 == 200
    });
}

#[test]
fn a_wallet_and_a_rewarder_without_room_begin_nothing_and_go_on() {
    let fleet = Fleet::start();
    let users = Users::of(&fleet);
    let cid = upload(&fleet, &users.rewarder);
    let before = users.issue(&fleet, "before");
    assert_eq!(before.0, 200);
    assert_eq!(users.compute(&fleet, &cid, "before").0, 200);
    let services = ["svc-wallet", "svc-rewarder"];
    fleet.fill_disks(&services, true);
    fleet.wait_disk_full(&services, true);
    // The disks of the others have room, so it is these two that refuse.
    assert_eq!(users.sign(&fleet).0, 200);
    names_the_reserve(&users.issue(&fleet, "refused"));
    names_the_reserve(&users.compute(&fleet, &cid, "refused"));
    assert_eq!(users.issue(&fleet, "before"), before, "it is done already");
    let epochs = format!("{}/rewarder/epochs", fleet.api("svc-rewarder"));
    let epochs = json(&fleet.get(&epochs, Some(&users.rewarder)), 200);
    assert_eq!(epochs["epochs"].as_array().unwrap().len(), 1, "{epochs}");
    fleet.fill_disks(&services, false);
    fleet.wait_disk_full(&services, false);
    assert_eq!(users.issue(&fleet, "refused").0, 200);
    assert_eq!(users.compute(&fleet, &cid, "refused").0, 200);
    let url = format!("{}/v1/balance?account=a&asset=ron", fleet.api("svc-wallet"));
    let balance = json(&fleet.get(&url, Some(&users.wallet)), 200);
    assert_eq!(balance["amount_minor"], "2");
}

#[test]
fn writes_stop_above_the_reserve_and_go_on_without_a_restart() {
    let fleet = Fleet::start();
    let users = Users::of(&fleet);
    let cid = upload(&fleet, &users.rewarder);
    assert_eq!(users.issue(&fleet, "before").0, 200);
    fleet.fill_disks(&WRITERS, true);
    let make_room = || fleet.fill_disks(&WRITERS, false);
    refused_until_there_is_room(&fleet, &users, &cid, make_room);
    let url = format!("{}/v1/balance?account=a&asset=ron", fleet.api("svc-wallet"));
    let balance = json(&fleet.get(&url, Some(&users.wallet)), 200);
    assert_eq!(balance["amount_minor"], "2");
}

#[test]
fn a_file_system_that_fills_up_and_grows_loses_nothing() {
    let place = tempfile::tempdir().unwrap();
    let Some(disk) = SmallDisk::mount(place.path(), "128m") else {
        println!("not run: this process may not mount a file system");
        return;
    };
    let dir = Arc::new(tempfile::tempdir_in(place.path()).unwrap());
    let fleet = Fleet::start_in(dir);
    let users = Users::of(&fleet);
    let cid = upload(&fleet, &users.rewarder);
    let filler = place.path().join("filler");
    for n in 0..20 {
        assert_eq!(users.issue(&fleet, &format!("before-{n}")).0, 200);
        assert_eq!(users.sign(&fleet).0, 200);
    }
    std::fs::write(&filler, vec![1_u8; 72 << 20]).unwrap();
    refused_until_there_is_room(&fleet, &users, &cid, || disk.grow("256m"));
    let url = format!("{}/v1/balance?account=a&asset=ron", fleet.api("svc-wallet"));
    let balance = json(&fleet.get(&url, Some(&users.wallet)), 200);
    assert_eq!(balance["amount_minor"], "21");
    let text = ok(&fleet.ron(&["audit", "verify"]));
    assert!(text.contains("verified"), "{text}");
}
