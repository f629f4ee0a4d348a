//! `RUN --mount`, `--network` and `--security`: what steps share, and what they get.

use std::os::unix::net::UnixListener;

use super::Language;
use crate::common::needs_root;

const USE: &str = "stat /c >/dev/null && echo $$ >/out";

#[test]
fn steps_that_use_a_new_cache_for_the_first_time_share_it() {
    if !needs_root() {
        return;
    }
    let language = Language::new();
    language.shell();
    let stage = |name: &str, id: &str| {
        format!(
            "FROM localhost/shell AS {name}\nRUN --mount=type=cache,id={id},target=/c echo {name} >/c/{name}; {USE}\n"
        )
    };
    for round in 0..8 {
        let id = format!("new{round}");
        let names = ["a", "b", "c", "d"];
        let stages: String = names.map(|name| stage(name, &id)).concat();
        let copies: String =
            names.map(|name| format!("COPY --from={name} /out /out-{name}\n")).concat();
        let seen = format!(
            "FROM localhost/shell AS all\n{copies}RUN --mount=type=cache,id={id},target=/c ls /c >/seen\n"
        );
        let found = language.built(&format!("{stages}{seen}"), &["--jobs=4"], "/seen");
        assert_eq!(found.split_whitespace().collect::<Vec<_>>(), names, "{round}");
    }
}

#[test]
fn steps_that_lock_two_caches_in_any_order_end() {
    if !needs_root() {
        return;
    }
    let language = Language::new();
    language.shell();
    let locked = |id: &str| format!("--mount=type=cache,id={id},target=/{id},sharing=locked");
    let stage = |name: &str, first: &str, second: &str| {
        let (first, second) = (locked(first), locked(second));
        format!("FROM localhost/shell AS {name}\nRUN {first} {second} echo {name} >/out\n")
    };
    let kubefile = format!(
        "{}{}FROM scratch\nCOPY --from=a /out /a\nCOPY --from=b /out /b\n",
        stage("a", "x", "y"),
        stage("b", "y", "x")
    );
    // Where a build waits for ever, the runner of the tests ends this one.
    for _ in 0..6 {
        language.build(&kubefile, &["--no-cache", "--jobs=2"]).ok();
    }
}

#[test]
fn caches_have_a_name_space_of_their_own_on_request() {
    if !needs_root() {
        return;
    }
    let language = Language::new();
    language.shell();
    let kubefile =
        "FROM localhost/shell\nRUN --mount=type=cache,target=/c ls /c >/seen; touch /c/x\n";
    let seen = |flags: &[&str]| {
        // Another name each time, so that the step runs.
        let kubefile = format!("{kubefile}LABEL a={}\n", flags.len());
        language.built(&kubefile, &[flags, &["--add-host=h:10.0.0.1"]].concat(), "/seen")
    };
    assert_eq!(seen(&[]), "");
    assert_eq!(seen(&["--build-arg=BUILDKIT_CACHE_MOUNT_NS=other"]), "");
}

#[test]
fn of_several_agents_the_first_is_the_one_of_the_variable() {
    if !needs_root() {
        return;
    }
    let language = Language::new();
    language.shell();
    let agents = ["one", "two"].map(|name| language.env.path(name));
    let listeners: Vec<_> = agents.iter().map(|path| UnixListener::bind(path).unwrap()).collect();
    let flags = [
        format!("--ssh=default={}", agents[0].display()),
        format!("--ssh=two={}", agents[1].display()),
    ];
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let step = "RUN --mount=type=tmpfs,target=/t --mount=type=ssh --mount=type=ssh,id=two,target=/two echo $SSH_AUTH_SOCK >/seen\n";
    let seen =
        |env: &str| language.built(&format!("FROM localhost/shell\n{env}{step}"), &flags, "/seen");
    assert_eq!(seen(""), "/run/buildkit/ssh_agent.0");
    assert_eq!(seen("ENV SSH_AUTH_SOCK=/own\n"), "/own");
    drop(listeners);
    // A key is no agent.
    language.env.write("key", "secret");
    let key = format!("--ssh=default={}", language.env.path("key").display());
    let ran = language.build("FROM localhost/shell\nRUN --mount=type=ssh true\n", &[&key]);
    assert!(ran.stderr().contains("is not the socket of an SSH agent"), "{}", ran.report());
}

