//! `imgctl lock`: what a lock file has, and whether publishers say the same.

use std::path::PathBuf;

use clap::Args;
use serde_json::{Value, json};

use crate::cli::commands::keys::public;
use imgctl_base::error::{Error, Kind, Result};
use imgctl_build::build::lock_file;
use imgctl_build::build::publisher::{self, Outcome, Verdict};
use imgctl_embed::lock::{Given, LOCK_FILE, Lock};
use imgctl_frontend::context::Context;
use imgctl_frontend::mirror_options::MirrorArgs;
use imgctl_frontend::signing_options::IdentityArgs;
use imgctl_trust::verify::Trust;
use imgctl_ui::table::{Table, counted};

/// Show imgctl.lock, and verify it with the publishers' checksums
#[derive(Args, Debug)]
#[command(
    after_help = "`imgctl build --update-lock` writes the lock file. With --verify, each digest of an address is
compared with the publisher's: FILE.sha256, FILE.sha256sum or FILE.sha256.txt beside the file,
otherwise SHA256SUMS, sha256sum.txt, checksums.txt or the like in its folder. With --key or a
--certificate-identity, the bundle FILE.sigstore.json counts if it exists. An address without any
of these is shown as such; if one differs, the exit code is 10.

Examples:
  imgctl lock
  imgctl lock --verify
  imgctl lock --verify --mirror https://dl.k8s.io/=/srv/mirror/dl.k8s.io cluster/"
)]
pub(crate) struct LockArgs {
    /// Directory with the lock file
    #[arg(value_name = "DIR", default_value = ".")]
    directory: PathBuf,

    /// Lock file [default: imgctl.lock in the directory]
    #[arg(long, value_name = "FILE")]
    lock_file: Option<PathBuf>,

    /// Compare the addresses with the checksum files and signatures of their publishers
    #[arg(long)]
    verify: bool,

    #[command(flatten)]
    mirror: MirrorArgs,

    /// Public key of the publisher's signatures (may be repeated)
    #[arg(long = "key", value_name = "FILE", requires = "verify")]
    keys: Vec<PathBuf>,

    #[command(flatten)]
    identity: IdentityArgs,
}

/// Shows the lock, or what publishers say about it.
pub(crate) fn run(args: &LockArgs, context: &Context) -> Result<()> {
    let path = args.lock_file.clone().unwrap_or_else(|| args.directory.join(LOCK_FILE));
    let lock = lock_file::open(&path).map_err(|error| match error.kind() {
        Kind::NotFound => error.hint("run `imgctl build --update-lock` to create it"),
        _ => error,
    })?;
    if !args.verify {
        return show(&lock, context);
    }
    let trust = if !args.keys.is_empty() {
        let keys = args.keys.iter().map(|path| public(path)).collect::<Result<Vec<_>>>()?;
        Some(Trust::Keys(keys))
    } else if args.identity.is_given() {
        Some(Trust::Keyless(Box::new(args.identity.keyless()?)))
    } else {
        None
    };
    let verdicts = publisher::verify(&lock, &args.mirror.mirrors(context)?, trust.as_ref())?;
    let wrong = verdicts.iter().filter(|verdict| verdict.outcome.is_wrong()).count();
    if context.ui.is_json() {
        let verdicts: Vec<Value> = verdicts.iter().map(object).collect();
        context.ui.json(&json!({ "addresses": verdicts }))?;
    } else {
        let mut table = Table::new(&["ADDRESS", "RESULT"]);
        for Verdict { address, outcome, .. } in &verdicts {
            table.row(vec![address.clone(), told(outcome)]);
        }
        context.ui.print(&table.render(true))?;
    }
    if wrong == 0 {
        return Ok(());
    }
    let differ = if wrong == 1 { "differs" } else { "differ" };
    Err(Error::new(
        Kind::CheckFailed,
        format!("{} of {} {differ} from the publisher's", counted(wrong, "address"), path.display()),
    )
    .hint("find out why before anything is built with it; `imgctl build --update-lock` takes the files of now"))
}

fn told(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Same(file) => format!("as {file} says"),
        Outcome::Differs { file, stated } => format!("DIFFERS: {file} says {stated}"),
        Outcome::Signed(file) => format!("signed: {file}"),
        Outcome::NotSigned { file, error } => format!("NOT SIGNED: {file}: {error}"),
        Outcome::Unstated => "the publisher has no checksum file that imgctl knows".to_owned(),
        Outcome::Commit => "a commit, which git verifies".to_owned(),
    }
}

fn object(verdict: &Verdict) -> Value {
    let (result, file) = match &verdict.outcome {
        Outcome::Same(file) => ("same", Some(file)),
        Outcome::Differs { file, .. } => ("differs", Some(file)),
        Outcome::Signed(file) => ("signed", Some(file)),
        Outcome::NotSigned { file, .. } => ("not-signed", Some(file)),
        Outcome::Unstated => ("unstated", None),
        Outcome::Commit => ("commit", None),
    };
    json!({ "url": verdict.address, "locked": verdict.locked, "result": result, "file": file })
}

fn show(lock: &Lock, context: &Context) -> Result<()> {
    if context.ui.is_json() {
        let images = lock.images.iter().map(|(name, locked)| {
            json!({ "name": name.to_string(), "digest": locked.digest, "found": locked.found })
        });
        let charts = lock.charts.iter().map(|(file, locked)| {
            let (from, manifest) = (&locked.from, &locked.manifest);
            json!({ "file": file, "from": from, "manifest": manifest, "digest": locked.digest })
        });
        let addresses = lock.addresses.iter().map(|(url, locked)| {
            let mut object = json!({ "url": url, "platforms": locked.platforms });
            match &locked.given {
                Given::File { digest, .. } => object["digest"] = json!(digest),
                Given::Commit(commit) => object["commit"] = json!(commit),
            }
            object
        });
        return context.ui.json(&json!({
            "images": images.collect::<Vec<_>>(),
            "charts": charts.collect::<Vec<_>>(),
            "addresses": addresses.collect::<Vec<_>>(),
        }));
    }
    let mut table = Table::new(&["WHAT", "LOCKED"]);
    for (name, locked) in &lock.images {
        table.row(vec![name.to_string(), locked.digest.to_string()]);
    }
    for (file, locked) in &lock.charts {
        table.row(vec![format!("{file} ({})", locked.from), locked.digest.to_string()]);
    }
    for (url, locked) in &lock.addresses {
        table.row(vec![url.clone(), locked.given.to_string()]);
    }
    context.ui.print(&table.render(true))
}
