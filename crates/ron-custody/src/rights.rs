//! What a credential allows by itself: its tenant, its prefixes and its caveats.

use ron_http::{Principal, PrincipalKind};
use ron_proto::Caveat;
use ron_proto::caveat::KeyOrLabel;
use ron_proto::kms::KeyOp;
use ron_proto::values::Kid;

use crate::labels::Labels;
use crate::{Cause, Refusal};

/// The tenant of the installation's own keys: those of the issuer, of notes, policies and manifests, and of the audit
/// log.
pub const SYSTEM: &str = "ron";

/// Checks that the caller may act on the installation itself.
pub fn may_run_system(caller: &Principal) -> Result<(), Refusal> {
    let whole = caller
        .key_prefixes
        .as_deref()
        .is_none_or(|prefixes| prefixes.iter().any(|prefix| prefix_covers(prefix, SYSTEM)));
    if caller.is_installation() && whole {
        return Ok(());
    }
    Err(Refusal::new(
        Cause::Forbidden,
        "this operation concerns the installation itself: use the operator's token (`ron` uses it by default), not a passport",
    ))
}

/// Checks that the caller may bring a signed policy, or read which one is in force. The signature decides about the policy,
/// so any service of the installation may; the tenants' own services and passports have nothing to do with it.
pub fn may_bring_policy(caller: &Principal) -> Result<(), Refusal> {
    if caller.tenant.as_str() == SYSTEM && caller.kind == PrincipalKind::Service {
        return Ok(());
    }
    Err(Refusal::new(
        Cause::Forbidden,
        "the issuer policy belongs to the installation: use a service token of tenant ron, not a passport",
    ))
}

/// Checks tenant, prefixes and kind of the caller against the key's name.
pub fn may_name(caller: &Principal, kid: &Kid) -> Result<(), Refusal> {
    if kid.tenant.as_str() == SYSTEM && caller.kind == PrincipalKind::Passport {
        return Err(Refusal::new(
            Cause::Forbidden,
            "keys of tenant ron are the installation's own: use a service token, not a passport",
        ));
    }
    if caller.tenant != kid.tenant {
        return Err(Refusal::new(
            Cause::Forbidden,
            "the key belongs to another tenant",
        ));
    }
    let allowed = caller.key_prefixes.as_deref().is_none_or(|prefixes| {
        let name = kid.to_string();
        prefixes.iter().any(|prefix| prefix_covers(prefix, &name))
    });
    if allowed { Ok(()) } else { Err(other_keys()) }
}

/// As [`may_name`], and the caveats about aliases and tags; `labels` is `None` while there is no such key.
pub fn may_use(caller: &Principal, kid: &Kid, labels: Option<&Labels>) -> Result<(), Refusal> {
    may_name(caller, kid)?;
    // Names are judged by the prefixes, into which the authorizer has made them.
    let held = |caveat: &Caveat| match caveat {
        Caveat::Key(KeyOrLabel::Alias(alias)) => {
            labels.is_some_and(|labels| labels.aliases.contains(alias))
        }
        Caveat::Key(KeyOrLabel::Tag(tag)) => labels.is_some_and(|labels| labels.match_tag(tag)),
        _ => true,
    };
    if caller.caveats.iter().all(held) {
        Ok(())
    } else {
        Err(other_keys())
    }
}

/// Whether the credential is limited to some keys of its tenant.
pub fn is_limited(caller: &Principal) -> bool {
    caller.key_prefixes.is_some() || caller.caveats.iter().any(|c| matches!(c, Caveat::Key(_)))
}

/// Checks the caveats about operations.
pub fn may_do(caller: &Principal, op: KeyOp) -> Result<(), Refusal> {
    let held = |caveat: &Caveat| match caveat {
        Caveat::Op(ops) => ops.contains(op),
        _ => true,
    };
    if caller.caveats.iter().all(held) {
        return Ok(());
    }
    let detail = format!("the credential is limited to other operations than {op}");
    Err(Refusal::new(Cause::Forbidden, detail))
}

fn other_keys() -> Refusal {
    Refusal::new(Cause::Forbidden, "the credential is limited to other keys")
}

/// A prefix covers whole path segments only: `ron/iss` does not cover `ron/issuer/...`.
/// `x`, `x/` and `x/*` mean the same.
fn prefix_covers(prefix: &str, name: &str) -> bool {
    let prefix = prefix.strip_suffix('*').unwrap_or(prefix);
    let prefix = prefix.strip_suffix('/').unwrap_or(prefix);
    !prefix.is_empty()
        && name
            .strip_prefix(prefix)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_cover_whole_segments() {
        let name = "ron/issuer/ed25519/0190";
        let check =
            |prefix: &str, ok: bool| assert_eq!(prefix_covers(prefix, name), ok, "{prefix}");
        check("ron/issuer/", true);
        check("ron/issuer/*", true);
        check("ron/issuer", true);
        check("ron/", true);
        check("ron/issuer/ed25519/0190", true);
        check("ron/iss", false);
        check("ron/iss*", false);
        check("ro", false);
        check("", false);
        check("*", false);
        check("/", false);
        check("ron/issuer/ed25519/01", false);
        check("other/issuer/", false);
    }
}
