//! Orders of every kind of operation while the fleet is killed, drained, stopped for a moment, and without room on its disk: each
//! request is sent by many clients at once and again until it is answered. Every order ends complete, with each of its entries
//! once.

use std::time::Duration;

use ron_client::{ClientError, WalletClient};
use ron_http::Call;
use ron_kernel::Deadline;
use ron_proto::ledger::{AssetLimits, Details, EntryKind, HoldRef, RefusalCode, Sides, TxId};
use ron_proto::wallet::{
    Batch, BatchItem, Burn, Capture, CaptureItem, FreezeAccount, HoldMoney, IssueMoney,
    ItemOutcome, Operation, ReleaseItem, Reverse, SetAccount, SetAsset, Transaction, Transfer,
};
use ron_proto::{Account, Amount, Asset, DebitAmount, IdemKey};
use ron_tests::processes::Rig;
use ron_tests::{CALL, Draws, Fleet, json, number, ok, ron_on};
use rustix::process::{Pid, Signal, kill_process};

const WORKERS: usize = 4;
/// Time for one answer while the fleet may be down.
const ANSWER: Duration = Duration::from_secs(3);
/// Time in which the workers go on after the trouble.
const AFTERWARDS: Duration = Duration::from_millis(300);

/// What each order has in the end, in the order of the ledger.
const COMPLETE: [EntryKind; 15] = [
    EntryKind::Issue,
    EntryKind::Account,
    EntryKind::Hold,
    EntryKind::Capture,
    EntryKind::Transfer,
    EntryKind::Capture,
    EntryKind::Reverse,
    EntryKind::Hold,
    EntryKind::Capture,
    EntryKind::Release,
    EntryKind::Burn,
    EntryKind::Freeze,
    EntryKind::Unfreeze,
    EntryKind::Asset,
    EntryKind::Transfer,
];

/// An order and how far it is.
struct Order {
    name: String,
    step: usize,
    hold: Option<TxId>,
    paid: Option<TxId>,
    /// Transactions that were acknowledged.
    acknowledged: Vec<TxId>,
}

const STEPS: usize = 14;

impl Order {
    fn new(name: String) -> Self {
        Self {
            name,
            step: 0,
            hold: None,
            paid: None,
            acknowledged: Vec::new(),
        }
    }

    fn customer(&self) -> Account {
        format!("acct:{}", self.name).parse().unwrap()
    }

    fn details(&self) -> Details {
        Details {
            reference: Some(self.name.parse().unwrap()),
            ..Details::default()
        }
    }

    /// Sends the request of the present step; returns the transactions that it made.
    fn send(&self, wallet: &WalletClient) -> Result<Vec<TxId>, ClientError> {
        let key = |name: String| name.parse::<IdemKey>().unwrap();
        let own = key(format!("{}.{}", self.name, self.step));
        let abandoned = key(format!("{}.abandoned", self.name));
        let by = Deadline::within(ANSWER);
        let one = match self.step {
            3 => return self.deliver(wallet, &own, by),
            6 => return self.reserve(wallet, &own, by),
            0..6 => self.sell(wallet, &own, by)?,
            7..12 => self.end(wallet, &own, by)?,
            12 => {
                let given_up = wallet.abandon(&abandoned, by)?;
                let code = RefusalCode::Abandoned;
                assert_eq!(given_up, Operation::Refused { code }, "{}", self.name);
                return Ok(Vec::new());
            }
            _ => {
                let late = wallet.issue(&abandoned, &self.deposit(), by);
                let refused = late.expect_err("its key was given up");
                if refused.code() == Some(RefusalCode::Abandoned.as_str()) {
                    return Ok(Vec::new());
                }
                return Err(refused);
            }
        };
        Ok(vec![one.receipt.txid])
    }

    fn deposit(&self) -> IssueMoney {
        IssueMoney {
            to: self.customer(),
            asset: eur(),
            amount_minor: Amount(70),
            details: self.details(),
        }
    }

