//! `imgctl registry serve`.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::{Args, ValueEnum};
use serde_json::json;

use imgctl_base::error::{Error, IoContext as _, Kind, Result};
use imgctl_base::fs::output::{self, Durability, Target};
use imgctl_base::image::Reference;
use imgctl_frontend::{
    context::Context,
    duration,
    registry_options::{RegistryArgs, read_token},
};
use imgctl_registry::server::{
    Access, AccessLog, LayoutBackend, Limits, Names, ProxyBackend, ServeOptions, Server, Upstream,
    backend::Backend, signalled,
};
use imgctl_registry::{credentials::Secret, layout::Layout};
use imgctl_transfer::transfer::store_backend::StoreBackend;
use imgctl_ui::edge;

/// Variable with the token, for use without a token file.
const TOKEN: &str = "IMGCTL_REGISTRY_TOKEN";
/// Default port of a registry.
const DEFAULT_PORT: u16 = 5000;

/// Serve a directory, or the images of the store, as an OCI registry
#[derive(Args, Debug)]
#[command(
    override_usage = "imgctl registry serve [OPTIONS] <DIR>
       imgctl registry serve [OPTIONS] --store",
    after_help = "Prints the address when clients can connect, writes one line a request to stderr, and ends on
SIGTERM or SIGINT after the requests in progress. Without --htpasswd and --token-file everyone who
reaches it can pull and push, so it listens on 127.0.0.1:5000 unless --addr or --port is given, and
answers to addresses, to localhost, to this machine's own names and to those of --allow-host. The
token may also be given in the variable IMGCTL_REGISTRY_TOKEN.

With --store, localhost/etcd:v1 is served as etcd:v1 and localhost/etcd:v1, quay.io/a/b:v1 as a/b:v1
and quay.io/a/b:v1. Where names differ in the registry only, the short one means that of localhost,
else that of docker.io, else none. What is pushed (--writable) under a short name gets localhost/.

Examples:
  imgctl registry serve /var/lib/registry
  imgctl registry serve /srv/registry --create
  imgctl registry serve --store --addr 127.0.0.1:5000
  imgctl registry serve registry --addr 127.0.0.1:0 --read-only
  imgctl registry serve /var/cache/registry --proxy https://registry-1.docker.io
  imgctl registry serve /var/cache/registry --cache docker.io --cache hub.corp=http://10.0.0.9:5000
  imgctl registry serve /srv/registry --htpasswd users --tls-cert tls.crt --tls-key tls.key"
)]
pub(crate) struct ServeArgs {
    /// Directory of the registry; `inmem` is a temporary one
    #[arg(required_unless_present = "store", num_args = 1..=2, value_name = "DIR")]
    place: Vec<PathBuf>,

    /// Make the directory of a new registry with its parents, and without a note
    #[arg(long, conflicts_with = "store")]
    create: bool,

    /// Serve the images of the store; clients cannot push
    #[arg(long, conflicts_with_all = ["place", "proxy", "sparse"])]
    store: bool,

    /// With --store: accept pushes into the store
    #[arg(long, requires = "store", conflicts_with = "read_only")]
    writable: bool,

    /// Address to listen on; port 0 selects a free port [default: :5000 with a login, otherwise
    /// 127.0.0.1:5000]
    #[arg(long, value_name = "[HOST]:PORT", conflicts_with = "port")]
    addr: Option<String>,

    /// Port to listen on, on every address of this machine
    #[arg(short, long)]
    port: Option<u16>,

    /// Without a login: another name under which clients reach this registry (may be repeated)
    #[arg(long, value_name = "NAME")]
    pub(super) allow_host: Vec<String>,

    /// Users file with bcrypt passwords (`imgctl registry passwd`)
    #[arg(long, value_name = "FILE")]
    htpasswd: Option<PathBuf>,

    /// File with a token, accepted as a bearer token and as the password of any user
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,

