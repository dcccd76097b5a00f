//! The core against a naive model, its own replay and its own image, on random and hostile operations.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use ron_proto::Timestamp;
use ron_proto::ledger::{AccountClass, AssetTerms, BudgetId, Entry, EntryKind, RefusalCode, TxId};

mod corners;
mod draw;
mod epochs;
mod exhaustive;
mod limits;
mod model;
mod moves;

use draw::{Draw, Maker, name_own_holds, opening};
use model::{Expected, Model, with_ids};

use super::leaf::encode;
use super::state::Due;
use super::*;
use crate::engine::Atomicity;

const DAY: u64 = 86_400_000;

/// The tests' salts are the same for all entries, so that equal entries have equal records.
pub(super) fn salts() -> Salts {
    Salts::new([[1; 16], [2; 16], [3; 16], [4; 16], [5; 16]])
}

/// Keys of a whole ledger: where the caller of a [`Step`] finds `prior`.
#[derive(Default, Clone)]
pub(crate) struct Book {
    pub(crate) state: State,
    pub(crate) keys: BTreeMap<KeyHash, u64>,
    pub(crate) records: Vec<Record>,
    pub(crate) limits: Limits,
}

impl Book {
    fn prior(&self, op: &Op) -> Option<u64> {
        op.key().and_then(|k| self.keys.get(&k).copied())
    }

    fn commit(&mut self, now: u64, groups: &[(Vec<Op>, Atomicity)]) -> Vec<Vec<Outcome>> {
        let mut step = Step::new(&self.state, Timestamp(now));
        step.set_limits(self.limits);
        step.expire_due(&mut salts);
        let mut outcomes = Vec::new();
        for (ops, atomicity) in groups {
            let priors: Vec<_> = ops.iter().map(|op| self.prior(op)).collect();
            outcomes.push(match atomicity {
                Atomicity::Linked => step.linked(ops, &priors),
                Atomicity::Batch => step.batch(ops, &priors),
                Atomicity::Independent => ops
                    .iter()
                    .zip(&priors)
                    .map(|(op, p)| step.entry(op, *p))
                    .collect(),
            });
        }
        let batch = step.finish().expect("invariants hold");
        self.keys.extend(batch.delta.keys().iter().copied());
        if !batch.records.is_empty() {
            let (last, ts) = (batch.last_seq(), batch.ts);
            self.records.extend(batch.records);
            self.state.apply(batch.delta, last, ts);
        }
        outcomes
    }
}

fn image(state: &State) -> Vec<u8> {
    let mut out = Vec::new();
    state
        .freeze()
        .encode::<()>(|b| {
            out.extend_from_slice(b);
            Ok(())
        })
        .unwrap();
    out
}

fn draws() -> impl Strategy<Value = Draw> {
    let amount = prop_oneof![
        6 => 1..50u128,
        1 => Just(u128::MAX),
        1 => Just(u128::MAX - 1_000_000_000),
        1 => Just(u128::MAX / 2 + 1),
        1 => any::<u128>().prop_map(|n| n.max(1)),
    ];
    let nonce = prop_oneof![6 => Just(0i8), 1 => Just(1), 1 => Just(-1), 3 => Just(2)];
    let ceiling = prop_oneof![3 => Just(None), 1 => (0..80u128).prop_map(Some)];
    (
        (
            0..Draw::KINDS,
            any::<u8>(),
            0..4u8,
            0..4u8,
            prop_oneof![4 => 0..2u8, 1 => Just(2)],
        ),
        (amount, nonce, ceiling, any::<u8>()),
    )
        .prop_map(
            |((kind, key, from, to, asset), (amount, nonce, ceiling, pick))| Draw {
                kind,
                key,
                from,
                to,
                asset,
                amount,
                nonce,
                ceiling,
                pick,
            },
        )
}

/// A list of batches: groups of entries with their `linked` flag, each after some time has passed.
type Plan = Vec<(u64, Vec<(Vec<Draw>, Atomicity)>)>;

fn plans() -> impl Strategy<Value = Plan> {
    let atomicity = prop_oneof![
        2 => Just(Atomicity::Independent),
        1 => Just(Atomicity::Batch),
        2 => Just(Atomicity::Linked),
    ];
    let group = (prop::collection::vec(draws(), 1..5), atomicity);
    prop::collection::vec((0..4_000u64, prop::collection::vec(group, 1..4)), 1..30)
}