    /// Money for the customer, its terms, the hold of the price, its capture, and a reversal.
    fn sell(
        &self,
        wallet: &WalletClient,
        key: &IdemKey,
        by: Deadline,
    ) -> Result<Transaction, ClientError> {
        let (details, asset) = (self.details(), eur());
        match self.step {
            0 => wallet.issue(key, &self.deposit(), by),
            1 => {
                let body = SetAccount {
                    class: Some("orders".parse().unwrap()),
                    limits: Some(AssetLimits {
                        asset,
                        credit_limit_minor: Amount(10),
                        max_balance_minor: Some(Amount(100)),
                    }),
                    details,
                    ..SetAccount::default()
                };
                wallet.set_account(key, &self.customer(), &body, by)
            }
            2 => {
                let body = HoldMoney {
                    from: self.customer(),
                    asset,
                    amount_minor: Amount(80).into(),
                    nonce: None,
                    expires_at: "2099-01-01T00:00:00Z".parse().unwrap(),
                    details,
                };
                wallet.hold(key, &body, by)
            }
            4 => {
                let body = Capture {
                    to: shop(),
                    amount_minor: None,
                    ends_hold: true,
                    details,
                };
                wallet.capture(key, self.hold.unwrap(), &body, by)
            }
            _ => {
                let body = Reverse {
                    amount_minor: Some(Amount(20)),
                    details,
                };
                wallet.reverse(key, self.paid.unwrap(), &body, by)
            }
        }
    }

    /// What comes after the sale: a burn, a freeze and its end, an asset, and all that is left to the shop.
    fn end(
        &self,
        wallet: &WalletClient,
        key: &IdemKey,
        by: Deadline,
    ) -> Result<Transaction, ClientError> {
        let (details, asset) = (self.details(), eur());
        match self.step {
            7 => {
                let body = Burn {
                    from: self.customer(),
                    asset,
                    amount_minor: Amount(2).into(),
                    nonce: None,
                    details,
                };
                wallet.burn(key, &body, by)
            }
            8 | 9 => {
                let body = FreezeAccount {
                    sides: Some(Sides::Credits),
                    details,
                };
                if self.step == 8 {
                    wallet.freeze(key, &self.customer(), &body, by)
                } else {
                    wallet.unfreeze(key, &self.customer(), &body, by)
                }
            }
            10 => {
                let body = SetAsset {
                    scale: 2,
                    title: None,
                    details,
                };
                wallet.set_asset(key, &self.name.parse().unwrap(), &body, by)
            }
            _ => {
                let body = Transfer {
                    from: self.customer(),
                    to: shop(),
                    asset,
                    amount_minor: DebitAmount::Max,
                    nonce: None,
                    details,
                };
                wallet.transfer(key, &body, by)
            }
        }
    }

    /// A hold that the same linked batch captures in part and releases.
    fn reserve(
        &self,
        wallet: &WalletClient,
        key: &IdemKey,
        by: Deadline,
    ) -> Result<Vec<TxId>, ClientError> {
        let items = vec![
            BatchItem::Hold(HoldMoney {
                from: self.customer(),
                asset: eur(),
                amount_minor: Amount(6).into(),
                nonce: None,
                expires_at: "2099-01-01T00:00:00Z".parse().unwrap(),
                details: self.details(),
            }),
            BatchItem::Capture(CaptureItem {
                hold: HoldRef::Item(0),
                to: shop(),
                amount_minor: Some(Amount(4)),
                ends_hold: false,
                details: self.details(),
            }),
            BatchItem::Release(ReleaseItem {
                hold: HoldRef::Item(0),
                details: self.details(),
            }),
        ];
        self.linked(wallet, key, items, by)
    }

    /// A part of the price, and the fee out of it, in one linked batch.
    fn deliver(
        &self,
        wallet: &WalletClient,
        key: &IdemKey,
        by: Deadline,
    ) -> Result<Vec<TxId>, ClientError> {
        let items = vec![
            BatchItem::Capture(CaptureItem {
                hold: self.hold.unwrap().into(),
                to: shop(),
                amount_minor: Some(Amount(50)),
                ends_hold: false,
                details: self.details(),
            }),
            BatchItem::Transfer(Transfer {
                from: shop(),
                to: "acct:orders-fees".parse().unwrap(),
                asset: eur(),
                amount_minor: Amount(5).into(),
                nonce: None,
                details: self.details(),
            }),
        ];
        self.linked(wallet, key, items, by)
    }

