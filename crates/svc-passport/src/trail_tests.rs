//! Tests of the trail: what is found, read, forgotten and lost.

use ron_files::{MemoryDisk, OsDisk, SimDisk};

use super::*;

const LIST: u64 = 1_000_000;

fn grant(client: &str, scope: &str) -> IssuedFor {
    IssuedFor::new(client, "default".parse().unwrap(), "orders", scope)
}

fn trail(disk: Arc<dyn Disk>, dir: PathBuf, bytes_max: u64) -> Trail {
    let mut grants = Grants::default();
    grants.add(1, grant("ci", "read"));
    grants.add(2, grant("shop", "read write"));
    let retention = Retention {
        s: 100_000,
        bytes_max,
    };
    Trail::open(disk, dir, Arc::new(Snapshot::new(grants)), retention).unwrap()
}

fn token(place: u32, iat: u64, grant: u32, subject: &str) -> Issued<'_> {
    Issued {
        place,
        random: [(place as u8).wrapping_add(1); 16],
        iat,
        ttl_s: 900,
        grant,
        subject,
    }
}

fn far() -> Deadline {
    Deadline::within(std::time::Duration::from_secs(60))
}

/// Positions of all tokens that fit, read in pages.
fn places(trail: &Trail, ask: &IssuedAsk) -> Vec<(u64, u32)> {
    let (mut ask, mut found) = (ask.clone(), Vec::new());
    loop {
        let page = trail.page(&ask, far()).unwrap();
        assert!(page.tokens.len() <= ask.limit);
        let at = page.tokens.iter().map(|one| parts(&one.jti).unwrap());
        found.extend(at.map(|(list, place, random)| {
            assert_eq!(random, [(place as u8).wrapping_add(1); 16]);
            (list, place)
        }));
        match page.next {
            Some(next) => ask.before = Some(parse_cursor(&next).unwrap()),
            None => return found,
        }
    }
}

#[test]
fn tokens_are_found_by_client_holder_audience_and_time_newest_first() {
    let dir = tempfile::tempdir().unwrap();
    let disks: [Arc<dyn Disk>; 2] = [Arc::new(OsDisk), Arc::new(MemoryDisk::new())];
    for disk in disks {
        let trail = trail(disk, dir.path().join("issued"), u64::MAX);
        // The KMS has refused the token at position 2.
        let old = [
            token(0, LIST, 1, "ci"),
            token(1, LIST + 5, 2, "user:7"),
            token(3, LIST + 9, 1, "ci"),
        ];
        trail.note(LIST, &old).unwrap();
        let new = [token(0, LIST + 4000, 2, "shop")];
        trail.note(LIST + 4000, &new).unwrap();
        let (a, b) = (LIST, LIST + 4000);
        let check = |change: &dyn Fn(&mut IssuedAsk), want: &[(u64, u32)]| {
            for limit in [1, 2, 100] {
                let mut ask = IssuedAsk {
                    limit,
                    ..IssuedAsk::default()
                };
                change(&mut ask);
                assert_eq!(places(&trail, &ask), want, "{ask:?}");
            }
        };
        check(&|_| {}, &[(b, 0), (a, 3), (a, 1), (a, 0)]);
        check(&|ask| ask.client = Some("ci".to_owned()), &[(a, 3), (a, 0)]);
        check(&|ask| ask.client = Some("c".to_owned()), &[]);
        check(&|ask| ask.subject = Some("user:7".to_owned()), &[(a, 1)]);
        check(&|ask| ask.audience = Some("other".to_owned()), &[]);
        let at = |s: u64| Some(Timestamp((LIST + s) * 1000));
        check(&|ask| ask.since = at(5), &[(b, 0), (a, 3), (a, 1)]);
        check(&|ask| ask.since = at(4000 + LIST_AGE_S + 1), &[]);
        check(&|ask| ask.until = at(9), &[(a, 1), (a, 0)]);
        let all = IssuedAsk {
            limit: 100,
            ..IssuedAsk::default()
        };
        let page = trail.page(&all, far()).unwrap();
        let brief: Vec<_> = page
            .tokens
            .iter()
            .map(|one| (&one.subject, &one.scope))
            .collect();
        let text = |text: &str| Some(text.to_owned());
        assert_eq!(brief[0], (&text("shop"), &text("read write")));
        assert_eq!(brief[2], (&None, &text("read write")), "no list of holders");
        assert_eq!(page.tokens[1].expires, Timestamp((LIST + 909) * 1000));
    }
}

