//! ron-http