    /// Allow anonymous reads; only writes require a login
    #[arg(long)]
    anonymous_pull: bool,

    /// Certificate chain in PEM
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,

    /// Private key in PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,

    /// Refuse pushes and deletions
    #[arg(long)]
    read_only: bool,

    /// Allow tags, manifests and blobs to be deleted
    #[arg(long)]
    delete: bool,

    /// Accept images with layers that are missing here
    #[arg(long)]
    sparse: bool,

    /// Cache this registry: fetch missing content from it, and accept no pushes
    #[arg(long, value_name = "URL", conflicts_with_all = ["delete", "sparse", "read_only"])]
    proxy: Option<String>,

    /// Cache this registry for clients that name it, as containerd does: docker.io, or its name and
    /// where it is (may be repeated)
    #[arg(
        long,
        value_name = "NAME[=URL]",
        conflicts_with_all = ["store", "proxy", "delete", "sparse", "read_only"]
    )]
    cache: Vec<String>,

    /// With --cache: maximum size of the blobs; those that were not asked for longest go [default: none]
    #[arg(long, value_name = "SIZE", requires = "cache")]
    cache_size: Option<String>,

    /// With --proxy or --cache: time before a cached tag is checked again [default: 5m]
    #[arg(long, value_name = "DURATION")]
    proxy_ttl: Option<String>,

    /// Format of the request log
    #[arg(long, value_enum, default_value_t = LogFormat::Text, value_name = "FORMAT")]
    log_format: LogFormat,

    /// Do not log requests
    #[arg(
        long,
        num_args = 0..=1,
        require_equals = true,
        default_value_t = false,
        default_missing_value = "true",
        value_name = "BOOL"
    )]
    disable_logging: bool,

    /// Accepted for scripts; failures are always logged
    #[arg(long, hide = true, value_name = "LEVEL")]
    log_level: Option<String>,

    /// File to write the process ID to, removed on exit
    #[arg(long, value_name = "FILE")]
    pid_file: Option<PathBuf>,

    #[command(flatten)]
    registry: RegistryArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum LogFormat {
    Text,
    Json,
}

/// Serves until a signal arrives; without a login, under the names that are `known`.
pub(crate) fn run(args: &ServeArgs, known: &Names, context: &Context) -> Result<()> {
    if args.store {
        let arbiter = args.registry.arbiter(context)?;
        return serve(StoreBackend::new(context.store()?, &arbiter), (args, known), context);
    }
    // sealos serves from memory: here, from a directory that goes with the process.
    let scratch = match &args.place[..] {
        [kind] if kind == Path::new("inmem") && !kind.exists() => {
            Some(context.store()?.scratch_directory()?)
        }
        _ => None,
    };
    let directory = match &scratch {
        Some(scratch) => scratch.path(),
        None => directory(&args.place)?,
    };
    // sealos' form makes it.
    let is_new =
        args.create || args.proxy.is_some() || !args.cache.is_empty() || args.place.len() > 1;
    if !is_new && scratch.is_none() && !directory.exists() {
        // A path with a missing parent is more likely a slip than a new registry.
        let has_parent = std::path::absolute(directory)
            .is_ok_and(|path| path.parent().is_some_and(Path::is_dir));
        if args.read_only || !has_parent {
            let what = format!("there is no directory {}", directory.display());
            return Err(Error::not_found(what).hint("--create makes an empty registry there"));
        }
        context.ui.note(&format!("{} is new: an empty registry", directory.display()));
    }
    let layout = if args.read_only {
        Layout::open(directory, false)?
    } else {
        Layout::create(directory, context.settings.sync)?
    };
    let _in_use = layout.lock_shared()?.ok_or_else(|| {
        Error::new(Kind::Busy, format!("{} is being cleaned up", directory.display()))
            .hint("start again when `imgctl registry gc` has finished")
    })?;
    if let Some(url) = &args.proxy {
        let upstream = upstream(None, url, args, context)?;
        return serve(ProxyBackend::new(layout, upstream), (args, known), context);
    }
    if args.cache.is_empty() {
        if args.proxy_ttl.is_some() {
            return Err(Error::usage("--proxy-ttl is for --proxy and --cache"));
        }
        return serve(LayoutBackend::new(layout), (args, known), context);
    }
    let limit = args.cache_size.as_deref().map(duration::bytes).transpose()?;
    serve(
        ProxyBackend::of_several(layout, upstreams(args, context)?, limit),
        (args, known),
        context,
    )
}

