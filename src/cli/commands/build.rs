//! `imgctl build`.

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use serde_json::json;

use crate::cli::commands::build_embedding::{self, EmbedArgs};
use crate::cli::commands::build_options;
use crate::cli::context::Context;
use crate::cli::pull_options::PolicyArg;
use crate::cli::registry_options::RegistryArgs;
use imgctl_base::error::{Error, IoContext, Kind, Result};
use imgctl_base::image::Digest;
use imgctl_build::build::{self, Built};
use imgctl_transfer::transfer::pull::Policy;
use imgctl_transfer::trust::provenance::{self, Invocation};
use imgctl_transfer::trust::sbom::{self, SbomOptions};

/// Build an image from a Kubefile
#[derive(Args, Debug)]
#[command(
    visible_alias = "bud",
    alias = "build-using-dockerfile",
    after_help = "Without -f, the first of Kubefile, Dockerfile and Containerfile in the context is used.

Examples:
  imgctl build -t etcd:v1 .
  imgctl build -f Kubefile -t app:v1 --build-arg VERSION=1.2 --platform linux/amd64,linux/arm64 .
  tar c . | imgctl build -t app:v1 -
  imgctl build --images-report .
  imgctl build --update-lock -t app:v1 . && imgctl build --locked -t app:v1 .
  imgctl build --check ."
)]
pub(crate) struct BuildArgs {
    /// Build context: directory, tar file, or `-` for a tar or Kubefile on stdin
    #[arg(default_value = ".")]
    pub(crate) context: PathBuf,

    /// Kubefile, relative to the working directory or otherwise to the context; `-` is stdin
    #[arg(short, long)]
    pub(crate) file: Option<PathBuf>,

    /// Name of the result (may be repeated)
    #[arg(short, long = "tag", value_name = "NAME")]
    pub(crate) tags: Vec<String>,

    /// Set an ARG; a name alone takes its value from the environment (may be repeated)
    #[arg(long = "build-arg", value_name = "NAME[=VALUE]")]
    pub(crate) build_args: Vec<String>,

    /// Additional context for FROM and --from: a directory, docker-image://… or oci-layout://…
    #[arg(long = "build-context", value_name = "NAME=SOURCE")]
    pub(crate) build_contexts: Vec<String>,

    /// Add an environment variable to the image (may be repeated)
    #[arg(long, value_name = "NAME[=VALUE]")]
    pub(crate) env: Vec<String>,

    /// Remove an environment variable from the image (may be repeated)
    #[arg(long, value_name = "NAME")]
    pub(crate) unsetenv: Vec<String>,

    /// Add a label (may be repeated)
    #[arg(long = "label", value_name = "NAME=VALUE")]
    pub(crate) labels: Vec<String>,

    /// Add an annotation to the manifest (may be repeated)
    #[arg(long = "annotation", value_name = "NAME=VALUE")]
    pub(crate) annotations: Vec<String>,

    /// Platforms to build for; more than one produces an index
    #[arg(long = "platform", value_name = "OS/ARCH", value_delimiter = ',')]
    pub(crate) platforms: Vec<String>,

    /// Architecture to build for (short for --platform linux/ARCH)
    #[arg(long, conflicts_with = "platforms", hide = true)]
    pub(crate) arch: Option<String>,

    /// Operating system to build for
    #[arg(long, conflicts_with = "platforms", hide = true)]
    pub(crate) os: Option<String>,

    /// Variant of the architecture to build for
    #[arg(long, requires = "arch", hide = true)]
    pub(crate) variant: Option<String>,

    /// Stop after this stage
    #[arg(long, value_name = "STAGE")]
    pub(crate) target: Option<String>,

