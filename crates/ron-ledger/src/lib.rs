//! ron-ledger
