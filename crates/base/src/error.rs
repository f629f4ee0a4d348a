//! The crate's only error type: what failed, on what, why, and what to do next.
//!
//! Every fallible function of the crate returns [`Result`]. An [`Error`] has a [`Kind`] (which
//! decides the exit code), a message that names the failed operation and its object, hints, and the
//! underlying error. Must not depend on how errors are displayed: `cli/` prints the chain.
//!
//! Messages and hints quote names and answers of others, so they are made safe for a terminal when they
//! enter: each is one line, and only [`Error::lines`] adds more.

use std::borrow::Cow;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::place::Place;
use crate::text::escape;

/// A `Result` whose error is [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Declares the kinds with their names, so that no other table of either exists.
macro_rules! kinds {
    ($($(#[doc = $doc:literal])* $kind:ident = $name:literal,)*) => {
        /// Category of a failure. Each kind maps to one documented exit code, and its name is what
        /// `--json` and messages between processes call it (docs/cli.md): both are stable.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
        pub enum Kind {
            $($(#[doc = $doc])* #[serde(rename = $name)] $kind,)*
        }

        impl Kind {
            /// All kinds with their names.
            pub const NAMES: [(Self, &str); [$($name),*].len()] = [$((Self::$kind, $name)),*];
        }
    };
}

kinds! {
    /// Something on this machine failed: I/O, a syscall, a child process.
    Failed = "failed",
    /// The command line, a Kubefile or other user input is wrong.
    Usage = "usage",
    /// A named thing (image, file, mount) does not exist.
    NotFound = "not-found",
    /// External content is malformed, hostile, or does not match its digest.
    BadContent = "bad-content",
    /// The operating system or a policy does not allow it.
    Denied = "denied",
    /// The object is in use: a lock, a mount in use, an image with several names.
    Busy = "busy",
    /// A registry or another machine was unreachable or refused the request.
    Network = "network",
    /// The file system is full or a quota is exhausted.
    NoSpace = "no-space",
    /// A `RUN` step or another user command exited non-zero.
    CommandFailed = "command-failed",
    /// A check found a problem (`scrub`, `build --check`).
    CheckFailed = "check-failed",
    /// The process was asked to stop (SIGINT, SIGTERM) before it finished.
    Interrupted = "interrupted",
}

/// Hint for a full file system of this machine.
pub(crate) const FULL: &str =
    "free space on that file system (`imgctl df`, `imgctl prune`) or use another --root";

/// An error with its kind, message, hints and source. The message never repeats its source.
pub struct Error {
    inner: Box<Inner>,
}

struct Inner {
    kind: Kind,
    message: String,
    hints: Vec<String>,
    places: Vec<Place>,
    word: Option<String>,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl Error {
    /// Returns an error without a source.
    pub fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self {
            inner: Box::new(Inner {
                kind,
                message: one_line(message),
                hints: Vec::new(),
                places: Vec::new(),
                word: None,
                source: None,
            }),
        }
    }

    /// Returns an error for a failure of this machine ([`Kind::Failed`]).
    pub fn failed(message: impl Into<String>) -> Self {
        Self::new(Kind::Failed, message)
    }

    /// Returns an error for wrong user input ([`Kind::Usage`]).
    pub fn usage(message: impl Into<String>) -> Self {
        Self::new(Kind::Usage, message)
    }

    /// Returns an error for something that does not exist ([`Kind::NotFound`]).
    pub fn not_found(message: impl Into<String>) -> Self {
        Self::new(Kind::NotFound, message)
    }

    /// Returns an error for external content that must be refused ([`Kind::BadContent`]).
    pub fn bad_content(message: impl Into<String>) -> Self {
        Self::new(Kind::BadContent, message)
    }

    /// Returns an error for a check that found a problem ([`Kind::CheckFailed`]).
    pub fn check_failed(message: impl Into<String>) -> Self {
        Self::new(Kind::CheckFailed, message)
    }

    /// Returns an error for an object in use ([`Kind::Busy`]).
    pub fn busy(message: impl Into<String>) -> Self {
        Self::new(Kind::Busy, message)
    }

    /// Returns an error for what the operating system or a policy forbids ([`Kind::Denied`]).
    pub fn denied(message: impl Into<String>) -> Self {
        Self::new(Kind::Denied, message)
    }

    /// Returns an error for an unreachable or refusing machine ([`Kind::Network`]).
    pub fn network(message: impl Into<String>) -> Self {
        Self::new(Kind::Network, message)
    }

    /// Returns an I/O error with the operation that failed; the kind follows from the error number.
    pub fn io(doing: impl Into<String>, source: impl Into<io::Error>) -> Self {
        let source = source.into();
        let mut error = Self::new(kind_of_io(&source), doing);
        if error.kind() == Kind::NoSpace {
            error = error.hint(FULL);
        }
        error.inner.source = Some(Box::new(source));
        error
    }

    /// Sets the underlying error.
    pub fn caused_by(
        mut self,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        self.inner.source = Some(source.into());
        self
    }

    /// Adds a sentence that tells the user what to do next.
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.inner.hints.push(one_line(hint));
        self
    }

    /// Adds the places in the user's files where something is wrong.
    pub fn at(mut self, places: impl IntoIterator<Item = Place>) -> Self {
        self.inner.places.extend(places);
        self
    }

    /// Sets the word of the user's input that is wrong, which an excerpt of the input marks.
    pub fn about(mut self, word: impl Into<String>) -> Self {
        self.inner.word = Some(word.into());
        self
    }

    /// Returns the word of the user's input that is wrong, if it is known.
    pub fn word(&self) -> Option<&str> {
        self.errors().find_map(|error| error.inner.word.as_deref())
    }

    /// Wraps this error in an outer message and keeps its kind. Hints remain accessible.
    pub fn context(self, message: impl Into<String>) -> Self {
        Self::new(self.kind(), message).caused_by(self)
    }

    /// Replaces the message; the kind, hints and source are kept.
    pub fn retold(mut self, message: impl Into<String>) -> Self {
        self.inner.message = one_line(message);
        self
    }

    /// Adds lines below the message, such as an excerpt of a file or a reason for each host.
    pub fn lines(mut self, lines: impl IntoIterator<Item = impl fmt::Display>) -> Self {
        for line in lines {
            self.inner.message.push('\n');
            self.inner.message.push_str(&escape(&line.to_string()));
        }
        self
    }

    /// Returns an error whose message is these lines.
    pub fn several(kind: Kind, lines: impl IntoIterator<Item = impl fmt::Display>) -> Self {
        let mut lines = lines.into_iter();
        let first = lines.next().map(|line| line.to_string()).unwrap_or_default();
        Self::new(kind, first).lines(lines)
    }

    /// Returns the category of the failure.
    pub fn kind(&self) -> Kind {
        self.inner.kind
    }

    /// Returns the message without its sources.
    pub fn message(&self) -> &str {
        &self.inner.message
    }

    /// Returns the hints of this error and of every underlying [`Error`], innermost first: the
    /// error closest to the cause has the most useful hint. Each hint is there once.
    pub fn hints(&self) -> Vec<&str> {
        let mut errors: Vec<&Error> = self.errors().collect();
        errors.reverse();
        let mut hints: Vec<&str> = Vec::new();
        for hint in errors.into_iter().flat_map(|error| &error.inner.hints) {
            if !hints.contains(&hint.as_str()) {
                hints.push(hint);
            }
        }
        hints
    }

    /// Returns the places of this error and of every underlying [`Error`].
    pub fn places(&self) -> impl Iterator<Item = &Place> {
        self.errors().flat_map(|error| &error.inner.places)
    }

    /// Returns this error and every underlying [`Error`], outermost first.
    fn errors(&self) -> impl Iterator<Item = &Error> {
        let below = self.sources().filter_map(|error| error.downcast_ref());
        std::iter::once(self).chain(below)
    }

    /// Returns the messages of this error and all underlying errors, outermost first.
    pub fn chain(&self) -> Vec<String> {
        let mut messages = vec![self.inner.message.clone()];
        for error in self.sources() {
            let text = match error.downcast_ref::<Error>() {
                Some(ours) => ours.inner.message.clone(),
                None => one_line(error.to_string()),
            };
            // Libraries repeat the message of their source at the end of their own: `DNS error: no records`.
            let is_told = |last: &String| *last == text || last.ends_with(&format!(": {text}"));
            if !messages.last().is_some_and(is_told) {
                messages.push(text);
            }
        }
        messages
    }

    /// Returns all underlying errors, outermost first. An `io::Error` that only wraps an [`Error`]
    /// is replaced by it; otherwise it would repeat the messages below it and hide their hints.
    fn sources(&self) -> impl Iterator<Item = &(dyn std::error::Error + 'static)> {
        let first = std::error::Error::source(self).map(ours_inside);
        std::iter::successors(first, |error| error.source().map(ours_inside))
    }
}

/// Prints the whole chain: `doing a: doing b: No such file or directory`. The lines of a message stay; in the
/// message of another error they are escaped.
impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.chain().join(": "))
    }
}

