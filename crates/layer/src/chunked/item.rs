//! One entry of the table of contents (containers/storage, internal/minimal, FileMetadata), in both
//! directions.

use std::collections::BTreeMap;
use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::de::{self, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use crate::{Entry, EntryKind, LayerPath, Mtime, tar_writer};
use imgctl_base::image::{Digest, time};

pub(super) const FILE: &str = "reg";
pub(super) const CHUNK: &str = "chunk";
/// A chunk without bytes in the blob.
pub(super) const ZEROS: &str = "zeros";
/// A frame with any part of the tar (not of containers/storage).
pub(super) const RUN: &str = "run";

#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Item {
    #[serde(rename = "type")]
    pub(super) kind: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) name: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) link_name: String,
    #[serde(skip_serializing_if = "is_zero")]
    mode: u64,
    #[serde(skip_serializing_if = "is_zero")]
    pub(super) size: u64,
    #[serde(skip_serializing_if = "is_zero")]
    uid: u64,
    #[serde(skip_serializing_if = "is_zero")]
    gid: u64,
    #[serde(rename = "modtime", skip_serializing_if = "Option::is_none")]
    modified: Option<String>,
    #[serde(skip_serializing_if = "is_zero")]
    dev_major: u64,
    #[serde(skip_serializing_if = "is_zero")]
    dev_minor: u64,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    xattrs: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) digest: Option<Digest>,
    #[serde(skip_serializing_if = "is_zero")]
    pub(super) offset: u64,
    #[serde(skip_serializing_if = "is_zero")]
    pub(super) end_offset: u64,
    #[serde(skip_serializing_if = "is_zero")]
    pub(super) chunk_size: u64,
    #[serde(skip_serializing_if = "is_zero")]
    pub(super) chunk_offset: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) chunk_digest: Option<Digest>,
    /// [`ZEROS`], or empty; programs write zeros in the place of such a chunk.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) chunk_type: String,
}

impl Item {
    /// Returns the item of an entry, without the place of its content.
    pub(super) fn of(entry: &Entry) -> Self {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let mut item = Self {
            name: name_of(entry),
            mode: u64::from(entry.mode & 0o7777),
            size: entry.size(),
            uid: u64::from(entry.uid),
            gid: u64::from(entry.gid),
            modified: modified(entry.mtime),
            ..Self::default()
        };
        item.xattrs =
            entry.xattrs.iter().map(|(name, value)| (text(name), STANDARD.encode(value))).collect();
        item.kind = match &entry.kind {
            EntryKind::File { .. } => FILE,
            EntryKind::Directory => "dir",
            EntryKind::Symlink { target } => {
                item.link_name = text(target);
                "symlink"
            }
            EntryKind::HardLink { target } => {
                item.link_name = text(target.as_bytes());
                "hardlink"
            }
            EntryKind::CharDevice { major, minor } => {
                (item.dev_major, item.dev_minor) = (u64::from(*major), u64::from(*minor));
                "char"
            }
            EntryKind::BlockDevice { major, minor } => {
                (item.dev_major, item.dev_minor) = (u64::from(*major), u64::from(*minor));
                "block"
            }
            EntryKind::Fifo => "fifo",
        }
        .to_owned();
        item
    }

    /// Returns the item of a chunk that is not the first of the file `name`.
    pub(super) fn chunk_of(name: &str, offset: u64) -> Self {
        Self { kind: CHUNK.to_owned(), name: name.to_owned(), offset, ..Self::default() }
    }

    /// Returns the item of a frame with `size` bytes of the tar.
    pub(super) fn run(size: u64, digest: Digest, offset: u64, end: u64) -> Self {
        let mut item = Self { kind: RUN.to_owned(), size, ..Self::default() };
        item.place(digest, offset, end);
        item
    }

    /// Says where the content is, and its digest.
    pub(super) fn place(&mut self, digest: Digest, offset: u64, end: u64) {
        self.digest = Some(digest);
        (self.offset, self.end_offset) = (offset, end);
    }

    /// Says which part of a file's content the frame holds.
    pub(super) fn place_chunk(&mut self, digest: Digest, length: u64, position: u64) {
        self.chunk_digest = Some(digest);
        (self.chunk_size, self.chunk_offset) = (length, position);
    }

