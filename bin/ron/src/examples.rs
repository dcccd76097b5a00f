//! Examples for the commands that have none of their own: what `--help` and the manual pages show at their end.
//! One table, so that a missing line is seen; the tests below parse every example with the real command line.

use clap::Command;

/// Words of a command below `ron`, and its examples, one a line.
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
    ("token key", "ron token key holder.key"),
    (
        "token proof",
        "ron token proof $TOKEN --key holder.key --method POST --url http://127.0.0.1:7470/v1/transfer",
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
    ("kms rotate", "ron kms rotate $KEY --expected-head 1"),
    (
        "kms update",
        "ron kms update $KEY --rotate-every 30d --expected-head 2\nron kms update $KEY --min-verify-version 2\nron kms update $KEY --not-exportable",
    ),
    (
        "kms sign",
        "ron kms sign $KEY --file release.tar.gz\nron kms sign $KEY --message hello --context 'release 7'",
    ),
    (
        "kms verify",
        "ron kms verify $KEY --file release.tar.gz --signature $SIG\nron kms verify $KEY --message hello --signature $SIG --signature $SIG --mode pq_only",
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
        "ron wallet burn acct:alice 10 --asset ron --nonce 4",
    ),
    (
        "wallet hold",
        "ron wallet hold acct:alice 100 --asset ron --expires-in 1h",
    ),
    (
        "wallet capture",
        "ron wallet capture $HOLD acct:shop 80 --key order-18",
    ),
    ("wallet release", "ron wallet release $HOLD"),
    ("wallet show", "ron wallet show $HOLD --json"),
    ("wallet freeze", "ron wallet freeze acct:mallory"),
    ("wallet unfreeze", "ron wallet unfreeze acct:mallory"),
    (
        "wallet history",
        "ron wallet history acct:alice --after 1200 --limit 50 --json",
    ),
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
        "ron rewarder verify run\nron rewarder verify --data-dir /srv/ron   # every run there",
    ),
    ("rewarder prove", "ron rewarder prove run acct:alice"),
];

/// The same command line with the examples at the end of each help.
pub fn add(command: Command) -> Command {
    EXAMPLES.iter().fold(command, |all, (words, examples)| {
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

    const KEY: &str = "ron/app/ed25519/01890a5d-ac96-774b-bcce-b302099a8099";
    const HOLD: &str = "tx_00000000000000000000000000000001";

    /// Every command without subcommands, with its words.
    fn leaves<'a>(command: &'a Command, words: &str, found: &mut Vec<(String, &'a Command)>) {
        let mut subs = command
            .get_subcommands()
            .filter(|sub| sub.get_name() != "help")
            .peekable();
        if subs.peek().is_none() {
            found.push((words.to_owned(), command));
        }
        for sub in subs {
            leaves(sub, &format!("{words} {}", sub.get_name()), found);
        }
    }

    /// The lines under `Examples:`.
    fn examples(command: &Command) -> Vec<String> {
        let text = command.get_after_help().map(ToString::to_string);
        let text = text.unwrap_or_default();
        let lines = text.lines().skip_while(|line| *line != "Examples:").skip(1);
        lines
            .take_while(|line| line.starts_with("  "))
            .map(|line| line.trim().to_owned())
            .collect()
    }

    /// The words of a line as a shell would split it, up to a comment, a pipe or a redirection; a command in
    /// `NAME=$(...)` is taken out. Enough for the examples, which are kept that plain.
    fn words(line: &str) -> Vec<String> {
        let line = match line.split_once("=$(") {
            Some((name, inner)) if name.bytes().all(|b| b.is_ascii_uppercase()) => {
                inner.trim_end_matches(')')
            }
            _ => line,
        };
        let (mut words, mut word, mut quote, mut open) = (Vec::new(), String::new(), None, false);
        for c in line.chars().chain([' ']) {
            match (quote, c) {
                (Some(mark), _) if c == mark => quote = None,
                (None, '\'' | '"') => (quote, open) = (Some(c), true),
                (None, ' ') => {
                    let ends =
                        matches!(word.as_str(), "|" | ">" | "&" | "&&") || word.starts_with('#');
                    if ends && !open {
                        return words;
                    }
                    if open || !word.is_empty() {
                        words.push(std::mem::take(&mut word));
                    }
                    open = false;
                }
                _ => word.push(c),
            }
        }
        words
    }

    fn filled(word: String) -> String {
        match word.as_str() {
            "$KEY" => KEY.to_owned(),
            "$HOLD" => HOLD.to_owned(),
            "$TOKEN" | "$SIG" => "eyJ0".to_owned(),
            _ => word,
        }
    }

    #[test]
    fn every_command_has_examples_and_every_example_is_a_command() {
        let all = crate::command();
        let mut found = Vec::new();
        leaves(&all, "ron", &mut found);
        assert!(found.len() > 55, "{}", found.len());
        let mut faults = Vec::new();
        for (name, command) in &found {
            if !examples(command).iter().any(|line| line.contains("ron ")) {
                faults.push(format!(
                    "{name} --help shows no example: add a line to EXAMPLES"
                ));
            }
        }
        let mut groups = Vec::new();
        groups_of(&all, &mut groups);
        for command in found.iter().map(|(_, command)| *command).chain(groups) {
            for line in examples(command) {
                for part in line.split(" && ") {
                    check(part, &mut faults);
                }
            }
        }
        assert!(faults.is_empty(), "{}", faults.join("\n"));
    }

    fn groups_of<'a>(command: &'a Command, found: &mut Vec<&'a Command>) {
        for sub in command.get_subcommands() {
            if sub.has_subcommands() {
                found.push(sub);
                groups_of(sub, found);
            }
        }
    }

    /// Parses one example; other programs in it are left alone.
    fn check(line: &str, faults: &mut Vec<String>) {
        let words: Vec<String> = words(line).into_iter().map(filled).collect();
        if words.first().is_none_or(|first| first != "ron") {
            return;
        }
        if let Err(error) = crate::command().try_get_matches_from(&words) {
            faults.push(format!("{line}\n{error}"));
        }
    }

    #[test]
    fn a_line_is_split_as_a_shell_does() {
        let check = |line: &str, expected: &[&str]| assert_eq!(words(line), expected, "{line}");
        check("ron up &", &["ron", "up"]);
        check("T=$(ron token --ttl 5m)", &["ron", "token", "--ttl", "5m"]);
        check("ron x 'a b' \"\" > f", &["ron", "x", "a b", ""]);
        check("ron man | man -l -", &["ron", "man"]);
        check("ron x   # why", &["ron", "x"]);
    }
}
