//! How an operation runs, whatever it does.

use crate::layer_source::LayerSource;
use imgctl_base::error::{Error, Result};
use imgctl_kube::drain;
use imgctl_runtime::certificates::validity::Validity;
use imgctl_runtime::{Runtime, nodes};
use imgctl_workflow::pipeline::executor::Options;
use imgctl_workflow::sync::recipe::Delta;

/// How an operation runs, whatever it does.
#[derive(Clone, Debug, Default)]
pub struct RunOptions {
    /// Show the plan and change nothing.
    pub dry_run: bool,
    /// How steps are executed; whether records survive power loss, and who controls, is the session's.
    pub execution: Options,
    /// Treat a missing variable in a template as an error.
    pub strict_templates: bool,
    pub validity: Validity,
    /// Whether hosts get changed layers as differences.
    pub delta: Delta,
    /// Where hosts get layers that no other host has.
    pub source: LayerSource,
    /// How the Pods of hosts that leave are evicted; `None`: as usual.
    pub draining: Option<drain::Options>,
}

impl RunOptions {
    /// Returns the options for another run, without those that name steps of this run.
    pub(crate) fn of_another_run(&self) -> Self {
        let own = self.execution.clone();
        let execution = Options { assume_done: Vec::new(), redo: Vec::new(), ..own };
        Self { execution, ..self.clone() }
    }

    /// Returns how the Pods of hosts that leave `cluster` are evicted.
    pub(crate) fn draining(&self, runtime: &dyn Runtime, cluster: &str) -> Result<drain::Options> {
        match &self.draining {
            Some(_) if !runtime.has_api() => Err(Error::usage(format!(
                "cluster {cluster} has no Kubernetes API: its hosts leave without a drain"
            ))
            .hint("omit --drain-timeout, --drain-on-timeout and --force-unmanaged")),
            Some(given) => Ok(given.clone()),
            None => Ok(nodes::leaving()),
        }
    }

    /// Returns the options of operations that only read.
    pub(crate) fn look() -> Self {
        Self { dry_run: true, ..Self::default() }
    }
}
