//! The part of a migration that a log is in, as its holder.

/// What a migration does with a log. It is the name of the log's holder, so that the epoch fences: no node claims such a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Transit {
    /// Batches come in from the files at this place, which still are the log.
    Filling(String),
    /// The log is in the files at this place, or is about to be.
    Moved(String),
}

const FILLING: &str = "filling:";
const MOVED: &str = "moved:";

impl Transit {
    /// The name of the holder; `run` tells a start of the migration from others.
    pub fn holder(&self, run: u64) -> String {
        let (kind, place) = match self {
            Self::Filling(place) => (FILLING, place),
            Self::Moved(place) => (MOVED, place),
        };
        format!("{kind}{place}#{run:016x}")
    }

    /// What the name of a holder says; `None` of a node.
    pub fn of_holder(holder: &str) -> Option<Self> {
        let place = |kind| {
            let named = holder.strip_prefix(kind)?;
            let (place, _) = named.rsplit_once('#').unwrap_or((named, ""));
            Some(place.to_owned())
        };
        let filling = place(FILLING).map(Self::Filling);
        filling.or_else(|| place(MOVED).map(Self::Moved))
    }
}

impl std::fmt::Display for Transit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Filling(place) => write!(
                f,
                "it is being filled from the files at {place}, which still are the log; end that with `migrate --resume` there"
            ),
            Self::Moved(place) => write!(
                f,
                "it was moved to the files at {place}; use it there, or move it here again with `migrate`"
            ),
        }
    }
}
