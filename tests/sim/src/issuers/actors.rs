//! Clients that get tokens and use them, and operators that revoke and rotate.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ron_client::{ClientError, ClientProof, Credential, LedgerClient, PassportClient, TokenAsk};
use ron_kernel::Deadline;
use ron_proto::kms::RotateRequest;
use ron_proto::passport::{CaveatInput, IssueAnswer, IssueRequest, RevokeRequest};
use ron_sim::{ensure, time};

use super::lists::Look;
use super::policy::{Change, Visit};
use super::proofs::{Manner, holder};
use super::services::{self, AUDIENCE, Keys, SCOPE, Tokens};
use super::tokens::Token;
use super::{CALL, CLIENT, ISSUER, VERIFIER};
use crate::chance::{below, ms};
use crate::hosts::{self, client_ip};
use crate::net::SimNet;

/// After which a further key is published and signs.
const PUBLISHED: Duration = Duration::from_millis(2_500);
pub const SUBJECTS: [&str; 3] = ["user:ada", "user:bob", "user:cyd"];

/// What a verifier said to a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    Accepted,
    Refused(u16, String),
    Unknown,
}

/// A token that was shown to the verifier.
#[derive(Clone, Debug)]
pub struct Use {
    pub token: usize,
    pub manner: Manner,
    pub began: Instant,
    pub ended: Instant,
    pub end: End,
}

/// What an operator asks the issuer to revoke.
#[derive(Clone, Debug, PartialEq)]
pub enum Target {
    Jti(String),
    Subject(String),
    Kid(String),
    Epoch(u64),
}

/// A revocation that was asked for.
#[derive(Clone, Debug)]
pub struct Revocation {
    pub target: Target,
    pub began: Instant,
    pub ended: Instant,
    /// Number of its event, if it was acknowledged.
    pub event: Option<u64>,
    /// It was refused, so that nothing was done.
    pub refused: bool,
}

/// What all actors have seen together. No operation of the simulator is inside of its lock.
#[derive(Debug, Default)]
pub struct Observations {
    pub tokens: Vec<Token>,
    pub uses: Vec<Use>,
    pub revocations: Vec<Revocation>,
    /// Requests for tokens that were refused or not answered.
    pub unissued: Vec<(Instant, Instant, String)>,
    pub policies: Vec<Change>,
    pub visits: Vec<Visit>,
    pub looks: Vec<Look>,
    pub calls: u64,
    /// Requests for tokens and revocations that have begun.
    pub begun: u64,
    /// Revocations that have begun and not ended.
    revoking: u64,
    rotations: u64,
    rotated: Option<Instant>,
}

impl Observations {
    /// The newest token that was accepted, if nobody has asked for a revocation since that may void it.
    pub fn good(&self) -> Option<Token> {
        let accepted = self
            .uses
            .iter()
            .rev()
            .filter(|used| used.end == End::Accepted);
        let mut tokens = accepted.map(|used| &self.tokens[used.token]);
        let is_good = |token: &&Token| !self.revocations.iter().any(|r| r.may_void(token));
        tokens.find(is_good).filter(|_| self.revoking == 0).cloned()
    }
}

impl Revocation {
    /// Whether it voids the token, or may do so: a holder's tokens of its second are void too.
    pub fn may_void(&self, token: &Token) -> bool {
        match &self.target {
            Target::Jti(of) => token.has_id(of),
            Target::Subject(of) => {
                *of == token.sub && self.ended + Duration::from_secs(1) > token.asked
            }
            Target::Kid(of) => token.has_key(of),
            Target::Epoch(of) => token.epoch < *of,
        }
    }
}

pub type Shared = Arc<Mutex<Observations>>;

pub fn seen(shared: &Shared) -> MutexGuard<'_, Observations> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

pub struct Actor {
    pub shared: Shared,
    pub keys: Keys,
    pub client: PassportClient,
    teller: PassportClient,
    pub guest: PassportClient,
    operator: PassportClient,
    pub http: Arc<ron_http::HttpClient>,
}

