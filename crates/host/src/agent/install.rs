//! Selects the program that runs as the agent on a host, and builds the shell commands that start
//! or install it.
//!
//! A program is stored under its digest, so that each version and architecture is sent once. Must
//! not depend on connections.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use crate::agent::{facts, wire};
use imgctl_base::error::{Error, IoContext, Result};
use imgctl_base::image::Hasher;
use imgctl_base::quote::quote;

/// Directory for agent programs on a host.
pub const DIRECTORY: &str = "/var/lib/imgctl/agent";
/// Prefix of a program's name, followed by its digest.
const NAME: &str = "imgctl-agent-";
/// Number of programs to keep on a host: the current one and the previous one.
const KEPT: usize = 2;
/// Number of bytes at the beginning of a program that identify its machine.
const HEAD: u64 = 64;
/// Machine names reported by `uname -m`, by the `e_machine` field of ELF.
const MACHINES: [(u16, &[&str]); 7] = [
    (62, &["x86_64", "amd64"]),
    (183, &["aarch64", "arm64"]),
    (40, &["armv7l", "armv8l", "armv6l"]),
    (243, &["riscv64"]),
    (22, &["s390x"]),
    (21, &["ppc64le"]),
    (258, &["loongarch64"]),
];

/// Where packages install programs for other architectures, relative to the directory of the
/// running program (`/usr/bin`, `/usr/local/bin`, `~/.local/bin`).
const PACKAGED: &str = "../lib/imgctl";

/// The programs that can become agents.
///
/// The running program does not contain those of other architectures: that would double the
/// download of everybody for the sake of clusters with several architectures, which are rare.
/// Cluster images do not contain them either, because an agent must have this program's version.
pub struct Binaries {
    /// The running program.
    own: PathBuf,
    /// A program to prefer on every host that it can run on.
    given: Option<PathBuf>,
    /// Holds `imgctl-linux-<architecture>`, to prefer on their hosts.
    directory: Option<PathBuf>,
    /// May hold more of them, for hosts that the running program does not run on.
    installed: Vec<PathBuf>,
    /// Programs that were chosen for a host, by path.
    known: Mutex<HashMap<PathBuf, Arc<Binary>>>,
}

#[derive(Debug)]
pub(super) struct Binary {
    pub(super) path: PathBuf,
    pub(super) size: u64,
    hex: String,
}

impl Binary {
    /// Reads the whole program, which has tens of megabytes: call it only for one that a host gets.
    fn read(path: &Path) -> Result<Self> {
        let mut file = File::open(path).path("open", path)?;
        let (mut hasher, mut size) = (Hasher::new(), 0);
        let mut buffer = vec![0; 1 << 20];
        loop {
            let count = file.read(&mut buffer).path("read", path)?;
            let part = buffer.get(..count).unwrap_or_default();
            if part.is_empty() {
                break;
            }
            hasher.update(part);
            size += part.len() as u64;
        }
        Ok(Self { path: path.to_owned(), size, hex: hasher.finish().hex().to_owned() })
    }

    /// Returns the program's path on a host.
    fn place(&self, directory: &str) -> String {
        format!("{directory}/{NAME}{}", self.hex)
    }
}

/// Returns the files of `directory` whose names say that they run on `machine`.
fn named(directory: &Path, machine: &str) -> Vec<PathBuf> {
    let mut names = vec![facts::architecture(machine), machine];
    names.dedup();
    let paths = names.iter().map(|name| directory.join(format!("imgctl-linux-{name}")));
    paths.filter(|path| path.is_file()).collect()
}

/// Returns whether the program runs on `machine`. A script runs anywhere.
fn runs_on(path: &Path, machine: &str) -> Result<bool> {
    let mut head = Vec::new();
    let file = File::open(path).path("open", path)?;
    file.take(HEAD).read_to_end(&mut head).path("read", path)?;
    match machines(&head) {
        Some(machines) => Ok(machines.contains(&machine)),
        None if head.starts_with(b"#!") => Ok(true),
        None => Err(Error::usage(format!(
            "{} is not a program that a Linux host can run",
            path.display()
        ))
        .hint("pass an imgctl for Linux with IMGCTL_AGENT")),
    }
}

/// Returns the machines that an ELF program runs on.
fn machines(head: &[u8]) -> Option<&'static [&'static str]> {
    let is_elf = head.starts_with(b"\x7fELF");
    let little_endian = head.get(5) == Some(&1);
    let bytes: [u8; 2] = head.get(18..20)?.try_into().ok()?;
    let machine = if little_endian { u16::from_le_bytes(bytes) } else { u16::from_be_bytes(bytes) };
    let known = MACHINES.iter().find(|(number, _)| *number == machine);
    known.filter(|_| is_elf).map(|(_, names)| *names)
}

