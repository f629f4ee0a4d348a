//! Flags of verbs on clusters, and the location of clusters: flag, then variable, then default.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, ValueEnum};

use crate::{
    context::Context, duration, environment::Environment, registry_options::Concealed,
    report_output::RunReportArg, ssh_options,
};
use imgctl_base::error::{Error, IoContext, Result};
use imgctl_base::quote::quote;
use imgctl_base::secret::Secret;
use imgctl_model::state_identity::StateIdentity;
use imgctl_model::{
    clusterfile,
    clusterfile::{Clusterfile, SecretSource, Ssh, Values},
};
use imgctl_model::{context::DATA_ROOT, desired::HostFlags, name, variable};
use imgctl_ops::layer_source::LayerSource;
use imgctl_ops::session::{Controller, Session};
use imgctl_ops::{install::Additions, work::RunOptions};
use imgctl_runtime::certificates::validity::Validity;
use imgctl_workflow::pipeline::{executor::Options, nodes::Wait};
use imgctl_workflow::sync::recipe::Delta;

/// The existing cluster to work on.
#[derive(Args, Clone, Debug)]
pub struct ClusterArg {
    /// Name of the cluster [env: IMGCTL_CLUSTER] [default: the only one there is, otherwise default]
    #[arg(short, long, value_name = "NAME")]
    cluster: Option<String>,
}

impl ClusterArg {
    /// Returns the name of the cluster.
    pub fn name(&self, context: &Context) -> Result<String> {
        let named = context.named_cluster(self.cluster.as_deref())?;
        controller(context)?.cluster_meant(named.as_deref())
    }
}

/// The cluster of a verb that may make it or remove it: which one is never guessed.
#[derive(Args, Clone, Debug)]
pub struct ExactClusterArg {
    /// Name of the cluster [env: IMGCTL_CLUSTER] [default: default]
    #[arg(short, long, value_name = "NAME")]
    cluster: Option<String>,
}

impl ExactClusterArg {
    /// Returns the name of the cluster.
    pub fn name(&self, context: &Context) -> Result<String> {
        let named = context.named_cluster(self.cluster.as_deref())?;
        Ok(named.unwrap_or_else(|| name::DEFAULT.to_owned()))
    }
}

/// Encryption of the state of a new cluster.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "State options")]
pub struct StateArgs {
    /// Encrypt what this machine stores of the cluster to a recipient (age1…), or to those in a file
    /// (may be repeated)
    #[arg(long, value_name = "RECIPIENT|FILE")]
    pub encrypt_state: Vec<String>,
}

impl StateArgs {
    /// Fails if the flag is given, because of `other`.
    pub fn refuse(&self, other: &str) -> Result<()> {
        if self.encrypt_state.is_empty() {
            return Ok(());
        }
        Err(Error::usage(format!("--encrypt-state cannot be used with {other}"))
            .hint("this machine stores no secrets of a cluster that a kubeconfig names"))
    }
}

/// The hosts to work on.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Host options")]
pub struct HostsArgs {
    /// Control planes: IP, IP:PORT, IP-IP, CIDR or name, separated by commas
    #[arg(long, value_name = "LIST")]
    masters: Option<String>,

    /// Workers, in the same way
    #[arg(long, value_name = "LIST")]
    nodes: Option<String>,

    /// Hosts among these that serve the cluster's registry [default: the first control plane]
    #[arg(long, value_name = "LIST")]
    registry_hosts: Option<String>,
}

impl HostsArgs {
    /// Converts the flags, combined with the SSH flags of `session`.
    pub fn of(&self, session: &Session<'_>) -> HostFlags {
        self.flags(Ssh::of_login(&session.ssh.login, session.ssh.port))
    }