/// The model's result for a group; `None` for entries that have an earlier one. A principal may cause
/// `burst` refusals at once.
fn expect(
    model: &mut Model,
    used: &mut BTreeSet<String>,
    ops: &[Op],
    atomicity: Atomicity,
    seq: &mut u64,
    (ts, burst): (u64, u32),
) -> Vec<Option<Expected>> {
    let key = |op: &Op| {
        let owned = op.entry().header.request_key();
        owned.map(|k| format!("{}/{}", k.tenant, k.key))
    };
    let is_used = |used: &BTreeSet<String>, op: &Op| key(op).is_some_and(|k| used.contains(&k));
    let note = |used: &mut BTreeSet<String>, op: &Op| {
        if let Some(key) = key(op) {
            used.insert(key);
        }
    };
    let together = atomicity != Atomicity::Independent && ops.len() > 1;
    if together && ops.iter().any(|op| is_used(used, op)) {
        return vec![None; ops.len()];
    }
    if together {
        let Some(said) = expect_together(model, ops, atomicity, *seq, (ts, burst)) else {
            return vec![None; ops.len()];
        };
        let recorded =
            |(op, s): (&Op, &Expected)| s.is_ok() || s.is_err_and(|why| has_leaf(op, why));
        if ops.iter().zip(&said).all(recorded) {
            for op in ops {
                note(used, op);
            }
            *seq += ops.len() as u64;
        }
        return said.into_iter().map(Some).collect();
    }
    let mut all = Vec::new();
    for op in ops {
        if is_used(used, op) {
            all.push(None);
            continue;
        }
        let alone = std::iter::once((op.into(), op.txid(*seq)));
        let Some(mut said) = model.commit(alone, ts).map(|said| said[0]) else {
            all.push(None);
            continue;
        };
        let owner = tenant(op);
        let recorded = said.is_err_and(|why| has_leaf(op, why));
        if recorded && !model.may_refuse(&owner, 1, ts, burst) {
            said = Err(RefusalCode::RefusalBudget);
        } else if said.is_ok() || recorded {
            note(used, op);
            model.note(&owner, said.is_err(), ts);
            *seq += 1;
        }
        all.push(Some(said));
    }
    all
}

/// The same for entries that stand together; `None` when all of them repeat earlier ones.
fn expect_together(
    model: &mut Model,
    ops: &[Op],
    atomicity: Atomicity,
    seq: u64,
    (ts, burst): (u64, u32),
) -> Option<Vec<Expected>> {
    let before = model.clone();
    let linked = atomicity == Atomicity::Linked;
    let id = |i: usize| ops[i].txid(seq + i as u64);
    let entries = ops.iter().map(|op| with_ids(op.into(), id));
    let mut said = model.commit(entries.enumerate().map(|(i, e)| (e, id(i))), ts)?;
    let only = |at: usize, why| {
        let mut said = vec![Err(RefusalCode::LinkedFailed); ops.len()];
        said[at] = Err(why);
        said
    };
    let stops = |(op, s): (&Op, &Expected)| s.is_err_and(|why| linked || !has_leaf(op, why));
    if let Some(at) = ops.iter().zip(&said).position(stops) {
        *model = before.clone();
        let why = said[at].unwrap_err();
        said = only(at, why);
        if !has_leaf(&ops[at], why) {
            return Some(said);
        }
    }
    let refused = |upto: usize, owner: &str| {
        let mine = |i: &usize| said[*i].is_err() && tenant(&ops[*i]) == owner;
        (0..=upto).filter(mine).count() as u64
    };
    let fits = |i: &usize| {
        let owner = &tenant(&ops[*i]);
        said[*i].is_ok() || before.may_refuse(owner, refused(*i, owner), ts, burst)
    };
    if let Some(at) = (0..ops.len()).find(|i| !fits(i)) {
        *model = before;
        return Some(only(at, RefusalCode::RefusalBudget));
    }
    for (op, said) in ops.iter().zip(&said) {
        model.note(&tenant(op), said.is_err(), ts);
    }
    Some(said)
}

fn tenant(op: &Op) -> String {
    op.entry().header.tenant.to_string()
}

/// Whether the refusal of an entry is recorded.
fn has_leaf(op: &Op, why: RefusalCode) -> bool {
    op.key().is_some() && !matches!(why, RefusalCode::NonceConflict | RefusalCode::RefusalBudget)
}

/// The result of an outcome; `None` for those that have an earlier one.
fn said_of(outcome: &Outcome) -> Option<Expected> {
    match outcome {
        Outcome::Fresh {
            verdict: Verdict::Done(_),
            ..
        } => Some(Ok(())),
        Outcome::Fresh { verdict, .. } => verdict.refusal().map(|why| Err(why.into())),
        Outcome::Rejected(why) => Some(Err(why.into())),
        Outcome::Known { .. } | Outcome::Mixed => None,
    }
}

fn drop_duplicate_keys(ops: Vec<Op>) -> Vec<Op> {
    let mut seen = Vec::new();
    ops.into_iter()
        .filter(|op| {
            op.key().is_some_and(|k| {
                !seen.contains(&k) && {
                    seen.push(k);
                    true
                }
            })
        })
        .collect()
}

