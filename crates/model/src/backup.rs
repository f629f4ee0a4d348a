//! What a backup contains besides the files that a control plane saves: the Clusterfile, the
//! controller's keys, and a description of the cluster.

use std::io::{Cursor, Read as _};
use std::path::{Component, Path, PathBuf};

use serde_json::{Map, Value, json};
use walkdir::WalkDir;

use crate::context::ClusterContext;
use crate::state_files::StateFiles;
use crate::{clusterfile, clusterfile::Clusterfile};
use imgctl_base::error::{Context as _, Error, IoContext as _, Result};
use imgctl_base::image::descriptor::EMBEDDED_IMAGES;

/// Part with the Clusterfile.
pub const CLUSTERFILE: &str = "Clusterfile";
/// Part with the controller's keys: a tar of `pki/` and `etc/`.
pub const CONTROLLER: &str = "controller.tar";
/// Directories of the state that a new controller needs.
const DIRECTORIES: [&str; 2] = ["pki", "etc"];
/// Files of `etc/` that a new controller needs. `kubeadm-init.yaml` is sealos'.
const SETTINGS: [&str; 7] = [
    "etc/agent-token",
    "etc/alt-names",
    "etc/kubeadm-init.yaml",
    "etc/registry_htpasswd",
    "etc/registry_password",
    "etc/registry_password_change",
    "etc/token",
];
/// Marks of a rotation of authorities.
const MARKS: [&str; 2] = ["pki/rotation/open", "pki/rotation/dropping"];
/// The kubeconfig names the addresses of the former hosts; the new cluster gets one of its own. No backup may
/// bring one: a client runs what a kubeconfig says.
const LEFT_OUT: &str = "etc/admin.conf";
/// Maximum size of one of the controller's files, and of all, in bytes.
const MOST: u64 = 1 << 20;
const MOST_OF_ALL: u64 = 64 << 20;

/// Returns the Clusterfile as it is kept: without passwords and keys for logging in to hosts, with
/// variables, whatever they contain.
pub fn clusterfile(stored: &Clusterfile) -> Result<String> {
    let mut copy = stored.clone();
    copy.forget_logins();
    copy.write()
}

/// Reads a Clusterfile that [`clusterfile`] wrote.
pub fn read_clusterfile(bytes: &[u8]) -> Result<Clusterfile> {
    let text = str::from_utf8(bytes)
        .map_err(|_| Error::bad_content("the Clusterfile of the backup is not text"))?;
    clusterfile::read_stored(text, "the Clusterfile of the backup").map(|(read, _)| read)
}

/// Whether a backup has a file of this name, as it is written: certificates and keys below `pki/`, and the
/// settings that imgctl itself keeps.
fn is_of_controller(name: &str) -> bool {
    let Some(file) = name.strip_prefix("pki/") else { return SETTINGS.contains(&name) };
    let file = file.strip_prefix("rotation/").unwrap_or(file);
    let file = file.strip_prefix("etcd/").unwrap_or(file);
    let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let is_key = file.rsplit_once('.').is_some_and(|(stem, end)| {
        ["crt", "key", "pub"].contains(&end) && !stem.is_empty() && stem.chars().all(is_plain)
    });
    is_key || MARKS.contains(&name)
}

/// Returns the controller's keys and passwords: paths below the state directory, and contents.
pub fn controller_files(state: &StateFiles) -> Result<Vec<(PathBuf, Vec<u8>)>> {
    let mut files = Vec::new();
    for directory in DIRECTORIES {
        let root = state.path(directory);
        if !root.exists() {
            continue;
        }
        for entry in WalkDir::new(&root).sort_by_file_name() {
            let entry = entry.path("list", &root)?;
            let name = entry.path().strip_prefix(state.directory()).unwrap_or(entry.path());
            if !entry.file_type().is_file() || name == Path::new(LEFT_OUT) {
                continue;
            }
            let bytes = state.read_bytes(name, MOST + 1)?.unwrap_or_default();
            if bytes.len() as u64 > MOST {
                return Err(Error::failed(format!(
                    "{} is too large for a backup: it has more than {MOST} bytes",
                    entry.path().display()
                ))
                .hint("move it elsewhere: the directory is for keys and configuration"));
            }
            files.push((name.to_owned(), bytes));
        }
    }
    Ok(files)
}

/// Returns the controller's keys and passwords as a tar.
pub fn pack_controller(state: &StateFiles) -> Result<Vec<u8>> {
    let mut archive = tar::Builder::new(Vec::new());
    for (name, bytes) in controller_files(state)? {
        let mut header = tar::Header::new_gnu();
        header.set_size(bytes.len() as u64);
        header.set_mode(0o600);
        header.set_mtime(0);
        archive
            .append_data(&mut header, &name, bytes.as_slice())
            .doing(|| format!("cannot pack {}", name.display()))?;
    }
    archive.into_inner().doing(|| "cannot pack the controller's keys".to_owned())
}

/// The files of a backup for a new controller, below its state directory.
#[derive(Debug)]
pub struct Unpacked {
    pub written: Vec<PathBuf>,
    /// Files that are not imgctl's: they are not written.
    pub left_out: Vec<PathBuf>,
}

