//! `ron rewarder bundle`: a run as plain files that any disk or web server keeps, with every payee's proof.

use std::fs;
use std::path::PathBuf;

use clap::Args;
use ron_files::{Dir, Disk as _, OsDisk};
use svc_rewarder::manifest::assets::of_each_asset;
use svc_rewarder::manifest::bundle::{Contents, write};
use svc_rewarder::manifest::dir::RUN_SIG;
use svc_rewarder::manifest::reader::Reader;

use super::import::dir_of;
use super::{ROWS, bar};

/// The page that verifies proofs in a browser, in one file.
const PAGE: &[u8] = include_bytes!("../../../../sdk/verify-page/verify.html");

/// Write a run as one directory of plain files that needs no service: manifest, signatures, inputs,
/// payout table, every payee's proof and the page that verifies it. `verify`, `prove`, `explain` and
/// `diff` read it, also from a web server. Each further asset of the run has a bundle of its own in it.
#[derive(Args)]
#[command(after_help = "Examples:\n  ron rewarder bundle run --out 2026-11\n  \
                  ron rewarder bundle run --out 2026-11 --without-usage\n  \
                  ron rewarder prove https://payouts.example/2026-11 acct:alice")]
pub struct BundleArgs {
    /// Directory of the run.
    dir: PathBuf,
    /// Directory to write, which must not exist.
    #[arg(long)]
    out: PathBuf,
    /// Leave the usage out, of which the manifest has the content id: proofs hold without it, and the
    /// run is verified and explained only by those that have it.
    #[arg(long)]
    without_usage: bool,
    /// Leave out the payees' proofs, each of which `prove` makes from the bundle.
    #[arg(long)]
    no_proofs: bool,
    /// Accept a run without a manifest signature, as `compute --out` makes it.
    #[arg(long)]
    unsigned: bool,
}

pub fn run(args: &BundleArgs) -> Result<(), String> {
    let run = Dir::os(&args.dir);
    let from = |e: &dyn std::fmt::Display| format!("run {}: {e}", args.dir.display());
    let reader = Reader::open(&run).map_err(|e| from(&e))?;
    for dir in of_each_asset(&run, &reader.manifest) {
        if !args.unsigned && !dir.exists(RUN_SIG).map_err(|e| from(&e))? {
            return Err(from(
                &"nobody has signed it, so that its proofs prove nothing to others; settle it first, or write the bundle with --unsigned",
            ));
        }
    }
    let out = &args.out;
    if out.exists() {
        return Err(format!("{} exists; name a new directory", out.display()));
    }
    let cannot = |e: std::io::Error| format!("cannot write {}: {e}", out.display());
    let out = std::path::absolute(out).map_err(cannot)?;
    let parent = dir_of(&out);
    fs::create_dir_all(&parent).map_err(cannot)?;
    // Under its name only when it is whole.
    let name = out.file_name().unwrap_or_default().to_string_lossy();
    let temp = parent.join(format!(".new.{}.{name}", std::process::id()));
    fs::create_dir(&temp).map_err(cannot)?;
    let contents = Contents {
        usage: !args.without_usage,
        proofs: !args.no_proofs,
        page: PAGE,
    };
    let bar = bar("bundle", reader.len(), ROWS);
    let written = write(&run, &Dir::os(&temp), contents, &|payees| bar.inc(payees));
    bar.finish_and_clear();
    let written = written
        .map_err(|e| from(&e))
        .and_then(|bundle| fs::rename(&temp, &out).map(|()| bundle).map_err(cannot));
    let bundle = match written {
        Ok(bundle) => bundle,
        Err(why) => {
            let _ = fs::remove_dir_all(&temp); // this process made it
            return Err(why);
        }
    };
    OsDisk.sync_dir(&parent).map_err(cannot)?;
    let bytes: u64 = bundle.files.iter().map(|file| file.bytes).sum();
    println!(
        "bundle of epoch {}: {} files of {bytes} bytes, {} proofs, {}",
        reader.manifest.epoch_id,
        bundle.files.len(),
        bundle.proofs,
        bundle.commitment
    );
    for also in &reader.manifest.also {
        let asset = &also.asset;
        println!(
            "    and a bundle of {asset} in asset-{asset}, {}",
            also.commitment
        );
    }
    Ok(())
}
