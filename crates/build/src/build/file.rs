//! Locates the inputs of a build: the Kubefile, the context, and the ignore rules.

use std::io::{BufReader, Read as _};
use std::path::{Path, PathBuf};

use crate::build::archive;
use crate::build::context::ContextTree;
use crate::build::options::{ContextSource, Options};
use imgctl_base::error::{Context as _, Error, IoContext as _, Kind, Result};
use imgctl_base::fs::atomic;
use imgctl_base::fs::metadata::{FileKind, Metadata};
use imgctl_base::fs::root::Root;
use imgctl_base::place::Place;
use imgctl_kubefile::ast::{CheckDirective, Kubefile};
use imgctl_kubefile::diagnostic::{self, Diagnostic};
use imgctl_kubefile::ignore::IgnoreRules;
use imgctl_layer::unpack::{Form, NoLowerFiles, Privilege, Unpacker};
use imgctl_store::store::{ScratchDirectory, Store};

/// Default names of the Kubefile; the first that exists is used.
const NAMES: [&str; 5] = ["Kubefile", "Sealfile", "Dockerfile", "Containerfile", "dockerfile"];
/// Ignore files in a context's root; the first that exists is used.
const IGNORE_NAMES: [&str; 4] =
    [".imgctlignore", ".containerignore", ".dockerignore", ".sealignore"];
/// The build argument with the checks to skip and whether findings fail the build.
pub(super) const CHECK: &str = "BUILDKIT_DOCKERFILE_CHECK";
/// Maximum size of a Kubefile or ignore file, in bytes.
const MAX_TEXT: u64 = 16 << 20;

/// The Kubefile's bytes, and its name for messages.
#[derive(Clone, Debug)]
pub(super) struct Source {
    pub name: String,
    pub bytes: Vec<u8>,
    /// Where the file is, unless it was read from standard input.
    pub(super) path: Option<TextFile>,
}

/// A file of text, such as a Kubefile.
#[derive(Clone, Debug)]
pub(super) enum TextFile {
    /// The caller named it.
    Named(PathBuf),
    /// It is in the context: its path there, and its full path.
    InContext(PathBuf, PathBuf),
}

impl Source {
    /// Returns the path of the file, unless it was read from standard input.
    pub(super) fn file(&self) -> Option<&Path> {
        match self.path.as_ref()? {
            TextFile::Named(path) | TextFile::InContext(_, path) => Some(path),
        }
    }
}

impl Source {
    /// Parses what can be read of the Kubefile, and returns its mistakes. The build argument replaces
    /// the directive of the file (BuildKit).
    pub(super) fn parse_leniently(&self, options: &Options) -> Result<(Kubefile, Vec<Diagnostic>)> {
        let (mut kubefile, mistakes) = imgctl_kubefile::parse_leniently(&self.name, &self.bytes);
        if let Some(text) = options.build_args.get(CHECK) {
            kubefile.directives.check = CheckDirective::parse(text).map_err(|why| {
                Error::usage(format!("the build argument {CHECK} is `{text}`: {why}"))
            })?;
        }
        Ok((kubefile, mistakes))
    }

    /// Parses the Kubefile; all of its errors are reported at once.
    pub(super) fn parse(&self, options: &Options) -> Result<Kubefile> {
        let (kubefile, found) = self.parse_leniently(options)?;
        if found.is_empty() {
            return Ok(kubefile);
        }
        let places: Vec<Place> = found.iter().filter_map(|found| self.place(found)).collect();
        Err(diagnostic::into_error(&found, &self.name, &self.bytes).at(places))
    }

    /// Returns the place of a finding, unless the text came from standard input.
    pub(super) fn place(&self, found: &Diagnostic) -> Option<Place> {
        self.file().map(|path| found.place(path, &self.bytes))
    }
}

/// A context on disk; a temporary one is removed when this value is dropped.
#[derive(Debug)]
pub(crate) struct ContextDirectory {
    pub path: PathBuf,
    _temporary: Option<ScratchDirectory>,
}

