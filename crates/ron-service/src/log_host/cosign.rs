//! The client side of C2SP tlog-witness: asks the witnesses of a policy to cosign a checkpoint, and
//! distinguishes a witness that is unavailable, one that refuses, and one that remembers a
//! different history of this log. Never in the path of a write; it runs in its own thread.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use ron_crypto::hash::sha256;
use ron_http::{Call, HttpClient, Method, Reply};
use ron_kernel::{Deadline, Snapshot};
use ron_tlog::CosignerKey;
use ron_tlog::append::LogReader;
use ron_tlog::checkpoint::Checkpoint;
use ron_tlog::note::{Note, NoteSignature, parse_signature};
use ron_tlog::policy::Policy;
use ron_tlog::witness::{AddCheckpoint, SIZE_TYPE, parse_size};

use super::keys::KeyView;

/// Maximum attempts with one witness in one round: a wrong guess of its size costs one, a key that
/// it must learn another.
const TRIES: usize = 4;
/// Path at which a ron witness accepts rotated keys.
pub(super) const LOG_KEYS: &str = "log-keys";

/// The newest checkpoint that a quorum of witnesses has cosigned; clones share it. Empty without a
/// policy.
#[derive(Clone, Debug)]
pub struct CosignedView(Arc<Snapshot<Option<CosignedNote>>>);

#[derive(Clone, Debug)]
pub struct CosignedNote {
    pub text: Arc<str>,
    /// Number of entries that it covers.
    pub size: u64,
}

impl Default for CosignedView {
    fn default() -> Self {
        Self(Arc::new(Snapshot::new(None)))
    }
}

impl CosignedView {
    /// Publishes a newer one.
    pub fn show(&self, note: CosignedNote) {
        self.0.store(Some(note));
    }

    pub fn note(&self) -> Option<CosignedNote> {
        self.0.with(Clone::clone)
    }

    /// Number of entries that a cosigned checkpoint covers.
    pub fn size(&self) -> u64 {
        self.0.with(|n| n.as_ref().map_or(0, |n| n.size))
    }
}

/// The times of the witness thread; clones share them.
#[derive(Clone, Debug)]
pub struct WitnessTimes(Arc<Snapshot<Times>>);

#[derive(Debug)]
struct Times {
    deadline: Duration,
    late: Duration,
}

impl WitnessTimes {
    /// `deadline` is the maximum time for one witness to answer, `late` the time without a quorum after which the service
    /// reports degraded.
    pub fn new(deadline: Duration, late: Duration) -> Self {
        Self(Arc::new(Snapshot::new(Times { deadline, late })))
    }

    /// Takes effect at the next request of cosignatures.
    pub(super) fn change(&self, deadline: Duration, late: Duration) {
        self.0.store(Times { deadline, late });
    }

    fn deadline(&self) -> Duration {
        self.0.with(|times| times.deadline)
    }

    pub(super) fn late(&self) -> Duration {
        self.0.with(|times| times.late)
    }
}

/// The result of asking every witness once.
#[derive(Debug, Default)]
pub struct Round {
    /// Valid cosignatures, to be stored with the checkpoint.
    pub lines: Vec<NoteSignature>,
    /// One line per witness that did not cosign, with the reason, for operators.
    pub failures: Vec<String>,
    /// A witness proves that the log has changed its history: it was rewritten, or another tree was
    /// signed.
    pub betrayal: Option<String>,
    /// A witness has cosigned this many entries, more than the log has here: it was cut or rolled
    /// back, unless other nodes write it too and this one has not read so far.
    pub beyond: Option<(u64, String)>,
}

/// A witness that has a URL.
#[derive(Debug)]
struct Peer {
    at: usize,
    url: String,
    /// Size of the last checkpoint that it is known to have cosigned.
    old: u64,
}

#[derive(Debug)]
pub struct Witnesses {
    policy: Policy,
    peers: Vec<Peer>,
    keys: KeyView,
    http: Arc<HttpClient>,
    times: WitnessTimes,
}

enum Answer {
    Cosigned(NoteSignature),
    /// It last cosigned this size; retry with a proof from there.
    From(u64),
    /// It knows none of the signing keys.
    UnknownKey,
    /// It has cosigned this many entries, which the log does not have here.
    Beyond(u64),
    Betrayed(String),
}

