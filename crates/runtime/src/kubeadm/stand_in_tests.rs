//! Runs the actions on "hosts" with the stand-ins of tests/kubeadm. Each host is a mount namespace
//! with its own /etc and /var. The agent is a fake that runs lines with nsenter.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::{collections::BTreeMap, io::Write as _};

use super::*;
use crate::kubeadm::tests::{context, host};
use crate::{HostPool, action::Site, nodes};
use imgctl_base::image::{Descriptor, Digest};
use imgctl_host::agent::protocol::{
    CheckedOut, Checkout, Facts, FileToWrite, HostsBlock, Inventory, InventoryQuestion, Outcome,
    OutputLine, PeerSource, Run,
};
use imgctl_host::agent::{Agent, BlobOpener};
use imgctl_model::context::{MASTER, NODE};
use imgctl_model::state_files::StateFiles;

pub(in crate::kubeadm) struct Namespace {
    ip: String,
    /// Further addresses.
    pub(in crate::kubeadm) also: Mutex<Vec<String>>,
    hostname: String,
    holder: Child,
    state: PathBuf,
    pub(in crate::kubeadm) log: PathBuf,
    blocks: Mutex<BTreeMap<String, Vec<(String, String)>>>,
    outcomes: Mutex<BTreeMap<String, (Outcome, Vec<OutputLine>)>>,
}

