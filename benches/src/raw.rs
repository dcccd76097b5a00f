//! The speed of the parts below the service alone, for comparison in the same run: the signature
//! library in a loop, and a PKCS#11 token called directly.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use ron_crypto::ecdsa::verify_ecdsa;
use ron_crypto::secret::Secret32;
use ron_crypto::sign::{Ed25519Key, Signer as _, verify_ed25519_strict};
use ron_crypto::{Curve, EcKey};
use ron_crypto::{MlDsaKey, MlDsaSet, mldsa};
use ron_kernel::OsRandom;

/// The library in a loop.
#[derive(Args)]
pub struct RawArgs {
    /// Seconds per figure.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=600))]
    seconds: u64,
    /// Threads of each figure.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2])]
    threads: Vec<usize>,
}

const TEXT: [u8; 33] = [0; 33];
const HEADER: &str = "| figure | threads | per second |\n|---|--:|--:|";

/// How often per second `work` is done by this many threads, each with its own value of `make`.
fn rate<T>(
    threads: usize,
    length: Duration,
    make: impl Fn() -> Result<T, String> + Sync,
    work: impl Fn(&mut T) -> Result<(), String> + Sync,
) -> Result<f64, String> {
    let (start, stop) = (Barrier::new(threads + 1), AtomicBool::new(false));
    thread::scope(|scope| {
        let one = || {
            let made = make();
            start.wait();
            let mut state = made?;
            let mut count = 0_u64;
            while !stop.load(Ordering::Relaxed) {
                work(&mut state)?;
                count += 1;
            }
            Ok::<u64, String>(count)
        };
        let all: Vec<_> = (0..threads).map(|_| scope.spawn(one)).collect();
        start.wait();
        let begin = Instant::now();
        thread::sleep(length);
        stop.store(true, Ordering::Relaxed);
        let took = begin.elapsed().as_secs_f64();
        let mut sum = 0;
        for thread in all {
            sum += thread
                .join()
                .map_err(|_| "a thread panicked".to_owned())??;
        }
        Ok(sum as f64 / took)
    })
}

/// A figure's name, and one piece of its work.
type Work<'a> = (&'a str, Box<dyn Fn() -> bool + Sync + 'a>);

/// Measures the library and prints a table.
pub fn run(args: &RawArgs) -> Result<(), String> {
    println!("{HEADER}");
    let ed25519 = Ed25519Key::from_seed(&[7; 32]);
    let (p256, _) = EcKey::generate(Curve::P256);
    let mldsa = MlDsaKey::from_seed(MlDsaSet::L65, &Secret32::generate(&OsRandom));
    let made = (ed25519.sign(&TEXT), p256.sign(&TEXT), mldsa.sign(&TEXT));
    let (one, two, three) = (ed25519.public(), p256.public(), mldsa.public());
    let works: [Work<'_>; 6] = [
        ("Ed25519 sign", Box::new(|| ed25519.sign(&TEXT).len() == 64)),
        (
            "Ed25519 verify, strict",
            Box::new(|| verify_ed25519_strict(&one, &TEXT, &made.0)),
        ),
        ("P-256 sign", Box::new(|| p256.sign(&TEXT).len() == 64)),
        (
            "P-256 verify",
            Box::new(|| verify_ecdsa(Curve::P256, two, &TEXT, &made.1)),
        ),
        ("ML-DSA-65 sign", Box::new(|| !mldsa.sign(&TEXT).is_empty())),
        (
            "ML-DSA-65 verify",
            Box::new(|| mldsa::verify_mldsa(MlDsaSet::L65, &three, &TEXT, &made.2)),
        ),
    ];
    let length = Duration::from_secs(args.seconds);
    for (name, work) in &works {
        for threads in &args.threads {
            let checked = |(): &mut ()| {
                let ok = work();
                ok.then_some(()).ok_or_else(|| format!("{name} failed"))
            };
            let rate = rate(*threads, length, || Ok(()), checked)?;
            println!("| {name} | {threads} | {rate:.0} |");
        }
    }
    Ok(())
}

pub use token::{TokenArgs, run as run_token};