impl Binaries {
    /// `own` is the running program, and `given` is preferred wherever it can run. Others are
    /// `imgctl-linux-<architecture>` in `directory`, beside the running program, or in `lib/imgctl`
    /// beside its directory.
    pub fn new(own: PathBuf, given: Option<PathBuf>, directory: Option<PathBuf>) -> Self {
        // /proc/self/exe is a link; a name that ends with ` (deleted)` still has the right parent.
        let place = own.read_link().unwrap_or_else(|_| own.clone());
        let parent = place.parent().filter(|_| place.is_absolute());
        let installed =
            parent.map_or_else(Vec::new, |parent| vec![parent.to_owned(), parent.join(PACKAGED)]);
        Self { own, given, directory, installed, known: Mutex::default() }
    }

    fn read(&self, path: &Path) -> Result<Arc<Binary>> {
        // Other threads wait, because they need the same file.
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(binary) = known.get(path) {
            return Ok(Arc::clone(binary));
        }
        let binary = Arc::new(Binary::read(path)?);
        known.insert(path.to_owned(), Arc::clone(&binary));
        Ok(binary)
    }

    /// Returns the program for hosts where `uname -m` prints `machine`.
    fn find(&self, machine: &str) -> Result<Option<Arc<Binary>>> {
        let mut paths = Vec::from_iter(self.given.clone());
        paths.extend(self.directory.iter().flat_map(|directory| named(directory, machine)));
        paths.push(self.own.clone());
        paths.extend(self.installed.iter().flat_map(|directory| named(directory, machine)));
        for path in paths {
            if runs_on(&path, machine)? {
                return self.read(&path).map(Some);
            }
        }
        Ok(None)
    }

    /// Returns the program for a host that reports `system` and `machine`.
    pub(super) fn for_host(&self, system: &str, machine: &str) -> Result<Arc<Binary>> {
        if system != "Linux" {
            return Err(Error::failed(format!("it runs {system}, not Linux")));
        }
        let name = facts::architecture(machine);
        self.find(machine)?.ok_or_else(|| {
            Error::not_found(format!(
                "its architecture is {name} ({machine}), and there is no imgctl for it on \
                 this machine"
            ))
            .hint(format!(
                "install the package imgctl-agents of this version, or put imgctl-linux-{name} \
                 beside imgctl or into a directory that IMGCTL_AGENT_DIR names"
            ))
        })
    }

    /// Returns the program for the local machine: by its path if it still exists, otherwise as the
    /// kernel holds it.
    fn local(&self) -> PathBuf {
        if let Some(given) = &self.given {
            return given.clone();
        }
        let own = self.own.read_link().unwrap_or_else(|_| self.own.clone());
        if own.is_absolute() && own.is_file() {
            own
        } else {
            PathBuf::from(format!("/proc/{}/exe", std::process::id()))
        }
    }

    /// Returns the command that starts the agent on the local machine.
    pub(super) fn local_line(&self, root: Option<&str>) -> String {
        let path = self.local();
        format!("exec {}{}", quote(&path.to_string_lossy()), arguments(root))
    }

    /// Returns the command that starts the agent on a host that has it, and otherwise prints the
    /// host's system and machine.
    pub(super) fn line(&self, directory: &str, root: Option<&str>) -> Result<String> {
        let mut cases = String::new();
        for (_, machines) in &MACHINES[..2] {
            let Some(binary) = machines.first().map(|name| self.find(name)).transpose()? else {
                continue;
            };
            if let Some(binary) = binary {
                let _ = write!(
                    cases,
                    "{}) f={} n={};; ",
                    machines.join("|"),
                    quote(&binary.place(directory)),
                    binary.size
                );
            }
        }
        let arguments = arguments(root);
        let needed = wire::NEEDED;
        Ok(format!(
            "f=; case \"$(uname -m)\" in {cases}*) ;; esac; \
             if [ -n \"$f\" ] && [ -x \"$f\" ] && [ \"$(wc -c <\"$f\")\" -eq \"$n\" ]; \
             then exec \"$f\"{arguments}; fi; \
             echo; echo \"{needed} $(uname -s) $(uname -m)\""
        ))
    }

    /// Returns the command that starts a program that has just been uploaded.
    pub(super) fn started_line(binary: &Binary, directory: &str, root: Option<&str>) -> String {
        let place = quote(&binary.place(directory));
        format!("exec {place}{}", arguments(root))
    }

    /// Returns the command that reads a program from stdin, verifies it, moves it into place and
    /// removes old ones.
    pub(super) fn upload_line(binary: &Binary, directory: &str) -> String {
        let (directory, place) = (quote(directory), quote(&binary.place(directory)));
        let (size, hex) = (binary.size, &binary.hex);
        let older = KEPT + 1;
        format!(
            "set -e; umask 022; d={directory}; f={place}; t=\"$d/.upload-$$\"; mkdir -p \"$d\"; \
             trap 'rm -f \"$t\"' EXIT; trap 'exit 1' HUP INT TERM; \
             cat >\"$t\"; n=$(wc -c <\"$t\"); \
             if [ \"$n\" -ne {size} ]; then echo \"$n of {size} bytes arrived\" >&2; exit 1; fi; \
             if command -v sha256sum >/dev/null 2>&1; then case \"$(sha256sum <\"$t\")\" in {hex}*) ;; \
             *) echo 'other bytes arrived than were sent' >&2; exit 1;; esac; fi; \
             chmod 0755 \"$t\"; mv -f \"$t\" \"$f\"; \
             (ls -t \"$d\" | grep '^{NAME}' | tail -n +{older} | while read -r o; do rm -f \"$d/$o\"; done; \
             find \"$d\" -name '.upload-*' -mmin +60 -exec rm -f {{}} +) >/dev/null 2>&1 || :"
        )
    }
}

