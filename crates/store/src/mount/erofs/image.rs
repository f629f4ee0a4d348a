//! Writes the index: an EROFS image of directories and metadata whose file contents are in the
//! layers' tars.
//!
//! Makes two passes over the merged tree: the first assigns a position to every inode and
//! directory, the second writes them in order.

use std::collections::HashMap;
use std::io::Write;

use crate::mount::erofs::format::{
    self, BLOCK, Data, INODE_SLOT, Inode, MAX_DEVICES, Name, SUPERBLOCK_OFFSET, TYPE_BLOCK,
    TYPE_CHAR, TYPE_DIRECTORY, TYPE_FIFO, TYPE_FILE, TYPE_SYMLINK, align,
};
use imgctl_base::error::{Error, IoContext, Result};
use imgctl_layer::tree::{self, Found, Tree};
use imgctl_layer::unpack::is_left_out;
use imgctl_layer::{EntryKind, LayerPath};

/// One layer's tar.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Device {
    /// The hex digits of the diff-id.
    pub(super) tag: String,
    /// Size in bytes.
    pub(super) size: u64,
}

/// One file, which may have several names.
struct Node<'a> {
    found: Found<'a>,
    links: u32,
    parent: u32,
    /// Sorted, because the walk is.
    children: Vec<(Vec<u8>, u32)>,
    attributes: Vec<u8>,
    data: Data,
    size: u64,
    /// Offset from the start of the image, in bytes.
    offset: u64,
}

/// Writes the content of a regular file.
pub(super) type Copy<'a> = dyn FnMut(&Found<'_>, &mut dyn Write) -> Result<()> + 'a;

/// Writes the image of `tree` to `out`; `devices` are the tars of the tree's layers, by number.
/// Files that do not occupy whole blocks of their tar (sparse ones, the last one of a tar without
/// padding at its end) are copied into the image by `copy`.
pub(super) fn write(
    tree: &Tree,
    devices: &[Device],
    copy: &mut Copy<'_>,
    out: &mut dyn Write,
) -> Result<()> {
    if devices.len() > MAX_DEVICES {
        return Err(Error::failed(format!(
            "cannot index {} layers: {MAX_DEVICES} are possible",
            devices.len()
        )));
    }
    let mut nodes = collect(tree)?;
    let blocks = place(&mut nodes, devices)?;
    let mut out = Placed { out, position: 0 };
    out.pad_to(SUPERBLOCK_OFFSET)?;
    let root = u16::try_from(nodes[0].number()).map_err(|_| too_large())?;
    let count = u16::try_from(devices.len()).map_err(|_| too_large())?;
    out.put(&format::superblock(root, nodes.len() as u64, blocks, count))?;
    for device in devices {
        let blocks = u32::try_from(device.size.div_ceil(BLOCK)).map_err(|_| too_large())?;
        out.put(&format::device_slot(&device.tag, blocks))?;
    }
    for (number, node) in nodes.iter().enumerate() {
        out.pad_to(node.offset)?;
        out.put(&encode(node, number)?)?;
    }
    for node in &nodes {
        if let Data::Here { block } = node.data {
            out.pad_to(u64::from(block) * BLOCK)?;
            if let EntryKind::File { .. } = node.found.entry().kind {
                copy(&node.found, &mut out)?;
            } else {
                out.put(&content(node, &nodes))?;
            }
        }
    }
    out.pad_to(u64::from(blocks) * BLOCK)
}

impl Node<'_> {
    /// Returns the inode number.
    fn number(&self) -> u64 {
        self.offset / INODE_SLOT
    }

    fn kind(&self) -> u8 {
        match self.found.entry().kind {
            EntryKind::Directory => TYPE_DIRECTORY,
            EntryKind::Symlink { .. } => TYPE_SYMLINK,
            EntryKind::CharDevice { .. } => TYPE_CHAR,
            EntryKind::BlockDevice { .. } => TYPE_BLOCK,
            EntryKind::Fifo => TYPE_FIFO,
            EntryKind::File { .. } | EntryKind::HardLink { .. } => TYPE_FILE,
        }
    }
}

