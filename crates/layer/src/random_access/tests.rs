//! Reads any file, in any order, from any kind of blob.

use std::io::Write;

use super::*;
use crate::writer::tests::{noise, write_layer};
use crate::{Compression, Entry, Expected, LayerPath, scan};

fn files() -> Vec<(Entry, Vec<u8>)> {
    let mut files = Vec::new();
    for (index, size) in [0, 1, 3 << 20, 10, 6 << 20, 700, 2 << 20].into_iter().enumerate() {
        let path = LayerPath::parse(format!("{index}").as_bytes()).unwrap();
        let mut content = noise(size);
        if index % 2 == 0 {
            content.iter_mut().for_each(|byte| *byte &= 3);
        }
        let kind = EntryKind::File { size: size as u64 };
        files.push((Entry::new(path, kind, 0o644), content));
    }
    let directory = LayerPath::parse(b"dir").unwrap();
    files.push((Entry::new(directory, EntryKind::Directory, 0o755), Vec::new()));
    files
}

fn reader(blob: &[u8], toc: Toc) -> ContentReader {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(blob).unwrap();
    ContentReader::new(file, Arc::new(toc)).unwrap()
}

fn read(reader: &mut ContentReader, listed: &TocEntry) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut content = reader.open(listed)?;
    content.read_to_end(&mut bytes).doing(|| "content".to_owned())?;
    Ok(bytes)
}

#[test]
fn files_come_in_any_order() {
    let files = files();
    let (tar, plain) = write_layer(&files, Compression::None, 1);
    let (zstd, of_zstd) = write_layer(&files, Compression::Zstd { level: 1 }, 1);
    let (gzip, of_gzip) = write_layer(&files, Compression::Gzip { level: 1 }, 1);
    assert!(of_zstd.toc.restarts.len() > 2 && of_gzip.toc.restarts.len() > 10);
    let mut foreign = of_gzip.toc.unpack().unwrap();
    foreign.restarts.clear();
    let count = files.len() - 1;
    let orders = [
        (0..count).collect::<Vec<_>>(),
        (0..count).rev().collect(),
        vec![4, 1, 6, 6, 3, 5, 2, 0, 4],
    ];
    for (name, blob, toc) in [
        ("plain", &tar, plain.toc.unpack().unwrap()),
        ("zstd", &zstd, of_zstd.toc.unpack().unwrap()),
        ("gzip", &gzip, of_gzip.toc.unpack().unwrap()),
        ("foreign gzip", &gzip, foreign),
    ] {
        let mut reader = reader(blob, toc.clone());
        for order in &orders {
            for index in order {
                let bytes = read(&mut reader, &toc.entries[*index]).unwrap();
                assert!(bytes == files[*index].1, "{name}: file {index}");
            }
        }
        // Half of one file, then another file.
        let mut half = vec![0; 1 << 20];
        reader.open(&toc.entries[4]).unwrap().read_exact(&mut half).unwrap();
        assert!(read(&mut reader, &toc.entries[5]).unwrap() == files[5].1, "{name}");
        assert!(reader.open(&toc.entries[count]).is_err(), "{name}: a directory has no content");
    }
}

#[test]
fn one_file_costs_one_frame() {
    let files = files();
    let (mut blob, layer) = write_layer(&files, Compression::Zstd { level: 1 }, 1);
    // Make everything outside the frame of the file unreadable.
    let toc = layer.toc.unpack().unwrap();
    let listed = &toc.entries[5];
    let frames = &toc.restarts;
    let frame = frames.partition_point(|restart| restart.uncompressed <= listed.offset);
    let start = frames[frame - 1].compressed as usize;
    blob[SNIFF..start].fill(0xff);
    if let Some(next) = frames.get(frame) {
        blob[next.compressed as usize..].fill(0xff);
    }
    let mut reader = reader(&blob, toc.clone());
    assert!(read(&mut reader, listed).unwrap() == files[5].1);
}

#[test]
fn damage_is_an_error() {
    let files = files();
    for compression in
        [Compression::None, Compression::Zstd { level: 1 }, Compression::Gzip { level: 1 }]
    {
        let (blob, layer) = write_layer(&files, compression, 1);
        let toc = layer.toc.unpack().unwrap();
        let mut damaged = blob.clone();
        let middle = blob.len() / 2;
        damaged[middle] ^= 1;
        for bad in [&damaged[..], &blob[..middle]] {
            let mut reader = reader(bad, toc.clone());
            let outcomes = toc.entries[..7].iter().map(|listed| read(&mut reader, listed));
            let wrong = outcomes.zip(&files).filter(|(outcome, (_, content))| {
                outcome.as_ref().is_ok_and(|bytes| bytes != content)
            });
            assert_eq!(wrong.count(), 0, "{compression:?} gave out damaged content");
        }
        let mut cut = reader(&blob[..middle], toc.clone());
        assert!(read(&mut cut, &toc.entries[6]).is_err());
    }
}

#[test]
fn sparse_files_are_found_by_reading() {
    let directory = tempfile::tempdir().unwrap();
    let script = "cd $0 && printf a > before && truncate -s 1M sparse && printf end >> sparse && \
                  tar -cSf l.tar before sparse && tar --sort=name -tf l.tar >/dev/null";
    let mut shell = std::process::Command::new("bash");
    assert!(shell.arg("-c").arg(script).arg(directory.path()).status().unwrap().success());
    let tar = std::fs::read(directory.path().join("l.tar")).unwrap();
    let scanned = scan(&tar[..], Expected::default(), Limits::default(), &mut |_, _, _| Ok(()));
    let toc = scanned.unwrap().toc;
    assert_eq!(toc.entries[1].offset, 0);
    let mut reader = reader(&tar, toc.clone());
    for (index, name) in [(1, "sparse"), (0, "before"), (1, "sparse")] {
        let expected = std::fs::read(directory.path().join(name)).unwrap();
        assert!(read(&mut reader, &toc.entries[index]).unwrap() == expected);
    }
}
