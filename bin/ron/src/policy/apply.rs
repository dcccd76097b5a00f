//! `ron policy apply`: signs a changed policy and puts it in force: shows what changes, has it signed, writes it where the
//! service reads it, has it read, and waits until the service says that it acts by it.

use std::path::PathBuf;

use clap::Args;
use ron_http::Call;
use ron_kernel::Deadline;
use ron_proto::passport::IssuerPolicy;
use ron_proto::rewarder::{POLICY_KIND, PolicyId};
use ron_service::kept_policy::Versioned as _;
use ron_service::signed_policy::policy_paths;
use serde_json::Value;

use super::read_checked;
use crate::in_force::{deadline, is_reloaded, wait};
use crate::layout::{Layout, Place};
use crate::rewarder::remote::{Remote, failed};
use crate::{change, fleet};

/// Members by which the entries of a list are told apart.
const NAMES: [&str; 5] = ["client_id", "audience", "issuer", "principal", "id"];

/// Versions that a new policy may leave out: a version only grows, so a very high one would be the last.
const VERSIONS_SKIPPED_MAX: u64 = 1_000_000;

#[derive(Args)]
pub struct ApplyArgs {
    #[command(flatten)]
    place: Place,
    /// Kind of the policy: the service that it is for.
    #[arg(long, default_value = "issuer", value_parser = ["issuer", "wallet", "reward"])]
    kind: String,
    /// Show what would change, and change nothing.
    #[arg(long)]
    dry_run: bool,
    /// File with the changed policy, signed or not. Its version is raised to the next one if it is not higher already.
    file: PathBuf,
}

pub fn run(args: &ApplyArgs) -> Result<(), String> {
    let layout = args.place.layout()?;
    let before = change::load::<Value>(&layout, &args.kind)?.policy;
    let mut after = read_checked(&args.kind, &args.file)?;
    if args.kind == POLICY_KIND && before["id"] != after["id"] {
        return Err(format!(
            "reward.json is the policy {}; sign another one with `ron policy sign` and put it beside it as reward-*.json",
            before["id"]
        ));
    }
    let version = |policy: &Value| policy["version"].as_u64().unwrap_or_default();
    let (now, drafted) = (version(&before), version(&after));
    // The version is no change of its own.
    after["version"] = now.into();
    let lines = changes(&before, &after);
    if lines.is_empty() {
        println!("version {now} in force says the same; nothing is changed");
        return Ok(());
    }
    for line in &lines {
        println!("{line}");
    }
    if drafted < now {
        return Err(format!(
            "the file is version {drafted}, and {now} is in force: what was changed since would be undone; begin with \
             `ron policy show --kind {}`, or set the file's version to {now}",
            args.kind
        ));
    }
    if drafted > now + VERSIONS_SKIPPED_MAX {
        return Err(format!(
            "the file is version {drafted}, and {now} is in force: no version could follow for long"
        ));
    }
    if args.dry_run {
        return Ok(());
    }
    let next = drafted.max(now + 1);
    after["version"] = next.into();
    let (bytes, sig) = change::sign_here(&layout, &args.kind, &after)?;
    let (path, _) = policy_paths(&layout.policy(), &args.kind);
    change::write_signed(&path, &bytes, &sig)?;
    println!("signed version {next} of the {} policy", args.kind);
    in_force(&layout, &args.kind, &after)
}

/// Has a running `ron up` read the policy, and waits until every service that decides by it says so.
fn in_force(layout: &Layout, kind: &str, after: &Value) -> Result<(), String> {
    let version = after["version"].as_u64().unwrap_or_default();
    if !is_reloaded(layout, services(kind))? {
        return Ok(());
    }
    let until = deadline();
    for name in services(kind) {
        let is_so = |by| {
            let shown = match kind {
                POLICY_KIND => newest_reward(layout, &after["id"], by)?,
                _ => shown(layout, name, kind, by)?,
            };
            Ok(shown >= Some(version))
        };
        if !wait(layout, until, is_so)? {
            return Err(format!(
                "version {version} is written, but {name} does not act by it yet; `ron doctor` says why"
            ));
        }
        println!("version {version} is in force in {name}");
    }
    Ok(())
}

/// The services that decide by a kind of policy, the first to have it first.
fn services(kind: &str) -> &'static [&'static str] {
    match kind {
        IssuerPolicy::KIND => &["ron-kms", "svc-passport"],
        POLICY_KIND => &["svc-rewarder"],
        _ => &["svc-wallet"],
    }
}

/// The version that a service shows; `None` while it shows none.
fn shown(
    layout: &Layout,
    service: &str,
    kind: &str,
    deadline: Deadline,
) -> Result<Option<u64>, String> {
    let at = fleet::reach_health(layout, service)?;
    let url = format!("{}/metrics", at.url);
    let Ok(reply) = at.http.call(Call::get(&url, deadline)) else {
        return Ok(None);
    };
    let text = String::from_utf8_lossy(&reply.body);
    let series = format!(
        "{}_policy_version{{kind=\"{kind}\"}} ",
        service.replace('-', "_")
    );
    let value = text.lines().find_map(|line| line.strip_prefix(&*series));
    Ok(value.and_then(|value| value.trim().parse().ok()))
}

