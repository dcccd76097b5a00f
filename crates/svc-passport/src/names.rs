//! The names of the issuer, the `iss` of its tokens: the present one, and those that it had before it was moved. Pure.

use ron_proto::passport::TTL_S_MAX;
use ron_proto::{Kid, Timestamp};

/// Seconds that a former name, its keys and a superseded key count longer than their last token, for differences between clocks.
pub(crate) const GRACE_S: u64 = 120;

/// Unix second after which no token is valid that was made before `stopped_s`.
pub(crate) const fn last_end_s(stopped_s: u64) -> u64 {
    stopped_s + TTL_S_MAX + GRACE_S
}

/// A name that the issuer had before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Former {
    pub issuer: String,
    /// Base of the URLs that were published then.
    pub public_url: String,
    /// The KMS keys that signed tokens with it.
    pub keys: Vec<Kid>,
    /// When tokens with it were issued no more.
    pub moved: Timestamp,
}

impl Former {
    /// Unix second of the move.
    pub fn moved_s(&self) -> u64 {
        self.moved.0 / 1000
    }

    /// Unix second after which no token with this name is valid.
    pub fn end_s(&self) -> u64 {
        last_end_s(self.moved_s())
    }
}

/// All names of the issuer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Names {
    /// `iss` of new tokens.
    pub now: String,
    /// The first one first.
    pub former: Vec<Former>,
}

impl Names {
    /// The first name: policy notes and the log of revocations are signed under it for good.
    pub fn first(&self) -> &str {
        let first = self.former.first();
        first.map_or(&self.now, |former| &former.issuer)
    }

    /// The former names with which tokens may be valid.
    pub fn ending(&self, now_s: u64) -> impl Iterator<Item = &Former> {
        let former = self.former.iter();
        former.filter(move |former| now_s <= former.end_s())
    }

    /// The names that tokens may have.
    pub fn accepted(&self, now_s: u64) -> Vec<&str> {
        let former = self.ending(now_s).map(|former| former.issuer.as_str());
        std::iter::once(self.now.as_str()).chain(former).collect()
    }

    /// The base of the URL that a status list has, which was opened in this second: its tokens name that URL.
    pub fn base_of<'a>(&'a self, opened_s: u64, public_url: &'a str) -> &'a str {
        let mut then = self.former.iter();
        let then = then.find(|former| opened_s < former.moved_s());
        then.map_or(public_url, |former| &former.public_url)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_former_name_counts_until_its_last_token_has_expired_and_the_first_one_signs_documents() {
        let former = |name: &str, moved_s: u64| Former {
            issuer: name.to_owned(),
            public_url: format!("{name}/base"),
            keys: Vec::new(),
            moved: Timestamp(moved_s * 1000),
        };
        let mut names = Names {
            now: "c".to_owned(),
            former: Vec::new(),
        };
        assert_eq!((names.first(), names.accepted(5)), ("c", vec!["c"]));
        assert_eq!(names.base_of(5, "c/base"), "c/base");
        names.former = vec![former("a", 10_000), former("b", 11_000)];
        assert_eq!(names.first(), "a");
        let end = 10_000 + TTL_S_MAX + GRACE_S;
        assert_eq!(names.accepted(end), ["c", "a", "b"]);
        assert_eq!(names.accepted(end + 1), ["c", "b"]);
        assert_eq!(names.accepted(end + 1_001), ["c"]);
        for (opened_s, base) in [(9_999, "a/base"), (10_000, "b/base"), (11_000, "c/base")] {
            assert_eq!(names.base_of(opened_s, "c/base"), base, "{opened_s}");
        }
    }
}
