//! Capabilities of a command. Does not know about users: the caller changes IDs.

use rustix::thread::{self, CapabilitySet, CapabilitySets};

use imgctl_base::error::{IoContext, Result};

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
    #[test]
    fn the_default_set_is_dockers() {
        assert_eq!(super::DEFAULT.bits(), 0xa804_25fb);
    }
}
