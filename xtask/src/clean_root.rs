//! Both commands of the README on a machine with nothing on it: `cargo run --release -- up`, then scripts/test.sh; prints
//! the time of each and the disk it took.
//!
//! As root with debootstrap: in a fresh Debian. Otherwise: on this system with an empty HOME, CARGO_HOME and target.

use std::path::{Path, PathBuf};
use std::time::Instant;

use crate::builds::cargo_home;
use crate::cmd::Cmd;
use crate::files;
use crate::task::{Args, Failure, Outcome};

/// Set for the run inside the mount namespace of its own.
const UNSHARED: &str = "RON_CLEAN_ROOT_UNSHARED";
const MOUNTS: [&str; 3] = ["proc", "dev", "sys"];
/// How this host reaches the network: proxies, and the authorities that it trusts.
const NETWORK: [&str; 6] = [
    "http_proxy",
    "https_proxy",
    "no_proxy",
    "SSL_CERT_FILE",
    "PIP_CERT",
    "NODE_EXTRA_CA_CERTS",
];

/// The first command of the README, until the fleet is ready and has done the demo.
const UP: &str = r#"
cargo run --release --quiet -- up --base-port 0 >up.log 2>up.err &
pid=$!
until grep -qx ready up.log; do
  kill -0 $pid 2>/dev/null || { cat up.log up.err >&2; exit 1; }
  sleep 1
done
./target/release/ron demo --json
# cargo waits for its child: the signal goes to the program itself.
kill -TERM "$(sed -n "s/.*\"pid\": *\([0-9]*\).*/\1/p" "$HOME/.local/state/ron/run/endpoints.json")"
wait $pid
"#;

pub fn clean_root(args: &Args) -> Outcome {
    let is_root = match args.text("mode") {
        "" => can_make_roots()?,
        "root" => true,
        "home" => false,
        other => return Err(Failure(format!("say `root` or `home`, not `{other}`"))),
    };
    // What is mounted below is seen by this process and its children alone, and gone with them.
    if is_root && std::env::var_os(UNSHARED).is_none() {
        let own = std::env::current_exe().map_err(|e| Failure(e.to_string()))?;
        return Cmd::new("unshare")
            .args(["--mount", "--propagation", "private"])
            .arg(own)
            .args(std::env::args_os().skip(1))
            .env(UNSHARED, "1")
            .run();
    }
    let begun = Instant::now();
    let room = Room::make(args, is_root, begun)?;
    let mode = if is_root { "root" } else { "home" };
    room.say(&format!(
        "a clean {mode}: {}, {} before",
        room.inside("cargo --version").output()?,
        size(&room.work)?
    ));
    if args.is_set("dry") {
        return Ok(());
    }
    for command in args.text("commands").split_whitespace() {
        room.measure(command)?;
    }
    Ok(())
}

fn can_make_roots() -> Outcome<bool> {
    let is_root = Cmd::new("id").arg("-u").output()? == "0";
    Ok(is_root && Cmd::sh("command -v debootstrap").output().is_ok())
}

/// Disk that a directory takes, without what is mounted in it.
fn size(dir: &Path) -> Outcome<String> {
    let usage =
        Cmd::sh("du -shx --exclude=proc --exclude=sys --exclude=dev \"$1\" 2>/dev/null | cut -f1");
    usage.arg(dir).output()
}

/// The clean place, removed at the end.
struct Room {
    work: PathBuf,
    /// The home directory in it, from outside.
    home: PathBuf,
    is_root: bool,
    keep: bool,
    begun: Instant,
    /// The toolchain, which is taken over as it is, without the registry that it has read.
    rust: String,
}

impl Room {
    fn make(args: &Args, is_root: bool, begun: Instant) -> Outcome<Self> {
        let work = files::scratch("clean-root")?.keep();
        let home = if is_root {
            work.join("home/new")
        } else {
            work.clone()
        };
        let rust = Cmd::new("rustc").args(["--print", "sysroot"]).output()?;
        let room = Self {
            work,
            home,
            is_root,
            keep: args.is_set("keep"),
            begun,
            rust,
        };
        Cmd::new("chmod").arg("755").arg(&room.work).run()?;
        if is_root {
            room.debian(args.text("suite"), args.text("mirror"))?;
        }
        // A registry mirror that this host is told to use is a fact of its network too.
        let config = cargo_home().join("config.toml");
        if config.exists() {
            let to = room.home.join(".cargo/config.toml");
            Cmd::new("install").arg("-D").arg(config).arg(to).run()?;
        }
        Cmd::new("git")
            .args(["clone", "--quiet", "."])
            .arg(room.home.join("ron"))
            .run()?;
        Ok(room)
    }

