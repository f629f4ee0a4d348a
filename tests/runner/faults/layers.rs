//! Layers that try to leave their root, through every way there is to make files of them: `load`,
//! `ls`, `export`, `mount` with each back end, `FROM` in a build, a tar as context, and `ADD`.
//! Nothing may appear or change outside.

use std::os::unix::fs::{FileTypeExt, symlink};
use std::path::Path;

use crate::common::{Ran, TestEnv, needs_root};
use crate::faults::archive::{
    BLOCK_DEVICE, CHARACTER_DEVICE, Layout, PAX, Tar, docker_archive, gzip, pax_record, plain_layer,
};
use crate::faults::support::{
    Canary, Nobody, assert_no_mounts, assert_prunes_clean, assert_scrubs_clean,
};

/// What becomes of an attack. All back ends must agree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// It cannot be loaded.
    Refused,
    /// What is wrong shows when the layers are put together.
    Unusable,
    /// It makes files inside the image's root only.
    Harmless,
}

struct Attack {
    name: &'static str,
    outcome: Outcome,
    /// Lowest first.
    layers: Vec<Tar>,
}

/// Attacks on the canary directory, whose absolute path is `outside`.
fn attacks(outside: &str) -> Vec<Attack> {
    let directory = format!("{outside}/directory");
    let (out, inner) = (outside.as_bytes(), format!("{directory}/inner"));
    let up = format!("{}{outside}", "../".repeat(20));
    let attack = |name, layers| Attack {
        name,
        outcome: match name {
            "NUL in a PAX path" => Outcome::Refused,
            "hard link up"
            | "hard link out"
            | "the root as a file"
            | "hard link through a symlink, written to"
            | "whiteout of dots"
            | "whiteout of a path" => Outcome::Unusable,
            _ => Outcome::Harmless,
        },
        layers,
    };
    let tar = Tar::new;
    vec![
        attack("dots", vec![tar().file(b"../canary/file", b"dead")]),
        attack("dots inside", vec![tar().directory(b"a").file(b"a/../../canary/file", b"dead")]),
        attack("absolute", vec![tar().file(format!("{outside}/file").as_bytes(), b"dead")]),
        attack("through a symlink", vec![tar().symlink(b"a", out).file(b"a/file", b"dead")]),
        attack(
            "through a symlink of a lower layer",
            vec![tar().symlink(b"a", out), tar().file(b"a/file", b"dead")],
        ),
        attack(
            "through dots in a symlink",
            vec![tar().symlink(b"a", up.as_bytes()).file(b"a/file", b"dead")],
        ),
        attack(
            "through two symlinks",
            vec![tar().symlink(b"a", b"b").symlink(b"b", out).file(b"a/new", b"dead")],
        ),
        attack(
            "onto a symlink",
            vec![tar().symlink(b"a", format!("{outside}/file").as_bytes()).file(b"a", b"dead")],
        ),
        attack(
            "a directory onto a symlink",
            vec![
                tar().symlink(b"a", directory.as_bytes()).directory(b"a").file(b"a/inner", b"dead"),
            ],
        ),
        attack("the root as a symlink", vec![tar().symlink(b".", out).file(b"file", b"dead")]),
        attack("the root as a file", vec![tar().file(b"./", b"dead")]),
        attack("hard link out", vec![tar().hard_link(b"a", format!("{outside}/file").as_bytes())]),
        attack("hard link up", vec![tar().hard_link(b"a", b"../canary/file")]),
        attack(
            "hard link through a symlink, written to",
            vec![tar().symlink(b"s", out).hard_link(b"a", b"s/file").file(b"a", b"dead")],
        ),
        attack(
            "hard link to a symlink, written to",
            vec![
                tar()
                    .symlink(b"s", format!("{outside}/file").as_bytes())
                    .hard_link(b"a", b"s")
                    .file(b"a", b"dead"),
            ],
        ),
        attack(
            "whiteout through a symlink",
            vec![tar().symlink(b"a", out), tar().file(b"a/.wh.file", b"")],
        ),
        attack(
            "opaque through a symlink",
            vec![tar().symlink(b"a", directory.as_bytes()), tar().file(b"a/.wh..wh..opq", b"")],
        ),
        attack("whiteout of dots", vec![tar().file(b".wh...", b"")]),
        attack("whiteout of a path", vec![tar().file(b"a/.wh.", b"")]),
        attack(
            "a symlink replaced while in use",
            vec![
                tar().directory(b"a").file(b"a/x", b"1"),
                tar().symlink(b"a", out),
                tar().file(b"a/file", b"dead"),
            ],
        ),
        attack(
            "path in a PAX record",
            vec![
                tar()
                    .entry(PAX, b"p", b"", &pax_record("path", b"../canary/file"))
                    .file(b"a", b"dead"),
            ],
        ),
        attack(
            "NUL in a PAX path",
            vec![
                tar()
                    .entry(PAX, b"p", b"", &pax_record("path", b"a\0../canary/file"))
                    .file(b"a", b"dead"),
            ],
        ),
        attack(
            "size in a PAX record that lies",
            vec![
                tar()
                    .entry(PAX, b"p", b"", &pax_record("size", b"1024"))
                    .file(b"a", &nested(b"../canary/file")),
            ],
        ),
        attack(
            "overlay's own attributes",
            vec![
                tar().directory(b"d").file(b"d/x", b"1"),
                tar()
                    .entry(
                        PAX,
                        b"p",
                        b"",
                        &[
                            pax_record("SCHILY.xattr.trusted.overlay.redirect", inner.as_bytes()),
                            pax_record("SCHILY.xattr.trusted.overlay.opaque", b"y"),
                        ]
                        .concat(),
                    )
                    .directory(b"d"),
            ],
        ),
    ]
}

