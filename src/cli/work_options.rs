//! Flags of every verb that changes a cluster: flags first, then variables.

use std::time::Duration;

use clap::Args;

use crate::cli::context::Context;
use crate::cli::duration;
use imgctl_base::error::{Error, Result};
use imgctl_cluster::runtime::certificates::validity::Validity;
use imgctl_ops::work::RunOptions;

/// Flags of every verb that changes a cluster.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Run options")]
pub(crate) struct WorkArgs {
    /// Show the plan and change nothing
    #[arg(long)]
    pub(crate) dry_run: bool,

    /// Maximum number of hosts to work on concurrently
    #[arg(long, value_name = "N", default_value_t = 32)]
    parallel: usize,

    /// Timeout of a command on a host: 90s, 10m, 2h; 0: none [env: SEALOS_EXECUTION_TIMEOUT]
    #[arg(long, value_name = "DURATION")]
    timeout: Option<String>,

    /// Number of retries after a lost connection [env: SEALOS_MAX_RETRY]
    #[arg(long, value_name = "N")]
    retries: Option<u32>,

    /// Treat a step with an unknown outcome as done (may be repeated)
    #[arg(long, value_name = "STEP")]
    assume_done: Vec<String>,

    /// Repeat a step, whatever its recorded outcome (may be repeated)
    #[arg(long, value_name = "STEP")]
    redo: Vec<String>,

    /// Treat a missing variable in a .tmpl file as an error
    #[arg(long)]
    strict_templates: bool,

    /// Validity of certificates: 90d, 10y; `sealos`: 100 years [default: CAs 10 years, others 1]
    #[arg(long, value_name = "DURATION")]
    certificate_validity: Option<String>,

    /// For crash tests: die after this number of journal records
    #[cfg(feature = "testing")]
    #[arg(long, hide = true, value_name = "N", env = "IMGCTL_DIE_AFTER")]
    die_after: Option<u64>,
}

impl WorkArgs {
    /// Returns the options that the flags and variables ask for.
    pub(crate) fn options(&self, context: &Context) -> Result<RunOptions> {
        let environment = &context.environment;
        let usual = RunOptions::default();
        let timeout = match &self.timeout {
            Some(text) => Some(text.as_str()),
            None => environment.text("SEALOS_EXECUTION_TIMEOUT")?,
        };
        let retries = match self.retries {
            Some(retries) => retries,
            None => match environment.text("SEALOS_MAX_RETRY")? {
                Some(text) => text.parse().map_err(|_| {
                    Error::usage(format!("SEALOS_MAX_RETRY is `{text}`, not a number"))
                })?,
                None => usual.retries,
            },
        };
        Ok(RunOptions {
            dry_run: self.dry_run,
            parallel: self.parallel.max(1),
            timeout: timeout.map(duration::parse).transpose()?.filter(|limit| !limit.is_zero()),
            retries,
            assume_done: self.assume_done.clone(),
            redo: self.redo.clone(),
            strict_templates: self.strict_templates,
            validity: match self.certificate_validity.as_deref() {
                None => usual.validity,
                Some("sealos") => Validity::sealos(),
                Some(text) => Validity::of_leaves(validity(text)?)?,
            },
            #[cfg(feature = "testing")]
            die_after: self.die_after,
        })
    }
}

/// Parses a duration in which `y` is a year of 365 days.
fn validity(text: &str) -> Result<Duration> {
    match text.strip_suffix('y').and_then(|years| years.parse::<u64>().ok()) {
        Some(years) => Ok(Duration::from_secs(years.saturating_mul(365 * 86_400))),
        None => duration::parse(text),
    }
}
