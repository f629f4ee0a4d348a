//! `imgctl host-action`: runs an action of the agent from the command line.

use std::io::{Read, Write};
use std::path::Path;

use clap::{Args, ValueEnum};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::cli::context::Context;
use imgctl_base::error::{Error, IoContext, Result};
use imgctl_host::agent::protocol::{Checkout, InventoryQuestion, Run, SwitchTree};
use imgctl_host::agent::{execution, tree};

/// Perform an action of the agent on this machine
///
/// Reads a request of the agent's protocol as JSON from stdin and writes the result as JSON, one
/// value per line.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  imgctl host-action inventory < question.json")]
pub(crate) struct HostActionArgs {
    /// Action to perform
    #[arg(value_enum)]
    action: Action,
}

/// Parts of the protocol that change files or run commands.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Action {
    /// Run a command, or find the outcome of one that was started
    Run,
    /// Terminate a command
    Cancel,
    /// Create a tree from layers in the store
    Checkout,
    /// Make a staged tree the current one
    SwitchTree,
    /// List trees and registry layers
    Inventory,
}

/// Performs the action.
pub(crate) fn run(args: &HostActionArgs, context: &Context) -> Result<()> {
    match args.action {
        Action::Run => {
            let caller =
                execution::Caller { program: Path::new("/proc/self/exe"), gone: &|| false };
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
    std::io::stdin().read_to_end(&mut bytes).doing(|| "cannot read the request".to_owned())?;
    serde_json::from_slice(&bytes)
        .map_err(|error| Error::usage("the request is malformed").caused_by(error))
}

fn answer(value: &impl Serialize) -> Result<()> {
    let mut line = serde_json::to_vec(value)
        .map_err(|error| Error::failed("cannot write the answer").caused_by(error))?;
    line.push(b'\n');
    std::io::stdout().write_all(&line).doing(|| "cannot write the answer".to_owned())
}
