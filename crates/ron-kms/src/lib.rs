//! ron-kms
