//! The treasury, which puts money into the pool and reads the ledger's log.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ron_client::{ClientError, Credential, LedgerClient};
use ron_kernel::Deadline;
use ron_proto::ledger::{CommitRequest, Entry, EntryAnswer, Event};
use ron_sim::{ensure, time};
use serde_json::json;

use super::LEDGER;
use super::plan::POOL;
use super::services::Tokens;
use crate::callers::log_if_answered;
use crate::chance::ms;
use crate::hosts::{self, client_ip};
use crate::net::SimNet;

pub struct Treasury {
    ledger: LedgerClient,
    auditor: LedgerClient,
    /// Money that was put into the pool.
    pub funds: u128,
    keys: u32,
}

impl Treasury {
    pub fn new(net: &SimNet) -> Self {
        let client = |token: &str, number| {
            let http = Arc::new(hosts::client(net.host(client_ip(number)), number.into()));
            LedgerClient::new(
                &format!("http://{LEDGER}:80"),
                Credential::bearer(token),
                http,
            )
        };
        let tokens = Tokens::written();
        Self {
            ledger: client(&tokens.treasury, 8),
            auditor: client(&tokens.auditor, 9),
            funds: 0,
            keys: 0,
        }
    }

    /// Money for the pool is there before this moment.
    pub fn fund(&mut self, amount: u128, by: Instant) {
        self.keys += 1;
        let entry = json!({
            "kind": "issue", "tenant": "default", "principal": "treasury", "key": format!("fund-{}", self.keys),
            "to": POOL, "asset": "credit", "amount_minor": amount.to_string()
        });
        let entry: Entry = serde_json::from_value(entry).expect("an entry");
        let request = CommitRequest {
            entries: vec![entry],
            linked: false,
            batch: false,
        };
        loop {
            let limit = Deadline::within(Duration::from_secs(2));
            match self.ledger.commit(&request, limit) {
                Ok(answer) => {
                    let done = matches!(answer.results[..], [EntryAnswer::Done { .. }]);
                    ensure(done, &format!("the pool is not funded: {answer:?}"));
                    self.funds += amount;
                    return;
                }
                Err(error) => ensure(
                    time::now() < by,
                    &format!("the pool cannot be funded: {error}"),
                ),
            }
            time::sleep(ms(100));
        }
    }

    /// The ledger's whole log, if the ledger answers.
    pub fn log(&self) -> Result<Vec<Event>, ClientError> {
        log_if_answered(&self.auditor)
    }
}
