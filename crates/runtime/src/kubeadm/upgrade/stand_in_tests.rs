//! Runs upgrade and rollback on "hosts" with the stand-ins of tests/kubeadm.

use crate::kubeadm::stand_in_tests::{Hosts, Namespace};
use crate::kubeadm::tests::{NoFiles, context, host};
use crate::upgrade::{Move, Place, Renewal, Upgrader as _};
use crate::{Action, Runtime as _, certificates::validity::Validity, kubeadm::Kubeadm};
use imgctl_host::agent::{Agent as _, protocol::FileToWrite};
use imgctl_model::context::{ClusterContext, Host, MASTER, NODE};
use imgctl_model::testing::encrypted_state;

pub(super) const OLD: &str = "v1.34.1";
pub(super) const NEW: &str = "v1.35.2";
pub(super) const FIRST: &str = "10.0.0.11";
pub(super) const SECOND: &str = "10.0.0.12";
pub(super) const WORKER: &str = "10.0.0.21";
const BACKUP: &str = "/var/lib/sealos/data/default/backup/u1";

pub(super) fn context_of(version: &str, directory: &std::path::Path) -> ClusterContext {
    let hosts = vec![host(FIRST, MASTER), host(SECOND, MASTER), host(WORKER, NODE)];
    let documents = vec![serde_json::json!({
        "apiVersion": "kubeadm.k8s.io/v1beta4",
        "kind": "ClusterConfiguration",
        "encryptionAlgorithm": "ECDSA-P256",
    })];
    let mut context = context(version, hosts, documents);
    // Without LVScare, because its tool would have to be installed.
    context.images[0].labels.remove("image");
    context.state = encrypted_state(&directory.join("cluster"));
    for name in ["SEALOS_SYS_CRI_ENDPOINT", "SEALOS_SYS_IMAGE_ENDPOINT"] {
        let socket = "/run/containerd/containerd.sock".to_owned();
        context.flag_environment.insert(name.to_owned(), socket);
    }
    context
}

pub(super) fn tree(version: &str) -> String {
    format!("/var/lib/sealos/data/default/rootfs.{version}")
}

pub(super) fn step<'a>(
    from: &'a ClusterContext,
    to: &'a ClusterContext,
    host: &'a Host,
    version: &str,
) -> Move<'a> {
    Move {
        from,
        to,
        host,
        tree: tree(version),
        place: match host.ip() {
            FIRST => Place::First,
            SECOND => Place::ControlPlane,
            _ => Place::Worker,
        },
        id: if version == OLD { "u1-back-0" } else { "u1" },
        renewal: Renewal::Auto,
        external_etcd: false,
        keeps_corefile: false,
        back: version == OLD,
    }
}

/// Creates image trees with the programs of two versions, and installs and starts the older ones.
fn install(host: &Namespace) {
    let line = format!(
        "for version in {OLD} {NEW}; do\n\
         tree=/var/lib/sealos/data/default/rootfs.$version; mkdir -p $tree/bin\n\
         for program in kubeadm kubectl; do sed \"s/{OLD}/$version/\" /mnt/bin/$program >$tree/bin/$program; echo \"# $version\" >>$tree/bin/$program; chmod +x $tree/bin/$program; done\n\
         (cat /bin/sleep; printf '\\n%s\\n' $version) >$tree/bin/kubelet; chmod +x $tree/bin/kubelet\n\
         done\n\
         ln -sfn rootfs.{OLD} /var/lib/sealos/data/default/rootfs\n\
         cp /var/lib/sealos/data/default/rootfs/bin/* /mnt/bin/\n\
         mkdir -p /var/lib/kubelet; echo '# of {OLD}' >/var/lib/kubelet/config.yaml\n\
         systemctl start kubelet"
    );
    shell(host, &line);
}

fn switch(host: &Namespace, version: &str) {
    let line = format!("ln -sfn rootfs.{version} /var/lib/sealos/data/default/rootfs");
    shell(host, &line);
}

pub(super) fn shell(host: &Namespace, line: &str) {
    let done = host.shell(line, &[], b"");
    assert!(done.status.success(), "{line}: {done:?}");
}

