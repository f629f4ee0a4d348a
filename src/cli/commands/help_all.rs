//! `imgctl help-all` (hidden): the help of every command, for documentation and its snapshot test.

use clap::Args;

use crate::cli::context::Context;
use imgctl_base::error::Result;

/// Print the help of all commands
#[derive(Args, Debug)]
pub(crate) struct HelpAllArgs {}

/// Prints the help of the program and then of each command, each global flag once.
pub(crate) fn run(_: &HelpAllArgs, command: clap::Command, context: &Context) -> Result<()> {
    let mut command = command.term_width(100);
    command.build();
    let mut text = format!("# imgctl\n\n{}\n", command.render_help());
    // Global flags appear only in the help of the program.
    let globals: Vec<clap::Id> = command
        .get_arguments()
        .filter(|argument| argument.is_global_set())
        .map(|argument| argument.get_id().clone())
        .collect();
    verbs(&command, "imgctl", &globals, &mut text);
    context.ui.print(&text)
}

/// Adds the help of the subcommands of `command`, each followed by that of its own subcommands.
fn verbs(command: &clap::Command, path: &str, globals: &[clap::Id], text: &mut String) {
    let mut inner: Vec<&clap::Command> = command
        .get_subcommands()
        .filter(|verb| !verb.is_hide_set() && verb.get_name() != "help")
        .collect();
    inner.sort_by_key(|verb| (verb.get_display_order(), verb.get_name()));
    for verb in inner {
        let path = format!("{path} {}", verb.get_name());
        let mut shown = verb.clone().mut_args(|argument| {
            let global = argument.is_global_set() && globals.contains(argument.get_id());
            let hidden = argument.is_hide_set();
            argument.hide(global || hidden)
        });
        text.push_str(&format!("# {path}\n\n{}\n", shown.render_help()));
        verbs(verb, &path, globals, text);
    }
}
