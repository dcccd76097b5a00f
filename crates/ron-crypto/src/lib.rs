//! ron-crypto
