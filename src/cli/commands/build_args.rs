//! The arguments of `build`; their doc comments are its help.

use std::path::PathBuf;

use clap::{Args, Command, FromArgMatches as _, ValueEnum};

use crate::cli::commands::{
    build_cache::CacheArgs, build_embedding::EmbedArgs, build_output::OutputArgs,
    build_overrides::OverrideArgs, build_reports::ReportArgs,
};
use imgctl_base::error::{Error, Result};
use imgctl_frontend::{
    image_options::PolicyArg, mirror_options::MirrorArgs, registry_options::RegistryArgs,
};

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
  imgctl build --push -t registry.example.com/team/app:v1 --attest type=sbom .
  imgctl build -o type=registry,name=registry.example.com/team/app,push-by-digest=true .
  imgctl build -o type=oci,dest=app.tar .
  imgctl build --cache-from reg.io/app/cache --cache-to reg.io/app/cache -t app:v1 .
  imgctl build --images-report .
  imgctl build --update-lock -t app:v1 . && imgctl build --locked -t app:v1 .
  imgctl build --locked --mirror https://dl.k8s.io/=/srv/mirror/dl.k8s.io -t app:v1 .
  imgctl build --check .
  imgctl build --check --report sarif=kubefile.sarif .
  imgctl build -t app:v2 --compare app:v1 --summary summary.md --report dotenv=build.env ."
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

    /// Build for all platforms for which every base image is available
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true,
        default_value_t = false, default_missing_value = "true", hide_default_value = true,
        hide_possible_values = true, action = clap::ArgAction::Set,
        conflicts_with_all = ["platforms", "arch", "os"])]
    pub(crate) all_platforms: bool,

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
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true,
        default_value_t = false, default_missing_value = "true", hide_default_value = true,
        hide_possible_values = true, action = clap::ArgAction::Set)]
    pub(crate) no_cache: bool,

    /// Run every step of these stages without the build cache
    #[arg(long, value_name = "STAGE", value_delimiter = ',')]
    pub(crate) no_cache_filter: Vec<String>,

    #[command(flatten)]
    pub(crate) cache: CacheArgs,

    /// Layer compression
    #[arg(long, value_name = "zstd|gzip|none")]
    pub(crate) compression: Option<String>,

    /// Compression level
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub(crate) compression_level: Option<i32>,

    /// Set `created` and clamp file times to this time, in seconds since 1970 [env: SOURCE_DATE_EPOCH]
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true)]
    pub(crate) timestamp: Option<i64>,

    /// Same as --timestamp, as in buildah
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true, hide = true,
        conflicts_with_all = ["timestamp", "reproducible"])]
    pub(crate) source_date_epoch: Option<i64>,

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

    #[command(flatten)]
    pub(crate) mirror: MirrorArgs,

    /// SSH agent for RUN --mount=type=ssh: `default` or ID=SOCKET
    #[arg(long = "ssh", value_name = "SPEC")]
    pub(crate) ssh: Vec<String>,

    /// Add an entry to /etc/hosts of RUN steps (may be repeated)
    #[arg(long = "add-host", value_name = "NAME:ADDRESS")]
    pub(crate) add_hosts: Vec<String>,

    /// Pass proxy variables to RUN steps
    #[arg(long, value_name = "BOOL", default_value_t = true, action = clap::ArgAction::Set, hide = true)]
    pub(crate) http_proxy: bool,

    /// Allow RUN --security=insecure (network.host: --network host needs no more)
    #[arg(long = "allow", value_name = "security.insecure|network.host")]
    pub(crate) allow: Vec<String>,

    /// Write the image's ID to a file
    #[arg(long, value_name = "FILE")]
    pub(crate) iidfile: Option<PathBuf>,

    /// Write the digests and names of the result to a JSON file
    #[arg(long, value_name = "FILE")]
    pub(crate) metadata_file: Option<PathBuf>,

    /// Squash everything that the Kubefile adds into one layer
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true,
        default_value_t = false, default_missing_value = "true", hide_default_value = true,
        hide_possible_values = true, action = clap::ArgAction::Set)]
    pub(crate) squash: bool,

    /// Check the Kubefile without building
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true,
        default_value_t = false, default_missing_value = "true", hide_default_value = true,
        hide_possible_values = true, action = clap::ArgAction::Set)]
    pub(crate) check: bool,

    /// Answer a question about the Kubefile without building: check, outline or targets, in the form
    /// METHOD[,format=json][,ignorestatus=true]; JSON in BuildKit's form
    #[arg(long, value_name = "METHOD", conflicts_with = "check", visible_alias = "print")]
    pub(crate) call: Option<String>,

    /// Ignore file to use instead of .dockerignore
    #[arg(long, value_name = "FILE")]
    pub(crate) ignorefile: Option<PathBuf>,

    /// Number of compression threads and of steps to run in parallel [default: number of
    /// processors]
    #[arg(long, value_name = "N")]
    pub(crate) jobs: Option<usize>,

    #[command(flatten)]
    pub(crate) overrides: OverrideArgs,

    #[command(flatten)]
    pub(crate) output: OutputArgs,

    #[command(flatten)]
    pub(crate) embed: EmbedArgs,

    #[command(flatten)]
    pub(crate) reports: ReportArgs,

    #[command(flatten)]
    pub(crate) registry: RegistryArgs,
}

impl BuildArgs {
    /// Returns the arguments that the flags of a command line would give.
    pub(crate) fn of_flags(flags: &[String]) -> Result<Self> {
        Self::augment_args(Command::new("build").no_binary_name(true))
            .try_get_matches_from(flags)
            .and_then(|matches| Self::from_arg_matches(&matches))
            .map_err(|error| Error::usage(error.to_string()))
    }
}

impl BuildArgs {
    /// Returns the pull policy for base images.
    pub(crate) fn policy(&self) -> PolicyArg {
        match (self.pull, self.pull_always, self.pull_never) {
            (Some(policy), ..) => policy,
            (None, Some(true), _) => PolicyArg::Always,
            (None, _, Some(true)) => PolicyArg::Never,
            (None, ..) => PolicyArg::Missing,
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
