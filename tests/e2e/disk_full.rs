//! The disk of all services fills up and gets room again: writes are refused before it is full,
//! nothing is lost, and everything continues without a restart.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

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
}

impl Users {
    fn of(fleet: &Fleet) -> Self {
        let key = json!({"tenant": "ron", "purpose": "app", "alg": "ed25519", "payload": "any", "op_id": "018f3c4e-0000-7000-9000-000000000000"});
        Self {
            key: fleet.kms("keys", &key, 201)["key"].clone(),
            wallet: fleet.token("svc-wallet", None),
            passport: fleet.token("svc-passport", None),
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

    fn revoke(&self, fleet: &Fleet) -> (u16, Value) {
        let url = format!("{}/v1/passport/revoke", fleet.api("svc-passport"));
        let body = json!({"jti": "j", "reason": "drill"}).to_string();
        let reply = fleet.post(&url, Some(&self.passport), &body, &[]);
        (reply.status, serde_json::from_slice(&reply.body).unwrap())
    }
}

const WRITERS: [&str; 3] = ["ron-kms", "ron-ledger", "svc-passport"];

fn is_full(fleet: &Fleet, service: &str) -> bool {
    let reply = fleet.get(&format!("{}/readyz", fleet.health(service)), None);
    let body: Value = serde_json::from_slice(&reply.body).unwrap();
    body["missing"]
        .as_array()
        .unwrap()
        .contains(&json!("disk_full"))
}

fn names_the_reserve((status, doc): &(u16, Value)) {
    assert_eq!((*status, &doc["retryable"]), (503, &json!(true)), "{doc}");
    let detail = doc["detail"].as_str().unwrap();
    assert!(detail.contains("limits.disk_reserve"), "{detail}");
}

/// Refused while it is full, and done after `make_room`, by the same processes.
fn refused_until_there_is_room(fleet: &Fleet, users: &Users, make_room: impl FnOnce()) {
    for service in WRITERS {
        until("it reports a full disk", || is_full(fleet, service));
    }
    names_the_reserve(&users.sign(fleet));
    names_the_reserve(&users.revoke(fleet));
    until("the wallet says why", || {
        let (status, doc) = users.issue(fleet, "refused");
        assert_eq!(status, 503, "{doc}");
        doc["details"]["cause"] == "disk_full"
    });
    make_room();
    for service in WRITERS {
        until("it is ready by itself", || !is_full(fleet, service));
    }
    assert_eq!(users.sign(fleet).0, 200);
    assert_eq!(users.revoke(fleet).0, 200);
    until("the wallet goes on", || {
        users.issue(fleet, "refused").0 == 200
    });
}

#[test]
fn writes_stop_above_the_reserve_and_go_on_without_a_restart() {
    let fleet = Fleet::start();
    let users = Users::of(&fleet);
    assert_eq!(users.issue(&fleet, "before").0, 200);
    // The same as a disk that others fill: less is free than must stay free.
    let reserve = |bytes: &str| {
        for service in WRITERS {
            let config = fleet.dir().join(service).join("config.toml");
            let text = std::fs::read_to_string(&config).unwrap();
            let rest = text
                .lines()
                .filter(|l| !l.starts_with("limits.disk_reserve"));
            let line = format!("limits.disk_reserve = \"{bytes}\"");
            let text: Vec<&str> = std::iter::once(line.as_str()).chain(rest).collect();
            std::fs::write(&config, text.join("\n")).unwrap();
        }
        let pid = rustix::process::Pid::from_raw(fleet.pid().cast_signed()).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::HUP).unwrap();
    };
    reserve("1TiB");
    refused_until_there_is_room(&fleet, &users, || reserve("64MiB"));
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
    let filler = place.path().join("filler");
    for n in 0..20 {
        assert_eq!(users.issue(&fleet, &format!("before-{n}")).0, 200);
        assert_eq!(users.sign(&fleet).0, 200);
    }
    std::fs::write(&filler, vec![1_u8; 72 << 20]).unwrap();
    refused_until_there_is_room(&fleet, &users, || disk.grow("256m"));
    let url = format!("{}/v1/balance?account=a&asset=ron", fleet.api("svc-wallet"));
    let balance = json(&fleet.get(&url, Some(&users.wallet)), 200);
    assert_eq!(balance["amount_minor"], "21");
    let text = ok(&fleet.ron(&["audit", "verify"]));
    assert!(text.contains("verified"), "{text}");
}
