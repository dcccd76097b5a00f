//! Holders of tokens: they pay with good ones, with void ones, and with such as do not allow what they ask for.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ron_client::{ClientError, Credential, WalletClient};
use ron_http::HttpClient;
use ron_kernel::Deadline;
use ron_proto::IdemKey;
use ron_proto::wallet::IssueMoney;
use ron_sim::time;
use serde_json::json;

use super::WALLET;
use super::issuer::{Kind, Token};
use super::server::Server;
use crate::chance::{below, ms};
use crate::hosts::{self, client_ip};
use crate::net::SimNet;

/// Longest time of one call.
const CALL: Duration = Duration::from_secs(2);

/// What a call came to.
#[derive(Clone, Debug, PartialEq)]
pub enum End {
    Paid,
    Refused(u16, String),
    Unknown,
}

/// A payment that was asked for with a token.
#[derive(Clone, Debug)]
pub struct Use {
    pub key: String,
    /// Number of the token, in the order of issue.
    pub token: usize,
    /// Whether the token is one for this payment, as long as it is good.
    pub allowed: bool,
    pub began: Instant,
    /// Unix seconds.
    pub began_s: u64,
    pub ended: Instant,
    pub end: End,
}

pub struct Holder {
    number: u8,
    http: Arc<HttpClient>,
    pub uses: Vec<Use>,
}

impl Holder {
    pub fn new(net: &SimNet, number: u8) -> Self {
        let http = hosts::client(net.host(client_ip(number)), 2_000 + u64::from(number));
        Self {
            number,
            http: Arc::new(http),
            uses: Vec::new(),
        }
    }

    /// Pays with one of the tokens, a new one, a void one or any.
    pub fn act(&mut self, server: &Server) {
        let token = server.with(|issuer| {
            let all = issuer.tokens.len() as u64;
            let void = issuer.tokens.iter().filter(|token| token.void.is_some());
            let void: Vec<_> = void.collect();
            match below(3) {
                0 if !void.is_empty() => void[below(void.len() as u64) as usize].clone(),
                1 => issuer.tokens[below(all) as usize].clone(),
                _ => issuer.tokens[(all - 1 - below(all.min(4))) as usize].clone(),
            }
        });
        self.pay(&token);
        time::sleep(ms(below(120)));
    }

    pub fn pay(&mut self, token: &Token) -> End {
        let account = ["user:a", "user:b"][below(2) as usize];
        let amount = 1 + below(100);
        let allowed = match token.kind {
            Kind::Issue => true,
            Kind::Account => account == "user:a",
            Kind::Ceiling => amount <= 50,
            Kind::ReadOnly | Kind::OtherService => false,
        };
        let key = format!("h{}-{}", self.number, self.uses.len());
        let (began, began_s) = (time::now(), time::date().as_secs());
        let end = self.issue(token, &key, account, amount);
        ron_sim::note(&format!("{key} with token {}: {end:?}", token.number));
        self.uses.push(Use {
            key,
            token: token.number,
            allowed,
            began,
            began_s,
            ended: time::now(),
            end: end.clone(),
        });
        end
    }

    fn issue(&self, token: &Token, key: &str, account: &str, amount: u64) -> End {
        let key: IdemKey = key.parse().expect("a key");
        let body = json!({"to": account, "asset": "credit", "amount_minor": amount.to_string()});
        let body: IssueMoney = serde_json::from_value(body).expect("a request");
        let credential = Credential::bearer(&token.text);
        let wallet = WalletClient::new(
            &format!("http://{WALLET}:80"),
            credential,
            self.http.clone(),
        );
        match wallet.issue(&key, &body, Deadline::within(CALL)) {
            Ok(_) => End::Paid,
            Err(ClientError::Refused {
                status, problem, ..
            }) => {
                let reason = problem
                    .details
                    .as_ref()
                    .and_then(|all| all["reason"].as_str());
                End::Refused(status, reason.unwrap_or(&problem.code).to_owned())
            }
            Err(_) => End::Unknown,
        }
    }
}
