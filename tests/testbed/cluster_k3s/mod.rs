//! The k3s example on hosts of the test bed, with a stand-in for k3s itself (`stand-in-k3s`): a life
//! of a cluster with two servers and an agent. The stand-in checks how it is configured and called.
//! The API of the cluster is in memory, in this process; hosts forward connections to it.

mod adopt;
mod apps;
mod renumber;
mod restore;

use std::ffi::OsStr;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::cluster_etcd::support::wait_for;
use crate::common::registry::Registry;
use crate::common::testbed::Bed;
use crate::common::{Ran, needs_root, repository, tool};
use crate::served_api::ServedApi;
use imgctl_kube::testing::stand_in::StandIn;
use serde_json::{Value, json};

const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/imgctl";

fn keyed_command(bed: &Bed, arguments: &[&str]) -> Command {
    let mut command = bed.command(arguments);
    command.arg("--pk").arg(bed.key());
    command
}

/// `imgctl ARGUMENTS --pk …`.
fn keyed(bed: &Bed, arguments: &[&str]) -> Ran {
    Ran::new(keyed_command(bed, arguments))
}

/// The API of the cluster, which servers reach through the bed's network.
struct ClusterApi {
    api: StandIn,
    _served: ServedApi,
}

impl ClusterApi {
    fn start(bed: &Bed, servers: impl IntoIterator<Item = usize>) -> Self {
        let api = StandIn::new();
        let served = ServedApi::start(bed, &api);
        let ServedApi { kubeconfig, address, .. } = &served;
        for host in servers {
            bed.says(
                host,
                &format!(
                    "mkdir -p /root/api; echo {address} >/root/api/address; cat \
                     >/root/api/kubeconfig <<'EOT'\n{kubeconfig}EOT"
                ),
            );
        }
        Self { api, _served: served }
    }

    fn lease(&self) -> Value {
        self.api.peek(LEASE).unwrap()
    }

    /// Commands that have held the Lease, as `kubectl describe` shows them.
    fn verbs(&self) -> Vec<String> {
        let mut verbs: Vec<String> = Vec::new();
        for request in self.api.writes().iter().filter(|one| one.path.contains("/leases")) {
            let held = &request.body["metadata"]["annotations"]["imgctl.io/holder"];
            let held: Value = serde_json::from_str(held.as_str().unwrap()).unwrap();
            let verb = held["verb"].as_str().unwrap().to_owned();
            if !verbs.contains(&verb) {
                verbs.push(verb);
            }
        }
        verbs
    }

