//! Images from registries and other locations: `imgctl pull`, `imgctl copy`, and `imgctl tags` for what
//! there is.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use imgctl_base::error::{Context as _, Error, Result};
use imgctl_base::image::Reference;
use imgctl_base::quote::quote;
use imgctl_frontend::context::Context;
use imgctl_frontend::image_options::{PlatformsArg, PolicyArg};
use imgctl_frontend::registry_options::{Concealed, RegistryArgs};
use imgctl_registry::Client;
use imgctl_transfer::transfer::engine::{CopyOptions, JOBS};
use imgctl_transfer::transfer::pull::{self, PullOptions, Pulled};
use imgctl_transfer::transfer::{copy::Copier, location::Location, plan::Selection};

/// Pull images from registries into the store
#[derive(Args, Debug)]
#[command(
    after_help = "A name without a registry is looked up as registries.conf says, otherwise on docker.io. Content
already in the store is not downloaded again, and interrupted downloads are resumed.

Examples:
  imgctl pull quay.io/coreos/etcd:v3.5.9
  imgctl pull --all-platforms registry.example.com/team/app:v1
  imgctl pull --platform linux/arm64 --unpack docker.io/library/alpine:3"
)]
pub(crate) struct PullArgs {
    /// Image names; a leading `docker://` is allowed
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,

    #[command(flatten)]
    platforms: PlatformsArg,

    /// Pull all tags of the repositories
    #[arg(short, long)]
    all_tags: bool,

    /// Unpack the layers during the download, so that the image can be mounted at once
    #[arg(long)]
    unpack: bool,

    /// Pull policy
    #[arg(long, value_enum, value_name = "POLICY", default_value = "always")]
    policy: PolicyArg,

    /// Number of blobs to download in parallel
    #[arg(long, value_name = "N", default_value_t = JOBS)]
    jobs: usize,

    #[command(flatten)]
    registry: RegistryArgs,
}

/// Pulls the images and prints their IDs.
pub(crate) fn pull(args: &PullArgs, context: &Context) -> Result<()> {
    let options = PullOptions {
        selection: Selection { platforms: args.platforms.platforms()?, keep_index: false },
        policy: args.policy.policy(),
        unpack: args.unpack,
        jobs: args.jobs,
        ..PullOptions::default()
    };
    let names = args.names.iter().map(|name| reference(name)).collect::<Result<Vec<_>>>()?;
    let store = context.store()?;
    let client = args.registry.client(context)?;
    let mut views = Vec::new();
    for name in &names {
        for name in if args.all_tags { all_tags(&client, name)? } else { vec![name.clone()] } {
            let pulled = pull::pull(store, &client, &name, &options, context.ui.reporter())?;
            show(&pulled, &mut views, context)?;
        }
    }
    if context.ui.is_json() { context.ui.json(&views) } else { Ok(()) }
}

fn show(pulled: &Pulled, views: &mut Vec<Value>, context: &Context) -> Result<()> {
    if context.ui.is_json() {
        views.push(view(pulled));
        return Ok(());
    }
    context.ui.say(&format!("{} {}", pulled.reference, pulled.descriptor.digest));
    // Like podman, print the image ID, which scripts read from stdout.
    let id = pulled.id.as_ref().unwrap_or(&pulled.descriptor.digest);
    context.ui.line(id.hex())
}

fn view(pulled: &Pulled) -> Value {
    let moved = pulled.moved;
    json!({
        "name": pulled.reference.to_string(),
        "digest": pulled.descriptor.digest,
        "mediaType": pulled.descriptor.media_type,
        "id": pulled.id,
        "blobs": { "copied": moved.copied, "existed": moved.existed },
        "bytesCopied": moved.bytes,
        "bytesReused": moved.reused,
        "bytesTotal": moved.total,
    })
}

/// Returns the image that a name refers to, as typed.
fn reference(text: &str) -> Result<Reference> {
    match Location::parse(OsStr::new(text))? {
        Location::Name(name) => Reference::parse(&name),
        Location::Registry(name) => Ok(name.on_docker_hub()),
        other => Err(Error::usage(format!("{other} is not in a registry")).hint(format!(
            "load it with `imgctl load`, or `imgctl copy {} NAME`",
            quote(&other.to_string())
        ))),
    }
}

