//! Names are bytes: what is not UTF-8, and what a shell or a terminal would trip over, goes
//! through build, save, load, mount and export as it is.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::symlink;
use std::path::Path;

use crate::common::TestEnv;
use crate::faults::support::assert_scrubs_clean;

const ODD: [&[u8]; 12] = [
    b"\xff\xfe",
    b"caf\xe9",
    b"a\nb",
    b"tab\there",
    b"\x1b[31mred",
    b"-rf",
    b"back\\slash",
    b"quo\"te's",
    b" ",
    b"star*[x]?",
    b"colon:comma,",
    "\u{e4}\u{2028}\u{1f600}".as_bytes(),
];

/// Content (or link target) by name, all bytes.
fn listing(root: &Path) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let entries = walkdir::WalkDir::new(root).into_iter().map(Result::unwrap);
    let files = entries.filter(|entry| !entry.file_type().is_dir());
    let content = files.map(|entry| {
        let path = entry.path();
        let name = path.strip_prefix(root).unwrap().as_os_str().as_bytes().to_owned();
        let content = if entry.file_type().is_symlink() {
            std::fs::read_link(path).unwrap().into_os_string().into_vec()
        } else {
            std::fs::read(path).unwrap()
        };
        (name, content)
    });
    content.collect()
}

fn make_odd_tree(context: &Path) {
    for name in ODD {
        let path = context.join("odd").join(OsStr::from_bytes(name));
        std::fs::create_dir_all(&path).unwrap();
        std::fs::write(path.join(OsStr::from_bytes(name)), name).unwrap();
        symlink(OsStr::from_bytes(name), path.join("link")).unwrap();
        std::fs::hard_link(path.join(OsStr::from_bytes(name)), path.join("hard")).unwrap();
    }
    let long = [b"\xfe".repeat(255), b"x".repeat(255)].join(&b'/');
    let path = context.join("odd").join(OsStr::from_bytes(&long));
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, "long").unwrap();
}

#[test]
fn odd_names_come_through_everything_unchanged() {
    let env = TestEnv::new();
    let context = env.context("context", "FROM scratch\nCOPY odd /\n", &[]);
    make_odd_tree(&context);
    let expected = listing(&context.join("odd"));
    assert_eq!(expected.len(), ODD.len() * 3 + 1);
    env.build("localhost/odd:v1", &context);
    let image = "localhost/odd:v1";
    for format in ["oci-archive", "docker-archive", "oci-dir"] {
        let output = env.path(format);
        let flag = format!("--format={format}");
        env.imgctl(["save", &flag, image, "-o", output.to_str().unwrap()]).ok();
        env.imgctl(["rmi", image]).ok();
        env.imgctl(["load", "-i", output.to_str().unwrap(), "--tag", image]).ok();
        assert_eq!(listing(&env.export(image, &format!("from-{format}"))), expected, "{format}");
    }
    for backend in ["overlay", "erofs", "checkout"] {
        if backend != "checkout" && !crate::common::needs_root() {
            continue;
        }
        let mounted = env.imgctl(["mount", &format!("--backend={backend}"), image]).ok();
        assert_eq!(listing(Path::new(&mounted.stdout())), expected, "{backend}");
    }
    env.imgctl(["umount", "--all"]).ok();
    assert_scrubs_clean(&env);
    names_on_the_command_line(&env, image);
}

/// `cat` and `ls` take names as bytes; a terminal never gets its control characters.
fn names_on_the_command_line(env: &TestEnv, image: &str) {
    for name in ODD {
        let path = [image.as_bytes(), b":/", name, b"/", name].concat();
        let ran = env.imgctl([OsStr::new("cat"), OsStr::from_bytes(&path)]).ok();
        assert_eq!(ran.bytes(), name);
    }
    let json = env.imgctl(["--json", "ls", "-R", &format!("{image}:/")]).ok().json();
    assert!(json.to_string().len() > 1000);
    let missing = [image.as_bytes(), b":/\x1b[31m\xff"].concat();
    let ran = env.imgctl([OsStr::new("cat"), OsStr::from_bytes(&missing)]).fails(3);
    assert!(!ran.stderr().contains('\x1b'), "{}", ran.stderr());
}

#[test]
fn odd_names_of_contexts_stores_and_archives() {
    let env = TestEnv::new();
    let odd = OsStr::from_bytes(b"con\xfft\next");
    let context = env.path(odd);
    std::fs::create_dir(&context).unwrap();
    std::fs::write(context.join("Kubefile"), "FROM scratch\nCOPY . /\n").unwrap();
    let root = env.path(OsStr::from_bytes(b"ro\xfeot:,\\ x"));
    let archive = env.path(OsStr::from_bytes(b"arch\xfdive.tar"));
    let run = |arguments: &[&OsStr]| {
        let mut command = std::process::Command::new(crate::common::IMGCTL);
        command.arg("--root").arg(&root).args(arguments);
        crate::common::Ran::new(command).ok()
    };
    run(&["build".as_ref(), "-t".as_ref(), "app".as_ref(), context.as_ref()]);
    run(&["save".as_ref(), "app".as_ref(), "-o".as_ref(), archive.as_ref()]);
    run(&["load".as_ref(), "-i".as_ref(), archive.as_ref(), "--tag".as_ref(), "again".as_ref()]);
    let mounted = run(&["mount".as_ref(), "app".as_ref()]);
    let path = mounted.bytes().strip_suffix(b"\n").unwrap();
    assert!(Path::new(OsStr::from_bytes(path)).join("Kubefile").exists());
    run(&["umount".as_ref(), OsStr::from_bytes(path)]);
    run(&["scrub".as_ref(), "--deep".as_ref()]);
}
