//! Reads the heads of the fleet's verifiable logs and checks what one observer can check: the signature against the
//! pinned key, and that the log neither shrank nor changed its past at the same size since the last look.

use std::sync::Arc;
use std::time::Duration;

use ron_http::{Call, HttpClient};
use ron_kernel::{Deadline, SharedClock, Snapshot, ThreadCtx};
use ron_proto::Timestamp;
use ron_proto::admin::{LogHead, LogHeads, LogVerdict};
use ron_proto::b64;
use ron_tlog::checkpoint::Checkpoint;
use ron_tlog::note::VerifierKey;

use crate::config::{LogSpec, NodeSpec};

/// Time between two looks at the heads.
const PACE: Duration = Duration::from_secs(10);
/// Time for one head to be read.
const READ: Duration = Duration::from_secs(2);

/// Where readers find the heads.
pub type Heads = Snapshot<LogHeads>;

/// The logs to watch: node ids with where and how to check.
#[derive(Debug)]
pub struct LogWatch {
    pub logs: Vec<(String, LogSpec)>,
    pub client: Arc<HttpClient>,
    pub clock: SharedClock,
}

impl LogWatch {
    /// The logs among these nodes.
    pub fn new(nodes: &[NodeSpec], client: Arc<HttpClient>, clock: SharedClock) -> Self {
        let logs = nodes
            .iter()
            .filter_map(|node| Some((node.id.clone(), node.log.clone()?)))
            .collect();
        Self {
            logs,
            client,
            clock,
        }
    }

    /// The body of the thread: reads all heads by pace. The first look comes after a moment, when the logs had
    /// time to start.
    pub fn run(&self, heads: &Heads, ctx: &ThreadCtx) {
        let mut wait = Duration::from_secs(1);
        while !ctx.shutdown.wait(Deadline::within(wait)) {
            self.tick(heads);
            wait = PACE;
        }
    }

    /// Reads and judges every head once.
    pub fn tick(&self, heads: &Heads) {
        let before = heads.load();
        let logs = self.logs.iter().map(|(id, log)| {
            let read = self.read(log);
            let last = before.logs.iter().find(|head| head.id == *id);
            judge_head(
                id,
                read,
                log.vkey.as_deref(),
                last,
                Timestamp(self.clock.unix_ms()),
            )
        });
        let logs = logs.collect();
        heads.store(LogHeads {
            as_of: Timestamp(self.clock.unix_ms()),
            logs,
        });
    }

    fn read(&self, log: &LogSpec) -> Result<String, String> {
        let url = format!("{}/checkpoint", log.base_url);
        let reply = self
            .client
            .call(Call::get(&url, Deadline::within(READ)))
            .map_err(|error| error.detail)?;
        if !reply.is_success() {
            return Err(format!("answered {}", reply.status));
        }
        String::from_utf8(reply.body).map_err(|_| "not text".to_owned())
    }
}

/// Judges one head against the pinned key and against what was known before. Pure.
pub fn judge_head(
    id: &str,
    read: Result<String, String>,
    vkey: Option<&str>,
    last: Option<&LogHead>,
    now: Timestamp,
) -> LogHead {
    let unread = |verdict, reason: String| LogHead {
        id: id.to_owned(),
        origin: last.and_then(|l| l.origin.clone()),
        size: last.and_then(|l| l.size),
        root: last.and_then(|l| l.root.clone()),
        verdict,
        reason,
        read_at: last.and_then(|l| l.read_at),
        unchanged_since: last.and_then(|l| l.unchanged_since),
    };
    let note = match read {
        Ok(note) => note,
        Err(why) => return unread(LogVerdict::Unreachable, why),
    };
    let (checkpoint, verdict, reason) = match check_signature(&note, vkey) {
        Ok(checked) => checked,
        Err(why) => return unread(LogVerdict::Failed, why),
    };
    let root = b64::std(&checkpoint.root);
    let same =
        last.is_some_and(|l| l.size == Some(checkpoint.size) && l.root.as_deref() == Some(&root));
    let last_size = last.and_then(|l| l.size).unwrap_or(0);
    if checkpoint.size < last_size {
        return unread(
            LogVerdict::Failed,
            format!(
                "the log shrank from {last_size} to {} entries",
                checkpoint.size
            ),
        );
    }
    if checkpoint.size == last_size && !same && last.is_some_and(|l| l.root.is_some()) {
        return unread(
            LogVerdict::Failed,
            format!("two different roots for {last_size} entries: the log was forked"),
        );
    }
    LogHead {
        id: id.to_owned(),
        origin: Some(checkpoint.origin),
        size: Some(checkpoint.size),
        root: Some(root),
        verdict,
        reason,
        read_at: Some(now),
        unchanged_since: if same {
            last.and_then(|l| l.unchanged_since)
        } else {
            Some(now)
        },
    }
}

