//! A layer has one reading: what imgctl accepts, Go (umoci), Python's tarfile, GNU tar and libarchive take
//! for the same files, by hand-made archives and generated ones. A reader may refuse what imgctl accepts.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use imgctl_layer::{EntryKind, LayerPath, Limits, Names, TarReader, Toc, TocEntry, Tree};
use serde::Deserialize;
use sha2::{Digest, Sha256};

use crate::common::tree::{self, Compare};
use crate::common::{Ran, TestEnv, long, repository, tool};
use crate::unpacking::image::{TAG, layout};
use crate::unpacking::readers;

/// Name, kind, size, and content or target; bytes in hex.
type Line = (String, String, u64, String);

/// What the others find in one archive; `None` for those that refuse it.
#[derive(Deserialize)]
struct Listed {
    python: Option<Python>,
    gnu: Option<Gnu>,
    libarchive: Option<Vec<Line>>,
}

#[derive(Deserialize)]
struct Python {
    entries: Vec<Line>,
    /// Mode, owner and group that each name has in the end, without symlinks.
    attributes: BTreeMap<String, (u32, u32, u32)>,
}

#[derive(Deserialize)]
struct Gnu {
    entries: Vec<Line>,
    /// SHA-256 of the contents of all files, one after another; `None` with sparse files.
    contents: Option<String>,
}

/// An archive that imgctl accepts.
struct Accepted {
    name: String,
    path: PathBuf,
    bytes: Vec<u8>,
    /// `None` if a name leads through `..`, which others than Go do not interpret.
    lines: Option<Vec<Line>>,
    contents: String,
    /// Mode, owner and group of each name; empty if a link leads nowhere.
    attributes: BTreeMap<String, (u32, u32, u32)>,
}

fn script(arguments: &[&str], out: &Path) -> Ran {
    let script = repository().join("tests/runner/unpacking/readings.py");
    let mut python = tool("python3", [script.to_str().unwrap()].iter().chain(arguments));
    python.arg(out);
    Ran::new(python).ok()
}

fn hex(bytes: &[u8]) -> String {
    tree::hex(bytes)
}

/// The entries by their own names, and the SHA-256 of all contents.
fn literally(tar: &[u8]) -> Option<(Vec<Line>, String)> {
    let mut reader = TarReader::new(tar, Limits::default(), Names::Plain);
    let mut all = Sha256::new();
    let mut lines = Vec::new();
    while let Some(entry) = reader.next_entry().ok()? {
        let mut content = Vec::new();
        reader.read_to_end(&mut content).ok()?;
        all.update(&content);
        let target = |path: &LayerPath| hex(path.as_bytes());
        let (kind, content) = match &entry.kind {
            EntryKind::File { .. } => ("f", hex(&Sha256::digest(&content))),
            EntryKind::Directory => ("d", String::new()),
            EntryKind::Symlink { target } => ("l", hex(target)),
            EntryKind::HardLink { target: path } => ("h", target(path)),
            EntryKind::CharDevice { major, minor } => {
                ("c", hex(format!("{major},{minor}").as_bytes()))
            }
            EntryKind::BlockDevice { major, minor } => {
                ("b", hex(format!("{major},{minor}").as_bytes()))
            }
            EntryKind::Fifo => ("p", String::new()),
        };
        lines.push((hex(entry.path.as_bytes()), kind.to_owned(), entry.size(), content));
    }
    Some((lines, hex(&all.finalize())))
}

/// Reads the archive as a layer.
fn accepted(path: &Path) -> Option<Accepted> {
    let bytes = std::fs::read(path).unwrap();
    let mut reader = TarReader::new(&bytes[..], Limits::default(), Names::Layer);
    let mut toc = Toc::default();
    while let Some(entry) = reader.next_entry().ok()? {
        std::io::copy(&mut reader, &mut std::io::sink()).ok()?;
        toc.entries.push(TocEntry { entry, offset: 0, content: None });
    }
    let attributes = match Tree::from_layers([Arc::new(toc)]) {
        Ok(tree) => attributes(&tree),
        Err(error) if error.to_string().contains("a hard link whose header") => return None,
        Err(_) => BTreeMap::new(),
    };
    let (lines, contents) = literally(&bytes).unzip();
    Some(Accepted {
        name: path.file_stem().unwrap().to_str().unwrap().to_owned(),
        path: path.to_owned(),
        bytes,
        lines,
        contents: contents.unwrap_or_default(),
        attributes,
    })
}

