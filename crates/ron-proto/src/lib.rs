//! ron-proto