    /// Waits until the holder has renewed the Lease.
    fn until_renewed(&self) {
        let before = self.lease()["spec"]["renewTime"].clone();
        let began = Instant::now();
        while self.lease()["spec"]["renewTime"] == before {
            assert!(began.elapsed() < Duration::from_secs(240), "not renewed: {}", self.lease());
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

/// Builds the example with the stand-in as its binary and one small container image inside.
fn build(bed: &Bed) {
    let context = bed.env.path("k3s");
    let example = repository().join("Kubefile.examples/k3s");
    Ran::new(tool("cp", [OsStr::new("-R"), example.as_ref(), context.as_ref()])).ok();
    let mut fetch = tool::<&str>(context.join("fetch").to_str().unwrap(), []);
    fetch.env("K3S_BIN", repository().join("tests/testbed/cluster_k3s/stand-in-k3s"));
    Ran::new(fetch).ok();

    let registry = Registry::start();
    let small = bed.env.context("small", "FROM scratch\nCOPY f /f\n", &[("f", "x")]);
    bed.env.build("localhost/small", &small);
    let store = bed.env.root().join("store");
    let from = format!("oci:{}:localhost/small:latest", store.display());
    let to = format!("docker://{}/test/small:v1", registry.host);
    let copy = ["copy", "-q", "--dest-tls-verify=false", &from, &to];
    Ran::new(tool("skopeo", copy)).ok();
    let mirrors = format!(
        "[[registry]]\nprefix = \"docker.io\"\nlocation = \"{}\"\ninsecure = true\n",
        registry.host
    );
    let mirrors = bed.env.write("registries.conf", mirrors);
    bed.env.write("k3s/images/shim/k3s", "docker.io/test/small:v1\n");
    let mut build = bed.env.command(["build", "-q", "-t", "k3s:v1"]);
    build.arg(&context).env("CONTAINERS_REGISTRIES_CONF", mirrors);
    Ran::new(build).ok();
}

/// What a cluster may leave on a host.
fn surface(bed: &Bed, host: usize) -> String {
    bed.says(
        host,
        "cat /etc/hosts; ls -A /etc/rancher /var/lib/rancher /root/.kube /var/lib/registry \
         /usr/local/bin /etc/systemd/system /etc/systemd/system/multi-user.target.wants \
         /etc/sysctl.d 2>/dev/null; ss -Hltn | awk '{print $4}' | sort; true",
    )
}

/// Who answers on the API's port of a host: the name of a server.
fn api(bed: &Bed, host: usize) -> String {
    let line = "exec 3<>/dev/tcp/127.0.0.1/6443 && echo who >&3 && timeout 3 cat <&3 | tail -n 1";
    bed.exec(host, line).stdout()
}

/// What kubectl on a server was asked, without reading.
fn changes(bed: &Bed, host: usize) -> Vec<String> {
    let line = "cut -f2 /var/log/stand-in-k3s | grep -E '^kubectl (drain|delete)' || true";
    bed.says(host, line).lines().map(str::to_owned).collect()
}

fn nodes(bed: &Bed) -> Vec<String> {
    let text = bed.says(1, "k3s kubectl get nodes | tail -n +2 | cut -d' ' -f1 | sort");
    text.lines().map(str::to_owned).collect()
}

#[test]
fn two_servers_and_an_agent() {
    if !needs_root() {
        return;
    }
    let bed = Bed::up(3).with_agent();
    build(&bed);
    let api = ClusterApi::start(&bed, 1..=2);
    let before: Vec<String> = (1..=3).map(|host| surface(&bed, host)).collect();
    let servers = bed.ips(1..=2);
    let run = ["run", "k3s:v1", "--masters", &servers];

    keyed(&bed, &run).ok();
    assert_eq!(nodes(&bed), ["h1", "h2"]);
    // The embedded registry is served by imgctl, on the first server, with a login.
    let ask = "curl -s -o /dev/null -w '%{http_code}' http://127.0.0.1:5000/v2/";
    assert_eq!(bed.says(1, ask), "401");
    assert!(!bed.exec(2, ask).success());
    let pull = "curl -s -u \"$(sed -n 's/.*username: //p' /etc/rancher/k3s/registries.yaml | tr -d '\"'):$(sed -n \
                's/.*password: //p' /etc/rancher/k3s/registries.yaml | tr -d '\"')\" -o /dev/null -w '%{http_code}' \
                http://sealos.hub:5000/v2/test/small/tags/list";
    assert_eq!(bed.says(2, pull), "200");

    let again = keyed(&bed, &[&run[..], &["--json"]].concat()).ok();
    assert_eq!(again.json()["done"], 0, "{}", again.report());

    on_another_controller(&bed);
    assert_eq!(nodes(&bed), ["h1", "h2", "h3"]);
    assert_eq!(bed.says(3, pull), "200");
    keyed(&bed, &["status"]).ok();
    networkless(&bed);
    balanced(&bed);
    two_controllers(&bed, &api);
    apps::pruned(&bed, &api);
    apps::killed_anywhere(&bed, &api);

    drained(&bed, &api);
    assert_eq!(nodes(&bed), ["h1", "h2"]);
    let asked = changes(&bed, 1);
    assert!(asked[0].starts_with("kubectl delete node h3"), "{asked:?}");
    assert_eq!(surface(&bed, 3), before[2]);

    keyed(&bed, &["reset", "--yes"]).ok();
    for host in 1..=2 {
        assert_eq!(surface(&bed, host), before[host - 1], "h{host}");
    }
    for verb in ["run", "add", "delete", "reset"] {
        assert!(api.verbs().contains(&verb.to_owned()), "{verb}: {:?}", api.verbs());
    }
}

/// A host leaves when its Pods have left: one that nothing recreates stays unless it is forced.
fn drained(bed: &Bed, api: &ClusterApi) {
    const POD: &str = "/api/v1/namespaces/default/pods/alone";
    api.api.add(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "h3"}}));
    api.api.add(json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "alone"},
        "spec": {"nodeName": "h3", "containers": [{"name": "c", "image": "x:1"}]},
        "status": {"phase": "Running"},
    }));
    let host = bed.ip(3);
    let delete = ["delete", "--yes", "--nodes", &host];
    let report = keyed(bed, &delete).report();
    assert!(report.contains("default/alone") && report.contains("accepts Pods again"), "{report}");
    assert_eq!(nodes(bed), ["h1", "h2", "h3"]);
    keyed(bed, &[&delete[..], &["--force-unmanaged"]].concat()).ok();
    assert!(api.api.peek(POD).is_none());
}