/// Returns every file once, directories before their content.
fn collect(tree: &Tree) -> Result<Vec<Node<'_>>> {
    let mut nodes: Vec<Node<'_>> = Vec::new();
    let mut by_inode: HashMap<tree::Inode, u32> = HashMap::new();
    // The parent directories of the current path.
    let mut above: Vec<u32> = Vec::new();
    for (path, found) in tree.walk(&LayerPath::root()) {
        above.truncate(path.components().count());
        let parent = above.last().copied().unwrap_or(0);
        let is_directory = found.entry().is_directory();
        let next = u32::try_from(nodes.len()).map_err(|_| too_large())?;
        let number = match by_inode.get(&found.inode) {
            Some(known) if !is_directory => *known,
            _ => {
                nodes.push(Node {
                    found,
                    links: if is_directory { 2 } else { 0 },
                    parent,
                    children: Vec::new(),
                    attributes: encode_attributes(&path, &found)?,
                    data: Data::None,
                    size: 0,
                    offset: 0,
                });
                by_inode.insert(found.inode, next);
                next
            }
        };
        if is_directory {
            above.push(number);
        } else {
            nodes[number as usize].links += 1;
        }
        if let Some(name) = path.file_name() {
            let parent = &mut nodes[parent as usize];
            parent.links += u32::from(is_directory);
            parent.children.push((name.to_vec(), number));
        }
    }
    Ok(nodes)
}

/// Encodes the attributes as in snapshots: an image's own overlay attributes are escaped, and
/// labels of another machine's policy are left out.
fn encode_attributes(path: &LayerPath, found: &Found<'_>) -> Result<Vec<u8>> {
    let xattrs = &found.entry().xattrs;
    if xattrs.is_empty() {
        return Ok(Vec::new());
    }
    let escaped: Vec<(Vec<u8>, &[u8])> = xattrs
        .iter()
        .filter(|(name, _)| !is_left_out(&found.entry().kind, name))
        .map(|(name, value)| (escape(name), value.as_slice()))
        .collect();
    let attributes = escaped.iter().map(|(name, value)| (name.as_slice(), *value));
    format::attributes(attributes)
        .ok_or_else(|| Error::failed(format!("the attributes of `{path}` are too long for EROFS")))
}

fn escape(name: &[u8]) -> Vec<u8> {
    for prefix in [&b"trusted.overlay."[..], b"user.overlay."] {
        if let Some(rest) = name.strip_prefix(prefix) {
            return [prefix, b"overlay.", rest].concat();
        }
    }
    name.to_vec()
}