    /// Pull policy for the images of FROM and --from
    #[arg(long, value_name = "missing|always|newer|never", num_args = 0..=1,
          require_equals = true, default_missing_value = "always")]
    pub(crate) pull: Option<PolicyArg>,

    /// Same as --pull=always
    #[arg(long, hide = true, conflicts_with_all = ["pull", "pull_never"], num_args = 0..=1,
          require_equals = true, default_missing_value = "true", value_name = "BOOL")]
    pub(crate) pull_always: Option<bool>,

    /// Same as --pull=never
    #[arg(long, hide = true, conflicts_with = "pull", num_args = 0..=1,
          require_equals = true, default_missing_value = "true", value_name = "BOOL")]
    pub(crate) pull_never: Option<bool>,

    /// Run every step without the build cache
    #[arg(long)]
    pub(crate) no_cache: bool,

    /// Layer compression
    #[arg(long, value_name = "zstd|gzip|none")]
    pub(crate) compression: Option<String>,

    /// Compression level
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub(crate) compression_level: Option<i32>,

    /// Set `created` and clamp file times to this time, in seconds since 1970 [env: SOURCE_DATE_EPOCH]
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true)]
    pub(crate) timestamp: Option<i64>,

    /// Same as --timestamp, with the time of the context's git commit
    #[arg(long, conflicts_with = "timestamp")]
    pub(crate) reproducible: bool,

    /// Family of media types for the image
    #[arg(long, value_enum, value_name = "FORMAT")]
    pub(crate) format: Option<Format>,

    /// Network mode for RUN steps
    #[arg(long, value_name = "none|host|default")]
    pub(crate) network: Option<String>,

    /// Secret for RUN --mount=type=secret: id=NAME,src=FILE or id=NAME,env=VARIABLE
    #[arg(long = "secret", value_name = "SPEC")]
    pub(crate) secrets: Vec<String>,

    /// SSH agent for RUN --mount=type=ssh: `default` or ID=SOCKET
    #[arg(long = "ssh", value_name = "SPEC")]
    pub(crate) ssh: Vec<String>,

    /// Add an entry to /etc/hosts of RUN steps (may be repeated)
    #[arg(long = "add-host", value_name = "NAME:ADDRESS")]
    pub(crate) add_hosts: Vec<String>,

    /// Pass proxy variables to RUN steps
    #[arg(long, value_name = "BOOL", default_value_t = true, action = clap::ArgAction::Set, hide = true)]
    pub(crate) http_proxy: bool,

    /// Allow RUN --security=insecure
    #[arg(long = "allow", value_name = "security.insecure")]
    pub(crate) allow: Vec<String>,

    /// Write the image's ID to a file
    #[arg(long, value_name = "FILE")]
    pub(crate) iidfile: Option<PathBuf>,

    /// Write the digests and names of the result to a JSON file
    #[arg(long, value_name = "FILE")]
    pub(crate) metadata_file: Option<PathBuf>,

    /// Write SLSA provenance of the image to a file, as an in-toto statement
    #[arg(long, value_name = "FILE")]
    pub(crate) provenance: Option<PathBuf>,

    /// Write an SPDX SBOM of the image to a file
    #[arg(long, value_name = "FILE", conflicts_with_all = ["check", "images_report"])]
    pub(crate) sbom: Option<PathBuf>,

    /// Squash everything that the Kubefile adds into one layer
    #[arg(long)]
    pub(crate) squash: bool,

    /// Check the Kubefile without building
    #[arg(long)]
    pub(crate) check: bool,

    /// Ignore file to use instead of .dockerignore
    #[arg(long, value_name = "FILE")]
    pub(crate) ignorefile: Option<PathBuf>,

    /// Number of compression threads and of steps to run in parallel [default: number of
    /// processors]
    #[arg(long, value_name = "N")]
    pub(crate) jobs: Option<usize>,

    #[command(flatten)]
    pub(crate) embed: EmbedArgs,

    #[command(flatten)]
    pub(crate) registry: RegistryArgs,
}

impl BuildArgs {
    /// Returns the pull policy for base images.
    pub(crate) fn policy(&self) -> Policy {
        match (self.pull, self.pull_always, self.pull_never) {
            (Some(policy), ..) => policy.policy(),
            (None, Some(true), _) => Policy::Always,
            (None, _, Some(true)) => Policy::Never,
            (None, ..) => Policy::Missing,
        }
    }
}

