//! ron-tlog
