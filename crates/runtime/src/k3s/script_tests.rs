//! Runs the programs of k3s hosts with bash in namespaces whose `/etc` is a directory of the test. k3s and
//! systemctl are stand-ins: what they are told, and which files are where afterwards, is what counts.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output};

use crate::action::Line;
use crate::k3s::config::tests::context;
use crate::k3s::{elsewhere, host::HOST, steps::script};
use crate::upgrade::{Move, Place, Renewal};
use imgctl_model::context::{ClusterContext, Paths};

/// `up` is there while k3s runs; `calls` lists what k3s was told.
const K3S: &str = "#!/bin/bash\n# VERSION\ncase \"$*\" in\n\
    --version) echo k3s VERSION ;;\n\
    'etcd-snapshot save'*) { head -c 16 /dev/zero; printf '\\355\\332\\014\\355'; head -c 20000 /dev/zero; } >\"$6/imgctl-1\" ;;\n\
    'server --cluster-reset'*) echo \"$*\" >>\"$TEST/calls\"; rm -rf \"$DATA/server/db\"; mkdir -p \"$DATA/server/db/etcd\" ;;\n\
    'server --config'*) echo 'level=warning msg=\"Unknown flag --nonsense found\"' ;;\n\
    *) [ -e \"$TEST/up\" ] ;;\nesac\n";
const SYSTEMCTL: &str = "#!/bin/bash\ncase \"$1 $2\" in\n\
    restart* | 'start k3s') : >\"$TEST/up\"; echo \"$*\" >>\"$TEST/calls\" ;;\n\
    'stop k3s') rm -f \"$TEST/up\" ;;\n\
    is-active*) [ -e \"$TEST/up\" ] ;;\nesac\n";

struct Bed {
    directory: tempfile::TempDir,
    context: ClusterContext,
}

