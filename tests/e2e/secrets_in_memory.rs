//! Where secrets are in the memory of running services.

use std::io::{Read as _, Seek as _, SeekFrom};

use ron_tests::{Fleet, json, until};

/// Where `needle` is in the memory of a process: addresses, and whether the pages are excluded from
/// dumps (which only the arena of secrets is).
pub fn in_memory(pid: u32, needle: &[u8]) -> Vec<(u64, bool)> {
    let smaps = std::fs::read_to_string(format!("/proc/{pid}/smaps")).unwrap();
    let mut regions: Vec<(u64, u64, bool, bool)> = Vec::new();
    for line in smaps.lines() {
        if let Some(flags) = line.strip_prefix("VmFlags:") {
            if let Some(last) = regions.last_mut() {
                last.3 = flags.split_whitespace().any(|flag| flag == "dd");
            }
        } else if let Some((range, rest)) = line.split_once(' ')
            && let Some((from, to)) = range.split_once('-')
            && let (Ok(from), Ok(to)) = (u64::from_str_radix(from, 16), u64::from_str_radix(to, 16))
        {
            let special = rest.contains("[v");
            regions.push((from, to, rest.starts_with('r') && !special, false));
        }
    }
    let mut memory = std::fs::File::open(format!("/proc/{pid}/mem")).unwrap();
    let mut found = Vec::new();
    for (from, to, readable, secret) in regions {
        if !readable {
            continue;
        }
        let mut bytes = vec![0; (to - from) as usize];
        memory.seek(SeekFrom::Start(from)).unwrap();
        if memory.read_exact(&mut bytes).is_err() {
            continue; // unmapped meanwhile
        }
        let first = needle[0];
        for at in 0..bytes.len().saturating_sub(needle.len() - 1) {
            if bytes[at] == first && bytes[at..].starts_with(needle) {
                found.push((from + at as u64, secret));
            }
        }
    }
    found
}

/// `docs/SECURITY.md`: a key that signs is once in the arena of secrets, and once in the key object of the cryptographic library; a
/// service token that is sent has its place in the arena too.
#[test]
fn keys_of_logs_and_sent_tokens_are_in_the_arena_of_secrets() {
    let fleet = Fleet::start();
    let token = fleet.token("svc-wallet", None);
    let balance = format!("{}/v1/balance?account=a&asset=ron", fleet.api("svc-wallet"));
    json(&fleet.get(&balance, Some(&token)), 200);
    for service in ["ron-ledger", "svc-passport"] {
        let path = fleet.dir().join(service).join("data/note.key");
        let seed = hex::decode(std::fs::read_to_string(path).unwrap().trim()).unwrap();
        assert_eq!(seed.len(), 32);
        let found = in_memory(fleet.pid(), &seed[..16]);
        assert!(
            found.iter().any(|(_, arena)| *arena),
            "{service}: {found:x?}"
        );
        let outside = found.iter().filter(|(_, arena)| !arena).count();
        assert!(
            outside <= 1,
            "{service}: copies outside of the arena: {found:x?}"
        );
    }
    let path = fleet.dir().join("svc-wallet/ron-ledger.token");
    let sent = std::fs::read_to_string(path).unwrap();
    let secret = sent.trim().rsplit('_').next().unwrap().to_owned();
    until("the token is in the arena", || {
        let found = in_memory(fleet.pid(), secret.as_bytes());
        found.iter().any(|(_, arena)| *arena)
    });
}