/// Returns the context and the Kubefile of a build.
pub(super) fn load(store: &Store, options: &Options) -> Result<(Option<ContextDirectory>, Source)> {
    let standard_input = Path::new("-");
    if options.file.as_deref() == Some(standard_input) && options.context == ContextSource::Stdin {
        return Err(Error::usage("Kubefile and context cannot both come from standard input"));
    }
    let context = match &options.context {
        ContextSource::Directory(path) => {
            let metadata = std::fs::metadata(path).path("open the build context", path)?;
            if !metadata.is_dir() {
                return Err(Error::usage(format!("{} is not a directory", path.display())));
            }
            ContextDirectory { path: path.clone(), _temporary: None }
        }
        ContextSource::Archive(path) => {
            let file = std::fs::File::open(path).path("open the build context", path)?;
            unpack(store, file, &path.display().to_string())?.ok_or_else(|| {
                Error::usage(format!("{} is neither a directory nor a tar", path.display()))
            })?
        }
        ContextSource::Stdin => {
            let mut spool = store.scratch_file()?;
            std::io::copy(&mut std::io::stdin().lock(), &mut spool)
                .doing(|| "cannot read standard input".to_owned())?;
            std::io::Seek::rewind(&mut spool)
                .doing(|| "cannot rewind a scratch file".to_owned())?;
            let copy = spool.try_clone().doing(|| "cannot open a scratch file".to_owned())?;
            match unpack(store, copy, "standard input")? {
                Some(context) => context,
                None => {
                    // Not a tar: the input is the Kubefile itself, without a context.
                    let source = Source {
                        name: "standard input".to_owned(),
                        bytes: read_text(spool, Path::new("-"))?,
                        path: None,
                    };
                    return Ok((None, source));
                }
            }
        }
    };
    let source = find(options.file.as_deref(), &context.path)?;
    Ok((Some(context), source))
}

/// Returns the Kubefile `file`, or the one of the context.
pub(super) fn find(file: Option<&Path>, context: &Path) -> Result<Source> {
    if let Some(file) = file {
        if file == Path::new("-") {
            let mut bytes = Vec::new();
            std::io::stdin()
                .lock()
                .take(MAX_TEXT)
                .read_to_end(&mut bytes)
                .doing(|| "cannot read the Kubefile from standard input".to_owned())?;
            return Ok(Source { name: "standard input".to_owned(), bytes, path: None });
        }
        // Relative to the working directory (as in docker), otherwise to the context (as in
        // buildah).
        if file.exists() {
            let bytes = read_text(std::fs::File::open(file).path("open", file)?, file)?;
            let (name, path) = (file.display().to_string(), TextFile::Named(file.to_owned()));
            return Ok(Source { name, bytes, path: Some(path) });
        }
        let source = if file.is_relative() { in_context(context, file)? } else { None };
        return source.ok_or_else(|| {
            Error::not_found(format!(
                "there is no {} in the working directory or in {}",
                file.display(),
                context.display()
            ))
            .hint("name an existing Kubefile with -f, or `-f -` for standard input")
        });
    }
    for name in NAMES {
        if let Some(source) = in_context(context, Path::new(name))? {
            return Ok(source);
        }
    }
    Err(Error::not_found(format!("there is no Kubefile in {}", context.display())).hint(
        "pass -f FILE; without it, Kubefile, Sealfile, Dockerfile and Containerfile are \
               tried, in this order",
    ))
}

/// Returns the Kubefile `name` of the context. Somebody else may have made the context, so links are
/// followed only inside it, as for all its files.
fn in_context(context: &Path, name: &Path) -> Result<Option<Source>> {
    let root = Root::open(context)?;
    let is_file = |metadata: &Metadata| metadata.kind == FileKind::File;
    if !root.metadata(name).is_ok_and(|metadata| is_file(&metadata)) {
        let is_link = |metadata: Metadata| metadata.kind == FileKind::Symlink;
        if root.symlink_metadata(name).is_ok_and(is_link) && context.join(name).is_file() {
            return Err(Error::usage(format!(
                "{} is a link that leads out of the context",
                context.join(name).display()
            ))
            .hint("name the file itself with -f"));
        }
        return Ok(None);
    }
    let path = context.join(name);
    let bytes = read_text(root.open_file(name)?, &path)?;
    let place = TextFile::InContext(name.to_owned(), path);
    Ok(Some(Source { name: name.display().to_string(), bytes, path: Some(place) }))
}

