//! Access to registries: the flags of every verb that uses them, where the configuration files lie
//! (flags, variables, the directories of containers, docker and containerd), and the resulting client.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;

use crate::{context::Context, environment::Environment};
use imgctl_base::error::{Error, Result};
use imgctl_base::fs::directory::list;
use imgctl_base::fs::secret_file::{self, Exposed};
use imgctl_registry::credentials::{Credentials, Login, Secret};
use imgctl_registry::registries::{ConfigurationFiles, Registries};
use imgctl_registry::{Client, ClientOptions};
use imgctl_transfer::transfer::arbiter::Arbiter;
use imgctl_trust::guard::Guard;

/// Access to registries.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Registry options")]
pub struct RegistryArgs {
    /// Credentials file [env: REGISTRY_AUTH_FILE]
    #[arg(long, value_name = "FILE")]
    pub authfile: Option<PathBuf>,

    /// User and password for the registry, as USER[:PASSWORD]; prompts for a missing password
    #[arg(long, value_name = "USER[:PASSWORD]")]
    pub creds: Option<Concealed>,

    /// Directory with certificates (*.crt, *.cert, *.key) for the registry
    #[arg(long, value_name = "DIR")]
    pub cert_dir: Option<PathBuf>,

    /// Verify the registry's certificate, and refuse plain HTTP
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub tls_verify: Option<bool>,

    /// Same as --tls-verify=false (for scripts for docker)
    #[arg(long, hide = true, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", conflicts_with = "tls_verify")]
    pub insecure: Option<bool>,

    /// Policy for which images may be used [default: ~/.config/containers/policy.json,
    /// /etc/containers/policy.json]
    #[arg(long, value_name = "FILE")]
    pub signature_policy: Option<PathBuf>,

    /// Maximum number of attempts for a request that fails for a temporary reason [default: 5]
    #[arg(long, visible_alias = "retry-times", value_name = "N")]
    pub retry: Option<u32>,

    /// Accepted for existing scripts
    #[arg(long, value_name = "DURATION", hide = true)]
    pub retry_delay: Option<String>,
}

/// Argument that `Debug` does not show.
#[derive(Clone)]
pub struct Concealed(String);

impl Concealed {
    /// Returns the argument as given.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Debug for Concealed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("***")
    }
}

impl From<&str> for Concealed {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}

impl RegistryArgs {
    /// Creates a client from these flags, the environment and the configuration files.
    pub fn client(&self, context: &Context) -> Result<Client> {
        Client::new(self.client_options(context)?)
    }

    /// Returns whether there is a policy for which images may be used.
    pub(crate) fn has_policy(&self, context: &Context) -> bool {
        guard(self.signature_policy.as_deref(), &context.environment).has_policy()
    }

    /// Returns who decides about images of the store and of files.
    pub fn arbiter(&self, context: &Context) -> Result<Arbiter> {
        if !self.has_policy(context) {
            return Ok(Arbiter::everything());
        }
        Ok(Arbiter::policy(&self.client(context)?))
    }

    /// Returns the options of [`Self::client`].
    pub(crate) fn client_options(&self, context: &Context) -> Result<ClientOptions> {
        if let Some(file) = self.authfile.as_deref().filter(|file| !file.exists()) {
            return Err(Error::not_found(format!("the file {} does not exist", file.display()))
                .hint("run `imgctl login --authfile FILE REGISTRY` to create it"));
        }
        if self.retry_delay.is_some() {
            context.ui.note("--retry-delay has no effect: each wait is longer than the one before");
        }
        self.options(context, self.explicit_login(context)?)
    }

    /// Returns the client's options, with `explicit` as the login for every registry.
    pub fn options(&self, context: &Context, explicit: Option<Login>) -> Result<ClientOptions> {
        let environment = &context.environment;
        let files = configuration_files(self.cert_dir.clone(), environment)?;
        let registries = Registries::read(files)?;
        let guard = guard(self.signature_policy.as_deref(), environment);
        guard.check()?;
        Ok(ClientOptions {
            credentials: Credentials {
                explicit,
                inline: inline_credentials(self.authfile.as_deref(), environment)?,
                files: credential_files(self.authfile.as_deref(), environment),
                helpers: registries.credential_helpers().to_vec(),
                search_path: search_path(environment),
            },
            registries,
            tls_verify: match self.insecure {
                Some(true) => Some(false),
                _ => self.tls_verify,
            },
            proxies: proxies(environment)?,
            attempts: self.retry,
            gate: Some(Arc::new(guard)),
        })
    }

