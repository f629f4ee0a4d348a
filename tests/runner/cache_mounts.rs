//! `RUN --mount=type=cache` over several builds: what a cache is known by, and what makes a new one.

use crate::common::{Ran, TestEnv, needs_root};

const NOT_FOUND: i32 = 3;

/// An environment with a busybox in its context; caches of several owners need root.
fn env() -> TestEnv {
    let env = TestEnv::new();
    env.context("context", "", &[]);
    std::fs::copy("/bin/busybox", env.path("context/busybox"))
        .expect("no busybox: run scripts/setup");
    env
}

/// Builds a Kubefile whose stages have busybox as `/bin/sh`.
fn build(env: &TestEnv, arguments: &[&str], kubefile: &str) -> Ran {
    let shell = "COPY --chmod=755 busybox /bin/busybox\nCOPY --chmod=755 busybox /bin/sh\n";
    let kubefile = kubefile
        .lines()
        .map(|line| {
            if line.starts_with("FROM scratch") {
                format!("{line}\n{shell}")
            } else {
                format!("{line}\n")
            }
        })
        .collect::<String>();
    env.write("context/Kubefile", kubefile);
    let mut all = vec!["build", "--network=none", "-t", "app"];
    all.extend(arguments);
    all.push("context");
    env.imgctl(all)
}

fn cat(env: &TestEnv, path: &str) -> String {
    let ran = env.imgctl(["cat", &format!("app:{path}")]).ok();
    String::from_utf8(ran.bytes().to_vec()).unwrap()
}

#[test]
fn a_cache_begins_with_its_base_whatever_another_build_put_under_its_id() {
    if !needs_root() {
        return;
    }
    let env = env();
    let other = "FROM scratch\nRUN --mount=type=cache,target=/c echo x >/c/x\n";
    build(&env, &[], other).ok();
    let kubefile = "FROM scratch AS b\nARG TEXT=first\nRUN echo $TEXT >/hello\n\
        FROM scratch\nARG AGAIN\n\
        RUN --mount=type=cache,from=b,target=/c read -r a </c/hello; echo $a $(/bin/busybox ls /c) >/out; echo >/c/made\n";
    build(&env, &[], kubefile).ok();
    assert!(cat(&env, "/out").starts_with("first "), "{}", cat(&env, "/out"));
    assert!(!cat(&env, "/out").contains("made"));

    // Another base is another cache; the first one is still there for the first base.
    build(&env, &["--build-arg", "TEXT=second"], kubefile).ok();
    assert!(cat(&env, "/out").starts_with("second "), "{}", cat(&env, "/out"));
    assert!(!cat(&env, "/out").contains("made"));
    build(&env, &["--build-arg", "AGAIN=1"], kubefile).ok();
    assert!(cat(&env, "/out").starts_with("first "), "{}", cat(&env, "/out"));
    assert!(cat(&env, "/out").contains("made"));
    build(&env, &["--build-arg", "TEXT=third"], kubefile).ok();
    assert!(cat(&env, "/out").starts_with("third "), "{}", cat(&env, "/out"));
}

#[test]
fn owners_and_modes_have_directories_of_their_own() {
    if !needs_root() {
        return;
    }
    let env = env();
    let kubefile = |options: &str| {
        format!(
            "FROM scratch\nRUN --mount=type=cache,id=shared,target=/c{options} \
             /bin/busybox ls /c >/out; /bin/busybox stat -c %u:%g:%a /c >>/out; echo >/c/by{}\n",
            options.replace([',', '='], "-")
        )
    };
    for (options, expected) in [
        ("", "0:0:755\n"),
        (",uid=7", "7:0:755\n"),
        (",gid=7", "0:7:755\n"),
        (",mode=0700", "0:0:700\n"),
        // What the default would be is the default.
        (",uid=0,mode=0755", "by\n0:0:755\n"),
        (",uid=7,gid=0", "by-uid-7\n7:0:755\n"),
    ] {
        build(&env, &[], &kubefile(options)).ok();
        assert_eq!(cat(&env, "/out"), expected, "{options}");
    }
    // Nor does a step come from the build cache that another user's directory was mounted for.
    for mode in ["750", "711"] {
        let kubefile = format!(
            "FROM scratch\nRUN --mount=type=cache,id=mode,target=/c,mode=0{mode} /bin/busybox stat -c %a /c >/out\n"
        );
        build(&env, &[], &kubefile).ok();
        assert_eq!(cat(&env, "/out"), format!("{mode}\n"));
    }
}

#[test]
fn a_source_without_a_base_is_inside_the_cache_and_never_outside() {
    if !needs_root() {
        return;
    }
    let env = env();
    build(
        &env,
        &[],
        "FROM scratch\nRUN --mount=type=cache,target=/c /bin/busybox mkdir /c/sub && /bin/busybox ln -s /etc /c/out\n",
    )
    .ok();
    let using = |source: &str| {
        format!("FROM scratch\nRUN --mount=type=cache,target=/c,source={source} echo x >/c/file\n")
    };
    build(&env, &[], &using("sub")).ok();
    for source in ["none", "out", "../../../../etc"] {
        let ran = build(&env, &[], &using(source)).fails(NOT_FOUND);
        assert!(ran.stderr().contains("cache `/c` has no directory"), "{}", ran.report());
    }
    build(
        &env,
        &[],
        "FROM scratch\nRUN --mount=type=cache,target=/c /bin/busybox ls /c/sub >/out\n",
    )
    .ok();
    assert_eq!(cat(&env, "/out"), "file\n");
}

#[test]
fn what_is_not_known_to_the_sandbox_is_noted() {
    if !needs_root() {
        return;
    }
    let env = env();
    let ran = build(
        &env,
        &[],
        "FROM scratch\nRUN --mount=type=tmpfs,target=/t,tmpcopyup --mount=type=cache,target=/c,Z true; true\n",
    )
    .ok();
    for option in ["tmpcopyup", "Z"] {
        let note = format!("option {option} of --mount has no effect here");
        assert!(ran.stderr().contains(&note), "{}", ran.report());
    }
}
