//! Reads what a host prints before the connection starts: shell noise, then the agent's greeting or
//! the message that there is no agent.

use std::io::Cursor;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt};

use crate::agent::wire::{self, Said};
use imgctl_base::error::{Error, Kind, Result};

/// Maximum amount of noise, in bytes.
const NOISE: usize = 256 << 10;
/// Timeout for the agent's greeting: logins and sudo can be slow.
const PATIENCE: Duration = Duration::from_secs(60);
/// Number of bytes of noise to show if nothing else arrives.
const SHOWN: usize = 200;

pub(super) type Output = Box<dyn AsyncRead + Send + Unpin>;

/// The host's answer.
pub(super) enum Answered {
    /// The agent has greeted; the rest of the output is the connection.
    Agent(Output),
    /// The host has no agent for its `uname -s` and `uname -m`.
    Needs(String, String),
    /// The output ended without a greeting; holds the end of the output.
    Nothing(String),
}

/// Reads the output until the answer is known.
pub(super) async fn listen(mut output: Output) -> Result<Answered> {
    let reading = async {
        let mut seen = Vec::new();
        let mut line = 0;
        loop {
            while let Some(length) =
                seen.get(line..).and_then(|rest: &[u8]| rest.iter().position(|byte| *byte == b'\n'))
            {
                let end = line + length;
                let text = String::from_utf8_lossy(seen.get(line..end).unwrap_or_default());
                match wire::said(&text) {
                    Said::Ready => {
                        let rest = seen.split_off(end + 1);
                        let output: Output = if rest.is_empty() {
                            output
                        } else {
                            Box::new(Cursor::new(rest).chain(output))
                        };
                        return Ok(Answered::Agent(output));
                    }
                    Said::Needed(system, machine) => return Ok(Answered::Needs(system, machine)),
                    Said::Other(version) => {
                        return Err(Error::failed(format!(
                            "the agent on the host is version {version}, this program is {}",
                            wire::ours()
                        ))
                        .hint("use the same program for both, or drop --agent and IMGCTL_AGENT"));
                    }
                    Said::Noise => line = end + 1,
                }
            }
            if seen.len() > NOISE {
                return Err(Error::failed("it writes much output, but no greeting of an agent")
                    .hint(
                        "check whether a start-up file of the shell there starts another \
                           program",
                    ));
            }
            let read = output.read_buf(&mut seen).await;
            match read {
                Ok(0) | Err(_) => return Ok(Answered::Nothing(tail(&seen))),
                Ok(_) => {}
            }
        }
    };
    match tokio::time::timeout(PATIENCE, reading).await {
        Ok(answered) => answered,
        Err(_) => Err(Error::new(
            Kind::Network,
            format!("no agent answered within {} s", PATIENCE.as_secs()),
        )),
    }
}

/// Returns the end of the output, on one line.
pub(super) fn tail(bytes: &[u8]) -> String {
    let start = bytes.len().saturating_sub(SHOWN);
    let text = String::from_utf8_lossy(bytes.get(start..).unwrap_or_default());
    let words: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let text = words.join("; ");
    text.replace(|c: char| c.is_control(), " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listen_to(bytes: &[u8]) -> Result<Answered> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(listen(Box::new(Cursor::new(bytes.to_vec()))))
    }

    #[test]
    fn noise_is_skipped_and_what_follows_is_kept() {
        let text = format!("Welcome!\r\n\u{ff}\x1b[0mlast login{}PRI", wire::greeting());
        let Answered::Agent(mut rest) = listen_to(text.as_bytes()).unwrap() else {
            panic!("no agent");
        };
        let mut bytes = Vec::new();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(rest.read_to_end(&mut bytes)).unwrap();
        assert_eq!(bytes, b"PRI");
    }

    #[test]
    fn other_answers_are_understood() {
        assert!(matches!(
            listen_to(b"motd\n\nimgctl-agent-needed Linux riscv64\n").unwrap(),
            Answered::Needs(system, machine) if system == "Linux" && machine == "riscv64"
        ));
        assert!(matches!(
            listen_to(b"a\nThis account is not available.\n").unwrap(),
            Answered::Nothing(text) if text == "a; This account is not available."
        ));
        let error = listen_to(b"\nimgctl-agent 99 8.0\n").err().unwrap();
        assert!(error.to_string().contains("8.0 (protocol 99)"), "{error}");
        assert!(listen_to(&vec![b'x'; NOISE * 2]).is_err());
    }
}
