//! The tables of the key store. In the subset of SQL that a file and an engine share.

use ron_service::Migration;

/// Schema changes, applied in order; there is no way back to an older version.
pub const MIGRATIONS: &[Migration] = &[KEYS, LOGS, CHANGED, TRANSIT];

const KEYS: Migration = Migration {
    version: 1,
    name: "keys",
    sql: "
    CREATE TABLE store (
      id INTEGER PRIMARY KEY CHECK (id = 1),
      store_id BLOB NOT NULL, salt BLOB NOT NULL, version INTEGER NOT NULL,
      seal_check BLOB NOT NULL, log_origin TEXT NOT NULL, log_key BLOB NOT NULL,
      log_key_created INTEGER NOT NULL, mac BLOB NOT NULL, tpm_counter INTEGER
    ) STRICT;
    CREATE TABLE keys (kid TEXT PRIMARY KEY, meta BLOB NOT NULL, mac BLOB NOT NULL) STRICT, WITHOUT ROWID;
    CREATE TABLE versions (
      kid TEXT NOT NULL, number INTEGER NOT NULL, created INTEGER NOT NULL, birth INTEGER, birth_mac BLOB,
      sealed_sha256 BLOB NOT NULL, public BLOB NOT NULL, sealed BLOB NOT NULL,
      PRIMARY KEY (kid, number)
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE ops (
      tenant TEXT NOT NULL, op_id TEXT NOT NULL, body BLOB NOT NULL, created INTEGER NOT NULL,
      answer TEXT, mac BLOB NOT NULL, PRIMARY KEY (tenant, op_id)
    ) STRICT, WITHOUT ROWID;
    CREATE INDEX ops_created ON ops (created);
    CREATE TABLE outbox (
      id INTEGER PRIMARY KEY CHECK (id = 1), tenant TEXT NOT NULL, op_id TEXT NOT NULL,
      kid TEXT NOT NULL, number INTEGER NOT NULL, leaf BLOB NOT NULL,
      log_size INTEGER NOT NULL, version_before INTEGER NOT NULL
    ) STRICT;
    CREATE TABLE log_keys (
      number INTEGER PRIMARY KEY CHECK (number > 1), created INTEGER NOT NULL,
      sealed BLOB NOT NULL, statement TEXT NOT NULL, leaf BLOB NOT NULL,
      log_size INTEGER NOT NULL, version_before INTEGER NOT NULL, birth INTEGER
    ) STRICT;
    CREATE TABLE issuer_policy (
      id INTEGER PRIMARY KEY CHECK (id = 1), version INTEGER NOT NULL,
      policy BLOB NOT NULL, signature BLOB NOT NULL, leaf BLOB NOT NULL,
      log_size INTEGER NOT NULL, version_before INTEGER NOT NULL, birth INTEGER
    ) STRICT;
    ",
};

/// One audit log per node. Of a store with one node `log` and `birth_log` are NULL: the log of the row `store`.
const LOGS: Migration = Migration {
    version: 2,
    name: "logs",
    sql: "
    CREATE TABLE logs (
      origin TEXT PRIMARY KEY, created INTEGER NOT NULL, sealed BLOB NOT NULL
    ) STRICT, WITHOUT ROWID;
    ALTER TABLE versions ADD COLUMN birth_log TEXT;
    ALTER TABLE issuer_policy ADD COLUMN log TEXT;
    CREATE TABLE outboxes (
      log TEXT PRIMARY KEY, tenant TEXT NOT NULL, op_id TEXT NOT NULL,
      kid TEXT NOT NULL, number INTEGER NOT NULL, leaf BLOB NOT NULL,
      log_size INTEGER NOT NULL, version_before INTEGER NOT NULL
    ) STRICT, WITHOUT ROWID;
    INSERT INTO outboxes SELECT log_origin, tenant, op_id, kid, number, leaf, log_size, version_before
      FROM outbox, store;
    DROP TABLE outbox;
    ALTER TABLE outboxes RENAME TO outbox;
    CREATE TABLE keys_of_logs (
      log TEXT NOT NULL, number INTEGER NOT NULL CHECK (number > 1), created INTEGER NOT NULL,
      sealed BLOB NOT NULL, statement TEXT NOT NULL, leaf BLOB NOT NULL,
      log_size INTEGER NOT NULL, version_before INTEGER NOT NULL, birth INTEGER,
      PRIMARY KEY (log, number)
    ) STRICT, WITHOUT ROWID;
    INSERT INTO keys_of_logs SELECT log_origin, number, created, sealed, statement, leaf, log_size,
      version_before, birth FROM log_keys, store;
    DROP TABLE log_keys;
    ALTER TABLE keys_of_logs RENAME TO log_keys;
    ",
};

/// The version of the store at which a key was changed last, by which another node finds what it has to read. No MAC covers it: what was
/// read is compared with the MAC of the store. That covers no leaf of a version, so a node also reads the keys of which it has a version
/// without a leaf: a program of format 2 that runs beside it sets no `changed`.
const CHANGED: Migration = Migration {
    version: 3,
    name: "changed",
    sql: "
    ALTER TABLE keys ADD COLUMN changed INTEGER NOT NULL DEFAULT 0;
    CREATE INDEX keys_changed ON keys (changed);
    ",
};

/// What a migration does with the keys: `filling:PLACE` or `moved:PLACE`; NULL when nodes may use them. No MAC covers it: with the
/// keys in one place alone, the text only says where.
const TRANSIT: Migration = Migration {
    version: 4,
    name: "transit",
    sql: "ALTER TABLE store ADD COLUMN transit TEXT;",
};
