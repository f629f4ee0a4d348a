//! Which programs for other machines the kernel can run, and what to tell users when it cannot: the
//! emulators that are registered with binfmt_misc. Executes nothing of the image.

use std::fs;
use std::io::{ErrorKind, Read, Write as _};
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Where the kernel shows its registrations.
const REGISTRATIONS: &str = "/proc/sys/fs/binfmt_misc";
/// Maximum size of one registration, in bytes.
const MAX_ENTRY: u64 = 4096;
/// Number of bytes at the beginning of a program that a registration can compare.
const HEAD: u64 = 256;
/// How long to retry executing a file that a fork of this process still holds open for writing.
const PATIENCE: Duration = Duration::from_secs(5);

/// ELF machine number of this machine (elf(5), `e_machine`).
const MACHINE: u16 = if cfg!(target_arch = "aarch64") { 183 } else { 62 };
/// The machines that registrations and packages of emulators exist for, by that number.
const NAMES: [(u16, &str); 8] = [
    (3, "386"),
    (8, "mips"),
    (21, "ppc64le"),
    (22, "s390x"),
    (40, "arm"),
    (62, "amd64"),
    (183, "arm64"),
    (243, "riscv64"),
];

/// An interpreter that is registered with the kernel.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Emulator {
    interpreter: PathBuf,
    /// The kernel holds the interpreter open (flag F), so it need not be in the image.
    is_open: bool,
    offset: usize,
    magic: Vec<u8>,
    mask: Vec<u8>,
}

/// Returns the registered emulators, or `None` if this process does not see the registrations, as in
/// most containers. Must be called while the host's `/proc` is still mounted.
pub(super) fn registered() -> Option<Vec<Emulator>> {
    let directory = Path::new(REGISTRATIONS);
    let status = fs::read_to_string(directory.join("status")).ok()?;
    if status.trim() != "enabled" {
        return Some(Vec::new());
    }
    let entries = fs::read_dir(directory).ok()?.flatten();
    let entries = entries.filter(|entry| entry.file_name() != "register");
    let texts = entries.filter_map(|entry| {
        let mut text = String::new();
        fs::File::open(entry.path()).ok()?.take(MAX_ENTRY).read_to_string(&mut text).ok()?;
        Some(text)
    });
    Some(texts.filter_map(|text| parse(&text)).collect())
}

/// Parses a registration; `None` if it is disabled, or chosen by extension.
fn parse(text: &str) -> Option<Emulator> {
    let mut lines = text.lines();
    if lines.next() != Some("enabled") {
        return None;
    }
    let mut emulator = Emulator {
        interpreter: PathBuf::new(),
        is_open: false,
        offset: 0,
        magic: Vec::new(),
        mask: Vec::new(),
    };
    for line in lines {
        let (name, value) = line.split_once(' ')?;
        match name {
            "interpreter" => emulator.interpreter = PathBuf::from(value),
            "flags:" => emulator.is_open = value.contains('F'),
            "offset" => emulator.offset = value.parse().ok()?,
            "magic" => emulator.magic = hex(value)?,
            "mask" => emulator.mask = hex(value)?,
            _ => {}
        }
    }
    Some(emulator).filter(|emulator| !emulator.magic.is_empty())
}

fn hex(text: &str) -> Option<Vec<u8>> {
    if !text.len().is_multiple_of(2) {
        return None;
    }
    let digits = text.as_bytes().chunks(2);
    digits.map(|pair| u8::from_str_radix(str::from_utf8(pair).ok()?, 16).ok()).collect()
}

impl Emulator {
    fn is_for(&self, head: &[u8]) -> bool {
        let Some(there) = head.get(self.offset..self.offset + self.magic.len()) else {
            return false;
        };
        there.iter().zip(&self.magic).enumerate().all(|(index, (byte, magic))| {
            let mask = self.mask.get(index).copied().unwrap_or(0xff);
            byte & mask == magic & mask
        })
    }
}

/// Returns why `program`, a path in the root of this process, cannot run on this machine; `None` if
/// it can, as far as can be known.
pub(super) fn check(program: &Path, registered: Option<&[Emulator]>) -> Option<String> {
    let head = head(program)?;
    let machine = machine_of(&head).filter(|machine| *machine != MACHINE)?;
    let Some(registered) = registered else {
        // Programs of the 32-bit mode would start, and the system call filter would kill them.
        let refused = is_compatible(machine) || is_refused(&head).unwrap_or(false);
        return refused.then(|| missing(program, machine));
    };
    match registered.iter().find(|emulator| emulator.is_for(&head)) {
        None => Some(missing(program, machine)),
        Some(emulator) if !emulator.is_open && !emulator.interpreter.exists() => Some(format!(
            "cannot run {}: its emulator {} is registered without the flag F, and the image does not \
             contain it; {}",
            program.display(),
            emulator.interpreter.display(),
            remedy(machine),
        )),
        Some(_) => None,
    }
}

