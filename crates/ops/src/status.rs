//! The status of a cluster: its hosts, its Nodes, and Pods that run other images than their
//! templates.

use jiff::Timestamp;

use crate::session::Session;
use crate::work::{RunOptions, Work};
use imgctl_base::error::{Error, Kind, Result};
use imgctl_cluster::cluster::{clusterfile::Phase, context::ClusterContext};
use imgctl_cluster::inplace::drift::{self, Report};
use imgctl_cluster::pipeline::nodes::NETWORK_HINT;
use imgctl_cluster::pipeline::status::{self, Status};
use imgctl_cluster::runtime::certificates::validity::Validity;
use imgctl_cluster::runtime::{HostPool, choice};
use imgctl_kube::client;

/// Status of a cluster.
pub struct ClusterStatus {
    /// Phase as recorded.
    pub phase: Option<Phase>,
    pub status: Status,
    /// Where Pods run other images than their templates specify; `None` if the API cannot be
    /// queried.
    pub in_place: Option<Report>,
}

/// Queries the hosts of `cluster`.
pub fn status(cluster: &str, session: &Session<'_>) -> Result<ClusterStatus> {
    let looking = RunOptions::look();
    let work = Work::begin("status", cluster, &looking, session)?;
    let desired = work.existing()?.clone();
    let phase = desired.cluster.status.phase;
    let prepared = work.recorded(desired)?;
    let files = session.image_files()?;
    let runtime = choice::of(&prepared.context, &files, Validity::default())?;
    let pool = session.hosts()?;
    let key = format!("status-{}", Timestamp::now().as_millisecond());
    let status = status::ask(&prepared.context, &*runtime, &pool, looking.execution.parallel, &key);
    // A cluster without an API has no drift, and an API that does not answer is visible already.
    let in_place = if status.nodes.is_empty() { None } else { in_place(&prepared.context, &*pool) };
    Ok(ClusterStatus { phase, status, in_place })
}

impl ClusterStatus {
    /// Fails unless all hosts and Nodes are healthy.
    pub fn check(&self) -> Result<()> {
        if self.status.is_well() { Ok(()) } else { Err(not_well(&self.status)) }
    }
}

/// Names the unhealthy hosts and Nodes.
fn not_well(status: &Status) -> Error {
    let mut ill = Vec::new();
    for host in status.hosts.iter().filter(|host| !host.healthy) {
        ill.push(host.host.clone());
    }
    for node in status.nodes.iter().filter(|node| !node.ready) {
        if !node.host.as_ref().is_some_and(|host| ill.contains(host)) {
            ill.push(format!("Node {}", node.name));
        }
    }
    let what = format!("cluster {} is not healthy: {}", status.cluster, ill.join(", "));
    let error = Error::new(Kind::CheckFailed, what);
    if status.nodes.iter().any(|node| node.lacks_network) {
        error.hint(NETWORK_HINT)
    } else {
        error
    }
}

/// Returns where Pods run other images than their templates specify; `None` if the API cannot be
/// queried.
fn in_place(context: &ClusterContext, pool: &dyn HostPool) -> Option<Report> {
    let agent = pool.agent(context.first()?);
    let asked = agent.and_then(client::connect).and_then(|api| drift::report(&*api, None));
    asked.inspect_err(|error| tracing::info!("images of Pods: {error}")).ok()
}