/// Assigns a position to every inode, and blocks after the last inode to all content stored in the
/// image. Returns the length of the image in blocks.
fn place(nodes: &mut [Node<'_>], devices: &[Device]) -> Result<u32> {
    let mut offset = format::first_inode(devices.len());
    for node in nodes.iter_mut() {
        let entry = node.found.entry();
        (node.size, node.data) = match &entry.kind {
            EntryKind::Directory => {
                let names = with_dots(&node.children).map(|(name, _)| name);
                (format::directory_length(names), Data::Here { block: 0 })
            }
            EntryKind::Symlink { target } => (target.len() as u64, Data::Here { block: 0 }),
            EntryKind::File { size } => (*size, file_data(&node.found, *size, devices)),
            EntryKind::CharDevice { major, minor } | EntryKind::BlockDevice { major, minor } => {
                (0, Data::Node { major: *major, minor: *minor })
            }
            EntryKind::Fifo | EntryKind::HardLink { .. } => (0, Data::None),
        };
        offset = align(offset, INODE_SLOT);
        node.offset = offset;
        offset += format::inode_length(node.attributes.len() as u64, node.data);
    }
    let mut next = offset.div_ceil(BLOCK);
    for node in nodes.iter_mut() {
        if let Data::Here { block } = &mut node.data {
            *block = u32::try_from(next).map_err(|_| too_large())?;
            next += node.size.div_ceil(BLOCK);
        }
    }
    u32::try_from(next).map_err(|_| too_large())
}

fn file_data(found: &Found<'_>, size: u64, devices: &[Device]) -> Data {
    if size == 0 {
        return Data::None;
    }
    let offset = found.entry.offset;
    let layer = found.layer.unwrap_or(devices.len());
    // Content cannot start before its header, and the kernel reads whole blocks.
    let is_in_blocks = offset >= BLOCK
        && offset.is_multiple_of(BLOCK)
        && devices.get(layer).is_some_and(|device| align(offset + size, BLOCK) <= device.size);
    match u16::try_from(layer + 1) {
        Ok(device) if is_in_blocks => Data::Device { device, block: offset / BLOCK },
        _ => Data::Here { block: 0 },
    }
}

/// Returns a directory's names including `.` (node `None`, the directory itself) and `..`, sorted
/// bytewise for the kernel's binary search.
fn with_dots(children: &[(Vec<u8>, u32)]) -> impl Iterator<Item = (&[u8], Option<u32>)> {
    let before = children.partition_point(|(name, _)| name.as_slice() < &b"."[..]);
    let between = children.partition_point(|(name, _)| name.as_slice() < &b".."[..]);
    let list = |range: std::ops::Range<usize>| {
        children[range].iter().map(|(name, node)| (name.as_slice(), Some(*node)))
    };
    list(0..before)
        .chain([(&b"."[..], None)])
        .chain(list(before..between))
        .chain([(&b".."[..], None)])
        .chain(list(between..children.len()))
}

fn content(node: &Node<'_>, nodes: &[Node<'_>]) -> Vec<u8> {
    if let EntryKind::Symlink { target } = &node.found.entry().kind {
        return target.clone();
    }
    let names: Vec<Name<'_>> = with_dots(&node.children)
        .map(|(name, child)| {
            let target = match (child, name) {
                (Some(child), _) => &nodes[child as usize],
                (None, b".") => node,
                (None, _) => &nodes[node.parent as usize],
            };
            Name { name, inode: target.number(), kind: target.kind() }
        })
        .collect();
    format::directory(&names)
}

fn encode(node: &Node<'_>, number: usize) -> Result<Vec<u8>> {
    let entry = node.found.entry();
    let kind: u32 = match node.kind() {
        TYPE_DIRECTORY => 0o040_000,
        TYPE_SYMLINK => 0o120_000,
        TYPE_CHAR => 0o020_000,
        TYPE_BLOCK => 0o060_000,
        TYPE_FIFO => 0o010_000,
        _ => 0o100_000,
    };
    Ok(format::inode(&Inode {
        mode: u16::try_from(kind | entry.mode & 0o7777).map_err(|_| too_large())?,
        size: node.size,
        data: node.data,
        number: u32::try_from(number + 1).map_err(|_| too_large())?,
        uid: entry.uid,
        gid: entry.gid,
        mtime: (entry.mtime.seconds, entry.mtime.nanoseconds),
        links: node.links,
        attributes: &node.attributes,
    }))
}

/// A writer that tracks its position.
struct Placed<'a> {
    out: &'a mut dyn Write,
    position: u64,
}

impl Write for Placed<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let written = self.out.write(bytes)?;
        self.position += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.out.flush()
    }
}

impl Placed<'_> {
    fn put(&mut self, bytes: &[u8]) -> Result<()> {
        self.out.write_all(bytes).doing(|| "cannot write the index".to_owned())?;
        self.position += bytes.len() as u64;
        Ok(())
    }

    /// Writes zeros up to `position`, which is always near.
    fn pad_to(&mut self, position: u64) -> Result<()> {
        let missing = position.saturating_sub(self.position);
        let missing = usize::try_from(missing).map_err(|_| too_large())?;
        self.put(&vec![0; missing])
    }
}

fn too_large() -> Error {
    Error::failed("the image is too large for an EROFS index")
}
