//! Interpretation of the names in a tar: the paths of entries and the targets of links, within
//! limits.

use std::collections::{BTreeMap, VecDeque};

use super::stream::refuse;
use crate::whiteout::is_reserved;
use crate::{Entry, EntryKind, LayerPath, Limits};
use imgctl_base::error::{Error, Result};

/// Maximum length of a path component in bytes, as on Linux file systems (NAME_MAX).
const MAX_NAME: usize = 255;

/// Interpretation of entry names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Names {
    /// Literally; rejects `..`. For archives whose members are looked up by name.
    Plain,
    /// As tar(1) and Docker extract them: through the archive's own symlinks, inside the root. An
    /// entry without a name is skipped; one that `..` leads outside is rejected.
    Archive,
    /// As containerd and umoci apply layers: like [`Names::Archive`], but `..` stops at the root.
    Layer,
}

/// Interprets the names of one tar.
#[derive(Debug)]
pub(crate) struct Namer {
    kind: Names,
    limits: Limits,
    own_links: OwnLinks,
}

impl Namer {
    pub(crate) fn new(kind: Names, limits: Limits) -> Self {
        Self { kind, limits, own_links: OwnLinks::default() }
    }

    pub(super) fn kind(&self) -> Names {
        self.kind
    }

    /// Records an entry that has been read: the following ones may be below it.
    pub(crate) fn add(&mut self, entry: &Entry) {
        if self.kind != Names::Plain {
            self.own_links.add(entry);
        }
    }

    /// Returns the path of an entry of this name.
    pub(crate) fn entry(&mut self, name: &[u8]) -> Result<LayerPath> {
        let path = self.path(name)?;
        if self.kind == Names::Plain {
            return Ok(path);
        }
        let place = self.own_links.place(path)?;
        self.check(&place)?;
        Ok(place)
    }

    fn path(&self, name: &[u8]) -> Result<LayerPath> {
        if name.len() > self.limits.path {
            return Err(refuse(format!(
                "a path of {} bytes is longer than the limit of {}",
                name.len(),
                self.limits.path
            )));
        }
        let path = match self.kind {
            Names::Plain => LayerPath::parse(name)?,
            Names::Archive => match LayerPath::clean(name)? {
                (path, false) => path,
                (_, true) => {
                    return Err(refuse(format!(
                        "`{}` leads outside the archive with `..`",
                        String::from_utf8_lossy(name)
                    )));
                }
            },
            Names::Layer => LayerPath::clean(name)?.0,
        };
        self.check(&path)?;
        Ok(path)
    }

    fn check(&self, path: &LayerPath) -> Result<()> {
        if path.as_bytes().len() > self.limits.path {
            return Err(refuse(format!(
                "`{path}` is longer than the limit of {} bytes",
                self.limits.path
            )));
        }
        if path.components().count() > self.limits.depth {
            return Err(refuse(format!(
                "a path is deeper than the limit of {} directories",
                self.limits.depth
            )));
        }
        if path.components().any(|name| name.len() > MAX_NAME) {
            return Err(refuse(format!("`{path}` has a component of more than {MAX_NAME} bytes")));
        }
        Ok(())
    }

    /// Interprets a hard link's target like an entry's path, except for its last component.
    pub(crate) fn hard_link_target(&mut self, raw: &[u8]) -> Result<LayerPath> {
        let path = self.path(raw)?;
        if self.kind == Names::Plain {
            return Ok(path);
        }
        let target = self.own_links.link_target(raw)?;
        self.check(&target)?;
        Ok(target)
    }

    /// Validates a symlink's target, which is returned unchanged.
    pub(super) fn symlink_target(&self, target: Vec<u8>) -> Result<Vec<u8>> {
        if target.is_empty() || target.contains(&0) || target.len() > self.limits.path {
            return Err(refuse("a symlink's target is empty, too long or has a NUL"));
        }
        Ok(target)
    }
}

/// Maximum number of symlinks followed per look-up, as in Linux.
const MAX_SYMLINKS: usize = 40;

/// Maximum length of a path with symlinks expanded, in bytes (PATH_MAX).
const MAX_EXPANDED: usize = 4096;

/// Maximum number of components looked up in total: a base amount, plus an amount per entry that
/// real archives never need. Otherwise an archive of links to links would take hours.
const STEPS: u64 = 1 << 20;
const STEPS_PER_ENTRY: u64 = 256;

