//! The on-disk structures of EROFS that imgctl writes (Linux: Documentation/filesystems/erofs.rst),
//! all little-endian: superblock, device slots, extended inodes, inline attributes, directories.
//!
//! Encodes values as bytes; `image.rs` determines their positions.

/// Block size, equal to that of a tar, so any file of a tar starts at a block.
pub(super) const BLOCK: u64 = 512;
const BLOCK_BITS: u8 = 9;
/// Offset of the superblock; device slots follow it.
pub(super) const SUPERBLOCK_OFFSET: u64 = 1024;
const SUPERBLOCK_SIZE: u64 = 128;
pub(super) const SLOT_SIZE: u64 = 128;
/// Alignment of inodes; an inode's number is its offset divided by this.
pub(super) const INODE_SLOT: u64 = 32;
pub(super) const INODE_SIZE: u64 = 64;
/// Maximum number of devices that fit before the root inode, whose number has 16 bits.
pub(super) const MAX_DEVICES: usize = 16_000;
/// Maximum size of an attribute's value, in bytes.
const MAX_VALUE: usize = 0xffff;

const MAGIC: u32 = 0xe0f5_e1e2;
/// Inode times are modification times.
const COMPAT_MTIME: u32 = 0x2;
const INCOMPAT_CHUNKED_FILE: u32 = 0x4;
const INCOMPAT_DEVICE_TABLE: u32 = 0x8;
const LAYOUT_PLAIN: u16 = 0;
const LAYOUT_CHUNKED: u16 = 4;
const CHUNK_INDEXES: u32 = 0x20;
const VERSION_EXTENDED: u16 = 1;

/// File types in directory entries.
pub(super) const TYPE_FILE: u8 = 1;
pub(super) const TYPE_DIRECTORY: u8 = 2;
pub(super) const TYPE_CHAR: u8 = 3;
pub(super) const TYPE_BLOCK: u8 = 4;
pub(super) const TYPE_FIFO: u8 = 5;
pub(super) const TYPE_SYMLINK: u8 = 7;

/// Rounds up to a multiple of `unit`.
pub(super) fn align(value: u64, unit: u64) -> u64 {
    value.div_ceil(unit) * unit
}

/// Returns the offset of the first inode.
pub(super) fn first_inode(devices: usize) -> u64 {
    let slots = u64::try_from(devices).unwrap_or(0) * SLOT_SIZE;
    align(SUPERBLOCK_OFFSET + SUPERBLOCK_SIZE + slots, INODE_SLOT)
}

/// Returns the superblock of an image of `blocks` blocks; `root` is the root's inode number.
pub(super) fn superblock(root: u16, inodes: u64, blocks: u32, devices: u16) -> Vec<u8> {
    let mut out = Vec::with_capacity(128);
    out.extend(MAGIC.to_le_bytes());
    out.extend([0; 4]); // checksum: a compatible feature that we do not set
    out.extend(COMPAT_MTIME.to_le_bytes());
    out.push(BLOCK_BITS);
    out.push(0);
    out.extend(root.to_le_bytes());
    out.extend(inodes.to_le_bytes());
    out.extend([0; 12]); // build time: extended inodes have their own
    out.extend(blocks.to_le_bytes());
    out.extend([0; 8]); // inodes and shared attributes are addressed from the start
    out.extend([0; 32]); // UUID and volume name
    let mut incompatible = INCOMPAT_CHUNKED_FILE;
    if devices > 0 {
        incompatible |= INCOMPAT_DEVICE_TABLE;
    }
    out.extend(incompatible.to_le_bytes());
    out.extend([0; 2]);
    out.extend(devices.to_le_bytes());
    let slots = (SUPERBLOCK_OFFSET + SUPERBLOCK_SIZE) / SLOT_SIZE;
    out.extend(u16::try_from(slots).unwrap_or(0).to_le_bytes());
    out.resize(128, 0);
    out
}

/// Returns one slot of the device table; tools display `tag`.
pub(super) fn device_slot(tag: &str, blocks: u32) -> Vec<u8> {
    let mut out: Vec<u8> = tag.bytes().take(64).collect();
    out.resize(64, 0);
    out.extend(blocks.to_le_bytes());
    out.resize(128, 0);
    out
}

