//! Has a running `ron up` read its files again, and waits until its services act by them.

use std::time::Duration;

use ron_client::{Credential, PassportClient};
use ron_kernel::Deadline;

use crate::layout::Layout;
use crate::{fleet, net};

/// Maximum wait for a change to come into force.
const WITHIN: Duration = Duration::from_secs(60);
/// Pause before a reload that had no effect is repeated: the KMS may have been busy.
const AGAIN: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(100);
const CALL: Duration = Duration::from_secs(3);

/// Has a running `ron up` read its files again. False when the services are separate processes, which the operator has to reload.
pub fn is_reloaded(layout: &Layout, services: &[&str]) -> Result<bool, String> {
    let is_up = fleet::reload(layout)?;
    if !is_up {
        eprintln!(
            "the services are separate processes: reload {} (kill -HUP, or systemctl reload) to put it in force",
            services.join(" and ")
        );
    }
    Ok(is_up)
}

/// The deadline of a change that comes into force from now on.
pub fn deadline() -> Deadline {
    Deadline::within(WITHIN)
}

/// Waits until `is_so`, which may take as long as its argument says, and has the files read again meanwhile. False at the deadline.
pub fn wait(
    layout: &Layout,
    until: Deadline,
    mut is_so: impl FnMut(Deadline) -> Result<bool, String>,
) -> Result<bool, String> {
    let mut again = Deadline::within(AGAIN);
    while !is_so(until.capped(CALL))? {
        if until.expired() {
            return Ok(false);
        }
        if again.expired() {
            fleet::reload(layout)?;
            again = Deadline::within(AGAIN);
        }
        net::pause(PAUSE);
    }
    Ok(true)
}

/// Waits until `is_so` says that the issuer acts by `what`, a change that is written already. False when the services are
/// separate processes, which the operator has to reload.
pub fn put_in_force(
    layout: &Layout,
    what: &str,
    mut is_so: impl FnMut(&PassportClient, Deadline) -> Result<bool, String>,
) -> Result<bool, String> {
    if !is_reloaded(layout, &["svc-passport"])? {
        return Ok(false);
    }
    let at = fleet::reach(layout, "svc-passport")?;
    let issuer = PassportClient::new(&at.url, Credential::none(), at.http);
    let not_so =
        |why: &str| format!("{what} is written, but not in force yet{why}; `ron doctor` says why");
    let is_so = |by| is_so(&issuer, by).map_err(|why| not_so(&format!(": {why}")));
    if wait(layout, deadline(), is_so)? {
        return Ok(true);
    }
    Err(not_so(""))
}