fn why(error: &ClientError) -> String {
    match error {
        ClientError::Refused {
            status, problem, ..
        } => format!("{status} {}", problem.code),
        other => other.to_string(),
    }
}

/// The caveat that binds a token to the key of its holder.
fn bound_to(subject: &str) -> CaveatInput {
    CaveatInput(format!("proof.bind={}", holder(subject).thumbprint()))
}

/// A token that the issuer's own interface gave.
fn issued(answer: &IssueAnswer, began: Instant) -> Token {
    let token = Token::read(&answer.token, began, Some(answer.receipt.index));
    let same = (&token.kid, token.epoch) == (&answer.kid, answer.epoch);
    ensure(same, &format!("{answer:?} is not about {token:?}"));
    token
}

impl Actor {
    pub fn new(net: &SimNet, keys: &Keys, number: u8, shared: &Shared) -> Self {
        let http = hosts::client(net.host(client_ip(number)), 3_000 + u64::from(number));
        let http = Arc::new(http);
        let tokens = Tokens::written();
        let passport = |credential| {
            PassportClient::new(&format!("http://{ISSUER}:80"), credential, http.clone())
        };
        Self {
            shared: shared.clone(),
            keys: keys.clone(),
            client: passport(Credential::none()),
            teller: passport(Credential::bearer(&tokens.teller)),
            guest: passport(Credential::bearer(&tokens.guest)),
            operator: passport(Credential::bearer(&tokens.operator)),
            http,
        }
    }

