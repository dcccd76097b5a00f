//! Checks around every handler: the list of host names (against DNS rebinding), and the headers
//! that tell the browser to trust only this origin.

use ron_http::{Request, Response};
use ron_proto::Problem;

use super::Console;

/// No inline script or style, no foreign origin, no frames.
const CSP: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'";

/// Runs `serve` for requests under a known host name, and adds the security headers to the
/// response.
pub fn guarded<F>(console: &Console, request: &Request, serve: F) -> Response
where
    F: FnOnce(&Console, &Request) -> Result<Response, Problem>,
{
    let answer = known_host(console, request).and_then(|()| serve(console, request));
    dress(answer.into())
}

/// 403 for requests under a host name that is not listed.
pub fn known_host(console: &Console, request: &Request) -> Result<(), Problem> {
    let settings = console.settings.load();
    let host = request.header("host");
    if host.is_some_and(|host| host_allowed(host, &settings.allowed_hosts)) {
        return Ok(());
    }
    Err(Problem::forbidden(
        "this host name is not in allowed_hosts of svc-admin; add it there if it is yours",
    ))
}

/// The page adds this header to every request that is not a read. A form on another site cannot add
/// it.
pub const OWN_HEADER: &str = "x-ron-console";

/// 403 for changes that another site may have caused. A change must carry the page's own header
/// and, where a browser states the origin, come from this one; a cookie counts only together with
/// both.
pub fn own_origin(console: &Console, request: &Request) -> Result<(), Problem> {
    known_host(console, request)?;
    let refuse = |why: &str| {
        Err(Problem::new(
            403,
            "cross_site",
            "Not from the console's own page",
            why,
        ))
    };
    if request.header(OWN_HEADER).is_none() {
        return refuse("send the header X-Ron-Console with any value");
    }
    if let Some(site) = request.header("sec-fetch-site")
        && !matches!(site, "same-origin" | "none")
    {
        return refuse("the browser says that another site asked for this");
    }
    if let Some(origin) = request.header("origin") {
        let host = origin.split_once("://").map_or("", |(_, host)| host);
        if !host_allowed(host, &console.settings.load().allowed_hosts) {
            return refuse("the origin is not in allowed_hosts");
        }
    }
    Ok(())
}

pub fn dress(response: Response) -> Response {
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

/// True if the name in a `Host` header is listed; the port is ignored.
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
