//! `libron_pkcs11.so`: programs that speak PKCS#11 use keys of ron-kms over its Unix socket.
//!
//! ```text
//!  nginx, ssh, openssl, pkcs11-tool
//!        │ C_Sign ...                        the C interface, PKCS#11 2.40
//!      edge/       raw pointers to slices and back; the only unsafe code
//!        │
//!      module ──── table (sessions, handles), one lock, never held over a call
//!        │
//!      operation   what is hashed here, and what the key is asked to sign
//!        │
//!      service ──> ron-kms                   one connection per call, closed at its end
//! ```
//!
//! **Invariants:** no thread is started; nothing of a parent process is used after a fork, and no connection
//! outlives the call that made it; no private key is ever in this process; a panic ends at the edge as
//! `CKR_GENERAL_ERROR`. Page: `docs/pkcs11-module.md`.

mod attributes;
mod config;
mod edge;
mod initialised;
mod key;
mod mechanism;
mod module;
mod names;
mod operation;
mod rv;
mod service;
mod table;
