//! The flag `--source` of the verbs that bring the files of images to hosts.

use clap::Args;

use imgctl_base::error::{Error, Result};
use imgctl_ops::{layer_source::LayerSource, work::RunOptions};

/// Where hosts get the layers of images.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Run options")]
pub struct SourceArgs {
    /// Where hosts get layers: `controller` sends them; with `registry`, hosts pull them from the
    /// registry in the image's name, or from the repository given [default: controller]
    #[arg(long, value_name = "controller|registry[=REPOSITORY]", value_parser = layer_source)]
    source: Option<LayerSource>,
}

impl SourceArgs {
    /// Adds the source to the options of a run.
    pub fn with(&self, options: RunOptions) -> RunOptions {
        RunOptions { source: self.source.clone().unwrap_or_default(), ..options }
    }

    /// Refuses the flag for a command without hosts; `reason` is the flag that excludes it.
    pub fn refuse(&self, reason: &str) -> Result<()> {
        match self.source {
            Some(_) => Err(Error::usage(format!("--source cannot be used with {reason}"))
                .hint(format!("with {reason}, no files are sent to hosts"))),
            None => Ok(()),
        }
    }
}

fn layer_source(text: &str) -> Result<LayerSource, String> {
    LayerSource::parse(text).map_err(|error| {
        let hints = error.hints().join("; ");
        if hints.is_empty() { error.to_string() } else { format!("{error} ({hints})") }
    })
}
