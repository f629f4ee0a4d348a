//! What a command in a sandbox may do: its capabilities, and the filter of system calls, Docker's
//! default profile for a command without `CAP_SYS_ADMIN`. Does not know about users: the caller
//! changes IDs. [`super::syscalls`] lists the allowed calls; this module turns the list into a
//! BPF program.
//!
//! Forbidden calls fail with EPERM. Calls newer than the list fail with ENOSYS, so that a libc
//! which tries a new call falls back to the old one. The same applies to clone3, because its flags
//! are in memory that a filter cannot read. Programs of another architecture (32-bit ones) are
//! killed.

use std::collections::BTreeMap;

use rustix::thread::{self, CapabilitySet, CapabilitySets};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch, sock_filter,
};

use super::syscalls;
use imgctl_base::error::{Error, IoContext, Result};

const EPERM: u32 = 1;
const ENOSYS: u16 = 38;

/// Flags of clone(2) that create namespaces.
const NAMESPACE_FLAGS: u64 = 0x7e02_0000;
/// Socket families below this number are allowed.
const AF_ALL_BELOW: u64 = 12;
/// Allowed socket families above that limit: without AF_ALG (38) and AF_VSOCK (40), which reach the
/// kernel and the hypervisor, and without unused ones.
const AF_ALLOWED: [u64; 24] = [
    13, 14, 15, 16, 17, 18, 21, 22, 24, 26, 27, 28, 29, 30, 31, 32, 33, 35, 36, 39, 41, 42, 43, 44,
];
/// AF_MCTP, the highest allowed family.
const AF_MCTP: u64 = 45;
/// Execution domains that personality(2) may set: Linux, with or without 32-bit uname and address
/// randomization disabled; and the value that only queries.
const PERSONALITIES: [u64; 5] = [0, 8, 0x2_0000, 0x2_0008, 0xffff_ffff];

/// Installs the filter on this process permanently. Sets `no_new_privs`.
pub(super) fn install() -> Result<()> {
    let program = program()?;
    seccompiler::apply_filter(&program).map_err(|error| {
        Error::failed("cannot install the seccomp filter of the RUN step")
            .caused_by(error)
            .hint("the kernel needs CONFIG_SECCOMP_FILTER")
    })
}

fn program() -> Result<BpfProgram> {
    let broken = |error| Error::failed("the seccomp profile is malformed").caused_by(error);
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = BTreeMap::new();
    for &number in syscalls::COMMON.iter().chain(syscalls::ARCHITECTURE) {
        rules.insert(number, Vec::new());
    }
    conditions(&mut rules).map_err(broken)?;
    let architecture = TargetArch::try_from(std::env::consts::ARCH).map_err(broken)?;
    let filter =
        SeccompFilter::new(rules, SeccompAction::Errno(EPERM), SeccompAction::Allow, architecture)
            .map_err(broken)?;
    let allow_list: BpfProgram = filter.try_into().map_err(broken)?;
    let mut program = not_implemented();
    program.extend(allow_list);
    Ok(program)
}

fn conditions(
    rules: &mut BTreeMap<i64, Vec<SeccompRule>>,
) -> Result<(), seccompiler::BackendError> {
    let rule = |operator, value| {
        SeccompRule::new(vec![SeccompCondition::new(0, SeccompCmpArgLen::Dword, operator, value)?])
    };
    let equal = |value| rule(SeccompCmpOp::Eq, value);
    rules.insert(
        libc::SYS_clone,
        vec![SeccompRule::new(vec![SeccompCondition::new(
            0,
            SeccompCmpArgLen::Qword,
            SeccompCmpOp::MaskedEq(NAMESPACE_FLAGS),
            0,
        )?])?],
    );
    let mut families = vec![rule(SeccompCmpOp::Lt, AF_ALL_BELOW)?];
    for family in AF_ALLOWED.into_iter().chain([AF_MCTP]) {
        families.push(equal(family)?);
    }
    rules.insert(libc::SYS_socket, families);
    let personalities = PERSONALITIES.into_iter().map(equal).collect::<Result<Vec<_>, _>>()?;
    rules.insert(libc::SYS_personality, personalities);
    Ok(())
}

