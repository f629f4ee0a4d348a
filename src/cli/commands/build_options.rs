//! The arguments of `build`, converted, with the environment, into the builder's options.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::cli::commands::build_args::{BuildArgs, Format};
use crate::cli::commands::build_hosts;
use imgctl_base::error::{Error, IoContext, Result};
use imgctl_base::image::Platform;
use imgctl_build::build::options::{
    Attestations, ContextSource, NamedContext, NamedContexts, Network, SecretSource,
};
use imgctl_build::build::{BaseImages, Format as BuildFormat, Options, Turns, commit_time};
use imgctl_frontend::image_options::{parsed, platform_of};
use imgctl_frontend::names::{given, pairs, pairs_or_environment, references, split};
use imgctl_frontend::{context::Context, environment::Environment};
use imgctl_layer::Compression;

/// Resolves every value that a build depends on.
pub(crate) fn resolve(args: &BuildArgs, context: &Context) -> Result<Options> {
    let environment = &context.environment;
    let format = format(args, environment)?;
    let annotations = Annotations::parse(&args.annotations)?;
    let (allow_insecure, allow_host_network) = allowed(&args.allow)?;
    Ok(Options {
        context: source(&args.context)?,
        file: args.file.clone(),
        ignore_file: args.ignorefile.clone(),
        tags: references(&args.tags)?,
        platforms: platforms(args)?,
        all_platforms: args.all_platforms,
        target: args.target.clone().filter(|target| !target.is_empty()),
        build_args: args.overrides.arguments(&args.build_args, environment)?,
        build_contexts: build_contexts(&args.build_contexts)?,
        env: pairs_or_environment(&args.env, "--env", environment)?,
        unset_env: args.unsetenv.clone(),
        labels: pairs(&args.labels, "--label")?,
        annotations: annotations.all,
        platform_annotations: annotations.of_platforms,
        base_images: BaseImages::new(args.registry.client(context)?, args.policy().policy()),
        no_cache: args.no_cache,
        no_cache_stages: args.no_cache_filter.iter().map(|name| name.to_lowercase()).collect(),
        cache: args.cache.options(context)?,
        compression: compression(args, format)?,
        format,
        timestamp: timestamp(args, environment)?,
        now: jiff::Timestamp::now().as_second(),
        squash: args.squash,
        network: network(args.network.as_deref())?,
        allow_insecure,
        allow_host_network,
        secrets: secrets(&args.secrets, environment)?,
        mirrors: args.mirror.mirrors(context)?,
        ssh: ssh(&args.ssh, environment)?,
        add_hosts: build_hosts::parse(&args.add_hosts, args.network.as_deref() == Some("host"))?,
        jobs: jobs(args.jobs)?,
        // Only RUN needs the executable: without /proc, everything else must still build.
        executable: std::env::current_exe().unwrap_or_else(|_| PathBuf::from("/proc/self/exe")),
        proxy_env: proxies(args.http_proxy, environment)?,
        embed: args.embed.options()?,
        lint: false,
        turns: Turns::default(),
        attest: Attestations::default(),
        overrides: args.overrides.overrides(),
    })
}

fn source(path: &Path) -> Result<ContextSource> {
    if path == Path::new("-") {
        return Ok(ContextSource::Stdin);
    }
    if let Some(text) = path.to_str()
        && (text.contains("://") || text.starts_with("git@"))
    {
        return Err(Error::usage(format!("the context `{text}` is not local"))
            .hint("clone or download it first, then build the directory"));
    }
    let metadata = std::fs::metadata(path).path("read the context", path)?;
    Ok(if metadata.is_dir() {
        ContextSource::Directory(path.to_owned())
    } else {
        ContextSource::Archive(path.to_owned())
    })
}

fn platforms(args: &BuildArgs) -> Result<Vec<Platform>> {
    if args.arch.is_some() || args.os.is_some() {
        return Ok(vec![platform_of(&args.os, &args.arch, &args.variant)]);
    }
    parsed(&args.platforms)
}

