//! The record of a run: every operation, by whom, on what, at which virtual time; a running hash over all of it; and
//! its readable form.

use std::borrow::Cow;
use std::fmt::Write as _;

use crate::objects::describe;
use crate::rng::mix;

/// One line of the record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// Virtual nanoseconds since the start.
    pub at: u64,
    pub thread: u32,
    pub op: &'static str,
    /// Its label, the index in [`Trace::objects`]; [`NOTHING`] for none.
    pub object: u32,
    /// Number of a thread, of a group or a value, as `op` has it; [`NOTHING`] for none.
    pub other: u32,
}

/// Stands for no object and no other number.
pub const NOTHING: u32 = u32::MAX;

/// The operation whose `other` is a value.
pub const CHOSE: &str = "chose";

/// The operation whose `other` is the number of a note.
pub const NOTES: &str = "notes";

/// The same, for one that is part of the story.
pub const REPORTS: &str = "reports";

/// Operations that a story shows beside what the program tells.
const OF_STORIES: [&str; 3] = ["pauses group", "kills group", "is held up"];

/// Operations whose `other` is a thread.
const OF_THREADS: [&str; 3] = ["pre-empted by", "is followed by", "spawns"];

/// The record and its hash. The hash covers all events, also those that are not kept.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    pub hash: u64,
    /// Empty unless the run keeps them.
    pub events: Vec<Event>,
    /// Names of threads in the order of their start.
    pub threads: Vec<String>,
    /// Kind and name of every object in the order of first use. Empty unless the run keeps events.
    pub objects: Vec<(&'static str, Cow<'static, str>)>,
    /// Names of groups in the order of their making.
    pub groups: Vec<String>,
    /// Texts that the program added, in their order. Empty unless the run keeps events.
    pub notes: Vec<String>,
    /// How many there were, kept or not.
    pub noted: u32,
    pub keep: bool,
}

/// FNV-1a.
fn hash_of(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

impl Trace {
    /// Records a text of the program.
    pub fn note(&mut self, at: u64, thread: u32, text: &str) {
        self.text_of(NOTES, at, thread, text);
    }

    /// Records a text of the program as part of the story.
    pub fn report(&mut self, at: u64, thread: u32, text: &str) {
        self.text_of(REPORTS, at, thread, text);
    }

    fn text_of(&mut self, op: &'static str, at: u64, thread: u32, text: &str) {
        self.hash = mix(self.hash ^ hash_of(text));
        if self.keep {
            self.notes.push(text.to_owned());
        }
        self.record(Event {
            at,
            thread,
            op,
            object: NOTHING,
            other: self.noted,
        });
        self.noted += 1;
    }

    pub fn record(&mut self, event: Event) {
        let op = hash_of(event.op);
        let numbers = u64::from(event.object) << 32 | u64::from(event.other);
        let place = event.at ^ u64::from(event.thread) << 48;
        // Each part goes through the mix with all before it, so that the order counts.
        self.hash = mix(self.hash ^ op);
        self.hash = mix(self.hash ^ numbers);
        self.hash = mix(self.hash ^ place);
        if self.keep {
            self.events.push(event);
        }
    }

    fn line(&self, event: &Event) -> String {
        let thread = self
            .threads
            .get(event.thread as usize)
            .map_or("", String::as_str);
        let mut line = format!(
            "{:>14.6} ms  {thread:<15} {}",
            event.at as f64 / 1e6,
            event.op
        );
        if event.object != NOTHING {
            let (kind, name) = &self.objects[event.object as usize];
            let _ = write!(line, " {}", describe(kind, name, event.object));
        }
        if event.other != NOTHING {
            let names: &[String] = match event.op {
                CHOSE => &[], // its number is a value
                NOTES | REPORTS => &self.notes,
                op if OF_THREADS.contains(&op) => &self.threads,
                _ => &self.groups,
            };
            let _ = match names.get(event.other as usize) {
                Some(name) => write!(line, " {name}"),
                None => write!(line, " {}", event.other),
            };
        }
        line
    }

    /// The kept events as a time line, one event a line.
    pub fn text(&self) -> String {
        let mut text = String::new();
        for event in &self.events {
            text.push_str(&self.line(event));
            text.push('\n');
        }
        text
    }

    /// What the program reported and what happened to its groups, one line each: the kept events without the operations.
    pub fn story(&self) -> String {
        let mut text = String::new();
        let reported = |event: &&Event| event.op == REPORTS || OF_STORIES.contains(&event.op);
        for event in self.events.iter().filter(reported) {
            let line = self.line(event);
            let _ = writeln!(text, "{}", line.replacen(" tells ", " ", 1));
        }
        text
    }

    /// The first line that differs from another record of the same seed, with the lines before it; `None` when both are
    /// equal.
    pub fn first_difference(&self, other: &Self) -> Option<String> {
        let (ours, theirs) = (self.text(), other.text());
        if ours == theirs {
            return None;
        }
        let (ours, theirs): (Vec<_>, Vec<_>) = (ours.lines().collect(), theirs.lines().collect());
        let at = ours.iter().zip(&theirs).take_while(|(a, b)| a == b).count();
        let before = ours[at.saturating_sub(5)..at].join("\n");
        let line = |lines: &[&str]| lines.get(at).copied().unwrap_or("(the end)").to_owned();
        Some(format!(
            "{before}\nevent {at} differs:\n  first  {}\n  second {}\n",
            line(&ours),
            line(&theirs)
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trace(ops: &[&'static str]) -> Trace {
        let mut trace = Trace {
            keep: true,
            threads: vec!["main".to_owned(), "worker".to_owned()],
            objects: vec![("mutex", "money".into()), ("queue", "".into())],
            ..Trace::default()
        };
        for (at, op) in ops.iter().enumerate() {
            trace.record(Event {
                at: at as u64 * 1_000,
                thread: 0,
                op,
                object: if *op == "spawns" { NOTHING } else { at as u32 },
                other: if *op == "spawns" { 1 } else { NOTHING },
            });
        }
        trace
    }

    #[test]
    fn the_first_difference_is_shown_with_what_came_before() {
        let a = trace(&["locks", "sends to", "spawns"]);
        assert_eq!(a.first_difference(&a.clone()), None);
        let text = a.text();
        for part in [
            "locks mutex `money` #0",
            "sends to queue #1",
            "spawns worker",
        ] {
            assert!(text.contains(part), "{part} in\n{text}");
        }
        let b = trace(&["locks", "receives from", "spawns"]);
        assert_ne!(a.hash, b.hash);
        let difference = a.first_difference(&b).unwrap();
        assert!(difference.contains("event 1 differs"), "{difference}");
        let short = trace(&["locks"]);
        assert!(a.first_difference(&short).unwrap().contains("(the end)"));
    }

    #[test]
    fn the_hash_depends_on_the_order() {
        let (a, b) = (trace(&["locks", "sends to"]), trace(&["sends to", "locks"]));
        assert_ne!(a.hash, b.hash);
    }
}