    /// Returns what the item says otherwise than the header of `entry` in the archive; times may be rounded.
    /// `target` is what a hard link of the item's target leads to.
    pub(super) fn differs_from(&self, entry: &Entry, target: &LayerPath) -> Option<&'static str> {
        let own = Self::of(entry);
        let is_same_link = match &entry.kind {
            EntryKind::HardLink { target: of_entry } => {
                target == of_entry || target.as_bytes() == own.link_name.as_bytes()
            }
            EntryKind::Symlink { .. } => self.link_name == own.link_name,
            _ => true,
        };
        let checks = [
            ("type", self.kind == own.kind),
            ("target", is_same_link),
            ("size", self.size == own.size),
            ("mode", self.mode & 0o7777 == own.mode),
            ("owner", (self.uid, self.gid) == (own.uid, own.gid)),
            ("device", (self.dev_major, self.dev_minor) == (own.dev_major, own.dev_minor)),
            ("extended attribute", self.xattrs == own.xattrs),
        ];
        checks.into_iter().find_map(|(what, is_same)| (!is_same).then_some(what))
    }

    /// Returns what the header in the tar is made from, as bytes to compare.
    pub(super) fn header(&self) -> Vec<u8> {
        let header = Self {
            digest: None,
            offset: 0,
            end_offset: 0,
            chunk_size: 0,
            chunk_offset: 0,
            chunk_digest: None,
            chunk_type: String::new(),
            ..self.clone()
        };
        // Text and numbers can always be written.
        serde_json::to_vec(&header).unwrap_or_default()
    }
}

/// The members of an item that have a meaning.
const MEMBERS: [&str; 18] = [
    "type",
    "name",
    "linkName",
    "mode",
    "size",
    "uid",
    "gid",
    "modtime",
    "devMajor",
    "devMinor",
    "xattrs",
    "digest",
    "offset",
    "endOffset",
    "chunkSize",
    "chunkOffset",
    "chunkDigest",
    "chunkType",
];
/// Members that say nothing of what is unpacked, of containers/storage and eStargz. Any other may do so in a later
/// version of those programs.
const MEANINGLESS: [&str; 6] =
    ["accesstime", "changetime", "userName", "groupName", "NumLink", "innerOffset"];

/// Returns whether programs in Go, which do not mind the case of names, read a member that is not in `known` as
/// one that is, or may do so.
pub(super) fn is_misread(name: &str, known: &[&str]) -> bool {
    !name.is_ascii() || known.iter().any(|known| known.eq_ignore_ascii_case(name))
}

pub(super) fn misread<E: de::Error>(name: &str) -> E {
    E::custom(format!("it has a member `{name}` that programs read differently"))
}

impl<'de> Deserialize<'de> for Item {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(ItemVisitor)
    }
}

struct ItemVisitor;

impl<'de> Visitor<'de> for ItemVisitor {
    type Value = Item;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an entry")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Item, M::Error> {
        let mut item = Item::default();
        let mut seen = [false; MEMBERS.len()];
        while let Some(key) = map.next_key::<String>()? {
            let Some(index) = MEMBERS.iter().position(|member| *member == key) else {
                if !MEANINGLESS.contains(&&*key) || is_misread(&key, &MEMBERS) {
                    return Err(misread(&key));
                }
                map.next_value::<IgnoredAny>()?;
                continue;
            };
            if std::mem::replace(&mut seen[index], true) {
                return Err(misread(&key));
            }
            match &*key {
                "type" => item.kind = map.next_value()?,
                "name" => item.name = map.next_value()?,
                "linkName" => item.link_name = map.next_value()?,
                "mode" => item.mode = map.next_value()?,
                "size" => item.size = map.next_value()?,
                "uid" => item.uid = map.next_value()?,
                "gid" => item.gid = map.next_value()?,
                "modtime" => item.modified = map.next_value()?,
                "devMajor" => item.dev_major = map.next_value()?,
                "devMinor" => item.dev_minor = map.next_value()?,
                "xattrs" => item.xattrs = map.next_value::<Option<_>>()?.unwrap_or_default(),
                "digest" => item.digest = map.next_value()?,
                "offset" => item.offset = map.next_value()?,
                "endOffset" => item.end_offset = map.next_value()?,
                "chunkSize" => item.chunk_size = map.next_value()?,
                "chunkOffset" => item.chunk_offset = map.next_value()?,
                "chunkDigest" => item.chunk_digest = map.next_value()?,
                _ => item.chunk_type = map.next_value::<Option<_>>()?.unwrap_or_default(),
            }
        }
        Ok(item)
    }
}

pub(super) fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// Returns the name as it is in the tar.
pub(super) fn name_of(entry: &Entry) -> String {
    String::from_utf8_lossy(&tar_writer::name_of(entry)).into_owned()
}

/// Returns a time as RFC 3339 has it, with as many digits as necessary; `None` for the first
/// second of year 1, Go's zero time.
fn modified(mtime: Mtime) -> Option<String> {
    const FIRST: i64 = -62_135_596_800;
    if mtime.seconds == FIRST && mtime.nanoseconds == 0 {
        return None;
    }
    let mut text = time::rfc3339(mtime.seconds);
    if mtime.nanoseconds > 0 {
        let digits = format!("{:09}", mtime.nanoseconds);
        text.pop();
        text.push('.');
        text.push_str(digits.trim_end_matches('0'));
        text.push('Z');
    }
    Some(text)
}
