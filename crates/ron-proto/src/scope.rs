//! Scopes: what a credential can permit. Those of this installation's services are a closed list, as
//! `<service>:<verb>`; those of other services are what the issuer policy names.

use crate::ValueError;

macro_rules! scopes {
    ($($(#[$doc:meta])* $name:ident = $text:literal;)*) => {
        $($(#[$doc])* pub const $name: &str = $text;)*

        /// Every scope there is, in the order of the documentation.
        pub const ALL: &[&str] = &[$($name),*];
    };
}

scopes! {
    /// Read keys, their public keys and the leaves about them; request attestation.
    KMS_READ = "kms:read";
    /// Sign and make MACs.
    KMS_SIGN = "kms:sign";
    /// Verify signatures and MACs.
    KMS_VERIFY = "kms:verify";
    /// Create keys.
    KMS_CREATE = "kms:create";
    /// Rotate keys.
    KMS_ROTATE = "kms:rotate";
    /// Wrap, generate data keys and random bytes, derive secrets.
    KMS_WRAP = "kms:wrap";
    /// Unwrap.
    KMS_UNWRAP = "kms:unwrap";
    /// Read the whole audit log, with the leaves of all tenants.
    KMS_AUDIT = "kms:audit";
    /// Retire, destroy, import and export keys.
    KMS_ADMIN = "kms:admin";
    /// Issue passports.
    PASSPORT_ISSUE = "passport:issue";
    /// Revoke passports of the caller's tenant by presenting them.
    PASSPORT_REVOKE = "passport:revoke";
    /// Introspect tokens.
    PASSPORT_INTROSPECT = "passport:introspect";
    /// Revoke passports, subjects and keys of all tenants by name, and raise the epoch.
    PASSPORT_ADMIN = "passport:admin";
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
    /// Read the entries, epochs and pools of the caller's tenant.
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
    /// Approve the payment of computed epochs.
    REWARDER_APPROVE = "rewarder:approve";
    /// View the console.
    ADMIN_VIEW = "admin:view";
    /// Reload, drain and stop services.
    ADMIN_OPERATE = "admin:operate";
    /// Change the console's own settings.
    ADMIN_ADMIN = "admin:admin";
}

/// Maximum bytes of a scope.
const BYTES_MAX: usize = 128;

/// Whether a text may be a scope: 1 to 128 printable ASCII characters, without quotes and backslashes
/// (RFC 6749 section 3.3), and without commas, which are a common mistake for the space.
pub fn is_scope(text: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_graphic() && !b"\"\\,".contains(&byte);
    (1..=BYTES_MAX).contains(&text.len()) && text.bytes().all(allowed)
}

/// Parses a space-separated list in OAuth form: scopes, each once, in the given order. The empty text
/// is the empty list.
pub fn parse_list(text: &str) -> Result<Vec<&str>, ValueError> {
    let refuse = |why| Err(ValueError::new("scope list", why));
    let mut scopes = Vec::new();
    for word in text.split(' ') {
        if word.is_empty() {
            if text.is_empty() {
                break;
            }
            return refuse("scopes are separated by one space");
        }
        if !is_scope(word) {
            return refuse("it names a scope with characters that no scope has");
        }
        if scopes.contains(&word) {
            return refuse("it names a scope twice");
        }
        scopes.push(word);
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
        }
        assert!(!ALL.contains(&"kms:everything"));
        assert!(!ALL.contains(&"KMS:SIGN"));
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
            "kms:sign \"root\"",
            "kms:sign\tkms:read",
            "k\u{fc}ms:sign",
            &"x".repeat(129),
        ] {
            assert!(parse_list(bad).is_err(), "{bad:?}");
        }
        assert!(parse_list("kms:sign kms:sign").is_err());
        let others = "orders.read https://api.example.org/write";
        assert_eq!(parse_list(others).unwrap().join(" "), others);
    }
}
