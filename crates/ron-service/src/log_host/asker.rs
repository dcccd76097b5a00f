//! The thread that has checkpoints cosigned: after each checkpoint it submits it to the witnesses
//! of the policy, has the cosignatures stored with it, and reports a missing quorum. It is never in
//! the path of a write; but a witness that remembers a different history of the log stops all
//! writes.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ron_http::HttpClient;
use ron_kernel::{
    ClosedCounter, Deadline, Gauge, Receiver, Recv, Registry, SharedClock, Shutdown, ThreadCtx,
};
use ron_tlog::append::LogReader;
use ron_tlog::note::{Note, NoteSignature};
use ron_tlog::policy::Policy;

use super::cosign::{CosignedNote, WitnessTimes, Witnesses};
use super::{CosignedView, KeyView};
use crate::ReadyBoard;
use crate::config::{Config, ConfigProblem};

/// Pause before witnesses that did not answer are asked again.
const AGAIN: Duration = Duration::from_secs(1);
/// How long an idle thread sleeps; a checkpoint wakes it.
const IDLE: Duration = Duration::from_secs(60);
/// How long the last round waits for the last checkpoint.
const FINAL_WAIT: Duration = Duration::from_secs(5);

crate::settings! {
    /// The configuration keys of a log with witnesses.
    pub struct WitnessKeys {
        /// C2SP tlog-policy file: the witnesses (with URLs) that cosign checkpoints, and the quorum.
        /// Empty means no witnesses.
        "witness.policy_file" => policy_file: Option<PathBuf>, restart(Trust);
        /// Maximum time for one witness to answer.
        "witness.deadline" => deadline: Duration = "2s", range("10ms", "30s"), reloadable;
        /// When no quorum has cosigned a checkpoint for this long, readiness reports degraded.
        "witness.late" => late: Duration = "10s", range("100ms", "24h"), reloadable;
    }
}

#[derive(Clone, Debug)]
pub struct WitnessSettings {
    /// Contents of the tlog-policy file.
    pub policy: Vec<u8>,
    pub times: WitnessTimes,
}

impl WitnessKeys {
    fn times(&self) -> WitnessTimes {
        WitnessTimes::new(self.deadline, self.late)
    }

    /// Has the witness thread use the times of a reloaded configuration.
    pub fn change(&self, times: &WitnessTimes) {
        times.change(self.deadline, self.late);
    }
}

impl WitnessSettings {
    /// Reads the policy file; `None` if no witnesses are configured.
    pub fn load(config: &Config, keys: &WitnessKeys) -> Result<Option<Self>, ConfigProblem> {
        let Some(path) = &keys.policy_file else {
            return Ok(None);
        };
        let named = |e: &dyn std::fmt::Display| {
            config.problem(
                WitnessKeys::policy_file,
                format!("cannot be used: {}: {e}", path.display()),
            )
        };
        let policy = std::fs::read(path).map_err(|e| named(&e))?;
        let parsed = Policy::parse(&policy).map_err(|e| named(&e))?;
        if parsed.witnesses.iter().all(|w| w.url.is_none()) {
            return Err(named(&"no witness has a URL"));
        }
        Ok(Some(Self {
            policy,
            times: keys.times(),
        }))
    }

    /// The witnesses of the log with these keys.
    pub fn witnesses(&self, keys: KeyView, http: Arc<HttpClient>) -> Result<Witnesses, String> {
        Witnesses::new(&self.policy, keys, http, self.times.clone())
    }
}

#[derive(Clone)]
pub struct WitnessMetrics {
    /// Requests for cosignatures, by `result`.
    pub asked: ClosedCounter,
    /// Leaves covered by a checkpoint that a quorum of witnesses has cosigned.
    pub cosigned_size: Gauge,
}

impl WitnessMetrics {
    /// Registers `witness_asked_total` and `cosigned_size`.
    pub fn new(registry: &Registry) -> Self {
        Self {
            asked: registry.counter_closed(
                "witness_asked_total",
                "Requests to a witness for a cosignature, by result.",
                &[("result", &["cosigned", "failed", "betrayed"])],
            ),
            cosigned_size: registry.gauge(
                "cosigned_size",
                "Leaves covered by a checkpoint that a quorum of witnesses has cosigned.",
            ),
        }
    }
}

/// Notification that a checkpoint was published.
#[derive(Clone, Copy, Debug)]
pub struct Published;

/// The log whose checkpoints are cosigned.
pub trait Witnessed: Send + 'static {
    /// Whether this process writes the log; otherwise no witness is asked.
    fn is_ok(&self) -> bool;
    /// A witness remembers a different history: nothing may be written any more.
    fn betrayed(&self, why: &str);
    /// Passes cosignatures for the published checkpoint `text` to the thread that stores
    /// checkpoints; false when they were not accepted.
    fn store(&self, text: &Arc<str>, lines: Vec<NoteSignature>) -> bool;
    /// A checkpoint reached its quorum and is now published as cosigned.
    fn shown(&self);
}