/// Returns the images of the repository, one for each tag.
fn all_tags(client: &Client, name: &Reference) -> Result<Vec<Reference>> {
    if name.tag().is_some() || name.digest().is_some() {
        return Err(Error::usage(format!(
            "--all-tags takes a repository, but {name} is one image"
        )));
    }
    let (found, tags) = find_tags(client, name)?;
    let full = |tag: &String| Reference::parse(&format!("{}:{tag}", found.name()));
    tags.iter().map(full).collect()
}

/// Returns the tags of a repository, and its name in the registry that has it.
pub(crate) fn find_tags(client: &Client, name: &Reference) -> Result<(Reference, Vec<String>)> {
    let mut failed = None;
    for candidate in client.candidates(name)? {
        let tags = client
            .repository(&candidate)
            .and_then(|repository| repository.tags())
            .context(|| format!("cannot list the tags of {}", candidate.name()));
        match tags {
            Ok(tags) => return Ok((candidate, tags)),
            Err(error) => failed = Some(error),
        }
    }
    Err(failed.unwrap_or_else(|| {
        Error::usage(format!("{name} does not name a registry")).hint("write REGISTRY/NAME")
    }))
}

/// List the tags of a repository in a registry
#[derive(Args, Debug)]
#[command(
    visible_alias = "list-tags",
    after_help = "Examples:
  imgctl tags quay.io/coreos/etcd
  imgctl tags --json docker://registry.example.com/team/app"
)]
pub(crate) struct TagsArgs {
    /// Repository, with or without its registry
    repository: String,

    #[command(flatten)]
    registry: RegistryArgs,
}

/// Search registries for images
#[derive(Args, Debug)]
#[command(
    after_help = "`imgctl tags REPOSITORY` lists the tags of a repository; nothing searches for repositories."
)]
pub(crate) struct SearchArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    Tags(TagsArgs),
}

/// Same as `tags`.
pub(crate) fn search(args: &SearchArgs, context: &Context) -> Result<()> {
    match &args.what {
        What::Tags(args) => tags(args, context),
    }
}

/// Prints a line for each tag.
pub(crate) fn tags(args: &TagsArgs, context: &Context) -> Result<()> {
    let written = args.repository.trim_start_matches("docker://");
    let name = Reference::parse(written)?;
    if name.tag().is_some() || name.digest().is_some() {
        return Err(Error::usage(format!("{name} is one image"))
            .hint(format!("name its repository: {}", name.name())));
    }
    let name = if written == args.repository { name } else { name.on_docker_hub() };
    let (found, tags) = find_tags(&args.registry.client(context)?, &name)?;
    if context.ui.is_json() {
        return context.ui.json(&json!({ "repository": found.name(), "tags": tags }));
    }
    tags.iter().try_for_each(|tag| context.ui.line(tag))
}

/// Copy an image from one location to another
#[derive(Args, Debug)]
#[command(after_help = "Places:
  docker://NAME                    a registry
  oci:DIR[:NAME]                   an OCI image layout; existing images are kept
  oci-archive:FILE[:NAME]          a tar of an OCI image layout
  docker-archive:FILE[:NAME]       an archive as docker save writes it
  dir:DIR                          a directory as skopeo writes it
  NAME                             the store; as a source, otherwise a registry

Copying between registries stores nothing on this machine; copying within one registry sends
nothing.

Examples:
  imgctl copy docker://quay.io/coreos/etcd:v3.5.9 docker://registry.example.com/etcd:v3.5.9
  imgctl copy --dest-creds robot docker://quay.io/a/b:v1 docker://registry.example.com/a/b:v1
  imgctl copy --all-platforms docker://docker.io/library/alpine:3 oci:alpine:3
  imgctl copy etcd:v1 docker-archive:etcd.tar:etcd:v1")]
pub(crate) struct CopyArgs {
    /// Location of the image
    #[arg(value_name = "FROM")]
    from: OsString,

    /// Location to copy the image to
    #[arg(value_name = "TO")]
    to: OsString,

    #[command(flatten)]
    platforms: PlatformsArg,

    /// Fail instead of changing the image's digest
    #[arg(long)]
    preserve_digests: bool,

    /// Number of blobs to copy in parallel
    #[arg(long, value_name = "N", default_value_t = JOBS)]
    jobs: usize,

    #[command(flatten)]
    registry: RegistryArgs,

