//! Which program reads a field of kubeadm's documents, and which fields cannot change while a
//! cluster runs. Values in, decisions out.

use crate::setting::{Component, Difference};

/// What a changed field means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rule {
    /// This program gets the new value.
    Changes(Component),
    /// It cannot change; the text tells why or what to do instead.
    Refused(&'static str),
}

const NETWORK: &str = "Pods, Services and certificates have addresses and names of it; a new \
                       cluster with the new network is the way";
const UPGRADE: &str = "`imgctl upgrade` with an image that has it is the way";
const MEMBERS: &str = "it identifies members of etcd or where their data is";
const ADDRESS: &str = "it decides how the hosts of the cluster reach each other; `imgctl renumber` \
                       changes addresses of hosts";
const NAMES: &str = "`imgctl cert --alt-names` adds names to the certificates";
const JOINED: &str = "it belongs to a Node from the moment it joins: `imgctl delete` the host and \
                      add it again";
const DRAINED: &str = "running containers were started with the former one: drain the Node, change \
                       it there, remove the kubelet's state file and restart the kubelet";

/// Fields by document and path prefix. The first that fits decides.
const RULES: &[(&str, &[&str], Rule)] = {
    use Component as C;
    use Rule::{Changes, Refused};
    &[
        ("ClusterConfiguration", &["networking"], Refused(NETWORK)),
        ("ClusterConfiguration", &["controlPlaneEndpoint"], Refused(ADDRESS)),
        ("ClusterConfiguration", &["clusterName"], Refused(NETWORK)),
        ("ClusterConfiguration", &["certificatesDir"], Refused(MEMBERS)),
        ("ClusterConfiguration", &["kubernetesVersion"], Refused(UPGRADE)),
        ("ClusterConfiguration", &["imageRepository"], Refused(UPGRADE)),
        ("ClusterConfiguration", &["featureGates"], Refused(UPGRADE)),
        ("ClusterConfiguration", &["dns"], Refused(UPGRADE)),
        ("ClusterConfiguration", &["proxy"], Refused(UPGRADE)),
        ("ClusterConfiguration", &["encryptionAlgorithm"], Changes(C::Later)),
        ("ClusterConfiguration", &["certificateValidityPeriod"], Changes(C::Later)),
        ("ClusterConfiguration", &["caCertificateValidityPeriod"], Changes(C::Later)),
        ("ClusterConfiguration", &["apiServer", "certSANs"], Refused(NAMES)),
        ("ClusterConfiguration", &["apiServer", "timeoutForControlPlane"], Changes(C::Later)),
        ("ClusterConfiguration", &["apiServer"], Changes(C::KubeApiserver)),
        ("ClusterConfiguration", &["controllerManager"], Changes(C::KubeControllerManager)),
        ("ClusterConfiguration", &["scheduler"], Changes(C::KubeScheduler)),
        ("ClusterConfiguration", &["etcd", "local", "extraArgs"], Changes(C::Etcd)),
        ("ClusterConfiguration", &["etcd", "local", "extraEnvs"], Changes(C::Etcd)),
        ("ClusterConfiguration", &["etcd"], Refused(MEMBERS)),
        ("KubeletConfiguration", &["clusterDomain"], Refused(NETWORK)),
        ("KubeletConfiguration", &["podCIDR"], Refused(NETWORK)),
        ("KubeletConfiguration", &["cgroupDriver"], Refused(DRAINED)),
        ("KubeletConfiguration", &["cgroupRoot"], Refused(DRAINED)),
        ("KubeletConfiguration", &["cgroupsPerQOS"], Refused(DRAINED)),
        ("KubeletConfiguration", &["cpuManagerPolicy"], Refused(DRAINED)),
        ("KubeletConfiguration", &["memoryManagerPolicy"], Refused(DRAINED)),
        ("KubeletConfiguration", &["topologyManagerPolicy"], Refused(DRAINED)),
        ("KubeletConfiguration", &["containerRuntimeEndpoint"], Refused(UPGRADE)),
        ("KubeletConfiguration", &["imageServiceEndpoint"], Refused(UPGRADE)),
        ("KubeletConfiguration", &["staticPodPath"], Refused(MEMBERS)),
        ("KubeletConfiguration", &[], Changes(C::Kubelet)),
        ("KubeProxyConfiguration", &["clusterCIDR"], Refused(NETWORK)),
        ("KubeProxyConfiguration", &[], Changes(C::KubeProxy)),
        ("InitConfiguration", &["localAPIEndpoint"], Refused(ADDRESS)),
        ("JoinConfiguration", &["controlPlane"], Refused(ADDRESS)),
        ("InitConfiguration", &["patches"], Refused(UPGRADE)),
        ("JoinConfiguration", &["patches"], Refused(UPGRADE)),
        ("InitConfiguration", &["nodeRegistration", "name"], Refused(JOINED)),
        ("JoinConfiguration", &["nodeRegistration", "name"], Refused(JOINED)),
        ("InitConfiguration", &["nodeRegistration", "criSocket"], Refused(UPGRADE)),
        ("JoinConfiguration", &["nodeRegistration", "criSocket"], Refused(UPGRADE)),
        ("InitConfiguration", &["nodeRegistration", "kubeletExtraArgs"], Changes(C::Kubelet)),
        ("JoinConfiguration", &["nodeRegistration", "kubeletExtraArgs"], Changes(C::Kubelet)),
        ("InitConfiguration", &[], Changes(C::Later)),
        ("JoinConfiguration", &[], Changes(C::Later)),
    ]
};

