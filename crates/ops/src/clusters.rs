//! The list of the clusters of this machine. Reads records alone and asks no host.

use crate::report::recorded::{runs, summarized, told};
use crate::session::Controller;
use crate::standing::standing;
use imgctl_base::error::Result;
use imgctl_model::state::State;
use imgctl_report::model::recorded::{ClusterSummary, RunSummary};

/// A cluster in the list.
pub struct KnownCluster {
    pub name: String,
    /// Of the rootfs image.
    pub version: Option<String>,
    /// Addresses of the hosts.
    pub addresses: Vec<String>,
    /// The word of [`crate::standing::Standing`], or `unreadable`.
    pub state: String,
    pub last_run: Option<RunSummary>,
    /// Why its state cannot be read.
    pub problem: Option<String>,
}

/// Lists the clusters, by name.
pub fn list(controller: &Controller) -> Result<Vec<KnownCluster>> {
    let states = controller.states()?;
    let names = states.names()?;
    names.into_iter().map(|name| Ok(known(&states.of(&name)?))).collect()
}

fn known(state: &State) -> KnownCluster {
    let read = || {
        let (clusterfile, _) = state.require()?;
        let summary = summarized(&clusterfile, ClusterSummary::default());
        let addresses = clusterfile.cluster.addresses()?.iter().map(ToString::to_string).collect();
        Ok((summary, addresses, standing(state, &clusterfile)?.word))
    };
    let read: Result<(ClusterSummary, Vec<String>, String)> = read();
    let problem = read.as_ref().err().map(told);
    let (summary, addresses, word) =
        read.unwrap_or_else(|_| (ClusterSummary::default(), Vec::new(), "unreadable".to_owned()));
    KnownCluster {
        name: state.name().to_owned(),
        version: summary.version,
        addresses,
        state: word,
        last_run: runs(state).0.into_iter().next(),
        problem,
    }
}
