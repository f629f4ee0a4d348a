//! `imgctl testbed`: hosts on this machine to try clusters on. Starts the program of `crate::testbed`, which
//! takes this process's place.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::{Args, Subcommand, ValueEnum};

use crate::testbed;
use imgctl_base::error::{Error, Result};
use imgctl_frontend::context::Context;

/// Where templates and the program are, unless `TESTBED_CACHE` says otherwise.
const CACHE: &str = "/var/cache/imgctl-testbed";

/// Start hosts on this machine to try clusters on
#[derive(Args, Debug)]
#[command(
    after_help = "Each host is a container of systemd-nspawn that boots systemd and has its own address, sshd,
name and files. Needs root on a Linux machine, and from Debian:
  apt-get install systemd-container debootstrap python3 iproute2 nftables openssh-client
The first `up` downloads Debian 12 for the hosts, which takes 2 to 3 minutes, and 140 MB in
/var/cache/imgctl-testbed.
Hosts are called h1, h2 and so on; the users root, ops, deploy and nosudo have the password test.

Examples:
  sudo imgctl testbed up 3
  sudo imgctl testbed list --json
  sudo imgctl testbed ssh h1
  sudo imgctl testbed cut h2
  sudo imgctl testbed down"
)]
pub(crate) struct TestbedArgs {
    /// Which test bed [env: TESTBED_NAME] [default: default]
    #[arg(long, value_name = "NAME", global = true)]
    name: Option<String>,

    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    Up(UpArgs),
    Down(AllArgs),
    List(ListArgs),
    Ssh(SshArgs),
    Exec(ExecArgs),
    Cut(CutArgs),
    Heal(HealArgs),
    Rate(RateArgs),
    Kill(HostArgs),
    Start(StartArgs),
    Stop(StopArgs),
    Reboot(RebootArgs),
    Disk(DiskArgs),
    Template(TemplateArgs),
    Prune(PruneArgs),
}

/// Start the hosts h1 to hN
#[derive(Args, Debug)]
#[command(after_help = "Existing hosts stay: `up 4` after `up 3` adds one. Prints the flags of
`imgctl run` for these hosts at the end. If it is interrupted, the same command continues.

Examples:
  sudo imgctl testbed up 3
  sudo imgctl testbed up 2 --with containerd --disk 4000
  sudo imgctl testbed up 3 --release trixie --hardened
  sudo imgctl testbed up 3 --mirror http://mirror.example.com/debian
  sudo imgctl testbed up 3 --name other")]
struct UpArgs {
    /// Number of hosts
    #[arg(value_name = "N")]
    count: u32,

    #[command(flatten)]
    template: TemplateOptions,

    /// Size of /var/lib of each new host, in MB [default: the machine's disk]
    #[arg(long, value_name = "MB")]
    disk: Option<u32>,

    /// Take the test bed down when this process ends
    #[arg(long, value_name = "PID")]
    owner: Option<u32>,
}

/// A release of Debian, as its mirrors call it.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Release {
    Bullseye,
    Bookworm,
    Trixie,
    Forky,
}

impl std::fmt::Display for Release {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(match self {
            Self::Bullseye => "bullseye",
            Self::Bookworm => "bookworm",
            Self::Trixie => "trixie",
            Self::Forky => "forky",
        })
    }
}

#[derive(Args, Debug)]
struct TemplateOptions {
    /// Release of Debian that the hosts have [default: bookworm]
    #[arg(long, value_name = "RELEASE")]
    release: Option<Release>,

    /// Set the hosts up as the benchmarks of CIS and STIG require
    #[arg(long)]
    hardened: bool,

    /// Further Debian packages, separated by commas; containerd brings runc and CNI plugins
    #[arg(long, value_name = "PACKAGES")]
    with: Option<String>,

    /// Debian mirror that the hosts' system comes from [env: TESTBED_MIRROR] [default:
    /// http://deb.debian.org/debian]
    #[arg(long, value_name = "URL")]
    mirror: Option<String>,
}

/// Remove the test bed: its processes, network and files
#[derive(Args, Debug)]
#[command(
    after_help = "Also removes what a killed `up` has left. The template stays; `prune` removes it.

Examples:
  sudo imgctl testbed down
  sudo imgctl testbed down --all"
)]
struct AllArgs {
    /// Every test bed of this machine
    #[arg(long)]
    all: bool,
}

/// Show the hosts with their addresses and states, the key and the users
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  sudo imgctl testbed list
  sudo imgctl testbed list --all --json")]
