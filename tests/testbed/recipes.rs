//! A cluster out of a recipe: `imgctl init`, `build`, `run` with real etcd. The publisher's archive is stood in for by one
//! that has the binaries of the example, served here.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use imgctl_base::image::Digest;

use crate::cluster_etcd::support::{build_etcd, etcdctl, members, run};
use crate::common::proxy::{Fault, Proxy};
use crate::common::testbed::Bed;
use crate::common::{Ran, needs_root, repository, tool};

#[test]
fn a_recipe_becomes_a_cluster_that_answers() {
    if !needs_root() {
        return;
    }
    let bed = Bed::up(3);
    // Puts the binaries in place.
    if !build_etcd(&bed) {
        return;
    }
    let folder = bed.env.path("site");
    let place = folder.to_str().unwrap();
    bed.env.imgctl(["init", place, "--recipe", "etcd", "--name", "site"]).ok();

    let binaries = repository().join("Kubefile.examples/etcd/bin");
    let packed = bed.env.path("etcd.tgz");
    let tar = [
        "--transform=s,^bin,etcd-x,",
        "-C",
        binaries.parent().unwrap().to_str().unwrap(),
        "-czf",
        packed.to_str().unwrap(),
        "bin",
    ];
    Ran::new(tool("tar", tar)).ok();
    let body = fs::read(packed).unwrap();
    let server = Proxy::alone("127.0.0.1");
    let kubefile = fs::read_to_string(folder.join("Kubefile")).unwrap();
    let sum = Digest::of(&body).to_string();
    let lines = kubefile.lines().filter(|line| !line.contains("-arm64")).map(|line| {
        let words = line.split(' ').map(|word| {
            if word.starts_with("--checksum=") {
                format!("--checksum={sum}")
            } else if word.starts_with("https://") {
                format!("http://{}/etcd.tgz", server.host)
            } else if word.contains("etcdutl") && !binaries.join("etcdutl").exists() {
                String::new()
            } else {
                word.to_owned()
            }
        });
        words.collect::<Vec<_>>().join(" ")
    });
    let standing: Vec<String> = lines.collect();
    fs::write(folder.join("Kubefile"), standing.join("\n") + "\n").unwrap();
    server.on("GET", "/etcd.tgz", Fault::answer("200 OK", &[], body));
    bed.env.build("site:v1", &folder);

    let (first, three) = (bed.ip(1), bed.ips(1..=3));
    run(&bed, &["run", "site:v1", "--cluster", "site", "--masters", &three]).ok();
    assert_eq!(members(&bed, 1), ["h1", "h2", "h3"]);
    etcdctl(&bed, 1, "put made by-a-recipe");
    assert_eq!(etcdctl(&bed, 3, "get made --print-value-only"), "by-a-recipe");
    let status = run(&bed, &["status", "-c", "site"]).ok();
    assert!(status.stdout().contains(&first), "{}", status.report());
    bed.imgctl(["reset", "-c", "site", "--yes"]).ok();
}

/// Programs that say in a file how they were called.
const RECORDS: &str = "#!/bin/sh\necho \"$(basename \"$0\") $*\" >>/var/log/calls\n";