impl Bed {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        let mut context = context(&[]);
        context.paths = Paths::new(root.to_str().unwrap(), "k");
        let bed = Self { directory, context };
        bed.program("bin/k3s", &K3S.replace("VERSION", "v1"));
        bed.program("new/bin/k3s", &K3S.replace("VERSION", "v2"));
        bed.program("bin/systemctl", SYSTEMCTL);
        bed.program("bin/systemd-run", "#!/bin/bash\necho \"run $*\" >>\"$TEST/calls\"\n");
        bed.write("etc/rancher/k3s/config.yaml", &format!("data-dir: \"{}\"\n", bed.path("data")));
        bed.write("etc/systemd/system/k3s.service", "old unit");
        bed.write("data/server/token", "K10abc::server:x\n");
        bed.write("up", "");
        bed
    }

    fn path(&self, path: &str) -> String {
        self.directory.path().join(path).to_str().unwrap().to_owned()
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.path(path);
        std::fs::create_dir_all(Path::new(&path).parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    fn program(&self, path: &str, text: &str) {
        self.write(path, text);
        let mode = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(self.path(path), mode).unwrap();
    }

    fn read(&self, path: &str) -> String {
        std::fs::read_to_string(self.path(path)).unwrap_or_default()
    }

    fn step(&self, place: Place) -> Move<'_> {
        Move {
            from: &self.context,
            to: &self.context,
            host: &self.context.hosts[0],
            tree: self.path("new"),
            place,
            id: "u1",
            renewal: Renewal::default(),
            external_etcd: false,
            keeps_corefile: false,
            back: false,
        }
    }

    fn run(&self, line: &Line) -> Output {
        Command::new("timeout")
            .args(["60", "unshare", "--user", "--map-root-user", "--mount", "bash", "-ec"])
            .arg("mount --bind \"$TEST/etc\" /etc; exec bash -e -c \"$LINE\"")
            .env_clear()
            .env("PATH", format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", self.path("bin")))
            .env("TEST", self.directory.path())
            .env("DATA", self.path("data"))
            .env("HOME", self.path("home"))
            .env("LINE", &line.line)
            .envs(line.environment.to_map())
            .output()
            .unwrap()
    }

    fn told(&self, line: &Line) -> String {
        let ran = self.run(line);
        assert!(ran.status.success(), "{ran:?}");
        String::from_utf8(ran.stdout).unwrap()
    }

    fn refused(&self, line: &Line) -> String {
        let ran = self.run(line);
        assert!(!ran.status.success(), "{ran:?}");
        String::from_utf8(ran.stderr).unwrap()
    }
}

#[test]
fn k3s_is_replaced_and_comes_back_from_its_backup() {
    let bed = Bed::new();
    let step = bed.step(Place::First);
    let restore = script(&step, include_str!("scripts/restore-files.sh"));
    let told = bed.refused(&restore);
    assert!(told.contains("the backup is gone"), "{told}");
    bed.program("bin/k3s", &K3S.replace("VERSION", "v2"));
    assert!(bed.told(&restore).contains("has not touched this host"));
    bed.program("bin/k3s", &K3S.replace("VERSION", "v1"));

    let keep = script(&step, include_str!("scripts/keep-files.sh"));
    assert!(bed.told(&keep).contains("4 files are kept"));
    let replace = script(&step, include_str!("scripts/replace.sh"));
    assert!(bed.told(&replace).contains("k3s runs: k3s v2"));
    assert!(bed.read("bin/k3s").contains("# v2"));
    assert!(bed.told(&replace).contains("k3s runs already"));
    // From now on, what the host was is known.
    assert!(bed.told(&keep).contains("before it was touched is kept"));
    bed.write("etc/systemd/system/k3s.service", "new unit");
    assert!(bed.told(&restore).contains("k3s runs: k3s v1"));
    assert!(bed.read("bin/k3s").contains("# v1"));
    assert_eq!(bed.read("etc/systemd/system/k3s.service"), "old unit");
    assert!(!Path::new(&format!("{}/touched", step.backup())).exists());
    assert!(bed.told(&restore).contains("everything is in place already"));
    assert_eq!(bed.read("calls").matches("restart --no-block k3s").count(), 2);

    let new = bed.path("new.yaml");
    bed.write("new.yaml", "new: true\n");
    let settings = script(&step, include_str!("scripts/put-settings.sh"));
    bed.told(&settings.clone().with([("IMGCTL_NEW", "")]));
    assert!(!bed.read("etc/rancher/k3s/config.yaml").contains("new: true"));
    let settings = settings.with([("IMGCTL_NEW", &new)]);
    assert!(bed.told(&settings).contains("k3s runs: k3s v1"));
    assert_eq!(bed.read("etc/rancher/k3s/config.yaml"), "new: true\n");
    assert!(bed.told(&settings).contains("k3s runs with the new options"));
    let options = Line::script(&[HOST, include_str!("scripts/try-options.sh")]);
    let options = options.with([("IMGCTL_VERB", "server"), ("IMGCTL_NEW", &new)]);
    bed.told(&options.clone().with([("IMGCTL_OPTIONS", "debug sense")]));
    let told = bed.refused(&options.with([("IMGCTL_OPTIONS", "debug nonsense")]));
    assert!(told.contains("k3s server has no option nonsense"), "{told}");
}

#[test]
fn servers_go_back_to_a_snapshot_of_etcd() {
    let bed = Bed::new();
    let step = bed.step(Place::First);
    let take = script(&step, include_str!("scripts/take-snapshot.sh"));
    assert!(!Path::new(&format!("{}/snapshot.db", step.backup())).exists());
    bed.write("data/server/db/etcd/member", "before");
    bed.told(&script(&step, include_str!("scripts/keep-files.sh")));
    assert!(bed.told(&take).contains("snapshot.db: 20020 bytes"));
    let snapshot = format!("{}/snapshot.db", step.backup());
    let restore = script(&step, include_str!("scripts/restore-snapshot.sh"));
    let first = restore.clone().with([("IMGCTL_SNAPSHOT", &snapshot)]);
    assert!(bed.refused(&first).contains("k3s still runs here"));
    std::fs::remove_file(bed.path("up")).unwrap();
    bed.told(&first);
    assert!(bed.told(&first).contains("restored already"));
    let reset = format!("server --cluster-reset --cluster-reset-restore-path={snapshot}\n");
    assert_eq!(bed.read("calls"), reset);
    // Other servers join again: their data moves away.
    let backup = bed.step(Place::ControlPlane).backup();
    std::fs::remove_file(format!("{backup}/restored")).unwrap();
    let other = restore.with([("IMGCTL_SNAPSHOT", "")]);
    for _ in 0..2 {
        bed.told(&other);
        assert!(Path::new(&format!("{backup}/db-before/etcd")).exists());
        assert!(!Path::new(&bed.path("data/server/db")).exists());
    }
    bed.told(&script(&step, include_str!("scripts/start-restored.sh")));
    assert!(!Path::new(&format!("{backup}/restored")).exists());
    assert!(bed.read("calls").ends_with("restart --no-block k3s\n"));
}

/// SQLite and the authorities go to another host in a backup; the tokens are read from it.
#[test]
fn a_database_moves_with_the_authorities() {
    let bed = Bed::new();
    let folder = bed.path("moved");
    let on = |script: &str| elsewhere::on_host(script, &folder);
    for (path, text) in [
        ("db/state.db", "SQLite format 3 and rows"),
        ("tls/server-ca.key", "authority"),
        ("tls/serving.crt", "of the former host"),
        ("cred/passwd", "passwords"),
        ("manifests/own.yaml", "own"),
    ] {
        bed.write(&format!("data/server/{path}"), text);
    }
    bed.told(&on(include_str!("scripts/save-files.sh")));
    let copy = on(include_str!("scripts/copy-database.sh")).with([("IMGCTL_PATIENCE", "300")]);
    bed.told(&copy);
    let calls = "run --quiet --collect --unit imgctl-start-k3s --on-active=300 systemctl start k3s\nstart k3s\n";
    assert_eq!(bed.read("calls"), calls);
    let pack =
        format!("cd {folder}; tar -cf files.tar ./db ./files ./server; rm -rf db files server");
    bed.told(&Line::new(pack));

    let restore = on(include_str!("scripts/restore-data.sh"));
    assert!(bed.refused(&restore).contains("a k3s runs here"));
    std::fs::remove_file(bed.path("up")).unwrap();
    assert!(bed.refused(&restore).contains("the data of another k3s"));
    std::fs::remove_dir_all(bed.path("data/server")).unwrap();
    bed.told(&restore);
    assert_eq!(bed.read("data/server/db/state.db"), "SQLite format 3 and rows");
    assert_eq!(bed.read("data/server/tls/server-ca.key"), "authority");
    assert_eq!(bed.read("data/server/tls/serving.crt"), "", "k3s issues it for this host");
    assert_eq!(
        bed.read("data/server/cred/passwd") + &bed.read("data/server/manifests/own.yaml"),
        "passwordsown"
    );
    assert!(bed.told(&restore).contains("restored already"));
    let tokens = Line::script(&[include_str!("scripts/unpack-tokens.sh")]);
    bed.told(&tokens.with([("IMGCTL_BACKUP", &folder)]));
    assert_eq!(bed.read("moved/server/token"), "K10abc::server:x\n");
    let store = Line::script(&[HOST, include_str!("scripts/datastore.sh")]);
    assert_eq!(bed.told(&store), "sqlite\n");
}