#[test]
fn mounts_of_scratch_are_empty_and_a_read_only_tmpfs_is_read_only() {
    if !needs_root() {
        return;
    }
    let language = Language::new();
    language.shell();
    let found = language.built(
        "FROM localhost/shell\nRUN --mount=from=scratch,target=/m --mount=type=tmpfs,target=/t,ro \
         ls /m >/seen; touch /t/x 2>>/seen || echo refused >>/seen\n",
        &[],
        "/seen",
    );
    assert!(found.ends_with("refused"), "{found}");
    let ran = language.build("FROM localhost/shell\nRUN --mount=type=ssh,source=x true\n", &[]);
    assert!(ran.stderr().contains("no option source"), "{}", ran.report());
}

#[test]
fn an_insecure_step_has_the_devices_of_the_host() {
    if !needs_root() {
        return;
    }
    let language = Language::new();
    language.shell();
    let step = |security: &str| {
        format!(
            "FROM localhost/shell\nRUN {security} ls /dev >/seen; /bin/busybox mknod /dev/own c 1 5 && \
             head -c 1 /dev/own >/dev/null && echo opened >>/seen; true\n"
        )
    };
    let insecure =
        language.built(&step("--security=insecure"), &["--allow=security.insecure"], "/seen");
    let theirs = std::fs::read_dir("/dev").unwrap().flatten().filter(|entry| {
        use std::os::unix::fs::FileTypeExt as _;
        entry.file_type().is_ok_and(|kind| kind.is_char_device() || kind.is_block_device())
    });
    let mut count = 0;
    for entry in theirs {
        let name = entry.file_name().into_string().unwrap();
        assert!(insecure.lines().any(|line| line == name), "{name}: {insecure}");
        count += 1;
    }
    assert!(count > 6 && insecure.ends_with("opened"), "{insecure}");
    let ordinary = language.built(&step(""), &[], "/seen");
    assert!(!ordinary.contains("opened") && !ordinary.contains("loop"), "{ordinary}");
}

#[test]
fn one_step_has_the_network_of_the_host_where_that_is_allowed() {
    if !needs_root() {
        return;
    }
    let language = Language::new();
    language.shell();
    let kubefile = "FROM localhost/shell\nRUN --network=host cat /proc/net/dev >/host\nRUN cat /proc/net/dev >/own\n";
    let refused = language.build(kubefile, &[]);
    assert!(refused.stderr().contains("--allow network.host"), "{}", refused.report());
    language.build(kubefile, &["--allow=network.host"]).ok();
    let interfaces = |text: &str| {
        let names = text.lines().filter_map(|line| line.split_once(':'));
        names.map(|(name, _)| name.trim().to_owned()).collect::<Vec<_>>()
    };
    let host = interfaces(&std::fs::read_to_string("/proc/net/dev").unwrap());
    assert_eq!(interfaces(&language.content("/own")), ["lo"]);
    // Others may add interfaces meanwhile.
    assert!(host.iter().any(|name| name != "lo"), "{host:?}");
    assert!(interfaces(&language.content("/host")).len() > 1);
}

#[test]
fn a_mount_below_another_is_seen_in_any_order() {
    if !needs_root() {
        return;
    }
    let language = Language::new();
    language.shell();
    language.file("d/x", "D");
    let kubefile = "FROM localhost/shell\n\
        RUN --mount=type=cache,target=/c/below,id=one --mount=type=cache,target=/c,id=two touch /c/below/x /c/y\n\
        RUN --mount=type=cache,target=/z,id=one ls /z >/seen\n\
        RUN --mount=source=d,target=/t/d --mount=type=tmpfs,target=/t cat /t/d/x >>/seen\n";
    assert_eq!(language.built(kubefile, &[], "/seen"), "x\nD");
}
