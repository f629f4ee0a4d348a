//! A cluster is saved and restored on other "hosts" with the stand-ins of tests/kubeadm: no etcd and no
//! Kubernetes runs, but what kubeadm and etcdutl are given is checked.

use std::sync::Arc;

use super::stand_in_tests::{Bed, FIRST, OLD, context_of, text};
use crate::kubeadm::stand_in_tests::{Hosts, Namespace};
use crate::kubeadm::tests::{NoFiles, host};
use crate::upgrade::{Move, Place, Renewal, Restoration, Upgrader as _};
use crate::{Action, Runtime as _, certificates::validity::Validity, kubeadm::Kubeadm};
use imgctl_host::agent::{Agent as _, protocol::FileToWrite};
use imgctl_model::backup::{pack_controller, unpack_controller};
use imgctl_model::context::{Host, MASTER};
use imgctl_model::state_files::StateFiles;

const NEW_FIRST: &str = "10.0.1.11";
const NEW_SECOND: &str = "10.0.1.12";
const ETCDUTL: &str = "#!/bin/bash\n\
    case \"$*\" in *--help) echo --data-dir --bump-revision; exit ;; esac\n\
    echo \"0 etcdutl $*\" >>\"$STAND_IN_LOG/calls\"\n\
    snapshot=$3\n\
    while (($#)); do case $1 in --data-dir) mkdir -p \"$2/member\"; cp \"$snapshot\" \"$2/member/db\" ;; esac; shift; done\n";

fn step<'a>(
    context: &'a imgctl_model::context::ClusterContext,
    host: &'a Host,
    id: &'a str,
    back: bool,
) -> Move<'a> {
    Move {
        from: context,
        to: context,
        host,
        tree: context.paths.rootfs(),
        place: Place::First,
        id,
        renewal: Renewal::default(),
        external_etcd: false,
        keeps_corefile: false,
        back,
    }
}

/// A file that the API server names and kubeadm does not copy.
const KEY: &str = "/etc/kubernetes/enc/keys.yaml";

fn put(on: &Namespace, path: &str, mode: u32, content: &str) {
    let file = FileToWrite { path: path.to_owned(), mode, content: content.into() };
    on.write_file(&file).unwrap();
}

/// Has the API server's manifest name the file, and files that every control plane has of its own.
fn name_key(on: &Namespace) {
    let line = format!(
        "printf '%s\\n' '    - --encryption-provider-config={KEY}' '    - --tls-cert-file=/etc/kubernetes/pki/apiserver.crt' \
         '    - --kubeconfig=/etc/kubernetes/scheduler.conf' '    - --missing=/etc/kubernetes/none' >>/etc/kubernetes/manifests/kube-apiserver.yaml"
    );
    on.shell(&line, &[], b"");
}

