//! Minor releases of Kubernetes, and the formula that their kubelets use to hash containers.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use imgctl_base::error::{Error, Result};

/// The `30` of `v1.30.4`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Minor(pub u32);

/// Input of a kubelet's FNV-1a hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Era {
    /// 1.16 to 1.30: a dump of the container's JSON.
    Json,
    /// 1.31 and newer: a dump of the JSON of only the name and image.
    NameAndImage,
}

impl Minor {
    /// Returns the formula of this release's kubelet. Fails for releases before 1.16.
    pub(crate) fn era(self) -> Result<Era> {
        match self.0 {
            31.. => Ok(Era::NameAndImage),
            16..=30 => Ok(Era::Json),
            _ => Err(Error::bad_content(format!(
                "it is unknown how kubelets of {self} hash containers"
            ))
            .hint("releases from 1.16 on are known")),
        }
    }
}

impl fmt::Display for Minor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "1.{}", self.0)
    }
}

impl From<Minor> for String {
    fn from(minor: Minor) -> Self {
        minor.to_string()
    }
}

impl TryFrom<String> for Minor {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        text.parse()
    }
}

impl FromStr for Minor {
    type Err = Error;

    /// Parses `v1.30.4`, `1.30`, `v1.30.4+k3s1`, `v1.27.3-gke.100`.
    fn from_str(text: &str) -> Result<Self> {
        let wrong = || {
            Error::bad_content(format!("`{text}` is not a version of Kubernetes"))
                .hint("a version looks like v1.30.4")
        };
        let rest = text.strip_prefix('v').unwrap_or(text);
        let rest = rest.strip_prefix("1.").ok_or_else(wrong)?;
        let digits = rest.find(|c: char| !c.is_ascii_digit()).map_or(rest, |end| &rest[..end]);
        // `1.30foo` is invalid; some providers use `1.30+`.
        match rest[digits.len()..].bytes().next() {
            None | Some(b'.' | b'-' | b'+') => digits.parse().map(Self).map_err(|_| wrong()),
            Some(_) => Err(wrong()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_as_kubelets_say_them() {
        for text in ["v1.30.4", "1.30", "v1.30.4+k3s1", "v1.30.3-gke.100", "1.30+"] {
            assert_eq!(text.parse::<Minor>().unwrap(), Minor(30), "{text}");
        }
        for text in ["", "v", "1.", "2.1", "v1.x", "1.30foo", "1.99999999999", "Kubernetes v1.30"] {
            assert!(text.parse::<Minor>().is_err(), "{text}");
        }
    }

    #[test]
    fn eras_change_where_the_formula_did() {
        let eras = [16, 30, 31, 37].map(|minor| Minor(minor).era().unwrap());
        assert_eq!(eras, [Era::Json, Era::Json, Era::NameAndImage, Era::NameAndImage]);
        assert!(Minor(15).era().is_err());
    }
}
