//! Communication between the sandbox's processes: frames of a length and JSON over a socket pair
//! that is the child's standard input (never arguments or the environment, because a spec contains
//! secrets). Does not know what the messages mean.

use std::io::{self, Read, Write};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::spec::{Exit, ExitOutcome, Stub};
use imgctl_base::error::{Error, IoContext, Kind, Result};

/// Maximum size of a frame, in bytes: secrets and scripts are small, and images are not sent this
/// way.
const LONGEST: usize = 64 << 20;

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

/// An [`Error`] in transferable form.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Failure {
    kind: String,
    messages: Vec<String>,
    hints: Vec<String>,
}

/// Error kinds that a sandbox can report; any other arrives as [`Kind::Failed`].
const KINDS: [(Kind, &str); 7] = [
    (Kind::Failed, "failed"),
    (Kind::Usage, "usage"),
    (Kind::NotFound, "not-found"),
    (Kind::BadContent, "bad-content"),
    (Kind::Denied, "denied"),
    (Kind::Busy, "busy"),
    (Kind::NoSpace, "no-space"),
];

impl From<&Error> for Failure {
    fn from(error: &Error) -> Self {
        let name = KINDS.iter().find(|(kind, _)| *kind == error.kind());
        Self {
            kind: name.map_or("failed", |(_, name)| name).to_owned(),
            messages: error.chain(),
            hints: error.hints().into_iter().map(str::to_owned).collect(),
        }
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        let kind = KINDS.iter().find(|(_, name)| *name == failure.kind);
        let kind = kind.map_or(Kind::Failed, |(kind, _)| *kind);
        let error = Error::new(kind, failure.messages.join(": "));
        failure.hints.into_iter().fold(error, Error::hint)
    }
}

/// Encodes one message.
pub(super) fn frame(message: &impl Serialize) -> Result<Vec<u8>> {
    let mut frame = vec![0; 4];
    serde_json::to_writer(&mut frame, message).map_err(|error| {
        Error::failed("cannot encode a message of the sandbox").caused_by(error)
    })?;
    let length = frame.len() - 4;
    let header = u32::try_from(length).ok().filter(|_| length <= LONGEST);
    let header = header.ok_or_else(|| {
        Error::failed(format!(
            "the RUN step passes {length} bytes to its sandbox; at most {LONGEST} are allowed"
        ))
        .hint("secrets and scripts must be small; mount large files instead")
    })?;
    frame[..4].copy_from_slice(&header.to_le_bytes());
    Ok(frame)
}

/// Writes one message.
pub(super) fn send(to: &mut impl Write, message: &impl Serialize) -> Result<()> {
    to.write_all(&frame(message)?).doing(|| "cannot send to the sandbox".to_owned())
}

/// Reads one message; returns `None` if the other end is gone.
pub(super) fn receive<T: DeserializeOwned>(from: &mut impl Read) -> Result<Option<T>> {
    let mut length = [0; 4];
    match from.read_exact(&mut length) {
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset
            ) =>
        {
            return Ok(None);
        }
        other => other.doing(|| "cannot read from the sandbox".to_owned())?,
    }
    let length = u32::from_le_bytes(length) as usize;
    if length > LONGEST {
        return Err(Error::failed(format!(
            "a message of the sandbox claims to be {length} bytes long"
        )));
    }
    // Grows as bytes arrive, so that a false length wastes no memory.
    let mut json = Vec::new();
    from.take(length as u64)
        .read_to_end(&mut json)
        .doing(|| "cannot read from the sandbox".to_owned())?;
    if json.len() != length {
        return Ok(None);
    }
    serde_json::from_slice(&json)
        .map(Some)
        .map_err(|error| Error::failed("cannot decode a message from the sandbox").caused_by(error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_survives_and_a_cut_one_is_the_end() {
        let mut buffer = Vec::new();
        send(&mut buffer, &Event::Ended(Exit::Signal(9))).unwrap();
        let whole: Option<Event> = receive(&mut buffer.as_slice()).unwrap();
        assert!(matches!(whole, Some(Event::Ended(Exit::Signal(9)))));
        for cut in 0..buffer.len() {
            assert!(receive::<Event>(&mut &buffer[..cut]).unwrap().is_none());
        }
    }

    #[test]
    fn a_monstrous_length_is_refused() {
        let frame = u32::MAX.to_le_bytes();
        assert!(receive::<Event>(&mut frame.as_slice()).is_err());
    }

    #[test]
    fn an_error_keeps_kind_chain_and_hints() {
        let error = Error::new(Kind::Denied, "no").hint("ask").context("cannot run");
        let copy = Error::from(Failure::from(&error));
        assert_eq!(copy.kind(), Kind::Denied);
        assert_eq!(copy.to_string(), "cannot run: no");
        assert_eq!(copy.hints(), ["ask"]);
    }
}