    #[command(flatten)]
    ends: EndArgs,
}

/// Options for one of the two registries (the flags of `skopeo copy`).
#[derive(Args, Debug)]
struct EndArgs {
    /// Same as --creds, for FROM only
    #[arg(long, value_name = "USER[:PASSWORD]")]
    src_creds: Option<Concealed>,

    /// Same as --creds, for TO only
    #[arg(long, value_name = "USER[:PASSWORD]")]
    dest_creds: Option<Concealed>,

    /// Same as --authfile, for FROM only
    #[arg(long, value_name = "FILE")]
    src_authfile: Option<PathBuf>,

    /// Same as --authfile, for TO only
    #[arg(long, value_name = "FILE")]
    dest_authfile: Option<PathBuf>,

    /// Same as --cert-dir, for FROM only
    #[arg(long, value_name = "DIR")]
    src_cert_dir: Option<PathBuf>,

    /// Same as --cert-dir, for TO only
    #[arg(long, value_name = "DIR")]
    dest_cert_dir: Option<PathBuf>,

    /// Same as --tls-verify, for FROM only
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    src_tls_verify: Option<bool>,

    /// Same as --tls-verify, for TO only
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    dest_tls_verify: Option<bool>,
}

impl CopyArgs {
    /// Returns the options for the registry of FROM.
    fn source(&self) -> RegistryArgs {
        let (ends, both) = (&self.ends, self.registry.clone());
        RegistryArgs {
            creds: ends.src_creds.clone().or(both.creds),
            authfile: ends.src_authfile.clone().or(both.authfile),
            cert_dir: ends.src_cert_dir.clone().or(both.cert_dir),
            tls_verify: ends.src_tls_verify.or(both.tls_verify),
            ..both
        }
    }

    /// Returns the options for the registry of TO; `None` if they are the same.
    fn destination(&self) -> Option<RegistryArgs> {
        let (ends, both) = (&self.ends, self.registry.clone());
        let passwords = [&ends.src_creds, &ends.dest_creds];
        let paths =
            [&ends.src_authfile, &ends.dest_authfile, &ends.src_cert_dir, &ends.dest_cert_dir];
        let switches = [ends.src_tls_verify, ends.dest_tls_verify];
        let differs = passwords.iter().any(|given| given.is_some())
            || paths.iter().any(|given| given.is_some())
            || switches.iter().any(Option::is_some);
        differs.then(|| RegistryArgs {
            creds: ends.dest_creds.clone().or(both.creds),
            authfile: ends.dest_authfile.clone().or(both.authfile),
            cert_dir: ends.dest_cert_dir.clone().or(both.cert_dir),
            tls_verify: ends.dest_tls_verify.or(both.tls_verify),
            ..both
        })
    }
}

/// Copies the image and prints its digest.
pub(crate) fn copy(args: &CopyArgs, context: &Context) -> Result<()> {
    let (from, to) = (Location::parse(&args.from)?, Location::parse(&args.to)?);
    let client = args.source().client(context)?;
    let other = args.destination().map(|one| one.client(context));
    let other = other.transpose()?;
    let store = context.store()?;
    let reader = Copier::reading(store, &client, context.ui.reporter());
    let writer = Copier {
        store,
        client: other.as_ref().unwrap_or(&client),
        arbiter: reader.arbiter.clone(),
        options: CopyOptions {
            selection: Selection { platforms: args.platforms.platforms()?, keep_index: false },
            jobs: args.jobs,
        },
        preserve_digests: args.preserve_digests,
        reporter: context.ui.reporter(),
    };
    // Archives are unpacked into a separate scratch directory.
    let scratch = store.scratch_directory()?;
    let source = reader.source(&from, &scratch)?;
    let copied = writer.write(&*source, &to, &scratch)?;
    if context.ui.is_json() {
        let moved = copied.moved;
        return context.ui.json(&json!({
            "from": from.to_string(),
            "to": to.to_string(),
            "digest": copied.root.digest,
            "mediaType": copied.root.media_type,
            "blobs": { "copied": moved.copied, "mounted": moved.mounted, "existed": moved.existed },
            "bytesCopied": moved.bytes,
            "bytesReused": moved.reused,
            "bytesTotal": moved.total,
        }));
    }
    context.ui.line(&copied.root.digest.to_string())
}
