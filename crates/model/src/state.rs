//! State that the controller keeps of each cluster: `~/.sealos/<cluster>/` in sealos' layout, plus
//! `journal/` and `logs/`. Mode 0700, because it contains passwords and private keys; they may be
//! encrypted as well.

use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::name;
use crate::state_files::StateFiles;
use crate::state_identity::StateIdentity;
use crate::{clusterfile, clusterfile::Clusterfile};
use imgctl_base::error::{Context, Error, IoContext, Result};
use imgctl_base::fs::atomic::{self, Durability};
use imgctl_base::fs::directory::{self, read_text};
use imgctl_base::fs::lock::{self, Lock, Mode};
use imgctl_base::image::{Digest, time::rfc3339};

/// One byte more than a Clusterfile may have: the parser tells of it.
const LONGEST: u64 = clusterfile::MAX_LENGTH as u64 + 1;
const CLUSTERFILE: &str = "Clusterfile";
const LOCK: &str = ".lock";
const HOLDER: &str = ".lock.holder";
/// Maximum size of the file that names a lock's holder, in bytes.
const MAX_HOLDER: u64 = 4096;

#[derive(Clone, Debug)]
pub struct States {
    root: PathBuf,
    identity: StateIdentity,
}

impl States {
    /// `root` is `SEALOS_RUNTIME_ROOT`, `~/.sealos` by default; `identity` decrypts the states below
    /// it that are encrypted.
    pub fn new(root: PathBuf, identity: StateIdentity) -> Self {
        Self { root, identity }
    }

    /// Returns the state of one cluster, whether it exists or not.
    pub fn of(&self, name: &str) -> Result<State> {
        name::check(name)?;
        let files = StateFiles::new(self.root.join(name), self.identity.clone());
        Ok(State { name: name.to_owned(), files })
    }

    /// Returns the names of the clusters that exist, sorted.
    pub fn names(&self) -> Result<Vec<String>> {
        names_in(&self.root)
    }
}

/// Returns the names of the clusters whose state is below `root`, sorted.
fn names_in(root: &Path) -> Result<Vec<String>> {
    let is_cluster = |path: &PathBuf| path.join(CLUSTERFILE).exists();
    let paths = directory::list(root)?.into_iter().filter(is_cluster);
    let mut names: Vec<String> =
        paths.filter_map(|path| Some(path.file_name()?.to_str()?.to_owned())).collect();
    names.retain(|name| name::check(name).is_ok());
    names.sort();
    Ok(names)
}

/// State directory of one cluster.
#[derive(Clone, Debug)]
pub struct State {
    name: String,
    files: StateFiles,
}

impl State {
    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn directory(&self) -> &Path {
        self.files.directory()
    }

    /// Returns access to the files that hold secrets.
    pub fn files(&self) -> &StateFiles {
        &self.files
    }

    pub fn clusterfile(&self) -> PathBuf {
        self.files.path(CLUSTERFILE)
    }

    /// Returns the directory of kubeconfigs, tokens and generated configuration.
    pub fn etc(&self) -> PathBuf {
        self.files.path("etc")
    }

    pub fn pki(&self) -> PathBuf {
        self.files.path("pki")
    }

    pub fn tmp(&self) -> PathBuf {
        self.files.path("tmp")
    }

    pub fn journal(&self) -> PathBuf {
        self.files.path("journal")
    }

    /// Returns the directory of host output, by run.
    pub(crate) fn logs(&self) -> PathBuf {
        self.files.path("logs")
    }

    /// Creates the directory and its subdirectories, readable only by their owner.
    pub fn prepare(&self) -> Result<()> {
        for directory in [self.etc(), self.pki(), self.tmp(), self.journal(), self.logs()] {
            atomic::make_private(&directory)?;
        }
        // sealos makes it readable by everyone.
        std::fs::set_permissions(self.directory(), PermissionsExt::from_mode(0o700))
            .path("close to others", self.directory())
    }

