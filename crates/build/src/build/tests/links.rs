//! COPY and ADD where the image has symlinks, files and directories already: nothing of the image, and
//! nothing behind a link, vanishes without a word.

use std::fs;
use std::os::unix::fs::symlink;

use super::Bench;

/// An image with links to a directory in each spelling, a link to a file, a dangling link, a file and
/// a directory; and trees and files to copy over them.
fn bench() -> Bench {
    let bench = Bench::new();
    for path in
        ["base/usr/lib/keep", "base/file", "base/dir/inside", "base/deep/x", "f", "flat/dir"]
    {
        bench.file(path, path);
    }
    let at = |path: &str| bench.context().join(path);
    for (link, target) in [
        ("lib", "usr/lib"),
        ("abs", "/usr/lib"),
        ("up", "../../usr/lib"),
        ("twice", "abs"),
        ("to-file", "usr/lib/keep"),
        ("dangling", "var/none"),
        ("deep/lib", "/usr/lib"),
    ] {
        symlink(target, at("base").join(link)).unwrap();
    }
    for link in ["lib", "abs", "up", "twice", "dangling"] {
        bench.file(&format!("over-{link}/{link}/sub/tool"), "tool");
        bench.file(&format!("only-{link}/{link}"), "file");
    }
    bench.file("over-file/file/x", "x").file("one/s", "x").file("two/s/x", "x");
    fs::create_dir(at("linked")).unwrap();
    symlink("f", at("linked/dir")).unwrap();
    bench
}

/// Packs members of a folder of the context; names with a slash at the end stand for the directory
/// alone.
fn pack(bench: &Bench, folder: &str, members: &[&str]) {
    let status = std::process::Command::new("tar")
        .args(["--no-recursion", "--owner=8", "--group=9", "-cf", "a.tar", "-C", folder])
        .args(members)
        .current_dir(bench.context())
        .status();
    assert!(status.unwrap().success());
}

/// What the image holds after `lines`, as `path`, `path/` and `path -> target`.
fn built(bench: &Bench, lines: &str) -> Vec<String> {
    let built = bench.build(&format!("FROM scratch\nCOPY base /\n{lines}\n"));
    bench
        .listing(&built)
        .iter()
        .map(|line| line.splitn(3, ' ').nth(2).unwrap().to_owned())
        .collect()
}

#[track_caller]
fn has(listing: &[String], wanted: &[&str]) {
    for line in wanted {
        assert!(listing.iter().any(|found| found == line), "{line} is not in {listing:#?}");
    }
}

#[test]
fn what_would_replace_another_type_is_refused() {
    let bench = bench();
    let link = "is a symbolic link in the image; a directory cannot replace it";
    let cases = [
        ("COPY over-lib /", link),
        ("COPY over-abs /", link),
        ("COPY over-up /", link),
        ("COPY over-twice /", link),
        ("COPY over-dangling /", link),
        ("COPY f over-lib /", link),
        ("COPY --chown=1:2 --chmod=755 over-lib /", link),
        ("COPY --parents over-lib/./lib/sub/tool /", link),
        ("COPY --exclude=lib --exclude=!lib/sub/tool over-lib /", link),
        ("COPY --from=tree / /", link),
        ("ADD over-lib /", link),
        ("COPY over-file /", "/file is a file in the image"),
        ("COPY over-file/file /file", "/file is a file in the image"),
        ("COPY flat /", "/dir is a directory in the image"),
        ("COPY flat/dir /", "/dir is a directory in the image"),
        ("COPY linked /", "/dir is a directory in the image"),
        ("COPY one two /new/", "/new/s is both a file and a directory"),
    ];
    for (line, message) in cases {
        let kubefile =
            format!("FROM scratch AS tree\nCOPY over-lib /\nFROM scratch\nCOPY base /\n{line}\n");
        let error = bench.error(&kubefile);
        assert!(error.contains(message), "{line}: {error}");
    }
}

#[test]
fn a_destination_goes_through_links_and_a_file_replaces_one() {
    let bench = bench();
    let kept = ["lib -> usr/lib", "usr/lib/keep", "abs -> /usr/lib", "to-file -> usr/lib/keep"];
    for (line, wanted) in [
        ("COPY over-lib/lib /lib", "usr/lib/sub/tool"),
        ("COPY over-lib/lib /abs/", "usr/lib/sub/tool"),
        ("COPY over-lib/lib /up/more", "usr/lib/more/sub/tool"),
        ("COPY f /twice/", "usr/lib/f"),
        ("COPY f /twice/x", "usr/lib/x"),
        ("COPY f /dangling/", "var/none/f"),
        ("COPY f /to-file", "usr/lib/keep"),
        ("COPY <<EOF /abs/text\nx\nEOF", "usr/lib/text"),
        ("WORKDIR /abs/work\nCOPY f .", "usr/lib/work/f"),
    ] {
        let listing = built(&bench, line);
        has(&listing, &kept);
        has(&listing, &[wanted]);
    }
    // A link within the tree goes, what it led to stays.
    let listing = built(&bench, "COPY only-lib /\nCOPY only-dangling /\n");
    has(&listing, &["lib", "dangling", "usr/lib/keep"]);
    // Such a layer looks at nothing below it.
    has(&built(&bench, "COPY --link over-lib /"), &["lib/sub/tool", "usr/lib/keep"]);
}

