//! The sources of COPY and ADD: the paths that a word names in the tree that they are copied from.
//! Must not depend on the destination.

use crate::build::items::{Node, SourceTree, clamp, follow};
use imgctl_base::error::{Error, Result};
use imgctl_base::suggest;
use imgctl_embed::plan::DIRECTORY;
use imgctl_kubefile::glob::{self, SegmentPattern};
use imgctl_layer::LayerPath;

/// Program beside a Kubefile that downloads what its build copies, by the convention of the examples.
const FETCH: &str = "fetch";

/// A source found in its tree.
pub(super) struct Source {
    pub(super) path: LayerPath,
    /// `--parents`: the part before `/./`, which is left out of the destination.
    pub(super) pivot: Option<LayerPath>,
    pub(super) word: String,
}

/// Returns the sources that a word names; only a pattern may have none.
pub(super) fn find_sources(
    tree: &dyn SourceTree,
    word: &str,
    parents: bool,
) -> Result<Vec<Source>> {
    let (pivot, pattern) = match word.split_once("/./") {
        Some((before, after)) => (Some(clamp(before.as_bytes())?), format!("{before}/{after}")),
        None => (None, word.to_owned()),
    };
    let source = |path| Source { path, pivot: pivot.clone(), word: word.to_owned() };
    let path = clamp(pattern.as_bytes())?;
    if !glob::has_meta(path.as_bytes()) {
        let real = follow(&path, &|path| tree.node(path))?;
        if tree.node(&real)?.is_none() && !path.is_root() {
            return Err(not_there(tree, &path, word));
        }
        return Ok(vec![source(path)]);
    }
    let mut found = vec![LayerPath::root()];
    for segment in path.components() {
        let mut next = Vec::new();
        // Any number of directories, but only with --parents; otherwise `**` is `*` (BuildKit).
        if parents && segment == b"**" {
            for directory in found {
                next.extend(directories_below(tree, directory)?);
            }
            found = next;
            continue;
        }
        for directory in found {
            if !glob::has_meta(segment) {
                next.push(directory.join(segment));
                continue;
            }
            let real = follow(&directory, &|path| tree.node(path))?;
            if tree.node(&real)? != Some(Node::Directory) && !real.is_root() {
                continue;
            }
            let pattern = SegmentPattern::compile(segment).map_err(|_| {
                Error::usage(format!("`{word}` is not a valid pattern")).about(word)
            })?;
            let names = tree.names(&real)?.into_iter().filter(|name| pattern.matches(name));
            next.extend(names.map(|name| directory.join(&name)));
        }
        found = next;
    }
    let mut sources = Vec::new();
    for path in found {
        let real = follow(&path, &|path| tree.node(path))?;
        if tree.node(&real)?.is_some() {
            sources.push(source(path));
        } else if tree.node(&path)?.is_some() {
            // A dangling symlink would otherwise be skipped silently.
            return Err(not_there(tree, &path, word));
        }
    }
    Ok(sources)
}

/// Returns `directory` and all directories below it; symlinks are not followed.
fn directories_below(tree: &dyn SourceTree, directory: LayerPath) -> Result<Vec<LayerPath>> {
    if !directory.is_root() && tree.node(&directory)? != Some(Node::Directory) {
        return Ok(Vec::new());
    }
    let below = tree.below(&directory)?.into_iter().map(|item| item.entry);
    let below = below.filter(|entry| entry.is_directory() && entry.path != directory);
    let mut all: Vec<LayerPath> = below.map(|entry| entry.path).collect();
    all.insert(0, directory);
    Ok(all)
}

/// Returns the error for a source that is not there, with the likely reason.
pub(super) fn not_there(tree: &dyn SourceTree, path: &LayerPath, word: &str) -> Error {
    let error = Error::not_found(format!("`{word}` is not in {}", tree.name())).about(word);
    if tree.is_ignored(path) {
        return error.hint(format!(
            "it exists, but an ignore rule excludes it; add `!{word}` to the ignore file"
        ));
    }
    if path.as_bytes() == DIRECTORY.as_bytes() {
        return error.hint(
            "`registry` stands for the embedded images, but the build embeds none; \
             `imgctl build --images-report .` lists what was found and skipped",
        );
    }
    // The typing error is below the deepest existing directory.
    let mut directory = path.parent().unwrap_or_default();
    while tree.names(&directory).is_err() && !directory.is_root() {
        directory = directory.parent().unwrap_or_default();
    }
    let names = tree.names(&directory).unwrap_or_default();
    let names: Vec<String> =
        names.iter().map(|name| String::from_utf8_lossy(name).into_owned()).collect();
    let wanted = path.components().nth(directory.components().count());
    let wanted = String::from_utf8_lossy(wanted.unwrap_or_default()).into_owned();
    // An existing name is a dangling symlink, or a file where a directory is needed.
    if names.contains(&wanted) {
        return error.hint(format!(
            "`{wanted}` exists, but it cannot be resolved: is it a dangling symlink?"
        ));
    }
    if directory.is_root() && names.iter().any(|name| name == FETCH) {
        return error.hint(format!(
            "the context has a program `{FETCH}`: run it first, it may make `{wanted}`"
        ));
    }
    match suggest::closest(&wanted, names.iter().map(String::as_str)) {
        Some(near) => {
            let near = directory.join(near.as_bytes());
            error.hint(format!("did you mean `{}`?", String::from_utf8_lossy(near.as_bytes())))
        }
        None => error.hint(
            "sources are looked up in the build context, after the ignore rules are \
                        applied",
        ),
    }
}
