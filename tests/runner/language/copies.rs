//! COPY and ADD of local files: owners, modes, links, exclusions.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::Path;
use std::process::Command;

use super::Language;
use crate::common::needs_root;

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777
}

/// All files below a directory, without directories.
fn files(root: &Path) -> Vec<String> {
    let mut all: Vec<String> = walkdir::WalkDir::new(root)
        .into_iter()
        .map(Result::unwrap)
        .filter(|entry| !entry.file_type().is_dir())
        .map(|entry| entry.path().strip_prefix(root).unwrap().display().to_string())
        .collect();
    all.sort();
    all
}

#[test]
fn an_octal_mode_also_holds_for_the_directories_that_a_copy_makes() {
    let language = Language::new();
    language.file("f", "x");
    language.file("d/f", "x");
    let exported = language.exported(
        "FROM scratch\nCOPY --chmod=0775 f /a/b/f\nCOPY --chmod=u=rwx,go=x f /c/f\nCOPY --chmod=0750 d /d\nCOPY f /e/f\n",
        &[],
    );
    for (path, expected) in [
        ("a", 0o775),
        ("a/b", 0o775),
        ("a/b/f", 0o775),
        ("c", 0o755),
        ("c/f", 0o711),
        ("d", 0o750),
        ("e", 0o755),
    ] {
        assert_eq!(mode(&exported.join(path)), expected, "{path}");
    }
}

#[test]
fn flags_that_expand_to_nothing_are_absent() {
    let language = Language::new();
    language.file("f", "x");
    fs::set_permissions(language.env.path("context/f"), fs::Permissions::from_mode(0o640)).unwrap();
    let kubefile = "FROM scratch\nARG none\nCOPY --chmod=$none --chown=$none f /f\nADD --checksum=$none f /g\n";
    let exported = language.exported(kubefile, &[]);
    assert_eq!(mode(&exported.join("f")), 0o640);
    assert!(exported.join("g").exists());
}

#[test]
fn files_of_an_unknown_user_are_roots_and_of_an_unknown_group_the_users_own() {
    if !needs_root() {
        return;
    }
    let language = Language::new();
    language.shell();
    language.file("f", "x");
    for (base, owner, expected, is_told) in [
        ("scratch", "root:root", (0, 0), false),
        ("scratch", "nosuch", (0, 0), true),
        ("localhost/shell", "nosuch", (0, 0), true),
        ("localhost/shell", "user", (7, 8), false),
        ("localhost/shell", "user:staff", (7, 9), false),
        ("localhost/shell", "user:nosuch", (7, 8), true),
        ("localhost/shell", "user:", (7, 0), false),
        ("localhost/shell", "5:nosuch", (5, 5), true),
    ] {
        let ran = language.build(&format!("FROM {base}\nCOPY --chown={owner} f /f\n"), &[]).ok();
        assert_eq!(ran.stderr().contains("the name is not in"), is_told, "{base} {owner}");
        let _ = fs::remove_dir_all(language.env.path("owned"));
        let found = fs::metadata(language.env.export("app", "owned").join("f")).unwrap();
        assert_eq!((found.uid(), found.gid()), expected, "{base} {owner}");
    }
    let said = language.build("FROM scratch\nCOPY --chown=root:staff f /f\n", &[]);
    assert!(!said.success() && said.stderr().contains("group `staff`"), "{}", said.report());
}

#[test]
fn parents_keep_links_and_patterns_to_exclude_begin_where_the_copied_paths_do() {
    let language = Language::new();
    for name in ["d/top.md", "d/s/low.md", "d/x"] {
        language.file(name, "x");
    }
    symlink("d", language.env.path("context/link")).unwrap();
    symlink("x", language.env.path("context/d/y")).unwrap();
    for (copy, expected) in [
        ("--exclude=d/*.md d /", &["d/s/low.md", "d/x", "d/y"][..]),
        ("--exclude=*.md d /", &["d/s/low.md", "d/top.md", "d/x", "d/y"]),
        ("--exclude=**/*.md d /", &["d/x", "d/y"]),
        ("--exclude=s/*.md ./d/./s ./d/./x /", &["x"]),
        ("--exclude=top.md ./d/./*.md ./d/./x /", &["x"]),
        ("link d/y /", &["d/y", "link"]),
        ("d/? /", &["d/s/low.md", "d/x", "d/y"]),
    ] {
        let exported = language.exported(&format!("FROM scratch\nCOPY --parents {copy}\n"), &[]);
        assert_eq!(files(&exported), expected, "{copy}");
    }
    let exported = language.exported("FROM scratch\nCOPY --parents link d/y /\n", &[]);
    assert_eq!(fs::read_link(exported.join("link")).unwrap(), Path::new("d"));
    assert_eq!(fs::read_link(exported.join("d/y")).unwrap(), Path::new("x"));
}

