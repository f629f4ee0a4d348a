//! What a run tells while it goes on. Must not know how it is shown.

use serde::Serialize;

use crate::inplace::journal::Phase;

/// One thing that happened; docs/inplace.md has the JSON.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub(crate) enum Event {
    /// So many images are on their Nodes.
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