struct ListArgs {
    /// Every test bed of this machine
    #[arg(long)]
    all: bool,
}

/// Log in to a host, or run a command there, over its network
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  sudo imgctl testbed ssh h1
  sudo imgctl testbed ssh ops@h2 uptime")]
struct SshArgs {
    /// Host: h2, 2 or its address
    #[arg(value_name = "[USER@]HOST")]
    host: String,

    /// Command and arguments
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<OsString>,
}

/// Run a command in a host as root, not over its network
#[derive(Args, Debug)]
#[command(
    after_help = "Works on a host that is cut off, too. One argument is a shell line, several are the words of
a command.

Examples:
  sudo imgctl testbed exec h1 'journalctl -b | tail'
  sudo imgctl testbed exec h1 ip addr"
)]
struct ExecArgs {
    /// Host: h2, 2 or its address
    host: String,

    /// Command and arguments [default: a shell]
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<OsString>,
}

/// Cut a host off, or two hosts from each other
#[derive(Args, Debug)]
#[command(
    after_help = "The link stays up, as behind a dead switch. `controller` is this machine's link to the
test bed.

Examples:
  sudo imgctl testbed cut h2
  sudo imgctl testbed cut h1 h3
  sudo imgctl testbed cut controller"
)]
struct CutArgs {
    /// Host: h2, 2 or its address; or controller
    host: String,

    /// The other host
    other: Option<String>,
}

/// Undo cuts
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  sudo imgctl testbed heal
  sudo imgctl testbed heal h2")]
struct HealArgs {
    /// Host: h2, 2 or its address; or controller [default: all]
    host: Option<String>,

    /// The other host
    other: Option<String>,
}

/// Limit the link of a host in both directions
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  sudo imgctl testbed rate h1 100
  sudo imgctl testbed rate controller 0")]
struct RateArgs {
    /// Host: h2, 2 or its address; or controller
    host: String,

    /// Mbit/s; 0 is no limit
    mbit: u32,
}

/// Lose a host: its link and then all its processes
#[derive(Args, Debug)]
#[command(
    after_help = "Peers receive nothing, not even the end of connections. `start` boots the host with the files
it had.

Examples:
  sudo imgctl testbed kill h2"
)]
struct HostArgs {
    /// Host: h2, 2 or its address
    host: String,
}

/// Switch a host on and wait until it has booted
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  sudo imgctl testbed start h2")]
struct StartArgs {
    /// Host: h2, 2 or its address
    host: String,
}

/// Shut a host down
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  sudo imgctl testbed stop h2")]
struct StopArgs {
    /// Host: h2, 2 or its address
    host: String,
}

/// Reboot a host and wait until it has booted
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  sudo imgctl testbed reboot h2")]
struct RebootArgs {
    /// Host: h2, 2 or its address
    host: String,
}

/// Give /var/lib of a host a size
#[derive(Args, Debug)]
#[command(
    after_help = "/var/lib becomes a file system of that size, with the content it had on the machine's
disk.

Examples:
  sudo imgctl testbed disk h1 500
  sudo imgctl testbed disk h1 0"
)]
struct DiskArgs {
    /// Host: h2, 2 or its address
    host: String,

    /// Size in MB; 0 is the machine's disk
    #[arg(value_name = "MB")]
    megabytes: u32,
}

/// Create the template of the hosts and print where it is
#[derive(Args, Debug)]
#[command(
    after_help = "`up` does it, too. With a template of the same packages, `up` needs no network.

Examples:
  sudo imgctl testbed template
  sudo imgctl testbed template --with containerd"
)]
struct TemplateArgs {
    #[command(flatten)]
    template: TemplateOptions,
}

/// Remove templates that no test bed uses and that this version does not make
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  sudo imgctl testbed prune")]
struct PruneArgs {}

/// The words of the program's command line.
struct Words(Vec<OsString>);

impl Words {
    fn new(verb: &str) -> Self {
        Self(vec![verb.into()])
    }

    fn operands<T: Into<OsString>>(mut self, operands: impl IntoIterator<Item = T>) -> Self {
        self.0.extend(operands.into_iter().map(Into::into));
        self
    }

    fn flag(self, name: &str, given: bool) -> Self {
        self.operands(given.then_some(name))
    }

    fn option(self, name: &str, value: Option<impl ToString>) -> Self {
        self.operands(value.map(|value| format!("{name}={}", value.to_string())))
    }

