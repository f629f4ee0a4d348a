//! The files of a context as searches and settings see them, read by name. Must not know what they mean.

use std::io::Read as _;
use std::sync::Mutex;

use crate::build::context::ContextTree;
use crate::build::items::{Node, SourceTree as _};
use crate::build::step_cache::{FileState, StatCache};
use crate::embed::ContextFiles;
use imgctl_base::error::{Context as _, Error, IoContext as _, Kind, Result};
use imgctl_base::settings::{MAX_SETTINGS, SETTINGS_FILE, Settings};
use imgctl_store::layer::{EntryKind, LayerPath};

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
        if !path.is_root() && self.context.node(&path)? != Some(Node::Directory) {
            return Ok(Vec::new());
        }
        let mut files = Vec::new();
        let items = self.context.below(&path)?;
        for item in &items {
            let path = &item.entry.path;
            let is_file = match &item.entry.kind {
                EntryKind::File { .. } => true,
                // A symlink to a file of the context counts as a file.
                EntryKind::Symlink { .. } => self.context.open(path).is_ok(),
                _ => false,
            };
            match std::str::from_utf8(path.as_bytes()) {
                Ok(path) if is_file => files.push(path.to_owned()),
                Err(_) if is_file => tracing::debug!("skipping {path}: its name is not UTF-8"),
                _ => {}
            }
        }
        if self.known.is_some() {
            self.context.keep(path, items);
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
