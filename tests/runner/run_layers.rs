//! What a `RUN` step leaves in the image, whatever is mounted in it and whatever the layers below are.

use crate::common::{TestEnv, needs_root};

/// Stages begin with busybox as `/bin/sh`.
fn build(env: &TestEnv, kubefile: &str) {
    let shell = "COPY --chmod=755 busybox /bin/busybox\nCOPY --chmod=755 busybox /bin/sh\n";
    env.write(
        "context/Kubefile",
        kubefile.replace("FROM scratch\n", &format!("FROM scratch\n{shell}")),
    );
    std::fs::copy("/bin/busybox", env.path("context/busybox"))
        .expect("no busybox: run scripts/setup");
    env.write("key", "hush");
    let secret = format!("--secret=id=key,src={}", env.path("key").display());
    env.imgctl(["build", "--network=none", "-t", "app", secret.as_str(), "context"]).ok();
}

fn listing(env: &TestEnv) -> Vec<String> {
    let ran = env.imgctl(["ls", "-R", "app:/"]).ok();
    ran.stdout().lines().filter(|line| !line.starts_with("/bin")).map(str::to_owned).collect()
}

/// Each kind of mount makes the directories that lead to it; what a command writes into them stays,
/// and the mount point itself goes.
#[test]
fn files_beside_a_mount_point_are_kept() {
    if !needs_root() {
        return;
    }
    for mount in [
        "type=cache",
        "type=bind",
        "type=bind,rw",
        "type=bind,source=busybox",
        "type=tmpfs",
        "type=secret,id=key",
    ] {
        let env = TestEnv::new();
        let kubefile = format!(
            "FROM scratch\nRUN --mount={mount},target=/one/two/point echo a >/one/beside; echo b >/one/two/beside\n\
             RUN --mount={mount},target=/one/three/point :\n\
             RUN --mount={mount},target=/gone/with/it :\n\
             RUN read -r line </one/two/beside; echo $line >/seen\n"
        );
        build(&env, &kubefile);
        let kept = ["/one", "/one/beside", "/one/two", "/one/two/beside", "/seen"];
        assert_eq!(listing(&env), kept, "{mount}");
        assert_eq!(env.imgctl(["cat", "app:/seen"]).ok().stdout(), "b", "{mount}");
    }
    // Every step mounts files in /etc, which this image does not have.
    let env = TestEnv::new();
    build(&env, "FROM scratch\nRUN echo root:x:0:0 >/etc/passwd\n");
    assert_eq!(listing(&env), ["/etc", "/etc/passwd"]);
}

/// Equal steps make equal layers; an overlay takes each directory once.
#[test]
fn an_image_may_have_a_layer_several_times() {
    if !needs_root() {
        return;
    }
    let env = TestEnv::new();
    env.write("context/one", "one");
    env.write("context/two", "two");
    build(
        &env,
        "FROM scratch\nCOPY one /value\nCOPY two /value\nCOPY one /value\nWORKDIR /a\nRUN /bin/busybox rmdir /a\n\
         WORKDIR /a\nRUN read -r value </value; echo $value $(/bin/busybox ls /) >/seen\n",
    );
    assert_eq!(env.imgctl(["cat", "app:/seen"]).ok().stdout().split(' ').next(), Some("one"));
    let mounted = env.imgctl(["mount", "app"]).ok().stdout();
    assert_eq!(std::fs::read_to_string(format!("{mounted}/value")).unwrap(), "one");
    env.imgctl(["umount", "app"]).ok();
}