    /// Returns the stored Clusterfile with notes on it; `None` if the cluster does not exist.
    pub fn load(&self) -> Result<Option<(Clusterfile, Vec<String>)>> {
        let path = self.clusterfile();
        let Some(text) = self.files.read(CLUSTERFILE, LONGEST)? else {
            return Ok(None);
        };
        let (mut read, mut notes) = clusterfile::read_stored(&text, &path.display().to_string())
            .context(|| format!("cannot use the state of cluster `{}`", self.name))?;
        if read.cluster.name != self.name {
            return Err(Error::bad_content(format!(
                "{} describes a cluster named `{}`",
                path.display(),
                read.cluster.name
            ))
            .hint(format!(
                "the directory and `metadata.name` must agree: rename one of them to the other ({})",
                self.directory().display()
            )));
        }
        if !read.cluster.lists_control_plane() {
            return Err(self.without_control_plane(&notes));
        }
        if read.is_of_sealos() {
            notes.extend(self.adopt(&mut read)?);
        }
        Ok(Some((read, notes)))
    }

    /// Returns the error for a record whose hosts are lost: as it stands, a reset would leave them all
    /// as they are and call the cluster gone. `notes` tell what was ignored.
    fn without_control_plane(&self, notes: &[String]) -> Error {
        let path = self.clusterfile();
        let mut error = Error::usage(format!(
            "{} has no control plane: the record of cluster `{}` is damaged",
            path.display(),
            self.name
        ));
        if !notes.is_empty() {
            error = error.lines(notes.iter().cloned());
        }
        error
            .hint(format!(
                "correct the hosts in {}; {} lists the former hosts",
                path.display(),
                self.journal().display()
            ))
            .hint(format!(
                "a control plane of the cluster has a copy: {}/data/{}/state/Clusterfile",
                crate::context::DATA_ROOT,
                self.name
            ))
    }

    /// Returns the stored Clusterfile of a cluster that must exist.
    pub fn require(&self) -> Result<(Clusterfile, Vec<String>)> {
        self.load()?.ok_or_else(|| self.missing())
    }

    /// Returns the error for a cluster that does not exist; it names those that do.
    pub fn missing(&self) -> Error {
        let error = Error::not_found(format!("there is no cluster `{}`", self.name));
        let root = self.directory().parent().unwrap_or(self.directory());
        match names_in(root).unwrap_or_default().as_slice() {
            [] => error.hint(format!(
                "{} has no cluster; `imgctl run IMAGE --masters HOSTS` makes one",
                root.display()
            )),
            names => error.hint(format!(
                "clusters in {}: {}; name one with --cluster or IMGCTL_CLUSTER",
                root.display(),
                names.join(", ")
            )),
        }
    }

    /// Adopts kubeadm's documents from the file that sealos generated: sealos does not write them
    /// back to the Clusterfile.
    fn adopt(&self, read: &mut Clusterfile) -> Result<Option<String>> {
        let path = self.etc().join("kubeadm-init.yaml");
        let text = self.files.read("etc/kubeadm-init.yaml", LONGEST)?;
        let Some(text) = text.filter(|_| read.documents.is_empty()) else {
            return Ok(None);
        };
        let (generated, _) = clusterfile::read_additions(&text, &path.display().to_string())
            .context(|| format!("cannot import cluster `{}` from sealos", self.name))?;
        let count = generated.documents.len();
        read.documents = generated.documents;
        Ok(Some(format!(
            "created by sealos; {count} kubeadm documents are imported from {}",
            path.display()
        )))
    }

    /// Replaces the stored Clusterfile; the change is durable on return.
    pub fn save(&self, clusterfile: &Clusterfile) -> Result<()> {
        if clusterfile.cluster.name != self.name {
            return Err(Error::failed(format!(
                "the Clusterfile of `{}` does not belong in {}",
                clusterfile.cluster.name,
                self.directory().display()
            )));
        }
        self.prepare()?;
        self.files
            .write(CLUSTERFILE, &clusterfile.write()?)
            .context(|| format!("cannot store the state of cluster `{}`", self.name))
    }

