//! `render`: what templates become on a host, without one.

use crate::clusterfile::generated::env;

#[test]
fn templates_are_shown_for_a_host() {
    let env = env();
    let ran = env.imgctl(["render", "--host", "10.0.0.7", "root:v1", "app:v1"]).ok();
    // Below the cluster's directory, where the host will have them.
    let stdout = ran.stdout();
    let (application, rootfs) = stdout.split_once("==> rootfs/").unwrap();
    assert!(application.starts_with("==> applications/default-"), "{application}");
    assert!(
        application.ends_with("/workdir/manifests/a.yaml <==\ndata: of-app\nroles: [master]\n"),
        "{application}"
    );
    assert_eq!(
        rootfs.trim_end(),
        "etc/x.conf <==\nme=10.0.0.7 of default\ndata=/var/lib/x vip=10.103.97.2"
    );
    let ran = env
        .imgctl([
            "render",
            "--host",
            "10.0.0.7",
            "root:v1",
            "--path",
            "etc/x.conf.tmpl",
            "--env",
            "data=/d",
        ])
        .ok();
    assert!(ran.stdout().contains("data=/d "), "{}", ran.report());
    env.imgctl(["render", "--host", "10.0.0.7", "root:v1", "-o", "preview"]).ok();
    assert!(env.path("preview/rootfs/etc/x.conf").is_file());
    let ran =
        env.imgctl(["render", "--host", "10.0.0.7", "root:v1", "--path", "etc/none"]).fails(3);
    assert!(ran.stderr().contains("etc/none"), "{}", ran.report());
    // No template sees it.
    env.imgctl(["render", "--host", "10.0.0.7", "root:v1", "--peers"]).fails(2);
}

#[test]
fn values_fill_the_clusterfile_and_missing_ones_are_told() {
    let env = env();
    env.write(
        "Clusterfile",
        "apiVersion: apps.sealos.io/v1beta1\nkind: Cluster\nmetadata:\n  name: {{ .Values.name }}\nspec:\n  image: [root:v1]\n  hosts:\n  - {ips: [10.0.0.1], roles: [master], env: [data=/of/host]}\n",
    );
    let arguments = ["render", "-f", "Clusterfile", "--host", "10.0.0.1"];
    let ran = env.imgctl(arguments).fails(2);
    assert!(ran.stderr().contains("line 4"), "{}", ran.report());
    let ran = env.imgctl(arguments.into_iter().chain(["--set", "name=filled"])).ok();
    assert!(ran.stdout().contains("of filled\ndata=/of/host"), "{}", ran.report());
}