/// The newest version of a reward policy that svc-rewarder would compute by; it reads the directory for every request.
fn newest_reward(layout: &Layout, id: &Value, deadline: Deadline) -> Result<Option<u64>, String> {
    let id: PolicyId = serde_json::from_value(id.clone()).map_err(|e| e.to_string())?;
    let remote = Remote::connect(Some(&layout.root))?;
    let newest = remote.client.policy(&id, deadline).map_err(failed)?;
    Ok(newest.policy["version"].as_u64())
}

/// What differs, one line each: `+` is new, `-` is gone, `~` has another value.
fn changes(before: &Value, after: &Value) -> Vec<String> {
    let mut lines = Vec::new();
    compare("", before, after, &mut lines);
    lines
}

fn compare(path: &str, before: &Value, after: &Value, lines: &mut Vec<String>) {
    match (before, after) {
        _ if before == after => {}
        (Value::Object(old), Value::Object(new)) => {
            let dot = if path.is_empty() { "" } else { "." };
            for (name, value) in old {
                let path = format!("{path}{dot}{name}");
                match new.get(name) {
                    Some(other) => compare(&path, value, other, lines),
                    None => lines.push(format!("- {path}: {value}")),
                }
            }
            for (name, value) in new.iter().filter(|(name, _)| !old.contains_key(*name)) {
                lines.push(format!("+ {path}{dot}{name}: {value}"));
            }
        }
        (Value::Array(old), Value::Array(new)) => {
            let (old_names, new_names) = (labels(old), labels(new));
            for (name, value) in old_names.iter().zip(old) {
                match new_names.iter().position(|other| other == name) {
                    Some(at) => compare(&format!("{path}[{name}]"), value, &new[at], lines),
                    None => lines.push(format!("- {path}[{name}]: {value}")),
                }
            }
            for (name, value) in new_names.iter().zip(new) {
                if !old_names.contains(name) {
                    lines.push(format!("+ {path}[{name}]: {value}"));
                }
            }
            let kept = |list: &[String], other: &[String]| -> Vec<String> {
                let both = list.iter().filter(|name| other.contains(name));
                both.cloned().collect()
            };
            if kept(&old_names, &new_names) != kept(&new_names, &old_names) {
                lines.push(format!("~ {path}: in another order"));
            }
        }
        _ => lines.push(format!("~ {path}: {before} -> {after}")),
    }
}

/// The names of a list's entries, each once.
fn labels(list: &[Value]) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for value in list {
        let name = label(value);
        let again = (2..).map(|n| format!("{name} {n}"));
        let free = std::iter::once(name.clone()).chain(again);
        names.extend(free.into_iter().find(|name| !names.contains(name)));
    }
    names
}

/// The name of a list's entry: that of an object with a name, or the value itself.
fn label(value: &Value) -> String {
    let mut named = NAMES.iter().filter_map(|name| value.get(name)?.as_str());
    match (named.next(), value) {
        (Some(name), _) => name.to_owned(),
        (None, Value::String(text)) => text.clone(),
        (None, _) => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn changes_are_told_entry_by_entry() {
        let before = json!({"version": 1, "clients": [
            {"client_id": "a", "max_ttl_s": 600, "audiences": [{"audience": "x", "scopes": ["r", "w"]}]},
            {"client_id": "b"}, {"client_id": "c"}]});
        let mut after = before.clone();
        assert_eq!(changes(&before, &after), [] as [String; 0]);
        after["clients"][0]["max_ttl_s"] = 900.into();
        after["clients"][0]["audiences"][0]["scopes"] = json!(["r", "d"]);
        after["clients"][0]["exchange"] = true.into();
        after["clients"][1]["client_id"] = "d".into();
        assert_eq!(
            changes(&before, &after),
            [
                "- clients[a].audiences[x].scopes[w]: \"w\"",
                "+ clients[a].audiences[x].scopes[d]: \"d\"",
                "~ clients[a].max_ttl_s: 600 -> 900",
                "+ clients[a].exchange: true",
                "- clients[b]: {\"client_id\":\"b\"}",
                "+ clients[d]: {\"client_id\":\"d\"}",
            ]
        );
        let mut swapped = before.clone();
        swapped["clients"].as_array_mut().unwrap().swap(1, 2);
        assert_eq!(changes(&before, &swapped), ["~ clients: in another order"]);
        let rules = |second: u32| json!({"rules": [{"principal": "p", "n": 1}, {"principal": "p", "n": second}]});
        assert_eq!(changes(&rules(2), &rules(3)), ["~ rules[p 2].n: 2 -> 3"]);
    }
}
