//! Flags for waiting for Nodes at the end of a run.

use std::time::Duration;

use clap::Args;

use crate::cli::duration;
use imgctl_base::error::Result;
use imgctl_cluster::pipeline::nodes::Wait;

/// Default timeout for Nodes.
const LIMIT: Duration = Duration::from_secs(300);

/// Flags for waiting for Nodes.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Run options")]
pub(crate) struct WaitArgs {
    /// Fail unless Nodes are Ready within DURATION [default: 5m, where a network plugin (CNI) is installed]
    #[arg(
        long,
        value_name = "DURATION",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "5m"
    )]
    wait: Option<String>,

    /// Do not wait for Nodes to be Ready
    #[arg(long, conflicts_with = "wait")]
    no_wait: bool,
}

impl WaitArgs {
    /// Returns the behaviour that the flags request.
    pub(crate) fn wait(&self) -> Result<Wait> {
        match &self.wait {
            _ if self.no_wait => Ok(Wait::Never),
            Some(text) => Ok(match duration::parse(text)? {
                Duration::ZERO => Wait::Never,
                limit => Wait::Always(limit),
            }),
            None => Ok(Wait::WhereNetwork(LIMIT)),
        }
    }
}
