//! Inputs of a build: all values from the command line, the environment and the clock.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

use crate::build::base_image::BaseImages;
use crate::build::checked::Checked;
use crate::build::mirrors::Mirrors;
use crate::build::turns::Turns;
use crate::cache::CacheOptions;
use crate::cache::export::Collected;
use crate::cache::import::Imported;
use imgctl_base::error::{Error, Result};
use imgctl_base::image::{Descriptor, Digest, Platform, Reference};
use imgctl_embed::plan::Naming;
use imgctl_embed::search::SearchOptions;
use imgctl_layer::Compression;
use imgctl_trust::attestation::Document;
use imgctl_trust::provenance::Invocation;

/// Family of media types of the result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    #[default]
    Oci,
    Docker,
}

/// Source of the build context.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ContextSource {
    /// A directory.
    Directory(PathBuf),
    /// A tar file, compressed or not.
    Archive(PathBuf),
    /// A tar, or a lone Kubefile, on standard input.
    Stdin,
}

/// An additional named context (`--build-context name=…`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NamedContext {
    Directory(PathBuf),
    /// An image of the store (`docker-image://…`, `container-image://…`); `scratch` is empty.
    Image(String),
    /// An OCI layout on disk (`oci-layout://…`), with `:TAG` or `@DIGEST` if it has several images.
    OciLayout(PathBuf),
}

/// The named contexts of a build. Names are compared as image names: `app`, `app:latest` and
/// `docker.io/library/app` are the same.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NamedContexts(BTreeMap<String, NamedContext>);

impl NamedContexts {
    /// Adds a context; a later one of the same name replaces it.
    pub fn insert(&mut self, name: &str, context: NamedContext) {
        self.0.insert(familiar(name), context);
    }

    /// Returns the contexts with their names.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&String, &NamedContext)> {
        self.0.iter()
    }

    /// Returns the context that `name` in FROM, `--from` or a stage's own name means.
    pub fn get(&self, name: &str) -> Option<&NamedContext> {
        if self.0.is_empty() { None } else { self.0.get(&familiar(name)) }
    }
}

/// Returns the shortest spelling of an image name, as docker shows it.
fn familiar(name: &str) -> String {
    let Ok(reference) = Reference::parse(name) else { return name.to_lowercase() };
    let full = reference.on_docker_hub().to_string();
    let short =
        ["docker.io/library/", "index.docker.io/library/", "docker.io/", "index.docker.io/"];
    let short = short.iter().find_map(|prefix| full.strip_prefix(prefix)).unwrap_or(&full);
    short.strip_suffix(":latest").unwrap_or(short).to_owned()
}

/// Network of a RUN step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Network {
    #[default]
    Default,
    None,
    Host,
}

/// Source of a secret (`--secret id=…,src=…|env=…`). The value never leaves memory or its file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SecretSource {
    File(PathBuf),
    Value(Vec<u8>),
}

/// All inputs of a build.
#[derive(Clone, Debug)]
pub struct Options {
    pub context: ContextSource,
    /// `-f`; `None` = the first of `Kubefile`, `Sealfile`, `Dockerfile`, `Containerfile` in the
    /// context; `-` = stdin.
    pub file: Option<PathBuf>,
    /// `--ignorefile`.
    pub ignore_file: Option<PathBuf>,
    pub tags: Vec<Reference>,
    /// Several platforms make an index; empty = this machine's platform.
    pub platforms: Vec<Platform>,
    /// All platforms for which every base image is available, instead of `platforms`.
    pub all_platforms: bool,
    pub target: Option<String>,
    /// `--build-arg`, in order; a name without a value takes its value from the environment (done
    /// by cli/).
    pub build_args: BTreeMap<String, String>,
    pub build_contexts: NamedContexts,
    /// `--env K=V` added to the config; `--unsetenv K` removed from it.
    pub env: Vec<(String, String)>,
    pub unset_env: Vec<String>,
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
    /// Annotations of one platform's manifest: platform, name, value.
    pub platform_annotations: Vec<(Platform, String, String)>,
    /// Source of images in FROM and --from; its client also fetches embedded images.
    pub base_images: BaseImages,
    pub no_cache: bool,
    /// Stages that run all their steps (`--no-cache-filter`).
    pub no_cache_stages: BTreeSet<String>,
    /// Caches to read and to write besides the store's (`--cache-from`, `--cache-to`).
    pub cache: CacheOptions,
    pub compression: Compression,
    pub format: Format,
    /// Upper limit of mtimes and value of `created` (`--timestamp`, `SOURCE_DATE_EPOCH`,
    /// `--reproducible`), in seconds.
    pub timestamp: Option<i64>,
    /// Current time in seconds since 1970, taken before the context is examined: the digests of
    /// files that changed around this time are not cached. The image does not depend on it.
    pub now: i64,
    /// Merges all layers into one, except for those of the base image (`--squash`).
    pub squash: bool,
    pub network: Network,
    /// `--allow security.insecure`; without it, a RUN that requests it is rejected.
    pub allow_insecure: bool,
    /// Let `RUN --network=host` use the host's network.
    pub allow_host_network: bool,
    pub secrets: BTreeMap<String, SecretSource>,
    /// Where ADD takes addresses from, if not from themselves (`--mirror`).
    pub mirrors: Mirrors,
    /// `--ssh id[=socket]`: agent sockets by id.
    pub ssh: BTreeMap<String, PathBuf>,
    /// `--add-host name:address`.
    pub add_hosts: Vec<(String, IpAddr)>,
    /// Number of compression threads.
    pub jobs: usize,
    /// Path of this binary, for re-execution in RUN steps.
    pub executable: PathBuf,
    /// Proxy variables passed to RUN without being recorded.
    pub proxy_env: BTreeMap<String, String>,
    /// Options for embedded container images.
    pub embed: EmbedOptions,
    /// Statements to make about the result.
    pub attest: Attestations,
    pub overrides: Overrides,
    /// Builds that run side by side share it, so that none executes a step that another one has executed.
    pub turns: Turns,
    /// Return what the check of the Kubefile found, in [`Built::checked`].
    pub lint: bool,
}