    fn linked(
        &self,
        wallet: &WalletClient,
        key: &IdemKey,
        items: Vec<BatchItem>,
        by: Deadline,
    ) -> Result<Vec<TxId>, ClientError> {
        let body = Batch {
            items,
            linked: true,
        };
        let done = wallet.batch(key, &body, by)?;
        let txid = |item: ItemOutcome| match item {
            ItemOutcome::Done { receipt, .. } => receipt.txid,
            ItemOutcome::Refused { code } => panic!("{}: an item was refused: {code}", self.name),
        };
        Ok(done.results.into_iter().map(txid).collect())
    }

    /// Sends the step from many clients at the same time; goes on when it was answered.
    fn advance(&mut self, wallet: &WalletClient) {
        let clients = number("RON_ORDER_CLIENTS", 16) as usize;
        let answers = ron_kernel::scoped(clients, |_| self.send(wallet));
        let mut first: Option<Vec<TxId>> = None;
        for answer in answers {
            match answer {
                Ok(made) => match &first {
                    Some(first) => assert_eq!(*first, made, "{}: two answers", self.name),
                    None => first = Some(made),
                },
                Err(e) => assert!(is_open(&e), "{}, step {}: {e}", self.name, self.step),
            }
        }
        let Some(made) = first else { return };
        match self.step {
            2 => self.hold = Some(made[0]),
            3 => self.paid = Some(made[0]),
            _ => {}
        }
        self.acknowledged.extend(made);
        self.step += 1;
    }
}

/// Whether the request is to be sent again: it was not answered, or only for the moment.
fn is_open(error: &ClientError) -> bool {
    error.retryable() || !matches!(error, ClientError::Refused { .. })
}

fn eur() -> Asset {
    "EUR".parse().unwrap()
}

fn shop() -> Account {
    "acct:orders-shop".parse().unwrap()
}

