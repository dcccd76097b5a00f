//! The desktop's browser.
//!
//! **Invariant:** an address is in no argument of a process, because every user of the host can read those in /proc, and
//! an address may hold a code. The browser is started with a private file that leads to the address.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, UNIX_EPOCH};

use ron_kernel::{Clock as _, SystemClock};

use crate::layout::{make_dir, state_dir, write_atomic};
use crate::markup::escape;

/// The program that starts the browser of the desktop.
const OPENER: &str = "xdg-open";
/// After this time a browser has read its page, and the code of `ron console` has expired.
const PAGE_LIFE: Duration = Duration::from_secs(60);
/// How the names of the pages begin.
const PREFIX: &str = "open-";

/// Opens an address. It is printed in any case, so a failure is no error. Returns the page that leads to the address; a
/// page that the caller does not remove is removed by a later command.
pub fn open(address: &str) -> Option<Page> {
    let opened = pages().and_then(|dir| open_with(OPENER, &dir, address));
    let cannot = |why: &String| {
        eprintln!("no browser was started ({why}); open the address yourself");
    };
    opened.inspect_err(cannot).ok()
}

/// A private file that leads a browser to an address.
#[derive(Debug)]
pub struct Page {
    path: PathBuf,
}

impl Page {
    pub fn remove(self) {
        // A later command tries again.
        let _ = fs::remove_file(&self.path);
    }
}

fn open_with(program: &str, dir: &Path, address: &str) -> Result<Page, String> {
    make_dir(dir)?;
    remove_old(dir);
    let path = dir.join(format!("{PREFIX}{}.html", std::process::id()));
    write_atomic(&path, html(address).as_bytes(), 0o600)?;
    let page = Page { path };
    let started = Command::new(program)
        .arg(&page.path)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    match started {
        Ok(_) => Ok(page),
        Err(e) => {
            page.remove();
            Err(format!("{program}: {e}"))
        }
    }
}

/// The runtime directory is in memory and ends with the user's last session; the state directory is for hosts without one.
fn pages() -> Result<PathBuf, String> {
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let place = runtime.filter(|dir| dir.is_absolute()).or_else(state_dir);
    let place = place.ok_or("there is no directory for its page")?;
    Ok(place.join("ron-pages"))
}

/// Removes the pages of earlier commands.
fn remove_old(dir: &Path) {
    let Ok(entries) = fs::read_dir(dir) else {
        return;
    };
    let now = Duration::from_millis(SystemClock.unix_ms());
    for entry in entries.flatten() {
        let is_page = entry.file_name().to_string_lossy().starts_with(PREFIX);
        let written = entry.metadata().and_then(|meta| meta.modified());
        let written = written
            .ok()
            .and_then(|at| at.duration_since(UNIX_EPOCH).ok());
        let age = written.map(|written| now.saturating_sub(written));
        if is_page && age.is_some_and(|age| age >= PAGE_LIFE) {
            let _ = fs::remove_file(entry.path()); // the next command tries again
        }
    }
}

fn html(address: &str) -> String {
    let escaped = escape(address);
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n<meta name=\"referrer\" content=\"no-referrer\">\n\
         <meta http-equiv=\"refresh\" content=\"0; url={escaped}\">\n<title>ron</title>\n\
         <p><a href=\"{escaped}\" rel=\"noreferrer\">Continue to sign in</a></p>\n</html>\n"
    )
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use ron_kernel::Deadline;

    use super::*;

    #[test]
    fn a_browser_is_started_with_a_private_page_and_not_with_the_address() {
        let place = tempfile::tempdir().expect("a directory");
        let (dir, said) = (place.path().join("pages"), place.path().join("said"));
        let opener = place.path().join("opener");
        let script = format!(
            "#!/bin/sh\necho \"$@\" > {0}.new\nmv {0}.new {0}\n",
            said.display()
        );
        write_atomic(&opener, script.as_bytes(), 0o700).expect("written");
        let address = "https://x.example/?a=1&state=\"'<s>#code=secret";
        let page = open_with(&opener.display().to_string(), &dir, address).expect("it starts");
        let end = Deadline::within(Duration::from_secs(30));
        while !said.exists() {
            assert!(!end.expired(), "the program is not started");
            crate::net::pause(Duration::from_millis(5));
        }
        let said = fs::read_to_string(&said).expect("arguments");
        assert_eq!(said.trim(), page.path.display().to_string());
        let mode =
            |path: &Path| fs::metadata(path).expect("it exists").permissions().mode() & 0o777;
        assert_eq!((mode(&dir), mode(&page.path)), (0o700, 0o600));
        let text = fs::read_to_string(&page.path).expect("a page");
        let escaped = "https://x.example/?a=1&amp;state=&quot;&#39;&lt;s&gt;#code=secret\"";
        assert_eq!(text.matches(escaped).count(), 2, "{text}");
        page.remove();
        assert_eq!(fs::read_dir(&dir).expect("a directory").count(), 0);
    }

    #[test]
    fn pages_that_commands_have_left_are_removed_later() {
        let place = tempfile::tempdir().expect("a directory");
        let dir = place.path();
        for (name, is_old) in [
            ("open-1.html", true),
            ("open-2.html", false),
            ("mine", true),
        ] {
            let file = fs::File::create(dir.join(name)).expect("written");
            if is_old {
                file.set_modified(UNIX_EPOCH + PAGE_LIFE).expect("set");
            }
        }
        let missing = dir.join("none").display().to_string();
        open_with(&missing, dir, "http://x").expect_err("there is no such program");
        let names = fs::read_dir(dir).expect("a directory");
        let names = names.map(|entry| entry.expect("an entry").file_name());
        let mut names: Vec<_> = names.collect();
        names.sort();
        assert_eq!(names, ["mine", "open-2.html"]);
    }
}