/// A file's tar, to be hidden inside another file.
fn nested(name: &[u8]) -> Vec<u8> {
    Tar::new().file(name, b"dead").end()
}

/// Done, or refused with one of these exit codes (besides that of bad content).
#[track_caller]
fn done_or_refused(what: &str, ran: &Ran, codes: &[i32]) -> bool {
    if ran.success() {
        return true;
    }
    let report = ran.report();
    assert!(!ran.stderr().contains("defect"), "{what}: {report}");
    let is_one = |code: &i32| report.contains(&format!("`: exit status: {code}\n"));
    assert!(is_one(&4) || codes.iter().any(is_one), "{what}: {report}");
    false
}

#[test]
fn images_cannot_reach_out() {
    let env = TestEnv::new();
    let canary = Canary::new(&env);
    let outside = canary.path.to_str().unwrap().to_owned();
    for attack in attacks(&outside) {
        let what = attack.name;
        let layers: Vec<Vec<u8>> =
            attack.layers.iter().map(|tar| gzip(&tar.clone().end())).collect();
        env.write("hostile.tar", Layout::of(&layers).archive());
        if attack.outcome == Outcome::Refused {
            let ran = env.imgctl(["load", "--unpack", "-i", "hostile.tar"]);
            assert!(!done_or_refused(what, &ran, &[]), "{what}");
            canary.assert_untouched(what);
        }
        // Nobody looks into a layer before somebody needs what is in it.
        env.imgctl(["load", "-i", "hostile.tar"]).ok();
        canary.assert_untouched(what);
        use_in_every_way(&env, &attack, &canary);
        env.imgctl(["umount", "--all"]).ok();
        env.imgctl(["rmi", "--all", "--force"]).ok();
        env.imgctl(["prune", "--all"]).ok();
        canary.assert_untouched(what);
    }
    assert_no_mounts(&env);
    assert_prunes_clean(&env);
    assert_scrubs_clean(&env);
}

fn use_in_every_way(env: &TestEnv, attack: &Attack, canary: &Canary) {
    let (what, outcome) = (attack.name, attack.outcome);
    const IMAGE: &str = "localhost/hostile:v1";
    let export = env.path("export");
    let context = env.context(
        "context",
        "FROM localhost/hostile:v1\nCOPY Kubefile a/\nWORKDIR a\nCOPY --chown=1:1 Kubefile new\nCOPY --from=localhost/hostile:v1 . /all/\n",
        &[],
    );
    let mut ways: Vec<Vec<&str>> = vec![
        vec!["ls", "-R", "localhost/hostile:v1:/"],
        vec!["cat", "localhost/hostile:v1:/a/file"],
        vec!["export", IMAGE, "-o", export.to_str().unwrap()],
        vec!["export", IMAGE, "-o", "export.tar"],
        vec!["mount", "--backend=checkout", IMAGE],
        vec!["build", "-t", "child", context.to_str().unwrap()],
    ];
    if needs_root() {
        ways.push(vec!["mount", "--backend=overlay", IMAGE]);
        ways.push(vec!["mount", "--backend=erofs", IMAGE]);
    }
    for way in &ways {
        let line = format!("{what}: {}", way.join(" "));
        let ran = env.imgctl(way);
        // What is asked for may not be there, or be something else.
        let codes: &[i32] = match way[0] {
            "cat" | "build" => &[2, 3],
            _ => &[],
        };
        let done = done_or_refused(&line, &ran, codes);
        match (way[0], outcome) {
            ("cat" | "build", _) => {}
            (_, outcome) => assert_eq!(done, outcome == Outcome::Harmless, "{line}"),
        }
        canary.assert_untouched(&line);
    }
    let _ = std::fs::remove_dir_all(export);
    let _ = std::fs::remove_file(env.path("export.tar"));
}

#[test]
fn tars_that_are_built_from_cannot_reach_out() {
    let env = TestEnv::new();
    let canary = Canary::new(&env);
    let outside = canary.path.to_str().unwrap().to_owned();
    env.context("context", "FROM scratch\nADD hostile.tar /\nADD hostile.tar /a/\n", &[]);
    for attack in attacks(&outside) {
        for layer in &attack.layers {
            let what = attack.name;
            let bytes = layer.clone().end();
            env.write("context/hostile.tar", &bytes);
            done_or_refused(what, &env.imgctl(["build", "-t", "added", "context"]), &[2]);
            canary.assert_untouched(what);
            let with_kubefile = layer.clone().file(b"Kubefile", b"FROM scratch\nCOPY . /\n").end();
            env.write("context.tar", &with_kubefile);
            done_or_refused(what, &env.imgctl(["build", "-t", "context", "context.tar"]), &[2, 3]);
            canary.assert_untouched(what);
        }
    }
    assert_prunes_clean(&env);
    assert_scrubs_clean(&env);
}

