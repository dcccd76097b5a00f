//! Why a run failed, in words.

use std::fmt;

/// The reason, with what each thread was doing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// A panic left the body of a thread: its message and place.
    Panic { thread: String, message: String },
    /// A check did not hold ([`crate::ensure`]): its text and place.
    Check { thread: String, message: String },
    /// Every thread waits and none has a deadline.
    Deadlock { threads: Vec<String> },
    /// The limit of steps or of virtual time was reached: threads that wait for each other in loops, or a limit that is
    /// too low.
    Livelock { limit: String, threads: Vec<String> },
    /// The running thread did not come back to the simulator: it waits in the operating system or computes in a loop.
    Stuck { thread: String, system: String },
    /// Two runs of the seed differ.
    Chance { runs: [String; 2] },
    /// The operating system gave no thread.
    NoThread { why: String },
}

impl Failure {
    /// Whether two runs failed for the same reason, whatever the threads did elsewhere: for the search of a shorter
    /// schedule.
    pub fn same(&self, other: &Self) -> bool {
        let kind = std::mem::discriminant(self) == std::mem::discriminant(other);
        let place = |failure: &Self| match failure {
            Self::Panic { message, .. } | Self::Check { message, .. } => place(message).to_owned(),
            _ => String::new(),
        };
        kind && place(self) == place(other)
    }
}

/// The source location at the end of a panic's message; values in the message may differ.
fn place(message: &str) -> &str {
    message.rsplit_once(" at ").map_or(message, |(_, at)| at)
}

impl fmt::Display for Failure {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut list = |title: &str, threads: &[String]| {
            writeln!(out, "{title}")?;
            threads
                .iter()
                .try_for_each(|line| writeln!(out, "  {line}"))
        };
        match self {
            Self::Panic { thread, message } => writeln!(out, "`{thread}` panicked: {message}"),
            Self::Check { thread, message } => {
                writeln!(out, "a check in `{thread}` does not hold: {message}")
            }
            Self::Deadlock { threads } => list("deadlock: every thread waits", threads),
            Self::Livelock { limit, threads } => list(&format!("no end: {limit}"), threads),
            Self::Stuck { thread, system } => writeln!(
                out,
                "`{thread}` blocks outside of the simulator, or computes without an operation\n{system}"
            ),
            Self::Chance { runs } => list("two runs of this seed differ; the runs were:", runs),
            Self::NoThread { why } => writeln!(out, "no thread: {why}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panics_are_the_same_by_their_place() {
        let panic = |message: &str| Failure::Panic {
            thread: "a".to_owned(),
            message: message.to_owned(),
        };
        assert!(panic("lost 3 at src/a.rs:1:2").same(&panic("lost 4 at src/a.rs:1:2")));
        assert!(!panic("lost 3 at src/a.rs:1:2").same(&panic("lost 3 at src/a.rs:9:2")));
        let dead = Failure::Deadlock { threads: vec![] };
        assert!(!dead.same(&panic("x")));
    }
}
