//! Probes the configured devices once, without a running service (`ron doctor`): logs in and waits for an answer. A
//! device that hangs makes the probe hang.

use std::sync::Arc;

use ron_http::HttpClient;
use ron_service::{Config, client_config};

use super::pkcs11::Token;
use super::remote::Remote;
use super::session_pool::{Fault, Session as _};
use super::settings::{DeviceKeys, DeviceSettings};

/// Connects once to every configured device. Returns each one's name and the error, if any.
pub fn probe_devices(config: &Config) -> Vec<(String, Result<(), String>)> {
    let mut problems = Vec::new();
    let keys: DeviceKeys = match config.read() {
        Ok(keys) => keys,
        Err(problem) => return vec![("devices".to_owned(), Err(problem.to_string()))],
    };
    let settings = DeviceSettings::new(config, &keys, &mut problems);
    if !problems.is_empty() {
        return problems
            .iter()
            .map(|problem| ("devices".to_owned(), Err(problem.to_string())))
            .collect();
    }
    let mut answers = pkcs11(&settings);
    answers.extend(tpm(&settings));
    answers.extend(remote(config, &settings));
    answers
}

type Answer = Option<(String, Result<(), String>)>;

fn pkcs11(settings: &DeviceSettings) -> Vec<(String, Result<(), String>)> {
    let tokens = super::pkcs11::tokens(&settings.pkcs11);
    let probe = |token: &Arc<Token>| {
        let answer = token.connect().and_then(|mut session| session.probe());
        let name = match &token.settings().name {
            Some(name) => format!("HSM token {name}"),
            None => "HSM token".into(),
        };
        (name, answer.map_err(described))
    };
    tokens.iter().map(probe).collect()
}

#[cfg(feature = "tpm")]
fn tpm(settings: &DeviceSettings) -> Answer {
    let wanted = settings.tpm.as_ref()?;
    let answer = wanted.connect().and_then(|mut session| session.probe());
    Some(("TPM".into(), answer.map_err(described)))
}

#[cfg(not(feature = "tpm"))]
fn tpm(settings: &DeviceSettings) -> Answer {
    let why = "this binary was built without it; build with --features ron-kms/tpm";
    let _wanted = settings.tpm.as_ref()?;
    Some(("TPM".into(), Err(why.into())))
}

fn remote(config: &Config, settings: &DeviceSettings) -> Answer {
    let wanted = settings.remote.clone()?;
    let answer = client_config(config)
        .map_err(|error| error.to_string())
        .and_then(|peers| {
            let remote = Remote::new(Arc::new(HttpClient::new(peers)), wanted);
            let answer = remote.connect().and_then(|mut session| session.probe());
            answer.map_err(described)
        });
    Some(("other key service".into(), answer))
}

fn described(fault: Fault) -> String {
    match fault {
        Fault::Gone(why) => format!("it does not answer: {why}"),
        Fault::Denied(why) => format!("it refused the login: {why}"),
        Fault::Refused(why) => format!("it refused: {why}"),
        Fault::Unsupported(why) => format!("it cannot do this: {why}"),
        Fault::Busy { .. } => "it is overloaded".into(),
        Fault::TimedOut => "it does not answer in time".into(),
        Fault::Missing(why) => format!("it does not know the key that it made ({why})"),
        Fault::Mismatch => "it does not unwrap what it wrapped".into(),
    }
}
