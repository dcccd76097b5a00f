//! Accepted and refused configurations.

use super::*;
use std::path::Path;

fn load(text: &str, bound: &str) -> Result<Settings, String> {
    let show = |problems: Vec<ConfigProblem>| {
        problems
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
            .join("\n")
    };
    let bound: IpAddr = bound.parse().expect("an address");
    let text = format!(
        "bind_addr = \"{}\"\n{text}",
        std::net::SocketAddr::new(bound, 7490)
    );
    let config = Config::from_toml(&TABLE, Path::new("t.toml"), &text).map_err(show)?;
    Settings::from_config(&config).map_err(show)
}

#[test]
fn nodes_are_read() {
    let got = load(
        "[[nodes]]\nid = \"kms\"\nhealth_url = \"http://127.0.0.1:7445/\"\napi_url = \"http://127.0.0.1:7440\"\nlog_path = \"/audit/v1\"\nlog_vkey = \"k\"\n[[nodes]]\nid = \"x\"\nhealth_url = \"http://[::1]:1\"\n",
        "127.0.0.1",
    )
    .expect("valid");
    assert_eq!(got.nodes[0].health_url, "http://127.0.0.1:7445");
    assert_eq!(
        got.nodes[0].log,
        Some(LogSpec {
            base_url: "http://127.0.0.1:7440/audit/v1".into(),
            vkey: Some("k".into()),
            witnesses: Vec::new(),
        })
    );
    assert_eq!(
        (
            got.nodes[1].display_name.as_str(),
            got.nodes[1].environment.as_str()
        ),
        ("x", "dev")
    );
    assert_eq!(got.sampling.slots(), 61);
    assert!(got.allowed_hosts.contains(&"127.0.0.1".to_owned()));
}

#[test]
fn what_cannot_be_is_refused_in_words() {
    let check = |text: &str, bound: &str, words: &str| {
        let got = load(text, bound).expect_err(words);
        assert!(got.contains(words), "{words:?} in {got:?}");
    };
    let node = |id: &str, url: &str| format!("[[nodes]]\nid = \"{id}\"\nhealth_url = \"{url}\"\n");
    check(
        &(node("a", "http://h:1") + &node("a", "http://h:2")),
        "127.0.0.1",
        "two blocks with the id a",
    );
    check(
        &node("a", "ftp://h:1"),
        "127.0.0.1",
        "must start with http://",
    );
    check(&node("a", "http://u@h:1"), "127.0.0.1", "no user");
    check(&node("a/b", "http://h:1"), "127.0.0.1", "has an id");
    check(
        &(node("a", "http://h:1") + "log_path = \"/x\"\n"),
        "127.0.0.1",
        "log_path needs api_url",
    );
    check("", "0.0.0.0", "loopback only");
    check(
        &(node("a", "http://h:1") + "environment = \"prod\"\n"),
        "127.0.0.1",
        "prod node",
    );
    check("[auth]\nmode = \"passport\"\n", "0.0.0.0", "auth.issuer");
    check("[auth]\nmode = \"ingress\"\n", "0.0.0.0", "ingress.proxies");
    check(
        "[ingress]\nproxies = [\"10.0.0.0/33\"]\n",
        "127.0.0.1",
        "ingress.proxies has",
    );
    check("read_only = false\n", "127.0.0.1", "callers that are known");
    check(
        "[sampler]\nmetrics_interval = \"10s\"\nmetrics_window = \"15s\"\n",
        "127.0.0.1",
        "at least twice",
    );
    check(
        "[[nodes]]\nid = \"a\"\nhealth_url = \"http://h:1\"\ntoken = \"x\"\n",
        "127.0.0.1",
        "token",
    );
}

#[test]
fn urls_of_all_transports_are_read() {
    let check = |url: &str, want: Result<&str, &str>| {
        let got = base_url(url);
        assert_eq!(got.as_deref().map_err(|_| ""), want, "{url}");
    };
    check("http://h:1/", Ok("http://h:1"));
    check("https://h.example:1", Ok("https://h.example:1"));
    check("unix:/run/x.sock", Ok("unix:/run/x.sock"));
    check("unix:/run/x:", Ok("unix:/run/x:"));
    check(
        "http+unix://%2Frun%2Fx.sock",
        Ok("http+unix://%2Frun%2Fx.sock"),
    );
    for bad in [
        "unix:/run/x",
        "unix:x.sock",
        "ftp://h",
        "http://",
        "https:///x",
        "http://u@h",
        "http://h?q",
        "",
    ] {
        check(bad, Err(""));
    }
    let node = "[[nodes]]\nid = \"a\"\nhealth_url = \"https://h:1\"\n";
    let refused = load(node, "127.0.0.1").expect_err("nobody vouches for it");
    assert!(refused.contains("tls.peer_ca_path"), "{refused}");
    let vouched = format!("[tls]\npeer_ca_path = \"/ca.pem\"\n{node}");
    assert_eq!(
        load(&vouched, "127.0.0.1").expect("valid").nodes[0].health_url,
        "https://h:1"
    );
}
