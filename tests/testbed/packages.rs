//! The Debian packages of a release, on hosts that are Debian.

use std::os::unix::fs::PermissionsExt;

use crate::common::testbed::{Bed, agent};
use crate::common::{Ran, needs_root, repository, tool};

const VERSION: &str = env!("CARGO_PKG_VERSION");

#[test]
fn they_install_run_and_go() {
    if !needs_root() {
        return;
    }
    let bed = Bed::up(1);
    let env = &bed.env;
    let foreign = if cfg!(target_arch = "x86_64") { "arm64" } else { "amd64" };
    let own = if foreign == "arm64" { "amd64" } else { "arm64" };
    let other = env.write(format!("binaries/imgctl-linux-{foreign}"), "not for this machine");
    std::fs::set_permissions(&other, PermissionsExt::from_mode(0o755)).unwrap();
    std::fs::copy(agent(), env.path(format!("binaries/imgctl-linux-{own}"))).unwrap();
    let script = repository().join("scripts/release");
    let mut release = tool(script.to_str().unwrap(), [VERSION, "--fast", "--dirty"]);
    release
        .arg("--binaries")
        .arg(env.path("binaries"))
        .arg("--output")
        .arg(env.path("release"))
        .env("BUSYBOX_AMD64", &other)
        .env("BUSYBOX_ARM64", &other)
        .env("CA_CERTIFICATES", &other);
    Ran::new(release).ok();

    let packages =
        [format!("imgctl_{VERSION}_{own}.deb"), format!("imgctl-agents_{VERSION}_all.deb")];
    let mut copy = tool("scp", ["-q", "-o", "IdentitiesOnly=yes", "-i"]);
    copy.arg(bed.key());
    copy.arg("-o").arg(format!("UserKnownHostsFile={}", bed.known_hosts().display()));
    copy.args(packages.iter().map(|name| env.path("release").join(name)));
    copy.arg(format!("root@{}:/root/", bed.ip(1)));
    Ran::new(copy).ok();

    let [imgctl, agents] = packages;
    bed.exec(1, &format!("dpkg -i /root/{agents}")).fails(1);
    bed.says(1, &format!("dpkg -i /root/{imgctl} /root/{agents}"));
    assert_eq!(bed.says(1, "imgctl --version"), format!("imgctl {VERSION}"));
    let build = "mkdir /tmp/app && cd /tmp/app && printf 'FROM scratch\\nCOPY f /\\n' >Kubefile && \
        echo text >f && imgctl build -q -t app:v1 . && imgctl cat app:v1:/f";
    assert!(bed.says(1, build).ends_with("text"));
    let files = bed.says(1, "ls /usr/lib/imgctl /usr/share/man/man1 | grep imgctl");
    for name in ["imgctl-linux-arm64", "imgctl-linux-amd64", "imgctl-build.1.gz"] {
        assert!(files.contains(name), "{files}");
    }
    bed.says(1, "dpkg --verify imgctl imgctl-agents");
    bed.says(1, "dpkg -r imgctl-agents imgctl && test ! -e /usr/lib/imgctl");
    bed.exec(1, "command -v imgctl").fails(1);
}
