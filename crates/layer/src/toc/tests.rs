//! Any damage is detected.

use super::*;
use crate::{EntryKind, Mtime};

fn sample() -> Toc {
    let mut toc = Toc::default();
    for (index, kind) in [
        EntryKind::Directory,
        EntryKind::File { size: u64::MAX },
        EntryKind::Symlink { target: b"\xff/..".to_vec() },
        EntryKind::HardLink { target: LayerPath::parse(b"usr/1").unwrap() },
        EntryKind::CharDevice { major: 0, minor: u32::MAX },
        EntryKind::BlockDevice { major: 8, minor: 1 },
        EntryKind::Fifo,
    ]
    .into_iter()
    .enumerate()
    {
        let path = LayerPath::parse(format!("usr/{index}").as_bytes()).unwrap();
        let mut entry = Entry::new(path, kind, 0o7777);
        entry.mtime = Mtime { seconds: i64::MIN, nanoseconds: 999_999_999 };
        entry.xattrs.insert(b"user.a".to_vec(), vec![0; 200]);
        toc.entries.push(TocEntry { entry, offset: 512, content: Some([7; 32]) });
        toc.restarts.push(RestartPoint { compressed: index as u64, uncompressed: 4 << 20 });
    }
    toc.entries.push(toc.entries[1].clone());
    toc.entries[1].content = None;
    toc
}

fn stored(toc: &Toc) -> Vec<u8> {
    let mut file = Vec::new();
    toc.write_to(&toc.restarts, &mut file).unwrap();
    file
}

#[test]
fn a_table_survives_and_the_last_duplicate_is_found() {
    let toc = sample();
    assert_eq!(Toc::read_from(&mut &stored(&toc)[..]).unwrap(), toc);
    assert_eq!(Toc::read_from(&mut &stored(&Toc::default())[..]).unwrap(), Toc::default());
    let found = toc.find(&LayerPath::parse(b"usr/1").unwrap()).unwrap();
    assert_eq!(found.content, Some([7; 32]));
    assert!(toc.find(&LayerPath::parse(b"usr").unwrap()).is_none());
}

#[test]
fn a_packed_table_is_stored_as_the_same_bytes() {
    let mut toc = sample();
    for index in 0..5000 {
        let path = LayerPath::parse(format!("var/{}/{index}", index / 7).as_bytes()).unwrap();
        let mut entry = Entry::new(path, EntryKind::File { size: index }, 0o644);
        if index % 1000 == 0 {
            entry.xattrs.insert(b"user.long".to_vec(), vec![1; 70_000]);
        }
        toc.entries.push(TocEntry { entry, offset: index, content: Some([index as u8; 32]) });
    }
    let mut packed = PackedToc { restarts: toc.restarts.clone(), ..PackedToc::default() };
    assert!(packed.is_empty() && packed.entries().next().is_none());
    toc.entries.iter().cloned().for_each(|listed| packed.push(listed));
    assert_eq!(packed.len(), toc.entries.len() as u64);
    assert_eq!(packed.unpack().unwrap(), toc);
    let mut file = Vec::new();
    packed.write_to(&packed.restarts, &mut file).unwrap();
    assert!(file == stored(&toc));
}

#[test]
fn any_damage_is_an_error() {
    let file = stored(&sample());
    for length in 0..file.len() {
        assert!(Toc::read_from(&mut &file[..length]).is_err(), "cut at {length}");
    }
    for index in 0..file.len() {
        let mut damaged = file.clone();
        damaged[index] ^= 1;
        assert!(Toc::read_from(&mut &damaged[..]).is_err(), "bit at {index}");
    }
    let longer = [&file[..], b"\0"].concat();
    assert!(Toc::read_from(&mut &longer[..]).is_err());
}

#[test]
fn noise_with_a_right_checksum_never_panics() {
    bolero::check!().with_iterations(5000).for_each(|body: &[u8]| {
        let mut file = MAGIC.to_vec();
        file.extend_from_slice(&(body.len() as u64).to_le_bytes());
        file.extend_from_slice(body);
        let checksum = blake3::hash(&file);
        file.extend_from_slice(checksum.as_bytes());
        if let Ok(toc) = Toc::read_from(&mut &file[..]) {
            assert_eq!(Toc::read_from(&mut &stored(&toc)[..]).unwrap(), toc);
        }
    });
}