fn build_contexts(specs: &[String]) -> Result<NamedContexts> {
    let mut contexts = NamedContexts::default();
    for spec in specs {
        let (name, source) = split(spec, '=', "--build-context", "NAME=SOURCE")?;
        let image = ["docker-image://", "container-image://"]
            .iter()
            .find_map(|scheme| source.strip_prefix(scheme));
        let context = match (image, source.strip_prefix("oci-layout://")) {
            (Some(image), _) => NamedContext::Image(image.to_owned()),
            (None, Some(path)) => NamedContext::OciLayout(PathBuf::from(path)),
            (None, None) if source.contains("://") => {
                return Err(Error::usage(format!("--build-context {name} cannot be `{source}`"))
                    .hint("give a directory, docker-image://NAME or oci-layout://DIRECTORY"));
            }
            (None, None) => NamedContext::Directory(PathBuf::from(source)),
        };
        contexts.insert(&name, context);
    }
    Ok(contexts)
}

/// The values of `--annotation`.
#[derive(Debug, Default)]
struct Annotations {
    all: BTreeMap<String, String>,
    of_platforms: Vec<(Platform, String, String)>,
}

impl Annotations {
    /// Parses `[PLACE[,PLACE…]:]NAME=VALUE`, where a place is a document, for one platform with
    /// `[OS/ARCH]`, as in buildx. Those for other documents than manifests are refused.
    fn parse(texts: &[String]) -> Result<Self> {
        let mut annotations = Self::default();
        for text in given(texts) {
            let (places, pair) = match text.split_once(':') {
                Some((places, rest)) if !places.contains('=') => match places_of(places) {
                    Some(places) => (places, rest),
                    // Part of the name, as in buildah.
                    None => (vec![("manifest", None)], &**text),
                },
                _ => (vec![("manifest", None)], &**text),
            };
            for (place, platform) in places {
                if place != "manifest" {
                    return Err(Error::usage(format!(
                        "--annotation {place}: is not supported: a build annotates manifests"
                    ))
                    .hint(
                        "annotate the list after the build: imgctl manifest annotate --index \
                         --annotation NAME=VALUE IMAGE",
                    ));
                }
                let pair = pairs(&[pair.to_owned()], "--annotation")?;
                match platform {
                    None => annotations.all.extend(pair),
                    Some(text) => {
                        let platform = Platform::parse(text)?;
                        let own =
                            pair.into_iter().map(|(name, value)| (platform.clone(), name, value));
                        annotations.of_platforms.extend(own);
                    }
                }
            }
        }
        Ok(annotations)
    }
}

/// Returns the documents, with their platforms, that a prefix names; `None` if it is no such prefix.
fn places_of(prefix: &str) -> Option<Vec<(&str, Option<&str>)>> {
    let places = prefix.split(',').map(str::trim).map(|text| match text.split_once('[') {
        Some((place, platform)) => Some((place, Some(platform.strip_suffix(']')?))),
        None => Some((text, None)),
    });
    let known = ["manifest", "index", "manifest-descriptor", "index-descriptor"];
    places.map(|place| place.filter(|(name, _)| known.contains(name))).collect()
}

fn format(args: &BuildArgs, environment: &Environment) -> Result<BuildFormat> {
    match (args.format, environment.text("BUILDAH_FORMAT")?) {
        (Some(Format::Docker), _) | (None, Some("docker")) => Ok(BuildFormat::Docker),
        (Some(Format::Oci), _) | (None, None | Some("oci")) => Ok(BuildFormat::Oci),
        (None, Some(other)) => {
            Err(Error::usage(format!("the variable BUILDAH_FORMAT is `{other}`"))
                .hint("use oci or docker"))
        }
    }
}

/// Docker's media types do not include zstd, so Docker images default to gzip.
fn compression(args: &BuildArgs, format: BuildFormat) -> Result<Compression> {
    let default = if format == BuildFormat::Docker { "gzip" } else { "zstd" };
    Compression::parse(args.compression.as_deref().unwrap_or(default), args.compression_level)
}

fn timestamp(args: &BuildArgs, environment: &Environment) -> Result<Option<i64>> {
    if let Some(timestamp) = args.timestamp.or(args.source_date_epoch) {
        return Ok(Some(timestamp));
    }
    if args.reproducible {
        return commit_time(&args.context).map(Some);
    }
    // The build argument of this name counts over the variable, and an empty one is none (BuildKit).
    let is_given = |pair: &String| pair.split('=').next() == Some("SOURCE_DATE_EPOCH");
    if args.build_args.iter().any(is_given) {
        return Ok(None);
    }
    let Some(text) = environment.text("SOURCE_DATE_EPOCH")? else {
        return Ok(None);
    };
    text.parse().map(Some).map_err(|_| {
        Error::usage(format!("the variable SOURCE_DATE_EPOCH is `{text}`"))
            .hint("set it to a number of seconds since 1970")
    })
}

