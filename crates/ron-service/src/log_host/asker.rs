//! The thread that has checkpoints cosigned: after each checkpoint it submits it to the witnesses
//! of the policy, has the cosignatures stored with it, and reports a missing quorum. It is never in
//! the path of a write; but a witness that remembers a different history of the log stops all
//! writes.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

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
    fn shown(&self) {}
    /// Of a log that other nodes write too: whether this node has what they had appended by then.
    fn has_read(&self, _: Instant) -> bool {
        true
    }
}

/// What the rounds so far have left open.
#[derive(Debug, Default)]
pub struct OpenQuestions {
    /// When the oldest checkpoint without its quorum was first seen, Unix milliseconds.
    since_ms: Option<u64>,
    /// A size that a witness had cosigned at this time and this node did not have.
    beyond: Option<(Instant, u64)>,
    /// Whether a quorum was asked since the start. The cosignatures that are stored with a checkpoint
    /// do not say what the witnesses have cosigned since.
    compared: bool,
}

impl OpenQuestions {
    /// Why the log of `durable` entries was cut or rolled back, when a witness has cosigned more. Where
    /// other nodes write it too, only after this node has read what they had then.
    fn lost(
        &mut self,
        beyond: Option<(u64, String)>,
        now: Instant,
        has_read: impl Fn(Instant) -> bool,
        durable: impl Fn() -> u64,
    ) -> Option<String> {
        let Some((size, why)) = beyond else {
            self.beyond = None;
            return None;
        };
        let (seen, size) = *self.beyond.get_or_insert((now, size));
        if !has_read(seen) {
            return None;
        }
        self.beyond = None;
        (durable() < size).then(|| cut(&why))
    }
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
    /// Empty at the start.
    pub open: OpenQuestions,
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
            self.open.since_ms = None;
            self.ready.clear("witness");
            return true;
        }
        if head.size <= self.view.size() && self.open.compared {
            return true;
        }
        let now_ms = self.clock.unix_ms();
        let since_ms = *self.open.since_ms.get_or_insert(now_ms);
        let asked = if self.open.compared {
            Arc::clone(&text)
        } else {
            without_cosignatures(&self.witnesses, &text)
        };
        let round = self.witnesses.round(&asked, &self.reader);
        let now = self.clock.now();
        let (log, reader) = (&self.log, &self.reader);
        let (has_read, durable) = (|seen| log.has_read(seen), || reader.size_durable());
        let lost = self.open.lost(round.beyond, now, has_read, durable);
        let count = |result: &str, n: usize| {
            let counter = self.metrics.asked.with_label_values(&[result]);
            counter.inc_by(n as u64);
        };
        count("cosigned", round.lines.len());
        count("failed", round.failures.len());
        let betrayed = round.betrayal.or(lost);
        count("betrayed", usize::from(betrayed.is_some()));
        if let Some(why) = betrayed {
            self.log.betrayed(&why);
            return true;
        }
        for why in &round.failures {
            tracing::warn!(event = "not_cosigned", size = head.size, why);
        }
        self.open.compared |=
            round.failures.is_empty() || self.quorum(&asked, &round.lines).is_some();
        if self.keep(&text, head.size, round.lines) {
            self.open.since_ms = None;
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
        let cosigned = self.quorum(text, &lines);
        let witnessed = cosigned.is_some();
        if let Some(text) = cosigned {
            self.view.show(CosignedNote { text, size });
            self.metrics.cosigned_size.set(size.cast_signed());
            self.log.shown();
        }
        if !lines.is_empty() && !self.log.store(text, lines) {
            tracing::warn!(event = "cosignatures_not_stored", size);
        }
        witnessed
    }

    /// The checkpoint with these cosignatures, if it has those of a quorum then.
    fn quorum(&self, text: &str, lines: &[NoteSignature]) -> Option<Arc<str>> {
        let mut note = Note::parse(text).ok()?;
        let key = |line: &NoteSignature| (line.name.clone(), line.key_id);
        let again = |old: &NoteSignature| lines.iter().any(|new| key(new) == key(old));
        note.signatures.retain(|line| !again(line));
        note.signatures.extend(lines.iter().cloned());
        let witnessed = self.witnesses.policy().witnessed(&note);
        witnessed.then(|| note.to_string().into())
    }
}

/// Asks all witnesses about a log that was just opened, before anything is written to it. An error
/// names a witness that remembers a different history. The thread asks unreachable witnesses again
/// later.
pub fn compare(witnesses: &mut Witnesses, reader: &LogReader) -> Result<(), String> {
    let Some(stored) = reader.checkpoint() else {
        return Ok(());
    };
    let asked = without_cosignatures(witnesses, &stored);
    let round = witnesses.round(&asked, reader);
    for why in &round.failures {
        tracing::info!(event = "witness_not_asked", why);
    }
    let lost = round.beyond.map(|(_, why)| cut(&why));
    round.betrayal.or(lost).map_or(Ok(()), Err)
}

/// A checkpoint as it was before the witnesses cosigned it: one that did may have cosigned later ones
/// since, so it is to be asked as well.
fn without_cosignatures(witnesses: &Witnesses, text: &Arc<str>) -> Arc<str> {
    let Ok(mut note) = Note::parse(text) else {
        return Arc::clone(text);
    };
    let known = &witnesses.policy().witnesses;
    note.signatures
        .retain(|line| !known.iter().any(|witness| witness.key.made(line)));
    note.to_string().into()
}

fn cut(why: &str) -> String {
    format!("{why}: the log was cut or rolled back")
}

#[cfg(test)]
mod tests {
    use ron_kernel::{Clock as _, SystemClock};

    use super::*;

    fn beyond(size: u64) -> (u64, String) {
        (size, format!("it has cosigned {size} entries"))
    }

    #[test]
    fn one_writer_has_lost_at_once_what_a_witness_has_beyond_it() {
        let now = SystemClock.now();
        let mut open = OpenQuestions::default();
        let lost = open.lost(Some(beyond(5)), now, |_| true, || 4);
        assert!(lost.expect("lost").contains("5 entries: the log was cut"));
        assert_eq!(
            open.lost(Some(beyond(5)), now, |_| true, || 5),
            None,
            "came since"
        );
        assert_eq!(open.lost(None, now, |_| true, || 4), None);
    }

    /// The other node has gone on each time that the witness is asked.
    #[test]
    fn a_node_of_several_has_lost_only_what_it_does_not_find_when_it_reads() {
        let start = SystemClock.now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut open = OpenQuestions::default();
        let mut look = |size, now, read, durable| {
            let has_read = |seen| at(read) >= seen;
            open.lost(Some(beyond(size)), at(now), has_read, || durable)
        };
        assert_eq!(look(5, 10, 9, 4), None, "not read since");
        assert_eq!(look(6, 11, 9, 4), None);
        assert_eq!(
            look(6, 12, 11, 5),
            None,
            "what was beyond it at first is there"
        );
        assert_eq!(look(7, 13, 11, 5), None, "and this is another question");
        assert!(look(8, 14, 13, 6).is_some(), "read, and not there");
    }
}
