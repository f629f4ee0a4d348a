//! `imgctl init` and `imgctl recipe`: what is written, what is asked and refused, and that what is written builds. The
//! publishers' files are stood in for by a server here, with checksums of its own.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use imgctl_base::image::Digest;

use super::full_screen::Tmux;
use super::login::on_a_terminal;
use crate::common::mirror::Mirror;
use crate::common::proxy::{Fault, Proxy};
use crate::common::{IMGCTL, Ran, TestEnv, repository, tool};

const NOT_FOUND: i32 = 3;
const BAD_CONTENT: i32 = 4;
const USAGE: i32 = 2;

/// What the publishers' archives contain, by a part of their address.
const ARCHIVES: [(&str, &[&str]); 5] = [
    ("etcd-v", &["etcd-x/etcd", "etcd-x/etcdctl", "etcd-x/etcdutl", "etcd-x/README.md"]),
    ("containerd-static", &["bin/containerd", "bin/containerd-shim-runc-v2", "bin/ctr"]),
    ("crictl-v", &["crictl"]),
    ("cni-plugins", &["bridge", "host-local", "loopback", "portmap"]),
    ("helm-v", &["linux-x/helm", "linux-x/LICENSE"]),
];

/// A server with stand-ins.
struct Publishers {
    server: Proxy,
}

impl Publishers {
    fn new() -> Self {
        Self { server: Proxy::alone("127.0.0.1") }
    }

    /// Puts a stand-in on the server for each download of the folder's Kubefile, which names it then.
    fn stand_in(&self, env: &TestEnv, folder: &Path) {
        let path = folder.join("Kubefile");
        let kubefile = fs::read_to_string(&path).unwrap();
        let mut lines = Vec::new();
        for line in kubefile.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            let Some(url) = words.iter().find(|word| word.starts_with("https://")) else {
                lines.push(line.to_owned());
                continue;
            };
            let place = url.strip_prefix("https://").unwrap();
            let body = if line.contains("--unpack") {
                archive(env, url)
            } else {
                format!("#!/bin/sh\necho {place}\n").into_bytes()
            };
            let sum = Digest::of(&body).to_string();
            let headers = [("Last-Modified", "Wed, 01 Jul 2026 00:00:00 GMT")];
            self.server.on("GET", &format!("/{place}"), Fault::answer("200 OK", &headers, body));
            let local = format!("http://{}/{place}", self.server.host);
            let replaced = words.iter().map(|word| match word.strip_prefix("--checksum=") {
                Some(_) => format!("--checksum={sum}"),
                None if word == url => local.clone(),
                None => (*word).to_owned(),
            });
            lines.push(replaced.collect::<Vec<_>>().join(" "));
        }
        lines.push(String::new());
        fs::write(path, lines.join("\n")).unwrap();
    }
}

