//! The journal of answers at a start: whether it is whole, what the audit log says about it, and what the operator
//! accepts.

use ron_service::ReadyBoard;

use super::log::OpenedLog;
use crate::audit::leaf::{Draft, Op};
use crate::replay::{Journal, Replay};
use crate::settings::Settings;

/// The cause in readiness.
const CAUSE: &str = "replay";

/// Compares the journal with the log. When answers are lost, accepts that as the settings say, with a leaf, or takes no new
/// operation ids: everything else goes on.
pub fn settle(
    journal: &mut Journal,
    replay: &Replay,
    opened: &mut OpenedLog,
    (settings, ready): (&Settings, &ReadyBoard),
) {
    if let Some(newest) = &opened.answered {
        journal.expect(newest);
    }
    if journal.losses().is_empty() {
        return;
    }
    let (id, lost) = (journal.loss_id(), journal.losses().join("; "));
    let why = if settings.keys.replay_accept_loss == id {
        match accept(journal, opened, &lost) {
            Ok(()) => return,
            Err(error) => {
                format!("the loss of remembered answers ({lost}) cannot be accepted: {error}")
            }
        }
    } else {
        format!(
            "remembered answers are lost ({lost}): requests with a new op_id are refused. Restore the files and restart; or set \
             replay.accept_loss = \"{id}\" and restart: what is damaged is set aside, and requests of the last 24 hours may be performed again"
        )
    };
    tracing::error!(event = "replay_lost", loss = id, reason = lost);
    replay.close();
    ready.degrade(CAUSE, why);
}

fn accept(journal: &mut Journal, opened: &mut OpenedLog, lost: &str) -> Result<(), String> {
    journal.accept_losses().map_err(|e| e.to_string())?;
    let draft = Draft::service(Op::ForgetAnswers, lost);
    let leaf = opened.writer.append(draft)?;
    tracing::warn!(event = "replay_loss_accepted", leaf, reason = lost);
    Ok(())
}
