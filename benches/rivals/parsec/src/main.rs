//! P-256 signatures of a digest by a running PARSEC service: operations per second, by this many
//! clients with one connection each. `rival-parsec SECONDS THREADS...`; the service is found by
//! PARSEC_SERVICE_ENDPOINT.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use parsec_client::BasicClient;
use parsec_client::core::interface::operations::psa_algorithm::{
    Algorithm, AsymmetricSignature, Hash,
};
use parsec_client::core::interface::operations::psa_key_attributes::{
    Attributes, EccFamily, Lifetime, Policy, Type, UsageFlags,
};

const KEY: &str = "bench-p256";
const DIGEST: [u8; 32] = [7; 32];

fn ecdsa() -> AsymmetricSignature {
    AsymmetricSignature::Ecdsa {
        hash_alg: Hash::Sha256.into(),
    }
}

fn make(client: &BasicClient) -> Result<(), String> {
    let mut usage = UsageFlags::default();
    let _ = usage.set_sign_hash();
    let attributes = Attributes {
        lifetime: Lifetime::Persistent,
        key_type: Type::EccKeyPair {
            curve_family: EccFamily::SecpR1,
        },
        bits: 256,
        policy: Policy {
            usage_flags: usage,
            permitted_algorithms: Algorithm::AsymmetricSignature(ecdsa()),
        },
    };
    let _ = client.psa_destroy_key(KEY); // of an earlier run
    client
        .psa_generate_key(KEY, attributes)
        .map_err(|e| format!("the key is not made: {e}"))
}

fn rate(threads: usize, length: Duration) -> Result<f64, String> {
    let (start, stop) = (Barrier::new(threads + 1), AtomicBool::new(false));
    thread::scope(|scope| {
        let one = || {
            let client = BasicClient::new(None).map_err(|e| e.to_string());
            start.wait();
            let client = client?;
            let mut count = 0_u64;
            while !stop.load(Ordering::Relaxed) {
                let signed = client.psa_sign_hash(KEY, &DIGEST, ecdsa());
                if signed.map_err(|e| e.to_string())?.len() != 64 {
                    return Err("that is no signature".to_owned());
                }
                count += 1;
            }
            Ok(count)
        };
        let all: Vec<_> = (0..threads).map(|_| scope.spawn(one)).collect();
        start.wait();
        let begin = Instant::now();
        thread::sleep(length);
        stop.store(true, Ordering::Relaxed);
        let took = begin.elapsed().as_secs_f64();
        let mut sum = 0;
        for thread in all {
            sum += thread.join().map_err(|_| "a client panicked".to_owned())??;
        }
        Ok(sum as f64 / took)
    })
}

fn run() -> Result<(), String> {
    let mut arguments = std::env::args().skip(1).map(|a| a.parse::<u64>());
    let seconds = arguments.next().and_then(Result::ok).unwrap_or(5);
    let threads: Vec<u64> = arguments.filter_map(Result::ok).collect();
    let client = BasicClient::new(None).map_err(|e| format!("PARSEC is not there: {e}"))?;
    make(&client)?;
    println!("| figure | clients | per second |\n|---|--:|--:|");
    for threads in if threads.is_empty() { vec![1, 4] } else { threads } {
        let rate = rate(threads as usize, Duration::from_secs(seconds))?;
        println!("| P-256 sign in the token, through PARSEC | {threads} | {rate:.0} |");
    }
    client.psa_destroy_key(KEY).map_err(|e| e.to_string())
}

fn main() {
    if let Err(why) = run() {
        eprintln!("rival-parsec: {why}");
        std::process::exit(1);
    }
}
