//! `imgctl registry`: the group of verbs that serve registries and maintain their trees.

pub(crate) mod copy;
pub(crate) mod gc;
pub(crate) mod ls;
pub(crate) mod passwd;
pub(crate) mod rm;
pub(crate) mod save;
pub(crate) mod scrub;
mod selection;
pub(crate) mod serve;
pub(crate) mod sync;

use clap::{Args, Subcommand};

use crate::cli::context::Context;
use imgctl_base::error::Result;

/// Serve registries and maintain registries on disk
#[derive(Args, Debug)]
#[command(
    after_help = "A registry on disk is the tree that docker-distribution keeps, as in the registry/ folder of a
cluster image: either program serves what the other has written.

Examples:
  imgctl registry serve /var/lib/registry
  imgctl registry ls /var/lib/registry"
)]
pub(crate) struct RegistryCommand {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    Serve(Box<serve::ServeArgs>),
    Rm(rm::RmArgs),
    Ls(Box<ls::LsArgs>),
    Save(Box<save::SaveArgs>),
    Sync(sync::SyncArgs),
    Copy(copy::CopyArgs),
    Passwd(passwd::PasswdArgs),
    Gc(gc::GcArgs),
    Scrub(scrub::ScrubArgs),
}

/// Runs the verb.
pub(crate) fn run(command: &RegistryCommand, context: &Context) -> Result<()> {
    match &command.verb {
        Verb::Serve(args) => serve::run(args, context),
        Verb::Ls(args) => ls::run(args, context),
        Verb::Rm(args) => rm::run(args, context),
        Verb::Save(args) => save::run(args, context),
        Verb::Sync(args) => sync::run(args, context),
        Verb::Copy(args) => copy::run(args, context),
        Verb::Passwd(args) => passwd::run(args, context),
        Verb::Gc(args) => gc::run(args, context),
        Verb::Scrub(args) => scrub::run(args, context),
    }
}
