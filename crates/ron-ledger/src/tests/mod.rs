//! Tests of the modules together: engine on a simulated disk, threads, service over real sockets,
//! offline check.

mod answers;
mod crash;
mod engine;
mod erase;
mod feed;
mod gate;
mod history;
mod lists;
mod receipts;
mod requests;
mod reversals;
mod service;
mod support;
mod threads;
