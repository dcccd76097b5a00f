//! What brings the alerts about.

use super::*;

/// A policy with this pool, and usage that it pays for: one epoch of that name.
pub(super) fn epoch(fleet: &Watched, token: &str, id: &str, release: &Value) {
    let pool = format!("pool:default/{id}");
    let policy = json!({"format": 1, "tenant": "default", "id": id, "version": 1,
        "rule_set": "hamilton/1", "asset": "ron", "pool": {"account": pool, "amount_minor": "1000"},
        "metrics": {"m": {"weight": "1", "class": "metering"}}, "classes_allowed": ["metering"],
        "residual": {"owner": pool}, "release": release});
    let file = fleet.dir.path().join(format!("{id}.json"));
    std::fs::write(&file, policy.to_string()).unwrap();
    let name = file.to_str().unwrap();
    fleet.ron(&["policy", "sign", "--kind", "reward", name]);
    let signature = std::fs::read(format!("{name}.sig")).unwrap();
    let signature: Value = serde_json::from_slice(&signature).unwrap();
    let bearer = format!("Bearer {token}");
    let call = |method, path: &str, kind: &str, body: &str, status| {
        let url = format!("{}/rewarder/{path}", fleet.api("svc-rewarder"));
        let headers = [("Authorization", bearer.as_str()), ("Content-Type", kind)];
        let reply = fleet.send(method, &url, &headers, body).expect("an answer");
        json(&reply, status)
    };
    let json_type = "application/json";
    let body = json!({"policy": policy, "signature": signature}).to_string();
    let path = format!("policy/{id}");
    let stored = call(Method::PUT, &path, json_type, &body, 201);
    let usage = format!("account,metric,amount\nacct:{id},m,1\n");
    let sealed = call(Method::POST, "snapshots", "text/csv", &usage, 201);
    let body = json!({"snapshot": sealed["cid"], "policy_id": id, "policy_hash": stored["hash"]});
    let path = format!("epochs/{id}/compute");
    call(Method::POST, &path, json_type, &body.to_string(), 202);
}

/// Payments at the same time, more than the wallet holds; the connections, so that they stay open.
pub(super) fn flood(fleet: &Watched, token: &str) -> Vec<TcpStream> {
    let open = |n| {
        let mut stream = TcpStream::connect(("127.0.0.1", fleet.port("svc-wallet"))).unwrap();
        let body = json!({"to": "acct:payee", "asset": "ron", "amount_minor": "1"}).to_string();
        let length = body.len();
        let request = format!(
            "POST /v1/issue HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\nIdempotency-Key: flood-{n}\r\n\
             Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
        );
        stream.write_all(request.as_bytes()).unwrap();
        stream
    };
    (0..60).map(open).collect()
}

/// Callers that are refused: by their passports, by their secrets, and for want of a right.
pub(super) fn refused(fleet: &Watched) {
    let entries = format!("{}/v1/ledger/entries", fleet.api("ron-ledger"));
    let token = format!("{}/oauth2/token", fleet.api("svc-passport"));
    let reload = format!("{}/api/nodes/svc-wallet/reload", fleet.api("svc-admin"));
    let form = "grant_type=client_credentials&audience=svc-wallet";
    let secret = ron_auth::client_secret::generate("operator", &[7; 32]);
    let basic = b64::std(format!("operator:{secret}").as_bytes());
    let basic = format!("Basic {basic}");
    for _ in 0..40 {
        let headers = [("Authorization", "Bearer a.b.c")];
        let call = Call::get(&entries, Deadline::within(Duration::from_secs(5)));
        let reply = fleet.http.call(call.headers(&headers)).unwrap();
        assert_eq!(reply.status, 401);
        let headers = [
            ("Authorization", basic.as_str()),
            ("Content-Type", "application/x-www-form-urlencoded"),
        ];
        let reply = fleet.send(Method::POST, &token, &headers, form).unwrap();
        assert_eq!(reply.status, 401);
    }
    for _ in 0..10 {
        let headers = [
            ("X-User", "vera"),
            ("X-Groups", "staff"),
            ("X-Ron-Console", "1"),
            ("Content-Type", "application/json"),
        ];
        let body = "{\"confirm\":\"svc-wallet\"}";
        let reply = fleet.send(Method::POST, &reload, &headers, body).unwrap();
        assert_eq!(reply.status, 403);
    }
}

