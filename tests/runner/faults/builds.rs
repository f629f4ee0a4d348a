//! Kubefiles and contexts that are wrong, hostile or change under our hands.

use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::common::{IMGCTL, Ran, TestEnv, needs_root};
use crate::faults::support::{Canary, Nobody, assert_prunes_clean, assert_scrubs_clean, noise};

const USAGE: i32 = 2;
const NOT_FOUND: i32 = 3;
const BAD_CONTENT: i32 = 4;
const DENIED: i32 = 5;

#[test]
fn stages_cannot_use_themselves_or_later_ones() {
    let env = TestEnv::new();
    for (kubefile, code, words) in [
        ("FROM scratch AS a\nCOPY --from=a /x /x\n", USAGE, "the stage itself"),
        (
            "FROM scratch AS a\nCOPY --from=b /x /x\nFROM scratch AS b\nCOPY --from=a /x /x\n",
            USAGE,
            "a later stage",
        ),
        // A name that no earlier stage has is that of an image.
        ("FROM b AS a\nFROM a AS b\n", NOT_FOUND, "not in the store"),
        (
            "FROM scratch\nCOPY --from=1 /x /x\nFROM scratch\nCOPY --from=0 /x /x\n",
            USAGE,
            "a later stage",
        ),
        (
            "FROM scratch AS a\nRUN --mount=type=bind,from=b,target=/b true\nFROM a AS b\n",
            USAGE,
            "a later stage",
        ),
    ] {
        env.context("context", kubefile, &[("x", "x")]);
        let ran = env.imgctl(["build", "--pull=never", "-t", "app", "context"]).fails(code);
        assert!(ran.stderr().contains(words), "{kubefile}{}", ran.report());
        assert!(ran.stderr().contains(" --> Kubefile:"), "{}", ran.report());
    }
    assert_prunes_clean(&env);
}

#[test]
fn missing_sources_are_named_and_something_like_them() {
    let env = TestEnv::new();
    env.context("context", "", &[("scripts/install.sh", "x"), ("Readme.md", "x")]);
    for (source, meant) in [
        ("scripts/instal.sh", "scripts/install.sh"),
        ("README.md", "Readme.md"),
        ("script/install.sh", "scripts"),
    ] {
        env.write("context/Kubefile", format!("FROM scratch\nCOPY {source} /x\n"));
        let ran = env.imgctl(["build", "-t", "app", "context"]).fails(NOT_FOUND);
        let said = ran.stderr();
        assert!(said.contains(source) && said.contains(meant), "{said}");
        assert!(said.contains("Kubefile:2"), "{said}");
    }
    env.write("context/Kubefile", "FROM scratch\nCOPY nothing-like-it* /x\n");
    env.imgctl(["build", "-t", "app", "context"]).fails(NOT_FOUND);
}

#[test]
fn what_cannot_be_read_is_named() {
    if !needs_root() {
        return;
    }
    let env = TestEnv::new();
    let nobody = Nobody::new(&env);
    let context = nobody.home().join("context");
    for secret in ["d/secret", "secret"] {
        let _ = std::fs::remove_dir_all(&context);
        std::fs::create_dir_all(context.join("d")).unwrap();
        std::fs::write(context.join("Kubefile"), "FROM scratch\nCOPY . /\n").unwrap();
        std::fs::write(context.join(secret), "x").unwrap();
        let path = context.join(secret);
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
        let ran = nobody.imgctl(["build", "-t", "app", "context"]).fails(DENIED);
        assert!(ran.stderr().contains(secret), "{}", ran.report());
    }
    std::fs::set_permissions(context.join("d"), PermissionsExt::from_mode(0o700)).unwrap();
    std::fs::remove_file(context.join("secret")).unwrap();
    let ran = nobody.imgctl(["build", "-t", "app", "context"]).fails(DENIED);
    assert!(ran.stderr().contains('d'), "{}", ran.report());
    // What is ignored need not be readable.
    std::fs::write(context.join(".dockerignore"), "d\n").unwrap();
    nobody.imgctl(["build", "-t", "app", "context"]).ok();
    std::fs::set_permissions(context.join("Kubefile"), PermissionsExt::from_mode(0o600)).unwrap();
    let ran = nobody.imgctl(["build", "-t", "app", "context"]).fails(DENIED);
    assert!(ran.stderr().contains("Kubefile"), "{}", ran.report());
    nobody.imgctl(["scrub", "--deep"]).ok();
}

