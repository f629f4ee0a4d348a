//! Where the journals of runs are: those of runs over hosts, and those of in-place updates.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::inplace::{JOURNALS, KUBECONFIG_JOURNALS};
use imgctl_base::error::{Error, Result};
use imgctl_journal::past;
use imgctl_workflow::pipeline::step::journals;

/// What a run works on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    /// Hosts, step by step.
    Hosts,
    /// Running Pods.
    InPlace,
}

/// The journal of a run.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    pub(crate) kind: Kind,
    pub(crate) id: String,
    pub(crate) path: PathBuf,
    /// Whether the run went through a kubeconfig, whatever the cluster.
    pub(crate) by_kubeconfig: bool,
}

/// Directories with journals of one kind each.
#[derive(Clone, Debug)]
pub(crate) struct Places(Vec<(Kind, PathBuf, bool)>);

impl Places {
    /// Those in the state of one cluster.
    pub(crate) fn of_cluster(directory: &Path) -> Self {
        Self(vec![
            (Kind::Hosts, journals(directory), false),
            (Kind::InPlace, directory.join(JOURNALS), false),
        ])
    }

    /// Those of runs through a kubeconfig, below the directory of all states.
    pub(crate) fn of_kubeconfigs(root: &Path) -> Self {
        Self(vec![(Kind::InPlace, root.join(KUBECONFIG_JOURNALS), true)])
    }

    /// Returns the directories.
    pub(crate) fn directories(&self) -> impl Iterator<Item = &Path> {
        self.0.iter().map(|(_, directory, _)| directory.as_path())
    }

    /// Returns all runs, newest first within each kind. A directory that cannot be listed is an error.
    pub(crate) fn list(&self) -> Result<Vec<Found>> {
        let mut all = Vec::new();
        for (kind, directory, by_kubeconfig) in &self.0 {
            let mut found: Vec<Found> = past::list(directory)?
                .into_iter()
                .map(|id| Found {
                    kind: *kind,
                    path: past::path_of(directory, &id),
                    id,
                    by_kubeconfig: *by_kubeconfig,
                })
                .collect();
            // Operators choose the IDs of in-place updates, so the IDs do not tell the time.
            if *kind == Kind::InPlace {
                found.sort_by_cached_key(|one| std::cmp::Reverse(changed(&one.path)));
            }
            all.append(&mut found);
        }
        Ok(all)
    }

    /// Returns the run with this ID: one of those that are listed, so that a name leads nowhere else.
    /// A cluster's own runs come before those through a kubeconfig.
    pub(crate) fn find(&self, id: &str) -> Result<Option<Found>> {
        Ok(self.list()?.into_iter().find(|found| found.id == id))
    }

    /// Returns the run whose journal changed last.
    pub(crate) fn newest(&self) -> Result<Option<Found>> {
        // The IDs of runs over hosts begin with their time, so that the first is the newest.
        let mut has_hosts = false;
        let all = self.list()?.into_iter().filter(|found| match found.kind {
            Kind::InPlace => true,
            Kind::Hosts => !std::mem::replace(&mut has_hosts, true),
        });
        Ok(all.max_by_key(|found| changed(&found.path)))
    }
}

fn changed(path: &Path) -> Option<SystemTime> {
    std::fs::metadata(path).ok()?.modified().ok()
}

/// The error for a run that is not recorded; without `run`, for a cluster without runs.
pub(crate) fn absent(cluster: &str, run: Option<&str>) -> Error {
    let what = match run {
        Some(run) => format!("no run `{}`", run.escape_debug()),
        None => "no recorded run".to_owned(),
    };
    Error::not_found(format!("cluster {cluster} has {what}")).hint(format!(
        "run `imgctl journal --cluster {cluster}` to list runs, and `imgctl inplace status --cluster \
         {cluster}` for those of in-place updates"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_run_may_be_of_either_kind() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        let write = |path: &str, age: u64| {
            let path = root.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            let file = std::fs::File::create(&path).unwrap();
            let time = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1000 - age);
            file.set_modified(time).unwrap();
        };
        let places = Places::of_cluster(&root.join("c"));
        assert!(places.newest().unwrap().is_none());
        write("c/journal/2026-run-a.jsonl", 50);
        write("c/journal/2027-run-b.jsonl", 60);
        assert_eq!(places.newest().unwrap().unwrap().id, "2027-run-b");
        write("c/inplace/web.jsonl", 10);
        write("c/inplace/zeb.jsonl", 90);
        let newest = places.newest().unwrap().unwrap();
        assert_eq!((newest.kind, &*newest.id), (Kind::InPlace, "web"));
        let ids: Vec<String> = places.list().unwrap().into_iter().map(|one| one.id).collect();
        assert_eq!(ids, ["2027-run-b", "2026-run-a", "web", "zeb"]);
        write(".inplace/only.jsonl", 0);
        assert!(places.find("only").unwrap().is_none());
        assert!(places.find("../c/inplace/web").unwrap().is_none());
        let found = Places::of_kubeconfigs(root).find("only").unwrap().unwrap();
        assert!(found.by_kubeconfig && found.path.ends_with(".inplace/only.jsonl"));
    }
}
