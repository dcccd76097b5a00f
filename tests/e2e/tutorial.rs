//! Carries out the tutorial in two terminals, as a newcomer would: the first one builds and starts the services, the
//! second one does the rest. The boxes below the commands are compared with the output.

use std::fs::{self, File};
use std::process::Child;
use std::time::{Duration, Instant};

use ron_tests::{tools, unhurried, until, workspace};

use crate::documented::Room;
use crate::runbooks::{compared, missing, script, steps};

const PAGE: &str = "docs/tutorial.md";
/// What the newcomer types after the build must be done long before the page's ten minutes are over.
const MOST: Duration = Duration::from_mins(2);

/// The first terminal, ended in every case.
struct Terminal(Child);

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_newcomer_gets_from_the_clone_to_a_verified_receipt() {
    let room = Room::new();
    let text = fs::read_to_string(workspace().join(PAGE)).unwrap();
    let (mut steps, by_hand) = steps(&room.placed(&text));
    assert_eq!(by_hand, 0, "{PAGE} has blocks that nothing carries out");
    let first = steps.remove(0);
    let dir = room.path("tmp");
    // The shell becomes `ron up`, so that a signal meets that.
    let commands = first.commands.replace("\nron up", "\nexec ron up");
    assert_ne!(
        commands, first.commands,
        "the first terminal starts `ron up`"
    );
    let shown = dir.join("first");
    let begun = Instant::now();
    let mut bash = room.command(&dir, &format!("set -euo pipefail\n{commands}"));
    let child = unhurried(&mut bash)
        .stdout(File::create(&shown).unwrap())
        .spawn();
    let mut terminal = Terminal(child.unwrap());
    let mut said = String::new();
    until("the output of `ron up`", || {
        said = fs::read_to_string(&shown).unwrap();
        missing(&first.says, &said).is_none()
    });
    let mut bash = room.command(&dir, &script(&steps));
    let status = bash.status().unwrap();
    let took = begun.elapsed();
    compared(&steps, &dir, &format!("{status}, after\n{said}"));
    assert!(status.success(), "{status}");
    println!(
        "{PAGE}: all commands after the build took {:.1} s",
        took.as_secs_f64()
    );
    assert!(took < MOST, "it took {took:?}");
    tools::signal(terminal.0.id(), "-INT");
    assert_eq!(terminal.0.wait().unwrap().code(), Some(0), "Ctrl-C");
}
