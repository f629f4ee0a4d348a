//! Other authorities for a running cluster.

use crate::operation::Operation;
use crate::session::Session;
use crate::work::{RunOptions, Work};
use imgctl_base::error::Result;
use imgctl_runtime::rotation::Which;
use imgctl_workflow::pipeline::{rotation, rotation::Request};

#[derive(Clone, Debug)]
pub struct Rotation {
    pub cluster: String,
    /// `kubernetes`, `etcd`, `front-proxy`, `declared`; empty, or `all`: all that the cluster has.
    pub which: Vec<String>,
    pub undo: bool,
    /// Stop before the former authorities are dropped.
    pub keep_former: bool,
    /// Pods keep running.
    pub keep_pods: bool,
    pub options: RunOptions,
}

/// Rotates authorities, goes on with it, or goes back.
pub fn rotate(request: &Rotation, session: &Session<'_>) -> Result<()> {
    let named = request.which.iter().filter(|one| *one != "all");
    let asked = Request {
        which: named.map(|one| Which::parse(one)).collect::<Result<_>>()?,
        undo: request.undo,
        keep_former: request.keep_former,
        keep_pods: request.keep_pods,
    };
    let work = Work::begin(Operation::Cert, &request.cluster, &request.options, session)?;
    let prepared = work.recorded(work.existing()?.clone())?;
    work.carry_out(&prepared, false, |execution, context| {
        rotation::plan(execution, context, &asked)
    })
}