/// The entries of a linked commit: the openings of an epoch, or entries of which some name the holds that others make.
fn linked_ops(ops: Vec<Op>) -> Vec<Op> {
    let entries: Vec<Entry> = ops.iter().map(Entry::from).collect();
    let entries = opening(&entries).unwrap_or_else(|| {
        let keyed = drop_duplicate_keys(ops);
        let mut entries: Vec<Entry> = keyed.iter().map(Entry::from).collect();
        name_own_holds(&mut entries);
        entries
    });
    let made = entries.into_iter().map(|e| Op::new(e, &salts()).unwrap());
    made.collect()
}

fn check(plan: Plan, burst: u32) {
    let (mut book, mut model, mut used) = (Book::default(), Model::default(), BTreeSet::new());
    book.limits.refusals = burst;
    let mut now = 20_000 * DAY;
    for (pause, groups) in plan {
        now += pause * pause / 8;
        let ops: Vec<(Vec<Op>, Atomicity)> = groups
            .iter()
            .map(|(draws, atomicity)| {
                let maker = Maker::new(&model, now);
                let ops: Vec<Op> = draws
                    .iter()
                    .filter_map(|d| maker.entry(d))
                    .map(|e| Op::new(e, &salts()).unwrap())
                    .collect();
                let ops = match atomicity {
                    Atomicity::Independent => ops,
                    Atomicity::Batch => drop_duplicate_keys(ops),
                    Atomicity::Linked => linked_ops(ops),
                };
                (ops, *atomicity)
            })
            .filter(|(ops, _)| !ops.is_empty())
            .collect();
        let mut seq = book.state.seq() + 1;
        let mut due: Vec<(u64, TxId)> = model
            .holds
            .iter()
            .filter(|(_, h)| h.2 <= now)
            .map(|(id, h)| (h.2, *id))
            .collect();
        due.sort_unstable_by_key(|(end, id)| (*end, id.seq()));
        for (_, hold) in &due {
            model
                .run(&Entry::Expire { hold: *hold }, *hold, now)
                .unwrap();
            seq += 1;
        }
        let want: Vec<_> = ops
            .iter()
            .map(|(ops, atomicity)| {
                expect(
                    &mut model,
                    &mut used,
                    ops,
                    *atomicity,
                    &mut seq,
                    (now, burst),
                )
            })
            .collect();
        let got = book.commit(now, &ops);
        for ((g, w), (o, _)) in got
            .iter()
            .flatten()
            .zip(want.iter().flatten())
            .zip(ops.iter().flat_map(|(o, l)| o.iter().map(move |o| (o, l))))
        {
            let said = said_of(g);
            assert_eq!(said, *w, "{:?}", o.entry());
        }
        compare(&book.state, &model);
    }
    replays(&book);
}

fn compare(state: &State, model: &Model) {
    state.audit().unwrap();
    let (mut usage, mut corrected) = (BTreeMap::new(), BTreeMap::new());
    for ((_, due), epoch) in &state.sources {
        let _ = match due {
            Due::Usage(source) => usage.insert(source.to_string(), epoch.to_string()),
            Due::Correction(of) => corrected.insert(of.to_string(), epoch.to_string()),
        };
    }
    assert_eq!(usage, model.paid);
    assert_eq!(corrected, model.corrected());
    let voids = state.voids.keys();
    let voids: Vec<_> = voids
        .map(|(_, epoch, commitment)| (epoch.to_string(), commitment.to_string()))
        .collect();
    assert_eq!(voids, model.voids.clone().into_iter().collect::<Vec<_>>());
    assert_eq!(state.accounts().count(), state.account_count());
    for row in state.accounts() {
        assert_eq!(
            row.nonce,
            model.nonce.get(row.name.as_str()).copied().unwrap_or(0)
        );
        for b in &row.balances {
            let asset = state.asset(b.asset).unwrap().name.as_str();
            let name = row.name.as_str();
            assert_eq!(
                (b.credits, b.debits),
                model.has(name, asset),
                "{name} {asset}"
            );
            let credit = row.limits(b.asset).credit;
            assert_eq!(
                b.available(credit),
                model.free(name, asset),
                "{name} {asset}"
            );
        }
        compare_terms(state, row, model);
    }
    for ((a, s), sums) in &model.sums {
        let row = state.account(&a.parse().unwrap()).unwrap();
        let b = row.balance(state.asset_ix(&s.parse().unwrap()).unwrap());
        assert_eq!((b.credits, b.debits), *sums);
    }
    assert_eq!(state.assets().len(), model.assets.len());
    for a in state.assets() {
        let name = a.name.as_str();
        assert_eq!(a.issued, model.issued.get(name).copied().unwrap_or(0));
        assert_eq!(a.burned, model.burned.get(name).copied().unwrap_or(0));
        let title = |t: &AssetTerms| t.title.as_ref().map_or("", |t| t.as_str()).to_owned();
        let terms = a.terms.as_ref().map(|t| (u64::from(t.scale), title(t)));
        assert_eq!(terms, model.assets[name]);
    }
    assert_eq!(state.hold_count(), model.holds.len());
    for (tx, (_, _, n, left)) in &model.moved {
        assert_eq!(state.reversed(tx.seq()), n - left, "{tx}");
    }
    for (id, (spent, _)) in &model.budgets {
        assert_eq!(
            state.budget(id.parse().unwrap()).spent,
            *spent,
            "budget {id}"
        );
    }
}

