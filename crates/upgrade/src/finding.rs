//! Constructors of findings, for all that judges a cluster.

use crate::document::{Finding, Severity};
use crate::observation::HostSeen;

fn found(check: &str, severity: Severity, what: impl Into<String>) -> Finding {
    Finding {
        check: check.to_owned(),
        severity,
        host: None,
        what: what.into(),
        hint: None,
        skipped: false,
    }
}

pub(crate) fn error(check: &str, what: impl Into<String>) -> Finding {
    found(check, Severity::Error, what)
}

pub(crate) fn warning(check: &str, what: impl Into<String>) -> Finding {
    found(check, Severity::Warning, what)
}

pub(crate) fn note(check: &str, what: impl Into<String>) -> Finding {
    found(check, Severity::Note, what)
}

impl Finding {
    pub(crate) fn on(mut self, host: &HostSeen) -> Self {
        self.host = Some(host.id.clone());
        self
    }

    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}
