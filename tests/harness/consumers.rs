//! The services that verify passports, and a read at each that every token of the operator allows.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::{Fleet, json};
use ron_http::Reply;
use serde_json::Value;

pub const CONSUMERS: [(&str, &str); 4] = [
    ("svc-wallet", "/v1/balance?account=a&asset=ron"),
    ("ron-kms", "/v1/kms/keys"),
    ("svc-rewarder", "/rewarder/epochs"),
    ("svc-admin", "/api/me"),
];

/// Makes the console of a fleet that is not started yet require passports, and sets the region of
/// all consumers.
pub fn configure(dir: &Path, region: &str) {
    for (service, _) in CONSUMERS {
        let path = dir.join(service).join("config.toml");
        let text = std::fs::read_to_string(&path).unwrap();
        let mode = if service == "svc-admin" {
            "mode = \"passport\"\n"
        } else {
            ""
        };
        let section = format!("[auth]\n{mode}region = \"{region}\"\n");
        assert!(text.contains("[auth]\n"), "{text}");
        std::fs::write(&path, text.replace("[auth]\n", &section)).unwrap();
    }
}

/// Reads at a service with a token; retries while the service has not read the issuer's keys yet.
pub fn read(fleet: &Fleet, service: &str, token: &str) -> Reply {
    let path = CONSUMERS
        .iter()
        .find(|(name, _)| *name == service)
        .unwrap()
        .1;
    let url = format!("{}{path}", fleet.api(service));
    let since = Instant::now();
    loop {
        let reply = fleet.get(&url, Some(token));
        if reply.status != 503 || since.elapsed() > Duration::from_secs(20) {
            return reply;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Why a passport was refused: status and the word in the problem's details.
pub fn reason(reply: &Reply) -> (u16, String) {
    let problem: Value = serde_json::from_slice(&reply.body).unwrap_or_default();
    let word = problem["details"]["reason"].as_str().unwrap_or_default();
    (reply.status, word.to_owned())
}

/// Why the service with this health address is degraded by the cause `passports`; empty when it is not.
pub fn passports_degraded(fleet: &Fleet, health: &str) -> String {
    let status = json(&fleet.get(&format!("{health}/api/v1/status"), None), 200);
    let planes = status["planes"].as_array().unwrap();
    let plane = planes.iter().find(|plane| plane["name"] == "passports");
    let reason = plane.and_then(|plane| plane["reason"].as_str());
    reason.unwrap_or_default().to_owned()
}

/// Issues tokens for the operator, without a process for each token.
pub struct Source {
    url: String,
    credential: String,
}

impl Source {
    /// A source that calls this fleet's issuer.
    pub fn of(fleet: &Fleet) -> Self {
        Self {
            url: format!("{}/v1/passport/issue", fleet.api("svc-passport")),
            credential: fleet.token("svc-passport", Some("passport:issue")),
        }
    }

    /// A token for a service with these caveats.
    pub fn token(&self, fleet: &Fleet, audience: &str, caveats: &[&str]) -> String {
        let reply = self.ask(fleet, audience, caveats);
        json(&reply, 200)["token"].as_str().unwrap().to_owned()
    }

    /// The issuer's response to the same request.
    pub fn ask(&self, fleet: &Fleet, audience: &str, caveats: &[&str]) -> Reply {
        let body = json!({"subject_ref": "operator", "audience": audience, "caveats": caveats});
        fleet.post(&self.url, Some(&self.credential), &body.to_string(), &[])
    }
}
