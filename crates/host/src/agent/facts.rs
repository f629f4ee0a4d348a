//! Facts about this machine, as reported by the kernel and a few files.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fs::Access;

use crate::agent::protocol::{Claim, Claimed, Facts, FileToWrite, MACHINE_FILE, UID_FILE};
use crate::agent::{files, hosts_file, network};
use imgctl_base::error::{IoContext as _, Result};
use imgctl_base::fs::directory::read_text;
use imgctl_base::fs::lock::{Lock, Mode};

/// Search path for programs: the usual path of root on any distribution, and the directory where
/// sealos images install theirs.
pub(super) const PROGRAMS: &str =
    "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/opt/bin:/snap/bin";
const RUNTIMES: [&str; 4] = ["containerd", "dockerd", "crio", "k3s"];
/// Names that identify a cluster's data directory, which holds at least one of them.
const OURS: [&str; 6] = ["rootfs", "registry", "applications", "runs", "registry-layers", UID_FILE];
/// Where units and names of a cluster go.
const PLACES: [&str; 2] = [hosts_file::HOSTS_FILE, "/etc/systemd/system"];
const MACHINE_ID: &str = "/etc/machine-id";
/// Maximum length of a cluster's UID or a machine-id, in bytes.
const LONGEST_ID: usize = 64;

/// Gathers all facts. Values that cannot be determined stay empty. The caller fills in `skew_ms`.
pub(super) fn gather(data_root: &str) -> Facts {
    let uname = rustix::system::uname();
    let data_root = Path::new(data_root);
    let place = existing(data_root);
    let room = rustix::fs::statvfs(&place).ok();
    Facts {
        hostname: uname.nodename().to_string_lossy().into_owned(),
        architecture: architecture(&uname.machine().to_string_lossy()).to_owned(),
        system: system(),
        kernel: uname.release().to_string_lossy().into_owned(),
        cpus: std::thread::available_parallelism()
            .map_or(1, |count| u32::try_from(count.get()).unwrap_or(u32::MAX)),
        memory_bytes: memory(),
        addresses: network::addresses(),
        free_bytes: room.map_or(0, |room| room.f_bavail.saturating_mul(room.f_frsize)),
        writable: rustix::fs::access(&place, Access::WRITE_OK).is_ok(),
        obstacles: obstacles(data_root, &PLACES.map(Path::new)),
        systemd: Path::new("/run/systemd/system").is_dir(),
        bash: program("bash"),
        cgroup_v2: Path::new("/sys/fs/cgroup/cgroup.controllers").exists(),
        boot_id: line("/proc/sys/kernel/random/boot_id"),
        machine_id: line(MACHINE_ID),
        runtimes: RUNTIMES
            .iter()
            .filter(|name| program(name).is_some())
            .map(ToString::to_string)
            .collect(),
        listening: network::listening(),
        cluster_uids: ids(&data_root.join("data"), UID_FILE),
        cluster_machines: ids(&data_root.join("data"), MACHINE_FILE),
        clusters: clusters(&data_root.join("data"), &OURS),
        cluster_trees: clusters(&data_root.join("data"), &["rootfs"]),
        hosts_blocks: hosts_file::blocks(Path::new(hosts_file::HOSTS_FILE)),
        time_ms: now(),
        skew_ms: 0,
    }
}

/// Returns the OCI architecture for a machine name from `uname -m`, or that name if OCI has none.
pub(super) fn architecture(machine: &str) -> &str {
    match machine {
        "x86_64" | "amd64" => "amd64",
        "aarch64" | "arm64" => "arm64",
        "i386" | "i486" | "i586" | "i686" => "386",
        "armv6l" | "armv7l" | "armv8l" => "arm",
        "loongarch64" => "loong64",
        other => other,
    }
}

/// Milliseconds since 1970.
pub(super) fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
}

/// Returns the path, or its closest existing ancestor.
fn existing(path: &Path) -> PathBuf {
    path.ancestors().find(|path| path.exists()).unwrap_or(Path::new("/")).to_owned()
}

