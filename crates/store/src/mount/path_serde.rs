//! Paths in JSON records: text if they are UTF-8, otherwise an array of bytes, so that no name is
//! lost.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Written {
    Text(String),
    Bytes(Vec<u8>),
}

impl From<&Path> for Written {
    fn from(path: &Path) -> Self {
        match path.to_str() {
            Some(text) => Self::Text(text.to_owned()),
            None => Self::Bytes(path.as_os_str().as_bytes().to_vec()),
        }
    }
}

impl From<Written> for PathBuf {
    fn from(written: Written) -> Self {
        match written {
            Written::Text(text) => text.into(),
            Written::Bytes(bytes) => OsString::from_vec(bytes).into(),
        }
    }
}

/// For serde's `with`.
pub(super) fn serialize<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    Written::from(path).serialize(serializer)
}

/// For serde's `with`.
pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<PathBuf, D::Error> {
    Written::deserialize(deserializer).map(PathBuf::from)
}

/// The same for a list of paths.
pub(super) mod list {
    use super::{Deserialize, Deserializer, PathBuf, Serializer, Written};

    /// For serde's `with`.
    pub(crate) fn serialize<S: Serializer>(
        paths: &[PathBuf],
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(paths.iter().map(|path| Written::from(path.as_path())))
    }

    /// For serde's `with`.
    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Vec<PathBuf>, D::Error> {
        let written: Vec<Written> = Vec::deserialize(deserializer)?;
        Ok(written.into_iter().map(PathBuf::from).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Record {
        #[serde(with = "super")]
        path: PathBuf,
        #[serde(with = "super::list")]
        list: Vec<PathBuf>,
    }

    #[test]
    fn any_bytes_come_back() {
        let odd = PathBuf::from(OsString::from_vec(b"/a\xff/b".to_vec()));
        let record = Record { path: odd.clone(), list: vec!["/plain".into(), odd] };
        let json = serde_json::to_string(&record).unwrap();
        assert!(json.contains("\"/plain\""), "{json}");
        assert_eq!(serde_json::from_str::<Record>(&json).unwrap(), record);
    }
}
