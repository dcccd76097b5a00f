//! Request and answer types of the ron-ledger API.
