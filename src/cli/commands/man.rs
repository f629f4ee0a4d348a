//! `imgctl man [DIR]`.

use std::path::PathBuf;

use clap::Args;

use crate::cli::context::Context;
use imgctl_base::error::{IoContext, Result};

/// Print the manual page, or write the pages of all commands into a directory
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  imgctl man | man -l -
  imgctl man /usr/local/share/man/man1")]
pub(crate) struct ManArgs {
    /// Directory for one page per command; created if missing
    #[arg(value_name = "DIR")]
    directory: Option<PathBuf>,
}

/// Prints or writes the pages.
pub(crate) fn run(args: &ManArgs, command: clap::Command, context: &Context) -> Result<()> {
    let Some(directory) = &args.directory else {
        let mut page = Vec::new();
        clap_mangen::Man::new(command)
            .render(&mut page)
            .doing(|| "cannot render the manual page".to_owned())?;
        return context.ui.bytes(&page);
    };
    std::fs::create_dir_all(directory).path("create", directory)?;
    clap_mangen::generate_to(command, directory).path("write manual pages to", directory)
}
