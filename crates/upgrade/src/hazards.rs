//! Removals and changes in each Kubernetes minor that operators need to know about, and what its
//! kubelets no longer accept.

/// Notes for an upgrade to `minor`.
pub(super) fn of(minor: u64) -> &'static [&'static str] {
    match minor {
        20 => {
            &["control-plane begins to replace the label and taint node-role.kubernetes.io/master"]
        }
        22 => {
            &["many beta APIs are removed (Ingress and CRDs of v1beta1, webhooks of v1beta1): see \
             the check removed-apis"]
        }
        24 => &[
            "dockershim is removed: Nodes with Docker restart every container under another \
             runtime",
            "control planes lose the label node-role.kubernetes.io/master: selectors that use it \
             match nothing",
        ],
        25 => &["PodSecurityPolicy and policy/v1beta1 are removed"],
        27 => &[
            "the kubelet no longer accepts --container-runtime",
            "images at k8s.gcr.io are frozen: use registry.k8s.io",
        ],
        29 => {
            &["admin.conf is in the group kubeadm:cluster-admins; super-admin.conf bypasses RBAC \
             instead"]
        }
        31 => {
            &["kubelets hash containers differently: without a drain every container of the Node \
             restarts"]
        }
        34 => {
            &["kubeadm ships etcd 3.6: members must be at 3.5.20 or newer, 3.5.26 is better; only \
             the snapshot allows a rollback"]
        }
        35 => &[
            "the kubelet does not start on cgroup v1 unless failCgroupV1 is false",
            "this is the last minor for containerd 1.x; kube-proxy's ipvs mode is deprecated: \
             nftables replaces it",
            "the APIs storagemigration.k8s.io/v1alpha1 and VolumeAttributesClass of \
             storage.k8s.io/v1alpha1 are removed",
        ],
        36 => &[
            "kubelets refuse Pods with gitRepo volumes, and no feature gate allows them again",
            "the externalIPs of Services are deprecated",
        ],
        37 => &[
            "kubeadm ships etcd 3.7: members must be at 3.6 before; only the snapshot allows a \
             rollback",
            "eventRecordQPS: 0 in a KubeletConfiguration means no limit",
            "kubelets no longer serve metrics that applications define (userDefinedMetrics, \
             container_application_*)",
        ],
        _ => &[],
    }
}