#[test]
fn an_archive_without_entries_is_a_file() {
    let language = Language::new();
    fs::write(language.env.path("context/zeros.tar"), [0; 1024]).unwrap();
    let tar = |arguments: &[&str]| {
        let ran =
            Command::new("tar").args(arguments).current_dir(language.env.path("context")).status();
        assert!(ran.unwrap().success());
    };
    tar(&["-czf", "empty.tar.gz", "-T", "/dev/null"]);
    fs::create_dir(language.env.path("context/empty")).unwrap();
    tar(&["-cf", "root.tar", "-C", "empty", "."]);
    let exported =
        language.exported("FROM scratch\nADD zeros.tar empty.tar.gz root.tar /d/\n", &[]);
    assert_eq!(files(&exported), ["d/empty.tar.gz", "d/zeros.tar"]);
}

#[test]
fn a_kubefile_without_a_context_may_copy_its_own_text() {
    let language = Language::new();
    let mut command = language.env.command(["build", "-q", "-t", "app", "-"]);
    let kubefile = language.env.write("alone", "FROM scratch\nCOPY <<a <<b /d/\none\na\ntwo\nb\n");
    command.stdin(fs::File::open(kubefile).unwrap());
    crate::common::Ran::new(command).ok();
    assert_eq!(language.content("/d/a") + &language.content("/d/b"), "onetwo");
}

#[test]
fn a_dockerfile_may_have_a_name_in_lower_case() {
    let language = Language::new();
    language.file("dockerfile", "FROM scratch\nLABEL found=lower\n");
    let context = language.env.path("context");
    language.env.build("app", &context).ok();
    assert_eq!(language.env.config("app")["config"]["Labels"]["found"], "lower");
    language.file("Dockerfile", "FROM scratch\nLABEL found=upper\n");
    language.env.build("app", &context).ok();
    assert_eq!(language.env.config("app")["config"]["Labels"]["found"], "upper");
}

#[test]
fn a_here_document_comes_over_what_is_copied() {
    let language = Language::new();
    language.file("f", "file");
    for sources in ["f <<g", "<<g f", "f* <<g"] {
        let kubefile = format!("FROM scratch\nCOPY {sources} /x\nheredoc\ng\n");
        assert_eq!(language.built(&kubefile, &[], "/x"), "heredoc", "{sources}");
    }
}

#[test]
fn of_several_sources_of_one_name_the_last_one_counts() {
    let language = Language::new();
    language.file("n", "file");
    let kubefile = "FROM scratch\nCOPY n <<n /x/\nheredoc\nn\n";
    assert_eq!(language.built(kubefile, &[], "/x/n"), "heredoc");
    language.file("d/n", "directory");
    for (sources, expected) in [("n d/", "directory"), ("d/ n", "file")] {
        let kubefile = format!("FROM scratch\nCOPY {sources} /x/\n");
        assert_eq!(language.built(&kubefile, &[], "/x/n"), expected, "{sources}");
    }
    let ran =
        language.build("FROM scratch\nADD --checksum=sha256:00 http://h/a http://h/b /x/\n", &[]);
    assert!(ran.stderr().contains("--checksum is for one source"), "{}", ran.report());
    let ran = language.build("FROM scratch\nCOPY --from=7 /a /b\n", &[]);
    assert!(ran.stderr().contains("stage 7, which does not exist"), "{}", ran.report());
}

/// Writes `a.tar` with the file `f` and the hard link `h` to `target`.
fn archive(language: &Language, target: &str) {
    const WRITE: &str = "import io, sys, tarfile\n\
        t = tarfile.open(sys.argv[1], 'w')\n\
        i = tarfile.TarInfo('f'); i.size = 1; t.addfile(i, io.BytesIO(b'x'))\n\
        i = tarfile.TarInfo('h'); i.type = tarfile.LNKTYPE; i.linkname = sys.argv[2]; t.addfile(i)\n\
        t.close()\n";
    let path = language.env.path("context/a.tar");
    let ended = Command::new("python3").args(["-c", WRITE]).arg(path).arg(target).status().unwrap();
    assert!(ended.success());
}

/// A layer with such a link could not be unpacked by anybody.
#[test]
fn a_hard_link_to_nothing_is_refused() {
    let language = Language::new();
    language.shell();
    for (target, kubefile) in [
        ("nope", "FROM scratch\nADD a.tar /o/\n"),
        ("h", "FROM scratch\nADD a.tar /o/\n"),
        ("etc", "FROM localhost/shell\nADD a.tar /\n"),
        ("etc/passwd", "FROM localhost/shell\nADD --link a.tar /\n"),
        ("etc/passwd", "FROM localhost/shell\nADD a.tar /o/\n"),
    ] {
        archive(&language, target);
        let told = language.build(kubefile, &[]).fails(4).stderr();
        assert!(told.contains("h is a hard link to"), "{target}: {told}");
    }
    archive(&language, "etc/passwd");
    let files = language.exported("FROM localhost/shell\nADD a.tar /\n", &[]);
    let passwd = fs::read(files.join("etc/passwd")).unwrap();
    assert_eq!(fs::read(files.join("h")).unwrap(), passwd);
}
