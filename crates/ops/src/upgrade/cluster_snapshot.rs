//! The answers of a cluster's hosts before an upgrade is planned. Must not depend on plans.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::upgrade::images::UpgradeImages;
use crate::work::Prepared;
use imgctl_base::error::Result;
use imgctl_cluster::cluster::context::ClusterContext;
use imgctl_cluster::pipeline::execution_context::ExecutionContext;
use imgctl_cluster::pipeline::look;
use imgctl_cluster::upgrade::nodes;
use imgctl_kube::api::Api;

/// Facts about the cluster after the hosts were queried.
pub(crate) struct ClusterSnapshot {
    pub(crate) from: Arc<ClusterContext>,
    pub(crate) hops: Vec<Arc<ClusterContext>>,
    pub(crate) api: Option<Result<Arc<dyn Api>, String>>,
    pub(crate) architectures: BTreeSet<String>,
}

/// Queries the facts of all hosts.
pub(crate) fn know(sides: &UpgradeImages, execution: &ExecutionContext<'_>) -> ClusterSnapshot {
    let looks = look::look(&sides.from.context.hosts, &execution.pool, execution.parallel);
    let informed = |prepared: &Prepared| Arc::new(look::informed(&prepared.context, &looks));
    let from = informed(&sides.from);
    let api = execution
        .runtime
        .has_api()
        .then(|| nodes::api(&from, &*execution.pool).map_err(|error| error.chain().join(": ")));
    ClusterSnapshot {
        api,
        hops: sides.hops.iter().map(informed).collect(),
        architectures: looks
            .values()
            .filter_map(|look| look.as_ref().ok())
            .map(|facts| facts.architecture.clone())
            .collect(),
        from,
    }
}

/// Returns a cluster context with the facts of its hosts; they were queried before, and the answers
/// are cached.
pub(crate) fn informed(
    prepared: &Prepared,
    execution: &ExecutionContext<'_>,
) -> Arc<ClusterContext> {
    let looks = look::look(&prepared.context.hosts, &execution.pool, execution.parallel);
    Arc::new(look::informed(&prepared.context, &looks))
}
