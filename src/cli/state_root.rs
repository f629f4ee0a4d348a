//! Where the controller keeps its clusters.

use std::path::PathBuf;

use crate::cli::context::Context;
use crate::error::{Error, Result};

/// `SEALOS_RUNTIME_ROOT`, else `~/.sealos`.
pub(crate) fn state_root(context: &Context) -> Result<PathBuf> {
    if let Some(root) = context.environment.path("SEALOS_RUNTIME_ROOT") {
        return Ok(root);
    }
    match context.environment.path("HOME") {
        Some(home) => Ok(home.join(".sealos")),
        None => Err(
            Error::usage("there is no place for clusters: HOME is not set")
                .hint("say where with SEALOS_RUNTIME_ROOT"),
        ),
    }
}
