//! `ron client refused`: which clients' credentials are guessed or wrong, as the running issuer has counted.

use clap::Args;
use ron_kernel::Deadline;

use crate::layout::Place;
use crate::table::{Form, Out, Table};
use crate::token::{WAIT, administered};

#[derive(Args)]
pub struct RefusedArgs {
    #[command(flatten)]
    place: Place,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub fn run(args: &RefusedArgs) -> Result<(), String> {
    let passport = administered(&args.place.layout()?)?;
    let all = passport
        .refused_clients(Deadline::within(WAIT))
        .map_err(|e| format!("svc-passport: {e}"))?;
    let form = Form::of(args.json, false);
    let mut table = Table::new(&["client", "reason", "count", "last", "from"]);
    for one in &all.refused {
        table.row([
            one.client_id.clone(),
            one.reason.clone(),
            one.count.to_string(),
            one.last.to_string(),
            one.peer.clone(),
        ]);
    }
    if all.refused.is_empty() && !args.json {
        println!("no client was refused since {}", all.since);
        return Ok(());
    }
    Out { form }.table(&all, &table)
}
