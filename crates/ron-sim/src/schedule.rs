//! A schedule as a list of decisions: the places at which a run did something else than the default.
//!
//! By default a thread runs until it waits, the thread that has been ready longest runs next, a notification wakes the
//! thread that has waited longest, and no fault happens. A run is its seed's random numbers for the program and these
//! decisions; a shorter list that still fails is easier to read.

use std::collections::BTreeMap;
use std::fmt;

/// What a decision changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// The thread with this number runs next.
    Run,
    /// The thread with this number is woken by a notification.
    Wake,
    /// A fault or a choice of the program takes this value instead of 0.
    Choice,
    /// The group with this number is paused, for so many milliseconds (low 32 bits; the group in the high ones).
    Pause,
    /// The thread with this number (high 32 bits) is passed over while others are ready, for so many steps (low 32 bits).
    Starve,
    /// The thread is held up at this operation, for so many microseconds.
    Stall,
}

/// Where a decision is made: in which operation of which thread. Both stay what they are when a decision of another
/// thread is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    pub thread: u32,
    /// Number of the operation among those of its thread, from 1.
    pub operation: u64,
    pub kind: Kind,
}

/// Decisions by their place. Its text form is what a failing run prints.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Schedule(pub BTreeMap<Place, u64>);

impl Schedule {
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// True when everything went by the default.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

const KINDS: [(&str, Kind); 6] = [
    ("run", Kind::Run),
    ("wake", Kind::Wake),
    ("choice", Kind::Choice),
    ("pause", Kind::Pause),
    ("starve", Kind::Starve),
    ("stall", Kind::Stall),
];

impl fmt::Display for Schedule {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (place, value)) in self.0.iter().enumerate() {
            let (name, _) = KINDS[place.kind as usize];
            let space = if at == 0 { "" } else { " " };
            write!(
                out,
                "{space}{}.{}:{name}={value}",
                place.thread, place.operation
            )?;
        }
        Ok(())
    }
}

impl std::str::FromStr for Schedule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut all = BTreeMap::new();
        for word in text.split_whitespace() {
            let decision = parse(word)
                .ok_or_else(|| format!("`{word}` is not THREAD.OPERATION:KIND=VALUE"))?;
            all.insert(decision.0, decision.1);
        }
        Ok(Self(all))
    }
}

fn parse(word: &str) -> Option<(Place, u64)> {
    let (place, decision) = word.split_once(':')?;
    let (thread, operation) = place.split_once('.')?;
    let (name, value) = decision.split_once('=')?;
    let (_, kind) = KINDS.iter().find(|(known, _)| *known == name)?;
    let place = Place {
        thread: thread.parse().ok()?,
        operation: operation.parse().ok()?,
        kind: *kind,
    };
    Some((place, value.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_form_is_read_back() {
        let mut schedule = Schedule::default();
        for (at, (_, kind)) in KINDS.iter().enumerate() {
            let place = Place {
                thread: at as u32,
                operation: 7 + at as u64,
                kind: *kind,
            };
            schedule.0.insert(place, 3);
        }
        let text = schedule.to_string();
        assert_eq!(
            text,
            "0.7:run=3 1.8:wake=3 2.9:choice=3 3.10:pause=3 4.11:starve=3 5.12:stall=3"
        );
        assert_eq!(text.parse(), Ok(schedule));
        assert!("0.7:run".parse::<Schedule>().is_err());
    }
}