/// Location of an inode's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Data {
    /// The inode has no content.
    None,
    /// In this image, starting at this block.
    Here { block: u32 },
    /// On a device (numbered from 1), contiguous from that block on.
    Device { device: u16, block: u64 },
    /// The inode is a device node.
    Node { major: u32, minor: u32 },
}

/// The fields of an inode.
#[derive(Clone, Debug)]
pub(super) struct Inode<'a> {
    /// Type and permissions as in `st_mode`.
    pub(super) mode: u16,
    pub(super) size: u64,
    pub(super) data: Data,
    pub(super) number: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) mtime: (i64, u32),
    pub(super) links: u32,
    /// The result of [`attributes`].
    pub(super) attributes: &'a [u8],
}

/// Returns the size of an inode in bytes.
pub(super) fn inode_length(attributes: u64, data: Data) -> u64 {
    let length = INODE_SIZE + attributes;
    match data {
        Data::Device { .. } => align(length, 8) + 8,
        _ => length,
    }
}

/// Returns an extended inode with its attributes and, for content on a device, the address of its
/// single chunk.
pub(super) fn inode(inode: &Inode<'_>) -> Vec<u8> {
    let (layout, address) = match inode.data {
        Data::None => (LAYOUT_PLAIN, u32::MAX),
        Data::Here { block } => (LAYOUT_PLAIN, block),
        Data::Device { .. } => (LAYOUT_CHUNKED, CHUNK_INDEXES | chunk_bits(inode.size)),
        Data::Node { major, minor } => (LAYOUT_PLAIN, encode_device(major, minor)),
    };
    let attribute_count = match inode.attributes.len() {
        0 => 0,
        length => u16::try_from((length - 12) / 4 + 1).unwrap_or(u16::MAX),
    };
    let mut out = Vec::with_capacity(128);
    out.extend((VERSION_EXTENDED | layout << 1).to_le_bytes());
    out.extend(attribute_count.to_le_bytes());
    out.extend(inode.mode.to_le_bytes());
    out.extend([0; 2]);
    out.extend(inode.size.to_le_bytes());
    out.extend(address.to_le_bytes());
    out.extend(inode.number.to_le_bytes());
    out.extend(inode.uid.to_le_bytes());
    out.extend(inode.gid.to_le_bytes());
    out.extend(inode.mtime.0.to_le_bytes());
    out.extend(inode.mtime.1.to_le_bytes());
    out.extend(inode.links.to_le_bytes());
    out.extend([0; 16]);
    out.extend(inode.attributes);
    if let Data::Device { device, block } = inode.data {
        out.resize(out.len().next_multiple_of(8), 0);
        let bytes = block.to_le_bytes();
        out.extend(&bytes[4..6]);
        out.extend(device.to_le_bytes());
        out.extend(&bytes[..4]);
    }
    out
}

/// Returns the chunk size for a single chunk that covers `size` bytes, as a power of two relative
/// to the block size.
fn chunk_bits(size: u64) -> u32 {
    let bits = size.max(1).next_power_of_two().trailing_zeros();
    bits.saturating_sub(u32::from(BLOCK_BITS)).min(31)
}

/// Returns the kernel's 32-bit form of a device number.
fn encode_device(major: u32, minor: u32) -> u32 {
    (minor & 0xff) | (major & 0xfff) << 8 | (minor & 0xf_ff00) << 12
}

/// Returns the inline attributes, a multiple of four bytes, or nothing. `None` if they do not fit
/// the format. Attributes in namespaces that EROFS does not support are left out.
pub(super) fn attributes<'a>(all: impl Iterator<Item = (&'a [u8], &'a [u8])>) -> Option<Vec<u8>> {
    let mut out = vec![0; 12];
    for (name, value) in all {
        let Some((index, rest)) = attribute_name(name) else {
            continue;
        };
        if value.len() > MAX_VALUE {
            return None;
        }
        out.push(u8::try_from(rest.len()).ok()?);
        out.push(index);
        out.extend(u16::try_from(value.len()).ok()?.to_le_bytes());
        out.extend(rest);
        out.extend(value);
        out.resize(out.len().next_multiple_of(4), 0);
    }
    if out.len() == 12 {
        return Some(Vec::new());
    }
    // The inode stores their size in units of four bytes, in 16 bits.
    (out.len() <= 12 + 4 * 0xfffe).then_some(out)
}