/// Settings removed in one minor.
pub(crate) struct Removal {
    pub minor: u64,
    /// With these flags, the kubelet does not start.
    pub flags: &'static [&'static str],
    /// With these feature gates, no component starts.
    pub(crate) gates: &'static [&'static str],
    /// Feature gates of kubeadm itself, which refuses a configuration with them.
    pub(crate) kubeadm_gates: &'static [&'static str],
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
        kubeadm_gates: &[],
        fields: &["logging.sanitization"],
    },
    Removal {
        minor: 25,
        flags: &[],
        gates: &["IPv6DualStack", "TTLAfterFinished"],
        kubeadm_gates: &[],
        fields: &[],
    },
    Removal {
        minor: 26,
        flags: &[],
        gates: &["DynamicKubeletConfig"],
        kubeadm_gates: &[],
        fields: &[],
    },
    Removal {
        minor: 27,
        flags: &["container-runtime", "master-service-namespace"],
        gates: &["CSIInlineVolume", "EphemeralContainers", "LocalStorageCapacityIsolation"],
        kubeadm_gates: &[],
        fields: &[],
    },
    Removal { minor: 29, flags: &[], gates: &["SeccompDefault"], kubeadm_gates: &[], fields: &[] },
    // Gates that the sources of one minor define and those of the next do not.
    Removal {
        minor: 30,
        flags: &[],
        gates: &[
            "APISelfSubjectReview",
            "CSIMigrationAzureFile",
            "ExpandedDNSConfig",
            "ExperimentalHostUserNamespaceDefaulting",
            "IPTablesOwnershipCleanup",
            "KubeletPodResources",
            "LegacyServiceAccountTokenTracking",
            "MinimizeIPTablesRestore",
            "ProxyTerminatingEndpoints",
            "RemoveSelfLink",
            "SecurityContextDeny",
        ],
        kubeadm_gates: &[],
        fields: &[],
    },
    Removal {
        minor: 31,
        flags: &[],
        gates: &[
            "APIPriorityAndFairness",
            "CSIMigrationRBD",
            "CSINodeExpandSecret",
            "ConsistentHTTPGetHandlers",
            "CustomResourceValidationExpressions",
            "DefaultHostNetworkHostPortsInPodTemplates",
            "InTreePluginAWSUnregister",
            "InTreePluginAzureDiskUnregister",
            "InTreePluginAzureFileUnregister",
            "InTreePluginGCEUnregister",
            "InTreePluginOpenStackUnregister",
            "InTreePluginRBDUnregister",
            "InTreePluginvSphereUnregister",
            "JobReadyPods",
            "ReadWriteOncePod",
            "ServiceNodePortStaticSubrange",
            "SkipReadOnlyValidationGCE",
        ],
        kubeadm_gates: &[],
        fields: &[],
    },
    Removal {
        minor: 32,
        flags: &[],
        gates: &[
            "CloudDualStackNodeIPs",
            "DRAControlPlaneController",
            "HPAContainerMetrics",
            "KMSv2",
            "KMSv2KDF",
            "LegacyServiceAccountTokenCleanUp",
            "MinDomainsInPodTopologySpread",
            "NewVolumeManagerReconstruction",
            "NodeOutOfServiceVolumeDetach",
            "PodHostIPs",
            "ServerSideApply",
            "ServerSideFieldValidation",
            "StableLoadBalancerNodeSet",
            "ValidatingAdmissionPolicy",
            "ZeroLimitedNominalConcurrencyShares",
        ],
        kubeadm_gates: &[],
        fields: &[],
    },
    Removal {
        minor: 33,
        flags: &[],
        gates: &[
            "APIListChunking",
            "AdmissionWebhookMatchConditions",
            "AggregatedDiscoveryEndpoint",
            "AppArmor",
            "AppArmorFields",
            "CPUManager",
            "DisableCloudProviders",
            "DisableKubeletCloudCredentialProviders",
            "EfficientWatchResumption",
            "JobPodFailurePolicy",
            "KubeProxyDrainingTerminatingNodes",
            "PDBUnhealthyPodEvictionPolicy",
            "PersistentVolumeLastPhaseTransitionTime",
            "RemainingItemCount",
            "VolumeCapacityPriority",
            "WatchBookmark",
        ],
        kubeadm_gates: &["EtcdLearnerMode"],
        fields: &[],
    },
    // The flags are determined from the v1.33 and v1.34 binaries.
    Removal {
        minor: 34,
        flags: &["cloud-config", "register-schedulable"],
        gates: &[
            "DevicePluginCDIDevices",
            "ElasticIndexedJob",
            "LegacySidecarContainers",
            "PodDisruptionConditions",
            "StatefulSetStartOrdinal",
        ],
        kubeadm_gates: &[],
        fields: &[],
    },
    Removal {
        minor: 35,
        flags: &["pod-infra-container-image"],
        gates: &[
            "AllowServiceLBStatusOnNonLB",
            "ComponentSLIs",
            "CronJobsScheduledAnnotation",
            "LoadBalancerIPMode",
            "PodIndexLabel",
            "ProbeHostPodSecurityStandards",
            "SizeMemoryBackedVolumes",
            "StatefulSetAutoDeletePVC",
            "StrictCostEnforcementForVAP",
            "StrictCostEnforcementForWebhooks",
            "UserNamespacesPodSecurityStandards",
        ],
        kubeadm_gates: &["WaitForAllControlPlaneComponents"],
        fields: &[],
    },
    Removal {
        minor: 36,
        flags: &[],
        gates: &[
            "CSIMigrationPortworx",
            "HonorPVReclaimPolicy",
            "InPlacePodVerticalScalingAllocatedStatus",
            "InTreePluginPortworxUnregister",
            "MemoryManager",
            "ServiceTrafficDistribution",
            "StructuredAuthorizationConfiguration",
            "TopologyAwareHints",
            "WatchFromStorageWithoutResourceVersion",
        ],
        kubeadm_gates: &["ControlPlaneKubeletLocalMode"],
        fields: &[],
    },
    // The flags of cAdvisor: https://github.com/kubernetes/kubernetes/pull/139870
    Removal {
        minor: 37,
        flags: &[
            "application-metrics-count-limit",
            "boot-id-file",
            "container-hints",
            "containerd",
            "containerd-namespace",
            "enable-load-reader",
            "event-storage-age-limit",
            "event-storage-event-limit",
            "global-housekeeping-interval",
            "log-cadvisor-usage",
            "machine-id-file",
            "storage-driver-buffer-duration",
            "storage-driver-db",
            "storage-driver-host",
            "storage-driver-password",
            "storage-driver-secure",
            "storage-driver-table",
            "storage-driver-user",
        ],
        gates: &[],
        kubeadm_gates: &[],
        fields: &[],
    },
];

/// Flags that `kubeadm upgrade` removes from the flags it has written itself.
pub(crate) const KUBEADM_REMOVES: [&str; 3] =
    ["container-runtime", "network-plugin", "pod-infra-container-image"];