fn one_line(text: impl Into<String>) -> String {
    let text = text.into();
    match escape(&text) {
        Cow::Owned(escaped) => escaped,
        Cow::Borrowed(_) => text,
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {self}", self.inner.kind)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.inner.source.as_ref().map(|source| &**source as &(dyn std::error::Error + 'static))
    }
}

/// Allows an [`Error`] to pass through `std::io` traits and be recovered by [`Error::io`].
impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        io::Error::other(error)
    }
}

fn ours_inside<'a>(
    error: &'a (dyn std::error::Error + 'static),
) -> &'a (dyn std::error::Error + 'static) {
    let inner = error
        .downcast_ref::<io::Error>()
        .and_then(io::Error::get_ref)
        .and_then(|inner| inner.downcast_ref::<Error>());
    inner.map_or(error, |ours| ours)
}

fn kind_of_io(error: &io::Error) -> Kind {
    if let Some(ours) = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>()) {
        return ours.kind();
    }
    match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => Kind::NotFound,
        io::ErrorKind::PermissionDenied => Kind::Denied,
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Kind::NoSpace,
        io::ErrorKind::ResourceBusy => Kind::Busy,
        io::ErrorKind::UnexpectedEof | io::ErrorKind::InvalidData => Kind::BadContent,
        _ => Kind::Failed,
    }
}