    /// Archives the state after a reset: the Clusterfile becomes `Clusterfile.<now>`; `now` is in
    /// seconds since 1970.
    pub fn archive(&self, now: i64) -> Result<PathBuf> {
        let from = self.clusterfile();
        // Two resets within one second must not overwrite the first archive.
        let to = (now..)
            .map(|second| self.files.path(format!("{CLUSTERFILE}.{second}")))
            .find(|path| !path.exists())
            .unwrap_or_else(|| from.with_extension("old"));
        // Upgrades of a removed cluster can be neither resumed nor rolled back. They are renamed
        // first: if the process is killed in between, the next reset still finds the Clusterfile.
        archive_upgrades(self.directory(), now)?;
        std::fs::rename(&from, &to).path("rename", &from)?;
        atomic::sync_directory(self.directory())?;
        Ok(to)
    }

    /// Returns whether a command holds the lock.
    pub fn is_locked(&self) -> bool {
        lock::is_held(&self.directory().join(LOCK))
    }

    /// Locks the cluster for one command; the error names the current holder. `now` is in seconds
    /// since 1970.
    pub fn lock(&self, verb: &str, now: i64) -> Result<Held> {
        self.prepare()?;
        let what = format!("cluster `{}`", self.name);
        let held = Held::acquire(self.directory(), &what, verb, now)?;
        self.files.finish_change()?;
        Ok(held)
    }
}

/// Archives what a state directory keeps about upgrades: none of them can be resumed or rolled back
/// any more. `now` is in seconds since 1970.
pub fn archive_upgrades(state: &Path, now: i64) -> Result<()> {
    let upgrades = state.join("upgrade");
    let free = |second: &i64| !state.join(format!("upgrade.{second}")).exists();
    let second = (now..).find(free).unwrap_or(now);
    let former = state.join(format!("upgrade.{second}"));
    match std::fs::rename(&upgrades, &former) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error).path("rename", &upgrades),
        _ => Ok(()),
    }
}

/// Lock of a directory, held until this is dropped.
#[derive(Debug)]
pub struct Held {
    lock: Lock,
}

impl Held {
    /// Locks an existing directory for one command that works on `what`.
    pub fn acquire(directory: &Path, what: &str, verb: &str, now: i64) -> Result<Self> {
        let Some(lock) = Lock::try_acquire(&directory.join(LOCK), Mode::Exclusive)? else {
            return Err(busy(directory, what));
        };
        let holder = Holder {
            pid: std::process::id(),
            host: own_name(),
            verb: verb.to_owned(),
            since: rfc3339(now),
        };
        let text = serde_json::to_vec(&holder)
            .doing(|| "cannot record the holder of the lock".to_owned())?;
        atomic::write(&directory.join(HOLDER), &text, 0o600, Durability::Atomic)?;
        Ok(Self { lock })
    }

    /// Identifies all processes that this lock keeps apart, and no others: the same until this
    /// machine is rebooted, and different for a copy of the directory.
    pub fn identity(&self) -> Result<String> {
        let boot = Path::new("/proc/sys/kernel/random/boot_id");
        let boot = read_text(boot, MAX_HOLDER)?.unwrap_or_default();
        let (device, inode) = self.lock.place().doing(|| "cannot identify a lock".to_owned())?;
        let host = own_name();
        let digest = Digest::of(format!("{host} {boot} {device} {inode}").as_bytes());
        Ok(format!("{host}_{}", &digest.hex()[..16]))
    }
}

fn busy(directory: &Path, what: &str) -> Error {
    let error = Error::busy(format!("another command is running on {what}"));
    let holder = read_text(&directory.join(HOLDER), MAX_HOLDER)
        .ok()
        .flatten()
        .and_then(|text| serde_json::from_str::<Holder>(&text).ok());
    match holder {
        Some(holder) => error.hint(format!(
            "`imgctl {}`, process {} on {}, since {}: wait for it or stop it",
            holder.verb, holder.pid, holder.host, holder.since
        )),
        None => error.hint("wait for it or stop it"),
    }
}

