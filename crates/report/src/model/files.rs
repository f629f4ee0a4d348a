//! The data of the console's view of one folder or file of an image. Sizes are in bytes.

use serde::{Deserialize, Serialize};

use crate::model::About;

/// A folder with its entries, or a file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct FilesReport {
    pub about: About,
    /// Name of the image, or its digest.
    pub image: String,
    pub digest: String,
    /// As in `linux/amd64`.
    pub platform: String,
    /// The path after links were followed, from the root; the root has none.
    pub path: Vec<PathPart>,
    pub this: FileEntry,
    /// Of a folder, sorted by name.
    pub entries: Vec<FileEntry>,
    /// Entries that are left out because there are too many.
    pub omitted: u64,
    /// Of a file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<Content>,
}

/// A name, and the same as part of a URL: names need not be UTF-8.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct PathPart {
    pub name: String,
    /// Percent-encoded.
    pub encoded: String,
}

/// A file, folder, link or device of an image.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct FileEntry {
    pub name: PathPart,
    /// `file`, `directory`, `symlink`, `device` or `fifo`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Octal, as in `0755`.
    pub mode: String,
    pub uid: u64,
    pub gid: u64,
    pub size: u64,
    /// RFC 3339.
    pub modified: String,
    /// Of a symbolic link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// Number of the layer, 1 for the lowest; absent for a directory that no layer lists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layer: Option<u64>,
}

/// The content of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Content {
    /// Absent if it is not text in UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// Bytes after the text that are left out.
    pub omitted: u64,
}
