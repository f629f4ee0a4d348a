//! Flags that say how the Pods of a Node are evicted.

use std::time::Duration;

use clap::Args;

use crate::choice::choice;
use crate::duration;
use imgctl_base::error::Result;
use imgctl_ops::work::RunOptions;
use imgctl_runtime::nodes;
use imgctl_upgrade::document::OnTimeout;

/// Eviction of the Pods of a Node.
#[derive(Args, Clone, Debug, Default)]
pub struct DrainArgs {
    /// Time limit for the Pods of a Node to leave; 0 means no limit [default: 10m]
    #[arg(long, value_name = "DURATION")]
    pub drain_timeout: Option<String>,

    /// Action for Pods that do not leave in time [default: abort]
    #[arg(long, value_parser = choice::<OnTimeout>(["abort", "wait", "delete"]))]
    pub drain_on_timeout: Option<OnTimeout>,

    /// Also evict Pods that no controller recreates
    #[arg(long)]
    pub force_unmanaged: bool,
}

impl DrainArgs {
    /// Adds what is given to the options of a command that removes hosts.
    pub fn with(&self, options: RunOptions) -> Result<RunOptions> {
        if self.drain_timeout.is_none() && self.drain_on_timeout.is_none() && !self.force_unmanaged
        {
            return Ok(options);
        }
        let mut draining = nodes::leaving();
        if let Some(text) = &self.drain_timeout {
            draining.timeout = Duration::from_secs(duration::parse(text)?.as_secs());
        }
        draining.on_timeout = self.drain_on_timeout.unwrap_or_default();
        draining.force = self.force_unmanaged;
        Ok(RunOptions { draining: Some(draining), ..options })
    }
}
