//! The files of a context as searches and settings see them, read by name. Must not know what they mean.

use std::io::Read as _;
use std::sync::Mutex;

use crate::build::context::ContextTree;
use crate::build::items::{Node, SourceTree as _};
use crate::build::step_cache::{FileState, StatCache};
use imgctl_base::error::{Context as _, Error, IoContext as _, Kind, Result};
use imgctl_base::fs::root::Root;
use imgctl_base::settings::{MAX_SETTINGS, SETTINGS_FILE, Settings};
use imgctl_embed::ContextFiles;
use imgctl_layer::{EntryKind, LayerPath};

/// Returns the settings that a context describes for its image.
pub(super) fn settings(context: Option<&ContextTree>) -> Result<Option<Settings>> {
    let Some(context) = context else { return Ok(None) };
    let text = match Files::of(context).read(SETTINGS_FILE, MAX_SETTINGS) {
        Err(error) if error.kind() == Kind::NotFound => return Ok(None),
        text => String::from_utf8(text?)
            .map_err(|_| Error::usage(format!("{SETTINGS_FILE} is not UTF-8 text")))?,
    };
    Settings::parse(&text).map(Some).context(|| format!("cannot use {SETTINGS_FILE}"))
}

/// A context's files, filtered by its ignore rules. Files that are read by name (`.sealignore`,
/// `imgctl.lock`) are visible whatever the rules say.
pub(super) struct Files<'a> {
    pub(super) context: &'a ContextTree,
    /// Knows files that name no image.
    pub(super) known: Option<&'a Mutex<StatCache>>,
}

impl<'a> Files<'a> {
    pub(super) fn of(context: &'a ContextTree) -> Self {
        Self { context, known: None }
    }

    /// Asks what is known about a listed file.
    fn ask<T>(&self, path: &str, ask: impl FnOnce(&mut StatCache, &FileState) -> T) -> Option<T> {
        let known = self.known?;
        let state = self.context.listed(path.as_bytes())?;
        Some(ask(&mut *known.lock().ok()?, &state))
    }
}

impl ContextFiles for Files<'_> {
    fn list(&self, directory: &str) -> Result<Vec<String>> {
        let path = LayerPath::parse(directory.as_bytes())?;
        let mut files = Vec::new();
        let is_linked = prefixes(&path).chain([Ok(path.clone())]).any(|path| {
            matches!(path.and_then(|p| self.context.node(&p)), Ok(Some(Node::Symlink(_))))
        });
        if is_linked {
            Linked::new(self.context)?.add(&path, &mut files)?;
        } else if path.is_root() || self.context.node(&path)? == Some(Node::Directory) {
            let items = self.context.below(&path)?;
            let mut linked = None;
            for item in &items {
                let path = &item.entry.path;
                match &item.entry.kind {
                    EntryKind::File { .. } => push(path, &mut files),
                    // A symlink to a file of the context counts as a file.
                    EntryKind::Symlink { .. } if self.context.open(path).is_ok() => {
                        push(path, &mut files);
                    }
                    EntryKind::Symlink { .. } => {
                        let linked = match &mut linked {
                            Some(linked) => linked,
                            none => none.insert(Linked::new(self.context)?),
                        };
                        linked.add(path, &mut files)?;
                    }
                    _ => {}
                }
            }
            if self.known.is_some() {
                self.context.keep(path, items);
            }
        }
        files.sort_unstable();
        Ok(files)
    }

    fn read(&self, path: &str, limit: u64) -> Result<Vec<u8>> {
        let file = self.context.open(&LayerPath::parse(path.as_bytes())?)?;
        let shown = || self.context.path().join(path);
        let size = file.metadata().path("examine", shown())?.len();
        // One byte more than there is: the end is found at once.
        let mut bytes =
            Vec::with_capacity(usize::try_from(size.min(limit)).unwrap_or_default() + 1);
        file.take(limit.saturating_add(1)).read_to_end(&mut bytes).path("read", shown())?;
        if bytes.len() as u64 > limit {
            return Err(Error::new(
                Kind::BadContent,
                format!("{path} of the build context has more than {limit} bytes"),
            ));
        }
        Ok(bytes)
    }

    fn names_nothing(&self, path: &str) -> bool {
        self.ask(path, StatCache::names_nothing).unwrap_or(false)
    }

    fn remember_nothing(&self, path: &str) {
        self.ask(path, StatCache::remember_nothing);
    }
}

/// Returns the directories that a path leads through.
fn prefixes(path: &LayerPath) -> impl Iterator<Item = Result<LayerPath>> + '_ {
    let bytes = path.as_bytes();
    let ends = bytes.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at);
    ends.map(|end| LayerPath::parse(&bytes[..end]))
}

