//! `gen`: from flags to a file, and that the file means the same when it is read.

use std::os::unix::fs::PermissionsExt;

use crate::common::TestEnv;

const ROOTFS: &str = "FROM scratch
LABEL sealos.io.type=rootfs sealos.io.version=v1beta1 sealos.io.distribution=script version=v1 vip=\\$defaultVIP
ENV defaultVIP=10.103.97.2 data=/var/lib/x
COPY . .
";

/// A store with `root:v1` and `app:v1`.
pub(crate) fn env() -> TestEnv {
    let env = TestEnv::new();
    let files = [
        (
            "etc/x.conf.tmpl",
            "me={{ .HOST_IP }} of {{ .Cluster.Name }}\ndata={{ .data }} vip={{ .VIP }}\n",
        ),
        ("scripts/init.sh", "true\n"),
    ];
    let context = env.context("root-context", ROOTFS, &files);
    env.build("root:v1", &context);
    let context = env.context(
        "app-context",
        "FROM scratch\nENV data=of-app\nCOPY . .\nCMD [\"true\"]\n",
        &[("manifests/a.yaml.tmpl", "data: {{ .data }}\nroles: {{ .Host.Roles }}\n")],
    );
    env.build("app:v1", &context);
    env
}

#[test]
fn flags_become_a_file_that_means_the_same() {
    let env = env();
    let arguments = [
        "gen",
        "root:v1",
        "app:v1",
        "--masters",
        "10.0.0.1-10.0.0.3",
        "--nodes",
        "10.0.0.4,10.0.0.5:2222",
        "--registry-hosts",
        "10.0.0.2",
        "--cluster",
        "mine",
        "-u",
        "ops",
        "--env",
        "A=x,y=\"{{z}}\" $HOME",
    ];
    let first = env.imgctl(arguments).ok();
    let text = first.stdout();
    for expected in [
        "name: mine",
        "- 10.0.0.5:2222",
        "  - master\n    - registry",
        "user: ops",
        "- root:v1\n  - app:v1",
    ] {
        assert!(text.contains(expected), "{expected}\n{text}");
    }
    // Written to a file it is closed to others, and the same.
    env.imgctl(arguments.into_iter().chain(["-o", "Clusterfile"])).ok();
    let written = std::fs::read_to_string(env.path("Clusterfile")).unwrap();
    assert_eq!(written.trim_end(), text);
    let mode = std::fs::metadata(env.path("Clusterfile")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    // Read again it is the same cluster: the template of a host sees its words.
    let rendered = env
        .imgctl(["render", "-f", "Clusterfile", "--host", "10.0.0.5:2222", "--path", "etc/x.conf"])
        .ok();
    assert_eq!(rendered.stdout(), "me=10.0.0.5 of mine\ndata=/var/lib/x vip=10.103.97.2");
    assert!(!env.path(".sealos").exists(), "gen keeps nothing");
}

#[test]
fn what_cannot_be_a_cluster_is_refused() {
    let env = env();
    env.write(
        "wrong",
        "kind: Config\napiVersion: apps.sealos.io/v1beta1\nmetadata: {name: a}\nspec: {pth: x}\n",
    );
    for (arguments, code, expected) in [
        (&["gen", "app:v1"][..], 2, "none of the images is a rootfs"),
        (&["gen", "root:v1", "--nodes", "10.0.0.1"], 2, "no master"),
        (&["gen", "root:v1", "--masters", "10.0.0.1,10.0.0.1"], 2, "twice"),
        (&["gen", "root:v1", "--cluster", "A/b"], 2, "not a valid cluster name"),
        (&["gen", "root:v1", "--env", "A"], 2, "has no `=`"),
        (&["gen", "root:v1", "--env", "SEALOS_SYS_X=1"], 2, "is reserved"),
        (
            &["gen", "root:v1", "--config-file", "wrong"],
            2,
            "wrong:4: unknown field `spec.pth`; did you mean `path`?",
        ),
        (
            &["gen", "root:v1", "--registry-hosts", "10.9.9.9", "--masters", "10.0.0.1"],
            3,
            "does not belong",
        ),
    ] {
        let ran = env.imgctl(arguments).fails(code);
        assert!(ran.stderr().contains(expected), "{expected}\n{}", ran.report());
    }
}
