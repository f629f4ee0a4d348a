//! `~/.sealos/<cluster>` as sealos 4.3 and 5 leave it, written by hand from the format's description.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::common::TestEnv;

/// Puts a stored Clusterfile where `imgctl` looks for it.
fn stored(env: &TestEnv, cluster: &str, text: &str) {
    env.write(Path::new(".sealos").join(cluster).join("Clusterfile"), text);
}

#[test]
fn a_cluster_of_sealos_4_3_is_known_with_its_variables() {
    let env = TestEnv::new();
    stored(&env, "default", include_str!("fixtures/sealos-4.3"));
    env.write(".sealos/default/etc/kubeadm-init.yaml", include_str!("fixtures/kubeadm-init.yaml"));
    let ran = env.imgctl(["env", "--cluster", "default", "--json"]).ok();
    let hosts = ran.json();
    assert_eq!(hosts.as_array().unwrap().len(), 3);
    assert_eq!(hosts[2]["host"], "192.168.64.4");
    assert_eq!(hosts[2]["image"], "labring/kubernetes:v1.25.0");
    let variables = &hosts[2]["variables"];
    for (name, value, from) in [
        ("criData", "/var/lib/containerd", "image"),
        ("HOST_IP", "192.168.64.4", "fact"),
        ("MASTER_IPS", "192.168.64.2,192.168.64.3", "fact"),
        ("SEALOS_SYS_KUBE_VERSION", "v1.25.0", "fact"),
        ("SEALOS_SYS_RUN_MODE", "node,amd64", "fact"),
        ("VIP", "10.103.97.2", "default"),
        ("ARCH", "amd64", "default"),
        ("registryPassword", "***", "image"),
    ] {
        assert_eq!(variables[name]["value"], value, "{name}");
        assert_eq!(variables[name]["from"], from, "{name}");
    }
    let told = env.imgctl(["env", "--cluster", "default"]).ok();
    assert!(told.stderr().contains("4 kubeadm documents"), "{}", told.report());
    assert!(!told.report().contains("passw0rd"), "{}", told.report());
    let shown = env.imgctl(["env", "-c", "default", "--show-secrets"]).ok();
    assert!(shown.stdout().contains("passw0rd"), "{}", shown.report());
}

#[test]
fn a_cluster_of_sealos_5_is_known() {
    let env = TestEnv::new();
    stored(&env, "prod", include_str!("fixtures/sealos-5"));
    let ran = env.imgctl(["env", "--cluster", "prod", "--host", "10.1.0.1", "--json"]).ok();
    let variables = &ran.json()[0]["variables"];
    assert_eq!(variables["criData"]["from"], "spec.env");
    assert_eq!(variables["ARCH"]["value"], "arm64");
    let wrong = env.imgctl(["env", "--cluster", "prod", "--host", "10.1.0.9"]).fails(3);
    assert!(wrong.stderr().contains("does not belong"), "{}", wrong.report());
    let wrong = env.imgctl(["env", "--cluster", "prod", "--image", "x:v1"]).fails(3);
    assert!(wrong.stderr().contains("kubernetes:v1.31.4"), "{}", wrong.report());
}

#[test]
fn what_is_not_there_or_not_a_name_is_told() {
    let env = TestEnv::new();
    let ran = env.imgctl(["env", "--cluster", "none"]).fails(3);
    assert!(ran.stderr().contains("no cluster `none`"), "{}", ran.report());
    let ran = env.imgctl(["env", "--cluster", "../etc"]).fails(2);
    assert!(ran.stderr().contains("not a valid cluster name"), "{}", ran.report());
    stored(&env, "one", include_str!("fixtures/sealos-5"));
    let ran = env.imgctl(["env", "--cluster", "one"]).fails(4);
    assert!(ran.stderr().contains("a cluster named `prod`"), "{}", ran.report());
}

#[test]
fn settings_are_shown_with_where_they_come_from() {
    let env = TestEnv::new();
    let mut command = env.command(["env", "--json"]);
    command.env("SEALOS_RUNTIME_ROOT", "/somewhere");
    let settings = crate::common::Ran::new(command).ok().json();
    let of = |name: &str| {
        settings.as_array().unwrap().iter().find(|setting| setting["name"] == name).unwrap().clone()
    };
    assert_eq!(of("SEALOS_RUNTIME_ROOT")["value"], "/somewhere");
    assert_eq!(of("SEALOS_RUNTIME_ROOT")["from"], "environment");
    assert_eq!(of("SEALOS_DATA_ROOT")["value"], "/var/lib/sealos");
    assert_eq!(of("SEALOS_DATA_ROOT")["from"], "default");
}

#[test]
fn looking_leaves_nothing_behind() {
    let env = TestEnv::new();
    env.imgctl(["env", "--cluster", "none"]).fails(3);
    assert!(!env.path(".sealos").exists());
    stored(&env, "prod", include_str!("fixtures/sealos-5"));
    let mode = || {
        let metadata = std::fs::metadata(env.path(".sealos/prod")).unwrap();
        metadata.permissions().mode()
    };
    let before = mode();
    env.imgctl(["env", "--cluster", "prod"]).ok();
    assert_eq!(mode(), before);
}