/// Flags that cannot change, by the section of ClusterConfiguration that sets them.
const FLAGS: &[(&[&str], &[&str], &str)] = &[
    (&["apiServer", "extraArgs"], &["service-cluster-ip-range"], NETWORK),
    (
        &["apiServer", "extraArgs"],
        &["advertise-address", "secure-port", "etcd-servers", "bind-address"],
        ADDRESS,
    ),
    (
        &["controllerManager", "extraArgs"],
        &[
            "cluster-cidr",
            "service-cluster-ip-range",
            "node-cidr-mask-size",
            "node-cidr-mask-size-ipv4",
            "node-cidr-mask-size-ipv6",
            "cluster-name",
        ],
        NETWORK,
    ),
    (
        &["etcd", "local", "extraArgs"],
        &[
            "name",
            "data-dir",
            "wal-dir",
            "initial-cluster",
            "initial-cluster-state",
            "initial-cluster-token",
            "initial-advertise-peer-urls",
            "advertise-client-urls",
            "listen-client-urls",
            "listen-peer-urls",
        ],
        MEMBERS,
    ),
    (&["nodeRegistration", "kubeletExtraArgs"], &["hostname-override"], JOINED),
    (&["nodeRegistration", "kubeletExtraArgs"], &["node-ip"], ADDRESS),
    (
        &["nodeRegistration", "kubeletExtraArgs"],
        &[
            "container-runtime-endpoint",
            "image-service-endpoint",
            "config",
            "kubeconfig",
            "bootstrap-kubeconfig",
        ],
        UPGRADE,
    ),
    (
        &["nodeRegistration", "kubeletExtraArgs"],
        &[
            "root-dir",
            "cert-dir",
            "cgroup-driver",
            "cpu-manager-policy",
            "memory-manager-policy",
            "topology-manager-policy",
        ],
        DRAINED,
    ),
];

/// Decides about one field of a document.
pub(super) fn of(document: &str, difference: &Difference) -> Rule {
    for (section, flags, why) in FLAGS {
        let name = difference.path.get(section.len());
        if difference.starts_with(section)
            && name.is_some_and(|name| flags.contains(&name.as_str()))
        {
            return Rule::Refused(why);
        }
    }
    let fits = |(kind, path, _): &&(&str, &[&str], Rule)| {
        *kind == document && difference.starts_with(path)
    };
    match RULES.iter().find(fits) {
        Some((_, _, rule)) => *rule,
        None => Rule::Refused("imgctl does not know which program reads it"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_stay_and_flags_change() {
        use Component as C;
        let of = |document: &str, path: &str| {
            let path = path.split('.').map(str::to_owned).collect();
            of(document, &Difference { path, old: None, new: None })
        };
        for (document, path) in [
            ("ClusterConfiguration", "networking.podSubnet"),
            ("ClusterConfiguration", "networking.serviceSubnet"),
            ("ClusterConfiguration", "networking.dnsDomain"),
            ("ClusterConfiguration", "controllerManager.extraArgs.cluster-cidr"),
            ("ClusterConfiguration", "apiServer.extraArgs.service-cluster-ip-range"),
            ("ClusterConfiguration", "etcd.local.dataDir"),
            ("ClusterConfiguration", "etcd.external"),
            ("ClusterConfiguration", "somethingNew"),
            ("KubeletConfiguration", "clusterDomain"),
            ("KubeProxyConfiguration", "clusterCIDR"),
            ("JoinConfiguration", "nodeRegistration.name"),
            ("InitConfiguration", "nodeRegistration.kubeletExtraArgs.node-ip"),
        ] {
            assert!(matches!(of(document, path), Rule::Refused(_)), "{document} {path}");
        }
        for (document, path, component) in [
            ("ClusterConfiguration", "apiServer.extraArgs.audit-log-maxage", C::KubeApiserver),
            ("ClusterConfiguration", "etcd.local.extraArgs.quota-backend-bytes", C::Etcd),
            ("ClusterConfiguration", "scheduler.extraVolumes.x", C::KubeScheduler),
            ("KubeletConfiguration", "evictionHard.memory.available", C::Kubelet),
            ("KubeProxyConfiguration", "mode", C::KubeProxy),
            ("JoinConfiguration", "nodeRegistration.kubeletExtraArgs.v", C::Kubelet),
            ("InitConfiguration", "nodeRegistration.taints", C::Later),
            ("ClusterConfiguration", "certificateValidityPeriod", C::Later),
        ] {
            assert_eq!(of(document, path), Rule::Changes(component), "{document} {path}");
        }
    }
}