#[test]
fn a_cluster_comes_back_under_other_addresses() {
    let directory = tempfile::tempdir().unwrap();
    let kubeadm = Kubeadm::new(&NoFiles, Validity::sealos());
    let bed = Bed::up(directory.path(), &kubeadm);
    let saving = step(&bed.old, &bed.old.hosts[0], "saved-x", false);
    name_key(bed.hosts.of(FIRST));
    put(bed.hosts.of(FIRST), KEY, 0o600, "the key of etcd");
    let saved = kubeadm.save(&saving).unwrap();
    bed.hosts.run(&bed.old, &bed.old.hosts[0], "save", &saved).unwrap();
    let folder = saving.backup();
    let on = bed.hosts.of(FIRST);
    assert_eq!(text(on, &format!("{folder}/snapshot.db")), "snapshot\n");
    for there in ["files/etc/kubernetes/pki/ca.key", "cluster/configmap-kubeadm-config.json"] {
        assert!(on.exists(&format!("{folder}/{there}")), "{there}");
    }
    assert_eq!(text(on, &format!("{folder}/files{KEY}")), "the key of etcd");
    assert_eq!(text(on, &format!("{folder}/files/imgctl-local-files")), format!("{KEY}\n"));
    assert!(!on.exists(&format!("{folder}/files/usr")), "programs are in the image");

    // Another controller, with the keys of the backup; other hosts.
    let keys = pack_controller(&bed.old.state).unwrap();
    let mut context = context_of(OLD, directory.path());
    context.state = StateFiles::plain(directory.path().join("elsewhere"));
    unpack_controller(&keys, &context.state).unwrap();
    context.hosts = vec![host(NEW_FIRST, MASTER), host(NEW_SECOND, MASTER)];
    let hosts = Hosts(
        [(NEW_FIRST, "new-1"), (NEW_SECOND, "cp-2")]
            .map(|(ip, name)| Arc::new(Namespace::new(ip, name, directory.path())))
            .to_vec(),
    );
    let first = &context.hosts[0];
    let restoring = step(&context, first, "restore-x", true);
    let folder = restoring.backup();
    let on = hosts.of(NEW_FIRST);
    // What was changed in the cluster itself; the runtime's own values are those of the new host.
    let by_hand =
        "kind: KubeletConfiguration\nmaxPods: 77\nfailCgroupV1: false\ncgroupDriver: cgroupfs\n";
    let by_hand = serde_json::json!({"data": {"kubelet": by_hand}}).to_string();
    for (path, mode, content) in [
        (format!("{folder}/snapshot.db"), 0o600, "the data\n"),
        (format!("{folder}/bin/etcdutl"), 0o700, ETCDUTL),
        (format!("{folder}/files{KEY}"), 0o600, "the key of etcd"),
        (format!("{folder}/files/imgctl-local-files"), 0o600, &format!("{KEY}\n")),
        (format!("{folder}/cluster/configmap-kubelet-config.json"), 0o600, &by_hand),
    ] {
        put(on, &path, mode, content);
    }
    let actions = |folder: &str| -> Vec<Action> {
        match kubeadm.restore_cluster(&restoring, folder).unwrap() {
            Restoration::First(actions) => actions,
            Restoration::Together(_) => panic!("the first control plane comes alone"),
        }
    };
    let restore = actions(&folder);
    // The data of another etcd is not touched.
    let foreign = FileToWrite {
        path: "/var/lib/etcd/member/db".to_owned(),
        mode: 0o600,
        content: b"foreign".to_vec(),
    };
    on.write_file(&foreign).unwrap();
    let error = hosts.run(&context, first, "foreign", &restore).unwrap_err();
    assert!(format!("{:?}", error.chain()).contains("another etcd"), "{error}");
    assert_eq!(text(on, "/var/lib/etcd/member/db"), "foreign");
    on.remove(&["/var/lib/etcd".to_owned()]).unwrap();

    // kubeadm fails halfway; the next run goes on.
    std::fs::write(on.log.join("fail-init"), "").unwrap();
    hosts.run(&context, first, "one", &restore).unwrap_err();
    hosts.run(&context, first, "two", &restore).unwrap();
    hosts.run(&context, first, "three", &restore).unwrap();
    assert_eq!(on.calls("kubeadm init "), 2);
    let called = format!(
        "etcdutl snapshot restore {folder}/snapshot.db --name new-1 \
         --initial-cluster new-1=https://{NEW_FIRST}:2380 --initial-cluster-token imgctl-restore-x \
         --initial-advertise-peer-urls https://{NEW_FIRST}:2380 \
         --data-dir /var/lib/imgctl-etcd-restore --bump-revision 1000000000 --mark-compacted"
    );
    assert_eq!(on.calls(&called), 1);
    assert_eq!(text(on, "/var/lib/etcd/member/db"), "the data\n");
    assert_eq!(text(on, KEY), "the key of etcd");
    let given = text(on, &format!("{}/kubeadm-init.yaml", context.paths.etc()));
    for part in [
        "skipPhases:\n- addon\n",
        "maxPods: 77\n",
        "failCgroupV1: false\n",
        "cgroupDriver: systemd\n",
    ] {
        assert!(given.contains(part), "{part}: {given}");
    }
    // The stand-in API has the former Nodes, and accepts no other authority than theirs.
    let nodes = on.shell("stand-in-api ask addresses", &[], b"").stdout;
    assert_eq!(String::from_utf8(nodes).unwrap().trim(), format!("new-1|{NEW_FIRST} new-1"));
    assert_eq!(on.calls("kubectl --kubeconfig /etc/kubernetes/admin.conf delete pods -A"), 3);
    // The snapshot has the Lease of the backup itself, whose holder is gone.
    let freed =
        "kubectl --kubeconfig /etc/kubernetes/admin.conf delete lease imgctl -n kube-system";
    assert!(on.calls(freed) > 0);
    // A host with the name of a former one joins.
    name_key(on);
    let second = &context.hosts[1];
    let join = kubeadm.join_control_plane(&context, second).unwrap();
    hosts.run(&context, second, "join", &join).unwrap();
    assert_eq!(text(hosts.of(NEW_SECOND), KEY), "the key of etcd");
    assert!(
        std::fs::read_to_string(context.state.path("etc/admin.conf")).is_ok(),
        "the controller has a kubeconfig of its own"
    );
}
