//! Look-ups by name in lists that keep the order in which they were written.

use std::collections::BTreeMap;
use std::sync::OnceLock;

/// Where a list has which name, noted at the first look-up. It makes look-ups fast and says nothing by itself: what it
/// says is compared with the list, which may have changed since.
#[derive(Clone, Debug, Default)]
pub struct Places(OnceLock<BTreeMap<Box<str>, usize>>);

impl PartialEq for Places {
    /// Lists are the same whatever was looked up in them.
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Places {
    /// The first element of this name.
    pub(super) fn find<'a, T>(
        &self,
        list: &'a [T],
        name: &str,
        name_of: impl Fn(&T) -> &str,
    ) -> Option<&'a T> {
        let noted = self.0.get_or_init(|| {
            let mut places = BTreeMap::new();
            for (at, one) in list.iter().enumerate() {
                places.entry(name_of(one).into()).or_insert(at);
            }
            places
        });
        let is = |one: &&T| name_of(one) == name;
        let found = noted.get(name).and_then(|at| list.get(*at)).filter(is);
        // Not there, or there since the places were noted.
        found.or_else(|| list.iter().find(is))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_also_in_a_list_that_has_changed() {
        let places = Places::default();
        let entry = |name: &str, n| (name.to_owned(), n);
        let mut list = vec![entry("a", 1), entry("b", 2), entry("a", 3)];
        let find = |list: &[(String, u32)], wanted: &str| {
            places.find(list, wanted, |one| &one.0).map(|one| one.1)
        };
        assert_eq!(find(&list, "a"), Some(1), "the first");
        assert_eq!(find(&list, "b"), Some(2));
        assert_eq!(find(&list, "c"), None);
        list.push(entry("c", 4));
        list.remove(0);
        assert_eq!(find(&list, "c"), Some(4));
        assert_eq!(find(&list, "b"), Some(2));
        assert_eq!(find(&list, "a"), Some(3));
        list.clear();
        assert_eq!(find(&list, "a"), None);
    }
}
