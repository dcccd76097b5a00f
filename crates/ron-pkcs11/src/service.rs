//! Calls to the key service.
//!
//! Each call has a client and connections of its own, which are gone when it ends: a pool would be shared with the
//! children of the process, and with its other threads at the moment of a fork.

use std::io::Write as _;
use std::sync::Arc;
use std::time::Duration;

use cryptoki_sys::{CKR_DEVICE_ERROR, CKR_USER_NOT_LOGGED_IN};
use ron_client::{ClientError, Credential, KmsClient};
use ron_http::{ClientConfig, HttpClient};
use ron_kernel::Deadline;
use ron_proto::kms::{KeyDoc, RANDOM_BYTES_MAX, RandomRequest, SignRequest};
use ron_proto::{Kid, Purpose};

use crate::config::Config;
use crate::rv::{Asked, Rv};

/// Maximum number of pages of keys that one search reads, so that it ends.
const PAGES_MAX: usize = 1000;
/// Longest program name in the audit log, in bytes.
const PROGRAM_MAX: usize = 64;

/// What calls need to know.
#[derive(Debug)]
pub struct Service {
    config: Arc<Config>,
    /// Note for the audit leaves: which program asked.
    context: String,
}

/// One call, or several of one function of the C interface.
pub struct Calls<'a> {
    service: &'a Service,
    kms: KmsClient,
    deadline: Deadline,
}

impl Service {
    pub fn new(config: Arc<Config>) -> Self {
        Self {
            config,
            context: format!("pkcs11 {}", program()),
        }
    }

    /// A connection to be made; reads the token file.
    pub fn calls(&self) -> Result<Calls<'_>, Rv> {
        let config = &self.config;
        let credential = match &config.token_file {
            None => Credential::none(),
            Some(path) => Credential::from_file(path).map_err(|why| {
                self.explain(&why);
                Rv(CKR_USER_NOT_LOGGED_IN)
            })?,
        };
        let http = HttpClient::new(ClientConfig {
            user_agent: concat!("ron-pkcs11/", env!("CARGO_PKG_VERSION")).to_owned(),
            max_idle_per_host: 1,
            connect_timeout: config.timeout.min(Duration::from_secs(2)),
            breaker: None,
            patience: config.timeout,
            peer_uids: config.peer_uids.clone(),
            ..ClientConfig::default()
        });
        Ok(Calls {
            service: self,
            kms: KmsClient::new(&config.url, credential, Arc::new(http)),
            deadline: Deadline::within(config.timeout),
        })
    }

    /// As [`explain`], unless the configuration says `quiet`.
    pub fn explain(&self, why: &str) {
        if !self.config.quiet {
            explain(why);
        }
    }

    fn failed(&self, error: &ClientError, asked: Asked) -> Rv {
        self.explain(&format!("{}: {error}", self.config.url));
        Rv::of(error, asked)
    }
}

impl Calls<'_> {
    /// The active keys of a purpose, without their versions.
    pub fn keys(&self, purpose: &Purpose) -> Result<Vec<KeyDoc>, Rv> {
        let filter = format!("purpose={purpose}&state=active&limit=200");
        let mut all = Vec::new();
        let mut next = String::new();
        for _ in 0..PAGES_MAX {
            let page = self
                .kms
                .keys_where(&format!("{filter}{next}"), self.deadline);
            let page = page.map_err(|error| self.service.failed(&error, Asked::Other))?;
            all.extend(page.keys);
            match page.next {
                Some(after) => next = format!("&after={}", ron_client::encode(&after)),
                None => return Ok(all),
            }
        }
        self.service.explain("the list of keys has no end");
        Err(Rv(CKR_DEVICE_ERROR))
    }

    /// One key with its head version; `None` when it is gone since it was listed.
    pub fn key(&self, kid: &Kid) -> Result<Option<KeyDoc>, Rv> {
        match self.kms.key(kid, self.deadline) {
            Ok(doc) => Ok(Some(doc)),
            Err(error) if error.status() == Some(404) => Ok(None),
            Err(error) => Err(self.service.failed(&error, Asked::Other)),
        }
    }

    /// The signature over what `request` names.
    pub fn sign(&self, request: SignRequest) -> Result<Vec<u8>, Rv> {
        let request = SignRequest {
            context: Some(self.service.context.clone()),
            ..request
        };
        let answer = self.kms.sign(&request, self.deadline);
        let answer = answer.map_err(|error| self.service.failed(&error, Asked::Signature))?;
        let [signature] = <[_; 1]>::try_from(answer.signatures).map_err(|_| {
            self.service
                .explain("the service answered with another number of signatures than one");
            Rv(CKR_DEVICE_ERROR)
        })?;
        Ok(signature.signature.0)
    }

    /// Fills `room` with bytes of the service's random generator.
    pub fn random(&self, room: &mut [u8]) -> Result<(), Rv> {
        for part in room.chunks_mut(RANDOM_BYTES_MAX) {
            let request = RandomRequest {
                bytes: Some(part.len() as u32),
                context: Some(self.service.context.clone()),
            };
            let answer = self.kms.random(&request, self.deadline);
            let answer = answer.map_err(|error| self.service.failed(&error, Asked::Other))?;
            let bytes = answer.bytes.expose();
            if bytes.len() != part.len() {
                self.service
                    .explain("the service answered with another number of random bytes");
                return Err(Rv(CKR_DEVICE_ERROR));
            }
            part.copy_from_slice(bytes);
        }
        Ok(())
    }
}

/// Why a call failed, for the person who reads the program's output: a return value of the C interface cannot say it.
pub fn explain(why: &str) {
    // Nothing can be done about an output that is closed.
    let _ = writeln!(std::io::stderr(), "ron-pkcs11: {why}");
}

/// The name of the running program, in printable ASCII.
fn program() -> String {
    let path = std::env::current_exe().unwrap_or_default();
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let kept = name.chars().filter(char::is_ascii_graphic);
    kept.take(PROGRAM_MAX).collect()
}
