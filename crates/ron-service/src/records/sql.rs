//! What PostgreSQL calls otherwise than SQLite: numbers of parameters in all statements, and types in migrations.

/// A piece of SQL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Piece<'a> {
    /// A keyword or a name without quotes.
    Word(&'a str),
    /// A text, a name in quotes, or a comment: taken as it is.
    Fixed(&'a str),
    Other(char),
}

/// Takes the first piece off.
fn next<'a>(rest: &mut &'a str) -> Option<Piece<'a>> {
    let first = rest.chars().next()?;
    let length = |end: Option<usize>| end.unwrap_or(rest.len());
    let piece = match first {
        '\'' | '"' => {
            // A doubled quote inside is two texts side by side, which changes nothing here.
            let end = length(rest[1..].find(first).map(|at| at + 2));
            Piece::Fixed(&rest[..end])
        }
        '-' if rest.starts_with("--") => Piece::Fixed(&rest[..length(rest.find('\n'))]),
        c if c.is_alphanumeric() || c == '_' => {
            let end = length(rest.find(|c: char| !c.is_alphanumeric() && c != '_'));
            Piece::Word(&rest[..end])
        }
        c => Piece::Other(c),
    };
    let taken = match piece {
        Piece::Word(text) | Piece::Fixed(text) => text.len(),
        Piece::Other(c) => c.len_utf8(),
    };
    *rest = &rest[taken..];
    Some(piece)
}

/// A statement with `$1` where it has `?1`.
pub(super) fn statement(sql: &str) -> String {
    let (mut rest, mut out) = (sql, String::with_capacity(sql.len()));
    while let Some(piece) = next(&mut rest) {
        match piece {
            Piece::Other('?') => out.push('$'),
            Piece::Other(c) => out.push(c),
            Piece::Word(text) | Piece::Fixed(text) => out.push_str(text),
        }
    }
    out
}

/// The statements of a migration, one by one, with the types of PostgreSQL. Text is compared by its
/// bytes on both engines.
pub(super) fn migration(sql: &str) -> Vec<String> {
    let (mut rest, mut all, mut out) = (sql, Vec::new(), String::new());
    while let Some(piece) = next(&mut rest) {
        match piece {
            Piece::Other(';') => all.push(std::mem::take(&mut out)),
            Piece::Other(c) => out.push(c),
            Piece::Fixed(text) if text.starts_with("--") => {} // alone it would be an empty statement
            Piece::Fixed(text) => out.push_str(text),
            Piece::Word(word) => out.push_str(match word {
                "INTEGER" => "bigint",
                "BLOB" => "bytea",
                "TEXT" => "text COLLATE \"C\"",
                word => word,
            }),
        }
    }
    all.push(out);
    let statements = all
        .iter()
        .map(|statement| without_options(statement.trim()));
    statements
        .filter(|statement| !statement.is_empty())
        .map(str::to_owned)
        .collect()
}

/// `STRICT` and `WITHOUT ROWID` stand behind the columns of a table, and only SQLite knows them.
fn without_options(statement: &str) -> &str {
    let columns = statement
        .rfind(')')
        .map_or(statement, |end| &statement[..=end]);
    let options = statement[columns.len()..].split(',').map(str::trim);
    let only_sqlite = |option: &str| matches!(option, "STRICT" | "WITHOUT ROWID");
    if statement.starts_with("CREATE TABLE") && options.into_iter().all(only_sqlite) {
        columns
    } else {
        statement
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_renamed_outside_of_texts() {
        for (sqlite, postgres) in [
            ("SELECT ?1, ?12", "SELECT $1, $12"),
            ("SELECT '?1', ?1 -- ?2\n, ?3", "SELECT '?1', $1 -- ?2\n, $3"),
            (
                "SELECT \"a?1\", 'it''s ?1', ?1",
                "SELECT \"a?1\", 'it''s ?1', $1",
            ),
            ("SELECT 'é?1'||?1||'", "SELECT 'é?1'||$1||'"),
        ] {
            assert_eq!(statement(sqlite), postgres);
        }
    }

    #[test]
    fn migrations_get_types_and_lose_options() {
        let sql = "CREATE TABLE a (n INTEGER PRIMARY KEY, t TEXT NOT NULL DEFAULT ';TEXT', b BLOB) STRICT, WITHOUT ROWID;
                   CREATE INDEX a_t ON a (t) WHERE n > 0;\n-- INTEGER\n";
        assert_eq!(
            migration(sql),
            [
                "CREATE TABLE a (n bigint PRIMARY KEY, t text COLLATE \"C\" NOT NULL DEFAULT ';TEXT', b bytea)",
                "CREATE INDEX a_t ON a (t) WHERE n > 0",
            ]
        );
        assert_eq!(migration(super::super::EPOCH_TABLE).len(), 1);
        // An option that is not known is left for the server to refuse.
        assert!(migration("CREATE TABLE a (n INTEGER) OTHER")[0].ends_with("OTHER"));
    }
}
