//! What a cluster is after an operation. Must not know how operations are planned or carried out.

use crate::front_end::ClusterNow;
use crate::work::Work;
use imgctl_model::context::ClusterContext;

impl Work<'_> {
    /// Returns what the cluster is after the operation.
    pub(super) fn now(&self, context: &ClusterContext) -> ClusterNow {
        let kubeconfig = self.state.etc().join("admin.conf");
        let is_plain = matches!(self.state.files().recipients(), Ok(None));
        ClusterNow {
            version: context
                .rootfs()
                .and_then(|image| image.label(&["version"]))
                .map(str::to_owned),
            hosts: context.hosts.len(),
            kubeconfig: (is_plain && kubeconfig.exists()).then_some(kubeconfig),
        }
    }
}
