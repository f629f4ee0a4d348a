//! `imgctl registry`: the verbs that serve registries and maintain their trees.

mod cluster;
mod copy;
mod ls;
mod names;
mod password;
mod serve;

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use imgctl_base::error::{Context as _, Error, Kind, Result};
use imgctl_base::image::Reference;
use imgctl_frontend::{context::Context, duration, registry_options::RegistryArgs};
use imgctl_registry::Target;
use imgctl_registry::layout::{Layout, gc::GcOptions};
use imgctl_ui::table::{counted, human};

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
    Passwd(Box<password::PasswdArgs>),
    Gc(Box<GcArgs>),
    Scrub(ScrubArgs),
}

pub(crate) fn run(command: &RegistryCommand, context: &Context) -> Result<()> {
    match &command.verb {
        Verb::Serve(args) => serve::run(args, &names::known(&args.allow_host), context),
        Verb::Ls(args) => ls::run(args, context),
        Verb::Rm(args) => rm(args, context),
        Verb::Save(args) => copy::save(args, context),
        Verb::Sync(args) => copy::sync(args, context),
        Verb::Copy(args) => copy::copy(args, context),
        Verb::Passwd(args) => password::passwd(args, context),
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

/// Remove content that no manifest needs from a registry on disk, or what a cluster no longer needs
/// from its registry
#[derive(Args, Debug)]
#[command(
    mut_args = cluster::only_with_cluster,
    after_help = "A registry on disk must not be served meanwhile: imgctl detects its own server, but not that of
another program.

With --cluster, removes content of former images from registry hosts. Content stays that the
images of the cluster, those of its earlier releases (--keep-releases) or containers on any host
need, or that somebody else has pushed. The registries serve meanwhile, and restart one after the
other. Nothing is removed while an upload is open.

Examples:
  imgctl registry gc /var/lib/registry --dry-run
  imgctl registry gc /var/lib/registry --untagged
  imgctl registry gc --cluster prod --dry-run
  imgctl registry gc --cluster prod --keep-releases 0"
)]
pub(crate) struct GcArgs {
    /// Directory of the registry
    #[arg(value_name = "DIR", required_unless_present = "cluster")]
    directory: Option<PathBuf>,

    /// Also remove untagged manifests, unless a remaining index or subject needs them
    #[arg(long, visible_alias = "delete-untagged")]
    untagged: bool,

    /// With --cluster: number of earlier releases whose images stay
    #[arg(long, value_name = "N", requires = "cluster", default_value_t = 1)]
    keep_releases: usize,

    /// Keep younger content: it may belong to a push in progress
    #[arg(long, value_name = "DURATION", default_value = "1h")]
    grace: String,

    #[command(flatten)]
    of: cluster::OfCluster,
}

/// Collects garbage and reports what was removed.
pub(crate) fn gc(args: &GcArgs, context: &Context) -> Result<()> {
    if args.of.cluster.is_some() {
        cluster::refuse("DIR", args.directory.is_some())?;
        cluster::refuse("--untagged", args.untagged)?;
        let grace = duration::parse(&args.grace)?;
        return cluster::gc(&args.of, args.keep_releases, grace, context);
    }
    let directory = args.directory.as_deref().unwrap_or(Path::new(""));
    let dry_run = args.of.is_dry_run();
    let layout = Layout::open(directory, context.settings.sync)?;
    let options =
        GcOptions { dry_run, untagged: args.untagged, grace: duration::parse(&args.grace)? };
    let report = layout.gc(&options, context.ui.reporter())?;
    if context.ui.is_json() {
        let manifests: Vec<Value> = report
            .manifests
            .iter()
            .map(|(repository, digest)| json!({"repository": repository, "digest": digest}))
            .collect();
        return context.ui.json(&json!({
            "dryRun": dry_run,
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
    let verb = if dry_run { "would free" } else { "freed" };
    context.ui.line(&format!(
        "{verb} {}: {}, {}; {} kept",
        human(report.bytes),
        counted(report.manifests.len(), "manifest"),
        counted(report.blobs, "blob"),
        counted(report.kept, "blob")
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
            context.ui.line(&line)?;
        }
        context.ui.line(&format!(
            "{} ({}), {}, {}, {}: {}",
            counted(report.blobs, "blob"),
            human(report.bytes),
            counted(report.repositories, "repository"),
            counted(report.manifests, "manifest"),
            counted(report.tags, "tag"),
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
