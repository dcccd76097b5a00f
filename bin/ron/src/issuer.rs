//! `ron issuer migrate` moves the issuer to a database and back, `ron issuer move` to another name. `ron issuer trust` shows which policy note the issuer serves now and which services of a data
//! directory accept it. Once the operator has made sure that the note is the issuer's, it sets the
//! pins and versions by which they do.

mod migrate;
mod pins;
mod rename;

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Subcommand};
use ron_auth::{
    IssuerRecord, NoteRefused, PolicyNote, RevocationView, policy_note, read_seen, write_seen,
};
use ron_files::Dir;
use ron_http::{Call, Credential, HttpClient};
use ron_kernel::Deadline;
use ron_proto::passport::RevocationPage;
use ron_proto::strict;
use ron_tlog::note::VerifierKey;

use ron_services::NAMES;

use crate::layout::{Layout, write_atomic};
use crate::{fleet, kms, net};

const WITHIN: Duration = Duration::from_secs(10);

/// Show and pin the issuer that the services trust; move it to another name, or to a database and back.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  ron issuer trust\n  ron issuer trust --data-dir /srv/ron --yes\n  ron issuer move https://id.example.org\n  ron issuer migrate --to 'postgresql://svc_passport@10.0.0.11,10.0.0.12/ron' --rehearse"
)]
pub struct IssuerArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Show the issuer's current policy note and which services accept it; with --yes make all
    /// services accept it.
    Trust(TrustArgs),
    /// Move the issuer from files to PostgreSQL, or back: its revocations, and ids of client assertions
    /// that were used. No entry is written: proofs and checkpoints stay valid, and what was revoked stays
    /// revoked. On the way there the issuer runs until the command asks for its end; on the way back this
    /// node must not be running, and the others revoke and issue no more. One side takes revocations at a
    /// time, so an interrupted command is run again with --resume. Needs a build with the feature
    /// `postgres`.
    Migrate(migrate::IssuerMigrateArgs),
    /// Give the issuer another name, such as a public one: new tokens have it, and those with the former
    /// name are good until they expire.
    Move(rename::MoveArgs),
}

#[derive(Args)]
#[command(
    after_help = "Services trust an issuer's keys only if its policy note lists them. The note must be signed by a key that is pinned\n\
    as auth.note_vkey, and must not be older than a note they have seen; nor may the revocation log be another or a shorter\n\
    one. After a restore of the issuer, or when its note key was rotated or lost, they refuse it until an operator has confirmed it. The command asks the KMS for the key;\n\
    if the KMS is unavailable too, compare the key with a copy that you trust before you use --yes.\n\n\
    Examples:\n  ron issuer trust\n  ron issuer trust --yes\n  ron issuer trust --data-dir /srv/ron --url https://id.example.org"
)]
struct TrustArgs {
    /// Data directory, as given to `ron up`.
    #[arg(long)]
    data_dir: Option<PathBuf>,
    /// Base URL of the issuer's API, https or a Unix socket; that of the data directory when absent.
    #[arg(long)]
    url: Option<String>,
    /// Pin the keys that sign the note, and no others, in the configurations of all services, and
    /// make them accept its version.
    #[arg(long)]
    yes: bool,
}

pub fn run(args: &IssuerArgs) -> Result<(), String> {
    match &args.command {
        Command::Trust(args) => trust(args),
        Command::Migrate(args) => migrate::run(args),
        Command::Move(args) => rename::run(args),
    }
}

/// A note as it is served, with the keys that it claims to be signed with, and the whole feed.
struct Served {
    issuer: String,
    note: PolicyNote,
    feed: Vec<RevocationPage>,
}

/// A service that follows the issuer.
struct Follower {
    name: &'static str,
    file: PathBuf,
    text: String,
    data: PathBuf,
    pins: Vec<VerifierKey>,
    /// What the service has seen of the issuer; `None` if its file is damaged.
    seen: Option<IssuerRecord>,
}