/// Writes what [`pack_controller`] packed into the state directory, or nothing if something is there that no
/// controller has.
pub fn unpack_controller(bytes: &[u8], state: &StateFiles) -> Result<Unpacked> {
    let doing = || "cannot use the controller's keys in the backup".to_owned();
    let mut archive = tar::Archive::new(Cursor::new(bytes).take(MOST_OF_ALL));
    let (mut files, mut left_out) = (Vec::new(), Vec::new());
    for entry in archive.entries().doing(doing)? {
        let mut entry = entry.doing(doing)?;
        let path = entry.path().doing(doing)?.into_owned();
        let plain = path.components().all(|part| matches!(part, Component::Normal(_)));
        let is_ours = DIRECTORIES.iter().any(|directory| path.starts_with(directory));
        let is_file = entry.header().entry_type().is_file() && entry.size() <= MOST;
        if !plain || !is_ours || !is_file || path == Path::new(LEFT_OUT) {
            return Err(Error::bad_content(format!(
                "the backup has a file `{}`, which does not belong to a controller",
                path.display().to_string().escape_debug()
            )));
        }
        if !str::from_utf8(&entry.path_bytes()).is_ok_and(is_of_controller) {
            left_out.push(path);
            continue;
        }
        let mut text = String::new();
        entry.read_to_string(&mut text).doing(doing)?;
        files.push((path, text));
    }
    for (path, text) in &files {
        state.write(path, text).context(doing)?;
    }
    Ok(Unpacked { written: files.into_iter().map(|(path, _)| path).collect(), left_out })
}

/// Describes the cluster, for those who choose a backup and for the restore.
pub fn about(context: &ClusterContext, runtime: &str, source: &str) -> Map<String, Value> {
    let hosts: Vec<Value> = context
        .hosts
        .iter()
        .map(|host| json!({"address": host.id(), "roles": host.roles}))
        .collect();
    let images: Vec<Value> = context
        .images
        .iter()
        .map(|image| {
            let embedded = image.labels.get(EMBEDDED_IMAGES);
            let embedded: Option<Value> = embedded.and_then(|text| serde_json::from_str(text).ok());
            let mut object = Map::new();
            object.insert("name".to_owned(), json!(image.name));
            object.insert("type".to_owned(), json!(image.kind.as_str()));
            object.insert("digest".to_owned(), json!(image.digest));
            if let Some(version) = image.label(&["version"]) {
                object.insert("version".to_owned(), json!(version));
            }
            if let Some(embedded) = embedded {
                object.insert("embedded".to_owned(), embedded);
            }
            Value::Object(object)
        })
        .collect();
    let mut about = Map::new();
    about.insert("runtime".to_owned(), json!(runtime));
    about.insert("hosts".to_owned(), json!(hosts));
    about.insert("source".to_owned(), json!(source));
    about.insert("images".to_owned(), json!(images));
    about
}

#[cfg(test)]
mod tests {
    use super::*;
    use imgctl_base::error::Kind;

    #[test]
    fn keys_come_back_and_nothing_leaves_its_directory() {
        let scratch = tempfile::tempdir().unwrap();
        let [from, to] = ["from", "to"].map(|name| StateFiles::plain(scratch.path().join(name)));
        for (name, text) in [
            ("pki/ca.key", "secret"),
            ("pki/etcd/ca.crt", "certificate"),
            ("etc/registry_password", "word"),
            ("etc/admin.conf", "left out"),
            ("etc/scheduler.conf", "left out"),
            ("journal/x", "left out"),
        ] {
            from.write(name, text).unwrap();
        }
        let packed = pack_controller(&from).unwrap();
        assert_eq!(packed, pack_controller(&from).unwrap());
        let unpacked = unpack_controller(&packed, &to).unwrap();
        assert_eq!(unpacked.left_out, [Path::new("etc/scheduler.conf")]);
        let count =
            WalkDir::new(to.directory()).into_iter().flatten().filter(|e| e.file_type().is_file());
        assert_eq!(count.count(), 3);
        assert_eq!(std::fs::read_to_string(to.path("pki/ca.key")).unwrap(), "secret");

        for name in
            ["../x", "/etc/x", "other/x", "pki/../../x", "etc/admin.conf", "etc/./admin.conf"]
        {
            let to = StateFiles::plain(scratch.path().join("refused"));
            let bytes = packed_by_others(&["pki/ca.key", name]);
            let error = unpack_controller(&bytes, &to).unwrap_err();
            assert_eq!(error.kind(), Kind::BadContent, "{name}: {error}");
            assert!(!to.directory().exists(), "{name}");
        }
    }

    /// An archive with files of these names: `append_data` refuses some itself.
    fn packed_by_others(names: &[&str]) -> Vec<u8> {
        let mut archive = tar::Builder::new(Vec::new());
        for name in names {
            let mut header = tar::Header::new_gnu();
            header.set_size(1);
            header.set_mode(0o600);
            header.as_mut_bytes()[..name.len()].copy_from_slice(name.as_bytes());
            header.set_cksum();
            archive.append(&header, &b"x"[..]).unwrap();
        }
        archive.into_inner().unwrap()
    }

    #[test]
    fn a_backup_brings_only_the_files_of_a_controller() {
        let scratch = tempfile::tempdir().unwrap();
        let to = StateFiles::plain(scratch.path().join("to"));
        let ours = [
            "etc/token",
            "pki/apiserver-etcd-client.crt",
            "pki/etcd/ca.key",
            "pki/rotation/etcd/ca.crt",
            "pki/rotation/open",
            "pki/sa.pub",
        ];
        let others = [
            "etc/./token",
            "etc/scheduler.conf",
            "etc/x/token",
            "pki/.key",
            "pki/config",
            "pki/other/ca.crt",
            "pki/x.conf",
        ];
        let bytes = packed_by_others(&[&others[..], &ours].concat());
        let unpacked = unpack_controller(&bytes, &to).unwrap();
        assert_eq!(unpacked.written, ours.map(PathBuf::from));
        assert_eq!(unpacked.left_out, others.map(PathBuf::from));
        let count =
            WalkDir::new(to.directory()).into_iter().flatten().filter(|e| e.file_type().is_file());
        assert_eq!(count.count(), ours.len());
    }
}