#[test]
fn names_that_mean_something_in_layers_are_refused() {
    let env = TestEnv::new();
    for name in [".wh.file", ".wh..wh..opq", "d/.wh.x"] {
        let context = env.context("context", "FROM scratch\nCOPY . /\n", &[(name, "x")]);
        let ran = env.imgctl(["build".as_ref(), context.as_os_str()]);
        assert!(!ran.success(), "{}", ran.report());
        assert!(ran.stderr().contains(".wh."), "{}", ran.report());
        std::fs::remove_dir_all(context).unwrap();
    }
    assert_prunes_clean(&env);
}

/// `imgctl` with little memory and little time.
fn confined(env: &TestEnv, arguments: &[&str]) -> Ran {
    let mut command = std::process::Command::new("prlimit");
    command.args(["--as=1500000000", "--cpu=20", IMGCTL, "--root"]).arg(env.root());
    command.args(arguments).current_dir(env.path(""));
    Ran::new(command)
}

#[test]
fn kubefiles_cannot_eat_memory_or_time() {
    let env = TestEnv::new();
    let stars = format!("{}b", "*a".repeat(60));
    let deep = format!("{}x", "**/".repeat(200));
    let doubled = "ENV A=$A$A\n".repeat(40);
    let long_name = "a".repeat(250);
    let replaced = "${A//a/$A}";
    for (what, kubefile, code) in [
        (
            "variables that double",
            format!("FROM scratch\nENV A=0123456789abcdef\n{doubled}"),
            USAGE,
        ),
        (
            "replacements that square",
            format!(
                "FROM scratch\nENV A=aaaaaaaaaaaaaaaa\n{}",
                format!("ENV A={replaced}\n").repeat(10)
            ),
            USAGE,
        ),
        ("stars", format!("FROM scratch\nCOPY {stars} /\n"), NOT_FOUND),
        (
            "a line of 20 MB",
            format!("FROM scratch\nLABEL a={}\n", "x".repeat(20 << 20)),
            BAD_CONTENT,
        ),
        ("braces", format!("FROM scratch\nENV A={}x\n", "${B:-".repeat(100_000)), USAGE),
        ("brackets", format!("FROM scratch\nCMD {}\n", "[".repeat(200_000)), 0),
    ] {
        env.write("context/Kubefile", kubefile);
        env.write(format!("context/{long_name}"), "x");
        let ran = confined(&env, &["build", "-t", "app", "context"]);
        let report: String = ran.report().chars().take(3000).collect();
        assert!(!report.contains("signal") && !report.contains("defect"), "{what}: {report}");
        if code != 0 {
            assert!(report.contains(&format!("exit status: {code}")), "{what}: {report}");
        }
    }
    env.write("context/Kubefile", "FROM scratch\nCOPY . /\n");
    for pattern in [&stars, &deep, &format!("!{stars}")] {
        env.write("context/.dockerignore", format!("{pattern}\n").repeat(50));
        confined(&env, &["build", "-t", "app", "context"]).ok();
    }
    assert_prunes_clean(&env);
}

#[test]
fn contexts_deeper_than_paths_may_be_are_refused() {
    let env = TestEnv::new();
    env.context("context", "FROM scratch\nCOPY . /\n", &[]);
    let root = std::fs::File::open(env.path("context")).unwrap();
    let mut current = std::os::fd::OwnedFd::from(root);
    for _ in 0..700 {
        use rustix::fs::{Mode, OFlags, mkdirat, openat};
        mkdirat(&current, "directory", Mode::RWXU).unwrap();
        current = openat(&current, "directory", OFlags::DIRECTORY, Mode::empty()).unwrap();
    }
    let ran = env.imgctl(["build", "-t", "app", "context"]);
    assert!(!ran.success(), "{}", ran.report());
    assert!(!ran.report().contains("signal"), "{}", ran.report());
    assert!(ran.stderr().contains("levels of directories"), "{}", ran.report());
    assert_prunes_clean(&env);
}

