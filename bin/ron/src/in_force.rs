//! Has a running `ron up` read its files again, and waits until svc-passport acts by them.

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

/// Waits until `is_so` says that the issuer acts by `what`, a change that is written already. False when the services are
/// separate processes, which the operator has to reload.
pub fn put_in_force(
    layout: &Layout,
    what: &str,
    mut is_so: impl FnMut(&PassportClient, Deadline) -> Result<bool, String>,
) -> Result<bool, String> {
    if !fleet::reload(layout)? {
        eprintln!(
            "the services are separate processes: reload svc-passport (kill -HUP, or systemctl reload) to put it in force"
        );
        return Ok(false);
    }
    let at = fleet::reach(layout, "svc-passport")?;
    let issuer = PassportClient::new(&at.url, Credential::none(), at.http);
    let until = Deadline::within(WITHIN);
    let mut again = Deadline::within(AGAIN);
    loop {
        let waits = match is_so(&issuer, until.capped(CALL)) {
            Ok(true) => return Ok(true),
            Ok(false) => until.expired().then(String::new),
            Err(why) => Some(format!(": {why}")),
        };
        if let Some(why) = waits {
            return Err(format!(
                "{what} is written, but not in force yet{why}; `ron doctor` says why"
            ));
        }
        if again.expired() {
            fleet::reload(layout)?;
            again = Deadline::within(AGAIN);
        }
        net::pause(PAUSE);
    }
}