fn network(text: Option<&str>) -> Result<Network> {
    match text {
        None | Some("" | "default" | "private" | "bridge") => Ok(Network::Default),
        Some("none") => Ok(Network::None),
        Some("host") => Ok(Network::Host),
        Some(other) => Err(Error::usage(format!("--network cannot be `{other}`"))
            .hint("use none, host or default")),
    }
}

/// Returns whether steps may ask for security.insecure, and for the host's network.
fn allowed(allowed: &[String]) -> Result<(bool, bool)> {
    let (mut is_insecure, mut has_host_network) = (false, false);
    for entitlement in given(allowed).flat_map(|text| text.split(',')) {
        match entitlement {
            "security.insecure" => is_insecure = true,
            "network.host" => has_host_network = true,
            _ => {
                return Err(Error::usage(format!("--allow cannot be `{entitlement}`"))
                    .hint("allow security.insecure or network.host"));
            }
        }
    }
    Ok((is_insecure, has_host_network))
}

/// Parses `id=NAME,src=FILE`, `id=NAME,env=VARIABLE` and `id=NAME` (the variable of that name, or
/// an error if it is not set).
fn secrets(specs: &[String], environment: &Environment) -> Result<BTreeMap<String, SecretSource>> {
    let mut secrets = BTreeMap::new();
    for spec in given(specs) {
        let (mut id, mut file, mut variable, mut is_variable) = (None, None, None, false);
        for part in spec.split(',') {
            let (key, value) = split(part, '=', "--secret", "id=NAME,src=FILE")?;
            match key.as_str() {
                "id" => id = Some(value),
                "src" | "source" => file = Some(value),
                "env" => variable = Some(value),
                "type" if value == "file" || value == "env" => is_variable = value == "env",
                _ => {
                    return Err(Error::usage(format!("--secret does not support `{key}={value}`")));
                }
            }
        }
        let id = id.ok_or_else(|| Error::usage(format!("--secret `{spec}` has no id")))?;
        // With type=env, src= is the name of a variable (BuildKit).
        if is_variable && variable.is_none() {
            variable = file.take();
        }
        let source = match (file, variable) {
            (Some(file), None) => SecretSource::File(PathBuf::from(file)),
            // Without a source, the variable of that name, or else the file.
            (None, None) if environment.get(&id).is_none() && Path::new(&id).is_file() => {
                SecretSource::File(PathBuf::from(&id))
            }
            (None, variable) => {
                let name = variable.unwrap_or_else(|| id.clone());
                let value = environment.get(&name).ok_or_else(|| {
                    Error::not_found(format!("the secret {id} has no source"))
                        .hint(format!("set the variable {name} or give src=FILE"))
                })?;
                SecretSource::Value(value.as_encoded_bytes().to_vec())
            }
            (Some(_), Some(_)) => {
                return Err(Error::usage(format!("the secret {id} has two sources")));
            }
        };
        secrets.insert(id, source);
    }
    Ok(secrets)
}

/// Parses `default` (the agent of `SSH_AUTH_SOCK`) or `ID=SOCKET`.
fn ssh(specs: &[String], environment: &Environment) -> Result<BTreeMap<String, PathBuf>> {
    let mut sockets = BTreeMap::new();
    for spec in given(specs) {
        let (id, socket) = match spec.split_once('=') {
            Some((id, socket)) => (id, PathBuf::from(socket)),
            None => (
                spec.as_str(),
                environment.path("SSH_AUTH_SOCK").ok_or_else(|| {
                    Error::not_found(format!("--ssh {spec}: no SSH agent is running"))
                        .hint("start ssh-agent, or pass --ssh ID=SOCKET")
                })?,
            ),
        };
        sockets.insert(id.to_owned(), socket);
    }
    Ok(sockets)
}

fn jobs(given: Option<usize>) -> Result<usize> {
    match given {
        // In buildah, 0 means no limit.
        None | Some(0) => Ok(std::thread::available_parallelism().map_or(1, usize::from)),
        Some(jobs @ 1..=1024) => Ok(jobs),
        Some(jobs) => Err(Error::usage(format!("--jobs {jobs} is more than 1024"))),
    }
}

