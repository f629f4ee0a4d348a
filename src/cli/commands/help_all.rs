//! `imgctl help-all` (hidden): the help of every verb, for documentation and its snapshot test.

use clap::Args;

use crate::cli::arguments;
use crate::cli::context::Context;
use crate::error::Result;

/// Print the help of all commands
#[derive(Args, Debug)]
pub(crate) struct HelpAllArgs {}

/// Prints the help of the program and then of each verb, each global flag once.
pub(crate) fn run(_args: &HelpAllArgs, context: &Context) -> Result<()> {
    let mut command = arguments::command().term_width(100);
    command.build();
    let mut text = format!("# imgctl\n\n{}\n", command.render_help());
    let mut names: Vec<(usize, String)> = command
        .get_subcommands()
        .filter(|verb| !verb.is_hide_set() && verb.get_name() != "help")
        .map(|verb| (verb.get_display_order(), verb.get_name().to_owned()))
        .collect();
    names.sort();
    for (_, name) in names {
        // The global flags were shown with the program.
        let globals: Vec<clap::Id> = command
            .get_arguments()
            .filter(|argument| argument.is_global_set())
            .map(|argument| argument.get_id().clone())
            .collect();
        if let Some(verb) = command.find_subcommand_mut(&name) {
            let verb = verb.clone().mut_args(|argument| {
                let global = argument.is_global_set() && globals.contains(argument.get_id());
                let hidden = argument.is_hide_set();
                argument.hide(global || hidden)
            });
            text.push_str(&format!(
                "# imgctl {name}\n\n{}\n",
                verb.clone().render_help()
            ));
        }
    }
    context.ui.print(&text)
}