/// A command on one controller keeps every command of another one off the cluster, also when the API
/// server that it speaks to goes; killed, it does not keep off its own controller.
fn two_controllers(bed: &Bed, api: &ClusterApi) {
    assert_eq!(api.lease()["spec"]["holderIdentity"], "", "not released");
    let blocks = "CMD [\"touch /root/begun; until test -e /root/go; do sleep 0.1; done\"]";
    let context =
        bed.env.context("slow", &format!("FROM scratch\nCOPY f /f\n{blocks}\n"), &[("f", "x")]);
    bed.env.build("slow:v1", &context);
    let slow = ["run", "slow:v1", "--force", "--no-wait"];
    let mut first = keyed_command(bed, &slow);
    let mut first = first.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    bed.says(1, "until test -e /root/begun; do sleep 0.1; done");

    let clusterfile = bed.env.path("clusters/default/Clusterfile").display().to_string();
    let inplace =
        ["--workload", "deployment/shop/web", "--set", "app=web:v2", "--template", "keep"];
    let commands: [&[&str]; 6] = [
        &["apply", "-f", &clusterfile],
        &["add", "--nodes", "192.0.2.9"],
        &["reset", "--yes"],
        &["uninstall", "app:v1", "--yes"],
        &["upgrade", "k3s:v1", "--yes"],
        &[&["inplace", "apply", "--yes"], &inplace[..]].concat(),
    ];
    let refused = |number: usize, command: &[&str]| {
        // Another controller has the same state at another place.
        let copy = bed.env.path(format!("controller-{number}"));
        let clusters = bed.env.path("clusters");
        Ran::new(tool("cp", [OsStr::new("-R"), clusters.as_ref(), copy.as_ref()])).ok();
        let mut other = keyed_command(bed, command);
        other.env("SEALOS_RUNTIME_ROOT", &copy);
        let report = Ran::new(other).fails(6).report();
        assert!(report.contains("(`imgctl run` since 20"), "{command:?}: {report}");
        std::fs::remove_dir_all(&copy).unwrap();
    };
    std::thread::scope(|scope| {
        for (number, command) in commands.iter().enumerate() {
            let refused = &refused;
            scope.spawn(move || refused(number, command));
        }
    });
    // The API server of the first control plane goes.
    bed.says(1, "systemctl stop k3s");
    api.until_renewed();
    api.until_renewed();
    refused(0, &["delete", "--yes", "--nodes", &bed.ip(3)]);
    bed.says(1, "systemctl start k3s");

    first.kill().unwrap();
    first.wait().unwrap();
    let killed = api.lease();
    assert_ne!(killed["spec"]["holderIdentity"], "");
    bed.says(1, "touch /root/go");
    let began = Instant::now();
    keyed(bed, &slow).ok();
    assert!(began.elapsed() < Duration::from_secs(50), "it waited for itself");
    assert_eq!(api.lease()["spec"]["leaseTransitions"], killed["spec"]["leaseTransitions"]);
    assert_eq!(api.lease()["spec"]["holderIdentity"], "");
}

