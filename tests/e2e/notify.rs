//! The service manager hears from a service that it is ready, that it runs, and that it stops.

use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ron_tests::processes::Rig;
use ron_tests::until;

use crate::killed_workers::StopOnDrop;

#[test]
fn a_manager_hears_that_a_service_is_ready_runs_and_stops() {
    let name = format!("ron-notify-{}", std::process::id());
    let address = SocketAddr::from_abstract_name(&name).unwrap();
    let manager = UnixDatagram::bind_addr(&address).unwrap();
    let short = Some(Duration::from_millis(50));
    manager.set_read_timeout(short).unwrap();
    let (heard, stop) = (Mutex::new(String::new()), AtomicBool::new(false));
    let listen = || {
        let mut buf = [0; 1024];
        while !stop.load(Ordering::SeqCst) {
            if let Ok(n) = manager.recv(&mut buf) {
                let text = std::str::from_utf8(&buf[..n]).unwrap();
                heard.lock().unwrap().extend([text, "\n\n"]);
            }
        }
    };
    let has = |line: &str| heard.lock().unwrap().lines().any(|one| one == line);
    std::thread::scope(|scope| {
        let _stop = StopOnDrop(&stop);
        scope.spawn(listen);
        let rig = Rig::start_with(|_| {
            vec![
                ("NOTIFY_SOCKET", format!("@{name}").into()),
                ("WATCHDOG_USEC", "200000".into()),
            ]
        });
        until("ready", || has("READY=1"));
        until("alive", || has("WATCHDOG=1"));
        assert!(!has("STOPPING=1"));
        rig.signal("ron-ledger", "-TERM");
        until("stopping", || has("STOPPING=1"));
    });
    let heard = heard.into_inner().unwrap();
    assert_eq!(heard.matches("READY=1").count(), 1, "{heard}");
    let started = heard.split("\n\n").find(|text| text.contains("READY=1"));
    let started = started.unwrap();
    assert!(started.contains("STATUS=ready"), "{started}");
}