mod token {
    //! A PKCS#11 token called directly: one session for each thread, keys for the session only.

    use std::path::PathBuf;
    use std::time::Duration;

    use clap::Args;
    use cryptoki::context::{CInitializeArgs, CInitializeFlags, Pkcs11};
    use cryptoki::mechanism::Mechanism;
    use cryptoki::mechanism::eddsa::{EddsaParams, EddsaSignatureScheme};
    use cryptoki::object::{Attribute, ObjectHandle};
    use cryptoki::session::{Session, UserType};
    use cryptoki::types::AuthPin;

    use super::{HEADER, TEXT, rate};

    /// A PKCS#11 token called directly.
    #[derive(Args)]
    pub struct TokenArgs {
        /// Path of the PKCS#11 module.
        #[arg(long, default_value = "/usr/lib/softhsm/libsofthsm2.so")]
        module: PathBuf,
        /// File with the user's PIN.
        #[arg(long)]
        pin_file: PathBuf,
        /// Seconds per figure.
        #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=600))]
        seconds: u64,
        /// Threads of each figure, each with one session.
        #[arg(long, value_delimiter = ',', default_values_t = [1, 2, 4])]
        threads: Vec<usize>,
    }

    /// `edwards25519`, and the object identifier of P-256.
    const ED25519: &[u8] = b"\x13\x0cedwards25519";
    const P256: &[u8] = &[0x06, 0x08, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07];

    fn open(module: &Pkcs11, pin: &str, ed25519: bool) -> Result<(Session, ObjectHandle), String> {
        let said = |e: cryptoki::error::Error| e.to_string();
        let slots = module.get_slots_with_initialized_token().map_err(said)?;
        let slot = slots.first().ok_or("there is no token")?;
        let session = module.open_rw_session(*slot).map_err(said)?;
        let pin = AuthPin::new(pin.to_owned().into_boxed_str());
        match session.login(UserType::User, Some(&pin)) {
            Ok(())
            | Err(cryptoki::error::Error::Pkcs11(
                cryptoki::error::RvError::UserAlreadyLoggedIn,
                _,
            )) => {}
            Err(error) => return Err(said(error)),
        }
        let (mechanism, params) = if ed25519 {
            (Mechanism::EccEdwardsKeyPairGen, ED25519)
        } else {
            (Mechanism::EccKeyPairGen, P256)
        };
        let public = [
            Attribute::Token(false),
            Attribute::EcParams(params.to_vec()),
        ];
        let private = [Attribute::Token(false), Attribute::Sign(true)];
        let made = session.generate_key_pair(&mechanism, &public, &private);
        Ok((session, made.map_err(said)?.1))
    }

    /// Measures the token and prints a table.
    pub fn run(args: &TokenArgs) -> Result<(), String> {
        let pin = std::fs::read_to_string(&args.pin_file)
            .map_err(|e| format!("{}: {e}", args.pin_file.display()))?;
        let module = Pkcs11::new(&args.module).map_err(|e| e.to_string())?;
        let how = CInitializeArgs::new(CInitializeFlags::OS_LOCKING_OK);
        module.initialize(how).map_err(|e| e.to_string())?;
        println!("{HEADER}");
        for (name, ed25519) in [("Ed25519", true), ("P-256, hashed by us", false)] {
            for threads in &args.threads {
                let sign = |(session, key): &mut (Session, ObjectHandle)| {
                    let signed = if ed25519 {
                        let pure = EddsaParams::new(EddsaSignatureScheme::Pure);
                        session.sign(&Mechanism::Eddsa(pure), *key, &TEXT)
                    } else {
                        let digest = ron_crypto::hash::sha256(&TEXT);
                        session.sign(&Mechanism::Ecdsa, *key, &digest)
                    };
                    signed.map(drop).map_err(|e| e.to_string())
                };
                let length = Duration::from_secs(args.seconds);
                let open = || open(&module, pin.trim(), ed25519);
                let rate = rate(*threads, length, open, sign)?;
                println!("| {name} sign in the token, directly | {threads} | {rate:.0} |");
            }
        }
        Ok(())
    }
}