/// The build argument that asks for a list even of one platform's image (BuildKit).
pub(crate) const MULTI_PLATFORM: &str = "BUILDKIT_MULTI_PLATFORM";

impl Options {
    /// Returns whether the result is a list; `None` = it is if there are several images.
    pub(crate) fn is_list(&self) -> Result<Option<bool>> {
        match self.build_args.get(MULTI_PLATFORM).map(String::as_str) {
            None | Some("") => Ok(None),
            Some("1" | "t" | "T" | "true" | "TRUE" | "True") => Ok(Some(true)),
            Some("0" | "f" | "F" | "false" | "FALSE" | "False") => Ok(Some(false)),
            Some(other) => {
                Err(Error::usage(format!("the build argument {MULTI_PLATFORM} is `{other}`"))
                    .hint("set it to true or false"))
            }
        }
    }

    /// Returns the platforms to build for.
    pub(crate) fn platforms_or_own(&self) -> Cow<'_, [Platform]> {
        match self.platforms.as_slice() {
            [] => Cow::Owned(vec![Platform::host()]),
            platforms => Cow::Borrowed(platforms),
        }
    }
}

/// How a build uses `imgctl.lock`. Every build with a lock adds the addresses that it lacks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LockUse {
    /// Uses its digests for the references that it contains.
    #[default]
    IfThere,
    /// Resolves everything again and writes the file (`--update-lock`).
    Update,
    /// Rejects a build that would have to change it (`--locked`).
    Insist,
}

/// How container images are embedded.
#[derive(Clone, Debug)]
pub struct EmbedOptions {
    /// `--save-image`.
    pub save: bool,
    pub search: SearchOptions,
    pub lock: LockUse,
    /// `--lock-file`; `None` = `imgctl.lock` in the context.
    pub lock_file: Option<PathBuf>,
    /// Embeds every platform of each image (`--all`), not only the platforms of the build.
    pub all: bool,
    /// Maximum number of images to fetch concurrently (`--max-pull-procs`), at least 1.
    pub pulls: usize,
    /// `--registry-namespace`.
    pub naming: Naming,
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

/// Changes to what the Kubefile says; none by default.
#[derive(Clone, Debug, Default)]
pub struct Overrides {
    /// Image of the first FROM (`--from`).
    pub from: Option<String>,
    /// Leaves out the history (`--omit-history`).
    pub omit_history: bool,
    /// `--os-version` and `--os-feature`.
    pub os_version: Option<String>,
    pub os_features: Vec<String>,
}

/// Requested statements about the result; none by default.
#[derive(Clone, Debug, Default)]
pub struct Attestations {
    pub sbom: bool,
    pub provenance: Option<Detail>,
    /// URI of what runs the build (`builder-id`).
    pub builder: Option<String>,
    pub form: Form,
}

/// Extent of the provenance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detail {
    /// Without build arguments.
    Min,
    Max,
}

/// Where the statements go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Form {
    /// Into the index, next to the images, as BuildKit does.
    #[default]
    Index,
    /// To registries, as artifacts that refer to the images.
    Referrers,
    Both,
}

/// The documents about one platform's image.
#[derive(Clone, Debug)]
pub struct Attested {
    pub subject: Descriptor,
    pub documents: Vec<Document>,
}

impl Built {
    /// Returns whether the store has the whole image. Otherwise layers stayed in registries, and the
    /// store does not name it.
    pub fn is_stored(&self) -> bool {
        self.origins.is_empty()
    }
}

/// Numbers of steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepCounts {
    /// Steps taken from the cache.
    pub cached: usize,
    pub total: usize,
}

impl std::ops::AddAssign for StepCounts {
    fn add_assign(&mut self, other: Self) {
        self.cached += other.cached;
        self.total += other.total;
    }
}

/// Result of a build.
#[derive(Clone, Debug)]
pub struct Built {
    /// The manifest or index.
    pub descriptor: Descriptor,
    /// Docker's image ID (config digest) of the first platform, for `--iidfile`.
    pub image_id: Digest,
    /// One manifest per platform.
    pub manifests: Vec<Descriptor>,
    /// A list was asked for, however many platforms there are.
    pub(crate) is_list: bool,
    pub names: Vec<Reference>,
    /// Repositories of the layers that are not in the store, which therefore does not name the image.
    pub(crate) origins: BTreeMap<Digest, String>,
    /// The documents about each of `manifests`, if any were requested.
    pub attested: Vec<Attested>,
    /// Name of the Kubefile, for messages.
    pub file: String,
    /// The parameters of the build, for its provenance.
    pub invocation: Invocation,
    pub steps: StepCounts,
    /// What `export_cache` writes.
    pub(crate) cache: Collected,
    pub(crate) imported: Arc<Imported>,
    /// What a check of the Kubefile found, if [`Options::lint`] asks for it.
    pub checked: Option<Checked>,
}