/// Adds the path of a file.
fn push(path: &LayerPath, files: &mut Vec<String>) {
    match std::str::from_utf8(path.as_bytes()) {
        Ok(path) => files.push(path.to_owned()),
        Err(_) => tracing::debug!("skipping {path}: its name is not UTF-8"),
    }
}

/// Maximum number of files below links to directories.
const MOST_LINKED: usize = 100_000;
/// Maximum nesting depth of directories below such a link.
const DEEPEST: usize = 64;

/// Lists what is below links to directories of the context, a directory not within itself.
struct Linked<'a> {
    context: &'a ContextTree,
    root: Root,
    left: usize,
}

impl<'a> Linked<'a> {
    fn new(context: &'a ContextTree) -> Result<Self> {
        Ok(Self { context, root: Root::open(context.path())?, left: MOST_LINKED })
    }

    /// Adds the files below `link`, if it leads to a directory.
    fn add(&mut self, link: &LayerPath, files: &mut Vec<String>) -> Result<()> {
        let mut above: Vec<_> = self.identity(&LayerPath::root()).into_iter().collect();
        for path in prefixes(link) {
            above.extend(self.identity(&path?));
        }
        self.directory(link, &mut above, files)
    }

    /// Returns what tells a directory from others.
    fn identity(&self, path: &LayerPath) -> Option<(u64, u64)> {
        let metadata = self.root.metadata(path.as_path()).ok()?;
        metadata.is_directory().then_some((metadata.dev, metadata.ino))
    }

    /// Recursion: [`DEEPEST`] bounds it.
    fn directory(
        &mut self,
        path: &LayerPath,
        above: &mut Vec<(u64, u64)>,
        files: &mut Vec<String>,
    ) -> Result<()> {
        let Some(identity) = self.identity(path) else { return Ok(()) };
        if above.contains(&identity) || above.len() > DEEPEST {
            tracing::debug!("skipping {path}: it leads back to a directory above it");
            return Ok(());
        }
        above.push(identity);
        for name in self.context.names(path)? {
            self.left = self.left.checked_sub(1).ok_or_else(|| {
                Error::new(
                    Kind::BadContent,
                    format!(
                        "more than {MOST_LINKED} files are below links to directories ({path})"
                    ),
                )
                .hint("leave such links out with the ignore rules of the context")
            })?;
            let path = path.join(&name);
            if self.context.open(&path).is_ok() {
                push(&path, files);
            } else {
                self.directory(&path, above, files)?;
            }
        }
        above.pop();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use imgctl_kubefile::ignore::IgnoreRules;

    #[test]
    fn links_to_directories_of_the_context_are_followed() {
        let place = tempfile::tempdir().unwrap();
        let of = |path: &str| place.path().join(path);
        for directory in ["charts/a", "src/sub/templates", "src/hidden"] {
            std::fs::create_dir_all(of(directory)).unwrap();
        }
        for file in [
            "charts/a/Chart.yaml",
            "src/sub/Chart.yaml",
            "src/sub/templates/p.yaml",
            "src/hidden/x",
        ] {
            std::fs::write(of(file), "x").unwrap();
        }
        for (target, link) in [
            ("../../src/sub", "charts/a/sub"),
            ("../src/sub", "charts/b"),
            ("..", "charts/a/loop"),
            ("nowhere", "charts/a/dangling"),
            ("/etc", "charts/a/outside"),
            ("Chart.yaml", "charts/a/file"),
            ("../../src/hidden", "charts/a/hidden"),
            ("src", "linked"),
        ] {
            symlink(target, of(link)).unwrap();
        }
        let rules = IgnoreRules::parse(b"charts/a/hidden\n").unwrap();
        let context = ContextTree::new("here".to_owned(), Root::open(place.path()).unwrap(), rules);
        let list = |directory| Files::of(&context).list(directory).unwrap();
        assert_eq!(
            list("charts"),
            [
                "charts/a/Chart.yaml",
                "charts/a/file",
                "charts/a/sub/Chart.yaml",
                "charts/a/sub/templates/p.yaml",
                "charts/b/Chart.yaml",
                "charts/b/templates/p.yaml",
            ]
        );
        assert_eq!(list("linked/sub"), ["linked/sub/Chart.yaml", "linked/sub/templates/p.yaml"]);
        assert_eq!(list("linked").len(), 3);
        let read = Files::of(&context).read("charts/a/sub/templates/p.yaml", 10).unwrap();
        assert_eq!(read, b"x");
    }
}
