//! The permission to name an image in a store, or to push it on, and what the permission is based on.
//!
//! Whatever writes a name takes a [`Verdict`], so the compiler finds a way into a store that asks nobody.
//! `tests/architecture.rs` lists the files that may make one. Must not know what a policy demands.

use std::fmt;
use std::path::Path;

use crate::image::Reference;

/// Where an image came from. A store records it beside each name, since it decides which scope of the
/// policy applies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// It was made in this store.
    Built,
    /// A registry had it under this name.
    Registry(Reference),
    /// A file or a directory, or a client that pushed it.
    Place {
        /// A transport of containers-transports(5), or [`CLIENT`].
        transport: String,
        /// Absolute path; empty if there is none.
        path: String,
    },
}

/// Transport of images that a client pushes into a store.
pub const CLIENT: &str = "client";

const BUILT: &str = "built";
const REGISTRY: &str = "docker";

impl Origin {
    /// Returns the origin of what a file or directory contains. Links in `path` are resolved.
    pub fn of_path(transport: &str, path: &Path) -> Self {
        let path = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let path = path.to_str().unwrap_or_default().to_owned();
        Self::Place { transport: transport.to_owned(), path }
    }

    /// Returns the origin of what comes without a path: standard input, a client.
    pub fn without_path(transport: &str) -> Self {
        Self::Place { transport: transport.to_owned(), path: String::new() }
    }

    /// Parses what [`fmt::Display`] writes. Unknown text is a place with an unknown transport, which no
    /// policy has a scope for.
    pub fn parse(text: &str) -> Self {
        if text == BUILT {
            return Self::Built;
        }
        let (transport, rest) = text.split_once(':').unwrap_or((text, ""));
        match (transport, Reference::parse(rest)) {
            (REGISTRY, Ok(reference)) => Self::Registry(reference),
            _ => Self::Place { transport: transport.to_owned(), path: rest.to_owned() },
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Built => f.write_str(BUILT),
            Self::Registry(reference) => write!(f, "{REGISTRY}:{reference}"),
            Self::Place { transport, path } => write!(f, "{transport}:{path}"),
        }
    }
}

/// The permission to use an image, to name it and to push it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct Verdict {
    origin: Option<Origin>,
}

impl Verdict {
    /// The policy admitted what comes from `origin`, or there is no policy.
    pub fn by_policy(origin: Origin) -> Self {
        Self { origin: Some(origin) }
    }

    /// The image is made here, from images with these verdicts.
    pub fn made_from(_inputs: &[Self]) -> Self {
        Self { origin: Some(Origin::Built) }
    }

    /// Nobody is asked, because the name is none that a user gives to a command: `why` says what it is.
    pub fn not_asked(_why: &'static str) -> Self {
        Self { origin: None }
    }

    /// Where the image came from; `None` if nobody was asked.
    pub fn origin(&self) -> Option<&Origin> {
        self.origin.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_origin_is_read_as_it_was_written() {
        let place = |transport: &str, path: &str| Origin::Place {
            transport: transport.to_owned(),
            path: path.to_owned(),
        };
        let name = Reference::parse("reg.io:5000/team/app:1").unwrap();
        for (origin, text) in [
            (Origin::Built, "built"),
            (Origin::Registry(name), "docker:reg.io:5000/team/app:1"),
            (place("oci-archive", "/a:b/c.tar"), "oci-archive:/a:b/c.tar"),
            (Origin::without_path(CLIENT), "client:"),
        ] {
            assert_eq!(origin.to_string(), text);
            assert_eq!(Origin::parse(text), origin);
        }
        assert_eq!(Origin::parse("docker:NOT/a name"), place("docker", "NOT/a name"));
        assert_eq!(Origin::parse("other"), place("other", ""));
    }
}