fn trust(args: &TrustArgs) -> Result<(), String> {
    let layout = Layout::new(args.data_dir.as_deref())?;
    let bootstrap = layout.read_bootstrap()?;
    let (url, http) = if let Some(url) = &args.url {
        (url.trim_end_matches('/').to_owned(), net::client())
    } else {
        let issuer = fleet::reach(&layout, "svc-passport")?;
        (issuer.url, issuer.http)
    };
    // As the issuer itself, which follows its own feed: a passport cannot be had while the KMS is unavailable.
    let credential = Credential::from_file(&layout.token("svc-passport", "svc-passport"))?;
    let served = served(&http, &url, &credential, &bootstrap.issuer)?;
    println!("issuer   {}", served.issuer);
    println!("note     version {}, signed by", served.note.version);
    for key in &served.note.signers {
        println!("           {key}");
    }
    println!("keys");
    for kid in served.note.kids() {
        println!("           {kid}");
    }
    let kms = by_the_kms(args.data_dir.as_deref(), &served.note.signers);
    println!("KMS      {}", kms.clone().map_or_else(|why| why, said));
    let followers = followers(&layout, &served)?;
    if followers.is_empty() {
        return Err(format!(
            "no service of {} has auth.issuer = \"{}\"",
            layout.root.display(),
            served.issuer
        ));
    }
    println!("services");
    let mut refusing = 0;
    for follower in &followers {
        let verdict = follower.verdict(&served);
        refusing += usize::from(verdict.is_err());
        let words = match verdict {
            Err(why) => why,
            Ok(()) if follower.pins_all_of(&served) => "accepts it".to_owned(),
            Ok(()) => "accepts it; pins other keys than those that sign it".to_owned(),
        };
        let seen = match &follower.seen {
            Some(seen) => format!("has seen version {}", seen.note),
            None => "its record of what it has seen is damaged".to_owned(),
        };
        println!("  {:<13}  {words} ({seen})", follower.name);
    }
    match (args.yes, kms) {
        (true, Ok(false)) => Err(
            "the KMS does not hold all keys that signed this note; nothing was changed. Find out which server answers at the issuer's address"
                .into(),
        ),
        (true, _) => accept(&followers, &served),
        (false, _) if refusing == 0 => Ok(()),
        (false, _) => Err(format!(
            "{refusing} services do not accept this note. Once you are sure that it is the issuer's: ron issuer trust --yes"
        )),
    }
}

fn said(held: bool) -> String {
    let text = if held {
        "holds these keys"
    } else {
        "does NOT hold all of these keys"
    };
    text.to_owned()
}

/// The note served at the address; not trusted yet.
fn served(
    http: &HttpClient,
    url: &str,
    credential: &Credential,
    issuer: &str,
) -> Result<Served, String> {
    let read_as = |path: &str, header: &[(&str, &str)]| {
        let url = format!("{url}{path}");
        let call = Call {
            headers: header,
            ..Call::get(&url, Deadline::within(WITHIN))
        };
        let reply = http
            .call(call)
            .map_err(|e| format!("{url}: {e}; is the issuer running?"))?;
        if reply.status == 200 {
            String::from_utf8(reply.body).map_err(|_| format!("{url}: the response is not text"))
        } else {
            Err(format!("{url}: status {}", reply.status))
        }
    };
    let read = |path: &str| read_as(path, &[]);
    let lines = read("/v1/passport/policy/vkey")?;
    let keys = lines
        .lines()
        .map(VerifierKey::parse)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|e| format!("{url}/v1/passport/policy/vkey: {e}"))?;
    let note = PolicyNote::open(read("/v1/passport/policy")?.as_bytes(), issuer, &keys);
    let note = note.map_err(|e| match e {
        NoteRefused::NotPinned => {
            "the note is not signed by the key that is served beside it".into()
        }
        e => e.to_string(),
    })?;
    let header = credential.header().map(|value| ("Authorization", value));
    let mut feed = Vec::new();
    let mut after = 0;
    loop {
        let text = read_as(
            &format!("/v1/passport/events?after={after}"),
            header.as_slice(),
        )?;
        let page: RevocationPage = strict::from_slice(text.as_bytes())
            .map_err(|e| format!("{url}/v1/passport/events: {e}"))?;
        if page.events.is_empty() {
            break;
        }
        after = page.next;
        feed.push(page);
    }
    Ok(Served {
        issuer: issuer.to_owned(),
        note,
        feed,
    })
}

impl Served {
    /// Whether the revocations are a continuation of those that a service has seen.
    fn continues(&self, seen: &IssuerRecord) -> Result<(), String> {
        let mut view = RevocationView::through(seen.head().as_ref());
        for page in &self.feed {
            view.apply(page, false, 0).map_err(|e| e.to_string())?;
        }
        view.history().map_err(|e| e.to_string())
    }
}

