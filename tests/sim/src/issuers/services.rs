//! KMS, issuer and verifier as processes, the tokens of their callers, and what an operator sets up before the first start of the
//! issuer: its keys and its signed policy.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use ron_auth::{client_secret, policy_note, service_token};
use ron_client::{Credential, KmsClient};
use ron_crypto::hash::sha256;
use ron_crypto::sign::Ed25519Key;
use ron_files::SharedDisk;
use ron_http::HttpClient;
use ron_kernel::Deadline;
use ron_kms::RonKms;
use ron_ledger::RonLedger;
use ron_proto::kms::{CreateKey, JwtPolicy, KeyDoc, NotePolicy, PayloadPolicy};
use ron_proto::passport::TTL_S_MAX;
use ron_proto::policy::{PolicySig, policy_message};
use ron_proto::values::OpId;
use ron_proto::{Alg, Kid, b64, jcs};
use ron_service::{Config, Service};
use ron_tlog::note::VerifierKey;
use serde_json::json;
use svc_passport::SvcPassport;

use super::{CALL, CLIENT, GUEST, ISSUER, KMS, TELLER, VERIFIER, issuer_url};
use crate::dates::Date;
use crate::money::services::{self, Process, principal};
use crate::net::SimNet;

/// Audience of the tokens: the verifier.
pub const AUDIENCE: &str = "ron-ledger";
pub const SCOPE: &str = "ledger:read";

/// Credentials of the callers, and the operators' files, which are real.
pub struct Tokens {
    /// At the KMS: makes and rotates keys, reads its log.
    pub keeper: String,
    /// At the issuer: revokes, reads the feed.
    pub operator: String,
    /// At the issuer: has tokens issued to others.
    pub teller: String,
    /// Secret of the OAuth client.
    pub secret: String,
    passport: String,
    verifier: String,
    policy_key: String,
    /// At the issuer: the client whose rule comes and goes.
    pub guest: String,
    dir: PathBuf,
}

/// The issuer policy of this version, with or without the guest, below `dir`.
pub fn put_policy(dir: &Path, version: u64, guest: bool) {
    let rule = |id: &str| {
        json!({
            "client_id": id, "tenant": "default", "subjects": ["user:*"], "max_ttl_s": 900, "exchange": true,
            "audiences": [{"audience": AUDIENCE, "scopes": [SCOPE]}]
        })
    };
    let mut clients = vec![rule(CLIENT), rule(TELLER)];
    if guest {
        clients.push(rule(GUEST));
    }
    let key = policy_key();
    let bytes = jcs::canonicalize(&json!({"version": version, "clients": clients}));
    let sig = PolicySig {
        alg: "ed25519".to_owned(),
        key: b64::url(&key.public()),
        value: b64::url(&key.sign(&policy_message("issuer", &bytes))),
    };
    services::put(dir, "issuer.json", &bytes);
    let sig = ron_service::signed_policy::signature_bytes(&sig).expect("a document");
    services::put(dir, "issuer.json.sig", &sig);
}

fn policy_key() -> Ed25519Key {
    Ed25519Key::from_seed(&[53; 32])
}

impl Tokens {
    pub fn written() -> &'static Self {
        static TOKENS: OnceLock<Tokens> = OnceLock::new();
        TOKENS.get_or_init(Self::write)
    }

    fn write() -> Self {
        let token = |name: &str, seed: u8| service_token::generate(name, &[seed; 32]);
        let dir = services::scratch("sim-issuers");
        let (passport, verifier) = (token("svc-passport", 51), token(AUDIENCE, 52));
        services::put(&dir, "passport.token", passport.as_bytes());
        services::put(&dir, "verifier.token", verifier.as_bytes());
        Self {
            keeper: token("keeper", 54),
            operator: token("operator", 55),
            teller: token(TELLER, 56),
            guest: token(GUEST, 58),
            secret: client_secret::generate(CLIENT, &[57; 32]),
            passport,
            verifier,
            policy_key: b64::url(&policy_key().public()),
            dir,
        }
    }
}

fn config<S: Service>(ip: IpAddr, disk: Option<&SharedDisk>, top: &str, more: &str) -> Config {
    let data = match disk {
        Some(_) => "data_dir = \"/sim/data\"",
        None => "amnesia = true",
    };
    let text = format!(
        "{data}\ninsecure_loopback = true\nmax_conns = 64\n\
         bind_addr = \"{ip}:80\"\nhealth_addr = \"{ip}:81\"\n{top}\
         [http]\nworkers = 2\n{more}"
    );
    // A path that does not exist: nothing of the machine is judged.
    let config = Config::from_toml(S::TABLE, Path::new("sim/config.toml"), &text);
    config.unwrap_or_else(|problems| panic!("{problems:?}"))
}

/// The KMS at its start of this number; without a disk in memory.
pub fn kms(net: &SimNet, start: u64, date: &Date, disk: Option<SharedDisk>) -> Process {
    let tokens = Tokens::written();
    let more = format!(
        "[policy]\npublic_keys = [\"{}\"]\n{}{}",
        tokens.policy_key,
        principal(
            "ron",
            "svc-passport",
            &tokens.passport,
            &["kms:sign", "kms:read"]
        ),
        principal(
            "ron",
            "keeper",
            &tokens.keeper,
            &["kms:create", "kms:rotate", "kms:read", "kms:audit"]
        ),
    );
    let config = config::<RonKms>(KMS, disk.as_ref(), "signers = 2\n", &more);
    Process::start::<RonKms>(net, KMS, config, 500 + start, date, disk)
}

