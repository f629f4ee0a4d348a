//! Which capabilities a command has. Knows nothing of users: the caller changes ids.

use rustix::thread::{self, CapabilitySet, CapabilitySets};

use crate::error::{IoContext, Result};

/// Docker's default set (mask `00000000a80425fb`): what package managers and their scripts need
/// inside a container, and nothing that reaches out of it.
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

/// Whether this process has `capability` in effect.
pub(super) fn has(capability: CapabilitySet) -> bool {
    thread::capabilities(None).is_ok_and(|sets| sets.effective.contains(capability))
}

/// Cuts the bounding set down to [`DEFAULT`]. Needs `CAP_SETPCAP`, so it comes before the change
/// of user.
pub(super) fn bound() -> Result<()> {
    for bit in 0..64 {
        let capability = CapabilitySet::from_bits_retain(1 << bit);
        if DEFAULT.contains(capability) {
            continue;
        }
        match thread::capability_is_in_bounding_set(capability) {
            // The kernel knows no capability of this number, nor any above it.
            Err(rustix::io::Errno::INVAL) => break,
            Ok(false) => {}
            _ => thread::remove_capability_from_bounding_set(capability)
                .doing(|| format!("cannot drop capability {bit} for the RUN step"))?,
        }
    }
    Ok(())
}

/// Sets what the command starts with, after the change of user. Inheritable and ambient are
/// always empty (they are how CVE-2022-27651 gave programs more than meant); users other than
/// root have none.
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
    #[test]
    fn the_default_set_is_dockers() {
        assert_eq!(super::DEFAULT.bits(), 0xa804_25fb);
    }
}
