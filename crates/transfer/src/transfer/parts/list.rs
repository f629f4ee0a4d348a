//! The list of an archive's parts: its form, and what a reader refuses.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use serde::{Deserialize, Serialize};

use imgctl_base::error::{Context as _, Error, IoContext as _, Result};
use imgctl_base::image::Digest;

/// What the name of a list ends in; before it stands the archive's name.
pub const SUFFIX: &str = ".parts.json";
/// Maximum number of parts: three digits, so that sorting by name gives their order.
pub const MAX_PARTS: usize = 999;
/// Version of the list.
const VERSION: u32 = 1;
/// Maximum size of a list, in bytes.
const MAX_LIST: u64 = 1 << 20;
/// Maximum length of a part's name, in bytes.
const MAX_NAME: usize = 255;

/// The parts of one archive, in order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartList {
    version: u32,
    /// File name of the whole archive.
    pub archive: String,
    /// Size of the whole archive, in bytes.
    pub size: u64,
    pub parts: Vec<Part>,
}

/// One part.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Part {
    /// File name under which it was written.
    pub name: String,
    /// Size in bytes.
    pub size: u64,
    pub digest: Digest,
}

/// Returns the name of part `number`, counted from 1.
pub fn part_name(archive: &str, number: usize) -> String {
    format!("{archive}.{number:03}")
}

/// Returns the archive's name if `name` looks like that of a part.
pub fn archive_of(name: &str) -> Option<&str> {
    let (archive, number) = name.rsplit_once('.')?;
    let is_number = number.len() == 3 && number.bytes().all(|byte| byte.is_ascii_digit());
    (is_number && !archive.is_empty()).then_some(archive)
}

impl PartList {
    /// Returns the list of a new archive.
    pub(super) fn new(archive: String, parts: Vec<Part>) -> Self {
        let size = parts.iter().map(|part| part.size).sum();
        Self { version: VERSION, archive, size, parts }
    }

    /// Reads a list and checks its form.
    pub fn read(path: &Path) -> Result<Self> {
        let mut bytes = Vec::new();
        let file = File::open(path).path("open", path)?;
        file.take(MAX_LIST + 1).read_to_end(&mut bytes).path("read", path)?;
        Self::parse(&bytes).context(|| format!("cannot use the list of parts {}", path.display()))
    }

    fn parse(bytes: &[u8]) -> Result<Self> {
        if bytes.len() as u64 > MAX_LIST {
            return Err(Error::bad_content(format!("it has more than {MAX_LIST} bytes")));
        }
        let list: Self = serde_json::from_slice(bytes)
            .map_err(|error| Error::bad_content("it is malformed").caused_by(error))?;
        if list.version != VERSION {
            return Err(Error::bad_content(format!(
                "it has version {}; this imgctl reads version {VERSION}",
                list.version
            ))
            .hint("use a newer imgctl"));
        }
        if list.parts.is_empty() || list.parts.len() > MAX_PARTS {
            return Err(Error::bad_content(format!(
                "it has {} parts; an archive has 1 to {MAX_PARTS}",
                list.parts.len()
            )));
        }
        let mut names = BTreeSet::new();
        let mut size: u64 = 0;
        for part in &list.parts {
            if !is_plain(&part.name) || !names.insert(&part.name) {
                return Err(Error::bad_content(format!(
                    "the name of the part `{}` is not that of one file",
                    part.name.escape_debug()
                )));
            }
            size = size.checked_add(part.size).filter(|_| part.size > 0).ok_or_else(|| {
                Error::bad_content(format!("the size of {} is not possible", part.name))
            })?;
        }
        if !is_plain(&list.archive) || size != list.size {
            return Err(Error::bad_content("its parts do not make up the archive that it names"));
        }
        Ok(list)
    }

    /// Returns the list as it is written.
    pub(super) fn encoded(&self) -> Result<Vec<u8>> {
        let mut bytes = serde_json::to_vec_pretty(self)
            .map_err(|error| Error::failed("cannot encode the list of parts").caused_by(error))?;
        bytes.push(b'\n');
        Ok(bytes)
    }
}

/// Whether a name is that of a file in a directory, and shows as it is.
fn is_plain(name: &str) -> bool {
    !matches!(name, "" | "." | "..")
        && name.len() <= MAX_NAME
        && !name.contains('/')
        && !name.contains(char::is_control)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_list_is_whole_or_refused() {
        let part = |number| Part {
            name: part_name("etcd.tar", number),
            size: 100,
            digest: Digest::of(b"x"),
        };
        let good = PartList::new("etcd.tar".to_owned(), vec![part(1), part(2)]).encoded().unwrap();
        bolero::check!().with_type::<Vec<(u16, u8)>>().for_each(|edits| {
            let mut bytes = good.clone();
            for (place, byte) in edits {
                let at = usize::from(*place) % bytes.len();
                bytes[at] = *byte;
            }
            if let Ok(list) = PartList::parse(&bytes) {
                assert_eq!(list.parts.iter().map(|part| part.size).sum::<u64>(), list.size);
                assert!(list.parts.iter().all(|part| !part.name.contains('/')));
            }
        });
    }

    #[test]
    fn names_of_parts_are_told_from_others() {
        assert_eq!(part_name("etcd.tar", 7), "etcd.tar.007");
        assert_eq!(archive_of("etcd.tar.007"), Some("etcd.tar"));
        for other in ["etcd.tar", "etcd.tar.07", "etcd.tar.0007", ".007", "etcd.tar.00x"] {
            assert_eq!(archive_of(other), None, "{other}");
        }
    }

    #[test]
    fn hostile_lists_are_refused() {
        let digest = Digest::of(b"x");
        let part =
            |name: &str, size: u64| Part { name: name.to_owned(), size, digest: digest.clone() };
        let list = |parts: Vec<Part>, size: u64| PartList {
            version: VERSION,
            archive: "a".to_owned(),
            size,
            parts,
        };
        let refused = |list: &PartList| PartList::parse(&list.encoded().unwrap()).is_err();
        assert!(!refused(&list(vec![part("a.001", 3), part("a.002", 2)], 5)));
        for bad in [
            list(Vec::new(), 0),
            list(vec![part("a.001", 0)], 0),
            list(vec![part("../a.001", 1)], 1),
            list(vec![part("..", 1)], 1),
            list(vec![part("a\n", 1)], 1),
            list(vec![part("a", 1), part("a", 1)], 2),
            list(vec![part("a", 1)], 2),
            list(vec![part("a", u64::MAX), part("b", 2)], 1),
            list((0..1000).map(|n| part(&n.to_string(), 1)).collect(), 1000),
            PartList { version: 2, ..list(vec![part("a", 1)], 1) },
        ] {
            assert!(refused(&bad), "{bad:?}");
        }
        assert!(PartList::parse(b"{}").is_err());
        assert!(PartList::parse(&vec![b' '; MAX_LIST as usize + 1]).is_err());
    }
}
