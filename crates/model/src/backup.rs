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
/// Names the addresses of the former hosts; the new cluster gets one of its own.
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

/// Writes what [`pack_controller`] packed into the state directory.
pub fn unpack_controller(bytes: &[u8], state: &StateFiles) -> Result<()> {
    let doing = || "cannot use the controller's keys in the backup".to_owned();
    let mut archive = tar::Archive::new(Cursor::new(bytes).take(MOST_OF_ALL));
    for entry in archive.entries().doing(doing)? {
        let mut entry = entry.doing(doing)?;
        let path = entry.path().doing(doing)?.into_owned();
        let plain = path.components().all(|part| matches!(part, Component::Normal(_)));
        let is_ours = DIRECTORIES.iter().any(|directory| path.starts_with(directory));
        if !plain || !is_ours || !entry.header().entry_type().is_file() || entry.size() > MOST {
            return Err(Error::bad_content(format!(
                "the backup has a file `{}`, which does not belong to a controller",
                path.display().to_string().escape_debug()
            )));
        }
        let mut text = String::new();
        entry.read_to_string(&mut text).doing(doing)?;
        state.write(&path, &text).context(doing)?;
    }
    Ok(())
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
            ("journal/x", "left out"),
        ] {
            from.write(name, text).unwrap();
        }
        let packed = pack_controller(&from).unwrap();
        assert_eq!(packed, pack_controller(&from).unwrap());
        unpack_controller(&packed, &to).unwrap();
        let count =
            WalkDir::new(to.directory()).into_iter().flatten().filter(|e| e.file_type().is_file());
        assert_eq!(count.count(), 3);
        assert_eq!(std::fs::read_to_string(to.path("pki/ca.key")).unwrap(), "secret");

        for name in ["../x", "/etc/x", "other/x", "pki/../../x"] {
            let mut archive = tar::Builder::new(Vec::new());
            let mut header = tar::Header::new_gnu();
            header.set_size(1);
            header.set_mode(0o600);
            // `append_data` refuses such names itself.
            let field = header.as_mut_bytes();
            field[..name.len()].copy_from_slice(name.as_bytes());
            header.set_cksum();
            archive.append(&header, &b"x"[..]).unwrap();
            let bytes = archive.into_inner().unwrap();
            let error = unpack_controller(&bytes, &to).unwrap_err();
            assert_eq!(error.kind(), Kind::BadContent, "{name}: {error}");
        }
    }
}