    /// Returns the login of `--creds`, and prompts for a missing password.
    fn explicit_login(&self, context: &Context) -> Result<Option<Login>> {
        let Some(creds) = &self.creds else {
            return Ok(None);
        };
        let (user, password) = match creds.expose().split_once(':') {
            Some((user, password)) => (user, Some(Secret::new(password))),
            None => (creds.expose(), None),
        };
        if user.is_empty() {
            return Err(
                Error::usage("--creds has no user name").hint("use the form --creds USER:PASSWORD")
            );
        }
        let password = match password {
            Some(password) => password,
            None => ask_password(context)?,
        };
        Ok(Some(Login::Password { user: user.to_owned(), password }))
    }
}

/// Prompts for a password; requires a terminal.
pub fn ask_password(context: &Context) -> Result<Secret> {
    match context.ui.ask_secret("Password: ")? {
        Some(password) => Ok(Secret::new(password)),
        None => Err(Error::usage("no password given, and no terminal to prompt for one")
            .hint("pipe it in (imgctl login --password-stdin), or log in first and omit --creds")),
    }
}

/// Proxy variables that curl and Go know, in lower and upper case.
const PROXIES: [&str; 8] = [
    "http_proxy",
    "HTTP_PROXY",
    "https_proxy",
    "HTTPS_PROXY",
    "all_proxy",
    "ALL_PROXY",
    "no_proxy",
    "NO_PROXY",
];

/// Returns the credentials files; the first one is the one that is written.
fn credential_files(flag: Option<&Path>, environment: &Environment) -> Vec<PathBuf> {
    if let Some(file) = flag.map(Path::to_owned).or_else(|| environment.path("REGISTRY_AUTH_FILE"))
    {
        return vec![file];
    }
    let mut files = vec![match environment.path("XDG_RUNTIME_DIR") {
        Some(directory) => directory.join("containers/auth.json"),
        None => PathBuf::from(format!(
            "/run/containers/{}/auth.json",
            rustix::process::geteuid().as_raw()
        )),
    }];
    let home = environment.path("HOME");
    files.extend(config_home(environment).map(|directory| directory.join("containers/auth.json")));
    files.extend(
        environment
            .path("DOCKER_CONFIG")
            .or_else(|| Some(home.as_ref()?.join(".docker")))
            .map(|directory| directory.join("config.json")),
    );
    files.extend(home.map(|home| home.join(".dockercfg")));
    files
}

/// Returns the credentials in the environment itself, unless a file was named.
fn inline_credentials(flag: Option<&Path>, environment: &Environment) -> Result<Option<Secret>> {
    if flag.is_some() || environment.path("REGISTRY_AUTH_FILE").is_some() {
        return Ok(None);
    }
    let text = environment.text("DOCKER_AUTH_CONFIG")?;
    Ok(text.filter(|text| !text.trim().is_empty()).map(Secret::new))
}

/// Returns the files that configure access to registries.
fn configuration_files(
    certificate_directory: Option<PathBuf>,
    environment: &Environment,
) -> Result<ConfigurationFiles> {
    let own = config_home(environment).map(|directory| directory.join("containers"));
    let system = Path::new("/etc/containers");
    let main = match environment.path("CONTAINERS_REGISTRIES_CONF") {
        // A file that the user names must exist.
        Some(file) if !file.exists() => {
            return Err(Error::not_found(format!(
                "CONTAINERS_REGISTRIES_CONF is {}, which does not exist",
                file.display()
            )));
        }
        Some(file) => file,
        None => own
            .as_ref()
            .map(|directory| directory.join("registries.conf"))
            .filter(|file| file.exists())
            .unwrap_or_else(|| system.join("registries.conf")),
    };
    let system_drop_ins = environment
        .path("CONTAINERS_REGISTRIES_CONF_DIR")
        .unwrap_or_else(|| system.join("registries.conf.d"));
    let mut drop_ins = conf_files(&system_drop_ins)?;
    if let Some(own) = &own {
        drop_ins.extend(conf_files(&own.join("registries.conf.d"))?);
    }
    drop_ins.extend(recorded_aliases(environment));
    let mut certificate_trees: Vec<PathBuf> =
        own.iter().map(|directory| directory.join("certs.d")).collect();
    certificate_trees.extend(
        ["/etc/containers/certs.d", "/etc/docker/certs.d", "/etc/containerd/certs.d"]
            .map(PathBuf::from),
    );
    let mut docker_daemons = vec![PathBuf::from("/etc/docker/daemon.json")];
    if !rustix::process::geteuid().is_root() {
        docker_daemons
            .extend(config_home(environment).map(|directory| directory.join("docker/daemon.json")));
    }
    Ok(ConfigurationFiles {
        main: Some(main),
        drop_ins,
        docker_daemons,
        containerd_trees: vec![PathBuf::from("/etc/containerd/certs.d")],
        certificate_trees,
        certificate_directory,
    })
}

