//! Progress events of a run. Must not depend on how they are displayed.

use serde::Serialize;

use crate::inplace::journal::Phase;

/// One event; docs/inplace.md describes the JSON.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum Event {
    /// Number of images pulled to their Nodes.
    Pulled {
        images: usize,
    },
    Batch {
        number: usize,
        of: usize,
        pods: usize,
    },
    Pod {
        pod: String,
        uid: String,
        phase: Phase,
        #[serde(skip_serializing_if = "Option::is_none")]
        message: Option<String>,
    },
    Template {
        workload: String,
        message: String,
    },
    Note {
        message: String,
    },
}