/// Returns the part before the allow-list: calls that fail as if this kernel did not implement
/// them. It need not check the architecture, which the allow-list does: these calls fail on all of
/// them.
fn not_implemented() -> BpfProgram {
    /// Offsets in `struct seccomp_data`.
    const NUMBER: u32 = 0;
    const LOAD: u16 = 0x20; // BPF_LD | BPF_W | BPF_ABS
    const EQUAL: u16 = 0x15; // BPF_JMP | BPF_JEQ | BPF_K
    const GREATER: u16 = 0x25; // BPF_JMP | BPF_JGT | BPF_K
    const RETURN: u16 = 0x06; // BPF_RET | BPF_K
    const SECCOMP_RET_ERRNO: u32 = 0x0005_0000;
    let op = |code, jt, jf, k| sock_filter { code, jt, jf, k };
    vec![
        op(LOAD, 0, 0, NUMBER),
        op(EQUAL, 1, 0, u32::try_from(libc::SYS_clone3).unwrap_or(0)),
        op(GREATER, 0, 1, syscalls::NEWEST),
        op(RETURN, 0, 0, SECCOMP_RET_ERRNO | u32::from(ENOSYS)),
    ]
}

/// Docker's default set (mask `00000000a80425fb`): what package managers and their scripts need
/// inside a container, and nothing with effects outside of it.
pub(super) const DEFAULT: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::FSETID)
    .union(CapabilitySet::KILL)
    .union(CapabilitySet::SETGID)
    .union(CapabilitySet::SETUID)
    .union(CapabilitySet::SETPCAP)
    .union(CapabilitySet::NET_BIND_SERVICE)
    .union(CapabilitySet::NET_RAW)
    .union(CapabilitySet::SYS_CHROOT)
    .union(CapabilitySet::MKNOD)
    .union(CapabilitySet::AUDIT_WRITE)
    .union(CapabilitySet::SETFCAP);

/// Whether `capability` is in this process's effective set.
pub(super) fn has(capability: CapabilitySet) -> bool {
    thread::capabilities(None).is_ok_and(|sets| sets.effective.contains(capability))
}

/// Reduces the bounding set to [`DEFAULT`]. Needs `CAP_SETPCAP`, so it must run before the change
/// of user.
pub(super) fn bound() -> Result<()> {
    for bit in 0..64 {
        let capability = CapabilitySet::from_bits_retain(1 << bit);
        if DEFAULT.contains(capability) {
            continue;
        }
        match thread::capability_is_in_bounding_set(capability) {
            // The kernel does not know this capability number or any higher one.
            Err(rustix::io::Errno::INVAL) => break,
            Ok(false) => {}
            _ => thread::remove_capability_from_bounding_set(capability)
                .doing(|| format!("cannot drop capability {bit} for the RUN step"))?,
        }
    }
    Ok(())
}

