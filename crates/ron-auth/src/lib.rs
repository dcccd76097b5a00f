//! ron-auth