/// Returns what keeps a cluster's files out: links on the way to its data that lead nowhere, and
/// `places` on read-only file systems.
fn obstacles(data: &Path, places: &[&Path]) -> Vec<String> {
    let data = data.join("data");
    let is_dangling = |path: &&Path| path.is_symlink() && !path.exists();
    let dangling = data.ancestors().filter(is_dangling).map(|path| {
        let target = std::fs::read_link(path).unwrap_or_default();
        let (path, target) = (path.display(), target.display());
        format!("{path} is a link to {target}, which does not exist: is a disk not mounted?")
    });
    let is_read_only = |place: &&&Path| {
        rustix::fs::access(existing(place), Access::WRITE_OK) == Err(rustix::io::Errno::ROFS)
    };
    let read_only = places.iter().filter(is_read_only);
    let read_only = read_only.map(|place| {
        let place = place.display();
        format!("{place} is on a read-only file system, and a cluster writes there")
    });
    dangling.chain(read_only).collect()
}

fn line(path: &str) -> String {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.lines().next().unwrap_or_default().trim().to_owned()
}

fn system() -> String {
    ["/etc/os-release", "/usr/lib/os-release"]
        .iter()
        .find_map(|path| pretty_name(&std::fs::read_to_string(path).ok()?))
        .unwrap_or_default()
}

fn pretty_name(text: &str) -> Option<String> {
    let value = text.lines().find_map(|line| line.trim().strip_prefix("PRETTY_NAME="))?;
    Some(value.trim_matches(['"', '\'']).to_owned())
}

fn memory() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let total = text.lines().find_map(|line| {
        let rest = line.strip_prefix("MemTotal:")?;
        rest.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()
    });
    total.unwrap_or(0).saturating_mul(1024)
}

/// Returns the path of a program on the search path for programs.
pub(super) fn program(name: &str) -> Option<String> {
    PROGRAMS.split(':').find_map(|directory| {
        let path = Path::new(directory).join(name);
        let is_program = path.is_file() && rustix::fs::access(&path, Access::EXEC_OK).is_ok();
        is_program.then(|| path.to_string_lossy().into_owned())
    })
}

/// Returns the names of clusters whose data directory has one of `files`.
fn clusters(data: &Path, files: &[&str]) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(data) else {
        return Vec::new();
    };
    let mut names: Vec<String> = entries
        .filter_map(Result::ok)
        .filter(|entry| {
            let path = entry.path();
            files.iter().any(|name| std::fs::symlink_metadata(path.join(name)).is_ok())
        })
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    names.sort();
    names
}

/// Returns the content of the file of this name for each cluster that has left one. An empty file counts as
/// missing.
fn ids(data: &Path, file: &str) -> BTreeMap<String, String> {
    let id = |name: &String| {
        let read = read_text(&data.join(name).join(file), 4096).ok()??;
        let fits = |c: char| c.is_ascii_alphanumeric() || c == '-';
        let line = read.lines().next().unwrap_or_default().trim();
        let id: String =
            line.chars().take(LONGEST_ID).map(|c| if fits(c) { c } else { '?' }).collect();
        (!id.is_empty()).then_some(id)
    };
    let names = clusters(data, &[file]).into_iter();
    names.filter_map(|name| id(&name).map(|id| (name, id))).collect()
}