fn read_text(file: std::fs::File, path: &Path) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(MAX_TEXT + 1).read_to_end(&mut bytes).path("read", path)?;
    if bytes.len() as u64 > MAX_TEXT {
        return Err(Error::bad_content(format!("{} is larger than 16 MiB", path.display())));
    }
    Ok(bytes)
}

/// Returns the build context as a tree to copy from, without what its ignore rules exclude.
pub(super) fn context_tree(
    options: &Options,
    directory: Option<&ContextDirectory>,
    source: &Source,
) -> Result<Option<ContextTree>> {
    let Some(directory) = directory else { return Ok(None) };
    let root = Root::open(&directory.path)?;
    let rules = ignore_rules(options, &root, source)?;
    Ok(Some(ContextTree::new("the build context".to_owned(), root, rules)))
}

/// Returns the ignore rules: from `--ignorefile`, otherwise from `<Kubefile>` with one of the
/// suffixes `.imgctlignore`, `.dockerignore` and `.containerignore`, otherwise from the context's
/// own file.
fn ignore_rules(options: &Options, context: &Root, source: &Source) -> Result<IgnoreRules> {
    if let Some(path) = &options.ignore_file {
        return parsed(std::fs::File::open(path).path("open", path)?, path);
    }
    for suffix in [".imgctlignore", ".dockerignore", ".containerignore"] {
        let beside = |path: &Path| {
            let mut name = path.as_os_str().to_owned();
            name.push(suffix);
            PathBuf::from(name)
        };
        let opened = match &source.path {
            Some(TextFile::Named(path)) => {
                let path = beside(path);
                let file = atomic::open_regular(&path).path("open", &path);
                file.map(|file| (file, path))
            }
            Some(TextFile::InContext(name, path)) => {
                context.open_file(&beside(name)).map(|file| (file, beside(path)))
            }
            None => continue,
        };
        if let Some((file, path)) = found(opened)? {
            return parsed(file, &path);
        }
    }
    own_rules(context)
}

/// Returns the rules in a directory's own ignore file.
pub(crate) fn own_rules(directory: &Root) -> Result<IgnoreRules> {
    for name in IGNORE_NAMES {
        if let Some(file) = found(directory.open_file(Path::new(name)))? {
            return parsed(file, &directory.path().join(name));
        }
    }
    Ok(IgnoreRules::default())
}

fn found<T>(opened: Result<T>) -> Result<Option<T>> {
    match opened {
        Err(error) if error.kind() == Kind::NotFound => Ok(None),
        opened => opened.map(Some),
    }
}

fn parsed(file: std::fs::File, path: &Path) -> Result<IgnoreRules> {
    let bytes = read_text(file, path)?;
    IgnoreRules::parse(&bytes)
        .map_err(|found| diagnostic::into_error(&found, &path.display().to_string(), &bytes))
}

/// Unpacks a tar into a directory; returns `None` if the file is not a tar.
fn unpack(store: &Store, file: std::fs::File, name: &str) -> Result<Option<ContextDirectory>> {
    let Some(items) = archive::read(store, file, name)
        .context(|| format!("cannot read the build context from {name}"))?
    else {
        return Ok(None);
    };
    let temporary = store.scratch_directory()?;
    let context =
        ContextDirectory { path: temporary.path().to_owned(), _temporary: Some(temporary) };
    let root = Root::open(&context.path)?;
    let mut unpacker =
        Unpacker::new(root.open_directory(Path::new("."))?, Form::Flat, Privilege::User)?;
    for mut item in items {
        let mut reader = BufReader::new(crate::build::items::Opened::open(&mut item)?);
        unpacker.apply(&item.entry, &mut reader, &NoLowerFiles)?;
    }
    unpacker.finish()?;
    Ok(Some(context))
}
