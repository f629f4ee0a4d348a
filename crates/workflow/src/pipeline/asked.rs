//! Queries of one host outside of a run. Must not know what is asked.

use imgctl_base::error::Result;
use imgctl_host::agent::Agent;
use imgctl_host::agent::protocol::OutputLine;
use imgctl_model::context::{ClusterContext, Host};
use imgctl_runtime::Runtime;
use imgctl_runtime::action::{HostPool, Line, Site};

/// A host that is only queried.
pub(crate) struct Asked<'a> {
    pub(crate) context: &'a ClusterContext,
    pub(crate) host: &'a Host,
    pub(crate) agent: &'a dyn Agent,
    pub(crate) pool: &'a dyn HostPool,
}

impl Asked<'_> {
    pub(crate) fn site<T>(
        &self,
        key: &str,
        then: impl FnOnce(&Site<'_>) -> Result<T>,
    ) -> Result<T> {
        then(&Site {
            host: self.host,
            agent: self.agent,
            pool: self.pool,
            context: self.context,
            key,
            attempt: 1,
            timeout: Some(std::time::Duration::from_secs(60)),
            output: &|_: OutputLine| {},
        })
    }

    pub(crate) fn line(&self, key: &str, line: &Line) -> Result<String> {
        self.site(key, |site| site.run(line))
    }

    pub(crate) fn health(&self, runtime: &dyn Runtime, key: &str) -> Result<()> {
        for (number, action) in runtime.health(self.context, self.host)?.iter().enumerate() {
            self.site(&format!("{key}.health{number}"), |site| (action.does)(site))?;
        }
        Ok(())
    }
}