impl Witnesses {
    /// The witnesses of a tlog-policy file that have a URL. `keys` are this log's; a policy that
    /// names logs must name one of them. The deadline applies to one witness in one round.
    pub fn new(
        policy: &[u8],
        keys: KeyView,
        http: Arc<HttpClient>,
        times: WitnessTimes,
    ) -> Result<Self, String> {
        let policy = Policy::parse(policy).map_err(|e| e.to_string())?;
        let chain = keys.chain();
        let ours = policy.logs.iter().any(|l| chain.keys().contains(&l.key));
        if !policy.logs.is_empty() && !ours {
            return Err(format!(
                "the policy names logs, but not this one: log {}",
                chain.newest()
            ));
        }
        let asked = policy.witnesses.iter().enumerate();
        let peers: Vec<Peer> = asked
            .filter_map(|(at, w)| {
                let url = w.url.as_ref()?;
                Some(Peer {
                    at,
                    url: url.trim_end_matches('/').to_owned(),
                    old: 0,
                })
            })
            .collect();
        if peers.is_empty() {
            return Err("no witness of the policy has a URL, so none can be asked".into());
        }
        Ok(Self {
            policy,
            peers,
            keys,
            http,
            times,
        })
    }

    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// The newest checkpoints that the witnesses publish as cosigned by them, and a line for each
    /// witness that did not answer. A witness that knows no checkpoint of the log has none; one of
    /// another make may not publish any.
    pub fn heads(&self) -> (Vec<Checkpoint>, Vec<String>) {
        let (mut heads, mut failures) = (Vec::new(), Vec::new());
        for peer in &self.peers {
            let witness = &self.policy.witnesses[peer.at];
            match self.head(peer, &witness.key) {
                Ok(head) => heads.extend(head),
                Err(why) => failures.push(format!("witness {}: {why}", witness.name)),
            }
        }
        (heads, failures)
    }

    fn head(&self, peer: &Peer, key: &CosignerKey) -> Result<Option<Checkpoint>, String> {
        let chain = self.keys.chain();
        let origin = chain.newest().name();
        let name = hex::encode(sha256(origin.as_bytes()));
        let url = format!("{}/{name}/checkpoint", peer.url);
        let by = Deadline::within(self.times.deadline());
        let reply = self.http.call(Call::get(&url, by));
        let reply = reply.map_err(|e| e.to_string())?;
        match reply.status {
            200 => {}
            404 => return Ok(None),
            status => return Err(format!("it answered {status}")),
        }
        let text = str::from_utf8(&reply.body).map_err(|e| e.to_string())?;
        let note = Note::parse(text).map_err(|e| e.to_string())?;
        note.verify(chain.keys()).map_err(|e| e.to_string())?;
        if key.find(&note).is_none() {
            return Err("the checkpoint that it publishes is not cosigned by it".into());
        }
        let head = Checkpoint::parse_text(&note.text).map_err(|e| e.to_string())?;
        if head.origin != origin {
            return Err(format!("it publishes a checkpoint of {}", head.origin));
        }
        Ok(Some(head))
    }

    /// Asks every witness that has not yet cosigned the published checkpoint `text`, one after the
    /// other, each with its own deadline.
    pub fn round(&mut self, text: &str, reader: &LogReader) -> Round {
        let mut round = Round::default();
        let parsed = Note::parse(text)
            .map_err(|e| e.to_string())
            .and_then(|note| {
                let checkpoint = Checkpoint::parse_text(&note.text).map_err(|e| e.to_string())?;
                Ok((note, checkpoint))
            });
        let (note, checkpoint) = match parsed {
            Ok(parsed) => parsed,
            Err(why) => {
                round.failures.push(why);
                return round;
            }
        };
        for peer in &mut self.peers {
            let witness = &self.policy.witnesses[peer.at];
            if witness.key.find(&note).is_some() {
                continue;
            }
            let request = CosignRequest {
                http: &self.http,
                text,
                note: &note,
                checkpoint: &checkpoint,
                keys: &self.keys,
                reader,
                deadline: Deadline::within(self.times.deadline()),
            };
            match request.until_answered(peer, &witness.key) {
                Ok(Answer::Cosigned(line)) => round.lines.push(line),
                Ok(Answer::Betrayed(why)) => {
                    let mut text = format!("witness {}: {why}", witness.name);
                    if let Some(other) = round.betrayal.take() {
                        let _ = write!(text, "; {other}");
                    }
                    round.betrayal = Some(text);
                }
                Ok(Answer::Beyond(size)) => {
                    let why = format!(
                        "witness {}: it has cosigned {size} entries of this log, which has {}",
                        witness.name,
                        reader.size_durable()
                    );
                    if round.beyond.as_ref().is_none_or(|(most, _)| size > *most) {
                        round.beyond = Some((size, why.clone()));
                    }
                    round.failures.push(why);
                }
                Ok(Answer::UnknownKey) => round.failures.push(format!(
                    "witness {}: it knows another key of this log, from which no rotation leads to the current one",
                    witness.name
                )),
                Ok(Answer::From(size)) => round.failures.push(format!(
                    "witness {}: its size changes while it is asked (now {size}): another copy of this log may be running",
                    witness.name
                )),
                Err(why) => round.failures.push(format!("witness {}: {why}", witness.name)),
            }
        }
        round
    }
}