fn serve(
    backend: impl Backend,
    (args, known): (&ServeArgs, &Names),
    context: &Context,
) -> Result<()> {
    let options = options(args, known, context)?;
    let server = Server::bind(&options, Arc::new(backend))?;
    let _pid = args.pid_file.as_deref().map(PidFile::write).transpose()?;
    let is_cache = args.proxy.is_some() || !args.cache.is_empty();
    if let Some(note) = exposure(server.address(), &options, is_cache) {
        context.ui.note(&note);
    }
    announce(&server, &options, context)?;
    server.run(signalled())
}

/// Returns the directory, which sealos' keyword for the storage type may precede.
fn directory(place: &[PathBuf]) -> Result<&Path> {
    match place {
        [directory] => Ok(directory),
        [kind, directory] if kind == "filesystem" || kind == "fs" => Ok(directory),
        _ => Err(Error::usage("one directory is served at a time")),
    }
}

fn options(args: &ServeArgs, known: &Names, context: &Context) -> Result<ServeOptions> {
    let token = match &args.token_file {
        Some(path) => Some(read_token(path)?),
        None => context.environment.text(TOKEN)?.map(Secret::new),
    };
    let is_open = token.is_none() && args.htpasswd.is_none();
    if args.anonymous_pull && is_open {
        return Err(Error::usage("--anonymous-pull requires a registry with logins")
            .hint("add --htpasswd or --token-file"));
    }
    let is_logged = !args.disable_logging && !context.settings.ui.quiet;
    let format = args.log_format;
    Ok(ServeOptions {
        addresses: match (&args.addr, args.port) {
            (Some(text), _) => addresses(text)?,
            (None, Some(port)) => any_address(port),
            // A registry without a login is not offered to the network unless requested.
            (None, None) if is_open => addresses(&format!("localhost:{DEFAULT_PORT}"))?,
            (None, None) => any_address(DEFAULT_PORT),
        },
        tls: args.tls_cert.clone().zip(args.tls_key.clone()),
        htpasswd: args.htpasswd.clone(),
        token,
        anonymous_pull: args.anonymous_pull,
        read_only: args.read_only || (args.store && !args.writable),
        deletion: args.delete,
        sparse: args.sparse,
        limits: Limits::default(),
        // Browsers let any page reach a registry that needs no login.
        names: is_open.then(|| known.clone()),
        candid: false,
        log: is_logged.then(|| {
            let log = move |access: &Access| log(access, format);
            Arc::new(log) as Arc<AccessLog>
        }),
    })
}

/// Returns the registries to cache.
fn upstreams(args: &ServeArgs, context: &Context) -> Result<Vec<Upstream>> {
    let mut directories = BTreeSet::new();
    args.cache
        .iter()
        .map(|text| {
            let (name, url) = named(text)?;
            if !directories.insert(name.replace(':', "_")) {
                return Err(Error::usage(format!("--cache names {name} twice")));
            }
            upstream(Some(name), &url, args, context)
        })
        .collect()
}