/// The symlinks seen so far.
#[derive(Debug, Default)]
pub(super) struct OwnLinks {
    targets: BTreeMap<LayerPath, Vec<u8>>,
    /// A parent and its resolved path: entries are usually grouped by directory.
    last: Option<(LayerPath, LayerPath)>,
    steps: u64,
}

impl OwnLinks {
    /// Resolves the symlinks before the last component of `path` inside the root; `..` in their
    /// targets stops at the root. Missing components remain as they are.
    pub(super) fn place(&mut self, path: LayerPath) -> Result<LayerPath> {
        self.steps = self.steps.saturating_sub(STEPS_PER_ENTRY);
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Ok(path);
        };
        Ok(self.directory(parent)?.join(name))
    }

    /// Returns the path that a hard link to `raw` refers to. Unlike an entry's own name, it may
    /// contain `..` after symlinks.
    pub(super) fn link_target(&mut self, raw: &[u8]) -> Result<LayerPath> {
        let end = raw.iter().rposition(|b| !matches!(b, b'/'));
        let raw = end.map_or(&b""[..], |end| &raw[..=end]);
        let (parent, name) = match raw.iter().rposition(|b| *b == b'/') {
            Some(slash) => (&raw[..slash], &raw[slash + 1..]),
            None => (&b""[..], raw),
        };
        if matches!(name, b"" | b"." | b"..") {
            return LayerPath::clean(raw).map(|(path, _)| path);
        }
        if self.targets.is_empty() {
            return LayerPath::clean(raw).map(|(path, _)| path);
        }
        Ok(self.follow(parent)?.join(name))
    }

    /// Records an entry whose path has been resolved.
    pub(super) fn add(&mut self, entry: &Entry) {
        // A marker creates nothing, so it leads nowhere.
        if entry.path.file_name().is_some_and(is_reserved) {
            return;
        }
        let target = match &entry.kind {
            EntryKind::Symlink { target } => Some(target.clone()),
            EntryKind::HardLink { target } => self.targets.get(target).cloned(),
            _ => None,
        };
        if self.targets.is_empty() && target.is_none() {
            return;
        }
        let mut changed = self.targets.remove(&entry.path).is_some();
        if !entry.is_directory() {
            changed |= self.forget_below(&entry.path);
        }
        if let Some(target) = target {
            self.targets.insert(entry.path.clone(), target);
            changed = true;
        }
        if changed {
            self.last = None;
        }
    }

    /// Removes the symlinks below `path`, where a non-directory has replaced a directory.
    fn forget_below(&mut self, path: &LayerPath) -> bool {
        // Names are not empty and contain no NUL, so no path below sorts before this one.
        let from = path.join(&[1]);
        let below: Vec<LayerPath> = self
            .targets
            .range(from..)
            .map(|(other, _)| other)
            .take_while(|other| other.starts_with(path))
            .cloned()
            .collect();
        for path in &below {
            self.targets.remove(path);
        }
        !below.is_empty()
    }

    fn directory(&mut self, path: LayerPath) -> Result<LayerPath> {
        if self.targets.is_empty() || path.is_root() {
            return Ok(path);
        }
        if let Some((from, to)) = &self.last
            && *from == path
        {
            return Ok(to.clone());
        }
        let to = self.follow(path.as_bytes())?;
        self.last = Some((path, to.clone()));
        Ok(to)
    }

    fn follow(&mut self, path: &[u8]) -> Result<LayerPath> {
        let shown = || String::from_utf8_lossy(path).into_owned();
        let mut todo: VecDeque<Vec<u8>> = split(path).map(<[u8]>::to_vec).collect();
        let mut done = LayerPath::root();
        let mut symlinks = 0;
        let mut length = path.len();
        while let Some(name) = todo.pop_front() {
            self.steps += 1;
            if self.steps > STEPS {
                return Err(Error::bad_content("too many symlinks have to be followed"));
            }
            match &*name {
                b"" | b"." => continue,
                b".." => {
                    done = done.parent().unwrap_or_default();
                    continue;
                }
                _ => {}
            }
            let next = done.join(&name);
            let Some(target) = self.targets.get(&next) else {
                done = next;
                continue;
            };
            symlinks += 1;
            length += target.len();
            if symlinks > MAX_SYMLINKS || length > MAX_EXPANDED {
                return Err(Error::bad_content(format!(
                    "`{}` leads through too many symlinks",
                    shown()
                )));
            }
            if target.starts_with(b"/") {
                done = LayerPath::root();
            }
            for component in target.rsplit(|b| *b == b'/') {
                todo.push_front(component.to_vec());
            }
        }
        Ok(done)
    }
}