pub struct Asker<L> {
    pub log: L,
    pub witnesses: Witnesses,
    pub reader: LogReader,
    /// Publishes the newest cosigned checkpoint.
    pub view: CosignedView,
    pub wakes: Receiver<Published>,
    /// Receives the cause `witness`.
    pub ready: ReadyBoard,
    pub metrics: WitnessMetrics,
    pub clock: SharedClock,
    pub times: WitnessTimes,
    /// When the oldest checkpoint without its quorum was first seen, Unix milliseconds.
    pub since_ms: Option<u64>,
    /// Fires after the last checkpoint; already fired at the start when the last round need not
    /// wait for it.
    pub last_checkpoint: Shutdown,
}

impl<L: Witnessed> Asker<L> {
    /// Runs until shutdown, then makes one round over the last checkpoint.
    pub fn run(&mut self, ctx: &ThreadCtx) {
        while !ctx.shutdown.is_set() {
            let pause = if self.tick() { IDLE } else { AGAIN };
            match self.wakes.recv(&ctx.shutdown, Deadline::within(pause)) {
                Recv::Item(Published) | Recv::Timeout => {}
                Recv::Shutdown | Recv::Closed => break,
            }
        }
        if self.last_checkpoint.wait(Deadline::within(FINAL_WAIT)) {
            self.tick();
        }
    }

    /// One round over the newest checkpoint; true when no request is left to make.
    pub fn tick(&mut self) -> bool {
        let (Some(text), Some(head)) = (self.reader.checkpoint(), self.reader.checkpoint_head())
        else {
            return true;
        };
        if !self.log.is_ok() {
            // Another node of the log may have it cosigned, or its own cause says what is wrong.
            self.since_ms = None;
            self.ready.clear("witness");
            return true;
        }
        if head.size <= self.view.size() {
            return true;
        }
        let now_ms = self.clock.unix_ms();
        let since_ms = *self.since_ms.get_or_insert(now_ms);
        let round = self.witnesses.round(&text, &self.reader);
        let count = |result: &str, n: usize| {
            let counter = self.metrics.asked.with_label_values(&[result]);
            counter.inc_by(n as u64);
        };
        count("cosigned", round.lines.len());
        count("failed", round.failures.len());
        if let Some(why) = round.betrayal {
            count("betrayed", 1);
            self.log.betrayed(&why);
            return true;
        }
        for why in &round.failures {
            tracing::warn!(event = "not_cosigned", size = head.size, why);
        }
        if self.keep(&text, head.size, round.lines) {
            self.since_ms = None;
            self.ready.clear("witness");
            return round.failures.is_empty();
        }
        let late_ms = u64::try_from(self.times.late().as_millis()).unwrap_or(u64::MAX);
        if self.clock.unix_ms().saturating_sub(since_ms) > late_ms {
            let why = format!(
                "no quorum of witnesses has cosigned a checkpoint for {} s: {}",
                self.clock.unix_ms().saturating_sub(since_ms) / 1000,
                round.failures.join("; ")
            );
            self.ready.degrade("witness", why);
        }
        false
    }

    /// Has new cosignatures stored, and publishes the checkpoint once it has its quorum.
    fn keep(&self, text: &Arc<str>, size: u64, lines: Vec<NoteSignature>) -> bool {
        let Ok(mut note) = Note::parse(text) else {
            return false;
        };
        note.signatures.extend(lines.iter().cloned());
        let witnessed = self.witnesses.policy().witnessed(&note);
        if witnessed {
            self.view.show(CosignedNote {
                text: note.to_string().into(),
                size,
            });
            self.metrics.cosigned_size.set(size.cast_signed());
            self.log.shown();
        }
        if !lines.is_empty() && !self.log.store(text, lines) {
            tracing::warn!(event = "cosignatures_not_stored", size);
        }
        witnessed
    }
}

/// Asks all witnesses about a log that was just opened, before anything is written to it. An error
/// names a witness that remembers a different history. The thread asks unreachable witnesses again
/// later.
pub fn compare(witnesses: &mut Witnesses, reader: &LogReader) -> Result<(), String> {
    let stored = reader.checkpoint().and_then(|text| Note::parse(&text).ok());
    let Some(mut note) = stored else {
        return Ok(());
    };
    // A witness that cosigned this checkpoint may have cosigned later ones since, so it is asked as
    // well.
    let known = &witnesses.policy().witnesses;
    note.signatures
        .retain(|line| !known.iter().any(|witness| witness.key.made(line)));
    let round = witnesses.round(&note.to_string(), reader);
    for why in &round.failures {
        tracing::info!(event = "witness_not_asked", why);
    }
    round.betrayal.map_or(Ok(()), Err)
}