/// Asks the kernel whether it has an emulator for programs that begin with `head`, by executing this
/// beginning alone: if there is an emulator, the emulator fails instead.
fn is_refused(head: &[u8]) -> std::io::Result<bool> {
    const ENOEXEC: i32 = 8;
    let memory = rustix::fs::memfd_create("probe", rustix::fs::MemfdFlags::CLOEXEC)?;
    let mut file = fs::File::from(memory);
    file.write_all(head)?;
    // A file that is open for writing cannot be executed.
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let file = {
        let readable = fs::File::open(&path)?;
        drop(file);
        readable
    };
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let mut command = Command::new(path);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).env_clear();
    let begun = Instant::now();
    loop {
        match command.spawn() {
            Ok(mut child) => return child.wait().map(|_| false),
            // Another thread forked while the file was open for writing; its child closes it soon.
            Err(error)
                if error.kind() == ErrorKind::ExecutableFileBusy && begun.elapsed() < PATIENCE =>
            {
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(error) => return Ok(error.raw_os_error() == Some(ENOEXEC)),
        }
    }
}

fn head(program: &Path) -> Option<Vec<u8>> {
    let mut head = Vec::new();
    fs::File::open(program).ok()?.take(HEAD).read_to_end(&mut head).ok()?;
    Some(head)
}

/// Returns the machine that an ELF program is for; `None` for other files, 0 for a big-endian one.
fn machine_of(head: &[u8]) -> Option<u16> {
    let number: [u8; 2] = head.get(18..20)?.try_into().ok()?;
    let is_little = head.get(5) == Some(&1);
    Some(if is_little { u16::from_le_bytes(number) } else { 0 })
        .filter(|_| head.starts_with(b"\x7fELF"))
}

/// Whether the kernel of this machine runs programs for `machine` itself.
fn is_compatible(machine: u16) -> bool {
    machine == if cfg!(target_arch = "aarch64") { 40 } else { 3 }
}

fn missing(program: &Path, machine: u16) -> String {
    let known = NAMES.iter().find(|(number, _)| *number == machine);
    format!(
        "cannot run {}: it is built for another architecture ({}; this machine is {}), and no emulator \
         is registered for it; {}",
        program.display(),
        known.map_or_else(|| format!("ELF machine {machine}"), |(_, name)| (*name).to_owned()),
        own(),
        remedy(machine),
    )
}

fn remedy(machine: u16) -> String {
    let known = NAMES.iter().find(|(number, _)| *number == machine);
    format!(
        "install one (Debian, Ubuntu: qemu-user-static; with docker: docker run --privileged --rm \
         tonistiigi/binfmt --install {}), or build with --platform linux/{}",
        known.map_or("all", |(_, name)| *name),
        own(),
    )
}

/// The OCI architecture of this machine.
fn own() -> &'static str {
    if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QEMU: &str = "enabled\ninterpreter /usr/bin/qemu-riscv64-static\nflags: F\noffset 0\n\
        magic 7f454c460201010000000000000000000200f300\n\
        mask ffffffffffffff00fffffffffffffffffeffffff\n";

    fn elf(machine: u16) -> Vec<u8> {
        let mut head = b"\x7fELF\x02\x01\x01".to_vec();
        head.resize(16, 0);
        head.extend([3, 0]);
        head.extend(machine.to_le_bytes());
        head.resize(64, 0);
        head
    }

    #[test]
    fn registrations_are_read_as_the_kernel_shows_them() {
        let emulator = parse(QEMU).unwrap();
        assert!(emulator.is_open);
        assert!(emulator.is_for(&elf(243)), "the mask ignores the lowest bit of the type");
        assert!(!emulator.is_for(&elf(183)));
        assert!(!emulator.is_for(&elf(243)[..10]));
        assert_eq!(parse(&QEMU.replace("enabled", "disabled")), None);
        let jar = "enabled\ninterpreter /usr/bin/jexec\nflags: \nextension .jar\n";
        assert_eq!(parse(jar), None);
        assert_eq!(parse(&QEMU.replace("7f45", "7f4")), None);
        let plain: String =
            QEMU.lines().take(5).map(|line| format!("{line}\n")).collect::<String>();
        assert!(!parse(&plain).unwrap().is_for(&elf(243)), "without a mask the type counts");
    }

    #[test]
    fn only_an_emulator_for_the_machine_of_the_program_counts() {
        let directory = tempfile::tempdir().unwrap();
        let write = |name: &str, bytes: &[u8]| {
            let path = directory.path().join(name);
            fs::write(&path, bytes).unwrap();
            path
        };
        let foreign = write("foreign", &elf(243));
        let other = write("other", &elf(22));
        let emulators = [parse(QEMU).unwrap()];
        assert_eq!(check(&foreign, Some(&emulators)), None);
        let why = check(&other, Some(&emulators)).unwrap();
        assert!(why.contains("(s390x; this machine is"), "{why}");
        assert!(why.contains("qemu-user-static") && why.contains("--install s390x"), "{why}");
        assert!(check(&foreign, Some(&[])).unwrap().contains("no emulator is registered"));
        let lost = [parse(&QEMU.replace("flags: F", "flags: ").replace("/usr", "/no")).unwrap()];
        assert!(check(&foreign, Some(&lost)).unwrap().contains("without the flag F"));
        // Without a view of the registrations the kernel is asked.
        assert!(is_refused(&elf(0x1234)).unwrap(), "a machine that does not exist");
        assert!(!is_refused(b"#!/bin/true\n").unwrap());
        for (name, bytes) in [("own", elf(MACHINE)), ("script", b"#!/bin/sh\n".to_vec())] {
            let path = write(name, &bytes);
            assert_eq!(check(&path, Some(&[])), None);
        }
        let compatible = write("compatible", &elf(if MACHINE == 62 { 3 } else { 40 }));
        assert!(check(&compatible, None).is_some());
    }
}
