//! Encoding of calls: the greeting line, paths and events.
//!
//! A call is `POST /imgctl/v1/<name>` with a JSON body. Its answer is messages
//! ([`imgctl_base::wire`]), each an [`Event`]; the last one is `Done` or `Failed`. Behind the JSON of a call, and
//! behind `Done`, the content of large files follows as it is, up to the end of the body. Must not depend
//! on what calls do.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::agent::protocol::{
    Assemble, CheckedOut, Checkout, Claim, Claimed, Facts, FileDigest, FileToWrite, HostsBlock,
    Inventory, InventoryQuestion, Outcome, OutputLine, PeerSource, ReadPart, RegistryPull, Run,
    SwitchTree, WritePart,
};
use crate::containerd::rehash::{Rehash, Rehashed};
use imgctl_base::image::{Descriptor, Digest};
use imgctl_base::wire::Failure;

/// Path prefix of calls.
pub(super) const PREFIX: &str = "/imgctl/v1/";
/// Repository used in blob requests; its name makes no difference.
pub(super) const REPOSITORY: &str = "imgctl";
/// The call whose request and answer are the two directions of a stream. A header gives the
/// destination as an IP address, a space and a port.
pub(super) const TUNNEL: &str = "tunnel";
pub(super) const TUNNEL_TO: &str = "imgctl-to";
/// Maximum size of a call, in bytes.
pub(super) const MAX_CALL: usize = 64 << 20;

/// First word of the agent's greeting line.
const GREETING: &str = "imgctl-agent";
/// First word of the line that a host without the agent prints.
pub(super) const NEEDED: &str = "imgctl-agent-needed";
/// Version of the protocol, in addition to the version of the program.
const PROTOCOL: u32 = 5;
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Returns the agent's greeting. It begins with a line break, because the output of the shell's
/// start-up files may have ended without one.
pub(super) fn greeting() -> String {
    format!("\n{GREETING} {PROTOCOL} {VERSION}\n")
}

/// Meaning of a line received before the connection starts.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Said {
    Ready,
    /// The agent has another version or protocol.
    Other(String),
    /// The host has no agent for its kernel and machine, as `uname -s` and `uname -m` report them.
    Needed(String, String),
    Noise,
}

pub(super) fn said(line: &str) -> Said {
    let mut words = line.split_whitespace();
    let (first, second, third) = (words.next(), words.next(), words.next());
    match (first, second, third, words.next()) {
        (Some(GREETING), Some(protocol), Some(version), None) => {
            if protocol == PROTOCOL.to_string() && version == VERSION {
                Said::Ready
            } else {
                Said::Other(format!("{version} (protocol {protocol})"))
            }
        }
        (Some(NEEDED), Some(system), Some(machine), None) => {
            Said::Needed(system.to_owned(), machine.to_owned())
        }
        _ => Said::Noise,
    }
}

/// Returns our own version, in the format of [`Said::Other`].
pub(super) fn ours() -> String {
    format!("{VERSION} (protocol {PROTOCOL})")
}

/// A message of an answer.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Event<T> {
    /// The call has been parsed and its work begins.
    Begun,
    /// Number of additional bytes done.
    Progress(u64),
    Line(OutputLine),
    Done(T),
    Failed(Failure),
}

pub(super) trait Call: Serialize + DeserializeOwned + Send + 'static {
    const NAME: &'static str;
    type Answer: Serialize + DeserializeOwned + Send + 'static;

    /// Returns the bytes to send behind the JSON of the call.
    fn bytes(&self) -> &[u8] {
        &[]
    }

    /// Returns the field for the bytes behind the JSON of the call; `None` if the call has none.
    fn bytes_mut(&mut self) -> Option<&mut Vec<u8>> {
        None
    }

    /// Returns the field for the bytes behind the answer; `None` if the answer has none.
    fn answered(_answer: &mut Self::Answer) -> Option<&mut Vec<u8>> {
        None
    }
}

impl Call for WritePart {
    const NAME: &'static str = "write-part";
    type Answer = ();

    fn bytes(&self) -> &[u8] {
        &self.content
    }

    fn bytes_mut(&mut self) -> Option<&mut Vec<u8>> {
        Some(&mut self.content)
    }
}

impl Call for ReadPart {
    const NAME: &'static str = "read-part";
    type Answer = PartRead;

    fn answered(answer: &mut PartRead) -> Option<&mut Vec<u8>> {
        Some(&mut answer.content)
    }
}

macro_rules! calls {
    ($($name:literal: $call:ty => $answer:ty;)*) => {
        $(impl Call for $call {
            const NAME: &'static str = $name;
            type Answer = $answer;
        })*
    };
}