/// Changes the context; is told how often it has done so.
type Disturbance<'a> = Box<dyn Fn(u64) + Sync + 'a>;

/// Runs `disturb` again and again while the context is built some times.
fn build_while(env: &TestEnv, what: &str, disturb: &Disturbance<'_>) {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            for count in 0.. {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                disturb(count);
            }
        });
        let runs: Vec<Ran> = (0..6)
            .map(|_| env.imgctl(["build", "--compression=none", "-t", "app", "context"]))
            .collect();
        // Before the judgement, which may panic.
        stop.store(true, Ordering::Relaxed);
        thread.join().unwrap();
        for ran in runs {
            assert!(!ran.report().contains("defect"), "{what}: {}", ran.report());
            let names_it = ran.stderr().contains("changing");
            assert!(ran.success() || names_it, "{what}: {}", ran.report());
        }
    });
}

#[test]
fn a_context_that_changes_gives_a_sound_image_or_an_error() {
    let env = TestEnv::new();
    env.context("context", "FROM scratch\nCOPY . /\n", &[]);
    let path = env.path("context/changing");
    std::fs::create_dir(env.path("context/more")).unwrap();
    for number in 0..20 {
        env.write(format!("context/more/{number}"), noise(number, 200_000));
    }
    env.write("context/changing", noise(1, 3_000_000));
    let disturb: [(&str, Disturbance<'_>); 4] = [
        (
            "size",
            Box::new(|count| {
                let file = std::fs::File::options().write(true).open(&path).unwrap();
                file.set_len(2_000_000 + count % 7 * 300_000).unwrap();
            }),
        ),
        (
            "shrinks to nothing",
            Box::new(|count| {
                let file = std::fs::File::options().write(true).open(&path).unwrap();
                file.set_len(count % 2 * 3_000_000).unwrap();
            }),
        ),
        (
            "replaced",
            Box::new(|count| {
                let other = path.with_extension("new");
                std::fs::write(&other, noise(count + 1, 1_000_000)).unwrap();
                std::fs::rename(other, &path).unwrap();
            }),
        ),
        (
            "comes, goes and is a directory",
            Box::new(|count| {
                if count % 2 == 0 {
                    let _ = std::fs::remove_file(&path);
                    let _ = std::fs::create_dir(&path);
                } else {
                    let _ = std::fs::remove_dir(&path);
                    let _ = std::fs::write(&path, noise(count + 1, 500_000));
                }
            }),
        ),
    ];
    for (what, disturb) in &disturb {
        build_while(&env, what, disturb);
        assert_scrubs_clean(&env);
    }
    let _ = std::fs::remove_dir(&path);
    // When it keeps still, the next build has what is there now, whatever the caches have seen.
    std::fs::write(&path, "at rest").unwrap();
    env.imgctl(["build", "-t", "app", "context"]).ok();
    assert_eq!(env.imgctl(["cat", "app:/changing"]).ok().bytes(), b"at rest");
    assert_prunes_clean(&env);
}

#[test]
fn what_ignore_rules_leave_nothing_of_is_not_there() {
    let env = TestEnv::new();
    env.context(
        "context",
        "",
        &[
            ("dir/sub/file", "x"),
            ("a", "a"),
            (".dockerignore", "*\n!dir/none\n!dir/sub/*.md\n!a\n"),
        ],
    );
    for (instruction, words) in [
        ("ADD dir /x/", "an ignore rule excludes it; add `!dir`"),
        ("COPY dir/sub /x/", "add `!dir/sub`"),
        ("COPY dir* /x/", "`dir*` matches nothing in the build context"),
        ("COPY no* nor* /x/", "`no*` matches nothing in the build context"),
        ("RUN --mount=type=bind,source=dir,target=/d true", "/dir is not in the build context"),
    ] {
        env.write("context/Kubefile", format!("FROM scratch\n{instruction}\n"));
        let ran = env.imgctl(["build", "-t", "app", "context"]).fails(NOT_FOUND);
        assert!(ran.stderr().contains(words), "{instruction}{}", ran.report());
        assert!(ran.stderr().contains("Kubefile:2"), "{}", ran.report());
    }
    // One file is enough.
    env.write("context/dir/sub/file.md", "x");
    env.write("context/Kubefile", "FROM scratch\nADD dir /x/\nCOPY a no* /\n");
    env.imgctl(["build", "-t", "app", "context"]).ok();
    let listed = env.imgctl(["ls", "-R", "app"]).ok().stdout();
    assert!(listed.contains("file.md") && listed.contains("a\n"), "{listed}");
}

#[test]
fn patterns_that_are_wrong_are_shown_in_their_file() {
    let env = TestEnv::new();
    env.context(
        "context",
        "FROM scratch\nCOPY a /\n",
        &[("a", "a"), (".dockerignore", "b\n# notes\n[Local-Only]/\n")],
    );
    let ran = env.imgctl(["build", "-t", "app", "context"]);
    assert!(!ran.success(), "{}", ran.report());
    for words in [
        ".dockerignore:3:1",
        "3 | [Local-Only]/",
        "the range l-O in this pattern runs backwards",
        "put a \\ before a [",
    ] {
        assert!(ran.stderr().contains(words), "{words}{}", ran.report());
    }
    std::fs::remove_file(env.path("context/.dockerignore")).unwrap();
    env.write("context/Kubefile", "FROM scratch\nCOPY --exclude=[z-a] . /\n");
    let ran = env.imgctl(["build", "-t", "app", "context"]).fails(USAGE);
    assert!(ran.stderr().contains("the range z-a"), "{}", ran.report());
}

#[test]
fn a_variable_names_no_stage() {
    let env = TestEnv::new();
    env.context(
        "context",
        "ARG X=st\nFROM scratch AS st\nFROM scratch\nARG X\nCOPY --from=${X} /a /\n",
        &[],
    );
    let ran = env.imgctl(["build", "-t", "app", "context"]).fails(USAGE);
    for words in ["Kubefile:5:6", "--from takes no variables", "FROM ${X} AS name"] {
        assert!(ran.stderr().contains(words), "{words}{}", ran.report());
    }
}

#[test]
fn a_working_directory_replaces_no_file() {
    let env = TestEnv::new();
    for (path, words) in [("/a", "at /a"), ("/a/deep/er", "at /a")] {
        let kubefile = format!("FROM scratch\nCOPY a /\nWORKDIR {path}\n");
        env.context("context", &kubefile, &[("a", "a")]);
        let ran = env.imgctl(["build", "-t", "app", "context"]).fails(USAGE);
        assert!(ran.stderr().contains("Kubefile:3"), "{}", ran.report());
        assert!(ran.stderr().contains(words), "{}", ran.report());
    }
}

#[test]
fn a_run_step_cannot_reach_out_through_what_the_image_links() {
    if !needs_root() {
        return;
    }
    let env = TestEnv::new();
    let canary = Canary::new(&env);
    let outside = canary.path.display();
    let kubefile = format!(
        "FROM scratch AS links\nCOPY --chmod=755 busybox /bin/busybox\nCOPY --chmod=755 busybox /bin/sh\n\
         RUN /bin/busybox ln -s {outside} /out\n\
         FROM links\nCOPY Kubefile /out/directory/inner\nCOPY Kubefile /out/new\nWORKDIR /out/work\n\
         RUN --mount=type=cache,target=/out/cache echo dead >/out/cache/x\n\
         RUN --mount=type=bind,from=links,source=/out,target=/bound echo x\n"
    );
    env.context("context", &kubefile, &[]);
    std::fs::copy("/bin/busybox", env.path("context/busybox"))
        .expect("no busybox: run scripts/setup");
    let ran = env.imgctl(["build", "--network=none", "-t", "app", "context"]);
    canary.assert_untouched(&ran.report());
    assert!(!ran.report().contains("defect"), "{}", ran.report());
    // The last step's source leads out of its stage: there is nothing there.
    ran.fails(NOT_FOUND);
    assert_prunes_clean(&env);
    assert_scrubs_clean(&env);
}

/// A directory that somebody else has made, built without any flag.
#[test]
fn a_context_of_somebody_else_reads_and_writes_nothing_outside() {
    let env = TestEnv::new();
    let secret = env.write("home/secret", "LABEL stolen-text");
    let build = |words: &[&str]| env.imgctl([&["build", "-t", "x"], words].concat());

    // The Kubefile and its ignore file.
    for name in ["Kubefile", "Dockerfile", "Containerfile"] {
        let context = env.path(format!("of-{name}"));
        std::fs::create_dir(&context).unwrap();
        std::os::unix::fs::symlink(&secret, context.join(name)).unwrap();
        let told = build(&[context.to_str().unwrap()]).fails(USAGE).stderr();
        assert!(told.contains("leads out of the context") && !told.contains("stolen"), "{told}");
    }
    let context = env.context("ignored", "FROM scratch\nCOPY . /\n", &[("stolen-text", "x")]);
    env.write("home/rules", "stolen-text\n");
    std::os::unix::fs::symlink(env.path("home/rules"), context.join(".dockerignore")).unwrap();
    build(&[context.to_str().unwrap()]).ok();
    assert!(env.imgctl(["ls", "x"]).ok().stdout().contains("stolen-text"));
    // Links inside of the context count.
    let context =
        env.context("inside", "FROM scratch\n", &[("docker/File", "FROM scratch\nLABEL a=b\n")]);
    std::fs::remove_file(context.join("Kubefile")).unwrap();
    std::os::unix::fs::symlink("docker/File", context.join("Dockerfile")).unwrap();
    build(&[context.to_str().unwrap()]).ok();
    assert_eq!(env.config("x")["config"]["Labels"]["a"], "b");

    // The lock file.
    let context = env.context("locked", "FROM scratch\nCOPY Kubefile /\n", &[]);
    let inside = context.join(secret.strip_prefix("/").unwrap());
    std::fs::create_dir_all(inside.parent().unwrap()).unwrap();
    std::fs::write(&inside, "version = 1\n").unwrap();
    std::os::unix::fs::symlink(&secret, context.join("imgctl.lock")).unwrap();
    for words in [&[][..], &["--update-lock"], &["--locked"]] {
        let all = [&[context.to_str().unwrap()], words].concat();
        let told = build(&all).fails(USAGE).stderr();
        assert!(told.contains("imgctl.lock is a link") && told.contains("--lock-file"), "{told}");
    }
    assert_eq!(std::fs::read_to_string(&secret).unwrap(), "LABEL stolen-text");
    std::fs::remove_file(context.join("imgctl.lock")).unwrap();
    build(&["--update-lock", context.to_str().unwrap()]).ok();
    assert!(context.join("imgctl.lock").is_file());
}

/// Names that a layer reads as a deletion.
#[test]
fn a_working_directory_deletes_nothing() {
    let env = TestEnv::new();
    for name in ["/etc/.wh.victim", "/etc/.wh.victim/below", "/etc/.wh..wh..opq"] {
        let kubefile = format!("FROM scratch\nCOPY victim /etc/victim\nWORKDIR {name}\n");
        let context = env.context("c", &kubefile, &[("victim", "x")]);
        let told = env.imgctl(["build", context.to_str().unwrap()]).fails(USAGE).stderr();
        assert!(told.contains("mark deletions"), "{name}: {told}");
    }
}
