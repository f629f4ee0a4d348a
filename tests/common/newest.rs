//! Tools of Debian's newest suite, in a file system of their own (`scripts/referees`).

use std::path::PathBuf;
use std::process::Command;

use super::{Ran, TestEnv, needs_root, repository};

/// Runs a tool of that file system (`$1`) as it is for the next one, with the directory `$2` of the test in its
/// place, in a mount namespace. A `$3` that is not empty is the working directory.
const INSIDE: &str = r#"
set -e
root=$1 work=$2 directory=$3
shift 3
mount -t tmpfs tmpfs /mnt
mkdir /mnt/upper /mnt/work /mnt/root
mount -t overlay overlay -o "lowerdir=$root,upperdir=/mnt/upper,workdir=/mnt/work" /mnt/root
mount -t proc proc /mnt/root/proc
mount --rbind /dev /mnt/root/dev
mount --rbind /sys /mnt/root/sys
mkdir -p "/mnt/root$work" /mnt/root/etc/containers/registries.d
mount --rbind "$work" "/mnt/root$work"
for file in "$work"/.config/containers/registries.d/*; do
  [ ! -e "$file" ] || cp "$file" /mnt/root/etc/containers/registries.d/
done
exec chroot /mnt/root env -C "$directory" "$@"
"#;

/// The file system of the tools.
pub(crate) struct Newest {
    root: PathBuf,
}

impl Newest {
    /// `None` if `program` (a path in that file system) is not there, or without root.
    pub(crate) fn with(program: &str) -> Option<Self> {
        if !needs_root() {
            return None;
        }
        let root = repository().join("target/referees/tools");
        if !root.join(program).exists() {
            imgctl_base::testing::skip("scripts/referees has not run");
            return None;
        }
        Some(Self { root: std::fs::canonicalize(root).unwrap() })
    }

    /// A command of a tool in the directory `directory` of the test, not yet run, with a clean environment.
    pub(crate) fn command(&self, env: &TestEnv, directory: &str, words: &[&str]) -> Command {
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "sh", "-c", INSIDE, "sh"]);
        command.arg(&self.root).arg(env.path("")).arg(env.path(directory)).args(words);
        command.env_clear().env("HOME", "/root").env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
        command.current_dir("/");
        command
    }

    /// Runs a tool in the test's directory.
    pub(crate) fn run(&self, env: &TestEnv, words: &[&str]) -> Ran {
        Ran::new(self.command(env, "", words))
    }

    /// The version of a package, without what only Debian adds.
    pub(crate) fn version(&self, package: &str) -> String {
        let status = std::fs::read_to_string(self.root.join("var/lib/dpkg/status")).unwrap();
        let begin = format!("Package: {package}\n");
        let paragraph = status.split("\n\n").find(|paragraph| paragraph.starts_with(&begin));
        let paragraph = paragraph.unwrap_or_else(|| panic!("{package} is not installed"));
        let version = paragraph.lines().find_map(|line| line.strip_prefix("Version: ")).unwrap();
        short_version(version)
    }
}

/// The version of upstream in a version of Debian: `28.5.2` of `28.5.2+dfsg4-5`.
pub(crate) fn short_version(version: &str) -> String {
    let version = version.rsplit_once(':').map_or(version, |(_, version)| version);
    version.split(['+', '-', '~']).next().unwrap_or_default().to_owned()
}
