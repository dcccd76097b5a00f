//! Maps a failed submission to its problem document.

use ron_proto::Problem;

use crate::ledger::SubmitError;

impl From<SubmitError> for Problem {
    fn from(e: SubmitError) -> Self {
        let text = e.to_string();
        match e {
            SubmitError::Bad { .. } => Self::bad_request(text),
            SubmitError::Busy { retry_after_s } => Self::busy(retry_after_s),
            SubmitError::Expired | SubmitError::Unknown(_) => Self::deadline_exceeded(text),
            SubmitError::Closed(why) => why.problem(),
            SubmitError::Unable(_) => Self::unavailable(text, 5),
        }
    }
}
