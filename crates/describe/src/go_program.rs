//! The modules that a Go program was built of, which Go writes into each program (debug/buildinfo): its version, then a table of
//! modules. Programs of Go 1.18 and newer have both as they are; older ones have pointers, which are not followed.

use std::io::BufRead;

use memchr::memmem;

use imgctl_base::error::{IoContext as _, Result};
use imgctl_trust::sbom::packages::Package;

const ELF: &[u8] = b"\x7fELF";
const MAGIC: &[u8] = b"\xff Go buildinf:";
/// Size of the header, in bytes.
const HEADER: usize = 32;
/// The strings follow the header.
const INLINE: u8 = 2;
/// Maximum size of both strings, in bytes.
const LONGEST: usize = 1 << 20;
/// Maximum number of places that have the mark and no table: programs that read such tables have a few.
const MAX_FALSE: usize = 1024;
/// What surrounds the table.
const SENTINEL: usize = 16;

/// Returns the modules of the program, if it is one of Go, and the version of Go under the name of its library, `stdlib`. Holds at most
/// two megabytes of it in memory.
pub(super) fn modules(content: &mut dyn BufRead) -> Result<Vec<Package>> {
    let mut window: Vec<u8> = Vec::new();
    let mut is_first = true;
    let mut wrong = 0;
    loop {
        let chunk = content.fill_buf().doing(|| "cannot read a program".to_owned())?;
        let count = chunk.len();
        window.extend_from_slice(chunk);
        content.consume(count);
        if is_first && window.len() >= ELF.len() {
            if !window.starts_with(ELF) {
                return Ok(Vec::new());
            }
            is_first = false;
        }
        let is_end = count == 0;
        let mut at = 0;
        let mut is_waiting = false;
        while let Some(next) = window.get(at..).and_then(|rest| memmem::find(rest, MAGIC)) {
            at += next;
            match window.get(at..).and_then(table) {
                Some(text) => return Ok(parse(&text)),
                None if !is_end && window.len() - at < LONGEST => {
                    is_waiting = true;
                    break;
                }
                // The words alone, as in a program that reads such tables.
                None => at += MAGIC.len(),
            }
            wrong += 1;
            if wrong == MAX_FALSE {
                return Ok(Vec::new());
            }
        }
        if is_end {
            return Ok(Vec::new());
        }
        if !is_waiting {
            // What is kept may be the beginning of the mark.
            at = at.max(window.len().saturating_sub(MAGIC.len() - 1));
        }
        window.drain(..at);
    }
}

/// Reads both strings behind the header; `None` if they are not there, or not yet in whole.
fn table(bytes: &[u8]) -> Option<(String, String)> {
    let flags = *bytes.get(MAGIC.len() + 1)?;
    if flags & INLINE == 0 {
        return None;
    }
    let (version, rest) = string(bytes.get(HEADER..)?)?;
    let (table, _) = string(rest)?;
    let version = str::from_utf8(version).ok().filter(|text| text.starts_with("go"))?;
    let table = table.get(SENTINEL..table.len().checked_sub(SENTINEL)?).unwrap_or_default();
    Some((version.to_owned(), String::from_utf8_lossy(table).into_owned()))
}

/// Splits a string with its length before it (a varint).
fn string(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (mut length, mut at) = (0_usize, 0);
    loop {
        let byte = *bytes.get(at)?;
        length |= usize::from(byte & 0x7f).checked_shl(7 * u32::try_from(at).ok()?)?;
        at += 1;
        if byte & 0x80 == 0 {
            break;
        }
        if at == 4 {
            return None;
        }
    }
    (length <= LONGEST).then_some(())?;
    bytes.get(at..)?.split_at_checked(length)
}

/// Reads the lines of the table: the program's module, those it depends on, and what replaces one.
fn parse((version, table): &(String, String)) -> Vec<Package> {
    let version = version.split(' ').next().unwrap_or_default();
    let package = |name: &str, version: &str| Package {
        kind: "golang",
        name: name.to_owned(),
        version: version.to_owned(),
        architecture: String::new(),
    };
    let mut found = vec![package("stdlib", version)];
    for line in table.lines() {
        let mut words = line.split('\t');
        match (words.next(), words.next(), words.next()) {
            (Some("mod" | "dep"), Some(name), Some(version)) => found.push(package(name, version)),
            // What is built in place of the module before.
            (Some("=>"), Some(name), Some(version)) => {
                found.pop();
                found.push(package(name, version));
            }
            _ => {}
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(version: &str, table: &str) -> Vec<u8> {
        let table = format!("{0}{table}{0}", "s".repeat(SENTINEL));
        let mut bytes = [ELF, &[0; 100_000][..], MAGIC, &[8, INLINE], &[0; 16]].concat();
        for text in [version, &table] {
            let length = u8::try_from(text.len()).unwrap();
            if length >= 0x80 {
                bytes.extend([length | 0x80, 1]);
            } else {
                bytes.push(length);
            }
            bytes.extend_from_slice(text.as_bytes());
        }
        bytes.extend([1; 5000]);
        bytes
    }

    fn names(bytes: &[u8], chunk: usize) -> Vec<(String, String)> {
        let mut reader = std::io::BufReader::with_capacity(chunk, bytes);
        let found = modules(&mut reader).unwrap();
        found.into_iter().map(|package| (package.name, package.version)).collect()
    }

    #[test]
    fn modules_are_found_wherever_chunks_end() {
        let table = "path\tx.io/cmd\nmod\tx.io/cmd\tv1.2.3\th1:x=\ndep\ta.io/b\tv0.1.0\th1:y=\n\
                     dep\tc.io/d\tv1.0.0\n=>\tfork.io/d\tv1.0.1\th1:z=\nbuild\t-compiler=gc\n";
        let bytes = program("go1.24.6 X:noboringcrypto", table);
        let expected = [
            ("stdlib", "go1.24.6"),
            ("x.io/cmd", "v1.2.3"),
            ("a.io/b", "v0.1.0"),
            ("fork.io/d", "v1.0.1"),
        ];
        let expected = expected.map(|(name, version)| (name.to_owned(), version.to_owned()));
        for chunk in [16, 100, 4096, 1 << 20] {
            assert_eq!(names(&bytes, chunk), expected, "{chunk}");
        }
    }

    #[test]
    fn a_program_that_repeats_the_mark_takes_little_time() {
        let mut marked = [ELF, &MAGIC.repeat(100)].concat();
        marked.extend_from_slice(&program("go1.24", "mod\ta\tv1\n"));
        assert_eq!(names(&marked, 4096).len(), 2);

        let marks = [ELF, &MAGIC.repeat(300_000)].concat();
        let mut reader = std::io::BufReader::with_capacity(4096, std::io::Cursor::new(&marks));
        assert!(modules(&mut reader).unwrap().is_empty());
        let read = reader.into_inner().position();
        assert!(read < 2 << 20, "{read} bytes were read");
    }

    #[test]
    fn other_files_have_no_modules() {
        for bytes in [&b"#!/bin/sh\n\xff Go buildinf:"[..], b"\x7fELF \xff Go buildinf:", b""] {
            assert!(names(bytes, 64).is_empty());
        }
        bolero::check!().for_each(|input: &[u8]| {
            let whole = program("go1.20", "mod\ta\tv1\n");
            let damaged = imgctl_base::testing::damaged(&whole[100_000..], input);
            let _ = modules(&mut [ELF, &damaged].concat().as_slice()).unwrap();
        });
    }
}