pub(super) fn text(host: &Namespace, path: &str) -> String {
    let bytes = host.read_file(path, 1 << 20).unwrap();
    String::from_utf8(bytes.unwrap_or_default()).unwrap()
}

pub(super) struct Bed {
    pub(super) hosts: Hosts,
    pub(super) old: ClusterContext,
    pub(super) new: ClusterContext,
}

impl Bed {
    pub(super) fn up(directory: &std::path::Path, kubeadm: &Kubeadm<'_>) -> Self {
        let names = [(FIRST, "CP-1"), (SECOND, "cp-2"), (WORKER, "worker-1")];
        let hosts = Hosts(
            names
                .map(|(ip, name)| std::sync::Arc::new(Namespace::new(ip, name, directory)))
                .to_vec(),
        );
        let bed = Self { hosts, old: context_of(OLD, directory), new: context_of(NEW, directory) };
        let [first, second, _] = [0, 1, 2].map(|at| &bed.old.hosts[at]);
        let init = kubeadm.init(&bed.old, first).unwrap();
        bed.hosts.run(&bed.old, first, "init", &init).unwrap();
        let join = kubeadm.join_control_plane(&bed.old, second).unwrap();
        bed.hosts.run(&bed.old, second, "join", &join).unwrap();
        // State that `kubeadm join` leaves on a worker, without the load balancer.
        let line = "mkdir -p /etc/kubernetes; echo conf >/etc/kubernetes/kubelet.conf; stand-in-api ask join worker-1 10.0.0.21 worker";
        assert!(bed.hosts.of(WORKER).shell(line, &[], b"").status.success());
        for host in &bed.old.hosts {
            install(bed.hosts.of(host.ip()));
        }
        bed
    }

    fn run(&self, context: &ClusterContext, host: &Host, key: &str, actions: &[Action]) {
        let key = format!("{key}-{}", host.ip());
        self.hosts
            .run(context, host, &key, actions)
            .unwrap_or_else(|error| panic!("{key}: {:?}", error.chain()));
    }
}

#[test]
fn a_kubelet_that_does_not_take_the_present_settings_is_told_before() {
    let directory = tempfile::tempdir().unwrap();
    let kubeadm = Kubeadm::new(&NoFiles, Validity::sealos());
    let bed = Bed::up(directory.path(), &kubeadm);
    let host = bed.new.hosts.iter().find(|one| one.ip() == WORKER).unwrap();
    let step = step(&bed.old, &bed.new, host, NEW);
    let says = |what: &str| {
        let line = format!(
            "printf '#!/bin/sh\\necho \"%s\" >&2; exit 1\\n' '{what}' >{}/bin/kubelet",
            tree(NEW)
        );
        shell(bed.hosts.of(WORKER), &line);
        bed.hosts.run(&bed.new, host, &what.replace(' ', "-"), &kubeadm.pull(&step).unwrap())
    };
    let error = says("unknown flag: --gone").unwrap_err();
    assert!(format!("{:?}", error.chain()).contains("unknown flag: --gone"), "{:?}", error.chain());
    says("unable to load kubeconfig: stat /x/none: no such file").unwrap();
    says("something else").unwrap();
}

#[test]
fn a_flag_that_the_new_api_server_does_not_know_is_told_before_anything_stops() {
    let directory = tempfile::tempdir().unwrap();
    let kubeadm = Kubeadm::new(&NoFiles, Validity::default());
    let bed = Bed::up(directory.path(), &kubeadm);
    let step = step(&bed.old, &bed.new, &bed.new.hosts[0], NEW);
    let folder = format!("{}/patches", tree(NEW));
    let shell = |line: &str| shell(bed.hosts.of(FIRST), line);
    shell(&format!(
        "mkdir {folder}; echo '[{{\"op\":\"add\",\"path\":\"/spec/containers/0/command/-\",\"value\":\"--unknown-flag=1\"}}]' >{folder}/kube-apiserver0+json.json"
    ));
    let pull = kubeadm.pull(&step).unwrap();
    let error = bed.hosts.run(&bed.new, step.host, "bad", &pull);
    let told = format!("{:?}", error.unwrap_err().chain());
    for words in ["unknown flag: --unknown-flag", "nothing was stopped"] {
        assert!(told.contains(words), "{told}");
    }
    shell(&format!("rm -r {folder}"));
    bed.run(&bed.new, step.host, "good", &pull);
    let first = bed.hosts.of(FIRST);
    assert_eq!(first.calls("systemctl stop"), 0);
    let tried =
        "ctr -n k8s.io run --rm registry.k8s.io/kube-scheduler:v1.35.2 imgctl-try-kube-scheduler-";
    assert_eq!(first.calls(tried), 2);
    assert_eq!(first.calls("tasks kill"), 6, "nothing that was tried stays");
    // Rollback takes everything from the backup and renders nothing from the configuration.
    let back = step_back(&bed.new, &bed.old, &bed.old.hosts[0]);
    bed.run(&bed.old, back.host, "back", &kubeadm.pull(&back).unwrap());
    assert_eq!(first.calls("ctr -n k8s.io run"), 6);
}