    /// Fails if a flag is given, because of `other`.
    pub fn refuse(&self, other: &str) -> Result<()> {
        let given = [
            ("--masters", &self.masters),
            ("--nodes", &self.nodes),
            ("--registry-hosts", &self.registry_hosts),
        ];
        match given.iter().find(|(_, value)| value.is_some()) {
            None => Ok(()),
            Some((flag, _)) => Err(Error::usage(format!("{flag} cannot be used with {other}"))
                .hint("the hosts of that cluster are not imgctl's: nothing is done on them")),
        }
    }

    /// Converts the flags, combined with SSH settings.
    pub fn flags(&self, ssh: Ssh) -> HostFlags {
        HostFlags {
            masters: self.masters.clone(),
            nodes: self.nodes.clone(),
            registry: self.registry_hosts.clone(),
            ssh,
            local: false,
        }
    }
}

/// Login options for the Clusterfile.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "SSH options")]
pub struct ClusterSshArgs {
    /// User to log in as
    #[arg(short, long, value_name = "NAME")]
    user: Option<String>,

    /// Password, which is visible to other processes: prefer `passwdFrom` in the Clusterfile
    #[arg(short, long, value_name = "PASSWORD")]
    passwd: Option<Concealed>,

    /// Private key (may be repeated)
    #[arg(short = 'i', long, value_name = "FILE")]
    pk: Vec<PathBuf>,

    /// Passphrase of the private key
    #[arg(long, value_name = "PASSPHRASE")]
    pk_passwd: Option<Concealed>,

    /// SSH port [default: 22]
    #[arg(long, value_name = "PORT")]
    port: Option<u16>,
}

impl ClusterSshArgs {
    pub fn ssh(&self) -> Result<Ssh> {
        let inline = |text: &Option<Concealed>| {
            text.as_ref().map(|text| SecretSource::Inline(Secret::new(text.expose())))
        };
        let keys = ssh_options::absolute(&self.pk)?;
        Ok(Ssh {
            user: self.user.clone(),
            password: inline(&self.passwd),
            keys: keys.iter().map(|key| key.to_string_lossy().into_owned()).collect(),
            key_passphrase: inline(&self.pk_passwd),
            port: self.port,
            ..Ssh::default()
        })
    }
}

/// Additions to a Clusterfile from the command line.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Configuration options")]
pub struct DesiredArgs {
    /// Variable for templates, scripts and commands; overrides all others (may be repeated)
    #[arg(short, long, value_name = "NAME=VALUE")]
    env: Vec<String>,

    /// Command to run instead of the image's CMD (may be repeated)
    #[arg(long, value_name = "COMMAND")]
    pub cmd: Vec<String>,

    /// File of Config, kubeadm or k3s documents to add (may be repeated)
    #[arg(long, value_name = "FILE", value_delimiter = ',')]
    config_file: Vec<PathBuf>,

    /// Accepted for compatibility with existing scripts: `oci-archive` or `docker-archive`, of the images
    /// that are files
    #[arg(short, long, value_name = "FORMAT", hide = true)]
    transport: Option<String>,

    /// Accepted for compatibility with existing scripts
    #[arg(long, hide = true)]
    single: bool,
}

impl DesiredArgs {
    /// Returns the variables given with `--env`.
    pub fn environment(&self) -> Result<BTreeMap<String, String>> {
        self.env
            .iter()
            .map(|entry| variable::parse(entry).map_err(|error| error.context("cannot use --env")))
            .collect()
    }

    /// Returns `images`; those that are files are archives of the format that `--transport` names.
    pub fn images(&self, images: &[String]) -> Vec<String> {
        let format = self.transport.as_deref();
        let format = format.filter(|format| matches!(*format, "oci-archive" | "docker-archive"));
        let named = |image: &String| match format {
            Some(format) if Path::new(image).is_file() => format!("{format}:{image}"),
            _ => image.clone(),
        };
        images.iter().map(named).collect()
    }

