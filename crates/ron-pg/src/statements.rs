//! The statements of a log's store.

use ron_tlog::store::{Batch, Writer};

use crate::connection::Param;

/// The statements with the schema in its place.
pub struct Statements {
    pub head: String,
    pub claim: String,
    append_owned: String,
    append_shared: String,
    /// The same two under a guard; `None` without a guard.
    guarded: Option<[String; 2]>,
    /// The version of the guard; nothing without one.
    guard: String,
    pub append_run: String,
    pub take_ids: String,
    pub stored_ids: String,
    pub read: String,
    pub put_checkpoint: String,
    pub checkpoint: String,
}

/// No epoch fences a shared writer, so its append compares the holder: that of a log which a migration has says so.
const IN_USE: &str = "AND holder !~ '^(filling|moved):'";

impl Statements {
    pub fn of(schema: &str, guard: Option<&str>) -> Self {
        let s = schema;
        let append = format!(
            "WITH f AS (UPDATE {s}.log_head SET size = size + $3, root = $4 \
             WHERE log = $1 AND size = $2 AND root = $6 OTHER RETURNING epoch) \
             INSERT INTO {s}.log_batch (log, first, n, epoch, before, root, frame) \
             SELECT $1, $2, $3, f.epoch, $6, $4, $5 FROM f"
        );
        // One statement sees the row and the log at one moment, after everything that was acknowledged before it was sent.
        let guarded = |table: &str| {
            let version = |n: u8| format!("AND (SELECT version FROM {table}) = ${n}");
            [
                append.replace("OTHER", &format!("AND epoch = $7 {}", version(8))),
                append.replace("OTHER", &format!("{IN_USE} {}", version(7))),
            ]
        };
        Self {
            guarded: guard.map(guarded),
            guard: guard.map_or_else(String::new, |table| format!("SELECT version FROM {table}")),
            head: format!("SELECT size, root, epoch, holder FROM {s}.log_head WHERE log = $1"),
            // The newest epoch exactly: a claim that arrives late changes nothing.
            claim: format!(
                "UPDATE {s}.log_head SET epoch = epoch + 1, holder = $3 \
                 WHERE log = $1 AND epoch = $2 RETURNING size, root, epoch, holder"
            ),
            append_owned: append.replace("OTHER", "AND epoch = $7"),
            append_shared: append.replace("OTHER", IN_USE),
            append_run: format!(
                "WITH f AS (UPDATE {s}.log_head SET size = $3, root = $4 \
                 WHERE log = $1 AND size = $2 AND root = $5 AND epoch = $6 RETURNING epoch) \
                 INSERT INTO {s}.log_batch (log, first, n, epoch, before, root, frame) \
                 SELECT $1, u.first::bigint, u.n::int, f.epoch, u.before, u.root, u.frame \
                 FROM f, unnest($7::text[], $8::text[], $9::bytea[], $10::bytea[], $11::bytea[]) \
                 AS u (first, n, before, root, frame)"
            ),
            // In the order given, so that nodes that take the same ids wait in the same order.
            take_ids: format!(
                "INSERT INTO {s}.log_unique (scope, key, body_hash, answer, expires) \
                 SELECT u.scope, u.key, u.body_hash, u.answer, now() + $5 * interval '1 ms' \
                 FROM unnest($1::text[], $2::text[], $3::bytea[], $4::bytea[]) \
                 WITH ORDINALITY AS u (scope, key, body_hash, answer, n) ORDER BY u.n \
                 ON CONFLICT DO NOTHING RETURNING scope, key"
            ),
            stored_ids: format!(
                "SELECT u.n, k.body_hash, k.answer FROM {s}.log_unique k \
                 JOIN unnest($1::text[], $2::text[]) WITH ORDINALITY AS u (scope, key, n) \
                 ON k.scope = u.scope AND k.key = u.key ORDER BY u.n"
            ),
            // The lengths first, which need no frame to be read.
            read: format!(
                "SELECT first, n, epoch, root, frame, before FROM {s}.log_batch \
                 WHERE log = $1 AND first >= $2 AND first <= ( \
                 SELECT max(first) FROM ( \
                 SELECT first, sum(bytes) OVER (ORDER BY first) AS total, min(first) OVER () AS start \
                 FROM (SELECT first, octet_length(frame) AS bytes FROM {s}.log_batch \
                 WHERE log = $1 AND first >= $2 ORDER BY first LIMIT $4) b) c \
                 WHERE total <= $3 OR first = start) ORDER BY first"
            ),
            // The lock makes the comparison of the epoch hold until the commit.
            put_checkpoint: format!(
                "WITH h AS (SELECT epoch FROM {s}.log_head \
                 WHERE log = $1 AND size >= $2 AND ($3 < 0 OR epoch = $3) FOR SHARE) \
                 INSERT INTO {s}.log_checkpoint (log, size, epoch, note) \
                 SELECT $1, $2, h.epoch, $4 FROM h \
                 ON CONFLICT (log, size) DO UPDATE SET epoch = EXCLUDED.epoch, note = EXCLUDED.note"
            ),
            checkpoint: format!(
                "SELECT size, note FROM {s}.log_checkpoint WHERE log = $1 ORDER BY size DESC LIMIT 1"
            ),
        }
    }

    pub fn has_guard(&self) -> bool {
        self.guarded.is_some()
    }

    /// Reads the guard, which has to be there.
    pub fn guard(&self) -> &str {
        &self.guard
    }

    /// The append, for this writer and with or without the guard, which has to be there then.
    pub fn append(&self, writer: Writer, is_guarded: bool) -> &str {
        match (writer, &self.guarded) {
            (Writer::Owner { .. }, Some([owned, _])) if is_guarded => owned,
            (Writer::Shared, Some([_, shared])) if is_guarded => shared,
            (Writer::Owner { .. }, _) => &self.append_owned,
            (Writer::Shared, _) => &self.append_shared,
        }
    }
}

/// Under which conditions a batch is appended.
#[derive(Clone, Copy)]
pub struct Right {
    pub writer: Writer,
    /// Of the guard, if it is compared.
    pub version: Option<u64>,
}

impl Right {
    pub fn append(self, sql: &Statements) -> &str {
        sql.append(self.writer, self.version.is_some())
    }
}

/// The parameters of [`Right::append`].
pub fn append_params<'a>(log: &'a str, by: Right, batch: &'a Batch) -> Vec<Param<'a>> {
    let place = &batch.place;
    let mut params = vec![
        Param::Text(log),
        Param::Int8(place.first as i64),
        Param::Int4(place.count as i32),
        Param::Bytes(&place.root),
        Param::Bytes(&batch.frame),
        Param::Bytes(&place.before),
    ];
    if let Writer::Owner { epoch } = by.writer {
        params.push(Param::Int8(epoch as i64));
    }
    if let Some(version) = by.version {
        params.push(Param::Int8(version as i64));
    }
    params
}