/// The names of the issuer's keys, as the KMS made them.
#[derive(Clone, Debug)]
pub struct Keys {
    pub tokens: Kid,
    note: Kid,
    note_vkey: String,
    /// Where the issuer finds its policy.
    pub policy: PathBuf,
}

/// A client of the KMS for the operator.
pub fn keeper(http: Arc<HttpClient>) -> KmsClient {
    let keeper = Credential::bearer(&Tokens::written().keeper);
    KmsClient::new(&format!("http://{KMS}:80"), keeper, http)
}

impl Keys {
    /// The keys, and the first policy in a directory of the world that has this name.
    pub fn made(kms: &KmsClient, world: &str) -> Self {
        let policy = services::scratch(&format!("sim-issuers-{world}"));
        put_policy(&policy, 1, true);
        let make = |purpose: &str, number: u8, payload| -> KeyDoc {
            let request = CreateKey {
                tenant: "ron".parse().expect("a tenant"),
                purpose: purpose.parse().expect("a purpose"),
                alg: Alg::Ed25519,
                payload,
                exportable: false,
                derived: false,
                rotate_every: None,
                backend: None,
                op_id: op_id(u64::from(number)),
                token: None,
            };
            let made = kms.create_key(&request, Deadline::within(CALL));
            made.unwrap_or_else(|error| panic!("the key {purpose}: {error}"))
        };
        let jwt = PayloadPolicy::Jwt(JwtPolicy {
            typ: vec!["at+jwt".to_owned(), "statuslist+jwt".to_owned()],
            iss: issuer_url(),
            aud: Vec::new(),
            issuer_policy: true,
            max_ttl_s: TTL_S_MAX,
        });
        let origin = policy_note::origin(&issuer_url());
        let tokens = make("issuer", 1, jwt).key;
        let note = PayloadPolicy::Note(NotePolicy {
            origin: origin.clone(),
        });
        let note = make("note", 2, note);
        let head = note.head_version().expect("a key has a head");
        let public: &[u8; 32] = head.public_key.as_slice().try_into().expect("Ed25519");
        let vkey = VerifierKey::ed25519(&origin, public).expect("a good name");
        Self {
            tokens,
            note: note.key,
            note_vkey: vkey.to_string(),
            policy,
        }
    }
}

/// The operation id of this number.
pub fn op_id(number: u64) -> OpId {
    let text = format!("01890a5d-ac96-774b-bcce-{number:012x}");
    text.parse().expect("an operation id")
}

/// The issuer at its start of this number; without a disk in memory.
pub fn issuer(
    net: &SimNet,
    keys: &Keys,
    start: u64,
    date: &Date,
    disk: Option<SharedDisk>,
) -> Process {
    let tokens = Tokens::written();
    let more = format!(
        "[kms]\nurl = \"http://{KMS}:80\"\ntoken_file = {:?}\nkey = \"{}\"\nnote_key = \"{}\"\n\
         timeout = \"1s\"\nrefresh_interval = \"1s\"\n\
         [policy]\ndir = {:?}\npublic_keys = [\"{}\"]\npoll_interval = \"2s\"\n\
         [issue]\nworkers = 2\n\
         [[clients]]\nid = \"{CLIENT}\"\nsecret_sha256 = [\"{}\"]\n{}{}{}{}",
        tokens.dir.join("passport.token"),
        keys.tokens,
        keys.note,
        keys.policy,
        tokens.policy_key,
        hex::encode(sha256(tokens.secret.as_bytes())),
        principal(
            "default",
            "operator",
            &tokens.operator,
            &["passport:admin", "passport:introspect"]
        ),
        principal("default", TELLER, &tokens.teller, &["passport:issue"]),
        principal("default", GUEST, &tokens.guest, &["passport:issue"]),
        principal("ron", AUDIENCE, &tokens.verifier, &["passport:introspect"]),
    );
    let top = format!("issuer = \"{}\"\n", issuer_url());
    let config = config::<SvcPassport>(ISSUER, disk.as_ref(), &top, &more);
    Process::start::<SvcPassport>(net, ISSUER, config, 600 + start, date, disk)
}

/// The verifier at its start of this number: a ledger, which accepts passports; without a disk in memory.
pub fn verifier(
    net: &SimNet,
    keys: &Keys,
    start: u64,
    date: &Date,
    disk: Option<SharedDisk>,
) -> Process {
    let (issuer, tokens) = (issuer_url(), Tokens::written());
    let more = format!(
        "[auth]\nissuer = \"{issuer}\"\njwks_url = \"{issuer}/.well-known/jwks.json\"\n\
         note_vkey = [{:?}]\nrefresh_interval = \"2s\"\ntoken_file = {:?}\n\
         [ledger]\nprojection = false\n",
        keys.note_vkey,
        tokens.dir.join("verifier.token"),
    );
    let config = config::<RonLedger>(VERIFIER, disk.as_ref(), "", &more);
    Process::start::<RonLedger>(net, VERIFIER, config, 700 + start, date, disk)
}