    /// A fresh Debian with a C compiler, git, make and the toolchain.
    fn debian(&self, suite: &str, mirror: &str) -> Outcome {
        self.say(&format!("debootstrap {suite} from {mirror}"));
        let packages = "--include=ca-certificates,gcc,libc6-dev,git,make";
        Cmd::sh("log=$1.log; shift; \"$@\" >\"$log\" 2>&1 || { tail -5 \"$log\" >&2; exit 1; }; rm -f \"$log\"")
            .arg(&self.work)
            .args(["debootstrap", "--variant=minbase", packages, suite])
            .arg(&self.work)
            .arg(mirror)
            .run()?;
        for place in MOUNTS {
            Cmd::new("mount")
                .args(["--rbind", &format!("/{place}")])
                .arg(self.work.join(place))
                .hint("this host does not let root mount; try --mode home")
                .run()?;
        }
        Cmd::sh(
            "cp /etc/resolv.conf \"$1/etc/resolv.conf\"
             find /etc/apt/apt.conf.d -name '99*' -exec cp {} \"$1/etc/apt/apt.conf.d/\" \\;
             if [ -d /usr/local/share/ca-certificates ]; then
               cp -r /usr/local/share/ca-certificates/. \"$1/usr/local/share/ca-certificates/\"
               chroot \"$1\" update-ca-certificates >/dev/null 2>&1 || true
             fi
             mkdir -p \"$1/opt/rust\" \"$1/home/new\"
             cp -a \"$2/.\" \"$1/opt/rust/\"",
        )
        .arg(&self.work)
        .arg(&self.rust)
        .run()
    }

    /// A script of bash in the source, seen from inside.
    fn inside(&self, script: &str) -> Cmd {
        let (home, rust) = if self.is_root {
            ("/home/new".into(), "/opt/rust")
        } else {
            (self.home.display().to_string(), self.rust.as_str())
        };
        let entered = if self.is_root {
            Cmd::new("chroot").arg(&self.work).arg("env")
        } else {
            Cmd::new("env")
        };
        let mut entered = entered
            .arg("-i")
            .arg(format!("HOME={home}"))
            .arg(format!("CARGO_HOME={home}/.cargo"))
            .args(["TERM=dumb", "LANG=C.UTF-8"])
            .arg(format!("PATH={rust}/bin:/usr/sbin:/usr/bin:/sbin:/bin"));
        for name in NETWORK {
            if let Ok(value) = std::env::var(name) {
                entered = entered.arg(format!("{name}={value}"));
            }
        }
        let script = format!("cd '{home}/ron'; {script}");
        entered.args(["bash", "-euc", &script])
    }

    fn measure(&self, command: &str) -> Outcome {
        let begun = Instant::now();
        let (shown, script) = match command {
            "up" => ("cargo run --release -- up", UP),
            "test" => ("./scripts/test.sh", "./scripts/test.sh"),
            other => {
                return Err(Failure(format!(
                    "the commands are `up` and `test`, not `{other}`"
                )));
            }
        };
        self.say(shown);
        self.inside(script).run()?;
        println!(
            "clean-root: {command}: {} s, source with target {}, cargo home {}",
            begun.elapsed().as_secs(),
            size(&self.home.join("ron"))?,
            size(&self.home.join(".cargo"))?
        );
        Ok(())
    }

    fn say(&self, what: &str) {
        println!("=== {what} ({} s)", self.begun.elapsed().as_secs());
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        let mut clean = Ok(String::new());
        for place in MOUNTS {
            let place = self.work.join(place);
            let unmount = Cmd::sh("! mountpoint -q \"$1\" || umount -l \"$1\"").arg(place);
            clean = clean.and(unmount.output());
        }
        // Nothing is removed while a directory of the host may still be mounted below.
        let removed = match (self.keep, clean) {
            (true, clean) => clean,
            (false, Ok(_)) => Cmd::new("rm")
                .args(["-rf", "--one-file-system"])
                .arg(&self.work)
                .output(),
            (false, Err(failure)) => Err(failure),
        };
        if let Err(failure) = removed {
            eprintln!("xtask: {} stays: {failure}", self.work.display());
        }
    }
}