calls! {
    "facts": FactsQuestion => FactsAnswer;
    "inventory": InventoryQuestion => Inventory;
    "offer": OfferBlobs => PeerSource;
    "withdraw": Withdraw => ();
    "fetch": Fetch => Vec<Digest>;
    "pull": RegistryPull => ();
    "assemble": Assemble => ();
    "checkout": Checkout => CheckedOut;
    "switch-tree": SwitchTree => Vec<String>;
    "run": Run => Outcome;
    "cancel": Cancel => ();
    "write-file": FileToWrite => bool;
    "read-file": ReadFile => Option<Content>;
    "claim": Claim => Claimed;
    "file-digest": FileDigest => Digest;
    "remove": Remove => Vec<String>;
    "set-hosts": HostsBlock => HostsSet;
    "rehash": Rehash => Rehashed;
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct FactsQuestion {
    /// Directory where clusters keep their files on the host.
    pub(super) data_root: String,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct FactsAnswer {
    pub(super) facts: Facts,
    /// Microseconds spent gathering the facts; `Facts::time_ms` is taken at the end.
    pub(super) spent: u64,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct OfferBlobs {}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Withdraw {}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Fetch {
    pub(super) from: PeerSource,
    pub(super) blobs: Vec<Descriptor>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Cancel {
    pub(super) directory: String,
    pub(super) key: String,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct ReadFile {
    pub(super) path: String,
    pub(super) limit: u64,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Remove {
    pub(super) paths: Vec<String>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct HostsSet {
    pub(super) changed: bool,
    /// Existing lines that contradict the block.
    pub(super) notes: Vec<String>,
}

#[derive(Serialize, Deserialize)]
pub(super) struct PartRead {
    #[serde(skip)]
    pub(super) content: Vec<u8>,
}

#[derive(Serialize, Deserialize)]
pub(super) struct Content(#[serde(with = "base64_bytes")] pub(super) Vec<u8>);

pub(super) mod base64_bytes {
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;

    use super::{Deserialize, Deserializer, Serializer};

    pub(in crate::agent) fn serialize<S: Serializer>(
        bytes: &[u8],
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&STANDARD.encode(bytes))
    }

    pub(in crate::agent) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Vec<u8>, D::Error> {
        let text = String::deserialize(deserializer)?;
        STANDARD.decode(text).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use imgctl_base::testing::damaged;
    use imgctl_base::wire::{Decoder, encode};

    #[test]
    fn greetings_are_told_from_noise() {
        assert_eq!(said(greeting().trim()), Said::Ready);
        assert_eq!(said("imgctl-agent 0 9.9.9"), Said::Other("9.9.9 (protocol 0)".to_owned()));
        assert_eq!(
            said("imgctl-agent-needed Linux armv7l\r"),
            Said::Needed("Linux".to_owned(), "armv7l".to_owned())
        );
        for noise in ["", "Welcome to imgctl-agent", "imgctl-agent", "-bash: x"] {
            assert_eq!(said(noise), Said::Noise, "{noise}");
        }
    }

    /// What a hostile host sends as the answer to `C`: the same messages arrive however the stream is cut, and each can be sent
    /// again.
    fn answers_of<C: Call>(stream: &[u8]) {
        let read = |piece: usize| {
            let (mut decoder, mut came, mut error) = (Decoder::default(), Vec::new(), None);
            for bytes in stream.chunks(piece) {
                decoder.push(bytes);
                loop {
                    match decoder.message::<Event<C::Answer>>() {
                        Ok(Some(event)) => came.push(encode(&event).unwrap()),
                        Ok(None) => break,
                        Err(why) => {
                            error = Some(why.to_string());
                            break;
                        }
                    }
                }
                if error.is_some() {
                    break;
                }
            }
            (came, error)
        };
        let whole = read(stream.len().max(1));
        assert_eq!(read(7), whole);
        for message in whole.0 {
            let mut decoder = Decoder::default();
            decoder.push(&message);
            let again = decoder.message::<Event<C::Answer>>().unwrap().unwrap();
            assert_eq!(encode(&again).unwrap(), message);
        }
    }

    #[test]
    fn answers_of_a_hostile_host_are_read_or_refused() {
        let all: [fn(&[u8]); 9] = [
            answers_of::<FactsQuestion>,
            answers_of::<InventoryQuestion>,
            answers_of::<Fetch>,
            answers_of::<Checkout>,
            answers_of::<Run>,
            answers_of::<ReadPart>,
            answers_of::<ReadFile>,
            answers_of::<HostsBlock>,
            answers_of::<Rehash>,
        ];
        let facts = FactsAnswer { facts: Facts::default(), spent: 1 };
        let line = OutputLine { text: "\u{1b}x".to_owned(), error_stream: true };
        let failure = Failure::from(&imgctl_base::error::Error::failed("no").hint("yes"));
        let valid: Vec<u8> = [
            encode(&Event::<()>::Begun),
            encode(&Event::<()>::Line(line)),
            encode(&Event::<()>::Progress(7)),
            encode(&Event::Done(facts)),
            encode(&Event::<()>::Failed(failure)),
        ]
        .into_iter()
        .flat_map(Result::unwrap)
        .collect();
        bolero::check!().for_each(|input: &[u8]| {
            let Some((which, input)) = input.split_first() else { return };
            let answers = all[usize::from(*which) % all.len()];
            answers(input);
            answers(&damaged(&valid, input));
            let length = u32::try_from(input.len()).unwrap();
            answers(&[&length.to_le_bytes()[..], input].concat());
            if let Ok(text) = std::str::from_utf8(input) {
                let _ = said(text);
            }
        });
    }
}
