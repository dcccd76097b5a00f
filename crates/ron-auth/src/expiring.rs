//! Names that count until a time, in order of both.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;

/// Names, each with the Unix second until which it counts. Forgetting costs what is forgotten, however many names there
/// are: a follower of the revocations forgets after every page.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Expiring {
    until: BTreeMap<Arc<str>, u64>,
    /// The same entries by their time; the names are shared.
    by_end: BTreeSet<(u64, Arc<str>)>,
}

impl Expiring {
    /// Adds a name, or extends its time; never shortens it.
    pub fn extend(&mut self, name: &str, until_s: u64) {
        if let Some(known) = self.until.get_mut(name) {
            if *known >= until_s {
                return;
            }
            let before = std::mem::replace(known, until_s);
            let (_, name) = self
                .by_end
                .take(&(before, name.into()))
                .expect("both have it");
            self.by_end.insert((until_s, name));
            return;
        }
        let name: Arc<str> = name.into();
        self.until.insert(name.clone(), until_s);
        self.by_end.insert((until_s, name));
    }

    /// Drops the names that count until `end_s` or less.
    pub fn forget(&mut self, end_s: u64) {
        while let Some((until_s, _)) = self.by_end.first()
            && *until_s <= end_s
        {
            let (_, name) = self.by_end.pop_first().expect("the first of some");
            self.until.remove(&name);
        }
    }

    pub fn until(&self, name: &str) -> Option<u64> {
        self.until.get(name).copied()
    }

    pub fn len(&self) -> usize {
        self.until.len()
    }

    /// In order of the names.
    pub fn iter(&self) -> impl Iterator<Item = (&str, u64)> {
        self.until.iter().map(|(name, until)| (&**name, *until))
    }

    /// The names that begin with `prefix`, in order.
    pub fn of<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = &'a str> {
        self.until
            .range::<str, _>((Bound::Included(prefix), Bound::Unbounded))
            .map(|(name, _)| &**name)
            .take_while(move |name| name.starts_with(prefix))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::Expiring;

    proptest! {
        /// As a map whose entries are all compared each time.
        #[test]
        fn forgets_what_a_pass_over_all_entries_would_forget(
            steps in prop::collection::vec((0_u8..3, 0_u8..20, 0_u64..30), 0..200),
        ) {
            let (mut kept, mut plain) = (Expiring::default(), BTreeMap::<String, u64>::new());
            for (kind, name, time) in steps {
                if kind == 0 {
                    kept.forget(time);
                    plain.retain(|_, until| *until > time);
                } else {
                    let name = name.to_string();
                    kept.extend(&name, time);
                    let until = plain.entry(name).or_default();
                    *until = (*until).max(time);
                }
                let all: Vec<_> = plain.iter().map(|(name, until)| (name.as_str(), *until)).collect();
                prop_assert_eq!(kept.iter().collect::<Vec<_>>(), all);
                prop_assert_eq!(kept.by_end.len(), kept.len());
            }
        }
    }
}
