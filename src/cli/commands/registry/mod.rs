//! `imgctl registry`: the verbs that serve registries and maintain their trees.

mod copy;
mod ls;
mod serve;

use std::io::{IsTerminal, Read};
use std::path::PathBuf;

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use crate::cli::{context::Context, duration, registry_options::RegistryArgs};
use crate::ui::table::{human, one_line};
use imgctl_base::error::{Context as _, Error, IoContext, Kind, Result};
use imgctl_base::image::Reference;
use imgctl_registry::layout::{Layout, gc::GcOptions};
use imgctl_registry::server::{hash_password, set_password};
use imgctl_registry::{Target, credentials::Secret};

/// Serve registries and maintain registries on disk
#[derive(Args, Debug)]
#[command(
    after_help = "A registry on disk is the tree that docker-distribution keeps, as in the registry/ folder of a
cluster image: either program serves what the other has written.

Examples:
  imgctl registry serve /var/lib/registry
  imgctl registry ls /var/lib/registry"
)]
pub(crate) struct RegistryCommand {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    Serve(Box<serve::ServeArgs>),
    Rm(RmArgs),
    Ls(Box<ls::LsArgs>),
    Save(Box<copy::SaveArgs>),
    Sync(copy::SyncArgs),
    Copy(copy::CopyArgs),
    Passwd(PasswdArgs),
    Gc(GcArgs),
    Scrub(ScrubArgs),
}

pub(crate) fn run(command: &RegistryCommand, context: &Context) -> Result<()> {
    match &command.verb {
        Verb::Serve(args) => serve::run(args, context),
        Verb::Ls(args) => ls::run(args, context),
        Verb::Rm(args) => rm(args, context),
        Verb::Save(args) => copy::save(args, context),
        Verb::Sync(args) => copy::sync(args, context),
        Verb::Copy(args) => copy::copy(args, context),
        Verb::Passwd(args) => passwd(args, context),
        Verb::Gc(args) => gc(args, context),
        Verb::Scrub(args) => scrub(args, context),
    }
}

/// Remove images from a registry
#[derive(Args, Debug)]
#[command(
    visible_alias = "delete",
    after_help = "Removes the manifest behind a tag, and with it every tag of that manifest, as skopeo delete does;
with --tag-only, only the tag, if the registry allows that. Blobs are removed when the registry
collects garbage.

Examples:
  imgctl registry rm registry.example.com/team/app:v1
  imgctl registry rm --tag-only registry.example.com/team/app:latest"
)]
pub(crate) struct RmArgs {
    /// Image names with their registry; without a tag or digest, :latest
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,

    /// Remove only the tag, not the manifest
    #[arg(long)]
    tag_only: bool,

    #[command(flatten)]
    registry: RegistryArgs,
}

/// Removes the images one by one; stops at the first failure.
pub(crate) fn rm(args: &RmArgs, context: &Context) -> Result<()> {
    let names = args.names.iter().map(|name| full_name(name)).collect::<Result<Vec<_>>>()?;
    let client = args.registry.client(context)?;
    let mut views = Vec::new();
    for name in &names {
        let repository = client.repository(name)?;
        let target = match Target::of(name) {
            Target::Tag(tag) if !args.tag_only => {
                let found = repository.head(&Target::Tag(tag))?.ok_or_else(|| {
                    Error::not_found(format!("{name} is not in its registry"))
                        .hint(format!("run `imgctl tags {}` to list its tags", name.name()))
                })?;
                Target::Digest(found.digest)
            }
            target => target,
        };
        repository.delete(&target).context(|| format!("cannot remove {name}"))?;
        show(name, &target, &mut views, context)?;
    }
    if context.ui.is_json() { context.ui.json(&views) } else { Ok(()) }
}

fn show(
    name: &Reference,
    target: &Target,
    views: &mut Vec<Value>,
    context: &Context,
) -> Result<()> {
    let digest = match target {
        Target::Digest(digest) => Some(digest),
        Target::Tag(_) => None,
    };
    views.push(json!({ "name": name.to_string(), "digest": digest }));
    if context.ui.is_json() { Ok(()) } else { context.ui.line(&format!("Removed: {name}")) }
}

/// Returns the full name. The registry must be given: no other registry is searched.
fn full_name(text: &str) -> Result<Reference> {
    let name = Reference::parse(text.trim_start_matches("docker://"))?;
    if name.registry().is_none() {
        return Err(Error::usage(format!("{name} does not name a registry")));
    }
    Ok(name.with_default_tag())
}

/// Maximum length of a password, in bytes.
const MAX_PASSWORD: u64 = 4096;

/// Set the password of a user of a registry
#[derive(Args, Debug)]
#[command(
    after_help = "The password is read from stdin and hashed with bcrypt. Without -f, the line is printed.

Examples:
  imgctl registry passwd admin -f /etc/registry/registry_htpasswd < secret
  imgctl registry passwd admin < secret"
)]
pub(crate) struct PasswdArgs {
    /// Name of the user
    #[arg(required_unless_present = "cluster", value_name = "USER")]
    user: Option<String>,

    /// Users file; created if missing
    #[arg(
        short,
        long,
        value_name = "FILE",
        short_alias = 'p',
        visible_alias = "htpasswd-path",
        overrides_with = "file"
    )]
    file: Option<PathBuf>,

    /// Read the password from stdin (always done; for scripts)
    #[arg(long)]
    password_stdin: bool,

    /// Cluster whose registry gets another password, as in sealos
    #[arg(short, long, hide = true, value_name = "NAME")]
    cluster: Option<String>,
}

