//! `imgctl host-action`: what the agent does on a host, asked for by hand.

use std::io::{Read, Write};
use std::path::Path;

use clap::{Args, ValueEnum};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::agent::protocol::{Checkout, InventoryQuestion, Run, SwitchTree};
use crate::agent::{execution, tree};
use crate::cli::context::Context;
use crate::error::{Error, IoContext, Result};

/// Do on this machine what the agent does on a host
///
/// Reads a request of the agent's protocol as JSON from standard input and writes what comes of it
/// as JSON, one value per line.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  imgctl host-action inventory < question.json")]
pub(crate) struct HostActionArgs {
    /// What to do
    #[arg(value_enum)]
    action: Action,
}

/// The parts of the protocol that change files or run commands.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Action {
    /// Run a command, or find what became of it
    Run,
    /// End a command
    Cancel,
    /// Make a tree of layers in the store
    Checkout,
    /// Make a tree that was staged the current one
    SwitchTree,
    /// Tell trees and registry layers
    Inventory,
}

/// Does it.
pub(crate) fn run(args: &HostActionArgs, context: &Context) -> Result<()> {
    match args.action {
        Action::Run => {
            let caller = execution::Caller {
                program: Path::new("/proc/self/exe"),
                gone: &|| false,
            };
            let mut failed = None;
            let outcome = execution::run(&request()?, &caller, &mut |line| {
                if let Err(error) = answer(&line) {
                    failed.get_or_insert(error);
                }
            })?;
            match failed {
                Some(error) => Err(error),
                None => answer(&outcome),
            }
        }
        Action::Cancel => {
            let request: Run = request()?;
            execution::cancel(&request.directory, &request.key)
        }
        Action::Checkout => {
            let request: Checkout = request()?;
            answer(&tree::checkout(context.store()?, &request, &|_| {})?)
        }
        Action::SwitchTree => answer(&tree::switch_tree(&request::<SwitchTree>()?)?),
        Action::Inventory => {
            let question: InventoryQuestion = request()?;
            let store = context.store()?;
            answer(&tree::inventory(store, &question.root, &question)?)
        }
    }
}

fn request<T: DeserializeOwned>() -> Result<T> {
    let mut bytes = Vec::new();
    std::io::stdin()
        .read_to_end(&mut bytes)
        .doing(|| "cannot read the request".to_owned())?;
    serde_json::from_slice(&bytes)
        .map_err(|error| Error::usage("the request is malformed").caused_by(error))
}

fn answer(value: &impl Serialize) -> Result<()> {
    let mut line = serde_json::to_vec(value)
        .map_err(|error| Error::failed("cannot write the answer").caused_by(error))?;
    line.push(b'\n');
    std::io::stdout()
        .write_all(&line)
        .doing(|| "cannot write the answer".to_owned())
}
