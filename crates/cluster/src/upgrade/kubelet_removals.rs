//! Flags, feature gates and configuration fields that kubelets no longer accept, by the minor that
//! removed them.
//!
//! Before anything changes, the kubelet of the image itself is checked
//! (runtime/kubeadm/upgrade/pull). This list covers the time before it is on the hosts: common
//! cases, not all.

/// Settings removed in one minor.
pub(crate) struct Removal {
    pub minor: u64,
    /// With these flags, the kubelet does not start.
    pub flags: &'static [&'static str],
    /// With these feature gates, no component starts.
    pub(crate) gates: &'static [&'static str],
    /// Configuration fields that the kubelet ignores, so they have no effect any more.
    pub fields: &'static [&'static str],
}

pub(crate) const REMOVALS: &[Removal] = &[
    Removal {
        minor: 24,
        flags: &[
            "cni-bin-dir",
            "cni-cache-dir",
            "cni-conf-dir",
            "docker-endpoint",
            "dynamic-config-dir",
            "experimental-dockershim-root-directory",
            "image-pull-progress-deadline",
            "network-plugin",
            "network-plugin-mtu",
        ],
        gates: &[],
        fields: &["logging.sanitization"],
    },
    Removal { minor: 25, flags: &[], gates: &["IPv6DualStack", "TTLAfterFinished"], fields: &[] },
    Removal { minor: 26, flags: &[], gates: &["DynamicKubeletConfig"], fields: &[] },
    Removal {
        minor: 27,
        flags: &["container-runtime", "master-service-namespace"],
        gates: &["CSIInlineVolume", "EphemeralContainers", "LocalStorageCapacityIsolation"],
        fields: &[],
    },
    Removal { minor: 29, flags: &[], gates: &["SeccompDefault"], fields: &[] },
    // Determined from the v1.33 and v1.34 binaries.
    Removal {
        minor: 34,
        flags: &["cloud-config", "register-schedulable"],
        gates: &[],
        fields: &[],
    },
    Removal { minor: 35, flags: &["pod-infra-container-image"], gates: &[], fields: &[] },
];

/// Flags that `kubeadm upgrade` removes from the flags it has written itself.
pub(crate) const KUBEADM_REMOVES: [&str; 3] =
    ["container-runtime", "network-plugin", "pod-infra-container-image"];