/// Process that works on a cluster.
#[derive(Debug, Serialize, Deserialize)]
struct Holder {
    pid: u32,
    host: String,
    verb: String,
    /// RFC 3339.
    since: String,
}

/// Name of this machine, for locks, journals and leases.
pub fn own_name() -> String {
    let uname = rustix::system::uname();
    uname.nodename().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clusterfile::{ClusterDocument, HostGroup};
    use imgctl_base::error::Kind;

    fn named(name: &str) -> Clusterfile {
        let master = HostGroup {
            ips: vec!["10.0.0.1:22".into()],
            roles: vec!["master".into()],
            ..HostGroup::default()
        };
        Clusterfile {
            cluster: ClusterDocument {
                name: name.into(),
                images: vec!["a:b".into()],
                hosts: vec![master],
                ..ClusterDocument::default()
            },
            ..Clusterfile::default()
        }
    }

    fn mode(path: &Path) -> u32 {
        std::fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn what_is_saved_is_loaded_and_closed_to_others() {
        let directory = tempfile::tempdir().unwrap();
        let states = States::new(directory.path().join(".sealos"), StateIdentity::default());
        let state = states.of("one").unwrap();
        assert!(state.load().unwrap().is_none());
        assert_eq!(state.require().unwrap_err().kind(), Kind::NotFound);
        state.save(&named("one")).unwrap();
        assert_eq!(state.load().unwrap().unwrap().0, named("one"));
        assert_eq!(mode(&state.clusterfile()), 0o600);
        assert_eq!(mode(state.directory()), 0o700);
        assert!(state.save(&named("two")).is_err());
        for wrong in ["../one", "", ".", "One"] {
            assert!(states.of(wrong).is_err(), "{wrong}");
        }

        let first = state.archive(1_700_000_000).unwrap();
        state.save(&named("one")).unwrap();
        let second = state.archive(1_700_000_000).unwrap();
        assert!(first.ends_with("Clusterfile.1700000000") && first != second);
        assert!(state.load().unwrap().is_none());
    }

    #[test]
    fn a_record_that_has_lost_its_hosts_is_an_error_and_names_the_slip() {
        let directory = tempfile::tempdir().unwrap();
        let states = States::new(directory.path().into(), StateIdentity::default());
        let state = states.of("one").unwrap();
        state.save(&named("one")).unwrap();
        let text = std::fs::read_to_string(state.clusterfile()).unwrap();
        let cut = text.find("  hosts:").unwrap();
        for (damaged, part) in [
            (text.replace("  hosts:", "  hosst:"), "did you mean `hosts`?"),
            (text.replace("master", "node"), "no control plane"),
            (text[..cut].to_owned(), "no control plane"),
        ] {
            std::fs::write(state.clusterfile(), damaged).unwrap();
            let error = state.load().unwrap_err();
            assert_eq!((error.kind(), error.hints().len()), (Kind::Usage, 2), "{error}");
            assert!(error.to_string().contains(part), "{error}");
        }
    }

    #[test]
    fn a_second_command_is_told_who_has_the_cluster() {
        let directory = tempfile::tempdir().unwrap();
        let state =
            States::new(directory.path().into(), StateIdentity::default()).of("one").unwrap();
        let held = state.lock("run", 0).unwrap();
        let error = state.lock("reset", 1).unwrap_err();
        assert_eq!(error.kind(), Kind::Busy);
        let hint = error.hints()[0];
        let pid = format!("process {} on ", std::process::id());
        assert!(
            hint.contains("`imgctl run`") && hint.contains(&pid) && hint.contains("1970-01-01"),
            "{hint}"
        );
        // The next command on this directory is the same controller, one on a copy is another one.
        let identity = held.identity().unwrap();
        drop(held);
        assert_eq!(state.lock("reset", 1).unwrap().identity().unwrap(), identity);
        let copy = tempfile::tempdir().unwrap();
        let copy = States::new(copy.path().into(), StateIdentity::default()).of("one").unwrap();
        assert_ne!(copy.lock("reset", 1).unwrap().identity().unwrap(), identity);
    }
}
