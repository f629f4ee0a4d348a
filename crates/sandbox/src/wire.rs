//! Messages between the sandbox's processes, over a socket pair that is the child's standard input
//! (never arguments or the environment, because a spec contains secrets).

use std::io::{Read, Write};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::spec::{Exit, ExitOutcome, Stub};
use imgctl_base::error::{Context, IoContext, Result};
use imgctl_base::wire::{self, Failure};

/// The supervisor's answer to a spec.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Answer {
    /// The command ran, or could not be started for reasons of its own.
    Ended(ExitOutcome),
    /// The sandbox could not be made.
    Failed(Failure),
}

/// Messages from the inner processes to the supervisor.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Event {
    /// All namespaces exist; connections from outside can be set up now.
    Namespaces {
        /// Notes for the user.
        notes: Vec<String>,
    },
    /// The root is ready; the next step is to start the command.
    Ready {
        /// Mount points that had to be created.
        stubs: Vec<Stub>,
    },
    /// The command could not be started, for this reason.
    NotStarted(String),
    /// The sandbox could not be made.
    Failed {
        /// The cause.
        failure: Failure,
        /// Mount points created so far.
        stubs: Vec<Stub>,
    },
    /// The command ended.
    Ended(Exit),
}

/// Messages from the supervisor to the inner processes.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Go {
    /// Continue.
    On,
}

/// Writes one message.
pub(super) fn send(to: &mut impl Write, message: &impl Serialize) -> Result<()> {
    to.write_all(&wire::encode(message)?).doing(|| "cannot send to the sandbox".to_owned())
}

/// Reads one message; returns `None` if the other end is gone.
pub(super) fn receive<T: DeserializeOwned>(from: &mut impl Read) -> Result<Option<T>> {
    wire::receive(from).context(|| "cannot read from the sandbox".to_owned())
}
