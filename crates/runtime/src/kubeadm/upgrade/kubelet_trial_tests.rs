//! What a new kubelet, and one that joins, will be told by kubeadm, on "hosts" with the stand-ins of
//! tests/kubeadm.

use crate::certificates::validity::Validity;
use crate::kubeadm::Kubeadm;
use crate::kubeadm::stand_in_tests::Namespace;
use crate::kubeadm::tests::NoFiles;
use crate::kubeadm::upgrade::stand_in_tests::{Bed, FIRST, NEW, SECOND, WORKER, shell, step, tree};
use crate::{Runtime as _, upgrade::Upgrader as _};
use imgctl_host::agent::{Agent as _, protocol::FileToWrite};

fn put(host: &Namespace, path: &str, content: &str) {
    let file = FileToWrite { path: path.to_owned(), mode: 0o755, content: content.into() };
    host.write_file(&file).unwrap();
}

/// kubeadm writes the kubelet's configuration anew before the new kubelet starts: what counts is the
/// ConfigMap with the patches, not the file that lies on the host.
#[test]
fn a_new_kubelet_is_tried_with_what_kubeadm_will_write() {
    let directory = tempfile::tempdir().unwrap();
    let kubeadm = Kubeadm::new(&NoFiles, Validity::sealos());
    let bed = Bed::up(directory.path(), &kubeadm);
    let host = bed.new.hosts.iter().find(|one| one.ip() == WORKER).unwrap();
    let step = step(&bed.old, &bed.new, host, NEW);
    let shell = |line: &str| shell(bed.hosts.of(WORKER), line);
    shell(
        "kill $(cat /mnt/kubelet.pid); printf '#!/bin/bash\nsleep 300 & wait\n' >/mnt/running; chmod +x /mnt/running\n\
         setsid /mnt/running --config=/var/lib/kubelet/config.yaml </dev/null >/dev/null 2>&1 & echo $! >/mnt/kubelet.pid",
    );
    let kubelet = "for word; do case $word in --config=*) config=${word#--config=} ;; esac; done\n\
        if grep -q 'failCgroupV1: false' \"$config\"; then echo 'unable to load kubeconfig: stat /x/none' >&2\n\
        else echo 'invalid configuration: configured to not run on cgroup v1' >&2; fi; exit 1";
    let program = format!("{}/bin/kubelet", tree(NEW));
    put(bed.hosts.of(WORKER), &program, &format!("#!/bin/bash\n{kubelet}\n"));
    let map = |document: &str| {
        let text = format!("kind: KubeletConfiguration\n{document}");
        let map = serde_json::json!({"data": {"kubelet": text}}).to_string();
        std::fs::write(bed.hosts.of(WORKER).log.join("configmap-kubelet-config.json"), map)
            .unwrap();
    };
    let pull = |key: &str| {
        let actions = kubeadm.pull(&step).unwrap();
        bed.hosts.run(&bed.new, host, key, &actions).map_err(|error| format!("{:?}", error.chain()))
    };
    let allows = "failCgroupV1: false\n";
    put(bed.hosts.of(WORKER), "/var/lib/kubelet/config.yaml", allows);
    map("");
    let told = pull("only-on-the-host").unwrap_err();
    for words in ["not run on cgroup v1", "ConfigMap kube-system/kubelet-config", "imgctl apply"] {
        assert!(told.contains(words), "{told}");
    }
    let patches = format!("{}/patches", tree(NEW));
    put(bed.hosts.of(WORKER), &format!("{patches}/kubeletconfiguration.yaml"), allows);
    pull("patched").unwrap();
    shell(&format!("rm -r {patches}"));
    put(bed.hosts.of(WORKER), "/var/lib/kubelet/config.yaml", "kind: KubeletConfiguration\n");
    map(allows);
    pull("in-the-cluster").unwrap();
}

/// A host that joins gets the configuration that the cluster has, whatever the Clusterfile says.
#[test]
fn the_cgroups_of_a_host_that_joins_are_judged_by_the_cluster() {
    let directory = tempfile::tempdir().unwrap();
    let kubeadm = Kubeadm::new(&NoFiles, Validity::sealos());
    let bed = Bed::up(directory.path(), &kubeadm);
    let host = bed.new.hosts.iter().find(|one| one.ip() == WORKER).unwrap();
    std::fs::write(bed.hosts.of(WORKER).log.join("cgroup-v1"), "").unwrap();
    let join = |key: &str| {
        let mut actions = kubeadm.join_worker(&bed.new, host).unwrap();
        actions.retain(|action| action.name == "kubeadm-join");
        let done = bed.hosts.run(&bed.new, host, key, &actions);
        done.err().map(|error| format!("{:?}", error.chain())).unwrap_or_default()
    };
    let map = |document: &str| {
        let map = serde_json::json!({"data": {"kubelet": document}}).to_string();
        for ip in [FIRST, SECOND] {
            std::fs::write(bed.hosts.of(ip).log.join("configmap-kubelet-config.json"), &map)
                .unwrap();
        }
    };
    map("kind: KubeletConfiguration\n");
    assert!(join("refused").contains("control groups v1"));
    assert_eq!(bed.hosts.of(WORKER).calls("kubeadm join"), 0);
    map("kind: KubeletConfiguration\nfailCgroupV1: false\n");
    let told = join("allowed");
    assert!(!told.contains("control groups"), "{told}");
}