#[test]
fn a_gate_does_not_wait_for_what_ends_again_and_again() {
    let directory = tempfile::tempdir().unwrap();
    let kubeadm = Kubeadm::new(&NoFiles, Validity::default());
    let bed = Bed::up(directory.path(), &kubeadm);
    let host = bed.new.hosts.iter().find(|one| one.ip() == WORKER).unwrap();
    let step = step(&bed.old, &bed.new, host, NEW);
    std::fs::write(bed.hosts.of(WORKER).log.join("crashes"), "0").unwrap();
    let gate = kubeadm.gate(&step).unwrap();
    let error = bed.hosts.run(&bed.new, host, "gate", &gate).unwrap_err();
    let told = error.chain().join("; ");
    for words in [
        "the kubelet of Node worker-1 is v1.34.1 instead of v1.35.2",
        "kubelet keeps crashing (3 times since the gate began)",
        "failed to run: as asked for",
    ] {
        assert!(told.contains(words), "{told}");
    }
}

#[test]
fn hosts_move_and_go_back() {
    let directory = tempfile::tempdir().unwrap();
    let kubeadm = Kubeadm::new(&NoFiles, Validity::sealos());
    let bed = Bed::up(directory.path(), &kubeadm);
    let (old, new, hosts) = (&bed.old, &bed.new, &bed.hosts);
    let there = |host: &'static str| {
        let host = new.hosts.iter().find(|one| one.ip() == host).unwrap();
        step(old, new, host, NEW)
    };
    let config = |ip: &str| text(hosts.of(ip), "/var/lib/kubelet/config.yaml");
    let manifest = |ip: &str| text(hosts.of(ip), "/etc/kubernetes/manifests/kube-apiserver.yaml");
    let before = manifest(FIRST);
    // Server list of the worker's load balancer at the moment when kubeadm or the kubelet stops the
    // server.
    let servers = |of: &Hosts| text(of.of(WORKER), "/var/lib/sealos/data/default/etc/api-servers");
    let all = "10.0.0.11:6443\n10.0.0.12:6443\n";
    let path = "/var/lib/sealos/data/default/etc";
    let line = format!("mkdir -p {path}; printf '{all}' >{path}/api-servers");
    shell(hosts.of(WORKER), &line);

    for ip in [FIRST, SECOND, WORKER] {
        let step = there(ip);
        bed.run(new, step.host, "pull", &kubeadm.pull(&step).unwrap());
        bed.run(new, step.host, "backup", &kubeadm.backup(&step).unwrap());
    }
    assert_eq!(text(hosts.of(FIRST), &format!("{BACKUP}/snapshot.db")), "snapshot\n");
    assert!(hosts.of(FIRST).exists(&format!("{BACKUP}/snapshot.json")));
    assert!(!hosts.of(SECOND).exists(&format!("{BACKUP}/snapshot.db")));
    // An attempt that fails, or saves a useless snapshot, keeps the one that is there.
    for (how, said) in [("snapshot-fails", "failed"), ("snapshot-is-empty", "unusable")] {
        std::fs::write(hosts.of(FIRST).log.join(how), "").unwrap();
        let step = there(FIRST);
        let again = kubeadm.backup(&step).unwrap();
        let error = hosts.run(new, step.host, how, &again).unwrap_err();
        assert!(error.chain().join(" ").contains(said), "{how}: {error}");
        shell(hosts.of(FIRST), &format!("cd {BACKUP}; sha256sum --quiet -c snapshot.sha256"));
        assert!(hosts.of(FIRST).exists(&format!("{BACKUP}/snapshot.json")), "{how}");
        std::fs::remove_file(hosts.of(FIRST).log.join(how)).unwrap();
    }
    assert_eq!(hosts.of(WORKER).calls("crictl pull registry.k8s.io/kube-apiserver"), 0);
    assert_eq!(hosts.of(WORKER).calls("crictl pull registry.k8s.io/pause"), 1);

    // The first control plane is the etcd leader; its first `kubeadm upgrade` fails, the second
    // succeeds.
    let step = there(FIRST);
    bed.run(new, step.host, "before", &kubeadm.before(&step).unwrap());
    assert_eq!(hosts.of(FIRST).calls(" move-leader "), 1);
    switch(hosts.of(FIRST), NEW);
    std::fs::write(hosts.of(FIRST).log.join("fail-upgrade"), "").unwrap();
    let apply = kubeadm.apply(&step).unwrap();
    let error = hosts.run(new, step.host, "a1", &apply).unwrap_err();
    assert!(error.to_string().contains("as asked for: upgrade"), "{error}");
    // A load balancer of an earlier imgctl version reads only the lines without `#`.
    assert_eq!(servers(hosts), "#out 10.0.0.11:6443 900\n10.0.0.12:6443\n");
    the_api_is_away(&bed, &kubeadm, &step);
    // Another backup does not overwrite the original state.
    bed.run(new, step.host, "b2", &kubeadm.backup(&step).unwrap());
    assert!(text(hosts.of(FIRST), &format!("{BACKUP}/files/mnt/bin/kubectl")).contains(OLD));
    // The API server of the second is away for longer than kubeadm waits.
    let away = "error execution phase control-plane: Get \"https://…\": context deadline exceeded";
    std::fs::write(hosts.of(SECOND).log.join("fail-upgrade"), away).unwrap();
    for ip in [FIRST, SECOND, WORKER] {
        let step = there(ip);
        switch(hosts.of(ip), NEW);
        bed.run(new, step.host, "before", &kubeadm.before(&step).unwrap());
        bed.run(new, step.host, "apply", &kubeadm.apply(&step).unwrap());
        bed.run(new, step.host, "gate", &kubeadm.gate(&step).unwrap());
        assert_eq!(servers(hosts).contains(&format!("#out {ip}:")), ip != WORKER);
        let back = kubeadm.back_in_service(&step).unwrap();
        bed.run(new, step.host, "back-in-service", &back);
        assert_eq!(servers(hosts), all);
        assert_eq!(config(ip), format!("# of {NEW}\n"));
    }
    let renewal = "--ignore-preflight-errors=SystemVerification --certificate-renewal=false";
    assert_eq!(
        hosts.of(FIRST).calls(&format!("kubeadm upgrade apply {NEW} --yes {renewal}")),
        2,
        "certificates of a hundred years stay"
    );
    assert_eq!(hosts.of(SECOND).calls(&format!("kubeadm upgrade node {renewal}")), 2);
    let step = there(FIRST);
    worker_is_away(&hosts.of(FIRST).log);
    bed.run(new, step.host, "finish", &kubeadm.finish(&step).unwrap());
    let pods = std::fs::read_to_string(hosts.of(FIRST).log.join("proxy-pods")).unwrap();
    assert_eq!(
        pods,
        "new-cp-1|cp-1|2||True\nnew-cp-2|cp-2|2||True\np-3|worker-1|1|2026-01-01T00:00:00Z|False\n"
    );

    // Another run changes nothing.
    let starts = hosts.of(WORKER).calls("systemctl start kubelet");
    for ip in [FIRST, SECOND, WORKER] {
        let step = there(ip);
        bed.run(new, step.host, "again", &kubeadm.apply(&step).unwrap());
        let back = kubeadm.back_in_service(&step).unwrap();
        bed.run(new, step.host, "again-in-service", &back);
    }
    assert_eq!(hosts.of(SECOND).calls("kubeadm upgrade node --ignore"), 2);
    assert_eq!(hosts.of(WORKER).calls("systemctl start kubelet"), starts);

    // A kubelet that does not start is an error; rollback works from that state.
    std::fs::write(hosts.of(WORKER).log.join("fail-kubelet"), "").unwrap();
    for (round, ip) in [WORKER, WORKER, SECOND, FIRST, FIRST].into_iter().enumerate() {
        let host = old.hosts.iter().find(|one| one.ip() == ip).unwrap();
        let step = step_back(new, old, host);
        switch(hosts.of(ip), OLD);
        let key = format!("restore-{round}-{ip}");
        let restored = hosts.run(old, host, &key, &kubeadm.restore(&step).unwrap());
        if round == 0 {
            let error = restored.unwrap_err();
            assert!(error.to_string().contains("as asked for: kubelet"), "{error}");
            continue;
        }
        restored.unwrap_or_else(|error| panic!("{key}: {:?}", error.chain()));
        bed.run(old, host, "back", &kubeadm.gate(&step).unwrap());
        assert_eq!(servers(hosts).contains(&format!("#out {ip}:")), ip != WORKER);
        let back = kubeadm.back_in_service(&step).unwrap();
        bed.run(old, host, "back-in-service", &back);
        assert_eq!(servers(hosts), all);
        assert_eq!(config(ip), format!("# of {OLD}\n"));
    }
    assert_eq!(manifest(FIRST), before);
    assert!(text_of_config(hosts).contains(&format!("kubernetesVersion: {OLD}\n")));
    let stops = hosts.of(FIRST).calls("systemctl stop kubelet");
    assert_eq!(stops, 2, "once there and once back");

    untouched(&bed, &kubeadm);
    to_the_snapshot(&bed, &kubeadm);
}

