//! What a build is told: every value that the command line, the environment and the clock give.

use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::build::base_image::BaseImages;
use crate::embed::plan::Naming;
use crate::embed::search::SearchOptions;
use crate::image::{Descriptor, Digest, Platform, Reference};
use crate::layer::Compression;

/// The family of media types of the result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Format {
    #[default]
    Oci,
    Docker,
}

/// Where the build context comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ContextSource {
    /// A directory.
    Directory(PathBuf),
    /// A tar file, compressed or not.
    Archive(PathBuf),
    /// A tar, or a lone Kubefile, on standard input.
    Stdin,
}

/// A further context by name (`--build-context name=…`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NamedContext {
    Directory(PathBuf),
    /// An image of the store (`docker-image://…`, `container-image://…`).
    Image(String),
    /// An OCI layout on disk (`oci-layout://…`).
    OciLayout(PathBuf),
}

/// The network a RUN step sees.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Network {
    #[default]
    Default,
    None,
    Host,
}

/// A secret's source (`--secret id=…,src=…|env=…`). The value never leaves memory or its file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SecretSource {
    File(PathBuf),
    Value(Vec<u8>),
}

/// Everything a build is told.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) context: ContextSource,
    /// `-f`; `None` = the first of `Kubefile`, `Dockerfile`, `Containerfile` in the context; `-` = stdin.
    pub(crate) file: Option<PathBuf>,
    /// `--ignorefile`.
    pub(crate) ignore_file: Option<PathBuf>,
    pub(crate) tags: Vec<Reference>,
    /// Several make an index; empty = this machine's.
    pub(crate) platforms: Vec<Platform>,
    pub(crate) target: Option<String>,
    /// `--build-arg`, in order; a name without a value takes it from the environment (done by cli/).
    pub(crate) build_args: BTreeMap<String, String>,
    pub(crate) build_contexts: BTreeMap<String, NamedContext>,
    /// `--env K=V` added to the config; `--unsetenv K` removed from it.
    pub(crate) env: Vec<(String, String)>,
    pub(crate) unset_env: Vec<String>,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) annotations: BTreeMap<String, String>,
    /// Where images of FROM and --from come from; its client fetches embedded images too.
    pub(crate) base_images: BaseImages,
    pub(crate) no_cache: bool,
    pub(crate) compression: Compression,
    pub(crate) format: Format,
    /// Clamp for mtimes and value of `created` (`--timestamp`, `SOURCE_DATE_EPOCH`, `--reproducible`), seconds.
    pub(crate) timestamp: Option<i64>,
    /// The time of day, seconds since 1970, before the context is looked at: files that changed
    /// about then are not remembered. Nothing of it goes into the image.
    pub(crate) now: i64,
    /// All layers of the result in one, besides those of the base image (`--squash`).
    pub(crate) squash: bool,
    pub(crate) network: Network,
    /// `--allow security.insecure`: without it a RUN that asks for it is refused.
    pub(crate) allow_insecure: bool,
    pub(crate) secrets: BTreeMap<String, SecretSource>,
    /// `--ssh id[=socket]`: agent sockets by id.
    pub(crate) ssh: BTreeMap<String, PathBuf>,
    /// `--add-host name:address`.
    pub(crate) add_hosts: Vec<(String, String)>,
    /// Threads that compress and steps that run side by side.
    pub(crate) jobs: usize,
    /// This binary, for re-execution of RUN steps.
    pub(crate) executable: PathBuf,
    /// Proxy variables passed to RUN without being recorded.
    pub(crate) proxy_env: BTreeMap<String, String>,
    /// Container images in the image.
    pub(crate) embed: EmbedOptions,
}

/// What a build does with `imgctl.lock`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum LockUse {
    /// Uses its digests for the references that it knows.
    #[default]
    IfThere,
    /// Resolves everything anew and writes it (`--update-lock`).
    Update,
    /// Refuses a build that would need it changed (`--locked`).
    Insist,
}

/// How container images are embedded.
#[derive(Clone, Debug)]
pub(crate) struct EmbedOptions {
    /// `--save-image`.
    pub(crate) save: bool,
    pub(crate) search: SearchOptions,
    pub(crate) lock: LockUse,
    /// `--lock-file`; `None` = `imgctl.lock` in the context.
    pub(crate) lock_file: Option<PathBuf>,
    /// Every platform of each image (`--all`), not only those that are built for.
    pub(crate) all: bool,
    /// Images that are fetched side by side (`--max-pull-procs`), at least one.
    pub(crate) pulls: usize,
    /// `--registry-namespace`.
    pub(crate) naming: Naming,
}

impl Default for EmbedOptions {
    fn default() -> Self {
        Self {
            save: true,
            search: SearchOptions::default(),
            lock: LockUse::default(),
            lock_file: None,
            all: false,
            pulls: 5,
            naming: Naming::default(),
        }
    }
}

/// What a build gave.
#[derive(Clone, Debug)]
pub(crate) struct Built {
    /// The manifest or index.
    pub(crate) descriptor: Descriptor,
    /// Docker's image ID (config digest) of the first platform, for `--iidfile`.
    pub(crate) image_id: Digest,
    /// One manifest a platform.
    pub(crate) manifests: Vec<Descriptor>,
    pub(crate) names: Vec<Reference>,
    /// The Kubefile used, for people.
    pub(crate) file: String,
    /// Steps taken from the cache, and all steps.
    pub(crate) cached_steps: usize,
    pub(crate) steps: usize,
}