/// Returns name and URL of `NAME[=URL]`.
fn named(text: &str) -> Result<(String, String)> {
    let (name, url) = text.split_once('=').unwrap_or((text, ""));
    let is_name = Reference::parse(&format!("{name}/x"))
        .is_ok_and(|reference| reference.registry() == Some(name));
    // The cache keeps its repositories below this name.
    let is_directory = Reference::parse(&format!("localhost/{}/x", name.replace(':', "_"))).is_ok();
    if !is_name || !is_directory {
        return Err(Error::usage(format!("`{name}` is not the name of a registry"))
            .hint("write it as in names of images: docker.io, registry.example.com:5000"));
    }
    let url = match (name, url) {
        ("docker.io", "") => "https://registry-1.docker.io".to_owned(),
        (name, "") => format!("https://{name}"),
        (_, url) => url.to_owned(),
    };
    Ok((name.to_owned(), url))
}

/// Returns the registry to cache, reached with the flags and files of `pull`.
fn upstream(
    name: Option<String>,
    url: &str,
    args: &ServeArgs,
    context: &Context,
) -> Result<Upstream> {
    let (place, is_plain) = place(url)?;
    let mut registry = args.registry.clone();
    if is_plain {
        registry.tls_verify = Some(false);
    }
    Ok(Upstream {
        name,
        client: registry.client(context)?,
        place,
        ttl: duration::parse(args.proxy_ttl.as_deref().unwrap_or("5m"))?,
    })
}

/// Returns `host[:port][/prefix]` of a URL, and whether it uses plain HTTP.
fn place(url: &str) -> Result<(String, bool)> {
    let (rest, is_plain) = match (url.strip_prefix("http://"), url.strip_prefix("https://")) {
        (Some(rest), _) => (rest, true),
        (None, Some(rest)) => (rest, false),
        (None, None) => (url, false),
    };
    let rest = rest.trim_end_matches('/');
    let (host, prefix) = rest.split_once('/').unwrap_or((rest, ""));
    // In an image name, a host without a dot or port would be part of the repository.
    let host = if host.contains(['.', ':']) || host == "localhost" {
        host.to_owned()
    } else {
        format!("{host}:{}", if is_plain { 80 } else { 443 })
    };
    let place = match prefix {
        "" => host,
        prefix => format!("{host}/{prefix}"),
    };
    match Reference::parse(&format!("{place}/x")) {
        Ok(reference) if reference.registry().is_some() => Ok((place, is_plain)),
        _ => Err(Error::usage(format!("`{url}` is not the URL of a registry"))
            .hint("write it like https://registry.example.com")),
    }
}

fn any_address(port: u16) -> Vec<SocketAddr> {
    // The first address accepts IPv4 too; the second one remains where IPv6 is unavailable.
    vec![
        SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), port),
        SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), port),
    ]
}

fn addresses(text: &str) -> Result<Vec<SocketAddr>> {
    let wrong = || {
        Error::usage(format!("`{text}` is not an address to listen on"))
            .hint("write PORT behind a colon, with an IP address before it or nothing: 127.0.0.1:5000, [::1]:5000, :5000")
    };
    let (host, port) = text.rsplit_once(':').ok_or_else(wrong)?;
    let port: u16 = port.parse().map_err(|_| wrong())?;
    let host = host.trim_start_matches('[').trim_end_matches(']');
    match host {
        "" | "*" => Ok(any_address(port)),
        "localhost" => Ok(vec![SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port)]),
        host => {
            let host: IpAddr = host.parse().map_err(|_| wrong())?;
            Ok(vec![SocketAddr::new(host, port)])
        }
    }
}

fn announce(server: &Server, options: &ServeOptions, context: &Context) -> Result<()> {
    let scheme = match options.tls {
        Some(_) => "https",
        None => "http",
    };
    let address = server.address();
    let view = json!({
        "address": address.to_string(),
        "url": format!("{scheme}://{address}"),
        "pid": std::process::id(),
    });
    context.ui.result(&view, &format!("listening on {scheme}://{address}"))
}

