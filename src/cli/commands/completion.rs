//! `imgctl completion SHELL`.

use clap::Args;
use clap_complete::Shell;

use crate::cli::context::Context;
use imgctl_base::error::Result;

/// Print a completion script for a shell
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  imgctl completion bash > /etc/bash_completion.d/imgctl
  source <(imgctl completion zsh)")]
pub(crate) struct CompletionArgs {
    /// Shell to print the script for
    shell: Shell,
}

/// Prints the script.
pub(crate) fn run(
    args: &CompletionArgs,
    mut command: clap::Command,
    context: &Context,
) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, "imgctl", &mut script);
    context.ui.bytes(&script)
}
