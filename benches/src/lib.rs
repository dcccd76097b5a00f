//! Load scripts.
