//! Encoding of calls: the greeting line, paths and events.
//!
//! A call is `POST /imgctl/v1/<name>` with a JSON body. Its answer is messages
//! ([`imgctl_base::wire`]), each an [`Event`]; the last one is `Done` or `Failed`. Behind the JSON of a call, and
//! behind `Done`, the content of large files follows as it is, up to the end of the body. Must not depend
//! on what calls do.

use std::time::Duration;

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

/// Time for a call that reads or writes little.
const QUICK: Duration = Duration::from_secs(5 * 60);
/// Time for a call that works on whole trees or layers, and between two reports of its progress.
const LONG: Duration = Duration::from_secs(30 * 60);
/// Time for a command to end after its own limit.
const END: Duration = Duration::from_secs(60);

/// How long the controller waits for a host. A host that reports without end gains nothing.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    /// From the beginning of the call, and between two reports of progress; `None`: as long as the
    /// user waits.
    pub(super) time: Option<Duration>,
    /// Number of bytes that the call moves at most: reports of as many extend the time.
    pub(super) bytes: u64,
}

impl Patience {
    const fn of(time: Duration) -> Self {
        Self { time: Some(time), bytes: 0 }
    }

    /// For work on these blobs, which may become larger when they are unpacked.
    fn long<'a>(blobs: impl IntoIterator<Item = &'a Descriptor>) -> Self {
        const GROWTH: u64 = 64;
        let bytes = blobs.into_iter().fold(0_u64, |sum, blob| sum.saturating_add(blob.size));
        Self { time: Some(LONG), bytes: bytes.saturating_mul(GROWTH) }
    }
}

pub(super) trait Call: Serialize + DeserializeOwned + Send + 'static {
    const NAME: &'static str;
    type Answer: Serialize + DeserializeOwned + Send + 'static;

    /// Returns how long to wait for the answer.
    fn patience(&self) -> Patience;

    /// Returns the maximum size of a message of the answer, in bytes.
    fn longest(&self) -> usize {
        imgctl_base::wire::LONGEST
    }

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

    fn patience(&self) -> Patience {
        Patience::of(LONG)
    }

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

    fn patience(&self) -> Patience {
        Patience::of(LONG)
    }

    fn answered(answer: &mut PartRead) -> Option<&mut Vec<u8>> {
        Some(&mut answer.content)
    }
}

impl Call for ReadFile {
    const NAME: &'static str = "read-file";
    type Answer = Option<Content>;

    fn patience(&self) -> Patience {
        Patience::of(LONG)
    }

    /// The content is base64, in quotes and one object.
    fn longest(&self) -> usize {
        let limit = usize::try_from(self.limit).unwrap_or(usize::MAX);
        (limit / 3).saturating_mul(4).saturating_add(LONGEST_FRAME)
    }
}

/// Maximum size of what surrounds the content of a file, or of the message that there is none.
const LONGEST_FRAME: usize = 64 << 10;

macro_rules! calls {
    ($($name:literal: $call:ty => $answer:ty, $patience:expr;)*) => {
        $(impl Call for $call {
            const NAME: &'static str = $name;
            type Answer = $answer;

            fn patience(&self) -> Patience {
                let patience: fn(&Self) -> Patience = $patience;
                patience(self)
            }
        })*
    };
}

calls! {
    "facts": FactsQuestion => FactsAnswer, |_| Patience::of(QUICK);
    "inventory": InventoryQuestion => Inventory, |_| Patience::of(LONG);
    "offer": OfferBlobs => PeerSource, |_| Patience::of(QUICK);
    "withdraw": Withdraw => (), |_| Patience::of(QUICK);
    "fetch": Fetch => Vec<Digest>, |call| Patience::long(&call.blobs);
    "pull": RegistryPull => (), |call| Patience::long([&call.blob]);
    "assemble": Assemble => (), |call| Patience::long([&call.blob]);
    "checkout": Checkout => CheckedOut,
        |call| Patience::long(call.layers.iter().map(|layer| &layer.descriptor));
    "switch-tree": SwitchTree => Vec<String>, |_| Patience::of(LONG);
    "run": Run => Outcome, |call| Patience {
        time: call.timeout_seconds.map(|seconds| Duration::from_secs(seconds).saturating_add(END)),
        bytes: 0,
    };
    "cancel": Cancel => (), |_| Patience::of(QUICK);
    "write-file": FileToWrite => bool, |_| Patience::of(LONG);
    "claim": Claim => Claimed, |_| Patience::of(QUICK);
    "file-digest": FileDigest => Digest, |_| Patience::of(LONG);
    "remove": Remove => Vec<String>, |_| Patience::of(LONG);
    "set-hosts": HostsBlock => HostsSet, |_| Patience::of(QUICK);
    "rehash": Rehash => Rehashed, |_| Patience::of(LONG);
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
