//! Hosts on which a run began to work but that did not become members: no other record shows that
//! something may be left on them. A reset cleans them too, and `delete` accepts them.
//!
//! Stored beside the Clusterfile, in the same form, until they are members or clean; with the images
//! that the run was to bring them, whose scripts clean them.

use std::path::PathBuf;

use crate::image::ImageKind;
use crate::state::State;
use crate::{
    clusterfile,
    clusterfile::{ClusterDocument, Clusterfile, HostGroup, Mount},
};
use imgctl_base::error::{Context as _, Result};
use imgctl_base::fs::atomic;
use imgctl_host::host::address::Address;

const FILE: &str = "Clusterfile.touched";

impl State {
    fn touched_file(&self) -> PathBuf {
        self.directory().join(FILE)
    }

    /// Returns the hosts, each in a group of its own.
    pub fn touched(&self) -> Result<Vec<HostGroup>> {
        Ok(self.read_touched()?.hosts)
    }

    /// Returns the rootfs image that these hosts got, or were to get.
    pub fn touched_rootfs(&self) -> Result<Option<Mount>> {
        let mounts = self.read_touched()?.status.mounts;
        Ok(mounts.into_iter().find(|mount| mount.kind == ImageKind::Rootfs.as_str()))
    }

    fn read_touched(&self) -> Result<ClusterDocument> {
        let path = self.touched_file();
        let Some(text) = self.files().read(FILE, clusterfile::MAX_LENGTH as u64 + 1)? else {
            return Ok(ClusterDocument::default());
        };
        let (read, _) = clusterfile::read_stored(&text, &path.display().to_string())?;
        Ok(read.cluster)
    }

    /// Records the hosts of `documents` in addition to those already recorded, except those of
    /// `stored`, which the Clusterfile itself names; and `images`, which they get. Durable on return.
    pub fn touch(
        &self,
        documents: &[&ClusterDocument],
        stored: &ClusterDocument,
        images: &[Mount],
    ) -> Result<()> {
        let mut touched = self.read_touched()?;
        for document in documents {
            let groups = document.one_by_one()?.into_iter().map(|(_, group)| group);
            touched.hosts.extend(groups);
        }
        // A removal brings none.
        let is_rootfs = |mount: &Mount| mount.kind == ImageKind::Rootfs.as_str();
        if images.iter().any(is_rootfs) {
            touched.status.mounts = images.to_vec();
        }
        self.keep_touched(touched, stored, &stored.addresses()?)
    }

    /// Removes hosts that are now members of `stored`, and hosts that were cleaned.
    pub fn untouch(&self, stored: &ClusterDocument, cleaned: &[Address]) -> Result<()> {
        let mut known = stored.addresses()?;
        known.extend_from_slice(cleaned);
        self.keep_touched(self.read_touched()?, stored, &known)
    }

    /// Removes all hosts.
    pub fn untouch_all(&self) -> Result<()> {
        atomic::remove_tree(&self.touched_file())
    }

    fn keep_touched(
        &self,
        touched: ClusterDocument,
        stored: &ClusterDocument,
        known: &[Address],
    ) -> Result<()> {
        let mut document = ClusterDocument { hosts: touched.hosts, ..stored.clone() };
        document.status.mounts = touched.status.mounts;
        let mut seen = known.to_vec();
        let mut kept = Vec::new();
        for (address, group) in document.one_by_one()? {
            if !seen.contains(&address) {
                seen.push(address);
                kept.push(group);
            }
        }
        if kept.is_empty() {
            return self.untouch_all();
        }
        document.hosts = kept;
        let file = Clusterfile { cluster: document, ..Clusterfile::default() };
        self.prepare()?;
        self.files()
            .write(FILE, &file.write()?)
            .context(|| format!("cannot record the hosts that cluster `{}` touched", self.name()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::States;
    use crate::state_identity::StateIdentity;

    fn document(hosts: &[&str]) -> ClusterDocument {
        ClusterDocument {
            name: "one".into(),
            images: vec!["a:b".into()],
            hosts: vec![HostGroup {
                ips: hosts.iter().map(|host| (*host).to_owned()).collect(),
                roles: vec!["master".into()],
                ..HostGroup::default()
            }],
            ..ClusterDocument::default()
        }
    }

    #[test]
    fn hosts_are_remembered_until_they_are_members_or_clean() {
        let directory = tempfile::tempdir().unwrap();
        let state =
            States::new(directory.path().into(), StateIdentity::default()).of("one").unwrap();
        let ips = || -> Vec<String> {
            let groups = state.touched().unwrap();
            groups.into_iter().flat_map(|group| group.ips).collect()
        };
        assert!(ips().is_empty());
        let cluster = document(&["10.0.0.1"]);
        let wanted = document(&["10.0.0.1", "10.0.0.2-10.0.0.4"]);
        let image = Mount {
            image: "a:b".into(),
            kind: "rootfs".into(),
            labels: [("clean".to_owned(), "clean.sh --all".to_owned())].into(),
            ..Mount::default()
        };
        let rootfs = || state.touched_rootfs().unwrap();
        state.touch(&[&wanted, &cluster], &cluster, std::slice::from_ref(&image)).unwrap();
        assert_eq!(ips(), ["10.0.0.2:22", "10.0.0.3:22", "10.0.0.4:22"]);
        state.touch(&[&wanted], &cluster, &[]).unwrap();
        assert_eq!((ips().len(), rootfs()), (3, Some(image.clone())));
        let cleaned = document(&["10.0.0.3"]).addresses().unwrap();
        state.untouch(&document(&["10.0.0.1", "10.0.0.2"]), &cleaned).unwrap();
        assert_eq!((ips(), rootfs()), (vec!["10.0.0.4:22".to_owned()], Some(image)));
        state.untouch(&wanted, &[]).unwrap();
        assert!(!state.touched_file().exists());
    }
}
