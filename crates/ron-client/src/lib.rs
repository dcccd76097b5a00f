//! ron-client
