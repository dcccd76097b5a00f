//! `ron console`: opens the console in a browser that is signed in by a code, which the console gives for a passport.

use std::time::Duration;

use clap::Args;
use ron_client::TokenAsk;
use ron_http::{Call, Reply};
use ron_kernel::Deadline;
use ron_proto::admin::SessionCode;
use ron_service::config::BaseUrl;

use crate::layout::{Layout, Place};
use crate::{browser, fleet, login, token};

/// Timeout of the call to the console.
const WAIT: Duration = Duration::from_secs(5);

/// Open the operator console in a browser, signed in.
#[derive(Args)]
#[command(
    after_help = "The browser gets a session: it ends after 30 minutes without use, after 12 hours, or when the passport is revoked.\nActions need a passport that is at most 15 minutes old, so run this again before one. With the passport of an earlier\n`ron login`, sign in with that first.\n\nExamples:\n  ron console\n  ron console --scope 'admin:view admin:operate'\n  ron console --no-browser   # prints the address, which is good for one minute and one browser"
)]
pub struct ConsoleArgs {
    #[command(flatten)]
    place: Place,
    /// Client whose credentials are in clients/<name>.json. When absent, the passport of `ron login --audience svc-admin`
    /// is used, and without one the client operator.
    #[arg(long)]
    client: Option<String>,
    /// Scopes of the session, separated by spaces; all that the policy allows when absent. With the passport of a login,
    /// the login's own.
    #[arg(long)]
    scope: Option<String>,
    /// Base URL at which browsers reach the console; that of the configuration when absent.
    #[arg(long)]
    page: Option<String>,
    /// Print the address and start no browser.
    #[arg(long)]
    no_browser: bool,
}

pub fn run(args: &ConsoleArgs) -> Result<(), String> {
    let layout = args.place.layout()?;
    let at = fleet::reach(&layout, "svc-admin")?;
    let page = match &args.page {
        Some(page) => page.clone(),
        None => page_of(&layout, &at.public_url)?,
    };
    let page = page.trim_end_matches('/');
    let ask = TokenAsk {
        audience: "svc-admin",
        scope: args.scope.as_deref(),
        // Long enough for actions, as long as they may be taken.
        ttl_s: None,
        caveats: &[],
    };
    if let (None, Some(scope)) = (&args.client, &args.scope) {
        login::check_scope(&layout, ask.audience, scope)?;
    }
    let credential = token::credential(&layout, args.client.as_deref(), &ask)?;
    let url = format!("{}/api/session/code", at.url);
    let headers = [
        ("Authorization", credential.header().unwrap_or_default()),
        ("X-Ron-Console", "1"),
    ];
    let call = Call::post_json(&url, Vec::new(), Deadline::within(WAIT)).headers(&headers);
    let reply = at.http.call(call).map_err(|e| format!("svc-admin: {e}"))?;
    let address = match reply.status {
        200 => {
            let answer: SessionCode = reply.json().map_err(|e| format!("svc-admin: {e}"))?;
            format!("{page}/#code={}", answer.code)
        }
        // Nobody signs in where the console is for this host alone, or where a proxy names its users.
        409 => format!("{page}/"),
        _ => return Err(refused(&reply)),
    };
    println!("{address}");
    if !args.no_browser {
        // The browser reads the page after this command has ended; the next one removes it.
        browser::open(&address);
    }
    Ok(())
}

fn refused(reply: &Reply) -> String {
    let why = reply
        .problem()
        .map_or_else(String::new, |problem| problem.detail);
    format!("svc-admin: refused with {}: {why}", reply.status)
}

/// The address for browsers: the public one if there is one, else that of the listener.
fn page_of(layout: &Layout, listener: &str) -> Result<String, String> {
    let config = fleet::load(layout, "svc-admin", &[])?;
    if let Some(BaseUrl(url)) = config.chassis().public_urls.first() {
        return Ok(url.clone());
    }
    if listener.starts_with("http") {
        return Ok(listener.to_owned());
    }
    Err("svc-admin has no address for browsers: set public_url in its configuration, or give --page".into())
}