fn attribute_name(name: &[u8]) -> Option<(u8, &[u8])> {
    match name {
        b"system.posix_acl_access" => return Some((2, b"")),
        b"system.posix_acl_default" => return Some((3, b"")),
        _ => {}
    }
    [(1, &b"user."[..]), (4, b"trusted."), (6, b"security.")]
        .iter()
        .find_map(|(index, prefix)| Some((*index, name.strip_prefix(*prefix)?)))
}

/// A directory entry.
#[derive(Clone, Copy, Debug)]
pub(super) struct Name<'a> {
    pub(super) name: &'a [u8],
    pub(super) inode: u64,
    pub(super) kind: u8,
}

/// Returns the size of a directory with these names (sorted, including `.` and `..`), in bytes.
pub(super) fn directory_length<'a>(names: impl Iterator<Item = &'a [u8]>) -> u64 {
    let mut blocks = 0;
    let mut used = 0;
    for name in names {
        let length = 12 + name.len() as u64;
        if used + length > BLOCK {
            blocks += 1;
            used = 0;
        }
        used += length;
    }
    blocks * BLOCK + used
}

/// Returns a directory's content, padded to whole blocks.
pub(super) fn directory(names: &[Name<'_>]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut rest = names;
    while !rest.is_empty() {
        let mut used = 0;
        let fitting = rest
            .iter()
            .take_while(|name| {
                used += 12 + name.name.len() as u64;
                used <= BLOCK
            })
            .count();
        // A name has at most 255 bytes, so each block holds at least one.
        let (block, after) = rest.split_at(fitting.max(1));
        let mut offset = block.len() * 12;
        for name in block {
            out.extend(name.inode.to_le_bytes());
            out.extend(u16::try_from(offset).unwrap_or(0).to_le_bytes());
            out.extend([name.kind, 0]);
            offset += name.name.len();
        }
        for name in block {
            out.extend(name.name);
        }
        out.resize(out.len().next_multiple_of(512), 0);
        rest = after;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_have_their_sizes() {
        assert_eq!(superblock(44, 1, 1, 3).len(), 128);
        assert_eq!(device_slot(&"x".repeat(80), 1).len(), 128);
        let plain = Inode {
            mode: 0o100_644,
            size: 513,
            data: Data::Device { device: 1, block: 7 },
            number: 1,
            uid: 0,
            gid: 0,
            mtime: (0, 0),
            links: 1,
            attributes: &[],
        };
        let bytes = inode(&plain);
        assert_eq!(bytes.len() as u64, inode_length(0, plain.data));
        assert_eq!(bytes.len(), 72);
        // One chunk of two blocks.
        assert_eq!(bytes[16], 0x21);
    }

    #[test]
    fn a_chunk_covers_the_file() {
        for (size, bits) in [(0, 0), (1, 0), (512, 0), (513, 1), (1 << 20, 11), ((1 << 20) + 1, 12)]
        {
            assert_eq!(chunk_bits(size), bits, "{size}");
        }
    }

    #[test]
    fn directories_fill_blocks() {
        let long = [b'n'; 255];
        let names: Vec<Name<'_>> =
            (0..5).map(|_| Name { name: &long, inode: 9, kind: TYPE_FILE }).collect();
        // Two names of 267 bytes do not fit into 512 bytes.
        assert_eq!(directory(&names).len(), 5 * 512);
        assert_eq!(directory_length(names.iter().map(|name| name.name)), 4 * 512 + 267);
    }

    #[test]
    fn unknown_namespaces_are_left_out_and_long_values_refused() {
        let encoded = attributes([(&b"system.nfs4_acl"[..], &b"x"[..])].into_iter()).unwrap();
        assert!(encoded.is_empty());
        let encoded = attributes([(&b"user.a"[..], &b"xy"[..])].into_iter()).unwrap();
        assert_eq!(encoded.len(), 12 + 8);
        let long = vec![0; 70_000];
        assert!(attributes([(&b"user.a"[..], &long[..])].into_iter()).is_none());
    }
}
