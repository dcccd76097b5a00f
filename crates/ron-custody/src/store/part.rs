//! Which part of the store a node reads, and the statements that choose its keys.

use ron_proto::values::Kid;
use ron_service::records::Value;

use super::seal::Trust;

/// Keys that a part has beside those that were changed.
pub(super) const NAMED_MAX: usize = 4;

/// Which part of the store is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Part {
    All(Trust),
    /// The keys that were changed after this version of the store, and at most [`NAMED_MAX`] others.
    Since(u64, Vec<Kid>),
}

/// Begins with the parameters of [`Part::chosen`].
pub(super) const KEYS: &str =
    "SELECT kid, meta, mac FROM keys WHERE changed > ?1 OR kid IN (?2, ?3, ?4, ?5) ORDER BY kid";

const VERSIONS: &str = "
    SELECT kid, number, created, birth, birth_mac, sealed_sha256, public, sealed, birth_log FROM versions
    WHERE (kid, number) > (?1, ?2)";

/// Ends with the parameters of [`Part::chosen`].
const OF_CHOSEN: &str =
    "AND kid IN (SELECT kid FROM keys WHERE changed > ?4 OR kid IN (?5, ?6, ?7, ?8))";

impl Part {
    pub(super) fn trust(&self) -> Trust {
        match self {
            Self::All(trust) => *trust,
            Self::Since(..) => Trust::Sums,
        }
    }

    /// The statement that reads at most `limit` versions after this one, with its parameters.
    pub(super) fn versions_after(
        &self,
        (kid, number): (&str, i64),
        limit: i64,
    ) -> (String, Vec<Value>) {
        let mut params: Vec<Value> = vec![kid.into(), number.into(), limit.into()];
        // Without a list of all keys, which would be made again for each page.
        let of_chosen = match self {
            Self::All(_) => "",
            Self::Since(..) => {
                params.extend(self.chosen());
                OF_CHOSEN
            }
        };
        let sql = format!("{VERSIONS} {of_chosen} ORDER BY kid, number LIMIT ?3");
        (sql, params)
    }

    /// The parameters by which statements choose the keys.
    pub(super) fn chosen(&self) -> [Value; 1 + NAMED_MAX] {
        let (since, named) = match self {
            Self::All(_) => (-1, &[][..]), // versions begin with 0
            Self::Since(version, named) => (version.cast_signed(), &**named),
        };
        let mut chosen = [const { Value::Null }; 1 + NAMED_MAX];
        let (first, names) = chosen.split_first_mut().expect("there is a first one");
        *first = since.into();
        for (at, place) in names.iter_mut().enumerate() {
            // No key has an empty name.
            let name = named.get(at).map(Kid::to_string).unwrap_or_default();
            *place = name.as_str().into();
        }
        chosen
    }
}
