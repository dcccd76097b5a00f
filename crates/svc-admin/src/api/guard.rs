//! What stands around every handler: the list of host names (against DNS rebinding) and the headers that tell the
//! browser to trust nothing but this origin.

use ron_http::{Request, Response};
use ron_proto::Problem;

use super::Console;

/// No inline script or style, no foreign origin, no frames.
const CSP: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'";

/// Runs `serve` for callers that came under a known host name, and dresses the answer.
pub fn guarded<F>(console: &Console, request: &Request, serve: F) -> Response
where
    F: FnOnce(&Console, &Request) -> Result<Response, Problem>,
{
    let allowed = request
        .header("host")
        .is_some_and(|host| host_allowed(host, &console.settings.allowed_hosts));
    let answer = if allowed {
        serve(console, request)
    } else {
        Err(Problem::forbidden(
            "this host name is not in allowed_hosts of svc-admin; add it there if it is yours",
        ))
    };
    dress(answer.into())
}

fn dress(response: Response) -> Response {
    response
        .header("content-security-policy", CSP)
        .header("referrer-policy", "no-referrer")
        .header("cross-origin-opener-policy", "same-origin")
        .header("cross-origin-resource-policy", "same-origin")
        .header(
            "permissions-policy",
            "camera=(), geolocation=(), microphone=()",
        )
}

/// True when the name in a `Host` header is listed; the port does not matter.
fn host_allowed(host: &str, allowed: &[String]) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split_once(']').map_or(rest, |(name, _)| name),
        None => host.split_once(':').map_or(host, |(name, _)| name),
    };
    let name = name.trim_end_matches('.').to_ascii_lowercase();
    allowed.contains(&name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_matched_by_name() {
        let allowed: Vec<String> = ["localhost", "127.0.0.1", "::1", "console.example"]
            .map(str::to_owned)
            .into();
        let check =
            |host: &str, want: bool| assert_eq!(host_allowed(host, &allowed), want, "{host}");
        check("localhost:7490", true);
        check("LOCALHOST", true);
        check("127.0.0.1:1", true);
        check("[::1]:7490", true);
        check("console.example.", true);
        check("evil.example", false);
        check("localhost.evil.example:7490", false);
        check("127.0.0.1.evil.example", false);
        check("", false);
        check("[::1", true);
        check("[", false);
    }

    #[test]
    fn the_policy_allows_this_origin_only() {
        let response = dress(Response::empty(200));
        let csp = response.get("content-security-policy").expect("set");
        assert!(
            csp.starts_with("default-src 'none'")
                && !csp.contains("unsafe")
                && !csp.contains("http")
        );
    }
}