#[test]
fn an_archive_goes_through_links_of_the_image() {
    let bench = bench();
    for (link, wanted) in [
        ("lib", "usr/lib/sub/tool"),
        ("abs", "usr/lib/sub/tool"),
        ("up", "usr/lib/sub/tool"),
        ("twice", "usr/lib/sub/tool"),
        ("dangling", "var/none/sub/tool"),
    ] {
        let tool = format!("{link}/sub/tool");
        fs::hard_link(
            bench.context().join(format!("over-{link}/{tool}")),
            bench.context().join(format!("over-{link}/{link}/hard")),
        )
        .unwrap();
        // In either order of the file's names, with and without the directory between.
        for members in [
            vec![format!("{link}/hard"), tool.clone()],
            vec![tool.clone(), format!("{link}/hard")],
            vec![format!("{link}/sub"), tool.clone(), format!("{link}/hard")],
        ] {
            let members: Vec<&str> = members.iter().map(String::as_str).collect();
            pack(&bench, &format!("over-{link}"), &members);
            let listing = built(&bench, "ADD a.tar /");
            has(&listing, &["usr/lib/keep", "lib -> usr/lib", "abs -> /usr/lib", wanted]);
            has(&listing, &[&wanted.replace("sub/tool", "hard")]);
        }
    }
    pack(&bench, "over-lib", &["lib/sub/tool"]);
    has(&built(&bench, "ADD a.tar /deep/"), &["deep/lib -> /usr/lib", "usr/lib/sub/tool"]);
    // An entry replaces what has its name, a link as well; what follows is below it.
    pack(&bench, "over-lib", &["lib", "lib/sub/tool"]);
    let listing = built(&bench, "ADD a.tar /");
    has(&listing, &["lib/", "lib/sub/tool", "usr/lib/keep"]);
    assert!(!listing.contains(&"usr/lib/sub/tool".to_owned()), "{listing:?}");
    pack(&bench, "over-file", &["file/x"]);
    let error = bench.error("FROM scratch\nCOPY base /\nADD a.tar /\n");
    assert!(error.contains("/file is a file in the image"), "{error}");
}

#[test]
fn the_root_entry_of_an_archive_changes_no_directory() {
    let bench = bench();
    let root = bench.context().join("one");
    fs::set_permissions(&root, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    pack(&bench, "one", &[".", "./s"]);
    let kubefile = "FROM scratch\nCOPY --chown=5:6 --chmod=1777 base/dir /own/\nADD a.tar /own/\nADD a.tar /new/\nADD a.tar /\n";
    let listing = bench.listing(&bench.build(kubefile));
    for line in ["1777 5:6 own/", "755 0:0 new/", "644 8:9 own/s", "644 8:9 s"] {
        assert!(listing.iter().any(|found| found == line), "{line} is not in {listing:#?}");
    }
}

#[test]
fn directories_that_the_image_has_keep_their_owner() {
    let bench = bench();
    bench.file("more/usr/lib/new/file", "x");
    let kubefile = "FROM scratch\nCOPY --chown=1:2 base /\nCOPY --parents --chown=5:6 more/./usr/lib/new/file /\n";
    let listing = bench.listing(&bench.build(kubefile));
    for line in
        ["755 1:2 usr/", "755 1:2 usr/lib/", "755 5:6 usr/lib/new/", "644 5:6 usr/lib/new/file"]
    {
        assert!(listing.iter().any(|found| found == line), "{line} is not in {listing:#?}");
    }
}

/// A secret that the directory's own ignore file hides is not in the image, and not in a step either.
#[test]
fn a_named_directory_has_its_own_ignore_file() {
    for name in [".dockerignore", ".imgctlignore", ".containerignore"] {
        let bench = bench();
        let other = bench.directory.path().join("other");
        fs::create_dir_all(other.join("sub")).unwrap();
        for file in ["a", ".env", "sub/key.pem"] {
            fs::write(other.join(file), file).unwrap();
        }
        fs::write(other.join(name), ".env\n**/*.pem\n").unwrap();
        let built = bench.build_with("FROM scratch\nCOPY --from=other . /\n", |options| {
            let context = super::super::options::NamedContext::Directory(other.clone());
            options.build_contexts.insert("other", context);
        });
        let listing = bench.listing(&built.unwrap());
        let names: Vec<&str> =
            listing.iter().map(|line| line.rsplit(' ').next().unwrap()).collect();
        assert_eq!(names, [name, "a", "sub/"]);
    }
}