/// Returns the locations of signature policies and of signatures (containers-policy.json(5),
/// containers-registries.d(5)).
fn guard(flag: Option<&Path>, environment: &Environment) -> Guard {
    let own = config_home(environment).map(|directory| directory.join("containers"));
    let system = PathBuf::from("/etc/containers");
    let both = |name: &str| own.iter().chain([&system]).map(|at| at.join(name)).collect();
    let is_root = rustix::process::geteuid().is_root();
    Guard {
        policy: flag.map(Path::to_owned),
        policies: both("policy.json"),
        lookasides: both("registries.d"),
        default_lookaside: if is_root {
            Some(PathBuf::from("/var/lib/containers/sigstore"))
        } else {
            environment.path("HOME").map(|home| home.join(".local/share/containers/sigstore"))
        },
    }
}

/// Returns the proxy variables that are set.
fn proxies(environment: &Environment) -> Result<Vec<(String, String)>> {
    let mut found = Vec::new();
    for name in PROXIES {
        if let Some(value) = environment.text(name)? {
            found.push((name.to_owned(), value.to_owned()));
        }
    }
    Ok(found)
}

/// Returns the directories of `PATH`. Omits relative ones: the programs that run must not depend on
/// the working directory.
fn search_path(environment: &Environment) -> Vec<PathBuf> {
    let path = environment.get("PATH").unwrap_or(OsStr::new("/usr/local/bin:/usr/bin:/bin"));
    std::env::split_paths(path).filter(|directory| directory.is_absolute()).collect()
}

/// Returns `$XDG_CONFIG_HOME` or `~/.config`.
pub(crate) fn config_home(environment: &Environment) -> Option<PathBuf> {
    environment
        .path("XDG_CONFIG_HOME")
        .filter(|path| path.is_absolute())
        .or_else(|| Some(environment.path("HOME")?.join(".config")))
}

/// Returns the file in which podman records the registry of a short name.
fn recorded_aliases(environment: &Environment) -> Option<PathBuf> {
    let cache = if rustix::process::geteuid().is_root() {
        PathBuf::from("/var/cache")
    } else {
        environment
            .path("XDG_CACHE_HOME")
            .filter(|path| path.is_absolute())
            .or_else(|| Some(environment.path("HOME")?.join(".cache")))?
    };
    Some(cache.join("containers/short-name-aliases.conf"))
}

/// Returns the `*.conf` files in `directory`, by name; none if the directory does not exist.
fn conf_files(directory: &Path) -> Result<Vec<PathBuf>> {
    let is_conf =
        |path: &PathBuf| path.extension().is_some_and(|end| end == "conf") && !path.is_dir();
    Ok(list(directory)?.into_iter().filter(is_conf).collect())
}

/// Maximum size of a token file, in bytes.
const MAX_TOKEN: u64 = 4096;

