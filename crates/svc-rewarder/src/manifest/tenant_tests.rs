//! Separation of tenants: the usage, the policy and the pool of a run belong to its tenant.

use ron_proto::values::ContentId;
use serde_json::json;

use super::tests::{document, signed, snapshot};
use super::{compute, source};

#[test]
fn a_source_is_tenant_policy_and_usage_kept_apart() {
    let of = |tenant: &str, policy: &str, snapshot: u8| {
        let (tenant, policy) = (
            tenant.parse().expect("a tenant"),
            policy.parse().expect("a policy"),
        );
        source(&tenant, &policy, &ContentId([snapshot; 32]))
    };
    let sources = [
        of("ab", "c", 1),
        of("a", "bc", 1),
        of("ab", "c", 2),
        of("ab", "d", 1),
    ];
    for (at, one) in sources.iter().enumerate() {
        assert!(!sources[at + 1..].contains(one));
    }
    assert_eq!(of("ab", "c", 1), sources[0]);
}

#[test]
fn a_policy_pays_for_its_tenant_from_its_pools_alone() {
    let good = signed(&document(&json!({})));
    let usage = snapshot(1);
    let other = "another".parse().expect("a tenant");
    let epoch = "e".parse().expect("an epoch");
    let why = compute(&other, &epoch, None, &usage, &good, &()).expect_err("another tenant's");
    assert!(
        why.to_string().contains("belongs to tenant default"),
        "{why}"
    );
    for pool in [
        "pool:another/test",
        "pool:test",
        "acct:default/test",
        "pool:default/",
    ] {
        let edit = json!({"pool": {"account": pool, "amount_minor": "1"}});
        let policy = serde_json::from_value(document(&edit)).expect("a policy");
        let why = crate::calculus::check_policy(&policy)
            .expect_err(pool)
            .to_string();
        assert!(why.contains("pool:<tenant>/<name>"), "{why}");
    }
}