    /// Returns the additions; notes about their files are shown to the user.
    pub fn additions(&self, context: &Context) -> Result<Additions> {
        let mut documents = Vec::new();
        for file in &self.config_file {
            let (additions, notes) =
                clusterfile::read_additions(&read_file(file)?, &file.display().to_string())?;
            context.ui.notes(&notes);
            documents.push(additions);
        }
        let environment = self.environment()?;
        Ok(Additions { environment, command: self.cmd.clone(), documents, share_images: None })
    }
}

/// Additions to a Clusterfile that do not affect templates.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Configuration options")]
pub struct PeersArgs {
    /// Let hosts share the images of the cluster's registry with each other
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    peers: Option<bool>,
}

impl PeersArgs {
    /// Combines the choice with other additions.
    pub fn with(&self, additions: Additions) -> Additions {
        Additions { share_images: self.peers, ..additions }
    }
}

/// Values for a Clusterfile that is a template.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Template options")]
pub struct ValuesArgs {
    /// File of values for the Clusterfile, used there as {{ .Values.NAME }} (may be repeated)
    #[arg(long, value_name = "FILE", value_delimiter = ',')]
    values: Vec<PathBuf>,

    /// One value for the Clusterfile (may be repeated)
    #[arg(long, value_name = "NAME=VALUE")]
    set: Vec<String>,
}

impl ValuesArgs {
    /// Reads `file` (`-`: standard input), renders and parses it.
    pub fn clusterfile(&self, file: &Path, context: &Context) -> Result<Clusterfile> {
        let mut values = Values::default();
        for file in &self.values {
            values.add_file(&read_file(file)?, &file.display().to_string())?;
        }
        for set in &self.set {
            // `a=1,b=2` is two values, as in sealos and Helm; `a=1,2` is one.
            let parts: Vec<&str> = set.split(',').collect();
            if parts.iter().all(|part| part.contains('=')) {
                parts.iter().try_for_each(|part| values.set(part))?;
            } else {
                values.set(set)?;
            }
        }
        let shown = file.display().to_string();
        let rendered = clusterfile::render(&read_file(file)?, &shown, &values)?;
        let (mut read, notes) = clusterfile::read(&rendered, &shown)?;
        context.ui.notes(&notes);
        // What is recorded counts from anywhere.
        let here =
            std::env::current_dir().doing(|| "cannot determine the current directory".into())?;
        read.cluster.root_paths(&here);
        Ok(read)
    }
}

/// Reads a text file of the user; `-` is standard input.
pub fn read_file(file: &Path) -> Result<String> {
    use std::io::Read as _;
    let limit = clusterfile::MAX_LENGTH as u64 + 1;
    let mut text = String::new();
    let read = if file == Path::new("-") {
        std::io::stdin().take(limit).read_to_string(&mut text)
    } else {
        std::fs::File::open(file).and_then(|opened| opened.take(limit).read_to_string(&mut text))
    };
    read.path("read", file)?;
    Ok(text)
}

/// Returns `SEALOS_RUNTIME_ROOT`, or `~/.sealos` by default.
pub fn runtime_root(environment: &Environment) -> Result<PathBuf> {
    if let Some(root) = environment.path("SEALOS_RUNTIME_ROOT") {
        return std::path::absolute(&root).path("use", &root);
    }
    environment.path("HOME").map(|home| home.join(".sealos")).ok_or_else(|| {
        Error::usage("cannot locate the state of clusters: HOME is not set")
            .hint("set SEALOS_RUNTIME_ROOT")
    })
}

/// Fails if one of the arguments is a file that looks like a Clusterfile.
pub fn refuse_clusterfiles(images: &[String]) -> Result<()> {
    let is_clusterfile = |argument: &&String| {
        let path = Path::new(argument);
        let is_yaml = path.extension().is_some_and(|end| end == "yaml" || end == "yml");
        let is_named = path.file_name().is_some_and(|name| name == "Clusterfile");
        (is_yaml || is_named) && path.is_file()
    };
    match images.iter().find(is_clusterfile) {
        Some(file) => Err(Error::usage(format!("{file} is a Clusterfile, not an image"))
            .hint(format!("-f of run means --force; run `imgctl apply -f {}`", quote(file)))),
        None => Ok(()),
    }
}

