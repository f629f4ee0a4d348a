//! The state of a cluster on this machine as files: for whom it is encrypted, encrypting and decrypting
//! it, and reading one of its files. No host is asked.

use std::path::{Component, Path};

use jiff::Timestamp;

use crate::recipients::recipients;
use crate::session::Session;
use crate::work::Work;
use imgctl_age::Recipients;
use imgctl_base::error::{Error, IoContext as _, Result};
use imgctl_base::fs::directory;
use imgctl_base::image::Reference;
use imgctl_model::state::State;

/// Maximum size of a file that is shown, in bytes.
const LONGEST: u64 = 64 << 20;
/// Where backups lie that were given no place.
const BACKUPS: &str = "backup/oci";

/// What the files of a state are, without reading what is in them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateSummary {
    pub cluster: String,
    pub directory: String,
    /// For whom it is encrypted; empty: it is plain.
    pub recipients: Vec<String>,
    /// Whether the identity that was given decrypts it; always if it is plain.
    pub readable: bool,
    /// Number of encrypted files.
    pub encrypted: usize,
    /// Number of plain files that may hold secrets.
    pub plain: usize,
    /// Whether encrypting or decrypting was interrupted: the next command that changes the cluster
    /// ends it.
    pub unfinished: bool,
}

/// Describes the state of `cluster`.
pub fn summary(cluster: &str, session: &Session<'_>) -> Result<StateSummary> {
    let state = existing(cluster, session)?;
    let files = state.files();
    let recipients = files.recipients()?;
    let readable = match &recipients {
        None => true,
        Some(recipients) => files.check_identity(recipients).is_ok(),
    };
    let count = files.count()?;
    Ok(StateSummary {
        cluster: cluster.to_owned(),
        directory: files.directory().display().to_string(),
        recipients: names(recipients.as_ref()),
        readable,
        encrypted: count.encrypted,
        plain: count.plain,
        unfinished: files.is_changing(),
    })
}

/// Returns the clusters of this machine that have an image of one of these names. A state that cannot be
/// read is left out.
pub fn users_of(images: &[String], session: &Session<'_>) -> Result<Vec<(String, String)>> {
    let mut users = Vec::new();
    for path in directory::list(session.state_root()?)? {
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
        let read = session.state(name).and_then(|state| state.load());
        let Ok(Some((clusterfile, _))) = read else { continue };
        let own =
            |image: &&String| clusterfile.cluster.images.iter().any(|own| is_same(own, image));
        users.extend(images.iter().filter(own).map(|image| (image.clone(), name.to_owned())));
    }
    Ok(users)
}

/// Compares names of images: `etcd:v1` is `localhost/etcd:v1` or `docker.io/library/etcd:v1` to the store.
fn is_same(one: &str, other: &str) -> bool {
    let meant =
        |name: &str| Reference::parse(name).map(|name| name.candidates()).unwrap_or_default();
    let others = meant(other);
    one == other || meant(one).iter().any(|name| others.contains(name))
}

/// Encrypts the state to the recipients that `to` names, and to nobody else. Returns the number of
/// files.
pub fn encrypt(cluster: &str, to: &[String], session: &Session<'_>) -> Result<usize> {
    let wanted = recipients(to, "--to")?.ok_or_else(|| {
        Error::usage("no recipient for the state is given").hint("pass --to age1…")
    })?;
    change(cluster, Some(&wanted), session)
}

/// Decrypts the state. Returns the number of files.
pub fn decrypt(cluster: &str, session: &Session<'_>) -> Result<usize> {
    change(cluster, None, session)
}

fn change(cluster: &str, to: Option<&Recipients>, session: &Session<'_>) -> Result<usize> {
    let state = existing(cluster, session)?;
    let _held = state.lock("state", Timestamp::now().as_second())?;
    let count = state.files().change_recipients(to)?;
    if let Some(to) = to {
        if let Err(error) = state.files().check_identity(to) {
            session.front.note(&format!("{error}; commands on the cluster need that identity"));
        }
        if state.files().path(BACKUPS).exists() {
            session.front.note(&format!(
                "backups in {} stay as they are: those that were made without --encrypt-to are not \
                 encrypted",
                state.files().path(BACKUPS).display()
            ));
        }
    }
    Ok(count)
}

/// Returns the content of a file of the state, decrypted.
pub fn read(cluster: &str, name: &str, session: &Session<'_>) -> Result<Vec<u8>> {
    let state = existing(cluster, session)?;
    let plain = |part| matches!(part, Component::Normal(_));
    if name.is_empty() || !Path::new(name).components().all(plain) {
        return Err(Error::usage(format!("`{}` is no file of a state", name.escape_debug()))
            .hint("name it as below the state directory: etc/admin.conf"));
    }
    let path = state.files().path(name);
    if path.is_dir() {
        return Err(Error::usage(format!("{} is a directory", path.display())));
    }
    let bytes = state.files().read_bytes(name, LONGEST + 1)?;
    let bytes = bytes.ok_or_else(|| {
        Error::not_found(format!("the state of cluster {cluster} has no file {name}"))
    })?;
    if bytes.len() as u64 > LONGEST {
        return Err(Error::usage(format!("{} has more than {LONGEST} bytes", path.display()))
            .hint("decrypt it with age: age -d -i IDENTITY FILE"));
    }
    Ok(bytes)
}

/// Returns the state of a cluster that has files on this machine.
fn existing(cluster: &str, session: &Session<'_>) -> Result<State> {
    let state = session.state(cluster)?;
    let there = state.directory().try_exists().path("look at", state.directory())?;
    if there { Ok(state) } else { Err(state.missing()) }
}

fn names(recipients: Option<&Recipients>) -> Vec<String> {
    let text = recipients.and_then(Recipients::text).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

impl Work<'_> {
    /// Sees that the cluster's state is encrypted to the recipients of `--encrypt-state`, if there are
    /// any, before anything is written. Fails if it is encrypted to others, or if this command could
    /// not read what it writes.
    pub(crate) fn encrypt_state(&self, named: &[String]) -> Result<()> {
        let Some(wanted) = recipients(named, "--encrypt-state")? else { return Ok(()) };
        let files = self.state.files();
        let own = names(files.recipients()?.as_ref());
        let (mut own_sorted, mut wanted_sorted) = (own.clone(), names(Some(&wanted)));
        own_sorted.sort();
        own_sorted.dedup();
        wanted_sorted.sort();
        wanted_sorted.dedup();
        if !own.is_empty() && own_sorted != wanted_sorted {
            let name = self.state.name();
            return Err(Error::usage(format!(
                "the state of cluster {name} is encrypted to {}",
                own.join(", ")
            ))
            .hint(format!(
                "`imgctl state encrypt --cluster {name} --to …` encrypts it to others"
            )));
        }
        files.check_identity(&wanted)?;
        if own.is_empty() && !self.options.dry_run {
            files.change_recipients(Some(&wanted))?;
        }
        Ok(())
    }
}