/// What a controller drew at random is asked of the hosts when it was lost, and never drawn again.
fn on_another_controller(bed: &Bed) {
    const LOGIN: &str = "sha256sum /etc/rancher/k3s/registries.yaml";
    let before: Vec<String> = (1..=2).map(|host| bed.says(host, LOGIN)).collect();
    std::fs::remove_dir_all(bed.env.path("clusters/default/etc")).unwrap();
    let add = ["add", "--nodes", &bed.ip(3)];
    // Where no host tells it, nothing is begun.
    let kept = "/var/lib/sealos/data/default/state/etc";
    for host in 1..=2 {
        bed.says(host, &format!("mv {kept} /root/kept"));
    }
    let refused = keyed(bed, &add).fails(10).report();
    assert!(refused.contains("registryPassword"), "{refused}");
    assert!(!bed.exec(3, "test -e /etc/rancher").success());
    for host in 1..=2 {
        bed.says(host, &format!("mv /root/kept {kept}"));
    }
    keyed(bed, &add).ok();
    let after: Vec<String> = (1..=2).map(|host| bed.says(host, LOGIN)).collect();
    assert_eq!(before, after);
    assert!(bed.env.path("clusters/default/etc/registry_password").exists());
}

/// A Node that lacks a network: a run says so, waits where one is installed or it is told to, and
/// `status` gives the reason.
fn networkless(bed: &Bed) {
    const STATE: &str = "/var/lib/rancher/k3s/stand-in";
    bed.says(1, &format!("echo h3 >{STATE}/ill"));
    let context =
        bed.env.context("app", "FROM scratch\nCOPY f /f\nCMD [\"true\"]\n", &[("f", "x")]);
    bed.env.build("app:v1", &context);
    let run = ["run", "app:v1", "--force"];
    let said = keyed(bed, &run).ok().report();
    assert!(said.contains("(CNI) is installed: h3") && said.contains("network plugin"), "{said}");
    let waited = keyed(bed, &[&run[..], &["--wait=1s"]].concat());
    let report = waited.report();
    assert!(!waited.success() && report.contains("timed out after 1 s"), "{report}");
    keyed(bed, &[&run[..], &["--no-wait"]].concat()).ok();

    let report = keyed(bed, &["status"]).fails(10).report();
    for part in [
        "Node h3 is not Ready: KubeletNotReady: container runtime network not ready",
        "imgctl run IMAGE",
    ] {
        assert!(report.contains(part), "{report}");
    }
    let host = bed.ip(3);
    let line = report.lines().find(|line| line.starts_with(&host)).unwrap();
    assert!(line.contains("ill"), "{report}");
    let status = keyed(bed, &["status", "--json"]).json();
    let node = status["nodes"].as_array().unwrap().iter().find(|node| node["name"] == "h3");
    assert!(node.unwrap()["reason"].as_str().unwrap().contains("cni plugin"), "{status}");

    // A network that is installed comes up.
    let heals = format!("touch {STATE}/network; (sleep 3; rm {STATE}/ill) >/dev/null 2>&1 &");
    bed.says(1, &heals);
    let said = keyed(bed, &run).ok().report();
    assert!(!said.contains("no network plugin (CNI) is installed"), "{said}");
    keyed(bed, &["status"]).ok();
    bed.says(1, &format!("rm {STATE}/network"));
}

/// The agent's way to the API leads to a server that lives.
fn balanced(bed: &Bed) {
    assert!(["h1", "h2"].contains(&api(bed, 3).as_str()));
    bed.says(1, "systemctl stop k3s");
    wait_for("the way to the server that lives", Duration::from_secs(180), || {
        api(bed, 3) == "h2" && api(bed, 3) == "h2"
    });
    let ill = keyed(bed, &["status"]);
    assert!(!ill.success(), "{}", ill.report());
    bed.says(1, "systemctl start k3s");
    keyed(bed, &["status"]).ok();
}