    fn template(self, options: &TemplateOptions) -> Self {
        self.option("--release", options.release)
            .flag("--hardened", options.hardened)
            .option("--with", options.with.as_ref())
            .option("--mirror", options.mirror.as_ref())
    }
}

impl Verb {
    fn words(&self) -> Words {
        match self {
            Self::Up(args) => Words::new("up")
                .template(&args.template)
                .option("--disk", args.disk)
                .option("--owner", args.owner)
                .operands([args.count.to_string()]),
            Self::Down(args) => Words::new("down").flag("--all", args.all),
            Self::List(args) => Words::new("list").flag("--all", args.all),
            Self::Ssh(args) => Words::new("ssh").operands([&args.host]).operands(&args.command),
            Self::Exec(args) => Words::new("exec").operands([&args.host]).operands(&args.command),
            Self::Cut(args) => Words::new("cut").operands([&args.host]).operands(&args.other),
            Self::Heal(args) => Words::new("heal").operands(&args.host).operands(&args.other),
            Self::Rate(args) => {
                Words::new("rate").operands([&args.host]).operands([args.mbit.to_string()])
            }
            Self::Kill(args) => Words::new("kill").operands([&args.host]),
            Self::Start(args) => Words::new("start").operands([&args.host]),
            Self::Stop(args) => Words::new("stop").operands([&args.host]),
            Self::Reboot(args) => Words::new("reboot").operands([&args.host]),
            Self::Disk(args) => {
                Words::new("disk").operands([&args.host]).operands([args.megabytes.to_string()])
            }
            Self::Template(args) => Words::new("template").template(&args.template),
            Self::Prune(_) => Words::new("prune"),
        }
    }
}

/// Ends only if the program cannot be started: it takes the place of this process.
pub(crate) fn run(args: &TestbedArgs, context: &Context) -> Result<()> {
    let mut command = program(context)?;
    for (flag, given) in [("--json", context.ui.is_json()), ("--quiet", context.ui.is_quiet())] {
        command.args(given.then_some(flag));
    }
    command.args(args.name.as_ref().map(|name| format!("--name={name}")));
    command.args(args.verb.words().0);
    Err(Error::io("cannot start python3", command.exec()))
}

/// Returns the program of the test bed, without arguments.
pub(crate) fn program(context: &Context) -> Result<Command> {
    if !rustix::process::geteuid().is_root() {
        return Err(Error::denied(
            "the test bed needs root: its hosts have namespaces, mounts and devices",
        )
        .hint("run the same command with sudo"));
    }
    let python = python(context)?;
    let cache = context.environment.path("TESTBED_CACHE");
    let main = testbed::unpack(cache.as_deref().unwrap_or(Path::new(CACHE)))?;
    let mut command = Command::new(python);
    // Neither variables for Python nor modules of a user change what runs.
    command.args(["-E", "-s", "-B"]).arg(main).env("TESTBED_PROGRAM", "imgctl testbed");
    Ok(command)
}

/// Debian's own Python if there is one, otherwise the first in the path.
fn python(context: &Context) -> Result<PathBuf> {
    let path = context.environment.get("PATH").unwrap_or_default();
    let found = std::iter::once(PathBuf::from("/usr/bin"))
        .chain(std::env::split_paths(path).filter(|directory| directory.is_absolute()))
        .map(|directory| directory.join("python3"))
        .find(|program| program.is_file());
    found.ok_or_else(|| {
        Error::failed("python3 is not installed; the test bed needs it").hint(
            "apt-get install systemd-container debootstrap python3 iproute2 nftables openssh-client",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: TestbedArgs,
    }

    #[test]
    fn flags_become_the_words_of_the_program() {
        for (line, words) in [
            ("up 3", "up 3"),
            (
                "up --with containerd 2 --disk 400 --mirror http://m",
                "up --with=containerd --mirror=http://m --disk=400 2",
            ),
            ("down --all", "down --all"),
            ("exec 2 ls -l --all", "exec 2 ls -l --all"),
            ("ssh ops@h1", "ssh ops@h1"),
            ("cut h1 h2", "cut h1 h2"),
            ("heal", "heal"),
            ("rate controller 0", "rate controller 0"),
            ("disk 1 40", "disk 1 40"),
            ("template --with curl", "template --with=curl"),
            ("up --hardened --release forky 1", "up --release=forky --hardened 1"),
        ] {
            let line =
                Line::try_parse_from(["testbed"].into_iter().chain(line.split(' '))).unwrap();
            assert_eq!(line.args.verb.words().0, words.split(' ').collect::<Vec<_>>());
        }
    }
}