/// Sets the command's initial capabilities, after the change of user. The inheritable and ambient
/// sets are always empty (through them, CVE-2022-27651 granted programs more than intended). Users
/// other than root have no capabilities.
pub(super) fn set(root: bool, all: bool) -> Result<()> {
    let doing = || "cannot set the capabilities of the RUN step".to_owned();
    let wanted = match (root, all) {
        (false, _) => CapabilitySet::empty(),
        (true, false) => DEFAULT,
        (true, true) => thread::capabilities(None).doing(doing)?.permitted,
    };
    thread::clear_ambient_capability_set().doing(doing)?;
    let sets = CapabilitySets {
        effective: wanted,
        permitted: wanted,
        inheritable: CapabilitySet::empty(),
    };
    thread::set_capabilities(None, sets).doing(doing)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALLOW: u32 = 0x7fff_0000;
    const KILL: u32 = 0x8000_0000;
    const X86_64: u32 = 0xc000_003e;
    const AARCH64: u32 = 0xc000_00b7;
    const I386: u32 = 0x4000_0003;

    fn native() -> u32 {
        if cfg!(target_arch = "x86_64") { X86_64 } else { AARCH64 }
    }

    fn errno(number: u32) -> u32 {
        0x0005_0000 | number
    }

    /// Returns the kernel's verdict: interprets classic BPF over `struct seccomp_data`.
    fn verdict(program: &BpfProgram, number: i64, architecture: u32, argument: u64) -> u32 {
        let mut data = Vec::new();
        data.extend_from_slice(&u32::try_from(number).unwrap().to_le_bytes());
        data.extend_from_slice(&architecture.to_le_bytes());
        data.extend_from_slice(&0_u64.to_le_bytes());
        data.extend_from_slice(&argument.to_le_bytes());
        data.extend_from_slice(&[0xff; 40]);
        let (mut at, mut accumulator) = (0, 0_u32);
        loop {
            let op = &program[at];
            at += 1;
            let jump = |yes: bool| usize::from(if yes { op.jt } else { op.jf });
            match op.code {
                0x20 => {
                    let offset = op.k as usize;
                    accumulator = u32::from_le_bytes(data[offset..offset + 4].try_into().unwrap());
                }
                0x05 => at += op.k as usize,
                0x15 => at += jump(accumulator == op.k),
                0x25 => at += jump(accumulator > op.k),
                0x35 => at += jump(accumulator >= op.k),
                0x54 => accumulator &= op.k,
                0x06 => return op.k,
                other => panic!("instruction {other:#x} is not simulated"),
            }
        }
    }

    #[test]
    fn the_filter_answers_as_dockers_profile_does() {
        let program = program().unwrap();
        let forbidden = errno(EPERM);
        let missing = errno(u32::from(ENOSYS));
        let cases = [
            (libc::SYS_read, 0, ALLOW),
            (libc::SYS_execve, 0, ALLOW),
            (libc::SYS_mknodat, 0, ALLOW),
            (libc::SYS_chroot, 0, ALLOW),
            (libc::SYS_ptrace, 0, ALLOW),
            (libc::SYS_mount, 0, forbidden),
            (libc::SYS_unshare, 0, forbidden),
            (libc::SYS_setns, 0, forbidden),
            (libc::SYS_bpf, 0, forbidden),
            (libc::SYS_keyctl, 0, forbidden),
            (libc::SYS_add_key, 0, forbidden),
            (libc::SYS_kexec_load, 0, forbidden),
            (libc::SYS_init_module, 0, forbidden),
            (libc::SYS_open_by_handle_at, 0, forbidden),
            (libc::SYS_io_uring_setup, 0, forbidden),
            (libc::SYS_userfaultfd, 0, forbidden),
            (libc::SYS_clock_settime, 0, forbidden),
            (libc::SYS_clone3, 0, missing),
            (i64::from(syscalls::NEWEST), 0, forbidden),
            (i64::from(syscalls::NEWEST) + 1, 0, missing),
            (0x4000_0000, 0, missing), // x32
            (libc::SYS_clone, 17, ALLOW),
            (libc::SYS_clone, 0x1000_0000, forbidden), // CLONE_NEWUSER
            (libc::SYS_clone, 0x0002_0011, forbidden), // CLONE_NEWNS
            (libc::SYS_socket, 1, ALLOW),
            (libc::SYS_socket, 11, ALLOW),
            (libc::SYS_socket, 12, forbidden),
            (libc::SYS_socket, 16, ALLOW),
            (libc::SYS_socket, 38, forbidden), // AF_ALG
            (libc::SYS_socket, 40, forbidden), // AF_VSOCK
            (libc::SYS_socket, 45, ALLOW),
            (libc::SYS_socket, 46, forbidden),
            (libc::SYS_socket, 0xffff_ffff, forbidden),
            (libc::SYS_personality, 0, ALLOW),
            (libc::SYS_personality, 0xffff_ffff, ALLOW),
            (libc::SYS_personality, 0x0040_0000, forbidden), // READ_IMPLIES_EXEC
        ];
        for (number, argument, expected) in cases {
            let answer = verdict(&program, number, native(), argument);
            assert_eq!(answer, expected, "call {number} with {argument:#x}");
        }
        assert_eq!(verdict(&program, 3, I386, 0), KILL);
    }

    #[test]
    fn no_call_is_listed_twice_or_beyond_the_newest() {
        let mut all: Vec<i64> =
            syscalls::COMMON.iter().chain(syscalls::ARCHITECTURE).copied().collect();
        let count = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), count);
        assert!(all.last().is_some_and(|&last| last <= i64::from(syscalls::NEWEST)));
    }

    #[test]
    fn the_default_set_is_dockers() {
        assert_eq!(DEFAULT.bits(), 0xa804_25fb);
    }
}
