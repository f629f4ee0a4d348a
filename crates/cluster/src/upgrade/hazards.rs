//! Removals and changes in each Kubernetes minor that operators need to know about.

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
            "this is the last minor for containerd 1.x; kube-proxy's ipvs mode is deprecated",
        ],
        _ => &[],
    }
}
