//! The system-call filter of a sandbox: Docker's default profile, for a command without
//! `CAP_SYS_ADMIN`. What is allowed is in [`super::syscalls`]; this turns it into a BPF program.
//!
//! Forbidden calls fail with EPERM. Calls newer than the list fail with ENOSYS, so that a libc
//! which tries a new call falls back to the old one; clone3 too, since its flags lie in memory
//! where no filter can see them. Programs of another architecture (32-bit ones) are killed.

use std::collections::BTreeMap;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch, sock_filter,
};

use super::syscalls;
use crate::error::{Error, Result};

const EPERM: u32 = 1;
const ENOSYS: u16 = 38;

/// The flags of clone(2) that make namespaces.
const NAMESPACE_FLAGS: u64 = 0x7e02_0000;
/// Socket families below this number are allowed.
const AF_ALL_BELOW: u64 = 12;
/// Of the others, these: not AF_ALG (38) and AF_VSOCK (40), which talk to kernel and hypervisor,
/// nor what nobody uses.
const AF_ALLOWED: [u64; 24] = [
    13, 14, 15, 16, 17, 18, 21, 22, 24, 26, 27, 28, 29, 30, 31, 32, 33, 35, 36, 39, 41, 42, 43, 44,
];
/// AF_MCTP, the last one allowed.
const AF_MCTP: u64 = 45;
/// The execution domains that personality(2) may set: Linux, with or without 32-bit uname and
/// without address randomisation; and the value that only asks.
const PERSONALITIES: [u64; 5] = [0, 8, 0x2_0000, 0x2_0008, 0xffff_ffff];

/// Puts the filter on this process, for good. Sets `no_new_privs`.
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
    let filter = SeccompFilter::new(
        rules,
        SeccompAction::Errno(EPERM),
        SeccompAction::Allow,
        architecture,
    )
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
        SeccompRule::new(vec![SeccompCondition::new(
            0,
            SeccompCmpArgLen::Dword,
            operator,
            value,
        )?])
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
    let personalities = PERSONALITIES
        .into_iter()
        .map(equal)
        .collect::<Result<Vec<_>, _>>()?;
    rules.insert(libc::SYS_personality, personalities);
    Ok(())
}

/// What comes before the allow-list: the calls that are to look as if this kernel had none of the
/// kind. It need not look at the architecture, which the allow-list does: these are refused on
/// all.
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