fn check_signature(
    note: &str,
    vkey: Option<&str>,
) -> Result<(Checkpoint, LogVerdict, String), String> {
    let Some(vkey) = vkey else {
        let head = Checkpoint::read_unverified(note, None).map_err(|error| error.to_string())?;
        return Ok((
            head,
            LogVerdict::Unverified,
            "no log_vkey is configured for this log".to_owned(),
        ));
    };
    let key = VerifierKey::parse(vkey).map_err(|error| format!("log_vkey: {error}"))?;
    let words = format!("signed by {}", key.name());
    let head = Checkpoint::open(note, &[key], None).map_err(|error| error.to_string())?;
    Ok((head, LogVerdict::Verified, words))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ron_crypto::sign::Ed25519Key;
    use ron_tlog::note::Ed25519NoteSigner;

    fn signer(seed: u8) -> Ed25519NoteSigner {
        Ed25519NoteSigner::new("log.example/a", Ed25519Key::from_seed(&[seed; 32]))
            .expect("a valid name")
    }

    fn note(seed: u8, size: u64, root: u8) -> Result<String, String> {
        let checkpoint = Checkpoint {
            origin: "log.example/a".into(),
            size,
            root: [root; 32],
        };
        Ok(checkpoint.sign(&[&signer(seed)]).expect("signs"))
    }

    #[test]
    fn heads_are_judged() {
        let vkey = signer(1).verifier().to_string();
        let key = Some(vkey.as_str());
        let at = |ms| Timestamp(ms);
        let first = judge_head("k", note(1, 5, 7), key, None, at(1));
        assert_eq!(
            (first.verdict, first.size, first.unchanged_since),
            (LogVerdict::Verified, Some(5), Some(at(1)))
        );
        let same = judge_head("k", note(1, 5, 7), key, Some(&first), at(2));
        assert_eq!(
            (same.verdict, same.read_at, same.unchanged_since),
            (LogVerdict::Verified, Some(at(2)), Some(at(1)))
        );
        let check = |read, key, verdict, words: &str| {
            let got = judge_head("k", read, key, Some(&first), at(3));
            assert_eq!(got.verdict, verdict, "{got:?}");
            assert!(got.reason.contains(words), "{words:?} in {got:?}");
        };
        check(
            note(1, 9, 8),
            key,
            LogVerdict::Verified,
            "signed by log.example/a",
        );
        check(note(2, 9, 8), key, LogVerdict::Failed, "");
        check(note(1, 9, 8), None, LogVerdict::Unverified, "no log_vkey");
        check(note(1, 4, 7), key, LogVerdict::Failed, "shrank from 5 to 4");
        check(note(1, 5, 8), key, LogVerdict::Failed, "forked");
        check(
            Err("answered 404".into()),
            key,
            LogVerdict::Unreachable,
            "404",
        );
        check(Ok("hello".into()), key, LogVerdict::Failed, "");
        assert_eq!(
            judge_head("k", Err("x".into()), key, Some(&first), at(3)).size,
            Some(5),
            "the last good head stays"
        );
    }
}
