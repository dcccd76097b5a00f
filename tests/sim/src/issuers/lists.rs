//! Status lists as a consumer reads them that knows only docs/formats/passport.md.

use std::io::Read as _;
use std::time::{Duration, Instant};

use flate2::read::ZlibDecoder;
use ron_proto::b64;
use ron_proto::passport::{RevocationEvent, Revoked};
use ron_sim::{ensure, fault, time};
use serde_json::Value;

use super::actors::{Actor, Observations, Revocation};
use super::tokens::Token;

/// Within which a list has what was revoked, with the time of a call.
const SOON: Duration = Duration::from_secs(1);

/// The bit of a token, as a list had it.
#[derive(Clone, Copy, Debug)]
pub struct Look {
    pub token: usize,
    pub began: Instant,
    pub ended: Instant,
    pub set: bool,
}

/// Number of a token's list, and its position in it.
fn place(jti: &str) -> Option<(u64, usize)> {
    let mut parts = jti.split('.');
    let list = u64::from_str_radix(parts.next()?, 16).ok()?;
    let at = usize::from_str_radix(parts.next()?, 16).ok()?;
    Some((list, at))
}

/// The bits of a list.
fn bits(list: &str) -> Option<Vec<u8>> {
    let claims = b64::from_url(list.split('.').nth(1)?).ok()?;
    let claims: Value = serde_json::from_slice(&claims).ok()?;
    let packed = b64::from_url(claims["status_list"]["lst"].as_str()?).ok()?;
    let mut bits = Vec::new();
    ZlibDecoder::new(packed.as_slice())
        .read_to_end(&mut bits)
        .ok()?;
    Some(bits)
}

impl Actor {
    /// Looks a token up in its list.
    pub fn look_up(&self) {
        let Some(token) = self.any().filter(|token| token.genuine) else {
            return;
        };
        let (list, at) = place(&token.jti).expect("an id names a place");
        let call = |until| self.client.status_list(list, until);
        let (answer, began) = self.call("a list", call);
        let Ok(text) = answer else { return };
        fault::happened("a list is read");
        let bits = bits(&text);
        ensure(bits.is_some(), &format!("a list cannot be read: {text}"));
        let bits = bits.unwrap_or_default();
        let set = bits[at / 8] & (1 << (at % 8)) != 0;
        ron_sim::note(&format!("the bit of token {} is {set}", token.number));
        let ended = time::now();
        self.seen().looks.push(Look {
            token: token.number,
            began,
            ended,
            set,
        });
    }
}

/// Whether the revocation sets the bit of the token.
fn sets(revocation: &Revocation, token: &Token, events: &[RevocationEvent]) -> bool {
    let event = revocation.event.map(|number| &events[number as usize - 1]);
    event.is_some_and(|event| token.is_voided_by(&event.revoked))
}

/// Whether a bit that this sets depends on no slot: the token's own id, its key, its epoch.
fn without_slots(revoked: &Revoked, token: &Token) -> bool {
    match revoked {
        Revoked::Jti { jti, .. } => *jti == token.jti,
        Revoked::Kid { kid } => *kid == token.kid,
        _ => !matches!(revoked, Revoked::Subject { .. }),
    }
}

/// A bit is set within the list's time, is set only for what is void, and is never unset. After a power cut the newest slots may be
/// missing, so that a revocation by subject, or of a token that this one was exchanged from, may miss a token.
pub fn check(seen: &Observations, events: &[RevocationEvent], calm: bool) {
    for look in &seen.looks {
        let token = &seen.tokens[look.token];
        let text = || format!("{look:?} of {token:?}");
        let acknowledged = |r: &&Revocation| r.event.is_some() && r.ended + SOON < look.began;
        let counts = |r: &&Revocation| {
            let event = r.event.map(|number| &events[number as usize - 1].revoked);
            calm || event.is_some_and(|revoked| without_slots(revoked, token))
        };
        let all = seen.revocations.iter().filter(acknowledged).filter(counts);
        let mut all = all.filter(|r| sets(r, token, events));
        let due = all.next();
        ensure(
            look.set || due.is_none(),
            &format!("{due:?} has not set its bit: {}", text()),
        );
        let void = token.void(events).is_some();
        ensure(!look.set || void, &format!("no event sets it: {}", text()));
        let mut later = seen.looks.iter().filter(|other| {
            other.token == look.token && other.began >= look.ended && look.set && !other.set
        });
        let unset = later.next();
        let by_slot = |event: &RevocationEvent| {
            token.is_voided_by(&event.revoked) && !without_slots(&event.revoked, token)
        };
        let lost = unset.is_some() && (calm || !events.iter().any(by_slot));
        ensure(!lost, &format!("{unset:?} after {}", text()));
    }
}