/// Adds the failed operation and its object to any error that converts to an `io::Error`.
pub trait IoContext<T> {
    /// `doing` is a phrase such as `cannot write layer`.
    fn doing(self, doing: impl FnOnce() -> String) -> Result<T>;

    /// Shorthand for `cannot VERB PATH`.
    fn path(self, verb: &str, path: impl AsRef<Path>) -> Result<T>;
}

impl<T, E: Into<io::Error>> IoContext<T> for std::result::Result<T, E> {
    fn doing(self, doing: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|source| Error::io(doing(), source))
    }

    fn path(self, verb: &str, path: impl AsRef<Path>) -> Result<T> {
        self.map_err(|source| {
            Error::io(format!("cannot {verb} {}", PathBuf::from(path.as_ref()).display()), source)
        })
    }
}

/// Adds an outer message to an [`Error`], or to what converts to one.
pub trait Context<T> {
    /// `message` describes the enclosing operation.
    fn context(self, message: impl FnOnce() -> String) -> Result<T>;

    /// Turns the error for a missing object into `None`.
    fn found(self) -> Result<Option<T>>;
}

impl<T, E: Into<Error>> Context<T> for Result<T, E> {
    fn context(self, message: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|error| error.into().context(message()))
    }

    fn found(self) -> Result<Option<T>> {
        match self.map_err(Into::into) {
            Err(error) if error.kind() == Kind::NotFound => Ok(None),
            outcome => outcome.map(Some),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_chain_is_told_once_and_the_kind_survives() {
        let io = io::Error::from_raw_os_error(2);
        let error = Error::io("cannot open /x", io).hint("create it").context("cannot build");
        assert_eq!(error.kind(), Kind::NotFound);
        assert_eq!(
            error.to_string(),
            "cannot build: cannot open /x: No such file or directory (os error 2)"
        );
        assert_eq!(error.hints(), ["create it"]);
        assert_eq!(error.hint("create it").hints(), ["create it"]);
    }

    #[test]
    fn places_survive_context_and_other_messages() {
        let place = Place { file: "Kubefile".into(), line: 2, ..Place::default() };
        let error = Error::usage("no").at([place.clone()]).retold("RUN failed").context("outside");
        assert_eq!(error.places().collect::<Vec<_>>(), [&place]);
    }

    #[test]
    fn every_kind_is_told_by_its_name() {
        for (kind, name) in Kind::NAMES {
            let json = serde_json::to_string(&kind).unwrap();
            assert_eq!(json, format!("\"{name}\""));
            assert_eq!(serde_json::from_str::<Kind>(&json).unwrap(), kind);
        }
        assert!(serde_json::from_str::<Kind>("\"other\"").is_err());
    }

    #[test]
    fn our_kind_survives_a_trip_through_io() {
        let inner = Error::bad_content("layer is truncated");
        let through: io::Error = inner.into();
        assert_eq!(Error::io("cannot unpack", through).kind(), Kind::BadContent);
    }

    #[test]
    fn what_a_library_repeats_is_told_once() {
        let source =
            Error::network("DNS error: no records").caused_by(Error::network("no records"));
        let error = Error::network("no address").caused_by(source);
        assert_eq!(error.chain(), ["no address", "DNS error: no records"]);
        let error = Error::network("no address of host").caused_by(Error::network("host"));
        assert_eq!(error.chain().len(), 2);
    }

    #[test]
    fn what_came_through_io_is_told_once_with_its_hints() {
        let inner = Error::failed("no answer").hint("wait").context("cannot read");
        let error = Error::io("cannot unpack", io::Error::from(inner));
        assert_eq!(error.chain(), ["cannot unpack", "cannot read", "no answer"]);
        assert_eq!(error.hints(), ["wait"]);
    }

    #[test]
    fn what_others_wrote_adds_no_line() {
        let foreign = "x\nhint: y\u{1b}[2J\u{202e}";
        let shown = "x\\nhint: y\\u{1b}[2J\\u{202e}";
        let error = Error::failed(foreign)
            .caused_by(foreign)
            .hint(foreign)
            .lines(["  1", foreign])
            .context(foreign)
            .retold(foreign);
        let below = format!("{shown}\n  1\n{shown}");
        assert_eq!(error.chain(), [shown, &below, shown]);
        assert_eq!(error.hints(), [shown]);
        assert_eq!(error.to_string(), format!("{shown}: {shown}\n  1\n{shown}: {shown}"));
        let list = Error::several(Kind::Failed, ["two:", "  a", "  b"]);
        assert_eq!(list.to_string(), "two:\n  a\n  b");
    }

    #[test]
    fn a_full_disk_carries_a_hint() {
        let error = Error::io("cannot write x", io::Error::from_raw_os_error(28));
        assert_eq!(error.kind(), Kind::NoSpace);
        assert_eq!(error.hints().len(), 1);
    }
}
