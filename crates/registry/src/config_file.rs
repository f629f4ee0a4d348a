//! Reads the small configuration files of containers and docker. Their size is limited, and a
//! missing file counts as empty. Does not know about their meaning.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

use serde_json::{Map, Value};

use imgctl_base::error::{Error, IoContext as _, Result};

/// Maximum size of a configuration file, in bytes.
const MAX_LENGTH: u64 = 4 << 20;

/// Returns the text of `path`, or `None` if the file is missing. Fails if it is longer than 4 MiB,
/// not UTF-8 or not readable. The error contains none of the content.
pub fn text(path: &Path) -> Result<Option<String>> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if is_missing(&error) => return Ok(None),
        Err(error) => return Err(error).path("read", path),
    };
    if file.metadata().path("read", path)?.is_dir() {
        return Err(Error::usage(format!("{} is a directory", path.display())));
    }
    let mut bytes = Vec::new();
    file.take(MAX_LENGTH + 1).read_to_end(&mut bytes).path("read", path)?;
    if bytes.len() as u64 > MAX_LENGTH {
        return Err(Error::usage(format!(
            "{} is longer than {} MiB",
            path.display(),
            MAX_LENGTH >> 20
        )));
    }
    String::from_utf8(bytes)
        .map(Some)
        .map_err(|_| Error::usage(format!("{} is not UTF-8", path.display())))
}

/// Returns whether the error means that the file is missing.
pub(crate) fn is_missing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

/// Returns the line number, starting at 1, of byte `offset` of `text`.
pub(crate) fn line_of(text: &str, offset: usize) -> usize {
    let end = offset.min(text.len());
    1 + text.as_bytes()[..end].iter().filter(|byte| **byte == b'\n').count()
}

/// Returns the member `name` of an object in JSON. Its case counts only if several differ in
/// nothing else, as in the programs written in Go for which such files and answers are made.
pub(crate) fn member<'a>(object: &'a Map<String, Value>, name: &str) -> Option<&'a Value> {
    let any_case = || object.iter().find(|(key, _)| key.eq_ignore_ascii_case(name));
    object.get(name).or_else(|| any_case().map(|(_, value)| value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_says_nothing_and_what_cannot_be_read_is_told() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("conf");
        assert_eq!(text(&path).unwrap(), None);
        std::fs::write(&path, "x").unwrap();
        assert_eq!(text(&path).unwrap().as_deref(), Some("x"));
        assert_eq!(text(&path.join("below-a-file")).unwrap(), None);

        std::fs::write(&path, b"\xff").unwrap();
        assert!(text(&path).unwrap_err().to_string().contains("UTF-8"));
        File::create(&path).unwrap().set_len(5 << 20).unwrap();
        assert!(text(&path).unwrap_err().to_string().contains("longer"));
        assert!(text(directory.path()).is_err());
    }

    #[test]
    fn lines_count_from_one() {
        for (offset, line) in [(0, 1), (1, 1), (2, 2), (3, 3), (99, 3)] {
            assert_eq!(line_of("a\n\nb", offset), line, "{offset}");
        }
    }
}
