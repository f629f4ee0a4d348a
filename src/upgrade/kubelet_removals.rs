//! What kubelets know no more, by the minor that has lost it.
//!
//! The kubelet of the image itself is asked before anything changes (runtime/kubeadm/upgrade/pull);
//! this is what can be told when it is not on the hosts yet: what is met in the field, not all.

/// What a minor has no more.
pub(crate) struct Removal {
    pub(crate) minor: u64,
    /// The kubelet does not start with them.
    pub(crate) flags: &'static [&'static str],
    /// Nor does any component with these.
    pub(crate) gates: &'static [&'static str],
    /// Fields of its configuration, which it passes over: they have no effect any more.
    pub(crate) fields: &'static [&'static str],
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
    Removal {
        minor: 25,
        flags: &[],
        gates: &["IPv6DualStack", "TTLAfterFinished"],
        fields: &[],
    },
    Removal {
        minor: 26,
        flags: &[],
        gates: &["DynamicKubeletConfig"],
        fields: &[],
    },
    Removal {
        minor: 27,
        flags: &["container-runtime", "master-service-namespace"],
        gates: &[
            "CSIInlineVolume",
            "EphemeralContainers",
            "LocalStorageCapacityIsolation",
        ],
        fields: &[],
    },
    Removal {
        minor: 29,
        flags: &[],
        gates: &["SeccompDefault"],
        fields: &[],
    },
    // Read off the programs of v1.33 and v1.34.
    Removal {
        minor: 34,
        flags: &["cloud-config", "register-schedulable"],
        gates: &[],
        fields: &[],
    },
    Removal {
        minor: 35,
        flags: &["pod-infra-container-image"],
        gates: &[],
        fields: &[],
    },
];

/// Flags that `kubeadm upgrade` takes out of what it has written itself.
pub(crate) const KUBEADM_REMOVES: [&str; 3] = [
    "container-runtime",
    "network-plugin",
    "pod-infra-container-image",
];
