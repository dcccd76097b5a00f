//! The closed list of scopes: what a credential can permit, as `<service>:<verb>`.

use crate::ValueError;

macro_rules! scopes {
    ($($(#[$doc:meta])* $name:ident = $text:literal;)*) => {
        $($(#[$doc])* pub const $name: &str = $text;)*

        /// Every scope there is, in the order of the documentation.
        pub const ALL: &[&str] = &[$($name),*];
    };
}

scopes! {
    /// Read keys, their public keys and audit entries; request attestation.
    KMS_READ = "kms:read";
    /// Sign and make MACs.
    KMS_SIGN = "kms:sign";
    /// Verify signatures and MACs.
    KMS_VERIFY = "kms:verify";
    /// Create keys.
    KMS_CREATE = "kms:create";
    /// Rotate keys.
    KMS_ROTATE = "kms:rotate";
    /// Wrap, generate data keys and random bytes.
    KMS_WRAP = "kms:wrap";
    /// Unwrap.
    KMS_UNWRAP = "kms:unwrap";
    /// Retire, destroy, import and export keys.
    KMS_ADMIN = "kms:admin";
    /// Issue passports.
    PASSPORT_ISSUE = "passport:issue";
    /// Revoke passports and raise epochs.
    PASSPORT_REVOKE = "passport:revoke";
    /// Introspect tokens.
    PASSPORT_INTROSPECT = "passport:introspect";
    /// Read balances, holds and receipts.
    WALLET_READ = "wallet:read";
    /// Create money.
    WALLET_ISSUE = "wallet:issue";
    /// Transfer money.
    WALLET_TRANSFER = "wallet:transfer";
    /// Destroy money.
    WALLET_BURN = "wallet:burn";
    /// Reserve money, capture and release holds.
    WALLET_HOLD = "wallet:hold";
    /// Freeze accounts and change limits.
    WALLET_ADMIN = "wallet:admin";
    /// Read entries, balances and proofs.
    LEDGER_READ = "ledger:read";
    /// Commit issue, transfer, burn and hold entries.
    LEDGER_COMMIT = "ledger:commit";
    /// Open, pay out and close reward epochs.
    LEDGER_SETTLE = "ledger:settle";
    /// Read the whole ledger, with the entries of all tenants.
    LEDGER_AUDIT = "ledger:audit";
    /// Read runs, manifests and proofs.
    REWARDER_READ = "rewarder:read";
    /// Upload usage, compute and settle epochs.
    REWARDER_RUN = "rewarder:run";
    /// View the console.
    ADMIN_VIEW = "admin:view";
    /// Reload, drain and stop services.
    ADMIN_OPERATE = "admin:operate";
    /// Change the console's own settings.
    ADMIN_ADMIN = "admin:admin";
}

/// The static text of a scope, or `None` for an unknown one.
pub fn known(text: &str) -> Option<&'static str> {
    ALL.iter().copied().find(|scope| *scope == text)
}

/// Parses a space-separated list in OAuth form: known scopes, each once, in the given order. The
/// empty text is the empty list.
pub fn parse_list(text: &str) -> Result<Vec<&'static str>, ValueError> {
    let refuse = |why| Err(ValueError::new("scope list", why));
    let mut scopes = Vec::new();
    for word in text.split(' ') {
        if word.is_empty() {
            if text.is_empty() {
                break;
            }
            return refuse("scopes are separated by one space");
        }
        match known(word) {
            None => return refuse("it names an unknown scope"),
            Some(scope) if scopes.contains(&scope) => return refuse("it names a scope twice"),
            Some(scope) => scopes.push(scope),
        }
    }
    Ok(scopes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_is_closed_and_well_formed() {
        for scope in ALL {
            let (service, verb) = scope.split_once(':').expect("service:verb");
            assert!(!service.is_empty() && !verb.is_empty());
            assert_eq!(
                ALL.iter().filter(|other| *other == scope).count(),
                1,
                "{scope}"
            );
            assert_eq!(known(scope), Some(*scope));
        }
        assert_eq!(known("kms:everything"), None);
        assert_eq!(known("KMS:SIGN"), None);
    }

    #[test]
    fn lists_are_read_strictly() {
        assert_eq!(parse_list("").unwrap(), Vec::<&str>::new());
        assert_eq!(parse_list(&ALL.join(" ")).unwrap(), ALL);
        for bad in [
            " ",
            "kms:sign ",
            " kms:sign",
            "kms:sign  kms:read",
            "kms:sign,kms:read",
        ] {
            assert!(parse_list(bad).is_err(), "{bad:?}");
        }
        assert!(parse_list("kms:sign kms:sign").is_err());
        assert!(parse_list("kms:sign root").is_err());
    }
}