/// True if the KMS holds all of these note keys; an error says why this is not known.
fn by_the_kms(data_dir: Option<&Path>, signers: &[VerifierKey]) -> Result<bool, String> {
    let unknown = |e: String| format!("cannot be asked: {e}");
    let client = kms::client(data_dir, None, None).map_err(unknown)?;
    let mut held: Vec<[u8; 32]> = Vec::new();
    for doc in kms::all_keys(&client, "purpose=note")
        .map_err(unknown)?
        .keys
    {
        let versions = kms::all_versions(&client, &doc.key).map_err(unknown)?;
        let raw = versions.iter().map(|version| version.public_key.as_slice());
        held.extend(raw.filter_map(|raw| <[u8; 32]>::try_from(raw).ok()));
    }
    Ok(signers.iter().all(|key| held.contains(key.public())))
}

/// The services of the data directory that accept this issuer's passports.
fn followers(layout: &Layout, served: &Served) -> Result<Vec<Follower>, String> {
    let mut found = Vec::new();
    for name in NAMES {
        let file = layout.config(name);
        let text = std::fs::read_to_string(&file)
            .map_err(|e| format!("cannot read {}: {e}", file.display()))?;
        let at = |why: String| format!("{}: {why}", file.display());
        if pins::issuer(&text).map_err(at)?.as_deref() != Some(served.issuer.as_str()) {
            continue;
        }
        let lines = pins::read(&text).map_err(at)?;
        // A line that cannot be parsed pins nothing.
        let pins = lines.iter().filter_map(|line| line.parse().ok()).collect();
        let data = layout.data(name);
        // A damaged file is written again with --yes.
        let seen = read_seen(&Dir::os(&data)).ok();
        let seen = seen.map(|all| all.get(&served.issuer).cloned().unwrap_or_default());
        found.push(Follower {
            name,
            file,
            text,
            data,
            pins,
            seen,
        });
    }
    Ok(found)
}

impl Follower {
    /// True if it pins exactly the keys that sign.
    fn pins_all_of(&self, served: &Served) -> bool {
        let signers = &served.note.signers;
        self.pins.len() == signers.len() && self.pins.iter().all(|pin| signers.contains(pin))
    }

    fn verdict(&self, served: &Served) -> Result<(), String> {
        let signers = &served.note.signers;
        if !self.pins.iter().any(|pin| signers.contains(pin)) {
            return Err("refuses it: it pins another key".into());
        }
        self.follows(served)
    }

    /// Whether the issuer is not older than what the service has seen of it.
    fn follows(&self, served: &Served) -> Result<(), String> {
        let Some(seen) = &self.seen else {
            return Err("refuses it: it cannot tell what it has seen".into());
        };
        if seen.note > served.note.version {
            return Err("refuses it: it has seen a newer one".into());
        }
        let continues = served.continues(seen);
        continues.map_err(|why| format!("refuses its revocations: {why}"))
    }
}

/// Pins exactly the keys that sign and lowers the versions; the services apply both with a reload.
fn accept(followers: &[Follower], served: &Served) -> Result<(), String> {
    let name = policy_note::origin(&served.issuer);
    let lines: Vec<String> = served
        .note
        .signers
        .iter()
        .filter(|key| key.name() == name)
        .map(ToString::to_string)
        .collect();
    let mut changed = false;
    for follower in followers {
        if follower.verdict(served).is_ok() && follower.pins_all_of(served) {
            continue;
        }
        changed = true;
        let pinned = pins::write(&follower.text, &lines)
            .map_err(|why| format!("{}: {why}", follower.file.display()))?;
        if pinned != follower.text {
            write_atomic(&follower.file, pinned.as_bytes(), 0o600)?;
        }
        if follower.follows(served).is_err() {
            let mut all = read_seen(&Dir::os(&follower.data)).unwrap_or_default();
            let seen = IssuerRecord {
                note: served.note.version,
                log_key: served.note.log_key.as_ref().map(ToString::to_string),
                checkpoint: None,
            };
            all.insert(served.issuer.clone(), seen);
            write_seen(&Dir::os(&follower.data), &all)?;
        }
        println!("{} pins its keys after a reload", follower.name);
    }
    if changed {
        println!("reload them now: kill -HUP, of `ron up` or of each service");
    }
    Ok(())
}