/// Family of media types.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    Oci,
    #[value(alias = "v2s2")]
    Docker,
}

/// Builds the image, or checks the Kubefile.
pub(crate) fn run(args: &BuildArgs, context: &Context) -> Result<()> {
    let options = build_options::resolve(args, context)?;
    if args.check {
        return check(&options, context);
    }
    if args.embed.images_report {
        let report = build::embedding::report(context.store()?, &options, context.ui.reporter())?;
        return build_embedding::show(&report, context);
    }
    if args.sbom.is_some() && options.platforms.len() > 1 {
        return Err(Error::usage(
            "--sbom supports only one platform, as each has its own contents",
        )
        .hint("run `imgctl sbom --platform` on the built image"));
    }
    let built = build::build(context.store()?, &options, context.ui.reporter())?;
    if let Some(path) = &args.iidfile {
        write(path, &built.image_id.to_string())?;
    }
    if let Some(path) = &args.metadata_file {
        let text = serde_json::to_string_pretty(&metadata(&built))
            .map_err(|error| Error::failed("cannot write the metadata").caused_by(error))?;
        write(path, &format!("{text}\n"))?;
    }
    if let Some(path) = &args.provenance {
        let invocation = Invocation {
            file_digest: kubefile_digest(args, &built.file),
            file: built.file.clone(),
            build_args: options.build_args.clone(),
            target: options.target.clone(),
        };
        let store = context.store()?;
        let text = provenance::statement(store, &built.descriptor, &built.names, &invocation)?;
        std::fs::write(path, text).path("write", path)?;
    }
    if let Some(path) = &args.sbom {
        write_sbom(path, &built, context)?;
    }
    if context.ui.is_json() {
        return context.ui.json(&json!({
            "id": built.image_id,
            "digest": built.descriptor.digest,
            "mediaType": built.descriptor.media_type,
            "size": built.descriptor.size,
            "names": names(&built),
            "manifests": built.manifests,
            "file": built.file,
            "steps": built.steps,
            "cachedSteps": built.cached_steps,
        }));
    }
    for name in names(&built) {
        context.ui.say(&format!("named {name}"));
    }
    // Scripts written for buildah expect the image ID on the last line of stdout.
    context.ui.line(built.image_id.hex())
}

/// Writes the same document as `imgctl sbom`.
fn write_sbom(path: &Path, built: &Built, context: &Context) -> Result<()> {
    let store = context.store()?;
    let mut image = store.image_at(&built.descriptor, None)?;
    image.reference = built.names.first().cloned();
    let options = SbomOptions { files: true, timestamp: None };
    let text = sbom::document(store, &image, &options, context.ui.reporter())?;
    std::fs::write(path, text).path("write", path)
}

/// Returns the digest of the Kubefile if it is a file that can be read again.
fn kubefile_digest(args: &BuildArgs, name: &str) -> Option<Digest> {
    let here = args.file.as_ref().map(|_| PathBuf::from(name));
    here.into_iter()
        .chain([args.context.join(name)])
        .find_map(|path| std::fs::read(path).ok())
        .map(|bytes| Digest::of(&bytes))
}

fn check(options: &build::Options, context: &Context) -> Result<()> {
    let colour = context.ui.colours_stdout();
    let (findings, is_bad) = build::check(context.store()?, options, colour)?;
    context.ui.print(&findings)?;
    if is_bad {
        return Err(Error::new(Kind::CheckFailed, "the Kubefile has errors"));
    }
    Ok(())
}

fn names(built: &Built) -> Vec<String> {
    built.names.iter().map(ToString::to_string).collect()
}

/// Returns the members that BuildKit writes, for scripts that look them up.
fn metadata(built: &Built) -> serde_json::Value {
    json!({
        "containerimage.config.digest": built.image_id,
        "containerimage.descriptor": built.descriptor,
        "containerimage.digest": built.descriptor.digest,
        "image.name": names(built).join(","),
    })
}

fn write(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text).path("write", path)
}