/// A host that was unreachable during the upgrade has no backup and needs none. A host that lost its
/// backup does.
fn untouched(bed: &Bed, kubeadm: &Kubeadm<'_>) {
    let (old, hosts) = (&bed.old, &bed.hosts);
    let host = old.hosts.iter().find(|one| one.ip() == WORKER).unwrap();
    let step = step_back(&bed.new, old, host);
    let shell = |line: &str| shell(hosts.of(WORKER), line);
    let stops = hosts.of(WORKER).calls("systemctl stop kubelet");
    let restore = |key: &str| hosts.run(old, host, key, &kubeadm.restore(&step).unwrap());
    shell(&format!("mv {BACKUP} /mnt/kept"));
    restore("untouched").unwrap();
    shell(
        "cp -p /mnt/bin/kubelet /mnt/kubelet; echo newer >/mnt/bin/new; cat /mnt/kubelet /mnt/bin/new >/mnt/bin/kubelet.new; chmod +x /mnt/bin/kubelet.new; mv /mnt/bin/kubelet.new /mnt/bin/kubelet",
    );
    let error = restore("lost").unwrap_err().to_string();
    assert!(error.contains("the backup is gone"), "{error}");
    shell(&format!("mv /mnt/kubelet /mnt/bin/kubelet; rm -rf {BACKUP}; mv /mnt/kept {BACKUP}"));
    assert_eq!(hosts.of(WORKER).calls("systemctl stop kubelet"), stops);
}

