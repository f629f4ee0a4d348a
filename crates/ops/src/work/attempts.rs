//! The hint for a creation that fails again. Must not know how operations are planned or carried out.

use crate::work::Work;
use imgctl_base::error::{Error, Kind};

impl Work<'_> {
    /// Adds a hint to the error of a repeated creation: what an earlier attempt left on hosts may be the
    /// reason why a corrected image fails as well.
    pub(super) fn with_way_out(&self, error: Error) -> Error {
        let is_again = self.current.as_ref().is_some_and(|current| !current.exists());
        let is_of_host =
            matches!(error.kind(), Kind::CommandFailed | Kind::CheckFailed | Kind::Failed);
        if !(is_again && self.operation.creates() && is_of_host) {
            return error;
        }
        error.hint(format!(
            "if what the earlier attempt left on the hosts is in the way, run `imgctl reset --cluster {}` \
             before you create the cluster again",
            self.state.name()
        ))
    }
}
