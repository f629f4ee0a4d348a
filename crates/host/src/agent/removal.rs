//! Removes files and trees of this machine: never through a symlink, never across a mount point,
//! and never what the system itself needs. What remains is reported with the reason.

use std::ffi::OsStr;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use crate::agent::files;
use imgctl_base::error::{IoContext, Result};
use imgctl_base::fs::atomic;

/// Directories that are never removed as a whole, in addition to those directly below the root.
const KEPT: [&str; 16] = [
    "/etc/systemd",
    "/etc/systemd/system",
    "/usr/bin",
    "/usr/lib",
    "/usr/lib/systemd",
    "/usr/local",
    "/usr/local/bin",
    "/usr/local/lib",
    "/usr/local/sbin",
    "/usr/sbin",
    "/usr/share",
    "/var/cache",
    "/var/lib",
    "/var/log",
    "/var/spool",
    "/var/tmp",
];

/// Removes each path; returns what remains and why. A missing path is not an error.
pub(super) fn remove(paths: &[String]) -> Result<Vec<String>> {
    let mut left = Vec::new();
    for path in paths {
        match place(path) {
            Err(error) => left.push(format!("{path}: {error}")),
            Ok(None) => {}
            Ok(Some(place)) if is_kept(&place) => {
                left.push(format!("{path}: not removed, because the system needs it"));
            }
            Ok(Some(place)) => {
                let points = mount_points()?;
                let below: Vec<&Path> = points
                    .iter()
                    .map(PathBuf::as_path)
                    .filter(|point| point.starts_with(&place))
                    .collect();
                remove_around(&place, &below, &mut left);
            }
        }
    }
    Ok(left)
}

/// Resolves symlinks in the parents of the path, but not in its last component. Returns `None` if
/// the path does not exist.
fn place(path: &str) -> Result<Option<PathBuf>> {
    let path = files::absolute(path)?;
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Ok(Some(path));
    };
    match parent.canonicalize() {
        Ok(parent) => {
            let place = parent.join(name);
            Ok(std::fs::symlink_metadata(&place).is_ok().then_some(place))
        }
        Err(error)
            if matches!(
                error.kind(),
                std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory
            ) =>
        {
            Ok(None)
        }
        Err(error) => Err(error).path("look at", parent),
    }
}

fn is_kept(place: &Path) -> bool {
    let is_directory = std::fs::symlink_metadata(place).is_ok_and(|found| found.is_dir());
    let depth = place.components().count();
    // `/` counts as one component.
    depth <= 1 || (is_directory && (depth == 2 || KEPT.iter().any(|kept| place == Path::new(kept))))
}

/// Removes a tree except for its mount points and the directories that lead to them.
fn remove_around(path: &Path, points: &[&Path], left: &mut Vec<String>) {
    if points.contains(&path) {
        left.push(format!("{}: something is mounted on it", path.display()));
        return;
    }
    if !points.iter().any(|point| point.starts_with(path)) {
        if let Err(error) = atomic::remove_tree(path) {
            left.push(format!("{}: {error}", path.display()));
        }
        return;
    }
    let entries = match std::fs::read_dir(path) {
        Ok(entries) => entries,
        Err(error) => {
            left.push(format!("{}: cannot list it: {error}", path.display()));
            return;
        }
    };
    for entry in entries.flatten() {
        remove_around(&entry.path(), points, left);
    }
}

/// Returns the mount points that this process sees.
fn mount_points() -> Result<Vec<PathBuf>> {
    let table = "/proc/self/mountinfo";
    let bytes = std::fs::read(table).path("read", table)?;
    Ok(bytes
        .split(|byte| *byte == b'\n')
        .filter_map(|line| line.split(|byte| *byte == b' ').nth(4))
        .map(|point| PathBuf::from(std::ffi::OsString::from_vec(unescape(point))))
        .collect())
}

/// Decodes the octal escapes that the kernel writes for blanks and backslashes.
fn unescape(text: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((first, tail)) = rest.split_first() {
        rest = tail;
        let code = (*first == b'\\')
            .then(|| tail.get(..3))
            .flatten()
            .and_then(|digits| OsStr::from_bytes(digits).to_str())
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match code {
            Some(byte) => {
                bytes.push(byte);
                rest = tail.get(3..).unwrap_or_default();
            }
            None => bytes.push(*first),
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn text(path: &Path) -> String {
        path.to_str().unwrap().to_owned()
    }

    #[test]
    fn trees_go_and_what_links_lead_to_stays() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        std::fs::create_dir_all(root.join("tree/a b/c")).unwrap();
        std::fs::create_dir(root.join("outside")).unwrap();
        std::fs::write(root.join("outside/kept"), "").unwrap();
        symlink(root.join("outside"), root.join("tree/link")).unwrap();
        symlink(root.join("outside"), root.join("direct")).unwrap();
        symlink(root.join("tree"), root.join("way")).unwrap();
        let paths = [
            root.join("way/a b"),
            root.join("direct"),
            root.join("tree"),
            root.join("not/there"),
            root.join("outside/kept/under"),
        ];
        let left = remove(&paths.map(|path| text(&path))).unwrap();
        assert!(left.is_empty(), "{left:?}");
        let mut names: Vec<_> =
            std::fs::read_dir(root).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["outside", "way"]);
        assert!(root.join("outside/kept").exists());
    }

    #[test]
    fn the_system_is_kept_and_odd_paths_are_refused() {
        // Only checks the decision: a bug must not destroy the machine that runs the test.
        for path in ["/", "/usr", "/etc", "/var/lib", "/usr/local/bin"] {
            assert!(is_kept(&place(path).unwrap().unwrap()), "{path}");
        }
        let directory = tempfile::tempdir().unwrap();
        assert!(!is_kept(directory.path()));
        assert!(!is_kept(Path::new("/etc/kubernetes")));
        for path in ["", "relative", "/tmp/../etc", "/tmp/a\0b"] {
            assert!(place(path).is_err(), "{path}");
        }
    }

    #[test]
    fn mount_points_are_gone_around() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        for name in ["t/a/mounted", "t/b", "t/a/other"] {
            std::fs::create_dir_all(root.join(name)).unwrap();
        }
        std::fs::write(root.join("t/a/mounted/file"), "").unwrap();
        let point = root.join("t/a/mounted");
        let mut left = Vec::new();
        remove_around(&root.join("t"), &[&point], &mut left);
        assert_eq!(left.len(), 1);
        assert!(left[0].contains("mounted on it"), "{left:?}");
        assert!(point.join("file").exists());
        assert!(!root.join("t/b").exists() && !root.join("t/a/other").exists());
    }

    #[test]
    fn the_kernels_escapes_are_undone() {
        assert_eq!(unescape(b"/a\\040b\\134c\\x"), b"/a b\\c\\x");
        assert!(mount_points().unwrap().contains(&PathBuf::from("/proc")));
    }
}
