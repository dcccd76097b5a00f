//! Examples for the commands that have none of their own, shown at the end of `--help` and of the
//! manual pages. One table, so that a missing entry is easy to see.

use clap::{Command, CommandFactory as _};

use crate::cli::Cli;

/// The words of a command below `ron`, and its examples, one per line.
const EXAMPLES: &[(&str, &str)] = &[
    (
        "completions",
        "ron completions bash > ~/.local/share/bash-completion/completions/ron\nron completions zsh --of ron-kms > _ron-kms",
    ),
    (
        "man",
        "ron man | man -l -\nron man --dir /usr/local/share/man",
    ),
    (
        "clock show",
        "ron clock show\nron clock show --data-dir /srv/ron",
    ),
    ("clock accept", "date -u && ron clock accept"),
    (
        "status",
        "ron status\nron status --wait 60\nron status --watch\nron status --json | jq -r '.[] | select(.status.health != \"healthy\") | .at'\nron status --health http://10.0.0.1:7475 --health http://10.0.0.2:7475",
    ),
    (
        "events",
        "ron events\nron events --follow\nron events --json | jq -r 'select(.severity != \"info\") | .service + \" \" + .kind'\nron events --follow --health http://10.0.0.1:7475 --health http://10.0.0.2:7475",
    ),
    (
        "trace",
        "ron trace find-me-42\nron trace find-me-42 --log wallet.log --log ledger.log --json\njournalctl -o cat -u 'ron-*' -u 'svc-*' | ron trace find-me-42 --log -",
    ),
    (
        "restore",
        "ron restore --from /var/backups/ron --data-dir /srv/ron\nron restore --from /var/backups/ron/2026-12-01T03-00-00.123Z --data-dir /srv/ron --seal-key seal.key --witnessed 812345",
    ),
    (
        "ha status",
        "ron ha status\nron ha status --health http://10.0.0.1:7465 --health http://10.0.0.2:7465",
    ),
    ("logout", "ron logout\nron logout --audience ron-kms"),
    (
        "token get",
        "ron token get --audience svc-wallet --scope wallet:read --ttl 5m\nron token get --audience svc-wallet --key holder.key   # bound to a key made by `ron token key`",
    ),
    ("token inspect", "ron token inspect $TOKEN"),
    (
        "token verify",
        "ron token verify $TOKEN\nron token verify $TOKEN --data-dir /srv/ron",
    ),
    (
        "token attenuate",
        "ron token attenuate $TOKEN --scope wallet:read --ttl 1m\nron token attenuate $TOKEN --key holder.key --caveat account=acct:alice   # offline",
    ),
    (
        "token revoke",
        "ron token revoke --token $TOKEN --reason 'sent to the wrong person'\nron token revoke --subject operator --reason 'left the team'\nron token revoke --epoch 7 --reason 'start over'",
    ),
    (
        "token issued",
        "ron token issued --client ci --limit 20\nron token issued --audience https://orders.example.org/ --since 2026-12-01T00:00:00Z --csv",
    ),
    ("token key", "ron token key holder.key"),
    (
        "token proof",
        "ron token proof $TOKEN --key holder.key --method POST --url http://127.0.0.1:7470/v1/transfer",
    ),
    (
        "client add",
        "ron client add shop --audience https://orders.example.org/ --scope orders:read --secret\nron client add ci --audience svc-wallet --scope wallet:read --key ci.jwk.json\nron client add shop --audience reports --scope read   # a second audience\nron client add deploy --audience https://orders.example.org/ --scope orders:write --issuer https://token.actions.githubusercontent.com --jwks-url https://token.actions.githubusercontent.com/.well-known/jwks --subject 'repo:acme/shop:ref:refs/heads/main'",
    ),
    (
        "client list",
        "ron client list\nron client list --data-dir /srv/ron",
    ),
    ("client show", "ron client show shop"),
    (
        "client refused",
        "ron client refused\nron client refused --json",
    ),
    (
        "client remove",
        "ron client remove shop --audience reports\nron client remove shop",
    ),
    (
        "audience add",
        "ron audience add https://orders.example.org/ --scope 'orders:read orders:write' --max-ttl 10m",
    ),
    ("audience list", "ron audience list"),
    (
        "audience show",
        "ron audience show https://orders.example.org/",
    ),
    (
        "audience remove",
        "ron audience remove https://orders.example.org/",
    ),
    (
        "policy show",
        "ron policy show > draft.json\nron policy show --kind wallet",
    ),
    ("policy check", "ron policy check --kind issuer draft.json"),
    (
        "policy explain",
        "ron policy explain --client shop --audience https://orders.example.org/ --scope orders:write\nron policy explain --client shop --audience reports --policy draft.json",
    ),
    (
        "client rotate-secret",
        "ron client rotate-secret shop\nron client rotate-secret shop --overlap 0s   # the old secret has leaked",
    ),
    (
        "client secret",
        "ron client secret my-app\nron client secret my-app --out next.json --expires 2027-01-01T00:00:00Z   # the second of two",
    ),
    (
        "ledger import",
        "ron ledger import books-2025.csv --check\nron ledger import books-2025.csv --principal old-bank",
    ),
    (
        "ledger erase",
        "ron ledger erase tx_0000000000000011c2b4f0a97d3e5568 --reason 'request of 2026-05-04'",
    ),
    (
        "ledger migrate",
        "ron ledger migrate --to postgresql://ron_ledger@10.0.0.11,10.0.0.12/ron?target_session_attrs=read-write --rehearse\nron ledger migrate --to postgresql://ron_ledger@10.0.0.11,10.0.0.12/ron?target_session_attrs=read-write\nron ledger migrate --to files --from postgresql://ron_ledger@10.0.0.11,10.0.0.12/ron\nron ledger migrate --to files --database-is-lost",
    ),
    (
        "receipt verify",
        "ron receipt verify order-17.receipt.json\nron receipt verify order-17.receipt.json --vkey ron-ledger.example/log+1234abcd+AQ... --policy witnesses.txt",
    ),
    (
        "policy apply",
        "ron policy show > draft.json   # change it\nron policy apply draft.json --dry-run\nron policy apply draft.json\nron policy apply --kind wallet my-wallet.json",
    ),
    (
        "policy sign",
        "ron policy sign --kind wallet my-wallet.json",
    ),
    (
        "policy verify",
        "ron policy verify --kind wallet my-wallet.json\nron policy verify --kind reward reward.json --key AAAA",
    ),
    (
        "audit verify",
        "ron audit verify\nron audit verify --data-dir /backup/ron",
    ),
    ("audit prove", "ron audit prove 17 > leaf-17.tlog-proof"),
    (
        "audit stat",
        "ron audit stat\nron audit stat --log-dir /backup/audit --vkey ron-kms/...+1234abcd+AQ...",
    ),
    (
        "audit logs",
        "ron audit logs /srv/a/audit /srv/b/audit\nron audit logs --vkey ron-kms/a+1234abcd+AQ... /backup/a/audit /backup/b/audit",
    ),
    (
        "audit tail",
        "ron audit tail -n 3\nron audit tail --data-dir /srv/ron",
    ),
    (
        "kms create",
        "ron kms create --purpose app --alg ed25519 --rotate-every 30d\nron kms create --purpose tokens --alg ml-dsa-65 --payload digest",
    ),
    (
        "kms list",
        "ron kms list\nron kms list --purpose app --state active --json",
    ),
    (
        "kms get",
        "ron kms get $KEY\nron kms get $KEY --public pem --version 1",
    ),
    (
        "kms rotate",
        "ron kms rotate $KEY --expected-head 1\nron kms rotate $ISSUER --now   # the key of the issuer may be known to others",
    ),
    (
        "kms update",
        "ron kms update $KEY --rotate-every 30d --expected-head 2\nron kms update $KEY --min-verify-version 2\nron kms update $KEY --not-exportable",
    ),
    (
        "kms sign",
        "ron kms sign $KEY --file release.tar.gz\nron kms sign $KEY --message hello --context 'release 7'\nron kms sign $RSA --file disk.img --scheme rsa-pkcs1-sha256 --out disk.img.sig",
    ),
    (
        "kms csr",
        "ron kms csr $KEY --subject CN=example.org,O=Example --dns example.org --dns www.example.org --out example.csr",
    ),
    (
        "kms derive",
        "ron kms derive $KEY --peer theirs.pem --info 'orders v1' --wrap-with $KEK",
    ),
    (
        "kms verify",
        "ron kms verify $KEY --file release.tar.gz --signature $SIG\nron kms verify $RSA --file disk.img --scheme rsa-pkcs1-sha256 --signature-file disk.img.sig\nron kms verify $KEY --message hello --signature $SIG --signature $SIG --mode pq_only",
    ),
    (
        "kms adopt",
        "ron kms adopt --purpose site --alg ecdsa-p256 --label old-site-key\nron kms adopt --purpose site --alg rsa-2048 --id 0a02",
    ),
    (
        "kms alias set",
        "ron kms alias set app $KEY && ron kms sign alias/app --file invoice.pdf",
    ),
    ("kms alias move", "ron kms alias move app $NEW"),
    ("kms alias delete", "ron kms alias delete app"),
    (
        "kms alias list",
        "ron kms alias list\nron kms alias list --json",
    ),
    (
        "kms policy get",
        "ron kms policy get alias/app > policy.json",
    ),
    (
        "kms policy set",
        "ron kms policy set alias/app policy.json\nron kms policy set alias/app policy.json --ask-approval   # then once more, with --op-id of the request\nron kms policy set alias/app --none",
    ),
    ("kms policy check", "ron kms policy check policy.json"),
    (
        "kms policy explain",
        "ron kms policy explain alias/app --principal svc-web --scope kms:sign --op sign --context invoice-7",
    ),
    (
        "kms grant make",
        "ron kms grant make alias/app --to svc-batch --op sign --lifetime 8h",
    ),
    ("kms grant list", "ron kms grant list alias/app"),
    ("kms grant retire", "ron kms grant retire alias/app $GRANT"),
    ("kms approvals list", "ron kms approvals list alias/app"),
    (
        "kms approvals enroll",
        "openssl genpkey -algorithm ed25519 -out alice.pem && ron kms approvals enroll --name alice --key-file alice.pem",
    ),
    (
        "kms approve",
        "ron kms approve alias/app $REQUEST --approver alice --key-file alice.pem",
    ),
    (
        "kms ssh-sign",
        "ron kms get $KEY --public ssh > release.pub\nron kms ssh-sign -Y sign -n file -f release.pub release.tar.gz",
    ),
    (
        "kms backup",
        "ron kms backup $KEY --out key.backup\nron kms backup alias/app --out key.backup --ask-approval   # then once more, with --op-id of the request",
    ),
    (
        "kms restore",
        "ron kms restore key.backup\nron kms restore key.backup --purpose copy",
    ),
    ("kms retire", "ron kms retire $KEY --expected-head 2"),
    ("kms destroy", "ron kms destroy $KEY --delay 7d"),
    ("kms cancel", "ron kms cancel $KEY"),
    (
        "kms import",
        "ron kms import --purpose app --alg ed25519 old-key.pem --vkey ron-kms/...+1234abcd+AQ...",
    ),
    (
        "kms export",
        "ron kms export $KEY --to recipient.pub --out key.wrapped",
    ),
    (
        "kms recipient",
        "ron kms recipient recipient   # writes recipient and recipient.pub",
    ),
    (
        "kms open",
        "ron kms open key.wrapped --with recipient --out key.raw",
    ),
    (
        "kms attest",
        "ron kms attest $KEY --out birth.json\nron kms attest $KEY --key-version 1 --nonce 0011aaff --out birth.json",
    ),
    (
        "kms verify-birth",
        "ron kms verify-birth birth.json --vkey ron-kms/...+1234abcd+AQ... --nonce 0011aaff",
    ),
    (
        "ledger verify",
        "ron ledger verify\nron ledger verify --log-dir /backup/ledger/log --vkey ron.local/ledger+1234abcd+AQ...",
    ),
    ("ledger stat", "ron ledger stat --json"),
    ("ledger export", "ron ledger export --out entries.ndjson"),
    (
        "ledger backup",
        "ron ledger backup /backup/ledger-2026-11-01",
    ),
    (
        "ledger restore",
        "ron ledger restore --data-dir /srv/ron /backup/ledger-2026-11-01",
    ),
    (
        "wallet balance",
        "ron wallet balance acct:alice --asset ron",
    ),
    (
        "wallet issue",
        "ron wallet issue acct:alice 1000 --asset ron --key payroll-2026-11",
    ),
    (
        "wallet transfer",
        "ron wallet transfer acct:alice acct:bob 250 --asset ron --key order-17 --memo 'order 17'",
    ),
    (
        "wallet burn",
        "ron wallet burn acct:alice 10 --asset ron --key scrap-4",
    ),
    (
        "wallet hold",
        "ron wallet hold acct:alice 100 --asset ron --expires-in 1h --key order-18\nron wallet hold acct:alice 100 --asset ron --expires-at 2030-01-01T00:00:00Z",
    ),
    (
        "wallet capture",
        "ron wallet capture $HOLD acct:shop 80 --key order-18",
    ),
    (
        "wallet release",
        "ron wallet release $HOLD --memo 'not in stock'",
    ),
    (
        "wallet batch",
        "ron wallet batch payout.json --key payout-7\necho '{\"linked\":true,\"items\":[{\"op\":\"hold\",\"from\":\"acct:alice\",\"asset\":\"ron\",\"amount_minor\":\"100\",\"expires_at\":\"2030-01-01T00:00:00Z\"},{\"op\":\"capture\",\"hold\":\"#0\",\"to\":\"acct:shop\",\"amount_minor\":\"80\"}]}' | ron wallet batch -",
    ),
    (
        "wallet reverse",
        "ron wallet reverse $TX 30 --key refund-17",
    ),
    ("wallet show", "ron wallet show $HOLD --json"),
    (
        "wallet tx",
        "ron wallet tx $TXID\nron wallet tx $TXID --json",
    ),
    (
        "wallet receipt",
        "ron wallet receipt $TXID --out order-17.receipt.json",
    ),
    (
        "revocations list",
        "ron revocations list --in-force\nron revocations list --since 2026-12-01T00:00:00Z --csv",
    ),
    (
        "revocations verify",
        "ron revocations verify\nron revocations verify --data-dir /backup/ron",
    ),
    (
        "wallet freeze",
        "ron wallet freeze acct:mallory\nron wallet freeze acct:mallory --sides both --memo 'case 9'",
    ),
    ("wallet unfreeze", "ron wallet unfreeze acct:mallory"),
    ("wallet account", "ron wallet account acct:alice"),
    (
        "wallet set-account",
        "ron wallet set-account acct:shop --class merchants\nron wallet set-account acct:shop --asset EUR --credit-limit 50000 --max-balance 1000000\nron wallet set-account acct:old --close",
    ),
    ("wallet asset", "ron wallet asset EUR"),
    (
        "wallet assets",
        "ron wallet assets\nron wallet assets --csv",
    ),
    (
        "wallet set-asset",
        "ron wallet set-asset EUR --scale 2 --title Euro",
    ),
    (
        "wallet trial-balance",
        "ron wallet trial-balance EUR\nron wallet trial-balance EUR --at 2026-12-01T00:00:00Z --csv",
    ),
    (
        "wallet history",
        "ron wallet history acct:alice --limit 50\nron wallet history acct:alice --direction in --reference order-17 --json\nron wallet history acct:alice --before 1200 --csv",
    ),
    (
        "wallet statement",
        "ron wallet statement acct:shop --asset ron --from 2026-11-01T00:00:00Z --until 2026-12-01T00:00:00Z\nron wallet statement acct:shop --asset ron --from 2026-11-01T00:00:00Z --until 2026-12-01T00:00:00Z --by effective --csv > november.csv",
    ),
    (
        "wallet accounts",
        "ron wallet accounts --prefix acct:shop\nron wallet accounts --csv",
    ),
    ("wallet holds", "ron wallet holds acct:alice --state open"),
    (
        "wallet find",
        "ron wallet find order-17\nron wallet find order-17 --json",
    ),
    (
        "wallet events",
        "ron wallet events acct:shop\nron wallet events acct:shop --after 1200 --once --json",
    ),
    (
        "wallet budget",
        "ron wallet budget\nron wallet budget --token capped.token --json",
    ),
    ("wallet webhooks", "ron wallet webhooks --csv"),
    (
        "wallet resume-webhook",
        "ron wallet resume-webhook shop\nron wallet resume-webhook shop --after 800",
    ),
    ("wallet abandon", "ron wallet abandon order-17"),
    ("wallet op", "ron wallet op order-17"),
    ("witness run", "ron witness --config witness.toml run"),
    ("witness vkey", "ron witness --config witness.toml vkey"),
    (
        "witness check-config",
        "ron witness --config witness.toml check-config",
    ),
    (
        "witness print-example",
        "ron witness print-example > witness.toml",
    ),
    (
        "rewarder verify",
        "ron rewarder verify run --unsigned   # made by compute --out\nron rewarder verify --data-dir /srv/ron   # every run there",
    ),
    ("rewarder prove", "ron rewarder prove run acct:alice"),
];

