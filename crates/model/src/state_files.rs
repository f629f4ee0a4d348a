//! The private files of one cluster on the controller: plain, or encrypted in the format of age to
//! the recipients that the file `recipients` names.
//!
//! Everything that holds keys, passwords or tokens of a cluster is read and written here; records
//! without secrets (journals, logs, plans of upgrades) are plain files beside it. Must not know what
//! is in a file.

use std::fs::File;
use std::io::{BufRead as _, BufReader, ErrorKind, Read, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use crate::state_identity::StateIdentity;
use imgctl_age as age;
use imgctl_age::{Encrypting, Recipients};
use imgctl_base::error::{Context as _, Error, IoContext as _, Kind, Result};
use imgctl_base::fs::atomic::{self, Durability};
use imgctl_base::fs::directory::read_text;

/// Names for whom the state is encrypted: one recipient a line. Without the file, it is plain.
pub(super) const RECIPIENTS: &str = "recipients";
/// Maximum size of that file, in bytes.
const LONGEST: u64 = 1 << 20;
/// Files that were encrypted, or decrypted, as a whole, and are not in their places yet (see
/// [`super::state_encryption`]).
pub(super) const REPLACED: &str = ".replaced";
/// Directory of the files below it.
pub(super) const FILES: &str = "files";

/// The private files below one state directory.
#[derive(Clone, Debug)]
pub struct StateFiles {
    directory: PathBuf,
    identity: StateIdentity,
}

impl StateFiles {
    /// Files of `directory`; `identity` decrypts them if they are encrypted.
    pub fn new(directory: impl Into<PathBuf>, identity: StateIdentity) -> Self {
        Self { directory: directory.into(), identity }
    }

    /// Files of a directory that is never encrypted.
    pub fn plain(directory: impl Into<PathBuf>) -> Self {
        Self::new(directory, StateIdentity::default())
    }

    /// Returns the state directory.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Returns the path of a file in its place.
    pub fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.directory.join(name)
    }

    /// Returns those for whom the files are encrypted; `None` if they are plain.
    pub fn recipients(&self) -> Result<Option<Recipients>> {
        let path = self.path(RECIPIENTS);
        let Some(text) = read_text(&path, LONGEST)? else { return Ok(None) };
        Recipients::parse(&text, &path.display().to_string()).map(Some)
    }

    /// Reads at most `longest` bytes of a text; `None` if the file does not exist.
    pub fn read(&self, name: impl AsRef<Path>, longest: u64) -> Result<Option<String>> {
        let Some(bytes) = self.read_bytes(&name, longest)? else { return Ok(None) };
        String::from_utf8(bytes)
            .map(Some)
            .map_err(|_| Error::bad_content(format!("{} is not text", self.path(name).display())))
    }

    /// Reads at most `longest` bytes; `None` if the file does not exist.
    pub fn read_bytes(&self, name: impl AsRef<Path>, longest: u64) -> Result<Option<Vec<u8>>> {
        // What was committed counts, wherever it is.
        let replaced = self.path(REPLACED).join(FILES).join(&name);
        for path in [replaced, self.path(&name)] {
            if let Some(reader) = self.open(&path)? {
                let mut bytes = Vec::new();
                reader.take(longest).read_to_end(&mut bytes).path("read", &path)?;
                return Ok(Some(bytes));
            }
        }
        Ok(None)
    }

    /// Opens a file whose content is not imgctl's own, such as a snapshot. While the state is plain, a
    /// file in the format of age is content like any other and stays as it is. `None` if it does not exist.
    pub fn open_opaque(&self, path: &Path) -> Result<Option<Box<dyn Read + Send>>> {
        if self.recipients()?.is_some() {
            return self.open(path);
        }
        Ok(opened(path)?.map(|reader| -> Box<dyn Read + Send> { Box::new(reader) }))
    }

    /// Opens any file of this machine: one that is encrypted is decrypted. `None` if it does not
    /// exist.
    pub fn open(&self, path: &Path) -> Result<Option<Box<dyn Read + Send>>> {
        let Some(mut reader) = opened(path)? else { return Ok(None) };
        reader.fill_buf().path("read", path)?;
        if !age::is_encrypted(&mut reader) {
            return Ok(Some(Box::new(reader)));
        }
        let Some(identities) = self.identity.load()? else {
            return Err(self.locked());
        };
        match age::decrypt(reader, &identities) {
            Ok(reader) => Ok(Some(Box::new(reader))),
            Err(error) if error.kind() == Kind::Denied => Err(self.locked()),
            Err(error) => Err(error.context(format!("cannot decrypt {}", path.display()))),
        }
    }

    /// Fails unless the identity that was given decrypts what is encrypted to `recipients`.
    pub fn check_identity(&self, recipients: &Recipients) -> Result<()> {
        let Some(identities) = self.identity.load()? else {
            return Err(self.refusal(recipients));
        };
        let own = identities.recipients()?;
        let known = recipients.text().unwrap_or_default();
        if own.iter().any(|own| known.lines().any(|line| line == own)) {
            return Ok(());
        }
        Err(self.refusal(recipients))
    }

    /// Returns the error for files that nothing at hand decrypts.
    fn locked(&self) -> Error {
        match self.recipients() {
            Ok(Some(recipients)) => self.refusal(&recipients),
            Ok(None) => Error::denied(format!(
                "files of {} are encrypted, and the file {RECIPIENTS} that names their recipients \
                 is missing",
                self.directory.display()
            ))
            .hint("write the recipients (age1…) into it again, one a line"),
            Err(error) => error,
        }
    }

    fn refusal(&self, recipients: &Recipients) -> Error {
        let text = recipients.text().unwrap_or_default();
        let names: Vec<&str> = text.lines().collect();
        let cluster = self.directory.file_name().unwrap_or_default().to_string_lossy();
        let what = format!("the state of cluster {cluster} is encrypted to {}", names.join(", "));
        match self.identity.name() {
            None => Error::denied(what).hint(
                "name the file with the identity of one of them: --state-identity FILE, or \
                 IMGCTL_STATE_IDENTITY",
            ),
            Some(file) => {
                Error::denied(format!("{what}, and {file} has the identity of none of them"))
                    .hint("name another file: --state-identity FILE, or IMGCTL_STATE_IDENTITY")
            }
        }
    }

    /// Replaces a file, which only its owner can read; durable on return.
    pub fn write(&self, name: impl AsRef<Path>, text: &str) -> Result<()> {
        let path = self.path(name);
        let Some(recipients) = self.recipients()? else {
            self.refuse_plain(&path)?;
            return atomic::write_private(&path, text);
        };
        let mut writer = age::encrypt(Vec::new(), &recipients)?;
        writer.write_all(text.as_bytes()).path("encrypt", &path)?;
        let bytes = writer.finish()?;
        atomic::make_private(path.parent().unwrap_or(&self.directory))?;
        atomic::write(&path, &bytes, 0o600, Durability::Durable)
    }

    /// Fails if a file is encrypted and would be replaced by a plain one: the list of recipients was
    /// lost.
    fn refuse_plain(&self, path: &Path) -> Result<()> {
        let Ok(file) = File::open(path) else { return Ok(()) };
        if age::is_encrypted(&mut BufReader::with_capacity(256, file)) {
            return Err(self.locked());
        }
        Ok(())
    }

    /// Begins a large file below the state directory, as [`Self::write`] would write it.
    pub fn create(&self, path: &Path) -> Result<PrivateFile> {
        PrivateFile::create(path, self.recipients()?.as_ref())
    }
}

