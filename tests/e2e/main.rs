//! A fleet, or single services, as their users meet them: real processes, real clients, real browsers. One module
//! per story; what several need is in the harness.

// A test may panic, wait, and share state by a plain mutex.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    clippy::disallowed_types,
    clippy::float_cmp
)]

mod account_terms;
mod admin_chaos;
mod admin_gates;
mod admin_keys;
mod admin_page;
mod admin_parser;
mod alerts;
mod api_examples;
mod archive;
mod backup;
mod bad_input;
mod clock;
mod console;
mod demo;
mod derive;
mod disk_faults;
mod disk_full;
mod disk_hangs;
mod doctor;
mod documented;
mod embedding;
mod events;
mod fleet;
mod generated_clients;
mod hostile_values;
mod identities;
mod issuer_pin;
mod killed_workers;
mod kms;
mod kms_custody;
mod kms_names;
mod ledger_import;
mod login;
mod newcomer;
mod newer;
mod notify;
mod packages;
mod passport;
mod passport_attacks;
mod passport_audiences;
mod passport_caveats;
mod passport_chaos;
mod passport_clients;
mod passport_delegation;
mod passport_external;
mod passport_faults;
mod passport_feed;
mod passport_gateways;
mod passport_interop;
mod passport_issued;
mod passport_log;
mod passport_move;
mod passport_mtls;
mod passport_nonces;
mod passport_policy;
mod passport_pq;
mod passport_refusals;
mod passport_revocation;
mod passport_rotation;
mod passport_spread;
mod pictures;
mod pkcs11;
mod public_host;
mod readme;
mod relative_paths;
mod rewarder;
mod rewarder_assets;
mod rewarder_bundle;
mod rewarder_claims;
mod rewarder_correction;
mod rewarder_payees;
mod rewarder_release;
mod runbooks;
mod sdk;
mod secrets_in_memory;
mod separate;
mod series;
mod spans;
mod ssh_sign;
mod stolen_issuer;
mod taken_port;
mod tenant_walk;
mod tenants;
mod timeline;
mod trace;
mod transit;
mod transit_documented;
mod tutorial;
mod value_loop;
mod vectors;
mod wallet;
mod wallet_batches;
mod wallet_bounds;
mod wallet_commands;
mod wallet_faults;
mod wallet_feed;
mod wallet_history;
mod wallet_policy;
mod webhooks;