/// A request for one checkpoint to one witness.
struct CosignRequest<'a> {
    http: &'a HttpClient,
    text: &'a str,
    note: &'a Note,
    checkpoint: &'a Checkpoint,
    keys: &'a KeyView,
    reader: &'a LogReader,
    deadline: Deadline,
}

impl CosignRequest<'_> {
    fn until_answered(&self, peer: &mut Peer, key: &CosignerKey) -> Result<Answer, String> {
        let mut answer = Answer::From(peer.old);
        for _ in 0..TRIES {
            answer = self.once(peer, key)?;
            match answer {
                Answer::From(size) => peer.old = size,
                Answer::Cosigned(_) => {
                    peer.old = self.checkpoint.size;
                    break;
                }
                Answer::UnknownKey if self.send_key_chain(peer)? => {}
                Answer::UnknownKey | Answer::Beyond(_) | Answer::Betrayed(_) => break,
            }
        }
        Ok(answer)
    }

    /// After a rotation: sends the witness the cross-signed chain of the log's keys, so that it can
    /// follow from its known key to the newest. False when there is no rotation, or when the
    /// witness does not support the request (it is not part of the standard).
    fn send_key_chain(&self, peer: &Peer) -> Result<bool, String> {
        let chain = self.keys.chain();
        if chain.rotations().is_empty() {
            return Ok(false);
        }
        let url = format!("{}/{LOG_KEYS}", peer.url);
        let reply = self.post(&url, chain.to_string())?;
        Ok(reply.status == 200)
    }

    fn post(&self, url: &str, body: String) -> Result<Reply, String> {
        let reply = self.http.call(Call {
            method: Method::POST,
            url,
            headers: &[],
            body: Some(body.into_bytes()),
            content_type: Some("text/plain; charset=utf-8"),
            deadline: self.deadline,
            // Repeating the request changes nothing but the size that is reported.
            idempotent: true,
        });
        reply.map_err(|e| e.to_string())
    }

    fn once(&self, peer: &Peer, key: &ron_tlog::CosignerKey) -> Result<Answer, String> {
        let (old, new) = (peer.old, self.checkpoint.size);
        // For a size beyond ours, ask with 0: the refusal reports the size again.
        let old = if old > new { 0 } else { old };
        let proof = match old {
            0 => Vec::new(),
            _ if old == new => Vec::new(),
            _ => {
                let proof = self.reader.consistency(old, new);
                proof.map_err(|e| format!("the consistency proof cannot be made: {e}"))?
            }
        };
        let request = AddCheckpoint {
            old,
            proof,
            checkpoint: self.text.to_owned(),
        };
        let url = format!("{}/add-checkpoint", peer.url);
        self.judge(&self.post(&url, request.to_string())?, key, old)
    }

    fn judge(&self, reply: &Reply, key: &CosignerKey, old: u64) -> Result<Answer, String> {
        let body = std::str::from_utf8(&reply.body).unwrap_or("");
        let new = self.checkpoint.size;
        match reply.status {
            200 => {
                let mut lines = body.lines().filter_map(|line| parse_signature(line).ok());
                let ours = lines.find(|line| key.verify(&self.note.text, line).is_some());
                ours.map(Answer::Cosigned)
                    .ok_or_else(|| "its answer has no cosignature by its key".into())
            }
            409 if reply.header("content-type").is_some_and(|t| t == SIZE_TYPE) => {
                match parse_size(body) {
                    None => Err("its answer has no size".into()),
                    Some(size) if size == old && old == new => Ok(Answer::Betrayed(format!(
                        "it has cosigned another tree of {size} entries under this log's signature"
                    ))),
                    Some(size) if size == old => Err("it contradicts itself about its size".into()),
                    Some(size) if size > self.reader.size_durable() => Ok(Answer::Beyond(size)),
                    Some(size) => Ok(Answer::From(size)),
                }
            }
            409 => Ok(Answer::Betrayed(format!(
                "it has cosigned another tree of {new} entries under this log's signature"
            ))),
            422 => Ok(Answer::Betrayed(format!(
                "the first {old} entries are not those that it cosigned: the log was rewritten"
            ))),
            404 => Err("it does not know this log; give it the log's verifier key".into()),
            403 => Ok(Answer::UnknownKey),
            status => Err(format!("it answered {status}")),
        }
    }
}
