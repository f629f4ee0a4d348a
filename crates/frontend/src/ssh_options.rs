//! Flags of every verb that logs in to hosts, and the resulting login and settings: flags first,
//! then variables, then ssh's own files; and flags that select hosts.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;

use crate::context::Context;
use crate::registry_options::{Concealed, RegistryArgs};
use imgctl_base::error::{Error, IoContext as _, Result};
use imgctl_base::fs::secret_file::{self, Exposed};
use imgctl_base::secret::Secret;
use imgctl_host::host::connect::Connections;
use imgctl_host::host::login::{ALIVE_INTERVAL, HostKeys, Login, Settings};
use imgctl_model::context::Host;
use imgctl_ops::hosts::HostSelection;

/// Maximum length of a password or passphrase, in bytes.
const LONGEST_SECRET: u64 = 64 << 10;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);
/// Number of retries after a reset or an end of file while connecting.
const RETRIES: u32 = 4;

/// Login to hosts.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "SSH options")]
pub struct SshArgs {
    /// User to log in as [default: from ~/.ssh/config, otherwise root]
    #[arg(short, long, value_name = "USER")]
    pub user: Option<String>,

    /// Password, visible to other users of this machine; prefer --passwd-file [env:
    /// IMGCTL_SSH_PASSWORD]
    #[arg(short, long, value_name = "PASSWORD")]
    pub passwd: Option<Concealed>,

    /// File whose first line is the password; `-` is stdin
    #[arg(long, value_name = "FILE", conflicts_with = "passwd")]
    pub passwd_file: Option<PathBuf>,

    /// Prompt for the password
    #[arg(long, conflicts_with_all = ["passwd", "passwd_file"])]
    pub ask_passwd: bool,

    /// Private key file (may be repeated) [default: from ~/.ssh/config, otherwise
    /// ~/.ssh/id_ed25519, id_ecdsa, id_rsa]
    #[arg(short = 'i', long, value_name = "FILE")]
    pub pk: Vec<PathBuf>,

    /// Passphrase of the private keys, visible to other users of this machine; prefer
    /// --pk-passwd-file
    #[arg(long, value_name = "PASSPHRASE")]
    pub pk_passwd: Option<Concealed>,

    /// File whose first line is the passphrase of the private keys
    #[arg(long, value_name = "FILE", conflicts_with = "pk_passwd")]
    pub pk_passwd_file: Option<PathBuf>,

    /// SSH port of hosts without a port of their own [default: 22]
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub port: Option<u16>,

    /// File whose first line is the password for sudo [default: the login password]
    #[arg(long, value_name = "FILE")]
    pub sudo_passwd_file: Option<PathBuf>,

    /// Jump hosts on the way to the hosts, as [USER@]HOST[:PORT],…
    #[arg(short = 'J', long, value_name = "HOSTS")]
    pub jump: Option<String>,

    /// Refuse hosts whose key is missing from known_hosts instead of learning it [env:
    /// IMGCTL_STRICT_HOST_KEY]
    #[arg(long)]
    pub strict_host_key: bool,

    /// File in which host keys are looked up and recorded [default: ~/.ssh/known_hosts]
    #[arg(long, value_name = "FILE")]
    pub known_hosts: Option<PathBuf>,

    /// File to read instead of ~/.ssh/config and /etc/ssh/ssh_config; `none` reads nothing
    #[arg(long, value_name = "FILE")]
    pub ssh_config: Option<PathBuf>,
}

impl SshArgs {
    /// Returns the login that the flags describe, and the connection settings.
    pub fn resolve(&self, context: &Context) -> Result<(Login, Settings)> {
        Ok((self.login(context)?, self.settings(context)?))
    }

    fn login(&self, context: &Context) -> Result<Login> {
        let from_file = |file: &Option<PathBuf>| file.as_deref().map(first_line).transpose();
        let shown = |given: &Option<Concealed>| given.as_ref().map(|it| Secret::new(it.expose()));
        let password = match from_file(&self.passwd_file)?.or(shown(&self.passwd)) {
            Some(password) => Some(password),
            None if self.ask_passwd => Some(ask(context)?),
            None => context.environment.text("IMGCTL_SSH_PASSWORD")?.map(Secret::new),
        };
        if self.user.as_deref() == Some("") {
            return Err(Error::usage("the user name is empty"));
        }
        Ok(Login {
            user: self.user.clone(),
            password,
            keys: absolute(&self.pk)?,
            key_data: Vec::new(),
            key_passphrase: from_file(&self.pk_passwd_file)?.or(shown(&self.pk_passwd)),
            sudo_password: from_file(&self.sudo_passwd_file)?,
            jump: self.jump.clone(),
            is_recorded: false,
        })
    }