fn proxies(wanted: bool, environment: &Environment) -> Result<BTreeMap<String, String>> {
    let mut proxies = BTreeMap::new();
    if wanted {
        for name in ["http_proxy", "https_proxy", "ftp_proxy", "no_proxy", "all_proxy"] {
            for name in [name.to_owned(), name.to_ascii_uppercase()] {
                if let Some(value) = environment.lossless(&name)? {
                    proxies.insert(name, value);
                }
            }
        }
    }
    Ok(proxies)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment() -> Environment {
        Environment::new(vec![
            ("TOKEN".into(), "s3cret".into()),
            ("http_proxy".into(), "http://p".into()),
        ])
    }

    #[test]
    fn secrets_come_from_files_and_variables() {
        let specs = ["id=a,src=/f", "id=b,env=TOKEN", "id=TOKEN"].map(str::to_owned);
        let secrets = secrets(&specs, &environment()).unwrap();
        assert_eq!(secrets["a"], SecretSource::File("/f".into()));
        assert_eq!(secrets["b"], SecretSource::Value(b"s3cret".to_vec()));
        assert_eq!(secrets["TOKEN"], secrets["b"]);
        let of_type = ["id=c,type=env,src=TOKEN", "id=Cargo.toml"].map(str::to_owned);
        let of_type = super::secrets(&of_type, &environment()).unwrap();
        assert_eq!(of_type["c"], secrets["b"]);
        assert_eq!(of_type["Cargo.toml"], SecretSource::File("Cargo.toml".into()));
        for wrong in ["src=/f", "id=x", "id=x,src=/f,env=TOKEN", "id=x,mode=1"] {
            assert!(super::secrets(&[wrong.to_owned()], &environment()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn contexts_are_told_apart_by_their_scheme() {
        let specs =
            ["a=docker-image://busybox:1", "b=oci-layout:///x", "c=../d"].map(str::to_owned);
        let contexts = build_contexts(&specs).unwrap();
        assert_eq!(contexts.get("a"), Some(&NamedContext::Image("busybox:1".into())));
        assert_eq!(contexts.get("b"), Some(&NamedContext::OciLayout("/x".into())));
        assert_eq!(contexts.get("c"), Some(&NamedContext::Directory("../d".into())));
        for same in ["a:latest", "docker.io/library/a", "docker.io/library/a:latest"] {
            assert_eq!(contexts.get(same), contexts.get("a"), "{same}");
        }
        assert_eq!(contexts.get("a:1"), None);
        assert!(build_contexts(&["a=https://x".to_owned()]).is_err());
    }

    #[test]
    fn networks_of_other_tools_are_the_default() {
        assert_eq!(network(Some("private")).unwrap(), Network::Default);
        assert_eq!(network(Some("none")).unwrap(), Network::None);
        assert!(network(Some("container:x")).is_err());
        let allowed = |text: &str| allowed(&[text.to_owned()]);
        for (text, expected) in [
            ("security.insecure", (true, false)),
            ("network.host", (false, true)),
            ("network.host,security.insecure", (true, true)),
            ("", (false, false)),
        ] {
            assert_eq!(allowed(text).unwrap(), expected, "{text}");
        }
        assert!(allowed("device").is_err());
    }

    #[test]
    fn annotations_have_places() {
        let parse = |text: &str| Annotations::parse(&[text.to_owned()]);
        let told = |text: &str| {
            let Annotations { all, of_platforms } = parse(text).unwrap();
            let all = all.iter().map(|(name, value)| format!("{name}={value}"));
            let own = of_platforms.iter().map(|(at, name, value)| format!("{at} {name}={value}"));
            all.chain(own).collect::<Vec<_>>().join("; ")
        };
        for (text, expected) in [
            ("k=v", "k=v"),
            ("k=a:b", "k=a:b"),
            ("manifest:k=v", "k=v"),
            ("manifest,manifest:k=a:b", "k=a:b"),
            ("manifest[linux/amd64]:k=v", "linux/amd64 k=v"),
            ("manifest,manifest[linux/arm/v7]:k=v", "k=v; linux/arm/v7 k=v"),
            ("team:k=v", "team:k=v"),
            ("", ""),
        ] {
            assert_eq!(told(text), expected, "{text}");
        }
        for text in [
            "index:k=v",
            "index,manifest:k=v",
            "manifest-descriptor[linux/amd64]:k=v",
            "manifest[nowhere/at/all/here]:k=v",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