fn split(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.split(|b| *b == b'/')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> LayerPath {
        LayerPath::parse(text.as_bytes()).unwrap()
    }

    fn add(links: &mut OwnLinks, name: &str, kind: EntryKind) {
        let place = links.place(path(name)).unwrap();
        links.add(&Entry::new(place, kind, 0o755));
    }

    fn symlink(target: &str) -> EntryKind {
        EntryKind::Symlink { target: target.into() }
    }

    fn place(links: &mut OwnLinks, name: &str) -> String {
        let place = links.place(path(name)).unwrap();
        String::from_utf8(place.as_bytes().to_vec()).unwrap()
    }

    #[test]
    fn own_symlinks_are_followed_inside_the_root() {
        let mut links = OwnLinks::default();
        for (name, target) in [
            ("lib", "usr/lib"),
            ("usr/lib/up", "../../../../etc"),
            ("abs", "/usr/./share/"),
            ("chain", "abs/doc"),
            ("dot", "lib/.."),
        ] {
            add(&mut links, name, symlink(target));
        }
        for (name, expected) in [
            ("lib", "lib"),
            ("lib/x", "usr/lib/x"),
            ("lib/up/passwd", "etc/passwd"),
            ("abs/y", "usr/share/y"),
            ("chain/z", "usr/share/doc/z"),
            ("dot/share", "usr/share"),
            ("lib2/x", "lib2/x"),
        ] {
            assert_eq!(place(&mut links, name), expected, "{name}");
        }
        // Another name of a symlink is a symlink, too.
        let target = links.link_target(b"/lib").unwrap();
        add(&mut links, "lib64", EntryKind::HardLink { target });
        assert_eq!(place(&mut links, "lib64/x"), "usr/lib/x");
        // An entry that replaces a symlink ends its effect.
        add(&mut links, "lib", EntryKind::Directory);
        assert_eq!(place(&mut links, "lib/x"), "lib/x");
        add(&mut links, "lib/l", symlink("/b"));
        add(&mut links, "lib", EntryKind::File { size: 0 });
        assert_eq!(place(&mut links, "lib/l/x"), "lib/l/x");
    }

    #[test]
    fn targets_of_hard_links_lead_through_symlinks_but_the_last() {
        let mut links = OwnLinks::default();
        for (raw, expected) in [("../../etc/passwd", "etc/passwd"), ("/a//b/", "a/b")] {
            let target = links.link_target(raw.as_bytes()).unwrap();
            assert_eq!(target, path(expected), "{raw}");
        }
        add(&mut links, "d", symlink("usr/share"));
        add(&mut links, "usr/share/s", symlink("t"));
        for (raw, expected) in [
            ("d/s", "usr/share/s"),
            ("d/../f", "usr/f"),
            ("../../d/./s", "usr/share/s"),
            ("d", "d"),
        ] {
            let target = links.link_target(raw.as_bytes()).unwrap();
            assert_eq!(target, path(expected), "{raw}");
        }
        assert!(links.link_target(b"..").unwrap().is_root());
    }

    #[test]
    fn loops_and_bombs_end() {
        let mut links = OwnLinks::default();
        add(&mut links, "a", symlink("b"));
        add(&mut links, "b", symlink("a"));
        assert!(links.place(path("a/x")).is_err());
        let mut links = OwnLinks::default();
        add(&mut links, "l0", symlink(&"x/".repeat(90)));
        for number in 1..39 {
            let target = format!("l{}/{}", number - 1, "y/".repeat(9));
            links.add(&Entry::new(path(&format!("l{number}")), symlink(&target), 0o777));
        }
        let bomb = |links: &mut OwnLinks| {
            (0..1_000_000).find_map(|n| links.place(path(&format!("l38/{n}/x"))).err())
        };
        let error = bomb(&mut links).unwrap().to_string();
        assert!(error.contains("symlinks"), "{error}");
    }
}
