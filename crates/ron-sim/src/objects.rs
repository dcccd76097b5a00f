//! The objects of a run: what each is called, and which threads wait for it. Places of objects that were dropped are used
//! again, so that a long run has bounded memory; labels are not, so that a trace is unambiguous.

use std::borrow::Cow;

/// All objects in use, by their place.
#[derive(Debug, Default)]
pub struct Objects {
    places: Vec<Item>,
    free: Vec<u32>,
    labels: u32,
}

#[derive(Debug)]
struct Item {
    /// Its number in the order of first use.
    label: u32,
    kind: &'static str,
    name: Cow<'static, str>,
    /// Waiting threads, the longest first.
    waiting: Vec<u32>,
    holder: Option<u32>,
}

/// An object as traces and reports name it.
pub fn describe(kind: &str, name: &str, label: u32) -> String {
    if name.is_empty() {
        return format!("{kind} #{label}");
    }
    format!("{kind} `{name}` #{label}")
}

impl Objects {
    /// Adds an object; its place.
    pub fn add(&mut self, kind: &'static str, name: Cow<'static, str>) -> u32 {
        let item = Item {
            label: self.labels,
            kind,
            name,
            waiting: Vec::new(),
            holder: None,
        };
        self.labels += 1;
        if let Some(place) = self.free.pop() {
            self.places[place as usize] = item;
            return place;
        }
        self.places.push(item);
        self.places.len() as u32 - 1
    }

    /// Frees the place of an object that was dropped, so that nothing waits for it.
    pub fn remove(&mut self, place: u32) {
        self.free.push(place);
    }

    pub fn label(&self, place: u32) -> u32 {
        self.places[place as usize].label
    }

    pub fn describe(&self, place: u32) -> String {
        let item = &self.places[place as usize];
        describe(item.kind, &item.name, item.label)
    }

    pub fn waiting(&self, place: u32) -> &[u32] {
        &self.places[place as usize].waiting
    }

    pub fn begin_wait(&mut self, place: u32, thread: u32) {
        self.places[place as usize].waiting.push(thread);
    }

    pub fn end_wait(&mut self, place: u32, thread: u32) {
        self.places[place as usize].waiting.retain(|t| *t != thread);
    }

    pub fn holder(&self, place: u32) -> Option<u32> {
        self.places[place as usize].holder
    }

    pub fn set_holder(&mut self, place: u32, holder: Option<u32>) {
        self.places[place as usize].holder = holder;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_used_again_and_labels_are_not() {
        let mut objects = Objects::default();
        let (a, b) = (
            objects.add("mutex", "a".into()),
            objects.add("gate", "".into()),
        );
        assert_eq!((objects.label(a), objects.label(b)), (0, 1));
        objects.begin_wait(a, 7);
        objects.begin_wait(a, 8);
        objects.end_wait(a, 7);
        objects.set_holder(a, Some(3));
        assert_eq!((objects.waiting(a), objects.holder(a)), (&[8][..], Some(3)));
        objects.end_wait(a, 8);
        objects.remove(a);
        let c = objects.add("mutex", "c".into());
        assert_eq!((c, objects.label(c), objects.holder(c)), (a, 2, None));
        assert_eq!(objects.describe(c), "mutex `c` #2");
        assert_eq!(objects.describe(b), "gate #1");
    }
}
