//! Client of the health port that every service has.

use std::sync::Arc;
use std::time::Duration;

use ron_http::{Credential, HttpClient};
use ron_kernel::Deadline;
use ron_proto::events::EventPage;
use ron_proto::status::ServiceStatus;

use crate::call::{Caller, ClientError, encode};

#[derive(Debug, Clone)]
pub struct HealthClient(Caller);

impl HealthClient {
    /// A client of the health port at `base`; what it reads needs no credential.
    pub fn new(base: &str, http: Arc<HttpClient>) -> Self {
        Self(Caller::new(base, Credential::none(), http))
    }

    /// State of the service and its parts.
    pub fn status(&self, deadline: Deadline) -> Result<ServiceStatus, ClientError> {
        self.0.get("/api/v1/status", deadline)
    }

    /// Events after the last one of an earlier page, or all that the service has; waits up to `wait` for the next one, and the
    /// deadline must be later.
    pub fn events(
        &self,
        seen: Option<&EventPage>,
        wait: Duration,
        deadline: Deadline,
    ) -> Result<EventPage, ClientError> {
        let seen = seen.map(|page| format!("after={}&boot={}&", page.next, encode(&page.boot)));
        let seen = seen.unwrap_or_default();
        let path = format!("/api/v1/events?{seen}wait={}", wait.as_secs());
        self.0.get(&path, deadline)
    }
}
