//! Hosts with a network each: a test in a network namespace of its own, a bridge in it, and a namespace for each host at the bridge. Parts of
//! such a network can be cut from others without a word, as by a switch that fails. Nothing of it is seen outside of the test, and
//! all of it is gone when the test has ended. Needs root.

use std::fs;
use std::path::Path;
use std::process::Command;

use rustix::fs::FallocateFlags;

use crate::cluster::run;

/// Set in the process that has a network of its own.
const INSIDE: &str = "RON_HA_APART";
/// The network of the hosts; the last address of it is the test's own, where clients are.
pub const NETWORK: &str = "10.77.0";
/// The number of the clients in [`part`] and [`join`], beside those of hosts.
pub const CLIENTS: usize = 253;
/// An Ethernet address that nobody has: what is sent to it arrives nowhere.
const NOBODY: &str = "02:00:00:00:00:66";
/// Bytes of a host's disk.
const DISK: u64 = 2 << 30;

fn ip(args: &str) {
    run(Command::new("ip").args(args.split(' ')));
}

/// The name of a host's namespace, which only this test has in its own mount namespace.
pub fn name_of(host: usize) -> String {
    format!("ron-{host}")
}

pub fn address(host: usize) -> String {
    format!("{NETWORK}.{}", host + 1)
}

/// Runs the test of this name again, in namespaces of its own; true in that second run, which makes the network. False when the
/// second run has ended well, or when the user may not make namespaces, which is printed.
pub fn is_inside(test: &str) -> bool {
    if !rustix::process::geteuid().is_root() {
        println!("left out: namespaces of the network need root");
        return false;
    }
    if std::env::var_os(INSIDE).is_some() {
        make_network();
        return true;
    }
    let own = std::env::current_exe().expect("a path");
    let status = Command::new("unshare")
        .args("--net --mount --pid --fork --mount-proc --kill-child".split(' '))
        // The first process of a namespace has to collect those that have lost their parents, as Patroni's PostgreSQL does.
        .args(["bash", "-c", "\"$@\"; exit", "first"])
        .arg(own)
        .args([test, "--exact", "--include-ignored", "--nocapture"])
        .env(INSIDE, "1")
        .status();
    assert!(status.expect("util-linux").success(), "it failed inside");
    false
}

fn make_network() {
    // The names of namespaces are files below it.
    run(Command::new("mount").args(["-t", "tmpfs", "ron", "/run"]));
    ip("link set lo up");
    ip("link add hub type bridge");
    ip(&format!("addr add {}/24 dev hub", address(CLIENTS)));
    ip("link set hub up");
}

/// Makes the namespace of a host and connects it, and gives it a disk at this empty directory.
pub fn add(host: usize, disk: &Path) {
    let (name, address) = (name_of(host), address(host));
    ip(&format!("netns add {name}"));
    ip(&format!(
        "link add port-{host} type veth peer name eth0 netns {name}"
    ));
    ip(&format!("link set port-{host} master hub up"));
    ip(&format!("-n {name} addr add {address}/24 dev eth0"));
    ip(&format!("-n {name} link set eth0 up"));
    ip(&format!("-n {name} link set lo up"));
    let mut mount = Command::new("mount");
    mount.args(["-t", "tmpfs", "-o", &format!("size={DISK}"), "ron"]);
    run(mount.arg(disk));
}

/// Takes the disk away again, so that its directory can be removed.
pub fn remove(disk: &Path) {
    run(Command::new("umount").arg("--lazy").arg(disk));
}

/// The command in the namespace of a host.
pub fn inside(host: usize, command: &Command) -> Command {
    let mut inner = Command::new("ip");
    inner.args(["netns", "exec", &name_of(host)]);
    inner.arg(command.get_program()).args(command.get_args());
    if let Some(dir) = command.get_current_dir() {
        inner.current_dir(dir);
    }
    inner
}

/// `change` for what `from` knows of the way to `to`.
fn neighbour(from: usize, to: usize, change: &str, more: &str) {
    let (whose, device) = match from {
        CLIENTS => (String::new(), "hub"),
        host => (format!("-n {} ", name_of(host)), "eth0"),
    };
    let to = address(to);
    ip(&format!("{whose}neigh {change} {to} dev {device}{more}"));
}

/// From now on nothing gets from the one to the others, or back, and nobody is told.
pub fn part(one: usize, others: &[usize]) {
    for (from, to) in ways(one, others) {
        neighbour(
            from,
            to,
            "replace",
            &format!(" lladdr {NOBODY} nud permanent"),
        );
    }
}

pub fn join(one: usize, others: &[usize]) {
    for (from, to) in ways(one, others) {
        neighbour(from, to, "del", "");
    }
}

fn ways(one: usize, others: &[usize]) -> impl Iterator<Item = (usize, usize)> {
    others
        .iter()
        .flat_map(move |other| [(one, *other), (*other, one)])
}

/// A file takes what is left of the disk.
pub fn fill(disk: &Path) {
    let file = fs::File::create(disk.join("full")).expect("a file");
    let mut step = DISK;
    let mut size = 0;
    // Servers write meanwhile, and the last pages matter.
    while step >= 4_096 {
        match rustix::fs::fallocate(&file, FallocateFlags::empty(), size, step) {
            Ok(()) => size += step,
            Err(_) => step /= 2,
        }
    }
}

pub fn empty(disk: &Path) {
    fs::remove_file(disk.join("full")).expect("the file of `fill`");
}