    fn settings(&self, context: &Context) -> Result<Settings> {
        let environment = &context.environment;
        let home = environment.path("HOME");
        let below = |name: &str| home.as_ref().map(|home| home.join(".ssh").join(name));
        let strict = environment.switch("IMGCTL_STRICT_HOST_KEY")?;
        let learn = self.known_hosts.clone().or_else(|| below("known_hosts"));
        let system = PathBuf::from("/etc/ssh/ssh_known_hosts");
        let config_files = match &self.ssh_config {
            Some(file) if file == Path::new("none") => Vec::new(),
            Some(file) if !file.exists() => {
                return Err(Error::not_found(format!(
                    "the file {} of --ssh-config does not exist",
                    file.display()
                )));
            }
            Some(file) => vec![file.clone()],
            None => {
                let system = PathBuf::from("/etc/ssh/ssh_config");
                below("config").into_iter().chain([system]).collect()
            }
        };
        Ok(Settings {
            host_keys: if self.strict_host_key || strict == Some(true) {
                HostKeys::Strict
            } else {
                HostKeys::TrustOnFirstUse
            },
            known_hosts: learn.into_iter().chain([system]).collect(),
            config_files,
            agent_socket: environment.path("SSH_AUTH_SOCK"),
            home,
            local_user: environment.text("USER")?.map(str::to_owned),
            connect_timeout: CONNECT_TIMEOUT,
            alive_interval: ALIVE_INTERVAL,
            retries: RETRIES,
        })
    }
}

/// Returns the paths of private keys as they count from anywhere: they are recorded with a cluster.
pub fn absolute(keys: &[PathBuf]) -> Result<Vec<PathBuf>> {
    // One of several may be on another machine of the user's.
    if let Some(absent) = keys.first().filter(|_| keys.iter().all(|key| !key.exists())) {
        let error = Error::usage(format!("--pk {}: there is no such file", absent.display()));
        // `-it` of docker and kubectl.
        return Err(if absent.as_os_str() == "t" {
            error.hint("-i is the option --pk here, and `-it` names the key `t`: omit it")
        } else {
            error
        });
    }
    keys.iter().map(|key| std::path::absolute(key).path("use", key)).collect()
}

fn ask(context: &Context) -> Result<Secret> {
    match context.ui.ask_secret("SSH password: ")? {
        Some(password) => Ok(Secret::new(password)),
        None => Err(Error::usage("there is no terminal to prompt for the SSH password")
            .hint("pass --passwd-file FILE or set IMGCTL_SSH_PASSWORD")),
    }
}

/// Reads the first line of a file, without its line ending.
fn first_line(path: &Path) -> Result<Secret> {
    let mut text = String::new();
    if path == Path::new("-") {
        let stdin = std::io::stdin().lock();
        stdin.take(LONGEST_SECRET).read_to_string(&mut text)
    } else {
        let file = std::fs::File::open(path).path("open", path)?;
        secret_file::check(&file, path, Exposed::Told)?;
        file.take(LONGEST_SECRET).read_to_string(&mut text)
    }
    .path("read", path)?;
    let text = Secret::new(text);
    match text.expose().lines().next() {
        Some(line) if !line.is_empty() => Ok(Secret::new(line)),
        _ => Err(Error::usage(format!("the first line of {} is empty", path.display()))),
    }
}

/// Default number of parallel hosts. More connections do not make two cores faster.
const PARALLEL: usize = 32;

/// Hosts, and the flags to reach them.
#[derive(Args, Clone, Debug)]
pub struct HostArgs {
    /// Hosts: IP, IP:PORT, [IPv6]:PORT, name, range (10.0.0.1-10.0.0.9) or CIDR, separated by
    /// commas
    #[arg(long, visible_alias = "hosts", value_name = "LIST")]
    pub ips: Option<String>,

    /// Hosts of this cluster, with its logins; --ips and --roles filter them [env: IMGCTL_CLUSTER]
    #[arg(short, long, value_name = "NAME")]
    cluster: Option<String>,

    /// Select only hosts of the cluster with one of these roles: master, node, registry
    #[arg(short, long, value_name = "LIST", value_delimiter = ',')]
    roles: Vec<String>,

    /// Number of hosts to process in parallel [default: 32]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub parallel: Option<u16>,

    #[command(flatten)]
    pub ssh: SshArgs,
}

impl HostArgs {
    /// Returns the hosts and the connections to them.
    pub fn resolve(&self, context: &Context) -> Result<(Vec<Host>, Connections)> {
        let selection = HostSelection {
            list: self.ips.clone(),
            cluster: match (&self.cluster, &self.ips) {
                // A variable does not turn addresses into a filter.
                (None, Some(_)) => None,
                (named, _) => context.named_cluster(named.as_deref())?,
            },
            roles: self.roles.clone(),
        };
        selection.resolve(&context.session(&self.ssh, &RegistryArgs::default())?)
    }

    /// Returns the number of hosts to process in parallel.
    pub fn parallel(&self) -> usize {
        self.parallel.map_or(PARALLEL, usize::from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_the_first_line_of_its_file() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("x");
        for (text, expected) in [("a b\r\nc\n", Some("a b")), ("p", Some("p")), ("\nx", None)] {
            std::fs::write(&file, text).unwrap();
            let read = first_line(&file).ok();
            assert_eq!(read.as_ref().map(Secret::expose), expected, "{text:?}");
        }
    }
}