    pub fn seen(&self) -> MutexGuard<'_, Observations> {
        seen(&self.shared)
    }

    /// Makes a call, which must end by its deadline and a tenth of it.
    pub fn call<T>(&self, what: &str, call: impl FnOnce(Deadline) -> T) -> (T, Instant) {
        let began = time::now();
        self.seen().begun += u64::from(what != "a use");
        let done = call(Deadline::within(CALL));
        let took = time::now() - began;
        ensure(
            took <= CALL + CALL / 10,
            &format!("{what} took {took:?}, and may take {CALL:?}"),
        );
        self.seen().calls += 1;
        (done, began)
    }

    /// One act of a client.
    pub fn act(&mut self) {
        match below(10) {
            8 => self.look_up(),
            9 => drop(self.visit()),
            0 | 1 => drop(self.get()),
            2 => drop(self.buy()),
            3 => self.exchange(),
            4 => self.forge(),
            _ => self.use_any(),
        }
        time::sleep(ms(below(120)));
    }

    /// A token for the client itself, which it uses at once.
    pub fn get(&self) -> Option<End> {
        let ask = TokenAsk {
            audience: AUDIENCE,
            scope: Some(SCOPE),
            ..TokenAsk::default()
        };
        let secret = &Tokens::written().secret;
        let call = |until| self.client.token(CLIENT, secret, &ask, until);
        let (answer, began) = self.call("a token request", call);
        let answer = answer.map(|answer| Token::read(&answer.access_token, began, None));
        self.took(answer, began)
    }

    /// A token for a holder, by the issuer's own interface.
    fn buy(&self) -> Option<End> {
        let subject = SUBJECTS[below(3) as usize];
        let caveats = match below(2) {
            0 => vec![bound_to(subject)],
            _ => Vec::new(),
        };
        let request = IssueRequest {
            subject_ref: subject.to_owned(),
            audience: AUDIENCE.to_owned(),
            ttl_s: Some(600),
            scope: None,
            caveats,
            accept_algs: Vec::new(),
            proof: None,
        };
        let call = |until| self.teller.issue(&request, until);
        let (answer, began) = self.call("an issue", call);
        let answer = answer.map(|answer| issued(&answer, began));
        self.took(answer, began)
    }

    /// Notes a token that nobody uses at once.
    pub fn keep(&self, answer: &IssueAnswer, began: Instant) {
        let mut token = issued(answer, began);
        let mut seen = self.seen();
        token.number = seen.tokens.len();
        seen.tokens.push(token);
    }

    /// Exchanges a token for a new one of the same holder.
    fn exchange(&self) {
        let Some(of) = self.any() else { return };
        let ask = TokenAsk::default();
        let proof = ClientProof::Secret(&Tokens::written().secret);
        let call = |until| {
            let client = &self.client;
            client.exchange(CLIENT, proof, &of.text, &ask, None, until)
        };
        let (answer, began) = self.call("an exchange", call);
        match answer {
            Ok(answer) => {
                let token = Token::read(&answer.access_token, began, None);
                let may_be = of.genuine && !of.bound;
                ensure(may_be, &format!("{of:?} was exchanged without a proof"));
                ensure(
                    token.sub == of.sub,
                    &format!("{of:?} became {token:?} of another holder"),
                );
                self.took(Ok(token), began);
            }
            // A void token is refused.
            Err(error) => ron_sim::note(&format!("no exchange: {}", why(&error))),
        }
    }

    /// Notes a token and uses it; or that there was none.
    fn took(&self, answer: Result<Token, ClientError>, began: Instant) -> Option<End> {
        match answer {
            Ok(mut token) => {
                {
                    let mut seen = self.seen();
                    token.number = seen.tokens.len();
                    seen.tokens.push(token.clone());
                }
                ron_sim::note(&format!("token {} of {}", token.number, token.sub));
                Some(self.show(&token))
            }
            Err(error) => {
                ron_sim::report(&format!("no token: {}", why(&error)));
                let all = (began, time::now(), why(&error));
                self.seen().unissued.push(all);
                None
            }
        }
    }

    fn forge(&self) {
        let Some(of) = self.any() else { return };
        let mut forged = of.forged(below(2) == 0);
        {
            let mut seen = self.seen();
            forged.number = seen.tokens.len();
            seen.tokens.push(forged.clone());
        }
        self.show(&forged);
    }

    /// One of the tokens, more often a new one.
    pub fn any(&self) -> Option<Token> {
        let (all, last) = (below(2) == 0, below(1 << 32));
        let seen = self.seen();
        let count = seen.tokens.len() as u64;
        let back = last % if all { count.max(1) } else { count.clamp(1, 6) };
        let at = count.checked_sub(1 + back)?;
        Some(seen.tokens[at as usize].clone())
    }

    fn use_any(&self) {
        if let Some(token) = self.any() {
            self.show_somehow(&token);
        }
    }

    /// Shows a token to the verifier as its kind wants it.
    pub fn show(&self, token: &Token) -> End {
        self.show_as(token, Manner::Right, None)
    }

    /// Shows a token in this manner, a bound one with this proof or a new one.
    pub fn show_as(&self, token: &Token, manner: Manner, proof: Option<&str>) -> End {
        let (end, began) = if token.bound {
            let new = || Some(self.proof(token, manner)).filter(|_| manner != Manner::Bearer);
            let proof = proof.map(str::to_owned).or_else(new);
            self.show_bound(token, proof.as_deref())
        } else {
            self.show_bearer(token)
        };
        ron_sim::note(&format!(
            "token {} is used, {manner:?}: {end:?}",
            token.number
        ));
        self.seen().uses.push(Use {
            token: token.number,
            manner,
            began,
            ended: time::now(),
            end: end.clone(),
        });
        end
    }

    fn show_bearer(&self, token: &Token) -> (End, Instant) {
        let credential = Credential::bearer(&token.text);
        let ledger = LedgerClient::new(
            &format!("http://{VERIFIER}:80"),
            credential,
            self.http.clone(),
        );
        let call = |until| ledger.events(0, Duration::ZERO, until);
        let (answer, began) = self.call("a use", call);
        let end = match answer {
            Ok(_) => End::Accepted,
            Err(ClientError::Refused {
                status, problem, ..
            }) => {
                let reason = problem.details.as_ref();
                let reason = reason.and_then(|all| all["reason"].as_str());
                End::Refused(status, reason.unwrap_or(&problem.code).to_owned())
            }
            Err(_) => End::Unknown,
        };
        (end, began)
    }

    /// One act of an operator of the issuer.
    pub fn operate(&mut self) {
        match below(12) {
            0..=4 => self.revoke_token(),
            5 | 6 => {
                let subject = SUBJECTS[below(3) as usize];
                self.revoke(Target::Subject(subject.to_owned()));
            }
            7 => self.revoke_key(),
            8 if below(2) == 0 => self.raise_epoch(),
            9 => drop(self.rotate()),
            10 | 11 => self.change_policy(),
            _ => {}
        }
        time::sleep(ms(below(400)));
    }

    fn revoke_token(&self) {
        let token = self.any().filter(|token| token.genuine);
        if let Some(token) = token {
            self.revoke(Target::Jti(token.jti));
        }
    }

    /// A key is revoked after its successor was made.
    fn revoke_key(&self) {
        let Some(token) = self.any().filter(|token| token.genuine) else {
            return;
        };
        if self.rotate() {
            time::sleep(PUBLISHED);
            self.revoke(Target::Kid(token.kid));
        }
    }

    fn raise_epoch(&self) {
        let call = |until| self.operator.events(0, Duration::ZERO, until);
        if let (Ok(page), _) = self.call("a read of the feed", call) {
            self.revoke(Target::Epoch(page.current_epoch + 1));
        }
    }

    /// Revokes the newest token; whether that was acknowledged.
    pub fn takes_back(&self) -> bool {
        let newest = self.seen().tokens.last().map(|token| token.jti.clone());
        newest.is_some_and(|jti| self.revoke(Target::Jti(jti)))
    }

    fn revoke(&self, target: Target) -> bool {
        let reason = "sim".to_owned();
        let mut request = RevokeRequest {
            reason,
            ..RevokeRequest::default()
        };
        match &target {
            Target::Jti(jti) => request.jti = Some(jti.clone()),
            Target::Subject(subject) => request.subject_ref = Some(subject.clone()),
            Target::Kid(kid) => request.kid = Some(kid.clone()),
            Target::Epoch(epoch) => request.epoch = Some(*epoch),
        }
        self.seen().revoking += 1;
        let call = |until| self.operator.revoke(&request, until);
        let (answer, began) = self.call("a revocation", call);
        ron_sim::report(&format!("{target:?} is revoked: {answer:?}"));
        let refused = matches!(answer, Err(ClientError::Refused { status: 409, .. }));
        let acknowledged = answer.is_ok();
        let mut seen = self.seen();
        seen.revoking -= 1;
        seen.revocations.push(Revocation {
            target,
            began,
            ended: time::now(),
            event: answer.ok().map(|answer| answer.event),
            refused,
        });
        acknowledged
    }

    /// A further key signs; whether that was answered. While one is held back (750 ms), a second one would have requests refused for the moment.
    fn rotate(&self) -> bool {
        let number = {
            let mut seen = self.seen();
            let now = time::now();
            if seen.rotated.is_some_and(|at| now < at + PUBLISHED) {
                return false;
            }
            seen.rotated = Some(now);
            seen.rotations += 1;
            seen.rotations
        };
        let request = RotateRequest {
            expected_head: None,
            op_id: Some(services::op_id(100 + number)),
            ..RotateRequest::default()
        };
        let kms = services::keeper(self.http.clone());
        let call = |until| kms.rotate(&self.keys.tokens, &request, until);
        let (answer, _) = self.call("a rotation", call);
        let head = answer.map(|answer| answer.document.head);
        ron_sim::report(&format!("a rotation: {head:?}"));
        head.is_ok()
    }
}
