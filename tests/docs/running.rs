//! Starts the six services in this process from the output of `ron init`, to read the metrics and the OpenAPI document
//! that only a running service has.

use std::fs;
use std::sync::OnceLock;

use ron_http::{Call, Method};
use ron_kernel::Deadline;
use ron_kernel::metrics::Family;
use ron_service::{Config, Parts};
use ron_tests::{CALL, http_client, ok, ron_on};
use serde_json::Value;

use crate::SERVICES;

/// Metrics and OpenAPI document of a running service.
pub struct Described {
    pub service: &'static str,
    pub metrics: Vec<Family>,
    pub openapi: Value,
}

/// All six, in the order of [`SERVICES`]; started once.
pub fn described() -> &'static [Described] {
    static ALL: OnceLock<Vec<Described>> = OnceLock::new();
    ALL.get_or_init(|| {
        let dir = tempfile::tempdir().unwrap();
        ok(&ron_on(dir.path(), &["init"]));
        let http = http_client();
        let mut all = Vec::new();
        for service in SERVICES {
            let path = dir.path().join(service.name()).join("config.toml");
            let text = fs::read_to_string(&path).unwrap();
            let any = |key: &str| (key.to_owned(), "127.0.0.1:0".to_owned());
            let mut flags = vec![any("bind_addr"), any("health_addr")];
            // The pages name the scopes that callers need; without authentication the console asks for none.
            if service.name() == "svc-admin" {
                flags.push(("auth.mode".to_owned(), "passport".to_owned()));
            }
            let config = Config::load(service.table, Some((&path, &text)), &|_| None, &flags);
            let config = config.unwrap_or_else(|e| panic!("{}: {e:?}", service.name()));
            let parts = Parts::bind(&config).unwrap();
            let registry = parts.registry.clone();
            let running = (service.start)(config, parts).unwrap();
            let url = format!("{}/openapi.json", running.api_url());
            let reply = http.call(Call {
                method: Method::GET,
                url: &url,
                headers: &[],
                body: None,
                content_type: None,
                deadline: Deadline::within(CALL),
                idempotent: true,
            });
            all.push(Described {
                service: service.name(),
                metrics: registry.families(),
                openapi: serde_json::from_slice(&reply.unwrap().body).unwrap(),
            });
        }
        all
    })
}