#[test]
fn a_page_reads_no_more_than_it_needs_and_goes_on_after_its_deadline() {
    let trail = trail(Arc::new(MemoryDisk::new()), "/issued".into(), u64::MAX);
    let chunk = CHUNK as u32;
    let all = [0, 1, chunk, 3 * chunk - 1, 3 * chunk];
    let tokens = all.map(|place| token(place, LIST, 1, "ci"));
    trail.note(LIST, &tokens).unwrap();
    trail.note(LIST + 1, &tokens[..1]).unwrap();
    let mut ask = IssuedAsk {
        limit: 1000,
        ..IssuedAsk::default()
    };
    let past = Deadline::within(std::time::Duration::ZERO);
    let (mut found, mut ends) = (Vec::new(), Vec::new());
    loop {
        let page = trail.page(&ask, past).unwrap();
        assert_eq!(page.lost, 0);
        found.extend(page.tokens.iter().map(|one| parts(&one.jti).unwrap().1));
        let Some(next) = page.next else { break };
        ask.before = parse_cursor(&next);
        ends.push(ask.before.unwrap());
    }
    assert_eq!(found, [0, 3 * chunk, 3 * chunk - 1, chunk, 1, 0]);
    let rest = [3 * chunk + 1, 2 * chunk + 1, chunk + 1, 1];
    assert_eq!(ends, rest.map(|end| (LIST, end)), "a chunk each");
}

#[test]
fn slots_that_are_damaged_or_of_unknown_grants_are_counted() {
    let disk = SimDisk::new();
    let trail = trail(Arc::new(disk.clone()), "/issued".into(), u64::MAX);
    let tokens = [1, 1, 9, 1].into_iter().zip(0..);
    let tokens: Vec<_> = tokens
        .map(|(grant, place)| token(place, LIST, grant, "ci"))
        .collect();
    trail.note(LIST, &tokens).unwrap();
    let path = trail.path(LIST);
    let mut bytes = disk.peek(&path).unwrap();
    bytes[SlotFile::<ENTRY>::SLOT] ^= 1;
    bytes.truncate(4 * SlotFile::<ENTRY>::SLOT - 1);
    disk.poke(&path, Some(bytes));
    let mut ask = IssuedAsk {
        limit: 10,
        ..IssuedAsk::default()
    };
    let page = trail.page(&ask, far()).unwrap();
    assert_eq!((page.tokens.len(), page.lost), (1, 3));
    // A list that was opened later is not read.
    ask.until = Some(Timestamp((LIST - LIST_AGE_S - 1) * 1000));
    assert_eq!(trail.page(&ask, far()).unwrap().lost, 0);
}

#[test]
fn old_lists_and_too_many_bytes_are_forgotten_and_valid_tokens_never() {
    let disk: Arc<dyn Disk> = Arc::new(MemoryDisk::new());
    let slot = SlotFile::<ENTRY>::SLOT as u64;
    let trail = trail(disk, "/issued".into(), 2 * slot);
    let lists = || trail.lists().unwrap();
    for list in [LIST, LIST + 10, LIST + 20] {
        trail.note(list, &[token(0, list, 1, "ci")]).unwrap();
    }
    trail.forget(LIST + LIST_KEPT_S).unwrap();
    assert_eq!(lists().len(), 3, "their tokens may be valid");
    trail.forget(LIST + 100 + LIST_KEPT_S).unwrap();
    assert_eq!(lists(), [LIST + 20, LIST + 10], "too many bytes");
    trail.forget(LIST + 10 + 100_000 + LIST_AGE_S).unwrap();
    assert_eq!(lists(), [LIST + 20, LIST + 10]);
    trail.forget(LIST + 11 + 100_000 + LIST_AGE_S).unwrap();
    assert_eq!(lists(), [LIST + 20], "too old");
}

#[test]
fn the_order_in_which_scopes_are_named_makes_no_other_grant() {
    let scopes = ["a:read", "a:write", "b:read", "b:write", "c", "d"];
    let mut orders = vec![scopes.to_vec()];
    for at in 0..scopes.len() {
        let swapped = |order: &Vec<&'static str>| {
            (at..order.len())
                .map(|with| {
                    let mut order = order.clone();
                    order.swap(at, with);
                    order
                })
                .collect::<Vec<_>>()
        };
        orders = orders.iter().flat_map(swapped).collect();
    }
    assert_eq!(orders.len(), 720);
    let one = orders.iter().map(|order| grant("ci", &order.join(" ")));
    let grants: BTreeSet<IssuedFor> = one.collect();
    assert_eq!(grants.len(), 1);
    assert_eq!(grant("ci", "b a b"), grant("ci", "a b"));
    assert_ne!(grant("ci", "a"), grant("ci", "a b"));
    assert_eq!(grant("ci", "").scope.as_deref(), Some(""));
}

#[test]
fn a_client_with_many_grants_is_recorded_without_their_scopes() {
    let mut grants = Grants::default();
    for number in 0..SCOPES_MAX as u32 {
        grants.add(number, grant("ci", &format!("s{number}")));
    }
    let known = grant("ci", "s7");
    assert_eq!(grants.recorded(known.clone()), known);
    assert_eq!(grants.recorded(grant("ci", "new")).scope, None);
    let other = grant("shop", "new");
    assert_eq!(grants.recorded(other.clone()), other);
}