/// Returns what anyone on the network can do with a registry that requires no login; `None` if it
/// requires one or only this machine can reach it.
fn exposure(address: SocketAddr, options: &ServeOptions, is_cache: bool) -> Option<String> {
    let asks = options.token.is_some() || options.htpasswd.is_some();
    if asks || address.ip().is_loopback() {
        return None;
    }
    let can = match (options.read_only || is_cache, options.deletion) {
        (true, _) => "pull from it",
        (false, false) => "pull from it and push to it",
        (false, true) => "pull from it, push to it and delete in it",
    };
    Some(format!(
        "no login is required: everyone who can reach {address} can {can} (--htpasswd FILE or --token-file FILE requires one)"
    ))
}

/// The file with the process ID, if one was made: a device or a pipe is not removed.
struct PidFile(Option<PathBuf>);

impl PidFile {
    fn write(path: &Path) -> Result<Self> {
        let text = format!("{}\n", std::process::id());
        Ok(Self(match output::target(path)? {
            Target::Replace(path) => {
                output::write(&path, text.as_bytes(), 0o644, Durability::Atomic)?;
                Some(path)
            }
            Target::Through(mut file) => {
                file.write_all(text.as_bytes()).path("write", path)?;
                None
            }
        }))
    }
}

impl Drop for PidFile {
    fn drop(&mut self) {
        if let Some(path) = &self.0 {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Writes one request to stderr. A closed stderr does not stop the registry.
fn log(access: &Access, format: LogFormat) {
    let time = jiff::Timestamp::now();
    let milliseconds = access.duration.as_secs_f64() * 1000.0;
    let peer = access.peer.map(|peer| peer.to_string());
    match format {
        LogFormat::Text => {
            let failure = access.failure.as_deref().map(|text| format!(" ({text})"));
            edge::line_to_stderr(&format!(
                "{time:.3} {} {} \"{} {}\" {} {} {milliseconds:.1}ms \"{}\"{}",
                peer.as_deref().unwrap_or("-"),
                access.user.as_deref().unwrap_or("-"),
                access.method,
                access.target,
                access.status,
                access.bytes,
                access.agent.as_deref().unwrap_or("-"),
                failure.unwrap_or_default()
            ));
        }
        LogFormat::Json => edge::json_to_stderr(&json!({
            "time": format!("{time:.3}"),
            "peer": peer,
            "user": access.user,
            "method": access.method,
            "target": access.target,
            "status": access.status,
            "bytes": access.bytes,
            "milliseconds": (milliseconds * 10.0).round() / 10.0,
            "agent": access.agent,
            "failure": access.failure,
        })),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_place_of_an_upstream_is_never_part_of_a_repository() {
        for (url, expected, is_plain) in [
            ("https://registry-1.docker.io", "registry-1.docker.io", false),
            ("http://127.0.0.1:5000/", "127.0.0.1:5000", true),
            ("quay.io/team", "quay.io/team", false),
            ("http://upstream", "upstream:80", true),
            ("https://upstream/mirror", "upstream:443/mirror", false),
        ] {
            assert_eq!(place(url).unwrap(), (expected.to_owned(), is_plain), "{url}");
        }
        for url in ["", "https://", "ftp://x.y", "https://u:p@h.example", "https://h.example/A"] {
            assert!(place(url).is_err(), "{url}");
        }
    }

    #[test]
    fn addresses_are_read_without_asking_anybody() {
        for (text, expected) in [
            ("127.0.0.1:0", "127.0.0.1:0"),
            ("[::1]:5000", "[::1]:5000"),
            ("localhost:5000", "127.0.0.1:5000"),
            (":5000", "[::]:5000"),
            ("*:80", "[::]:80"),
        ] {
            assert_eq!(addresses(text).unwrap()[0].to_string(), expected, "{text}");
        }
        for text in ["", "5000", "host:5000", "127.0.0.1:", "127.0.0.1:99999"] {
            assert!(addresses(text).is_err(), "{text}");
        }
    }
}
