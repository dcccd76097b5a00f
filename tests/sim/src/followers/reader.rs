//! A reader of the past: histories, statements, balances and totals of a moment. What it was told is compared when the log is known.

use std::sync::Arc;
use std::time::Instant;

use ron_client::ClientError;
use ron_kernel::Deadline;
use ron_proto::ledger::{AccountPage, HoldPage, PointInTime, StatementTime, TrialBalance};
use ron_proto::wallet::{Balance, HistoryPage, Statement};
use ron_proto::{Account, Asset, Timestamp};
use ron_sim::{ensure, time};

use super::payer::{ASSETS, COLOURS, REFERENCES, any};
use super::{CALL, Clients, Shared};
use crate::chance::{below, ms};
use crate::money::requests::ACCOUNTS;

/// What a page of a history was asked for.
#[derive(Clone, Debug, Default)]
pub struct Asked {
    pub asset: Option<Asset>,
    pub direction: Option<&'static str>,
    pub counterparty: Option<Account>,
    pub reference: Option<&'static str>,
    pub colour: Option<&'static str>,
    pub before: Option<u64>,
    pub after: Option<u64>,
    pub limit: u64,
}

#[derive(Debug)]
pub enum Page {
    History(Asked, HistoryPage),
    /// With `after` and `limit`.
    Statement(Option<u64>, u64, Statement),
    /// At the sequence that was asked for.
    Balance(u64, Balance),
    Totals(u64, TrialBalance),
    /// After this name, at most so many, with all that this entry knows.
    Accounts(Option<Account>, u64, u64, AccountPage),
    /// Of an account, before this entry, at most so many.
    Holds(Account, Option<u64>, u64, HoldPage),
}

pub struct Reader {
    clients: Clients,
    shared: Arc<Shared>,
    pub pages: Vec<Page>,
}

fn account() -> Account {
    any(&ACCOUNTS).parse().expect("an account")
}

fn asset() -> Asset {
    any(&ASSETS).parse().expect("an asset")
}

/// One in `n`.
fn rarely<T>(n: u64, value: impl FnOnce() -> T) -> Option<T> {
    (below(n) == 0).then(value)
}

/// What was read, or nothing for now: a request of a reader is never wrong.
fn told<T>(read: Result<T, ClientError>) -> Option<T> {
    if let Err(ClientError::Refused {
        status, problem, ..
    }) = &read
    {
        let text = format!("a read is refused with {status}: {problem:?}");
        ensure([429, 502, 503, 504].contains(status), &text);
    }
    read.ok()
}

impl Reader {
    pub fn new(clients: Clients, shared: &Arc<Shared>) -> Self {
        Self {
            clients,
            shared: shared.clone(),
            pages: Vec::new(),
        }
    }

    pub fn number(&self) -> usize {
        self.pages.len()
    }

    pub fn act(&mut self) {
        let read = match below(14) {
            0..6 => self.history(&account()),
            6..10 => self.statement(),
            10 => self.balance(),
            11 => self.accounts(),
            12 => self.holds(account()),
            _ => self.totals(),
        };
        if read.is_none() {
            time::sleep(ms(below(200)));
        }
    }

    /// The entry that an answer must know.
    fn least(&self) -> Option<u64> {
        let known = self.shared.known();
        rarely(2, || known)
    }

    /// Pages of an account from the newest entry to the oldest; now and then those that came after a page.
    fn history(&mut self, account: &Account) -> Option<()> {
        let mut asked = Asked {
            asset: rarely(4, asset),
            direction: rarely(4, || any(&["in", "out"])),
            counterparty: rarely(6, self::account),
            reference: rarely(4, || any(&REFERENCES)),
            colour: rarely(4, || any(&COLOURS)),
            limit: 1 + below(12),
            ..Asked::default()
        };
        let least = self.least();
        let first = self.history_page(account, &asked, least)?;
        let (mut older, newer) = (first.older, first.newer);
        for _ in 0..1 + below(6) {
            let Some(before) = older else { break };
            asked.before = Some(before);
            older = self.history_page(account, &asked, None)?.older;
        }
        asked.before = None;
        asked.after = Some(newer);
        self.history_page(account, &asked, None).map(drop)
    }

    fn history_page(
        &mut self,
        account: &Account,
        asked: &Asked,
        least: Option<u64>,
    ) -> Option<HistoryPage> {
        let texts = [
            ("asset", asked.asset.as_ref().map(ToString::to_string)),
            ("direction", asked.direction.map(str::to_owned)),
            (
                "counterparty",
                asked.counterparty.as_ref().map(ToString::to_string),
            ),
            ("reference", asked.reference.map(str::to_owned)),
            ("metadata", asked.colour.map(|c| format!("colour={c}"))),
            ("before", asked.before.map(|seq| seq.to_string())),
            ("after", asked.after.map(|seq| seq.to_string())),
            ("limit", Some(asked.limit.to_string())),
            ("min_seq", least.map(|seq| seq.to_string())),
        ];
        let query: Vec<_> = texts
            .into_iter()
            .filter_map(|(name, text)| text.map(|text| (name, text)))
            .collect();
        let page = self
            .clients
            .wallet
            .history(account, &query, Deadline::within(CALL));
        let page = told(page)?;
        let text = format!("a history up to {} does not know {least:?}", page.newer);
        ensure(page.newer >= least.unwrap_or(0), &text);
        self.pages.push(Page::History(asked.clone(), page.clone()));
        Some(page)
    }