/// The complete command line, as it is parsed and documented, with examples at the end of each help
/// text.
pub fn command() -> Command {
    let all = Cli::command();
    EXAMPLES.iter().fold(all, |all, (words, examples)| {
        let path: Vec<&str> = words.split(' ').collect();
        below(all, &path, examples)
    })
}

fn below(command: Command, path: &[&'static str], examples: &str) -> Command {
    let Some((first, rest)) = path.split_first() else {
        let had = command.get_after_help().map(ToString::to_string);
        let had = had.map_or_else(String::new, |text| format!("{text}\n\n"));
        let text = format!("{had}Examples:\n  {}", examples.replace('\n', "\n  "));
        return command.after_help(text);
    };
    command.mut_subcommand(*first, |sub| below(sub, rest, examples))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every command without subcommands, with its words.
    fn leaves<'a>(command: &'a Command, words: &str, found: &mut Vec<(String, &'a Command)>) {
        let subs: Vec<&Command> = command.get_subcommands().collect();
        if subs.is_empty() {
            found.push((words.to_owned(), command));
        }
        for sub in subs {
            leaves(sub, &format!("{words} {}", sub.get_name()), found);
        }
    }

    /// Complements `documented.rs`, which checks that each example parses.
    #[test]
    fn the_help_of_every_command_has_an_example() {
        let own = command();
        let services = ron_services::SERVICES.map(|service| ron_service::command(service.table));
        let mut found = Vec::new();
        for all in services.iter().chain([&own]) {
            leaves(all, all.get_name(), &mut found);
        }
        assert!(found.len() > 80, "{}", found.len());
        let missing = found.iter().filter(|(name, command)| {
            let help = command.get_after_help().map(ToString::to_string);
            let help = help.unwrap_or_default();
            let program = name.split(' ').next().unwrap_or_default();
            let mut lines = help.split("Examples:\n").skip(1).flat_map(str::lines);
            !lines.any(|line| line.starts_with("  ") && line.contains(&format!("{program} ")))
        });
        let missing: Vec<&str> = missing.map(|(name, _)| name.as_str()).collect();
        assert!(
            missing.is_empty(),
            "add a line to EXAMPLES for: {missing:?}"
        );
    }

    /// A signature or thumbprint in base64url may begin with a hyphen and must not be parsed as an
    /// option then.
    #[test]
    fn values_in_base64url_may_begin_with_a_hyphen() {
        let own = command();
        let mut found = Vec::new();
        leaves(&own, "ron", &mut found);
        let mut seen = 0;
        for (name, command) in found {
            for arg in command.get_arguments() {
                let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
                let encoded = ["base64url", "signature as", "with this thumbprint"]
                    .iter()
                    .any(|word| help.contains(word));
                if encoded && arg.get_long().is_some() {
                    seen += 1;
                    let id = arg.get_id();
                    assert!(arg.is_allow_hyphen_values_set(), "{name} --{id}");
                }
            }
        }
        assert!(seen >= 7, "{seen}");
    }
}
