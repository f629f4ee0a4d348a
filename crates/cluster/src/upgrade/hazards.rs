//! Removals and changes in each Kubernetes minor that operators need to know about.

/// Notes for an upgrade to `minor`.
pub(super) fn of(minor: u64) -> &'static [&'static str] {
    match minor {
        20 => &[
            "the label and taint node-role.kubernetes.io/master begin to give way to control-plane",
        ],
        22 => &[
            "many beta APIs are gone (Ingress and CRDs of v1beta1, webhooks of v1beta1): see the \
             check removed-apis",
        ],
        24 => &[
            "dockershim is gone: Nodes with Docker start every container anew under another runtime",
            "control planes lose the label node-role.kubernetes.io/master: selectors that name it match nothing",
        ],
        25 => &["PodSecurityPolicy and policy/v1beta1 are gone"],
        27 => &[
            "the kubelet knows --container-runtime no more",
            "images at k8s.gcr.io are frozen: registry.k8s.io is their place",
        ],
        29 => &[
            "admin.conf is of the group kubeadm:cluster-admins; super-admin.conf is the new way past RBAC",
        ],
        31 => {
            &["kubelets name containers anew: without a drain every container of the Node restarts"]
        }
        34 => &[
            "kubeadm brings etcd 3.6: members are to be of 3.5.20 at least, 3.5.26 is better; there is no way back but the snapshot",
        ],
        35 => &[
            "the kubelet does not start on cgroup v1 unless failCgroupV1 is false",
            "it is the last minor for containerd 1.x; kube-proxy's ipvs mode is deprecated",
        ],
        _ => &[],
    }
}