fn arguments(root: Option<&str>) -> String {
    let root = root.map(|root| format!(" --root {}", quote(root)));
    format!("{} agent --stdio", root.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use imgctl_base::error::Kind;

    fn elf(machine: u16) -> Vec<u8> {
        let mut head = b"\x7fELF\x02\x01\x01".to_vec();
        head.resize(18, 0);
        head.extend(machine.to_le_bytes());
        head.resize(100, 0);
        head
    }

    #[test]
    fn each_architecture_gets_its_program() {
        let directory = tempfile::tempdir().unwrap();
        let write = |name: &str, bytes: &[u8]| {
            let path = directory.path().join(name);
            std::fs::write(&path, bytes).unwrap();
            path
        };
        std::fs::create_dir(directory.path().join("running")).unwrap();
        let own = write("running/own", &elf(62));
        let arm = write("imgctl-linux-arm64", &elf(183));
        let given = write("given", &elf(243));
        let with = |given: Option<&PathBuf>, others: bool| {
            let others = others.then(|| directory.path().to_owned());
            Binaries::new(own.clone(), given.cloned(), others)
        };
        for (binaries, machine, expected) in [
            (with(None, false), "x86_64", Some(&own)),
            (with(None, false), "aarch64", None),
            (with(None, true), "aarch64", Some(&arm)),
            (with(None, true), "x86_64", Some(&own)),
            (with(Some(&given), true), "riscv64", Some(&given)),
            (with(Some(&given), true), "x86_64", Some(&own)),
        ] {
            let found = binaries.for_host("Linux", machine);
            assert_eq!(found.ok().map(|found| found.path.clone()), expected.cloned());
        }
        // What packages install counts where the running program does not run, and only there.
        let packaged = directory.path().join("usr/lib/imgctl/imgctl-linux-arm64");
        let program = directory.path().join("usr/bin/imgctl");
        for (path, machine) in [(&packaged, 183), (&program, 62)] {
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, elf(machine)).unwrap();
        }
        std::fs::write(packaged.with_file_name("imgctl-linux-amd64"), elf(62)).unwrap();
        let binaries = Binaries::new(program.clone(), None, None);
        let found = |machine| binaries.for_host("Linux", machine).unwrap().path.clone();
        assert_eq!(found("aarch64").canonicalize().unwrap(), packaged.canonicalize().unwrap());
        assert_eq!(found("x86_64"), program);
        let beside = program.with_file_name("imgctl-linux-arm64");
        std::fs::write(&beside, elf(183)).unwrap();
        assert_eq!(Binaries::new(program, None, None).find("arm64").unwrap().unwrap().path, beside);
        let error = with(None, false).for_host("Linux", "aarch64").unwrap_err();
        assert!(error.hints()[0].contains("imgctl-linux-arm64"), "{error}");
        assert!(with(None, false).for_host("Darwin", "arm64").is_err());
        let text = write("text", b"no program");
        let error = with(Some(&text), false).for_host("Linux", "x86_64");
        assert_eq!(error.unwrap_err().kind(), Kind::Usage);
    }

    fn shell(line: &str, input: &[u8]) -> std::process::Output {
        use std::io::Write;
        let mut child = std::process::Command::new("/bin/sh")
            .args(["-c", line])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let _ = child.stdin.take().unwrap().write_all(input);
        child.wait_with_output().unwrap()
    }

    #[test]
    fn a_program_is_put_in_place_once_and_old_ones_are_swept() {
        let directory = tempfile::tempdir().unwrap();
        let kept = directory.path().join("it's here/agent");
        let kept = kept.to_str().unwrap();
        for number in 1..=4 {
            let script = format!("#!/bin/sh\necho started {number} \"$@\"\n");
            let path = directory.path().join("given");
            std::fs::write(&path, &script).unwrap();
            let binaries = Binaries::new(path.clone(), Some(path), None);
            let line = binaries.line(kept, Some("/r'x")).unwrap();
            let needs = shell(&line, b"");
            let said = String::from_utf8(needs.stdout).unwrap();
            assert!(said.starts_with("\nimgctl-agent-needed Linux "), "{said}");
            let binary = binaries.for_host("Linux", "x86_64").unwrap();
            let upload = Binaries::upload_line(&binary, kept);
            for broken in [&script[..10], &script.replace("echo", "ehco")] {
                assert!(!shell(&upload, broken.as_bytes()).status.success());
            }
            assert!(shell(&upload, script.as_bytes()).status.success());
            let said = String::from_utf8(shell(&line, b"").stdout).unwrap();
            let expected = format!("started {number} --root /r'x agent --stdio\n");
            assert_eq!(said, expected);
            let count = std::fs::read_dir(kept).unwrap().count();
            assert_eq!(count, usize::min(number, KEPT), "no leftovers");
        }
    }
}