/// Returns `SEALOS_DATA_ROOT`, or `/var/lib/sealos` by default: a path on every host.
pub fn data_root(environment: &Environment) -> Result<String> {
    let root = environment.text("SEALOS_DATA_ROOT")?.unwrap_or(DATA_ROOT);
    let fits = root.starts_with('/')
        && root != "/"
        && root.split('/').all(|part| part != ".." && part != ".")
        && !root.chars().any(char::is_control);
    if fits {
        Ok(root.to_owned())
    } else {
        Err(Error::usage(format!(
            "SEALOS_DATA_ROOT is `{}`, which is not the absolute path of a directory",
            root.escape_debug()
        )))
    }
}

/// Returns this machine as a controller of clusters.
pub fn controller(context: &Context) -> Result<Controller> {
    let environment = &context.environment;
    let has_root = environment.path("SEALOS_RUNTIME_ROOT").or(environment.path("HOME")).is_some();
    Ok(Controller {
        state_root: has_root.then(|| runtime_root(environment)).transpose()?,
        state_identity: StateIdentity::file(context.settings.state_identity.clone()),
        data_root: data_root(environment)?,
        home: environment.path("HOME"),
        variables: environment.texts(),
        agent: environment.path("IMGCTL_AGENT"),
        agent_directory: environment.path("IMGCTL_AGENT_DIR"),
        user: match environment.text("SUDO_USER")? {
            None => environment.text("USER")?.map(str::to_owned),
            user => user.map(str::to_owned),
        },
        copy_state: environment.switch("SEALOS_SYNC_WORKDIR")?.unwrap_or(true),
        sync: context.settings.sync,
    })
}

/// Flags of every verb that changes a cluster.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Run options")]
pub struct WorkArgs {
    /// Show the plan and change nothing
    #[arg(long)]
    pub dry_run: bool,

    /// Maximum number of hosts to work on concurrently
    #[arg(long, value_name = "N", default_value_t = 32)]
    parallel: usize,

    /// Timeout of a command on a host: 90s, 10m, 2h; 0: none [env: SEALOS_EXECUTION_TIMEOUT]
    #[arg(long, value_name = "DURATION")]
    timeout: Option<String>,

    /// Number of retries after a lost connection [env: SEALOS_MAX_RETRY]
    #[arg(long, value_name = "N")]
    retries: Option<u32>,

    /// Treat a step with an unknown outcome as done (may be repeated)
    #[arg(long, value_name = "STEP")]
    assume_done: Vec<String>,

    /// Repeat a step, whatever its recorded outcome (may be repeated)
    #[arg(long, value_name = "STEP")]
    redo: Vec<String>,

    /// Treat a missing variable in a .tmpl file as an error
    #[arg(long)]
    strict_templates: bool,

    /// Send changed layers to hosts as differences; `auto`: if the line is slow
    #[arg(
        long,
        value_enum,
        value_name = "auto|always|never",
        default_value = "auto",
        hide_possible_values = true
    )]
    delta: DeltaArg,

    #[command(flatten)]
    report: RunReportArg,

    /// Validity of certificates: 90d, 10y; `sealos`: 100 years [default: CAs 10 years, others 1]
    #[arg(long, value_name = "DURATION")]
    certificate_validity: Option<String>,

    /// For crash tests: die after this number of journal records
    #[cfg(feature = "testing")]
    #[arg(long, hide = true, value_name = "N", env = "IMGCTL_DIE_AFTER")]
    die_after: Option<u64>,
}