/// Puts stand-ins for Kubernetes into a mirror (a directory), and their checksums into the Kubefile. Gives the mirror.
pub(crate) fn stand_in(bed: &Bed, folder: &Path) -> PathBuf {
    let mirror = bed.env.path("mirror");
    let stand_ins = repository().join("tests/kubeadm/stand-ins");
    let read = |name: &str| fs::read(stand_ins.join(name)).unwrap();
    let archive = |files: &[(&str, Vec<u8>)]| {
        let place = bed.env.path("archive");
        let _ = fs::remove_dir_all(&place);
        for (name, bytes) in files {
            let file = bed.env.write(Path::new("archive").join(name), bytes);
            fs::set_permissions(file, fs::Permissions::from_mode(0o755)).unwrap();
        }
        let packed = bed.env.path("archive.tgz");
        let words = ["-C", place.to_str().unwrap(), "-czf", packed.to_str().unwrap(), "."];
        Ran::new(tool("tar", words)).ok();
        fs::read(packed).unwrap()
    };
    let recorded = || RECORDS.as_bytes().to_vec();
    let kubefile = fs::read_to_string(folder.join("Kubefile")).unwrap();
    let mut lines = Vec::new();
    for line in kubefile.lines() {
        let Some(url) = line.split(' ').find(|word| word.starts_with("https://")) else {
            lines.push(line.to_owned());
            continue;
        };
        let body = match url {
            _ if url.contains("/containerd/") => archive(&[
                ("bin/containerd", read("containerd")),
                ("bin/containerd-shim-runc-v2", read("containerd-shim-runc-v2")),
                ("bin/ctr", read("ctr")),
            ]),
            _ if url.contains("/etcd/") => {
                archive(&[("etcd-x/etcdctl", recorded()), ("etcd-x/etcdutl", recorded())])
            }
            _ if url.contains("crictl") => archive(&[("crictl", recorded())]),
            _ if url.contains("cni-plugins") => archive(&[("bridge", recorded())]),
            _ if url.contains("helm") => archive(&[("linux-x/helm", recorded())]),
            _ if url.ends_with("/kubelet") => b"#!/bin/sh\nexec sleep infinity\n".to_vec(),
            _ => recorded(),
        };
        let sum = Digest::of(&body).to_string();
        bed.env.write(mirror.join(url.strip_prefix("https://").unwrap()), body);
        let (before, after) = line.split_once("--checksum=").unwrap();
        let (_, after) = after.split_once(' ').unwrap();
        lines.push(format!("{before}--checksum={sum} {after}"));
    }
    // Scripts do all that is done: kubeadm itself is not here.
    let text = lines.join("\n") + "\n";
    let (from, to) = (
        "distribution=\"kubernetes\"",
        "distribution=\"script\" join=\"init.sh\" upgrade=\"init.sh\"",
    );
    assert!(text.contains(from), "{text}");
    fs::write(folder.join("Kubefile"), text.replace(from, to)).unwrap();
    mirror
}

#[test]
fn hosts_of_the_kubernetes_recipe_are_prepared_used_and_cleaned() {
    if !needs_root() {
        return;
    }
    let bed = Bed::up(2);
    let folder = bed.env.path("kube");
    let place = folder.to_str().unwrap();
    let chart = repository().join("Kubefile.examples/app-helm/charts/hello");
    let chart = chart.to_str().unwrap();
    let arch = if cfg!(target_arch = "x86_64") { "amd64" } else { "arm64" };
    bed.env.imgctl(["init", place, "--chart", chart, "--arch", arch, "--name", "kube"]).ok();
    let mirror = format!("https://={}", stand_in(&bed, &folder).display());
    let build = ["build", "-q", "--save-image=false", "--mirror", &mirror, "-t", "kube:v1", place];
    bed.env.imgctl(build).ok();

    let hosts = bed.ips(1..=2);
    run(&bed, &["run", "kube:v1", "--cluster", "kube", "--masters", &hosts]).ok();
    for host in 1..=2 {
        assert_eq!(bed.says(host, "systemctl is-active containerd"), "active");
        assert_eq!(bed.says(host, "systemctl is-enabled kubelet"), "enabled");
        let config = bed.says(host, "cat /etc/containerd/config.toml");
        assert!(config.contains("sandbox = \"sealos.hub:5000/pause:3.10.2\""), "{config}");
        bed.says(host, "test -x /opt/cni/bin/bridge -a -x /usr/local/bin/runc -a -x /usr/bin/helm");
        bed.says(host, "test -e /etc/containerd/certs.d/_default/hosts.toml");
    }
    let calls = bed.says(1, "grep -v '^kubeadm' /var/log/calls");
    let lines: Vec<&str> = calls.lines().collect();
    assert_eq!(lines.first(), Some(&"kubectl apply -f manifests/flannel"), "{calls}");
    assert!(
        lines.last().unwrap().starts_with("helm upgrade --install hello charts/hello"),
        "{calls}"
    );
    assert_eq!(bed.says(2, "grep -c -e kubectl -e helm /var/log/calls || true"), "0");
    // What templates became is what was applied.
    let rendered = "cat /var/lib/sealos/data/kube/rootfs/manifests/local-path/provisioner.yaml";
    assert!(bed.says(1, rendered).contains("[\"/var/lib/local-path\"]"));

    bed.imgctl(["reset", "-c", "kube", "--yes"]).ok();
    for host in 1..=2 {
        let left = bed.says(
            host,
            "ls -d /etc/containerd /etc/kubernetes /opt/cni /usr/bin/kube* /usr/bin/helm /usr/local/bin/containerd \
             /etc/systemd/system/containerd.service /etc/systemd/system/kubelet.service 2>/dev/null; true",
        );
        assert_eq!(left, "", "{left}");
    }
}
