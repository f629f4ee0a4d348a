//! Hosts share images: with all registries stopped, an image comes from the host that has it. On the
//! way, containerd of a host gets `config_path`.

use serde_json::Value;

use crate::cluster_registry::{CLIENT, HOSTS_TOML, image::APP, run, wait};
use crate::common::testbed::Bed;

/// The host that pulls from the other ones.
const ASKS: usize = 1;
const CONFIG: &str = "/etc/containerd/config.toml";

fn shares(status: &Value) -> Vec<Option<bool>> {
    let hosts = status["hosts"].as_array().unwrap();
    hosts.iter().map(|host| host["peers"].as_bool()).collect()
}

/// The status line of the answer of `to` to a request of `from`.
fn asked(bed: &Bed, (from, to): (usize, usize), path: &str, token: &str) -> String {
    let line = format!(
        "exec 3<>/dev/tcp/{}/5051; printf 'GET {path} HTTP/1.0\\r\\nAuthorization: Bearer {token}\\r\\n\\r\\n' >&3; \
         head -n 1 <&3",
        bed.ip(to)
    );
    bed.says(from, &format!("bash -c '{}'", line.replace('\'', r"'\''"))).trim().to_owned()
}

fn forget(bed: &Bed, host: usize) {
    bed.says(
        host,
        "for i in $(ctr -n k8s.io images ls -q); do ctr -n k8s.io images rm --sync $i >/dev/null; done",
    );
}

/// Turns it on in a running cluster, and off again.
pub(super) fn come_from_each_other(bed: &Bed) {
    // A host whose containerd reads no hosts.toml.
    bed.says(CLIENT, &format!("sed -i /config_path/d {CONFIG}; systemctl restart containerd"));
    let on = ["run", "cluster:v1", "--peers"];
    let plan = run(bed, &[&on[..], &["--dry-run"]].concat(), None).ok().report();
    assert!(plan.contains("set config_path") && plan.contains("imgctl-peers-default"), "{plan}");
    let killed = run(bed, &on, Some(9)).report();
    assert!(killed.contains("signal: 9"), "{killed}");
    run(bed, &on, None).ok();
    assert!(bed.says(CLIENT, &format!("cat {CONFIG}")).contains("config_path"));
    bed.says(CLIENT, &format!("test -e {CONFIG}.before-imgctl"));
    let toml = bed.says(CLIENT, &format!("cat {HOSTS_TOML}"));
    assert!(toml.contains("http://127.0.0.1:5051"), "{toml}");
    let status = run(bed, &["status", "--json"], None).ok().json();
    assert_eq!(shares(&status), [Some(true); 4], "{status:#}");
    let again = run(bed, &[&on[..], &["--dry-run"]].concat(), None).ok().report();
    assert!(!again.contains("imgctl-peers"), "{again}");

    // Only one host has the image, and no registry serves.
    let name = APP.trim_end_matches(":v1");
    (1..=4).for_each(|host| forget(bed, host));
    let pull = |host: usize, what: &str| {
        let line = format!(
            "ctr -n k8s.io images pull --hosts-dir /etc/containerd/certs.d sealos.hub:5000/{what} >/run/pull.log 2>&1"
        );
        bed.exec(host, &line).success()
    };
    assert!(pull(CLIENT, APP));
    let listed = format!(
        "ctr -n k8s.io images ls name==sealos.hub:5000/{APP} | awk 'NR == 2 {{ print $3 }}'"
    );
    let digest = bed.says(CLIENT, &listed).trim().to_owned();
    (1..=3).for_each(|host| drop(bed.says(host, "systemctl stop registry")));
    wait("the image comes from a peer", || pull(ASKS, &format!("{name}@{digest}")));
    // Nobody but a registry host says what a tag means.
    forget(bed, ASKS);
    assert!(!pull(ASKS, APP));

    // Others get nothing, and cluster hosts only what is from the cluster's registry.
    let settings = "/var/lib/sealos/data/default/peers/settings.json";
    assert_eq!(bed.says(CLIENT, &format!("stat -c %a {settings}")).trim(), "600");
    let settings: Value =
        serde_json::from_str(&bed.says(CLIENT, &format!("cat {settings}"))).unwrap();
    let token = settings["token"].as_str().unwrap();
    let path = format!("/v2/{name}/manifests/{digest}");
    assert!(asked(bed, (2, CLIENT), &path, token).contains("200"));
    assert!(asked(bed, (2, CLIENT), &path, "wrong").contains("401"));
    let tag = format!("/v2/{name}/manifests/v1");
    assert!(asked(bed, (2, CLIENT), &tag, token).contains("404"));
    let foreign = bed.says(
        CLIENT,
        "printf secret >/run/f; d=sha256:$(sha256sum /run/f | cut -d' ' -f1); \
         ctr -n k8s.io content ingest --expected-digest $d foreign </run/f >/dev/null; echo $d",
    );
    let path = format!("/v2/{name}/blobs/{}", foreign.trim());
    assert!(asked(bed, (2, CLIENT), &path, token).contains("404"));

    (1..=3).for_each(|host| drop(bed.says(host, "systemctl start registry")));
    run(bed, &["run", "cluster:v1", "--peers=false"], None).ok();
    let status = run(bed, &["status", "--json"], None).ok().json();
    assert_eq!(shares(&status), [None; 4], "{status:#}");
    for host in 1..=4 {
        assert!(!bed.exec(host, "systemctl is-active imgctl-peers-default").success());
        assert!(!bed.says(host, &format!("cat {HOSTS_TOML}")).contains(":5051"));
    }
}