/// Works on orders for a time: the one that is open first, then new ones.
fn work(wallet: &WalletClient, orders: &mut Vec<Order>, worker: usize, until: Duration) {
    let end = Deadline::within(until);
    while !end.expired() {
        if orders.last().is_none_or(|order| order.step == STEPS) {
            orders.push(Order::new(format!("order-{worker}-{}", orders.len())));
        }
        let order = orders.last_mut().unwrap();
        let before = order.step;
        order.advance(wallet);
        if order.step == before {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// What happens to the fleet while the workers are at it.
#[derive(Clone, Copy)]
enum Trouble {
    Kill,
    Drain,
    Stall,
    FullDisk,
}

const TROUBLES: [Trouble; 4] = [
    Trouble::Kill,
    Trouble::FullDisk,
    Trouble::Drain,
    Trouble::Stall,
];

/// The disk of the money has no room for a moment.
fn fill_disk(fleet: &Fleet, for_ms: u64) {
    const WRITERS: [&str; 2] = ["ron-ledger", "svc-wallet"];
    fleet.fill_disks(&WRITERS, true);
    fleet.wait_disk_full(&WRITERS, true);
    std::thread::sleep(Duration::from_millis(for_ms));
    fleet.fill_disks(&WRITERS, false);
    fleet.wait_disk_full(&WRITERS, false);
}

#[test]
fn every_order_ends_complete_and_nothing_is_done_twice() {
    let mut draws = Draws::seeded();
    let mut fleet = Fleet::start();
    let mut orders: Vec<Vec<Order>> = (0..WORKERS).map(|_| Vec::new()).collect();
    let rounds = number("RON_ORDER_ROUNDS", 12);
    for round in 0..rounds {
        let trouble = TROUBLES[(round % TROUBLES.len() as u64) as usize];
        let after = Duration::from_millis(100 + draws.below(900));
        let full_ms = draws.below(600);
        let wallet = fleet.wallet();
        ordering(&wallet, &mut orders, after + AFTERWARDS, || {
            std::thread::sleep(after);
            match trouble {
                Trouble::Kill => fleet.kill(),
                Trouble::Drain => assert_eq!(fleet.stop(), Some(0)),
                Trouble::Stall => {
                    let pid = Pid::from_raw(fleet.pid() as i32).unwrap();
                    kill_process(pid, Signal::STOP).unwrap();
                    std::thread::sleep(Duration::from_millis(200));
                    kill_process(pid, Signal::CONT).unwrap();
                }
                Trouble::FullDisk => fill_disk(&fleet, full_ms),
            }
        });
        if matches!(trouble, Trouble::Kill | Trouble::Drain) {
            fleet = Fleet::start_in(fleet.keep_dir());
        }
    }
    let wallet = fleet.wallet();
    let count = complete(&wallet, &mut orders);
    println!("{count} orders over {rounds} rounds");
    let url = format!("{}/v1/ledger/head", fleet.api("ron-ledger"));
    let head = json(&fleet.get(&url, None), 200);
    check(&head["seq"].to_string(), &wallet, &orders, count);
    assert_eq!(fleet.stop(), Some(0));
    ok(&fleet.ron(&["ledger", "verify"]));
}

#[test]
fn orders_outlive_kills_of_the_ledger_alone_and_of_the_wallet_alone() {
    let mut draws = Draws::seeded();
    let mut rig = Rig::start();
    let wallet = rig.wallet();
    let mut orders: Vec<Vec<Order>> = (0..WORKERS).map(|_| Vec::new()).collect();
    let rounds = number("RON_ORDER_ROUNDS", 8);
    for round in 0..rounds {
        let victim = ["ron-ledger", "svc-wallet"][(round % 2) as usize];
        let after = Duration::from_millis(100 + draws.below(500));
        let away = Duration::from_millis(draws.below(1_000));
        ordering(&wallet, &mut orders, after + away + AFTERWARDS, || {
            std::thread::sleep(after);
            rig.kill(victim);
            std::thread::sleep(away);
            rig.run(victim);
        });
        rig.wait_ready(victim);
    }
    let count = complete(&wallet, &mut orders);
    println!("{count} orders over {rounds} rounds");
    let url = format!("http://127.0.0.1:{}/v1/ledger/head", rig.port("ron-ledger"));
    let head = rig.http.call(Call::get(&url, Deadline::within(CALL)));
    let head = json(&head.unwrap(), 200);
    check(&head["seq"].to_string(), &wallet, &orders, count);
    rig.kill("ron-ledger");
    ok(&ron_on(rig.dir.path(), &["ledger", "verify"]));
}

/// Works on orders for a time while `trouble` happens.
fn ordering(
    wallet: &WalletClient,
    orders: &mut [Vec<Order>],
    time: Duration,
    trouble: impl FnOnce(),
) {
    std::thread::scope(|scope| {
        for (worker, mine) in orders.iter_mut().enumerate() {
            scope.spawn(move || work(wallet, mine, worker, time));
        }
        trouble();
    });
}

/// Brings each order to its end; returns how many there are.
fn complete(wallet: &WalletClient, orders: &mut [Vec<Order>]) -> u128 {
    for order in orders.iter_mut().flatten() {
        let late = Deadline::within(Duration::from_secs(60));
        while order.step < STEPS {
            assert!(!late.expired(), "{} is not answered", order.name);
            order.advance(wallet);
        }
    }
    let count = orders.iter().flatten().count() as u128;
    assert!(count >= WORKERS as u128);
    count
}

fn check(head: &str, wallet: &WalletClient, orders: &[Vec<Order>], count: u128) {
    let by = || Deadline::within(CALL);
    for order in orders.iter().flatten() {
        let query = [
            ("reference", order.name.clone()),
            ("min_seq", head.to_owned()),
        ];
        let mut entries = wallet.transactions(&query, by()).unwrap().entries;
        entries.reverse();
        let kinds: Vec<EntryKind> = entries.iter().map(|e| e.op).collect();
        assert_eq!(kinds, COMPLETE, "{}", order.name);
        let made: Vec<TxId> = entries.iter().filter_map(|e| e.txid).collect();
        for txid in &order.acknowledged {
            assert!(made.contains(txid), "{}: {txid} is missing", order.name);
        }
        let balance = wallet
            .balance(&order.customer(), &eur(), None, by())
            .unwrap();
        // The credit limit is spent too.
        let amounts = (balance.overdrawn_minor, balance.available_minor);
        assert_eq!(amounts, (Amount(10), Amount(0)), "{}", order.name);
    }
    let of = |account: &str| wallet.balance(&account.parse().unwrap(), &eur(), None, by());
    // 50, 30 and 4 captured, 5 paid as fee, 20 given back, and 14 were left.
    assert_eq!(of("acct:orders-shop").unwrap().amount_minor.0, 73 * count);
    assert_eq!(of("acct:orders-fees").unwrap().amount_minor.0, 5 * count);
    let sums = wallet.trial_balance(&eur(), None, by()).unwrap();
    assert_eq!(sums.supply_minor.0, 68 * count);
}