/// Writes the cluster's UID and this machine's ID, unless another cluster has left a UID since the host
/// was asked. Claims are made one after the other.
pub(super) fn claim(claim: &Claim) -> Result<Claimed> {
    let data = files::absolute(&claim.data)?;
    std::fs::create_dir_all(&data).path("create", &data)?;
    let _others_wait = Lock::of_directory(&data, Mode::Exclusive)?;
    for (cluster, uid) in ids(&data, UID_FILE) {
        let is_ours = cluster == claim.cluster && uid == claim.uid;
        if !is_ours && claim.known.get(&cluster) != Some(&uid) {
            return Ok(Claimed::Taken(cluster, uid));
        }
    }
    // The UID comes last: it is the claim.
    for (file, id) in [(MACHINE_FILE, line(MACHINE_ID)), (UID_FILE, claim.uid.clone())] {
        let path = data.join(&claim.cluster).join(file);
        let path = path.to_string_lossy().into_owned();
        let content = format!("{id}\n").into_bytes();
        files::write(&FileToWrite { path, mode: 0o644, content })?;
    }
    Ok(Claimed::Ours)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_is_known() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        std::fs::create_dir_all(root.join("data/one")).unwrap();
        std::os::unix::fs::symlink("gone", root.join("data/one/rootfs")).unwrap();
        std::fs::create_dir_all(root.join("data/none/lost+found")).unwrap();
        std::fs::create_dir_all(root.join("data/two/runs")).unwrap();
        std::fs::create_dir_all(root.join("data/three")).unwrap();
        std::fs::write(root.join("data/three/uid"), "12-ab\n").unwrap();
        std::fs::write(root.join("data/two/uid"), "12\x1b[2J\n").unwrap();
        let facts = gather(root.join("").to_str().unwrap());
        assert_eq!(facts.clusters, ["one", "three", "two"]);
        assert_eq!(facts.cluster_trees, ["one"]);
        let uids: Vec<_> =
            facts.cluster_uids.iter().map(|(a, b)| (a.as_str(), b.as_str())).collect();
        assert_eq!(uids, [("three", "12-ab"), ("two", "12??2J")]);
        assert!(!facts.hostname.is_empty() && !facts.kernel.is_empty());
        assert!(!facts.system.is_empty() && !facts.boot_id.is_empty());
        assert!(["amd64", "arm64"].contains(&&*facts.architecture));
        assert!(facts.memory_bytes > 1 << 20 && facts.free_bytes > 0 && facts.writable);
        assert!(facts.bash.unwrap().ends_with("/bash"));
        assert!((facts.time_ms - now()).abs() < 5000);
        let nowhere = gather("/nowhere/at/all");
        assert!(nowhere.free_bytes > 0 && nowhere.clusters.is_empty());
    }

    #[test]
    fn what_keeps_files_out_is_known_before_they_come() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        assert!(obstacles(&root.join("none/yet"), &[]).is_empty());
        std::os::unix::fs::symlink("/nowhere/sealos", root.join("link")).unwrap();
        std::os::unix::fs::symlink(root, root.join("good")).unwrap();
        assert!(obstacles(&root.join("good"), &[]).is_empty());
        for data in ["link", "link/below", "good/link"] {
            let [told] = &obstacles(&root.join(data), &[])[..] else { panic!("{data}") };
            assert!(told.contains("link to /nowhere/sealos"), "{told}");
        }
        // A file system that nobody can write to.
        let told = obstacles(root, &[Path::new("/sys/fs/cgroup/x"), Path::new("/proc/1/x"), root]);
        assert!(told.iter().all(|one| one.contains("read-only")), "{told:?}");
    }

    #[test]
    fn one_of_several_claims_succeeds() {
        let directory = tempfile::tempdir().unwrap();
        let data = directory.path().join("data").to_str().unwrap().to_owned();
        let of = |cluster: &str, uid: &str| Claim {
            data: data.clone(),
            cluster: cluster.to_owned(),
            uid: uid.to_owned(),
            known: BTreeMap::new(),
        };
        // Clusters of one name and of several.
        let claims: Vec<Claim> =
            (0..8).map(|n| of(if n < 4 { "default" } else { "prod" }, &format!("u{n}"))).collect();
        let answers: Vec<Claimed> = std::thread::scope(|scope| {
            let asked: Vec<_> =
                claims.iter().map(|one| scope.spawn(|| claim(one).unwrap())).collect();
            asked.into_iter().map(|one| one.join().unwrap()).collect()
        });
        let won: Vec<usize> = (0..8).filter(|n| answers[*n] == Claimed::Ours).collect();
        let [winner] = won[..] else { panic!("{answers:?}") };
        let taken = Claimed::Taken(claims[winner].cluster.clone(), claims[winner].uid.clone());
        assert_eq!(answers.iter().filter(|one| **one == taken).count(), 7, "{answers:?}");
        assert_eq!(claim(&claims[winner]).unwrap(), Claimed::Ours, "again");
        let machine = line(MACHINE_ID);
        let machines: Vec<String> = ids(Path::new(&data), MACHINE_FILE).into_values().collect();
        assert!(machine.is_empty() || machines == [machine], "{machines:?}");
        // Taken over by force: the former UID is known.
        let known = [(claims[winner].cluster.clone(), claims[winner].uid.clone())].into();
        let forced = Claim { known, ..of("new", "u9") };
        assert_eq!(claim(&forced).unwrap(), Claimed::Ours);
    }

    #[test]
    fn pretty_names_come_without_quotes() {
        for (text, name) in [
            ("NAME=x\nPRETTY_NAME=\"Debian GNU/Linux 12\"\n", Some("Debian GNU/Linux 12")),
            ("PRETTY_NAME='A b'", Some("A b")),
            ("NAME=x", None),
        ] {
            assert_eq!(pretty_name(text).as_deref(), name);
        }
    }
}