/// Mode, owner and group of what a tree shows, but of symlinks.
fn attributes(tree: &Tree) -> BTreeMap<String, (u32, u32, u32)> {
    tree.walk(&LayerPath::root())
        .filter(|(_, found)| !matches!(found.entry().kind, EntryKind::Symlink { .. }))
        .map(|(path, found)| {
            let entry = found.entry();
            (hex(path.as_bytes()), (entry.mode, entry.uid, entry.gid))
        })
        .collect()
}

/// Compares single entries with those of Python, GNU tar and libarchive. Returns the differences, and how
/// many archives each has read.
fn compare_lists(
    env: &TestEnv,
    archives: &[Accepted],
) -> (Vec<String>, BTreeMap<&'static str, usize>) {
    let names: Vec<&str> = archives.iter().map(|one| one.path.to_str().unwrap()).collect();
    let ran = script(&["list"], &env.write("names", names.join("\n")));
    let text = ran.stdout();
    assert_eq!(text.lines().count(), archives.len());
    let (mut wrong, mut read) = (Vec::new(), BTreeMap::new());
    for (archive, line) in archives.iter().zip(text.lines()) {
        let listed: Listed = serde_json::from_str(line).unwrap();
        let Some(ours) = &archive.lines else { continue };
        let python = listed.python.map(|python| {
            for (name, ours) in &archive.attributes {
                if let Some(theirs) = python.attributes.get(name).filter(|theirs| *theirs != ours) {
                    wrong.push(format!(
                        "{}: {name} is {ours:?}, python sets {theirs:?}",
                        archive.name
                    ));
                }
            }
            python.entries
        });
        let gnu = listed.gnu.map(|gnu| {
            if gnu.contents.is_some_and(|contents| contents != archive.contents) {
                wrong.push(format!("{}: GNU tar finds other contents", archive.name));
            }
            gnu.entries
        });
        // GNU tar shows no single content, and no empty names.
        let short = |(name, kind, size, content): &Line| {
            let shown = if kind == "f" { String::new() } else { content.clone() };
            (name.clone(), kind.clone(), *size, shown)
        };
        let shown: Vec<Line> = ours.iter().map(short).collect();
        for (who, ours, theirs) in [
            ("python", ours, python),
            ("gnu", &shown, gnu),
            ("libarchive", ours, listed.libarchive),
        ] {
            let Some(theirs) = theirs else { continue };
            *read.entry(who).or_default() += 1;
            if *ours != theirs {
                wrong.push(format!("{}: ours {ours:?}\n  {who} {theirs:?}", archive.name));
            }
        }
    }
    (wrong, read)
}

/// Compares the trees that imgctl and umoci make of these archives as the layers of one image; halves them
/// where umoci refuses one. Returns how many umoci has read.
fn compare_trees(env: &TestEnv, archives: &[Accepted], wrong: &mut Vec<String>) -> usize {
    let (Some(first), Some(last)) = (archives.first(), archives.last()) else { return 0 };
    let layers: Vec<Vec<u8>> = archives.iter().map(|one| one.bytes.clone()).collect();
    let image = format!("layers-{}-{}", first.name.to_lowercase(), last.name.to_lowercase());
    let path = layout(&env.path(&image), &layers);
    let theirs = readers::umoci(env, &path);
    let name = format!("localhost/{image}:{TAG}");
    let mut load = env.command(["--no-sync", "load", "--tag", &name, "-i"]);
    load.arg(&path);
    let ours = Ran::new(load);
    let exported = env.path(format!("{image}.exported"));
    let ours =
        ours.success() && env.imgctl(["export", &name, "-o", exported.to_str().unwrap()]).success();
    let tree = ours.then(|| tree::list(&exported));
    for done in [&path, &exported] {
        let _ = std::fs::remove_dir_all(done);
    }
    match (tree, theirs) {
        (Some(tree), Ok(theirs)) => {
            let found = tree::differences(&tree, &theirs, Compare::default());
            if found.is_empty() {
                return archives.len();
            }
            if archives.len() == 1 {
                wrong.push(format!("{image}: imgctl and umoci differ\n{}", found.join("\n")));
                return 1;
            }
        }
        _ if archives.len() == 1 => return 0,
        _ => {}
    }
    let (left, right) = archives.split_at(archives.len() / 2);
    compare_trees(env, left, wrong) + compare_trees(env, right, wrong)
}

