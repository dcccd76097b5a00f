//! Request and answer types of the ron-kms API.