    fn statement(&mut self) -> Option<()> {
        let (account, asset) = (account(), asset());
        let now = Timestamp(time::date().as_millis() as u64);
        let (by, from, until) = if below(2) == 0 {
            let day = Timestamp::from_utc_day(now.utc_day() - below(3));
            let end = Timestamp::from_utc_day(now.utc_day() + below(2) + 1);
            (StatementTime::Effective, day, end)
        } else {
            let ago = |most| Timestamp(now.0 - below(most));
            let until = if below(2) == 0 {
                Timestamp(now.0 + 60_000)
            } else {
                Timestamp(ago(2_000).0 + 1)
            };
            (
                StatementTime::Entry,
                Timestamp(ago(10_000).0 - 2_000),
                until,
            )
        };
        let limit = 1 + below(12);
        let mut after = None;
        for _ in 0..1 + below(6) {
            let least = self.least();
            let mut query = vec![
                ("asset", asset.to_string()),
                ("from", from.to_string()),
                ("until", until.to_string()),
                ("by", by.as_str().to_owned()),
                ("limit", limit.to_string()),
            ];
            query.extend(after.map(|seq: u64| ("after", seq.to_string())));
            query.extend(least.map(|seq| ("min_seq", seq.to_string())));
            let page = self
                .clients
                .wallet
                .statement(&account, &query, Deadline::within(CALL));
            let page = told(page)?;
            let text = format!(
                "a statement as of {} does not know {least:?}",
                page.as_of_seq
            );
            ensure(page.as_of_seq >= least.unwrap_or(0), &text);
            let next = page.next;
            self.pages.push(Page::Statement(after, limit, page));
            if next.is_none() {
                break;
            }
            after = next;
        }
        Some(())
    }

    fn balance(&mut self) -> Option<()> {
        let at = 1 + below(self.shared.known());
        let point = Some(PointInTime::Seq(at));
        let wallet = &self.clients.wallet;
        let read = told(wallet.balance(&account(), &asset(), point, Deadline::within(CALL)))?;
        self.pages.push(Page::Balance(at, read));
        Some(())
    }

    fn totals(&mut self) -> Option<()> {
        // Both assets are used by then.
        let at = 2 + below(self.shared.known() - 1);
        let point = Some(PointInTime::Seq(at));
        let read = self
            .clients
            .wallet
            .trial_balance(&asset(), point, Deadline::within(CALL));
        self.pages.push(Page::Totals(at, told(read)?));
        Some(())
    }

    /// All accounts, page after page.
    fn accounts(&mut self) -> Option<()> {
        let limit = 1 + below(4);
        let mut after = None;
        loop {
            let least = self.least().unwrap_or(0);
            let mut query = vec![("limit", limit.to_string()), ("min_seq", least.to_string())];
            query.extend(
                after
                    .iter()
                    .map(|name: &Account| ("after", name.to_string())),
            );
            let page = told(self.clients.wallet.accounts(&query, Deadline::within(CALL)))?;
            let next = page.next.clone();
            self.pages.push(Page::Accounts(after, limit, least, page));
            if next.is_none() {
                return Some(());
            }
            after = next;
        }
    }

    /// All holds of an account, page after page.
    fn holds(&mut self, account: Account) -> Option<()> {
        let limit = 1 + below(4);
        let mut before = None;
        loop {
            let mut query = vec![
                ("account", account.to_string()),
                ("limit", limit.to_string()),
            ];
            query.extend(before.map(|seq: u64| ("before", seq.to_string())));
            let page = told(self.clients.wallet.holds(&query, Deadline::within(CALL)))?;
            let older = page.older;
            self.pages
                .push(Page::Holds(account.clone(), before, limit, page));
            if older.is_none() {
                return Some(());
            }
            before = older;
        }
    }

    /// The history has every entry that was acknowledged.
    pub fn catches_up_before(&mut self, at: Instant) {
        for account in ACCOUNTS {
            let account = account.parse().expect("an account");
            let asked = Asked {
                limit: 500,
                ..Asked::default()
            };
            let known = Some(self.shared.known());
            while self.history_page(&account, &asked, known).is_none() {
                let late = "10 s after the last fault the history lacks what was answered";
                ensure(time::now() < at, late);
                time::sleep(ms(50));
            }
        }
    }
}