fn opened(path: &Path) -> Result<Option<BufReader<File>>> {
    match File::open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        file => Ok(Some(BufReader::with_capacity(1 << 16, file.path("open", path)?))),
    }
}

/// A private file that is being written: it is in its place when [`Self::commit`] has returned.
pub struct PrivateFile {
    content: Content,
    path: PathBuf,
}

enum Content {
    Plain(File),
    Encrypted(Box<Encrypting<File>>),
}

impl PrivateFile {
    /// Begins a file that is encrypted to `recipients`, or plain.
    pub(super) fn create(path: &Path, recipients: Option<&Recipients>) -> Result<Self> {
        atomic::make_private(path.parent().unwrap_or(Path::new(".")))?;
        let partial = Self::partial(path);
        let mut options = File::options();
        options.write(true).create(true).truncate(true).mode(0o600);
        let file = options.open(&partial).path("create", &partial)?;
        let content = match recipients {
            None => Content::Plain(file),
            Some(recipients) => Content::Encrypted(Box::new(
                age::encrypt(file, recipients)
                    .context(|| format!("cannot write {}", path.display()))?,
            )),
        };
        Ok(Self { content, path: path.to_owned() })
    }

    fn partial(path: &Path) -> PathBuf {
        path.with_added_extension("part")
    }

    /// Completes the file, syncs it and puts it into its place.
    pub fn commit(self) -> Result<()> {
        let file = match self.content {
            Content::Plain(file) => file,
            Content::Encrypted(writer) => writer.finish()?,
        };
        let partial = Self::partial(&self.path);
        file.sync_all().path("sync", &partial)?;
        std::fs::rename(&partial, &self.path).path("rename", &partial)?;
        atomic::sync_directory(self.path.parent().unwrap_or(Path::new(".")))
    }
}

impl Write for PrivateFile {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        match &mut self.content {
            Content::Plain(file) => file.write(bytes),
            Content::Encrypted(writer) => writer.write(bytes),
        }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