/// A packed archive as the publisher has it at `url`.
fn archive(env: &TestEnv, url: &str) -> Vec<u8> {
    let (_, names) = ARCHIVES.iter().find(|(part, _)| url.contains(part)).unwrap();
    let folder = env.path("archive");
    let _ = fs::remove_dir_all(&folder);
    for name in *names {
        let file = env.write(Path::new("archive").join(name), format!("#!/bin/sh\necho {url}\n"));
        fs::set_permissions(file, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let packed = env.path("archive.tgz");
    let place = folder.to_str().unwrap();
    let fixed =
        ["--sort=name", "--mtime=@1", "--owner=0", "--group=0", "--use-compress-program=gzip -n"];
    let arguments = [&fixed[..], &["-C", place, "-cf", packed.to_str().unwrap(), "."]].concat();
    Ran::new(tool("tar", arguments)).ok();
    fs::read(packed).unwrap()
}

pub(crate) fn init(env: &TestEnv, arguments: &[&str]) -> Ran {
    env.imgctl([&["init"], arguments].concat())
}

/// A chart of the examples.
fn chart() -> String {
    repository().join("Kubefile.examples/app-helm/charts/hello").to_str().unwrap().to_owned()
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = walkdir::WalkDir::new(folder)
        .into_iter()
        .map(|entry| entry.unwrap())
        .filter(|entry| !entry.file_type().is_dir())
        .map(|entry| entry.path().strip_prefix(folder).unwrap().to_str().unwrap().to_owned())
        .collect();
    names.sort();
    names
}

/// The recipes that `imgctl recipe ls` lists.
fn recipes(env: &TestEnv) -> Vec<serde_json::Value> {
    let listed = env.imgctl(["recipe", "ls", "--json"]).ok().json();
    listed.as_array().unwrap().clone()
}

#[test]
fn every_recipe_builds_for_both_architectures_and_twice_the_same() {
    let env = TestEnv::new();
    let (mirror, publishers) = (Mirror::new(&env), Publishers::new());
    for recipe in recipes(&env) {
        let name = recipe["name"].as_str().unwrap();
        let folder = env.path(name);
        let place = folder.to_str().unwrap();
        let chart = chart();
        let more: &[&str] = if name == "app-helm" { &["--chart", &chart] } else { &[] };
        init(&env, &[&[place, "--recipe", name][..], more].concat()).ok();
        publishers.stand_in(&env, &folder);
        let found = env.imgctl(["build", "--check", place]).ok();
        assert_eq!(found.stdout(), "", "{name}");

        let images = mirror.fill(&env, place);
        let tag = format!("{name}:v1");
        let amd = ["--platform", "linux/amd64", "--timestamp", "1"];
        mirror.build(&env, &[&amd[..], &["-t", &tag, place]].concat());
        let digest = |image: &str| {
            env.imgctl(["inspect", "--json", "-f", "{{.FromImageDigest}}", image]).ok().stdout()
        };
        let first = digest(&tag);
        mirror.build(&env, &[&amd[..], &["--no-cache", "-t", "again:v1", place]].concat());
        assert_eq!(digest("again:v1"), first, "{name}");
        for (repository, tag) in images {
            let tags =
                format!("registry/docker/registry/v2/repositories/{repository}/_manifests/tags");
            env.imgctl(["cat", &format!("{name}:v1:/{tags}/{tag}/current/link")]).ok();
        }
        let arm = ["--platform", "linux/arm64", "--save-image=false", "-t", "arm:v1", place];
        mirror.build(&env, &arm);
        let is_rootfs = recipe["kind"] == "rootfs";
        let labels = &env.config(&tag)["config"]["Labels"];
        assert_eq!(labels["sealos.io.type"] == "rootfs", is_rootfs, "{name}: {labels}");
        for program in programs(name) {
            for (image, arch) in [(&*tag, "amd64"), ("arm:v1", "arm64")] {
                let text = env.imgctl(["cat", &format!("{image}:/{program}")]).ok().stdout();
                let is_own = text.contains(arch) || (name == "k3s" && text.contains("/k3s"));
                assert!(is_own, "{name}: {program} of {arch}: {text}");
            }
        }
        let mode = env.imgctl(["ls", "-R", "--json", &format!("{tag}:/")]).ok().json();
        for file in mode.as_array().unwrap() {
            let path = file["path"].as_str().unwrap();
            let is_program =
                ["/bin/", "/cri/", "/cni/"].iter().any(|folder| path.starts_with(folder));
            assert!(!is_program || file["mode"].to_string().contains("755"), "{file}");
        }
    }
}

/// Programs of an image that differ between the architectures.
fn programs(name: &str) -> &'static [&'static str] {
    match name {
        "kubernetes" => &[
            "bin/kubeadm",
            "bin/kubelet",
            "bin/kubectl",
            "bin/crictl",
            "bin/etcdctl",
            "bin/etcdutl",
            "cri/containerd",
            "cri/containerd-shim-runc-v2",
            "cri/ctr",
            "cri/runc",
            "cni/portmap",
        ],
        "etcd" => &["bin/etcd", "bin/etcdctl", "bin/etcdutl"],
        "helm" | "app-helm" => &["bin/helm"],
        "k3s" => &["bin/k3s"],
        _ => &[],
    }
}

#[test]
fn one_build_makes_a_cluster_with_its_applications() {
    let env = TestEnv::new();
    let (mirror, publishers) = (Mirror::new(&env), Publishers::new());
    let (folder, chart) = (env.path("site"), chart());
    let place = folder.to_str().unwrap();
    let made = init(&env, &[place, "--version", "1.34", "--chart", &chart, "--arch", "amd64"]).ok();
    let said = made.stdout();
    assert!(said.contains("kubernetes 1.34.9, flannel 0.27.4, local-path"), "{said}");
    assert!(said.ends_with(&format!("next: imgctl build -t site:v1 {place}")), "{said}");
    publishers.stand_in(&env, &folder);
    mirror.fill(&env, place);
    mirror.build(&env, &["--platform", "linux/amd64", "-t", "site:v1", place]);
    let tree = env.export("site:v1", "tree");

    // The pause image of the version, in the cluster's registry.
    let sandbox = tool("bash", [tree.join("scripts/sandbox-image.sh")]);
    assert_eq!(Ran::new(sandbox).ok().stdout(), "pause:3.10.1");
    let mut own = tool("bash", [tree.join("scripts/sandbox-image.sh")]);
    own.env("sandboxImage", "own/pause:1");
    assert_eq!(Ran::new(own).ok().stdout(), "own/pause:1");

    // Applications run on the first control plane alone, in their order; a failure ends it.
    let calls = env.path("calls");
    let fake = format!(
        "#!/bin/sh\necho \"$(basename $0) $*\" >>{}\n[ \"$FAIL\" != \"$1\" ]\n",
        calls.display()
    );
    for name in ["kubectl", "helm"] {
        let path = env.write(Path::new("fake").join(name), &fake);
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let run = |file: &str, host: &str, fail: &str| {
        let path = tree.join(file);
        let mut command = tool("bash", [path.file_name().unwrap()]);
        let search = format!("{}:{}", env.path("fake").display(), std::env::var("PATH").unwrap());
        command.current_dir(path.parent().unwrap()).env("PATH", search);
        command.env("MASTER_IPS", "10.0.0.1,10.0.0.2").env("HOST_IP", host).env("FAIL", fail);
        let _ = fs::remove_file(&calls);
        let ran = Ran::new(command);
        (ran.success(), fs::read_to_string(&calls).unwrap_or_default())
    };
    for file in ["scripts/apply.sh", "hooks/post-cluster.d/50-apply"] {
        let (good, called) = run(file, "10.0.0.1", "");
        assert!(good, "{called}");
        let lines: Vec<&str> = called.lines().collect();
        assert_eq!(lines.first(), Some(&"kubectl apply -f manifests/flannel"), "{called}");
        assert!(
            lines.last().unwrap().starts_with("helm upgrade --install hello charts/hello "),
            "{called}"
        );
        assert!(called.contains("kubectl apply -f manifests/local-path"), "{called}");
        assert_eq!(run(file, "10.0.0.2", ""), (true, String::new()), "not on other hosts");
    }
    let (good, called) = run("scripts/apply.sh", "10.0.0.1", "wait");
    assert!(!good && !called.contains("local-path"), "{called}");
    let command = &env.config("site:v1")["config"]["Cmd"];
    assert_eq!(command[0], "bash scripts/apply.sh");
}

#[test]
fn files_that_are_not_those_of_the_recipe_do_not_build() {
    let env = TestEnv::new();
    let publishers = Publishers::new();
    let folder = env.path("etcd");
    let place = folder.to_str().unwrap();
    init(&env, &[place, "--recipe", "etcd", "--arch", "amd64"]).ok();
    let own = fs::read_to_string(folder.join("Kubefile")).unwrap();
    publishers.stand_in(&env, &folder);
    // The server has what it has, and the Kubefile the checksum of the recipe.
    let standing = fs::read_to_string(folder.join("Kubefile")).unwrap();
    let sum = |text: &str| {
        text.split("--checksum=").nth(1).unwrap().split(' ').next().unwrap().to_owned()
    };
    fs::write(folder.join("Kubefile"), standing.replace(&sum(&standing), &sum(&own))).unwrap();
    let ran = env.imgctl(["build", "--platform", "linux/amd64", place]).fails(BAD_CONTENT);
    assert!(ran.stderr().contains(&sum(&own)), "{}", ran.report());
}

#[test]
fn a_folder_with_other_files_stays_as_it_is() {
    let env = TestEnv::new();
    let folder = env.path("mine");
    let place = folder.to_str().unwrap();
    env.write("mine/Kubefile", "FROM scratch\n");
    let ran = init(&env, &[place, "--recipe", "etcd"]).fails(USAGE);
    assert!(ran.stderr().contains("Kubefile"), "{}", ran.report());
    assert_eq!(names(&folder), ["Kubefile"]);
    for (arguments, code, expected) in [
        (&["--version", "1.34.2"][..], USAGE, "the nearest is 1.34.9"),
        (&["--recipe", "kuberntes"], NOT_FOUND, "did you mean kubernetes?"),
        (&["--recipe", "kubernetes,etcd"], USAGE, "each make a cluster"),
        (&["--arch", "riscv64"], USAGE, "kubernetes is not available for riscv64"),
        (&["--arch", "amd64,s390x"], USAGE, "it is for amd64, arm64: --arch"),
        (&["--recipe", "kubernetes,flannel,cilium"], USAGE, "flannel and cilium are both networks"),
        (&["--recipe", "k3s,calico"], USAGE, "calico does not run on k3s: it is for kubernetes"),
        (&["--network", "cilium@1.18"], USAGE, "does not know version 1.18; the nearest is 1.19.6"),
        (&["--chart", "nowhere"], NOT_FOUND, "there is no chart nowhere"),
        (&["--chart", "oci://web"], USAGE, "oci://web names no registry"),
        (&["--chart", "oci://h.io/Web:1"], USAGE, "cannot use oci://h.io/Web:1"),
        (&["--name", "A B"], USAGE, "cannot be the name"),
        (&["--add", "helm"], NOT_FOUND, "has no imgctl-init.yml"),
    ] {
        let new = env.path("new");
        let ran = init(&env, &[&[new.to_str().unwrap()], arguments].concat()).fails(code);
        assert!(ran.report().contains(expected), "{expected}: {}", ran.report());
        assert!(!new.exists(), "{arguments:?}");
    }
}

#[test]
fn a_part_is_added_later_unless_somebody_changed_what_it_changes() {
    let env = TestEnv::new();
    let folder = env.path("site");
    let place = folder.to_str().unwrap();
    let chart = chart();
    let made =
        init(&env, &[place, "--recipe", "kubernetes", "--chart", &chart, "--json"]).ok().json();
    assert_eq!(made["name"], "site");
    assert!(made["written"].as_array().unwrap().len() > 20, "{made}");
    // The values are the user's.
    fs::write(folder.join("charts/hello.values.yaml"), "replicas: 3\n").unwrap();
    let added = init(&env, &[place, "--add", "metrics-server,gateway-api"]).ok();
    assert!(added.stdout().contains("metrics-server 0.8.1"), "{}", added.report());
    let kubefile = fs::read_to_string(folder.join("Kubefile")).unwrap();
    assert!(
        kubefile.contains("gateway-api/releases/download/v1.5.1/standard-install.yaml"),
        "{kubefile}"
    );
    assert_eq!(
        fs::read_to_string(folder.join("charts/hello.values.yaml")).unwrap(),
        "replicas: 3\n"
    );
    // Once more changes nothing.
    let again = init(&env, &[place, "--add", "metrics-server"]).ok();
    assert!(again.stdout().contains("(0 files"), "{}", again.report());

    let mut changed = kubefile.clone();
    changed.push_str("LABEL mine=1\n");
    fs::write(folder.join("Kubefile"), &changed).unwrap();
    let before = names(&folder);
    let ran = init(&env, &[place, "--add", "metallb"]).fails(USAGE);
    assert!(ran.stderr().contains("Kubefile"), "{}", ran.report());
    assert_eq!(names(&folder), before);
}

#[test]
fn recipes_are_listed_and_shown() {
    let env = TestEnv::new();
    let listed = env.imgctl(["recipe", "ls"]).ok().stdout();
    assert_eq!(init(&env, &["--list"]).ok().stdout(), listed);
    let names = env.imgctl(["recipe", "ls", "--format", "{{.Name}}"]).ok().stdout();
    assert!(names.lines().any(|name| name == "kubernetes"), "{names}");
    let shown = env.imgctl(["recipe", "show", "kubernetes@1.34"]).ok().stdout();
    for part in [
        "kubernetes 1.34.9\n",
        "/arm64/kubelet\n",
        "image registry.k8s.io/pause:3.10.1\n",
        "scripts/init.sh\n",
    ] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    assert!(!shown.contains("1.36"), "{shown}");
    let json = env.imgctl(["recipe", "show", "k3s", "--json"]).ok().json();
    assert!(json["writes"].as_array().unwrap().contains(&"scripts/init.sh".into()), "{json}");
    let unknown = env.imgctl(["recipe", "show", "flanel"]).fails(NOT_FOUND);
    assert!(unknown.stderr().contains("did you mean flannel?"), "{}", unknown.report());
    let offered =
        env.imgctl(["complete", "--", "imgctl", "init", "--recipe", "metal"]).ok().stdout();
    assert!(offered.starts_with("metallb\t"), "{offered}");
}

#[test]
fn a_cluster_asks_for_what_its_parts_require() {
    let env = TestEnv::new();
    let (mirror, publishers) = (Mirror::new(&env), Publishers::new());
    let folder = env.path("site");
    let place = folder.to_str().unwrap();
    let recipes = "kubernetes,flannel,kube-vip";
    init(&env, &[place, "--recipe", recipes, "--arch", "amd64"]).ok();
    publishers.stand_in(&env, &folder);
    let build = ["--save-image=false", "--platform", "linux/amd64", "-t", "site:v1", place];
    mirror.build(&env, &build);
    let shown =
        env.imgctl(["inspect", "-f", "{{range .Settings}}{{.Name}} {{end}}", "site:v1"]).ok();
    assert_eq!(shown.stdout().trim(), "criData backend podSubnet kubeVipAddress kubeVipInterface");
    let gen_with = |variables: &[&str]| {
        let flags = variables.iter().flat_map(|variable| ["-e", variable]);
        env.imgctl(["gen", "site:v1", "--masters", "127.0.0.1"].into_iter().chain(flags))
    };
    let address = "kubeVipAddress=10.0.0.100";
    for (variables, part) in [
        (&[][..], "site:v1 requires kubeVipAddress (free address in the hosts' network segment)"),
        (&["kubeVipAddress=none"], "kubeVipAddress: "),
        (&[address, "backend=vxlam"], "backend: "),
        (&[address, "podSubnets=10.1.0.0/16"], "it has podSubnet"),
    ] {
        let said = gen_with(variables).fails(USAGE).stderr();
        assert!(said.contains(part), "{part}: {said}");
    }
    gen_with(&[address, "podSubnet=10.1.0.0/16", "backend=host-gw"]).ok();
    // Somebody at a terminal is asked.
    let root = env.root().display().to_string();
    let run =
        format!("{IMGCTL} --root {root} run site:v1 --masters 127.0.0.1:1 -c asked --timeout 1s");
    let question = "kubeVipAddress (string): free address in the hosts' network segment: ";
    let screen = on_a_terminal(&env, &run, &[(question, "none\n")]);
    assert!(screen.contains("the variables do not fit site:v1: kubeVipAddress: "), "{screen}");
}

#[test]
fn an_image_that_no_registry_has_leads_to_its_recipe() {
    let env = TestEnv::new();
    let nowhere =
        "[[registry]]\nprefix = \"docker.io\"\nlocation = \"127.0.0.1:1\"\ninsecure = true\n";
    let registries = env.write("registries.conf", nowhere);
    for (verb, image, expected) in [
        (
            &["pull", "--retry", "1"][..],
            "kubernetes:v1.34",
            Some("--recipe kubernetes@1.34` makes"),
        ),
        (&["run", "--masters", "127.0.0.1:1"], "labring/calico:v0", Some("--recipe calico` makes")),
        (&["pull", "--retry", "1"], "127.0.0.1:1/kubernetes:v1.34", None),
        (&["pull", "--retry", "1"], "web:v1", None),
    ] {
        let mut command = env.command(verb);
        command.arg(image).env("CONTAINERS_REGISTRIES_CONF", &registries);
        let told = Ran::new(command).fails(7).stderr();
        assert_eq!(told.contains("imgctl init"), expected.is_some(), "{image}: {told}");
        assert!(told.contains(expected.unwrap_or_default()), "{image}: {told}");
    }
}

#[test]
fn a_terminal_is_asked_four_things_and_ctrl_c_leaves_nothing() {
    let env = TestEnv::new();
    let terminal = Tmux::start(&env.path(""));
    let asked = |text: &str| terminal.wait(text, |tmux| tmux.everything().contains(text));
    terminal.types(&format!("{IMGCTL} --root store init made; echo ended $?"));
    asked("Cluster (kubernetes, etcd, k3s) [kubernetes]:");
    terminal.types("kuberntes");
    asked("`kuberntes` is not one of kubernetes, etcd, k3s; did you mean kubernetes?");
    terminal.types("kube");
    asked("Version (1.36.3, 1.35.6, 1.34.9) [1.36.3]:");
    terminal.types("1.99");
    asked("it does not know version 1.99; the nearest is 1.36.3");
    terminal.types("1.35");
    asked("Network (flannel, calico, cilium, none) [flannel]:");
    terminal.types("");
    asked("Charts (folders, .tgz files, addresses), separated by blanks [none]:");
    terminal.types("nowhere");
    asked("there is no chart nowhere");
    assert!(!env.path("made").exists());
    terminal.tell(&["send-keys", "C-c"]);
    // The shell ends the line, too.
    terminal.wait("a prompt", |tmux| tmux.everything().trim_end().ends_with('$'));
    assert!(!env.path("made").exists());

    terminal.types(&format!("{IMGCTL} --root store init made; echo ended $?"));
    for _ in 0..4 {
        terminal.types("");
    }
    asked("next: imgctl build -t made:v1 made");
    asked("ended 0");
    let kubefile = fs::read_to_string(env.path("made/Kubefile")).unwrap();
    assert!(kubefile.starts_with("# made: kubernetes 1.36.3, flannel 0.27.4,"), "{kubefile}");
}

#[test]
fn ctrl_c_at_any_question_leaves_the_folder_as_it_was() {
    const QUESTIONS: [&str; 4] = [
        "Cluster (kubernetes, etcd, k3s) [kubernetes]: ",
        "Version (1.36.3, 1.35.6, 1.34.9) [1.36.3]: ",
        "Network (flannel, calico, cilium, none) [flannel]: ",
        "Charts (folders, .tgz files, addresses), separated by blanks [none]: ",
    ];
    let env = TestEnv::new();
    env.write("mine/notes.txt", "mine\n");
    for (last, _) in QUESTIONS.iter().enumerate() {
        let mut keys: Vec<(&str, &str)> =
            QUESTIONS[..last].iter().map(|one| (*one, "\n")).collect();
        keys.push((QUESTIONS[last], "\u{3}"));
        for folder in ["new", "mine"] {
            let root = env.root().display().to_string();
            let place = env.path(folder);
            let line = format!("{IMGCTL} --root {root} init {}; echo code $?", place.display());
            let screen = on_a_terminal(&env, &line, &keys);
            // The shell ends with the program.
            assert!(screen.contains("^C") && !screen.contains("code 0"), "{screen}");
        }
        assert!(!env.path("new").exists(), "{last}");
        assert_eq!(names(&env.path("mine")), ["notes.txt"], "{last}");
    }
}

#[test]
fn the_written_clusterfile_is_one() {
    let env = TestEnv::new();
    let folder: PathBuf = env.path("site");
    init(&env, &[folder.to_str().unwrap(), "--recipe", "etcd"]).ok();
    let label = "sealos.io.type=rootfs sealos.io.version=v1beta1 sealos.io.distribution=script init=i join=j";
    let context =
        env.context("base", &format!("FROM scratch\nLABEL {label}\nCOPY f /f\n"), &[("f", "x")]);
    env.build("site:v1", &context);
    let path = folder.join("Clusterfile");
    // The hosts do not answer; the file is read and the image found before.
    let ran = env.imgctl(["apply", "-f", path.to_str().unwrap(), "--dry-run", "--timeout", "5s"]);
    let told = ran.report();
    assert!(told.contains("10.0.0.11") && !told.contains("Clusterfile cannot"), "{told}");
}
