//! ron-service
