//! What happened in a service, as its health port tells it: `GET /api/v1/events`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Timestamp;

/// How much an event matters to an operator.
#[derive(
    Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// As expected.
    Info,
    /// Somebody should know.
    Warn,
    /// Somebody must act.
    Error,
}

impl Severity {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Info => "info",
            Self::Warn => "warn",
            Self::Error => "error",
        }
    }
}

/// Declares the kinds of events: variant, word, where they come from, what `reason` and `number` hold, meaning.
macro_rules! kinds {
    ($($kind:ident $word:literal, $from:literal, $reason:literal, $number:literal, $meaning:literal;)+) => {
        /// What happened. A closed list for all services.
        #[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, JsonSchema)]
        pub enum EventKind {
            $(#[doc = $meaning] #[serde(rename = $word)] $kind,)+
        }

        impl EventKind {
            /// Every kind, in the order of the documentation.
            pub const ALL: &'static [Self] = &[$(Self::$kind),+];

            /// The word in documents and log lines.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$kind => $word),+ }
            }

            /// Its row in the documentation: where it comes from, its reason, its number, its meaning.
            pub const fn row(self) -> [&'static str; 4] {
                match self { $(Self::$kind => [$from, $reason, $number, $meaning]),+ }
            }
        }
    };
}

kinds! {
    Started "started", "all", "", "",
        "The service has started and serves its API.";
    Ready "ready", "all", "", "",
        "Nothing stops writes any more: `/readyz` answers 200.";
    NotReady "not_ready", "all", "cause as in `/readyz`", "",
        "A cause that stops writes has appeared: `/readyz` answers 503.";
    NotReadyCleared "not_ready_cleared", "all", "cause as in `/readyz`", "",
        "A cause that stopped writes is gone; others may be left.";
    Degraded "degraded", "all", "cause as in `/readyz`", "",
        "A cause that weakens the service has appeared; writes are served.";
    DegradedCleared "degraded_cleared", "all", "cause as in `/readyz`", "",
        "A cause that weakened the service is gone.";
    ThreadRestarted "thread_restarted", "all", "thread as in `/api/v1/topology`", "",
        "A thread has crashed and is started again.";
    ThreadLost "thread_lost", "all", "thread as in `/api/v1/topology`", "",
        "A thread has crashed too often and has ended.";
    Fatal "fatal", "all", "", "",
        "The process ends, because it cannot go on.";
    Reloaded "reloaded", "all", "`changed` or `unchanged`", "changed keys",
        "The configuration file was read again and is in force.";
    ReloadRefused "reload_refused", "all", "`invalid`, `needs_restart`, `refused`", "problems or keys",
        "The configuration file was read again and refused; the old configuration stays.";
    DateAccepted "date_accepted", "all", "", "",
        "An operator has accepted the machine's date.";
    BreakerOpened "breaker_opened", "all", "", "",
        "Calls to another service failed too often and are not made for a time; the log names its address.";
    BreakerClosed "breaker_closed", "all", "", "",
        "Calls to a service whose breaker was open succeed again.";
    KeyChanged "key_changed", "ron-kms", "operation as in the audit log", "",
        "A key, its versions, aliases, policy, grants or approvals were changed.";
    PolicyAdopted "policy_adopted", "ron-kms, svc-passport, svc-wallet, svc-rewarder", "`issuer`, `wallet`, `reward`", "version",
        "A signed policy is in force.";
    PolicyRefused "policy_refused", "svc-passport, svc-rewarder", "`issuer`, `reward`", "",
        "A signed policy that was found is refused; the one before it stays in force.";
    Revoked "revoked", "svc-passport", "`subject`, `kid`, `epoch`", "",
        "The tokens of a holder, of a key, or of all earlier revocation epochs were revoked.";
    LogRole "log_role", "ron-ledger", "`active`, `standby`", "epoch of the log",
        "This node writes the log that several nodes share from now on, or writes it no more.";
    EpochState "epoch_state", "svc-rewarder", "`review`, `held`, `settled`, `quarantined`, `failed`, `withdrawn`", "",
        "An epoch has come into this state.";
    NodeState "node_state", "svc-admin", "`healthy`, `degraded`, `down`, `unknown`", "nodes in that state",
        "A node that the console watches has come into this state.";
    Draining "draining", "all", "", "",
        "The service ends: it finishes its requests and takes no new ones.";
}

/// One event of a service. It holds no name of a key, account, client or caller.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ServiceEvent {
    /// Identifies the run of the service; it changes with each start.
    pub boot: String,
    /// Number of the event within the run, from 1.
    pub seq: u64,
    /// When it happened, by the service's clock.
    pub at: Timestamp,
    /// What happened.
    pub kind: EventKind,
    /// How much it matters.
    pub severity: Severity,
    /// A word from a closed list, by kind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// A figure, by kind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub number: Option<u64>,
}

/// Response of `GET /api/v1/events`.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EventPage {
    /// Name of the binary, such as `ron-kms`.
    pub service: String,
    /// Identifies the instance: host and port, or a configured name.
    pub instance: String,
    /// Version of the build.
    pub version: String,
    /// Identifies the run of the service; send it with the next request.
    pub boot: String,
    /// True when events between the last that the reader has seen and the first of this page are lost to it: the service was
    /// restarted, or the reader was slow. The page then starts with the oldest event that the service still has.
    pub reset: bool,
    /// Events, oldest first.
    pub events: Vec<ServiceEvent>,
    /// Number of the last event; send it as `after` with the next request.
    pub next: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_have_words_of_their_own_and_are_read_as_they_are_written() {
        let mut words: Vec<&str> = EventKind::ALL.iter().map(|kind| kind.as_str()).collect();
        for kind in EventKind::ALL {
            let word = serde_json::to_value(kind).unwrap();
            assert_eq!(word, kind.as_str());
            assert_eq!(serde_json::from_value::<EventKind>(word).unwrap(), *kind);
            assert!(kind.row()[3].ends_with('.'), "{kind:?} has a sentence");
        }
        words.sort_unstable();
        words.dedup();
        assert_eq!(words.len(), EventKind::ALL.len());
    }

    #[test]
    fn absent_members_are_left_out() {
        let event = ServiceEvent {
            boot: "b".into(),
            seq: 3,
            at: Timestamp(0),
            kind: EventKind::NotReady,
            severity: Severity::Warn,
            reason: Some("disk_full".into()),
            number: None,
        };
        let text = serde_json::to_string(&event).unwrap();
        assert_eq!(
            text,
            "{\"boot\":\"b\",\"seq\":3,\"at\":\"1970-01-01T00:00:00.000Z\",\"kind\":\"not_ready\",\"severity\":\"warn\",\"reason\":\"disk_full\"}"
        );
        assert_eq!(serde_json::from_str::<ServiceEvent>(&text).unwrap(), event);
    }
}