/// Leaves a process few file descriptors beside those that it has open; returns how many it could have.
pub(super) fn descriptors(fleet: &Watched, name: &str) -> String {
    let pid = fleet.running[name].id();
    let mut command = Command::new("prlimit");
    command.args(["--pid", &pid.to_string(), "--nofile", "--noheadings"]);
    let before = ok(&command.args(["--output", "SOFT"]).output().unwrap());
    let all = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    let open = all.count();
    limit(fleet, name, (open + open / 8).to_string());
    before.trim().to_owned()
}

pub(super) fn limit(fleet: &Watched, name: &str, descriptors: String) {
    let pid = fleet.running[name].id().to_string();
    let limit = format!("--nofile={descriptors}:");
    let args = ["--pid", &pid, &limit];
    ok(&Command::new("prlimit").args(args).output().unwrap());
}

/// Fills the disk with a file, so that it would be full within hours, until told to stop.
pub(super) fn fill(file: &Path, stop: &AtomicBool) {
    let dir = rustix::fs::statvfs(file.parent().unwrap()).unwrap();
    let step = (dir.f_bavail * dir.f_frsize / 10_000).max(1 << 20);
    let ballast = std::fs::File::create(file).unwrap();
    let flags = rustix::fs::FallocateFlags::empty();
    // Bounded: a panic in the test must not leave it running.
    for n in 0..PATIENCE.as_secs() {
        if stop.load(Ordering::SeqCst) {
            break;
        }
        rustix::fs::fallocate(&ballast, flags, n * step, step).unwrap();
        std::thread::sleep(Duration::from_secs(1));
    }
    std::fs::remove_file(file).unwrap();
}

/// Holds the lock of a database, as a backup program or a stuck session does, until it is dropped.
pub(super) fn locked(database: &Path) -> Process {
    let program = "import sqlite3, sys, time; db = sqlite3.connect(sys.argv[1], timeout=10, isolation_level=None); \
        db.execute('BEGIN IMMEDIATE'); print('held', flush=True); time.sleep(90)";
    let child = Command::new("python3")
        .args(["-c", program])
        .arg(database)
        .stdout(Stdio::piped())
        .spawn();
    let mut holder = Process(child.unwrap());
    let mut said = [0; 4];
    let output = holder.stdout.as_mut().unwrap();
    output.read_exact(&mut said).unwrap();
    holder
}

/// Payments, one after the other, while the ledger hangs and after; their answers may be errors.
pub(super) fn pay(fleet: &Watched, wallet: &str, stop: &AtomicBool) {
    let began = Instant::now();
    for n in 0.. {
        if stop.load(Ordering::SeqCst) || began.elapsed() > 2 * PATIENCE {
            return;
        }
        fleet.issue(wallet, &format!("pay-{n}"), "acct:payee");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// A byte of an entry of a log is another one.
pub(super) fn alter(segment: &Path) {
    let mut bytes = std::fs::read(segment).unwrap();
    let at = bytes.len() / 2;
    bytes[at] ^= 1;
    std::fs::write(segment, bytes).unwrap();
}

/// Lets a process run for a tenth of the time.
pub(super) fn stutter(fleet: &Watched, name: &str, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        fleet.signal(name, "-STOP");
        std::thread::sleep(Duration::from_millis(900));
        fleet.signal(name, "-CONT");
        std::thread::sleep(Duration::from_millis(100));
    }
}
