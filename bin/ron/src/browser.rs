//! The desktop's browser.

use std::process::{Command, Stdio};

/// Opens an address. It is printed in any case, so a failure is no error.
pub fn open(address: &str) {
    let started = Command::new("xdg-open")
        .arg(address)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    if let Err(e) = started {
        eprintln!("no browser was started (xdg-open: {e}); open the address yourself");
    }
}
