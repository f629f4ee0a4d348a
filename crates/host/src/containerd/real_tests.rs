//! Records of a real containerd: containers are made through its CRI plugin as a kubelet makes them.
//! Their hashes change, containerd restarts, and the containers do not notice.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::Containerd;
use super::protobuf::{Fields, Writer};
use super::rehash::{Change, Rehash, Rehashed, Seen, Task, rehash};

const HASH: &str = "io.kubernetes.container.hash";
const IMAGE: &str = "localhost/probe:test";

/// A containerd of its own, with everything that it leaves.
struct Real {
    directory: tempfile::TempDir,
    child: Option<Child>,
}

impl Real {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        let config = format!(
            r#"version = 2
root = {root:?}
state = {state:?}
[grpc]
address = {socket:?}
[ttrpc]
address = {ttrpc:?}
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{IMAGE}"
restrict_oom_score_adj = true
disable_apparmor = true
[plugins."io.containerd.grpc.v1.cri".containerd]
snapshotter = "native"
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = {none:?}
conf_dir = {none:?}
"#,
            root = at("root"),
            state = at("state"),
            socket = at("c.sock"),
            ttrpc = at("c.ttrpc"),
            none = at("none"),
        );
        std::fs::write(at("config.toml"), config).unwrap();
        let mut real = Self { directory, child: None };
        real.start();
        real.import();
        real
    }

    fn at(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn socket(&self) -> String {
        self.at("c.sock").display().to_string()
    }

    /// Starts containerd and waits until its CRI plugin answers.
    fn start(&mut self) {
        let log = std::fs::File::create(self.at("log")).unwrap();
        let child = Command::new("containerd")
            .arg("--config")
            .arg(self.at("config.toml"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("containerd is missing (scripts/setup installs it)");
        self.child = Some(child);
        let begun = Instant::now();
        let answers = || {
            let containerd = Containerd::connect(&self.socket())?;
            containerd.call("runtime.v1.RuntimeService/ListContainers", &[])
        };
        while answers().is_err() {
            assert!(
                begun.elapsed() < Duration::from_secs(120),
                "containerd does not start: {}",
                std::fs::read_to_string(self.at("log")).unwrap_or_default()
            );
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Ends containerd as a crash would; its shims go on.
    fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    fn restart(&mut self) {
        self.kill();
        self.start();
    }

    /// Imports an image that sleeps.
    fn import(&self) {
        let script = r#"set -e
mkdir -p layer/bin; cp "$(command -v busybox)" layer/bin/busybox; ln -s busybox layer/bin/sleep
tar -C layer -cf layer.tar .; diff=$(sha256sum layer.tar | cut -d' ' -f1)
echo '{"architecture":"amd64","os":"linux","config":{"Cmd":["/bin/sleep","100000"]},"rootfs":{"type":"layers","diff_ids":["sha256:'$diff'"]}}' >config.json
echo '[{"Config":"config.json","RepoTags":["'$IMAGE'"],"Layers":["layer.tar"]}]' >manifest.json
tar -cf image.tar manifest.json config.json layer.tar
ctr -a c.sock -n k8s.io images import --snapshotter native image.tar"#;
        self.shell(script);
    }

    fn shell(&self, script: &str) -> String {
        let ran = Command::new("sh")
            .args(["-c", script])
            .current_dir(self.directory.path())
            .env("IMAGE", IMAGE)
            .output()
            .unwrap();
        let error = String::from_utf8_lossy(&ran.stderr);
        assert!(ran.status.success(), "{script}: {error}");
        String::from_utf8(ran.stdout).unwrap()
    }

    fn cri(&self, method: &str, message: &[u8]) -> Vec<u8> {
        let containerd = Containerd::connect(&self.socket()).unwrap();
        containerd.call(&format!("runtime.v1.RuntimeService/{method}"), message).unwrap()
    }

    /// Runs a Pod with a container for each of `hashes`; returns the ids of the containers.
    fn pod(&self, hashes: &[&str]) -> Vec<String> {
        let labels = [
            ("io.kubernetes.pod.name", "web"),
            ("io.kubernetes.pod.namespace", "default"),
            ("io.kubernetes.pod.uid", "u1"),
        ];
        let metadata = Writer::default().text(1, "web").text(2, "u1").text(3, "default").done();
        // The network of the host, which needs no plugin.
        let namespaces = Writer::default().number(1, 2).number(2, 1).done();
        let security = Writer::default().bytes(1, &namespaces).done();
        let linux = Writer::default().bytes(2, &security).done();
        let sandbox = Writer::default().bytes(1, &metadata);
        let sandbox = map(sandbox, 6, &labels).bytes(8, &linux).done();
        let request = Writer::default().bytes(1, &sandbox).done();
        let pod = Fields::of(&self.cri("RunPodSandbox", &request)).text(1).unwrap();
        let one = |(number, hash): (usize, &&str)| {
            let name = format!("c{number}");
            let metadata = Writer::default().text(1, &name).done();
            let image = Writer::default().text(1, IMAGE).done();
            let config = Writer::default().bytes(1, &metadata).bytes(2, &image);
            let config =
                map(config, 9, &[&labels[..], &[("io.kubernetes.container.name", &name)]].concat());
            let annotations = [
                (HASH, *hash),
                ("io.kubernetes.container.restartCount", "0"),
                ("io.kubernetes.container.terminationMessagePath", "/dev/termination-log"),
            ];
            let config = map(config, 10, &annotations).done();
            let request =
                Writer::default().text(1, &pod).bytes(2, &config).bytes(3, &sandbox).done();
            let id = Fields::of(&self.cri("CreateContainer", &request)).text(1).unwrap();
            self.cri("StartContainer", &Writer::default().text(1, &id).done());
            id
        };
        hashes.iter().enumerate().map(one).collect()
    }

    /// Returns the process of each container, with its start time.
    fn processes(&self, ids: &[String]) -> Vec<(String, String)> {
        let list = self.shell("ctr -a c.sock -n k8s.io tasks ls");
        let of = |id: &String| {
            let line = list.lines().find(|line| line.starts_with(id)).expect("it runs");
            let pid = line.split_whitespace().nth(1).unwrap().to_owned();
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
            (pid, stat.split_whitespace().nth(21).unwrap().to_owned())
        };
        ids.iter().map(of).collect()
    }

    fn rehash(&self, task: Task, containers: &[Change]) -> Rehashed {
        rehash(&Rehash {
            socket: self.socket(),
            annotation: HASH.to_owned(),
            containers: containers.to_vec(),
            former: self.at("former.json").display().to_string(),
            task,
        })
        .unwrap()
    }
}

impl Drop for Real {
    fn drop(&mut self) {
        self.kill();
        // Shims and containers outlive containerd: those with our directory in their arguments.
        let script = r#"here=$PWD
for cmdline in /proc/[0-9]*/cmdline; do
  pid=${cmdline#/proc/}; pid=${pid%/cmdline}
  if tr '\0' ' ' <"$cmdline" 2>/dev/null | grep -qF -- "-address $here/c.sock"; then
    for child in $(cat /proc/$pid/task/*/children 2>/dev/null); do kill -9 "$child"; done
    kill -9 "$pid"
  fi
done
sleep 0.2
grep -F " $here/" /proc/self/mountinfo | cut -d' ' -f5 | sort -r | xargs -r umount -l"#;
        let _ = Command::new("sh")
            .args(["-c", script])
            .current_dir(self.directory.path())
            .stderr(Stdio::null())
            .status();
    }
}

fn map(message: Writer, field: u64, entries: &[(&str, &str)]) -> Writer {
    entries.iter().fold(message, |message, (key, value)| {
        message.bytes(field, &Writer::default().text(1, key).text(2, value).done())
    })
}

fn change(id: &str, from: &str, to: &str) -> Change {
    Change { id: id.to_owned(), from: from.to_owned(), to: to.to_owned() }
}

/// Returns the hash in the record and the hash that the CRI shows, for each container.
fn hashes(seen: &Rehashed) -> Vec<(&str, &str)> {
    fn pair(one: &Seen) -> (&str, &str) {
        (one.stored.as_deref().unwrap_or("-"), one.shown.as_deref().unwrap_or("-"))
    }
    seen.containers.iter().map(pair).collect()
}

#[test]
fn hashes_change_under_running_containers_and_back() {
    if !rustix::process::geteuid().is_root() || !Path::new("/usr/bin/containerd").exists() {
        return;
    }
    let mut real = Real::new();
    let ids = real.pod(&["1a2b", "dead"]);
    let processes = real.processes(&ids);
    // The second was defined otherwise when the plan was made; the third is gone.
    let wanted = [
        change(&ids[0], "1a2b", "9f"),
        change(&ids[1], "beef", "9f"),
        change("0123456789", "1a2b", "9f"),
    ];
    let seen = real.rehash(Task::Look, &wanted);
    assert!(seen.version.starts_with("1.6"), "{}", seen.version);
    assert_eq!(hashes(&seen), [("1a2b", "1a2b"), ("dead", "dead"), ("-", "-")]);
    assert!(seen.containers[0].is_due() && !seen.containers[1].is_due());
    assert!(seen.containers[0].is_running && seen.containers[0].started > 0);
    let started = seen.containers[0].started;

    // The CRI shows it after a restart; a crash in between and a repetition change nothing.
    for _ in 0..2 {
        let seen = real.rehash(Task::Write, &wanted);
        assert_eq!(hashes(&seen), [("9f", "1a2b"), ("dead", "dead"), ("-", "-")]);
        assert!(seen.containers[0].is_hidden());
    }
    let former = std::fs::read_to_string(real.at("former.json")).unwrap();
    assert!(former.contains("1a2b") && !former.contains("dead"), "{former}");
    real.restart();
    let seen = real.rehash(Task::Look, &wanted);
    assert_eq!(hashes(&seen), [("9f", "9f"), ("dead", "dead"), ("-", "-")]);
    assert!(seen.containers[0].is_running);
    assert_eq!(seen.containers[0].started, started);
    assert_eq!(real.processes(&ids), processes);

    // The way back is that of the file, whatever was predicted.
    for _ in 0..2 {
        let seen = real.rehash(Task::Back, &[change(&ids[0], "9f", "wrong")]);
        assert_eq!(seen.containers[0].stored.as_deref(), Some("1a2b"));
    }
    real.restart();
    let seen = real.rehash(Task::Look, &wanted);
    assert_eq!(hashes(&seen)[..2], [("1a2b", "1a2b"), ("dead", "dead")]);
    assert_eq!(seen.containers[0].started, started);
    assert_eq!(real.processes(&ids), processes);
    // The record is otherwise as it was: the CRI plugin stops and removes the container by it.
    real.cri("StopContainer", &Writer::default().text(1, &ids[0]).done());
    real.cri("RemoveContainer", &Writer::default().text(1, &ids[0]).done());
}
