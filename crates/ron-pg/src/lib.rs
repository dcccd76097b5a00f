//! ron-pg: sessions with PostgreSQL through libpq, without a runtime, and logs in it. Records
//! (`ron_service::records`) use the sessions.
//!
//! ```text
//!  sys         libpq as safe values: the only `unsafe` code
//!  hosts       a database with several hosts, as one text for each
//!  connection  one session: connect, query, wait for the answer, each until a deadline
//!  session     the rules under which a session may write, and what an error means
//!  inspect     what a server shows of itself and of its standbys
//!  schema      tables, partitions ahead of need, expired ids
//!  log_store   ron_tlog's LogStore, by statements
//!  log_beat    ron_tlog's LogBeat
//! ```
//!
//! **Invariant:** no call waits in libpq: sockets are non-blocking, and all waits are in a poller of the kernel.
//! **Invariant:** a query is never cancelled. A caller that gives up closes the connection.
//! **Invariant:** a write that the server answers with success and a notice is unknown.
//!
//! Without the feature `postgres` the crate is empty, and nothing links libpq.
#![cfg(feature = "postgres")]

mod connection;
mod hosts;
mod ids;
mod inspect;
mod log_beat;
mod log_store;
mod schema;
mod session;
mod statements;
mod sys;

pub use connection::{Cell, Connection, Notice, Param, PgError, Rows, Waiter};
pub use inspect::inspect;
pub use log_beat::PgLogBeat;
pub use log_store::PgLogStore;
pub use schema::Upkeep;
pub use session::{Commits, Durability, PgLogOptions, Session, check_schema, of_read, of_write};