fn compare_terms(state: &State, row: &AccountRow, model: &Model) {
    let name = row.name.as_str();
    let frozen = [0, 1].map(|side| model.frozen[side].contains(name));
    assert_eq!(
        [row.frozen.debits(), row.frozen.credits()],
        frozen,
        "{name}"
    );
    assert_eq!(row.is_closed(), model.closed.contains(name), "{name}");
    assert_eq!(
        row.requires_nonce(),
        model.numbered.contains(name),
        "{name}"
    );
    let class = row.class().map(AccountClass::as_str);
    assert_eq!(class, model.class.get(name).map(String::as_str), "{name}");
    for ((a, s), limits) in &model.limits {
        if a == name {
            let set = row.limits(state.asset_ix(&s.parse().unwrap()).unwrap());
            assert_eq!((set.credit, set.max), *limits, "{name} {s}");
        }
    }
}

/// A record is read as the entry it was made of, and its private part is the one that its leaf names.
fn round_trip(r: &Record) {
    let leaf = Leaf::decode(&r.leaf, &r.private).unwrap();
    leaf.op.check_private().unwrap();
    assert_eq!(
        encode(leaf.seq, leaf.ts, leaf.place, &leaf.verdict, &leaf.op),
        r.leaf
    );
    let again = Op::new(leaf.op.entry().clone(), &salts()).unwrap();
    assert_eq!(again, leaf.op);
    assert_eq!(PublicLeaf::decode(&r.leaf).unwrap().txid(), leaf.txid());
}

/// The leaves alone rebuild the same state, and so does its image.
fn replays(book: &Book) {
    let mut replay = crate::replay::Replay::new();
    for (i, r) in book.records.iter().enumerate() {
        replay.leaf(i as u64 + 1, &r.leaf, &r.private).unwrap();
        round_trip(r);
    }
    let (state, keys) = replay.finish().unwrap();
    assert_eq!(image(&state), image(&book.state));
    assert_eq!(keys.len(), book.keys.len());
    let back = State::from_image(&image(&book.state)).unwrap();
    assert_eq!(image(&back), image(&book.state));
    assert_eq!(back.next_expiry(), book.state.next_expiry());
}

#[test]
fn every_kind_is_drawn() {
    let model = Model::default();
    let maker = Maker::new(&model, 20_000 * DAY);
    let mut made = vec![EntryKind::Expire]; // the ledger writes it, when time passes in a plan
    for kind in 0..Draw::KINDS {
        for pick in 0..3 {
            let draw = Draw {
                kind,
                to: 1,
                amount: 1,
                pick,
                ..Draw::default()
            };
            made.extend(maker.entry(&draw).map(|entry| entry.kind()));
        }
    }
    for kind in Kind::ALL {
        assert!(made.contains(&(*kind).into()), "no draw makes {kind:?}");
    }
}

#[test]
fn the_format_has_a_row_for_every_kind() {
    let format = include_str!("../../../../../docs/formats/ledger.md");
    for kind in Kind::ALL {
        let row = format!("| {} | {} |", *kind as u8, EntryKind::from(*kind));
        assert!(format.contains(&row), "docs/formats/ledger.md lacks {row}");
    }
}

/// Cases of the comparison with the model; `RON_LEDGER_CASES=10000` is the long run.
fn cases() -> u32 {
    let set = std::env::var("RON_LEDGER_CASES");
    set.ok().and_then(|v| v.parse().ok()).unwrap_or(400)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn the_core_agrees_with_the_model(plan in plans(), burst in prop_oneof![Just(3), Just(u32::MAX)]) {
        check(plan, burst);
    }

    #[test]
    fn no_bytes_panic_the_decoders(bytes in prop::collection::vec(any::<u8>(), 0..200), cut in any::<prop::sample::Index>()) {
        let (leaf, private) = bytes.split_at(cut.index(bytes.len() + 1));
        let _ = Leaf::decode(leaf, private);
        let _ = PublicLeaf::decode(&bytes);
        let _ = read_genesis(&bytes);
        if let Ok(layout) = Layout::of(&bytes) {
            let _ = layout.hash(&bytes);
            let _ = layout.read(&bytes);
        }
        let _ = State::from_image(&bytes);
    }
}