/// Writes the file, or prints the line.
pub(crate) fn passwd(args: &PasswdArgs, context: &Context) -> Result<()> {
    let (Some(user), None) = (&args.user, &args.cluster) else {
        let cluster = args.cluster.as_deref().unwrap_or_default();
        return Err(Error::usage(format!(
            "passwd does not change the registry of cluster {cluster}: its hosts and container \
             runtimes need the password as well"
        ))
        .hint(format!(
            "set registryPassword in spec.env of the Clusterfile of {cluster}, then run `imgctl apply -f \
             Clusterfile`"
        )));
    };
    let stdin = std::io::stdin();
    if stdin.is_terminal() && !args.password_stdin {
        context.ui.note("type the password and end it with Enter and Ctrl-D");
    }
    let mut text = String::new();
    stdin
        .take(MAX_PASSWORD)
        .read_to_string(&mut text)
        .doing(|| "cannot read the password".to_owned())?;
    let text = text.strip_suffix('\n').unwrap_or(&text);
    let text = text.strip_suffix('\r').unwrap_or(text);
    if text.contains('\n') {
        return Err(Error::usage("the password has several lines"));
    }
    let hash = hash_password(&Secret::new(text))?;
    match &args.file {
        Some(path) => set_password(path, user, &hash),
        None => context.ui.line(&format!("{user}:{hash}")),
    }
}

/// Remove content that no manifest needs from a registry on disk
#[derive(Args, Debug)]
#[command(
    after_help = "The registry must not be served meanwhile: imgctl detects its own server, but not that of another
program.

Examples:
  imgctl registry gc /var/lib/registry --dry-run
  imgctl registry gc /var/lib/registry --untagged"
)]
pub(crate) struct GcArgs {
    /// Directory of the registry
    #[arg(value_name = "DIR")]
    directory: PathBuf,

    /// Show what would be removed, without removing it
    #[arg(long)]
    dry_run: bool,

    /// Also remove untagged manifests, unless a remaining index or subject needs them
    #[arg(long, visible_alias = "delete-untagged")]
    untagged: bool,

    /// Keep younger content: it may belong to a push in progress
    #[arg(long, value_name = "DURATION", default_value = "1h")]
    grace: String,
}

/// Collects garbage and reports what was removed.
pub(crate) fn gc(args: &GcArgs, context: &Context) -> Result<()> {
    let layout = Layout::open(&args.directory, context.settings.sync)?;
    let options = GcOptions {
        dry_run: args.dry_run,
        untagged: args.untagged,
        grace: duration::parse(&args.grace)?,
    };
    let report = layout.gc(&options, context.ui.reporter())?;
    if context.ui.is_json() {
        let manifests: Vec<Value> = report
            .manifests
            .iter()
            .map(|(repository, digest)| json!({"repository": repository, "digest": digest}))
            .collect();
        return context.ui.json(&json!({
            "dryRun": args.dry_run,
            "manifests": manifests,
            "links": report.links,
            "uploads": report.uploads,
            "blobs": report.blobs,
            "bytes": report.bytes,
            "keptBlobs": report.kept,
        }));
    }
    for (repository, digest) in &report.manifests {
        context.ui.line(&format!("{repository}@{digest}"))?;
    }
    let verb = if args.dry_run { "would free" } else { "freed" };
    context.ui.line(&format!(
        "{verb} {}: {} manifests, {} blobs; {} blobs stay",
        human(report.bytes),
        report.manifests.len(),
        report.blobs,
        report.kept
    ))
}

/// Verify every blob, link and manifest of a registry on disk
#[derive(Args, Debug)]
#[command(
    after_help = "Changes nothing; the registry may be served meanwhile. The exit code is 10 if a problem is found.

Examples:
  imgctl registry scrub /var/lib/registry"
)]
pub(crate) struct ScrubArgs {
    /// Directory of the registry
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

pub(crate) fn scrub(args: &ScrubArgs, context: &Context) -> Result<()> {
    let layout = Layout::open(&args.directory, false)?;
    let report = layout.scrub(context.ui.reporter())?;
    let problems = report.problems.len();
    if context.ui.is_json() {
        let list: Vec<Value> = report
            .problems
            .iter()
            .map(|problem| json!({"subject": problem.subject, "detail": problem.detail}))
            .collect();
        context.ui.json(&json!({
            "blobs": report.blobs,
            "bytes": report.bytes,
            "repositories": report.repositories,
            "manifests": report.manifests,
            "tags": report.tags,
            "absentChildren": report.absent_children,
            "problems": list,
        }))?;
    } else {
        for problem in &report.problems {
            let line = format!("{}: {}", problem.subject, problem.detail);
            context.ui.line(&one_line(&line))?;
        }
        context.ui.line(&format!(
            "{} blobs ({}), {} repositories, {} manifests, {} tags: {}",
            report.blobs,
            human(report.bytes),
            report.repositories,
            report.manifests,
            report.tags,
            match problems {
                0 => "all good".to_owned(),
                1 => "1 problem".to_owned(),
                count => format!("{count} problems"),
            }
        ))?;
    }
    match problems {
        0 => Ok(()),
        count => Err(Error::new(
            Kind::CheckFailed,
            format!("{} has {count} problems", args.directory.display()),
        )
        .hint("delete what is damaged and push or copy the images named above again")),
    }
}