impl WorkArgs {
    /// Returns the options that the flags and variables ask for.
    pub fn options(&self, context: &Context) -> Result<RunOptions> {
        self.report.request(context)?;
        let environment = &context.environment;
        let usual = Options::default();
        let timeout = match &self.timeout {
            Some(text) => Some(text.as_str()),
            None => environment.text("SEALOS_EXECUTION_TIMEOUT")?,
        };
        let retries = match self.retries {
            Some(retries) => retries,
            None => match environment.text("SEALOS_MAX_RETRY")? {
                Some(text) => text.parse().map_err(|_| {
                    Error::usage(format!("SEALOS_MAX_RETRY is `{text}`, not a number"))
                })?,
                None => usual.retries,
            },
        };
        Ok(RunOptions {
            draining: None,
            dry_run: self.dry_run,
            execution: Options {
                parallel: self.parallel.max(1),
                timeout: timeout.map(duration::parse).transpose()?.filter(|limit| !limit.is_zero()),
                retries,
                assume_done: self.assume_done.clone(),
                redo: self.redo.clone(),
                #[cfg(feature = "testing")]
                die_after: self.die_after,
                ..usual
            },
            strict_templates: self.strict_templates,
            delta: self.delta.into(),
            source: LayerSource::default(),
            validity: match self.certificate_validity.as_deref() {
                None => Validity::default(),
                Some("sealos") => Validity::sealos(),
                Some(text) => Validity::of_leaves(validity(text)?)?,
            },
        })
    }
}

/// Whether hosts get changed layers as differences.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
enum DeltaArg {
    #[default]
    Auto,
    Always,
    Never,
}

impl From<DeltaArg> for Delta {
    fn from(given: DeltaArg) -> Self {
        match given {
            DeltaArg::Auto => Self::Auto,
            DeltaArg::Always => Self::Always,
            DeltaArg::Never => Self::Never,
        }
    }
}

/// Parses a duration in which `y` is a year of 365 days.
fn validity(text: &str) -> Result<Duration> {
    match text.strip_suffix('y').and_then(|years| years.parse::<u64>().ok()) {
        Some(years) => Ok(Duration::from_secs(years.saturating_mul(365 * 86_400))),
        None => duration::parse(text),
    }
}

/// Default timeout for Nodes.
const LIMIT: Duration = Duration::from_secs(300);

/// Flags for waiting for Nodes.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Run options")]
pub struct WaitArgs {
    /// Fail unless Nodes are Ready within DURATION [default: 5m, where a network plugin (CNI) is installed]
    #[arg(
        long,
        value_name = "DURATION",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "5m"
    )]
    wait: Option<String>,

    /// Do not wait for Nodes to be Ready
    #[arg(long, conflicts_with = "wait")]
    no_wait: bool,
}

impl WaitArgs {
    /// Returns the behaviour that the flags request.
    pub fn wait(&self) -> Result<Wait> {
        match &self.wait {
            _ if self.no_wait => Ok(Wait::Never),
            Some(text) => Ok(match duration::parse(text)? {
                Duration::ZERO => Wait::Never,
                limit => Wait::Always(limit),
            }),
            None => Ok(Wait::WhereNetwork(LIMIT)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(variables: &[(&str, &str)]) -> Environment {
        Environment::new(
            variables.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect(),
        )
    }

    #[test]
    fn roots_are_where_sealos_has_them() {
        let home = environment(&[("HOME", "/home/x")]);
        assert_eq!(runtime_root(&home).unwrap(), Path::new("/home/x/.sealos"));
        assert_eq!(data_root(&home).unwrap(), "/var/lib/sealos");
        let set = environment(&[("SEALOS_RUNTIME_ROOT", "/r"), ("SEALOS_DATA_ROOT", "/d")]);
        assert_eq!(runtime_root(&set).unwrap(), Path::new("/r"));
        assert_eq!(data_root(&set).unwrap(), "/d");
        for wrong in ["d", "/", "/a/../b"] {
            assert!(data_root(&environment(&[("SEALOS_DATA_ROOT", wrong)])).is_err());
        }
    }
}
