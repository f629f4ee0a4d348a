//! The Kubernetes version of a rootfs image and what depends on it.

use imgctl_base::error::{Error, Result};
use imgctl_model::context::ClusterContext;

/// Oldest minor version whose kubeadm can read the configuration that imgctl writes.
const OLDEST: u32 = 22;

/// A version `v1.<minor>.<patch>`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Version {
    /// Text with its `v`, as in the label.
    pub text: String,
    pub minor: u32,
}

impl Version {
    pub(super) fn parse(text: &str) -> Result<Self> {
        let wrong = || {
            Error::usage(format!("`{text}` is not a Kubernetes version"))
                .hint("the rootfs image's label `version` looks like v1.34.1")
        };
        let number = text.trim().trim_start_matches('v');
        let mut parts = number.splitn(3, '.');
        let major = parts.next().unwrap_or_default();
        let minor: u32 = parts.next().and_then(|minor| minor.parse().ok()).ok_or_else(wrong)?;
        let patch = parts.next().ok_or_else(wrong)?;
        if major != "1" || !patch.starts_with(|c: char| c.is_ascii_digit()) {
            return Err(wrong());
        }
        if minor < OLDEST {
            return Err(Error::usage(format!(
                "Kubernetes {text} is too old: kubeadm 1.{OLDEST} is the first that reads the \
                 configuration written here (kubeadm.k8s.io/v1beta3)"
            ))
            .hint("use a rootfs image of Kubernetes 1.22 or newer"));
        }
        Ok(Self { text: format!("v{number}"), minor })
    }

    /// Reads the version from the label `version` of the rootfs image.
    pub(super) fn of(context: &ClusterContext) -> Result<Self> {
        let Some(rootfs) = context.rootfs() else {
            return Err(Error::usage(format!("cluster {} has no rootfs image", context.name))
                .hint("name an image whose label sealos.io.type is `rootfs` first"));
        };
        let Some(version) = rootfs.label(&["version"]) else {
            return Err(Error::usage(format!(
                "the rootfs image {} does not state its Kubernetes version",
                rootfs.name
            ))
            .hint("build it with the label version=v1.34.1"));
        };
        Self::parse(version)
    }

    /// Returns the `kubeadm.k8s.io/…` version that this kubeadm writes itself.
    pub(super) fn api(&self) -> &'static str {
        if self.has_lists() { "kubeadm.k8s.io/v1beta4" } else { "kubeadm.k8s.io/v1beta3" }
    }

    /// Reports whether extraArgs are lists, and timeouts and validity periods exist (v1beta4).
    pub(crate) fn has_lists(&self) -> bool {
        self.minor >= 31
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions() {
        for (text, minor) in [("v1.22.0", 22), ("1.36.0", 36), ("v1.31.0-rc.1", 31)] {
            let version = Version::parse(text).unwrap();
            assert_eq!(version.minor, minor);
            assert!(version.text.starts_with("v1."));
        }
        assert_eq!(Version::parse("v1.30.9").unwrap().api(), "kubeadm.k8s.io/v1beta3");
        assert_eq!(Version::parse("v1.31.0").unwrap().api(), "kubeadm.k8s.io/v1beta4");
        for wrong in ["", "latest", "v1.x.1", "v2.30.0", "1.30", "v1.30.x"] {
            assert!(Version::parse(wrong).is_err(), "{wrong}");
        }
        let error = Version::parse("v1.21.14").unwrap_err();
        assert!(error.to_string().contains("too old"), "{error}");
    }
}