impl Namespace {
    pub(in crate::kubeadm) fn new(ip: &str, hostname: &str, directory: &Path) -> Self {
        let log = directory.join(ip);
        std::fs::create_dir_all(&log).unwrap();
        let mut holder = Command::new("unshare")
            .args(["--user", "--map-root-user", "--mount", "bash", "-ec"])
            .arg(
                "mount -t tmpfs none /mnt; mkdir -p /mnt/etc /mnt/var/lib /mnt/home; \
                 cp /etc/passwd /etc/group /mnt/etc/; cp -dR /etc/alternatives /mnt/etc/; mkdir /mnt/etc/ssl; cp /etc/ssl/openssl.cnf /mnt/etc/ssl/ || true; \
                 printf '127.0.0.1 localhost\\n' >/mnt/etc/hosts; cp -a \"$STAND_INS\" /mnt/bin; cp -a \"$STAND_INS\"/../host-stand-ins/. /mnt/bin/; \
                 mount --bind /mnt/etc /etc; mount --bind /mnt/var /var; echo ready; exec sleep 300",
            )
            .env(
                "STAND_INS",
                Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/kubeadm/stand-ins"),
            )
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let output = holder.stdout.take().unwrap();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(output), &mut line).unwrap();
        assert_eq!(line, "ready\n", "no namespaces here");
        Self {
            ip: ip.to_owned(),
            also: Mutex::default(),
            hostname: hostname.to_owned(),
            holder,
            state: directory.join("state"),
            log,
            blocks: Mutex::default(),
            outcomes: Mutex::default(),
        }
    }

    pub(in crate::kubeadm) fn shell(
        &self,
        line: &str,
        arguments: &[&str],
        input: &[u8],
    ) -> std::process::Output {
        self.shell_with(line, arguments, input, &BTreeMap::new())
    }

    fn shell_with(
        &self,
        line: &str,
        arguments: &[&str],
        input: &[u8],
        environment: &BTreeMap<String, String>,
    ) -> std::process::Output {
        let mut child = Command::new("nsenter")
            .args(["-t", &self.holder.id().to_string(), "-U", "-m", "--preserve-credentials"])
            .args(["bash", "-e", "-c", line])
            .args(arguments)
            .env_clear()
            .env("PATH", "/mnt/bin:/usr/sbin:/usr/bin:/sbin:/bin")
            .env("HOME", "/mnt/home")
            .env("STAND_IN_STATE", &self.state)
            .env("STAND_IN_LOG", &self.log)
            .env("STAND_IN_HOSTNAME", &self.hostname)
            .envs(environment)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // A line that does not read its input can exit before the write.
        let _ = child.stdin.take().unwrap().write_all(input);
        child.wait_with_output().unwrap()
    }

    pub(in crate::kubeadm) fn calls(&self, word: &str) -> usize {
        let text = std::fs::read_to_string(self.log.join("calls")).unwrap_or_default();
        text.lines().filter(|line| line.contains(word)).count()
    }

    pub(in crate::kubeadm) fn exists(&self, path: &str) -> bool {
        self.shell("test -e \"$0\"", &[path], b"").status.success()
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        // Processes started by the stand-in for systemctl.
        self.shell(
            "if [ -e /mnt/kubelet.pid ]; then kill \"$(cat /mnt/kubelet.pid)\"; fi",
            &[],
            b"",
        );
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

fn never<T>() -> Result<T> {
    Err(Error::failed("kubeadm has no business with this"))
}

impl Agent for Namespace {
    fn host(&self) -> &str {
        &self.ip
    }

    fn facts(&self) -> Result<Facts> {
        let mut addresses = vec![self.ip.clone()];
        addresses.extend(self.also.lock().unwrap().iter().cloned());
        let hostname = self.hostname.clone();
        let cgroup_v2 = !self.log.join("cgroup-v1").exists();
        Ok(Facts { hostname, cgroup_v2, addresses, ..Facts::default() })
    }

    fn inventory(&self, _: &InventoryQuestion) -> Result<Inventory> {
        never()
    }

    fn send_blob(
        &self,
        _: &Descriptor,
        _: &BlobOpener<'_>,
        _: &(dyn Fn(u64) + Sync),
    ) -> Result<()> {
        never()
    }

    fn offer(&self) -> Result<PeerSource> {
        never()
    }

    fn withdraw(&self) -> Result<()> {
        never()
    }

    fn fetch(
        &self,
        _: &PeerSource,
        _: &[Descriptor],
        _: &(dyn Fn(u64) + Sync),
    ) -> Result<Vec<Digest>> {
        never()
    }

    fn checkout(&self, _: &Checkout, _: &(dyn Fn(u64) + Sync)) -> Result<CheckedOut> {
        never()
    }

    fn run(&self, request: &Run, output: &mut dyn FnMut(OutputLine)) -> Result<Outcome> {
        let known = self.outcomes.lock().unwrap().get(&request.key).cloned();
        if let (Some((outcome, lines)), false) = (known, request.again) {
            lines.into_iter().for_each(output);
            return Ok(Outcome { recalled: true, ..outcome });
        }
        let input = request.input.clone().unwrap_or_default();
        let ended = self.shell_with(&request.line, &[], input.as_bytes(), &request.environment);
        let lines = |bytes: &[u8], error_stream| -> Vec<OutputLine> {
            let text = String::from_utf8_lossy(bytes).into_owned();
            let line = |text: &str| OutputLine { text: text.to_owned(), error_stream };
            text.lines().map(line).collect()
        };
        let mut all = lines(&ended.stdout, false);
        all.extend(lines(&ended.stderr, true));
        let outcome = Outcome {
            code: ended.status.code(),
            reason: None,
            duration_ms: 0,
            recalled: false,
            log: "log".to_owned(),
        };
        let kept = (outcome.clone(), all.clone());
        self.outcomes.lock().unwrap().insert(request.key.clone(), kept);
        all.into_iter().for_each(output);
        Ok(outcome)
    }

    fn cancel(&self, _: &str, _: &str) -> Result<()> {
        never()
    }

    fn write_file(&self, file: &FileToWrite) -> Result<bool> {
        let line = "mkdir -p \"$(dirname \"$0\")\"; umask 077; cat >\"$0.new\"; chmod \"$1\" \"$0.new\"; mv \"$0.new\" \"$0\"";
        let ended = self.shell(line, &[&file.path, &format!("{:o}", file.mode)], &file.content);
        assert!(ended.status.success(), "{ended:?}");
        Ok(true)
    }

    fn file_digest(&self, path: &str) -> Result<Digest> {
        let file = self.read_file(path, 1 << 30)?;
        file.map(|bytes| Digest::of(&bytes)).ok_or_else(|| Error::not_found(path.to_owned()))
    }

    fn read_file(&self, path: &str, _: u64) -> Result<Option<Vec<u8>>> {
        let ended = self.shell("cat \"$0\"", &[path], b"");
        Ok(ended.status.success().then_some(ended.stdout))
    }

    fn remove(&self, paths: &[String]) -> Result<Vec<String>> {
        for path in paths {
            assert!(self.shell("rm -rf \"$0\"", &[path], b"").status.success());
        }
        Ok(Vec::new())
    }

    fn set_hosts(&self, block: &HostsBlock) -> Result<bool> {
        let mut blocks = self.blocks.lock().unwrap();
        blocks.insert(block.cluster.clone(), block.entries.clone());
        let entries = blocks.values().flatten();
        let text: String = entries.map(|(ip, name)| format!("{ip} {name}\n")).collect();
        self.shell("cat >/etc/hosts", &[], text.as_bytes());
        Ok(true)
    }
}

pub(in crate::kubeadm) struct Hosts(pub(in crate::kubeadm) Vec<Arc<Namespace>>);

impl HostPool for Hosts {
    fn agent(&self, host: &Host) -> Result<Arc<dyn Agent>> {
        let has = |one: &Namespace| {
            one.ip == host.ip() || one.also.lock().unwrap().iter().any(|also| also == host.ip())
        };
        let found = self.0.iter().find(|one| has(one));
        let found = found.ok_or_else(|| Error::network("cannot be reached"))?;
        Ok(Arc::clone(found) as Arc<dyn Agent>)
    }
}

impl Hosts {
    pub(in crate::kubeadm) fn of(&self, ip: &str) -> &Namespace {
        self.0.iter().find(|one| one.ip == ip).unwrap()
    }

    pub(in crate::kubeadm) fn run(
        &self,
        context: &ClusterContext,
        host: &Host,
        key: &str,
        actions: &[Action],
    ) -> Result<()> {
        let show = |_: OutputLine| {};
        self.run_with(context, host, key, actions, &show)
    }

    /// Like `run`, but returns the output.
    pub(in crate::kubeadm) fn told(
        &self,
        context: &ClusterContext,
        host: &Host,
        key: &str,
        actions: &[Action],
    ) -> String {
        let said = Mutex::new(String::new());
        let hear = |line: OutputLine| {
            let mut said = said.lock().unwrap();
            said.push_str(&line.text);
            said.push('\n');
        };
        self.run_with(context, host, key, actions, &hear).unwrap();
        said.into_inner().unwrap()
    }

    fn run_with(
        &self,
        context: &ClusterContext,
        host: &Host,
        key: &str,
        actions: &[Action],
        output: &(dyn Fn(OutputLine) + Sync),
    ) -> Result<()> {
        for action in actions {
            let agent = self.agent(host)?;
            let site = Site {
                host,
                agent: &*agent,
                pool: self,
                context,
                key: &format!("{key}-{}", action.name),
                attempt: 1,
                timeout: Some(std::time::Duration::from_secs(10)),
                output,
            };
            (action.does)(&site).map_err(|error| error.context(action.name.clone()))?;
        }
        Ok(())
    }
}

const FIRST: &str = "10.0.0.11";
const SECOND: &str = "10.0.0.12";
const WORKER: &str = "10.0.0.21";

#[test]
fn a_cluster_comes_up_changes_and_goes() {
    let directory = tempfile::tempdir().unwrap();
    let mut context = context(
        "v1.34.1",
        vec![host(FIRST, MASTER), host(SECOND, MASTER), host(WORKER, NODE)],
        // RSA keys would take most of the test's time.
        vec![serde_json::json!({
            "apiVersion": "kubeadm.k8s.io/v1beta4",
            "kind": "ClusterConfiguration",
            "encryptionAlgorithm": "ECDSA-P256",
        })],
    );
    context.state = StateFiles::plain(directory.path().join("cluster"));
    context
        .flag_environment
        .insert("SEALOS_SYS_CRI_ENDPOINT".to_owned(), "/run/containerd/containerd.sock".to_owned());
    let hosts = Hosts(
        [(FIRST, "CP-1"), (SECOND, "cp-2"), (WORKER, "worker-1")]
            .map(|(ip, name)| Arc::new(Namespace::new(ip, name, directory.path())))
            .to_vec(),
    );
    let kubeadm = Kubeadm::new(&tests::NoFiles, Validity::default());
    let [first, second, worker] = [0, 1, 2].map(|at| context.hosts[at].clone());
    let api = |words: &str| {
        let ended = hosts.of(FIRST).shell(&format!("stand-in-api ask {words}"), &[], b"");
        String::from_utf8(ended.stdout).unwrap()
    };
    let sealctl = FileToWrite {
        path: format!("{}/opt/sealctl", context.paths.rootfs()),
        mode: 0o755,
        content: b"#!/bin/sh\necho \"0 sealctl $*\" >>\"$STAND_IN_LOG/calls\"\n".to_vec(),
    };
    hosts.of(WORKER).write_file(&sealctl).unwrap();

    // All control planes pull their images before the first one starts.
    for host in [&first, &second] {
        let prepare = kubeadm.prepare(&context, host).unwrap();
        hosts.run(&context, host, "prepare", &prepare).unwrap();
        assert_eq!(hosts.of(host.ip()).calls("crictl pull registry.k8s.io/"), 7);
    }
    assert!(kubeadm.prepare(&context, &worker).unwrap().is_empty());

    // kubeadm fails halfway; the next run continues with the existing files.
    std::fs::write(hosts.of(FIRST).log.join("fail-init"), "").unwrap();
    let init = kubeadm.init(&context, &first).unwrap();
    let error = hosts.run(&context, &first, "one", &init).unwrap_err();
    assert!(error.to_string().contains("as asked for: init"), "{error}");
    hosts.run(&context, &first, "one", &init).unwrap();
    assert_eq!(hosts.of(FIRST).calls("kubeadm init "), 2);
    let health = kubeadm.health(&context, &first).unwrap();
    hosts.run(&context, &first, "health", &health).unwrap();
    // Another run changes nothing.
    let admin = std::fs::read(context.state.path("etc/admin.conf")).unwrap();
    hosts.run(&context, &first, "two", &init).unwrap();
    assert_eq!(hosts.of(FIRST).calls("kubeadm init "), 2);
    assert_eq!(
        std::fs::read(context.state.path("etc/admin.conf")).unwrap(),
        admin,
        "good certificates are kept"
    );

    // A control plane whose first attempt fails is reset and joins at the second attempt.
    std::fs::write(hosts.of(SECOND).log.join("fail-join"), "").unwrap();
    let join = kubeadm.join_control_plane(&context, &second).unwrap();
    hosts.run(&context, &second, "three", &join).unwrap_err();
    hosts.run(&context, &second, "four", &join).unwrap();
    assert_eq!(hosts.of(SECOND).calls("kubeadm reset -f"), 1);
    assert!(api("members").contains(SECOND));
    for host in [FIRST, SECOND] {
        assert_eq!(
            hosts.of(host).calls("crictl pull registry.k8s.io/"),
            7,
            "pulled while it joins"
        );
    }
    let health = kubeadm.health(&context, &second).unwrap();
    hosts.run(&context, &second, "health", &health).unwrap();

    let block = HostsBlock {
        cluster: context.name.clone(),
        entries: kubeadm.hosts_entries(&context, &worker),
    };
    hosts.of(WORKER).set_hosts(&block).unwrap();
    let join = kubeadm.join_worker(&context, &worker).unwrap();
    // A worker that cannot pull does not join.
    std::fs::write(hosts.of(WORKER).log.join("fail-pull"), "").unwrap();
    let error = hosts.run(&context, &worker, "no-pull", &join).unwrap_err();
    let told = format!("{:?}", error.chain());
    assert!(told.contains("unauthorized") && told.contains("does the registry answer"), "{told}");
    assert_eq!(hosts.of(WORKER).calls("kubeadm join"), 0);
    std::fs::remove_file(hosts.of(WORKER).log.join("fail-pull")).unwrap();
    hosts.run(&context, &worker, "five", &join).unwrap();
    assert_eq!(hosts.of(WORKER).calls("crictl pull registry.k8s.io/kube"), 0);
    hosts.run(&context, &worker, "six", &join).unwrap();
    assert_eq!(hosts.of(WORKER).calls("kubeadm join"), 1);
    assert!(
        hosts
            .of(WORKER)
            .calls("sealctl ipvs --vs 10.103.97.2:6443 --rs 10.0.0.11:6443 --rs 10.0.0.12:6443")
            > 0
    );
    assert!(hosts.of(WORKER).exists(lvscare::MANIFEST));
    assert_eq!(api("tokens"), "0\n", "tokens are taken back");

    // Additional names and renewed certificates.
    let names = ["test.sealoshub.io".to_owned()];
    renew::remember(&context, &names).unwrap();
    for host in [&first, &second] {
        let actions = kubeadm.add_names(&context, host, &names).unwrap();
        hosts.run(&context, host, "names", &actions).unwrap();
        let expiries = renew::expiry::expiries(hosts.of(host.ip())).unwrap();
        let served = expiries.iter().find(|one| one.file == "pki/apiserver.crt").unwrap();
        assert!(served.certificate.names.contains(&names[0]), "{served:?}");
    }
    let uploaded = std::fs::read_to_string(hosts.of(FIRST).log.join("uploaded-config")).unwrap();
    assert!(uploaded.contains("- test.sealoshub.io"), "{uploaded}");
    let renewed = kubeadm.renew(&context, &first, &renew::Wanted::All).unwrap();
    hosts.run(&context, &first, "renew", &renewed).unwrap();
    let stopped = std::fs::read_to_string(hosts.of(FIRST).log.join("stopped")).unwrap();
    assert!(stopped.contains("container-etcd"), "{stopped}");
    assert_ne!(std::fs::read(context.state.path("etc/admin.conf")).unwrap(), admin);

    // The Pods have left already: `runtime::nodes` drains, through the API itself.
    let mut smaller = context.clone();
    smaller.hosts.retain(|host| host.ip() != SECOND);
    smaller.leaving.push(second.clone());
    let mut leave = kubeadm.leave(&smaller, &second, &nodes::leaving()).unwrap();
    assert_eq!(leave.remove(0).name, "drain");
    hosts.run(&smaller, &second, "eight", &leave).unwrap();
    assert!(!api("members").contains(SECOND) && !api("nodes").contains("cp-2"));
    hosts.run(&smaller, &second, "nine", &leave).unwrap();
    let settle = kubeadm.settle(&smaller, &worker).unwrap();
    hosts.run(&smaller, &worker, "settle", &settle).unwrap();
    let pod = hosts.of(WORKER).read_file(lvscare::MANIFEST, 1 << 20).unwrap().unwrap();
    assert!(!String::from_utf8(pod).unwrap().contains(SECOND));

    // Reset also succeeds on hosts that are already reset; then the cluster is set up again.
    for host in [&second, &worker, &first, &first] {
        let reset = kubeadm.reset(&smaller, host).unwrap();
        hosts.run(&smaller, host, "reset", &reset).unwrap();
        for path in ["/etc/kubernetes", "/var/lib/etcd", "/mnt/home/.kube"] {
            assert!(!hosts.of(host.ip()).exists(path), "{path} on {}", host.ip());
        }
    }

    // A host that belongs to another cluster is not touched.
    let foreign =
        FileToWrite { path: init::API_MANIFEST.to_owned(), mode: 0o600, content: Vec::new() };
    hosts.of(FIRST).write_file(&foreign).unwrap();
    let error = hosts.run(&smaller, &first, "ten", &init).unwrap_err();
    assert!(error.to_string().contains("this cluster did not create it"), "{error}");
}