/// Reads the token that clients of a registry need.
pub fn read_token(path: &Path) -> Result<Secret> {
    let text = secret_file::read(path, MAX_TOKEN + 1, Exposed::Refused)?
        .ok_or_else(|| Error::not_found(format!("the file {} does not exist", path.display())))?;
    let token = text.expose().trim();
    if token.is_empty()
        || token.contains(char::is_whitespace)
        || text.expose().len() as u64 > MAX_TOKEN
    {
        return Err(Error::usage(format!(
            "{} does not contain one token on one line",
            path.display()
        )));
    }
    Ok(Secret::new(token))
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(clap::Parser)]
    struct Verb {
        #[command(flatten)]
        registry: RegistryArgs,
        rest: Vec<String>,
    }

    fn parse(words: &[&str]) -> Verb {
        let words = std::iter::once("verb").chain(words.iter().copied());
        Verb::try_parse_from(words).unwrap()
    }

    #[test]
    fn flags_are_spelt_as_in_podman_and_skopeo() {
        for (words, verify, retry) in [
            (&["--tls-verify=false", "x"][..], Some(false), None),
            // As in Go, the value of a switch is never a separate argument.
            (&["--tls-verify", "x"], Some(true), None),
            (&["--retry", "3", "x"], None, Some(3)),
            (&["--retry-times", "3", "--retry-delay", "2s", "x"], None, Some(3)),
        ] {
            let verb = parse(words);
            assert_eq!(verb.registry.tls_verify, verify, "{words:?}");
            assert_eq!(verb.registry.retry, retry, "{words:?}");
            assert_eq!(verb.rest, ["x"], "{words:?}");
        }
    }

    #[test]
    fn a_password_in_a_flag_is_not_shown() {
        let verb = parse(&["--creds", "me:sEcret"]);
        let told = format!("{:?}", verb.registry);
        assert!(!told.contains("sEcret"), "{told}");
        assert_eq!(verb.registry.creds.unwrap().expose(), "me:sEcret");
    }

    fn environment(variables: &[(&str, &str)]) -> Environment {
        Environment::new(
            variables.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect(),
        )
    }

    #[test]
    fn credentials_are_looked_for_where_containers_and_docker_keep_them() {
        let files = |flag: Option<&str>, variables: &[(&str, &str)]| {
            credential_files(flag.map(Path::new), &environment(variables))
                .iter()
                .map(|path| path.display().to_string())
                .collect::<Vec<_>>()
        };
        let home = ("HOME", "/h");
        assert_eq!(
            files(None, &[home, ("XDG_RUNTIME_DIR", "/run/user/1")]),
            [
                "/run/user/1/containers/auth.json",
                "/h/.config/containers/auth.json",
                "/h/.docker/config.json",
                "/h/.dockercfg",
            ]
        );
        let moved = [home, ("XDG_CONFIG_HOME", "/c"), ("DOCKER_CONFIG", "/d")];
        let id = rustix::process::geteuid().as_raw();
        assert_eq!(
            files(None, &moved),
            [
                format!("/run/containers/{id}/auth.json"),
                "/c/containers/auth.json".to_owned(),
                "/d/config.json".to_owned(),
                "/h/.dockercfg".to_owned(),
            ]
        );
        let named = [home, ("REGISTRY_AUTH_FILE", "/a")];
        assert_eq!(files(None, &named), ["/a"]);
        let inline = |flag: Option<&str>, more: &[(&str, &str)]| {
            let variables = [&[("DOCKER_AUTH_CONFIG", "{}")], more].concat();
            inline_credentials(flag.map(Path::new), &environment(&variables)).unwrap()
        };
        assert_eq!(inline(None, &[]), Some(Secret::new("{}")));
        assert_eq!(inline(None, &named), None);
        assert_eq!(inline(Some("f"), &[]), None);
        assert_eq!(files(Some("f"), &named), ["f"]);
    }

    #[test]
    fn configuration_of_the_user_comes_before_the_systems() {
        let home = tempfile::tempdir().unwrap();
        let own = home.path().join(".config/containers");
        std::fs::create_dir_all(own.join("registries.conf.d")).unwrap();
        for name in ["registries.conf.d/b.conf", "registries.conf.d/a.conf", "registries.conf.d/x"]
        {
            std::fs::write(own.join(name), "").unwrap();
        }
        let home_text = home.path().to_str().unwrap();
        let find = |variables: &[(&str, &str)]| {
            let mut all = vec![("HOME", home_text)];
            all.extend(variables);
            configuration_files(None, &environment(&all))
        };
        let files = find(&[]).unwrap();
        assert_eq!(files.main.unwrap(), Path::new("/etc/containers/registries.conf"));
        let at = files.drop_ins.len() - 3;
        let drop_ins = own.join("registries.conf.d");
        assert_eq!(files.drop_ins[at..at + 2], [drop_ins.join("a.conf"), drop_ins.join("b.conf")]);
        assert_eq!(files.certificate_trees[0], own.join("certs.d"));

        let main = own.join("registries.conf");
        std::fs::write(&main, "").unwrap();
        assert_eq!(find(&[]).unwrap().main, Some(main.clone()));
        let other = own.join("registries.conf.d/x");
        let variables = [
            ("CONTAINERS_REGISTRIES_CONF", other.to_str().unwrap()),
            ("CONTAINERS_REGISTRIES_CONF_DIR", "/nonexistent"),
        ];
        let files = find(&variables).unwrap();
        assert_eq!(files.main, Some(other.clone()));
        assert_eq!(files.drop_ins.len(), 3);
        assert!(find(&[("CONTAINERS_REGISTRIES_CONF", "/nonexistent")]).is_err());
    }

    #[test]
    fn proxies_and_search_path_come_from_the_environment() {
        let variables = [
            ("http_proxy", "http://p:1"),
            ("NO_PROXY", "x"),
            ("HTTPS_PROXY", ""),
            ("PATH", "/a:rel:/b:"),
        ];
        let environment = environment(&variables);
        let names: Vec<String> = proxies(&environment)
            .unwrap()
            .into_iter()
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        assert_eq!(names, ["http_proxy=http://p:1", "NO_PROXY=x"]);
        assert_eq!(search_path(&environment), [Path::new("/a"), Path::new("/b")]);
    }
}
