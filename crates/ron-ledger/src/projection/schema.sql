CREATE TABLE IF NOT EXISTS meta (
  origin TEXT NOT NULL,     -- of the log that the file is made from
  applied INTEGER NOT NULL  -- sequence of the last entry in the file
);
CREATE TABLE IF NOT EXISTS entries (
  seq INTEGER PRIMARY KEY,
  ts TEXT NOT NULL,         -- the ledger's time
  kind TEXT NOT NULL,
  outcome TEXT NOT NULL,    -- done or refused
  code TEXT,                -- why it was refused
  tenant TEXT, principal TEXT, key TEXT,  -- of the request
  from_account TEXT, to_account TEXT, asset TEXT, amount_minor TEXT,  -- moved, or asked for by a refused entry
  nonce INTEGER,
  memo TEXT, reference TEXT,
  shared INTEGER NOT NULL,  -- 1: the payee reads the reference too
  metadata TEXT,            -- JSON
  effective_at TEXT,
  hold TEXT, batch TEXT, reverses TEXT,  -- transactions that it belongs to
  txid TEXT
);
CREATE INDEX IF NOT EXISTS entries_reversed ON entries (reverses, seq) WHERE reverses IS NOT NULL;
CREATE INDEX IF NOT EXISTS entries_reference ON entries (tenant, reference, seq) WHERE reference IS NOT NULL;
CREATE INDEX IF NOT EXISTS entries_batch ON entries (batch, seq) WHERE batch IS NOT NULL;
CREATE INDEX IF NOT EXISTS entries_hold ON entries (hold, seq) WHERE hold IS NOT NULL;
CREATE TABLE IF NOT EXISTS accounts (
  id INTEGER PRIMARY KEY,
  name TEXT NOT NULL UNIQUE,
  asset TEXT,               -- of its first entry; NULL when that had none
  mixed_from INTEGER        -- sequence of its first entry in another asset; NULL while there is none
);
CREATE TABLE IF NOT EXISTS history (
  account INTEGER NOT NULL, -- id in accounts
  seq INTEGER NOT NULL,
  asset TEXT,
  credits TEXT, debits TEXT, held TEXT,  -- what the account had got, given and reserved after the entry
  moved INTEGER NOT NULL,   -- 1: the entry moved money
  day INTEGER,              -- the day that statements show, where it is not that of the entry
  reference TEXT,
  mixed INTEGER NOT NULL,   -- 1: the account has entries in several assets, from this one on or earlier
  PRIMARY KEY (account, seq)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS history_asset ON history (account, asset, seq) WHERE mixed;
CREATE INDEX IF NOT EXISTS history_day ON history (account, asset, day, seq) WHERE day IS NOT NULL;
CREATE INDEX IF NOT EXISTS history_reference ON history (account, reference, seq) WHERE reference IS NOT NULL;
CREATE VIEW IF NOT EXISTS account_history AS
  SELECT a.name AS account, h.seq, h.asset, h.credits, h.debits, h.held, h.moved, h.day, h.reference
  FROM accounts a JOIN history h ON h.account = a.id;
CREATE TABLE IF NOT EXISTS day_shifts (
  account TEXT NOT NULL, asset TEXT NOT NULL, day INTEGER NOT NULL,
  credits_in TEXT NOT NULL, debits_in TEXT NOT NULL,    -- shown on this day, of entries of other days
  credits_out TEXT NOT NULL, debits_out TEXT NOT NULL,  -- of entries of this day, shown on other days
  PRIMARY KEY (account, asset, day)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS balances (
  account TEXT NOT NULL, asset TEXT NOT NULL,
  amount_minor TEXT NOT NULL,  -- credits less debits
  credits TEXT NOT NULL, debits TEXT NOT NULL, held TEXT NOT NULL,
  seq INTEGER NOT NULL,     -- the entry up to which they were added up
  PRIMARY KEY (account, asset)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS supply (
  asset TEXT NOT NULL,
  seq INTEGER NOT NULL,     -- of an issue or burn
  issued TEXT NOT NULL, burned TEXT NOT NULL,  -- all that ever was, after the entry
  PRIMARY KEY (asset, seq)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS classes (
  account TEXT NOT NULL,
  seq INTEGER NOT NULL,     -- of the entry that set it
  class TEXT NOT NULL,      -- from this entry on; empty: none
  PRIMARY KEY (account, seq)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS holds (
  seq INTEGER PRIMARY KEY,  -- of the entry that made it
  hold TEXT NOT NULL, account TEXT NOT NULL, asset TEXT NOT NULL, amount TEXT NOT NULL,
  remaining TEXT NOT NULL, captured TEXT NOT NULL, expires_at TEXT NOT NULL,
  open INTEGER NOT NULL     -- 1: something is reserved still
);
CREATE INDEX IF NOT EXISTS holds_account ON holds (account, seq);