#[test]
fn contexts_with_links_out_give_links() {
    let env = TestEnv::new();
    let canary = Canary::new(&env);
    let context = env.context("context", "FROM scratch\nCOPY . /\n", &[("d/x", "x")]);
    symlink(&canary.path, context.join("out")).unwrap();
    symlink("../../canary/file", context.join("d/up")).unwrap();
    env.build("links", &context);
    let tree = env.export("links", "export");
    assert_eq!(std::fs::read_link(tree.join("out")).unwrap(), canary.path);
    assert_eq!(std::fs::read_link(tree.join("d/up")).unwrap(), Path::new("../../canary/file"));
    // Named as a source, a link is followed, but never out of the context.
    for source in ["out/file", "d/up", "../canary/file", "out"] {
        env.write("context/Kubefile", format!("FROM scratch\nCOPY {source} /got\n"));
        let ran = env.imgctl(["build", "-t", "leak", "context"]);
        if ran.success() {
            let tree = env.export("leak", &format!("leak-{}", source.replace('/', "-")));
            let got = std::fs::read(tree.join("got")).unwrap_or_default();
            assert_ne!(got, b"alive", "{source}: {}", ran.report());
        } else {
            let report = ran.report();
            assert!(
                report.contains("exit status: 3") || report.contains("exit status: 2"),
                "{report}"
            );
        }
    }
    // Nor is the Kubefile's or the ignore file's link a way to read files of the machine.
    std::fs::remove_file(env.path("context/Kubefile")).unwrap();
    env.write("context/Kubefile", "FROM scratch\nCOPY d /\n");
    canary.assert_untouched("links");
}

#[test]
fn device_nodes_need_root() {
    let layer = Tar::new()
        .entry(CHARACTER_DEVICE, b"null", b"", b"")
        .entry(BLOCK_DEVICE, b"disk", b"", b"")
        .file(b"file", b"x")
        .end();
    let env = TestEnv::new();
    env.write("devices.tar", Layout::of(&[gzip(&layer)]).archive());
    if !needs_root() {
        return;
    }
    env.imgctl(["load", "-i", "devices.tar"]).ok();
    let tree = env.export("localhost/hostile:v1", "as-root");
    let is_device = |path: &Path| path.metadata().unwrap().file_type().is_char_device();
    assert!(is_device(&tree.join("null")));
    let nobody = Nobody::new(&env);
    let archive = env.path("devices.tar");
    nobody.imgctl(["load".as_ref(), "-i".as_ref(), archive.as_os_str()]).ok();
    nobody.imgctl(["ls", "localhost/hostile:v1:/"]).ok();
    let ran = nobody.imgctl(["export", "localhost/hostile:v1", "-o", "out"]).ok();
    assert!(ran.stderr().contains("device"), "{}", ran.report());
    let out = nobody.home().join("out");
    assert_eq!(std::fs::read(out.join("file")).unwrap(), b"x");
    for name in ["null", "disk"] {
        let kind = out.join(name).symlink_metadata().map(|metadata| metadata.file_type());
        assert!(!kind.is_ok_and(|kind| kind.is_char_device() || kind.is_block_device()), "{name}");
    }
    let mounted = nobody.imgctl(["mount", "localhost/hostile:v1"]).ok().stdout();
    assert_eq!(std::fs::read(Path::new(&mounted).join("file")).unwrap(), b"x");
}

#[test]
fn setuid_files_belong_to_whom_the_image_says_or_are_not_setuid() {
    let env = TestEnv::new();
    if !needs_root() {
        return;
    }
    env.write("plain.tar", docker_archive(&[("l.tar", plain_layer(b"x"))], Tar::new()));
    let context =
        env.context("context", "FROM scratch\nCOPY --chmod=4755 tool /tool\n", &[("tool", "#!")]);
    env.build("localhost/setuid:v1", &context);
    env.imgctl(["save", "localhost/setuid:v1", "-o", "setuid.tar"]).ok();
    let nobody = Nobody::new(&env);
    let archive = env.path("setuid.tar");
    nobody.imgctl(["load".as_ref(), "-i".as_ref(), archive.as_os_str()]).ok();
    nobody.imgctl(["export", "localhost/setuid:v1", "-o", "out"]).ok();
    let metadata = nobody.home().join("out/tool").metadata().unwrap();
    let (owner, mode) = {
        use std::os::unix::fs::MetadataExt;
        (metadata.uid(), metadata.mode())
    };
    assert!(owner == 0 || owner == crate::faults::support::NOBODY);
    // An ordinary user cannot make a file that runs as somebody else.
    assert!(owner == crate::faults::support::NOBODY, "{owner} {mode:o}");
}
