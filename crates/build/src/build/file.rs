//! Locates the inputs of a build: the Kubefile, the context, and the ignore rules.

use std::io::{BufReader, Read as _};
use std::path::{Path, PathBuf};

use crate::build::archive;
use crate::build::context::ContextTree;
use crate::build::options::{ContextSource, Options};
use imgctl_base::error::{Context as _, Error, IoContext as _, Kind, Result};
use imgctl_base::fs::root::Root;
use imgctl_base::place::Place;
use imgctl_kubefile::ast::{CheckDirective, Kubefile};
use imgctl_kubefile::diagnostic::{self, Diagnostic};
use imgctl_kubefile::ignore::IgnoreRules;
use imgctl_store::layer::unpack::{Form, NoLowerFiles, Privilege, Unpacker};
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
    /// Path of the file, unless it was read from standard input.
    pub(super) path: Option<PathBuf>,
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
        self.path.as_deref().map(|path| found.place(path, &self.bytes))
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
        let in_context = context.join(file);
        let path = if file.exists() { file.to_owned() } else { in_context };
        if !path.exists() {
            return Err(Error::not_found(format!(
                "there is no {} in the working directory or in {}",
                file.display(),
                context.display()
            ))
            .hint("name an existing Kubefile with -f, or `-f -` for standard input"));
        }
        return read(&path, &file.display().to_string());
    }
    for name in NAMES {
        let path = context.join(name);
        if path.is_file() {
            return read(&path, name);
        }
    }
    Err(Error::not_found(format!("there is no Kubefile in {}", context.display())).hint(
        "pass -f FILE; without it, Kubefile, Sealfile, Dockerfile and Containerfile are \
               tried, in this order",
    ))
}

fn read(path: &Path, name: &str) -> Result<Source> {
    let file = std::fs::File::open(path).path("open", path)?;
    let bytes = read_text(file, path)?;
    Ok(Source { name: name.to_owned(), bytes, path: Some(path.to_owned()) })
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
    let rules = ignore_rules(options, &directory.path, source)?;
    let root = Root::open(&directory.path)?;
    Ok(Some(ContextTree::new("the build context".to_owned(), root, rules)))
}

/// Returns the ignore rules: from `--ignorefile`, otherwise from `<Kubefile>` with one of the
/// suffixes `.imgctlignore`, `.dockerignore` and `.containerignore`, otherwise from the context's
/// own file.
fn ignore_rules(options: &Options, context: &Path, source: &Source) -> Result<IgnoreRules> {
    let mut candidates = Vec::new();
    if let Some(path) = &options.ignore_file {
        candidates.push(path.clone());
    } else {
        for suffix in [".imgctlignore", ".dockerignore", ".containerignore"] {
            if let Some(path) = &source.path {
                let mut name = path.as_os_str().to_owned();
                name.push(suffix);
                candidates.push(PathBuf::from(name));
            }
        }
        candidates.extend(IGNORE_NAMES.map(|name| context.join(name)));
    }
    let is_wanted = options.ignore_file.is_some();
    first_rules(candidates, is_wanted)
}

/// Returns the rules in a directory's own ignore file.
pub(crate) fn rules_of_directory(directory: &Path) -> Result<IgnoreRules> {
    let candidates = IGNORE_NAMES.map(|name| directory.join(name));
    first_rules(candidates.to_vec(), false)
}

/// Returns the rules in the first of these files that exists.
fn first_rules(candidates: Vec<PathBuf>, is_wanted: bool) -> Result<IgnoreRules> {
    for path in candidates {
        match std::fs::File::open(&path) {
            Ok(file) => {
                let bytes = read_text(file, &path)?;
                return IgnoreRules::parse(&bytes).map_err(|found| {
                    diagnostic::into_error(&found, &path.display().to_string(), &bytes)
                });
            }
            Err(error) => {
                let error = Error::io(format!("cannot open {}", path.display()), error);
                if error.kind() != Kind::NotFound || is_wanted {
                    return Err(error);
                }
            }
        }
    }
    Ok(IgnoreRules::default())
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