/// kubeadm restarts the API server. A resumed run that finds kubeadm started does not query the
/// API; a new run waits for the API.
fn the_api_is_away(bed: &Bed, kubeadm: &Kubeadm<'_>, step: &Move<'_>) {
    let upgrade = |key: &str| {
        let mut actions = kubeadm.apply(step).unwrap();
        actions.retain(|one| one.name == "kubeadm-upgrade");
        bed.hosts.run(&bed.new, step.host, key, &actions)
    };
    let log = &bed.hosts.of(FIRST).log;
    let (asked, away) = (|| bed.hosts.of(FIRST).calls("get nodes"), log.join("api-away"));
    let before = asked();
    std::fs::write(&away, "100").unwrap();
    let error = upgrade("a1").unwrap_err();
    // The same outcome as before.
    assert!(error.to_string().contains("as asked for: upgrade"), "{error}");
    assert_eq!(asked(), before);
    std::fs::write(&away, "1").unwrap();
    upgrade("a2").unwrap();
    assert!(!away.exists());
}

/// kube-proxy was changed while the worker's Node was unreachable: its controller waits for that
/// Pod and replaces no other.
fn worker_is_away(log: &std::path::Path) {
    let image = format!("registry.k8s.io/kube-proxy:{NEW}");
    let proxy = serde_json::json!({
        "metadata": {
            "name": "kube-proxy", "namespace": "kube-system", "generation": 2,
            "annotations": {"deprecated.daemonset.template.generation": "2"},
        },
        "spec": {
            "selector": {"matchLabels": {"k8s-app": "kube-proxy"}},
            "template": {"spec": {"containers": [{"image": image}]}},
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1}},
        },
        "status": {"observedGeneration": 2, "desiredNumberScheduled": 3, "numberAvailable": 2},
    });
    let files = [
        ("proxy.json", proxy.to_string()),
        ("ready-nodes", "cp-1|True\ncp-2|True\nworker-1|Unknown\n".to_owned()),
        (
            "proxy-pods",
            "p-1|cp-1|1||True\np-2|cp-2|1||True\np-3|worker-1|1|2026-01-01T00:00:00Z|False\n"
                .to_owned(),
        ),
    ];
    for (name, text) in files {
        std::fs::write(log.join(name), text).unwrap();
    }
}