fn archives(directory: &Path) -> Vec<PathBuf> {
    let names = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let mut names: Vec<_> = names.collect();
    names.sort();
    names
}

/// Compares everything; returns the names of those that imgctl accepts.
fn compare(env: &TestEnv, directory: &Path) -> Vec<String> {
    let accepted: Vec<Accepted> =
        archives(directory).iter().filter_map(|path| accepted(path)).collect();
    let (mut wrong, mut read) = compare_lists(env, &accepted);
    let mut by_umoci = 0;
    for some in accepted.chunks(32) {
        by_umoci += compare_trees(env, some, &mut wrong);
    }
    read.insert("umoci", by_umoci);
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
    // A reader that refuses most would prove nothing.
    for (who, count) in &read {
        assert!(count * 2 > accepted.len(), "{who} reads {count} of {}", accepted.len());
    }
    accepted.into_iter().map(|one| one.name).collect()
}

#[test]
fn hand_made_archives_have_one_reading() {
    if !crate::common::needs_root() {
        return;
    }
    let env = TestEnv::new();
    let out = env.path("cases");
    std::fs::create_dir_all(&out).unwrap();
    script(&["cases"], &out);
    insta::assert_snapshot!(compare(&env, &out).join("\n"));
}

#[test]
fn generated_archives_have_one_reading() {
    if !crate::common::needs_root() {
        return;
    }
    let env = TestEnv::new();
    let out = env.path("random");
    std::fs::create_dir_all(&out).unwrap();
    let count = if long() { 5000 } else { 200 };
    let seed = std::env::var("IMGCTL_TEST_SEED").unwrap_or_else(|_| "1".to_owned());
    script(&["random", &seed, &count.to_string()], &out);
    let accepted = compare(&env, &out);
    assert!(accepted.len() * 10 > count, "{} of {count} are accepted", accepted.len());
}

/// Every way to a layer refuses it with the name of the entry.
#[test]
fn every_way_to_a_layer_refuses_two_readings() {
    let env = TestEnv::new();
    let out = env.path("cases");
    std::fs::create_dir_all(&out).unwrap();
    script(&["cases"], &out);
    let tar = std::fs::read(out.join("long-and-pax-path.tar")).unwrap();
    let path = layout(&env.path("two"), &[tar]);
    let mut load = env.command(["load", "--tag", "two:1", "-i"]);
    load.arg(&path);
    Ran::new(load).ok();
    let context = env.context("from", "FROM localhost/two:1\nCOPY a /a\n", &[("a", "a")]);
    let built = env.context("copied", "FROM scratch\nCOPY --from=localhost/two:1 / /\n", &[]);
    let added = env.context("added", "FROM scratch\nADD layer.tar /\n", &[]);
    std::fs::copy(out.join("long-and-pax-path.tar"), added.join("layer.tar")).unwrap();
    let tree = env.path("tree");
    let tree = tree.to_str().unwrap();
    for ran in [
        env.imgctl(["ls", "-R", "two:1"]),
        env.imgctl(["cat", "two:1:/h"]),
        env.imgctl(["sbom", "two:1"]),
        env.imgctl(["export", "two:1", "-o", tree]),
        env.imgctl(["export", "two:1", "-o", &format!("{tree}.tar")]),
        env.imgctl(["build", "-t", "x:1", context.to_str().unwrap()]),
        env.imgctl(["build", "-t", "x:2", built.to_str().unwrap()]),
        env.imgctl(["build", "-t", "x:3", added.to_str().unwrap()]),
    ] {
        assert!(!ran.success(), "{}", ran.report());
        assert!(ran.stderr().contains("`go` and `img`"), "{}", ran.stderr());
    }
}
