//! The names under which an issuer makes tokens, as its policy note states them.

use ron_proto::passport::SKEW_S;

/// The `iss` of an issuer's tokens.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct IssuerNames {
    /// What new tokens have.
    pub now: String,
    /// Those that it had before, each with the second after which none of its tokens is valid.
    pub before: Vec<(String, u64)>,
}

impl IssuerNames {
    /// The names that tokens may have at this time, in unix seconds.
    pub(crate) fn at(&self, now_s: u64) -> impl Iterator<Item = &str> {
        let before = self.before.iter();
        let before = before.filter(move |(_, end_s)| now_s <= end_s + SKEW_S);
        std::iter::once(self.now.as_str()).chain(before.map(|(name, _)| name.as_str()))
    }
}