fn step_back<'a>(new: &'a ClusterContext, old: &'a ClusterContext, host: &'a Host) -> Move<'a> {
    step(new, old, host, OLD)
}

fn text_of_config(hosts: &Hosts) -> String {
    std::fs::read_to_string(hosts.of(FIRST).log.join("uploaded-config")).unwrap()
}

/// A published etcd 3.6 image cannot restore a snapshot. Both the backup and the check before
/// anything is stopped report that.
#[test]
fn what_restores_a_snapshot_is_looked_for_before_anything_is_stopped() {
    let directory = tempfile::tempdir().unwrap();
    let kubeadm = Kubeadm::new(&NoFiles, Validity::sealos());
    let bed = Bed::up(directory.path(), &kubeadm);
    let on = bed.hosts.of(FIRST);
    std::fs::write(on.log.join("etcd-3.6"), "").unwrap();
    // Hides the tools of the machine that runs the tests.
    let hide = "for file in {/usr/local/bin,/usr/bin,/opt/bin}/etcd{utl,ctl}; do [ ! -e $file ] || mount --bind /dev/null $file; done";
    assert!(on.shell(hide, &[], b"").status.success());
    let host = &bed.new.hosts[0];
    let there = step(&bed.old, &bed.new, host, NEW);
    for host in &bed.new.hosts[..2] {
        let step = step(&bed.old, &bed.new, host, NEW);
        bed.run(&bed.new, host, "backup", &kubeadm.backup(&step).unwrap());
    }
    let told = text(on, &format!("{BACKUP}/snapshot.json"));
    assert!(told.contains(r#""totalSize":1056"#), "{told}");
    let tools = |key: &str| {
        let mut actions = kubeadm.backup(&there).unwrap();
        actions.retain(|one| one.name == "backup-etcd-tools");
        bed.hosts.told(&bed.new, host, key, &actions)
    };
    let said = tools("t1");
    assert!(said.contains("warning: nothing on this host restores"), "{said}");

    let back = step_back(&bed.new, &bed.old, &bed.old.hosts[0]);
    let snapshot = format!("{BACKUP}/snapshot.db");
    let check = |key: &str| {
        let actions = kubeadm.before_snapshot(&back, &snapshot).unwrap();
        bed.hosts.run(&bed.old, back.host, key, &actions)
    };
    let error = check("c1").unwrap_err();
    assert!(error.to_string().contains("put etcdutl of the version of etcd"), "{error}");
    assert!(on.exists("/etc/kubernetes/manifests/etcd.yaml"));

    // The etcdctl in etcd's container is stored with the backup if it can restore.
    let etcdctl = "#!/bin/bash\n\
        case \"$*\" in *'restore --help') echo --data-dir; exit ;; 'snapshot status'*) test -s \"$3\"; exit ;; esac\n\
        while (($#)); do case $1 in --data-dir) mkdir -p \"$2/member\"; echo new >\"$2/member/db\" ;; esac; shift; done\n";
    on.write_file(&FileToWrite {
        path: "/mnt/image/usr/local/bin/etcdctl".to_owned(),
        mode: 0o755,
        content: etcdctl.into(),
    })
    .unwrap();
    // A process with its own root, like etcd in its container.
    let line = "perl -e 'chroot(\"/mnt/image\") or die; sleep 300' </dev/null >/dev/null 2>&1 & \
        echo $! >\"$STAND_IN_LOG/etcd-pid\"; \
        until [ -e /proc/$!/root/usr/local/bin/etcdctl ]; do kill -0 $!; sleep 0.05; done";
    assert!(on.shell(line, &[], b"").status.success());
    let said = tools("t2");
    assert!(said.contains("etcdctl restores snapshots of etcd"), "{said}");
    assert!(on.shell("kill $(cat \"$STAND_IN_LOG/etcd-pid\")", &[], b"").status.success());
    check("c2").unwrap();
    let phases = kubeadm.restore_snapshot(&back, &snapshot).unwrap();
    for actions in &phases[..2] {
        bed.run(&bed.old, back.host, "restore", actions);
    }
    assert_eq!(text(on, "/var/lib/etcd/member/db"), "new\n");
}

/// The snapshot's cluster members know each other, and the old data is kept.
fn to_the_snapshot(bed: &Bed, kubeadm: &Kubeadm<'_>) {
    let etcdutl = "#!/bin/bash\n\
        case \"$*\" in *--help) echo --data-dir --bump-revision; exit ;; esac\n\
        echo \"0 etcdutl $*\" >>\"$STAND_IN_LOG/calls\"\n\
        while (($#)); do case $1 in --data-dir) mkdir -p \"$2/member\"; echo new >\"$2/member/db\" ;; esac; shift; done\n";
    let masters = &bed.old.hosts[..2];
    for host in masters {
        let on = bed.hosts.of(host.ip());
        on.write_file(&FileToWrite {
            path: format!("{}/bin/etcdutl", tree(OLD)),
            mode: 0o755,
            content: etcdutl.into(),
        })
        .unwrap();
        let line = "mkdir -p /var/lib/etcd/member; echo old >/var/lib/etcd/member/db; echo snapshot >/var/lib/snapshot.db";
        assert!(on.shell(line, &[], b"").status.success());
    }
    for phase in 0..3 {
        for host in masters {
            let step = step_back(&bed.new, &bed.old, host);
            let phases = kubeadm.restore_snapshot(&step, "/var/lib/snapshot.db");
            let actions = &phases.unwrap()[phase];
            bed.run(&bed.old, host, &format!("phase-{phase}"), actions);
            // Runs a second time, as a resumed run might.
            bed.run(&bed.old, host, &format!("again-{phase}"), actions);
            let on = bed.hosts.of(host.ip());
            assert_eq!(on.exists("/etc/kubernetes/manifests/etcd.yaml"), phase == 2);
        }
    }
    let second = bed.hosts.of(SECOND);
    assert_eq!(
        second.calls(
            "etcdutl snapshot restore /var/lib/snapshot.db --name cp-2 \
             --initial-cluster cp-1=https://10.0.0.11:2380,cp-2=https://10.0.0.12:2380 \
             --initial-cluster-token imgctl-u1-back-0 --initial-advertise-peer-urls https://10.0.0.12:2380 \
             --data-dir /var/lib/imgctl-etcd-restore --bump-revision 1000000000 --mark-compacted"
        ),
        1
    );
    assert_eq!(text(second, "/var/lib/etcd/member/db"), "new\n");
    // The restored members have other IDs, so the gate must not wait for the previous ones.
    assert!(!second.exists(&format!("{BACKUP}/etcd-members.json")));
    assert_eq!(text(second, &format!("{BACKUP}/etcd-before/member/db")), "old\n");
}
