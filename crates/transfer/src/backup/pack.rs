//! Packs files into an artifact in its own directory, an OCI image layout. In one pass, each part is compressed,
//! unless it already is, and encrypted if there are recipients.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use serde::Serialize;
use serde_json::{Map, Value};

use crate::backup::document::{
    ARTIFACT, CLUSTER, CONFIG, CREATED, Config, DETAILS, Details, ENCRYPTED, PART, PartRecord,
    TITLE, VERSION, is_name,
};
use imgctl_age as age;
use imgctl_age::{Encrypting, Recipients};
use imgctl_base::error::{Context as _, Error, IoContext as _, Result};
use imgctl_base::fs::atomic::{self, Durability};
use imgctl_base::image::descriptor::REF_NAME;
use imgctl_base::image::{Descriptor, Digest, Hasher, Index, Manifest, media_type};

/// Level for parts that are not compressed yet: keys and lists.
const LEVEL: i32 = 3;
const BUFFER: usize = 1 << 20;

/// Returns the digest that a part has where it comes from.
pub(super) type Expected<'a> = Box<dyn FnOnce() -> Result<Digest> + 'a>;

/// Writes the content of a part, and returns its digest and size.
type WriteContent<'a> = &'a mut dyn FnMut(&mut dyn Write) -> io::Result<(Digest, u64)>;

/// A backup that is being packed.
pub struct Packer {
    directory: PathBuf,
    config: Config,
    recipients: Option<Recipients>,
    parts: Vec<PartRecord>,
    layers: Vec<Descriptor>,
}

/// A backup in a directory.
#[derive(Clone, Debug)]
pub struct Packed {
    /// Descriptor of its manifest.
    pub root: Descriptor,
    /// Size of all its layers.
    pub bytes: u64,
}

impl Packer {
    /// Begins a backup in `directory`, which must not exist. Only the owner can enter it.
    pub fn begin(
        directory: &Path,
        cluster: &str,
        created: &str,
        recipients: Option<Recipients>,
    ) -> Result<Self> {
        atomic::make_private(&directory.join("blobs/sha256"))?;
        Ok(Self {
            directory: directory.to_owned(),
            config: Config {
                version: VERSION,
                cluster: cluster.to_owned(),
                created: created.to_owned(),
                writer: env!("CARGO_PKG_VERSION").to_owned(),
                encryption: recipients.as_ref().map(|_| "age".to_owned()),
            },
            recipients,
            parts: Vec::new(),
            layers: Vec::new(),
        })
    }

    /// Adds a part.
    pub fn add(&mut self, name: &str, content: &mut dyn Read) -> Result<()> {
        self.add_with(name, None, &mut |target| compress(content, target))
    }

    /// Adds a part that consists of zstd frames with at most `longest` bytes of content each. Fails if a
    /// frame is damaged, or if the digest of the content is not the one that `expected` returns, which is
    /// called at the end.
    pub fn add_frames(
        &mut self,
        name: &str,
        frames: &mut dyn Iterator<Item = io::Result<Vec<u8>>>,
        longest: u64,
        expected: Option<Expected<'_>>,
    ) -> Result<()> {
        self.add_with(name, expected, &mut |target| copy_frames(frames, longest, target))
    }

    /// Adds a part; `write` supplies its content.
    fn add_with(
        &mut self,
        name: &str,
        expected: Option<Expected<'_>>,
        write: WriteContent<'_>,
    ) -> Result<()> {
        let doing = || format!("cannot pack {name}");
        if !is_name(name) || self.parts.iter().any(|part| part.name == name) {
            return Err(Error::bad_content(format!(
                "`{}` cannot be the name of a file in a backup",
                name.escape_debug()
            ))
            .hint("letters, digits, `.`, `_` and `-` are allowed, and each name once"));
        }
        let mut target = Hashed::new(self.blob_file(name)?);
        let (digest, size) = match &self.recipients {
            Some(recipients) => {
                let mut encrypting = age::encrypt(target, recipients)?;
                let written = write(&mut encrypting).doing(doing)?;
                target = Encrypting::finish(encrypting)?;
                written
            }
            None => write(&mut target).doing(doing)?,
        };
        if let Some(expected) = expected.map(|ask| ask()).transpose()?
            && expected != digest
        {
            return Err(Error::bad_content(format!(
                "{name} arrived with the digest {digest} instead of {expected}: it changed \
                 meanwhile, or was damaged on its way"
            )));
        }
        let blob = self.keep(name, target).context(doing)?;
        let mut layer = Descriptor::new(&self.media(PART), blob.digest.clone(), blob.size);
        if self.recipients.is_none() {
            layer.annotations.insert(TITLE.to_owned(), format!("{name}.zst"));
        }
        self.parts.push(PartRecord { name: name.to_owned(), digest, size, blob: blob.digest });
        self.layers.push(layer);
        Ok(())
    }

    /// Writes the documents. `about` is what the cluster says of itself, `name` the artifact's name in
    /// the directory.
    pub fn finish(mut self, about: Map<String, Value>, name: &str) -> Result<Packed> {
        let details = Details {
            version: VERSION,
            cluster: self.config.cluster.clone(),
            created: self.config.created.clone(),
            parts: std::mem::take(&mut self.parts),
            about,
        };
        let text = encoded(&details)?;
        let mut target = Hashed::new(self.blob_file("details")?);
        let doing = || "cannot pack the details".to_owned();
        target = match &self.recipients {
            Some(recipients) => {
                let mut target = age::encrypt(target, recipients)?;
                target.write_all(&text).doing(doing)?;
                target.finish()?
            }
            None => {
                target.write_all(&text).doing(doing)?;
                target
            }
        };
        let mut first = self.keep("details", target)?;
        first.media_type = self.media(DETAILS);
        if self.recipients.is_none() {
            first.annotations.insert(TITLE.to_owned(), "details.json".to_owned());
        }
        self.layers.insert(0, first);
        let config = self.document(CONFIG, &self.config)?;
        let manifest = Manifest {
            schema_version: 2,
            media_type: Some(media_type::OCI_MANIFEST.to_owned()),
            artifact_type: Some(ARTIFACT.to_owned()),
            config,
            layers: self.layers.clone(),
            subject: None,
            annotations: [
                (CLUSTER.to_owned(), self.config.cluster.clone()),
                (CREATED.to_owned(), self.config.created.clone()),
            ]
            .into(),
        };
        let root = self.document(media_type::OCI_MANIFEST, &manifest)?;
        let mut entry = root.clone();
        entry.artifact_type = Some(ARTIFACT.to_owned());
        entry.annotations.insert(REF_NAME.to_owned(), name.to_owned());
        let index = encoded(&Index::new(vec![entry]))?;
        let layout = br#"{"imageLayoutVersion":"1.0.0"}"#;
        for (file, bytes) in [("oci-layout", &layout[..]), ("index.json", &index)] {
            atomic::write(&self.directory.join(file), bytes, 0o600, Durability::Atomic)?;
        }
        let bytes = self.layers.iter().map(|layer| layer.size).sum();
        Ok(Packed { root, bytes })
    }

    fn media(&self, of: &str) -> String {
        match self.recipients {
            Some(_) => format!("{of}{ENCRYPTED}"),
            None => of.to_owned(),
        }
    }

    fn part_path(&self, name: &str) -> PathBuf {
        self.directory.join(format!("{name}.part"))
    }

    fn blob_file(&self, name: &str) -> Result<File> {
        let path = self.part_path(name);
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(0o600);
        options.open(&path).path("create", &path)
    }

    /// Moves a file that is complete to its digest.
    fn keep(&self, name: &str, target: Hashed<File>) -> Result<Descriptor> {
        let from = self.part_path(name);
        let digest = target.hasher.finish();
        target.inner.sync_data().path("sync", &from)?;
        let to = self.directory.join("blobs/sha256").join(digest.hex());
        std::fs::rename(&from, &to).path("rename", &from)?;
        Ok(Descriptor::new("", digest, target.bytes))
    }

    fn document(&self, media: &str, value: &impl Serialize) -> Result<Descriptor> {
        let bytes = encoded(value)?;
        let digest = Digest::of(&bytes);
        let path = self.directory.join("blobs/sha256").join(digest.hex());
        atomic::write(&path, &bytes, 0o600, Durability::Atomic)?;
        Ok(Descriptor::new(media, digest, bytes.len() as u64))
    }
}

fn encoded(value: &impl Serialize) -> Result<Vec<u8>> {
    serde_json::to_vec(value)
        .map_err(|error| Error::failed("cannot write the backup").caused_by(error))
}

/// Compresses `content`, and returns its digest and size.
fn compress(content: &mut dyn Read, target: &mut dyn Write) -> io::Result<(Digest, u64)> {
    let mut encoder = zstd::stream::Encoder::new(target, LEVEL)?;
    let (mut hasher, mut size) = (Hasher::new(), 0);
    let mut buffer = vec![0; BUFFER];
    loop {
        let read = match content.read(&mut buffer) {
            Ok(0) => break,
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        hasher.update(&buffer[..read]);
        size += read as u64;
        encoder.write_all(&buffer[..read])?;
    }
    encoder.finish()?;
    Ok((hasher.finish(), size))
}

/// Writes frames unchanged, and returns digest and size of their content. Another thread decompresses them for
/// that purpose.
fn copy_frames(
    frames: &mut dyn Iterator<Item = io::Result<Vec<u8>>>,
    longest: u64,
    target: &mut dyn Write,
) -> io::Result<(Digest, u64)> {
    std::thread::scope(|scope| {
        let (sender, waiting) = sync_channel(1);
        let content = scope.spawn(move || content_of(waiting, longest));
        let written = write_frames(frames, sender, target);
        let died = |_| Err(io::Error::other("the thread that verifies it has died"));
        // If that thread stopped at a damaged frame, its error is the cause.
        let content = content.join().unwrap_or_else(died)?;
        written.map(|()| content)
    })
}

fn write_frames(
    frames: &mut dyn Iterator<Item = io::Result<Vec<u8>>>,
    verified: SyncSender<Arc<Vec<u8>>>,
    target: &mut dyn Write,
) -> io::Result<()> {
    let mut is_empty = true;
    for frame in frames {
        let frame = Arc::new(frame?);
        if verified.send(Arc::clone(&frame)).is_err() {
            return Ok(());
        }
        target.write_all(&frame)?;
        is_empty = false;
    }
    if is_empty {
        target.write_all(&zstd::bulk::compress(&[], LEVEL)?)?;
    }
    drop(verified);
    Ok(())
}

/// Returns digest and size of the content of frames.
fn content_of(frames: Receiver<Arc<Vec<u8>>>, longest: u64) -> io::Result<(Digest, u64)> {
    let mut decompressor = zstd::bulk::Decompressor::new()?;
    let mut content = Vec::with_capacity(usize::try_from(longest).map_err(io::Error::other)?);
    let (mut hasher, mut size) = (Hasher::new(), 0);
    for frame in frames {
        decompressor.decompress_to_buffer(frame.as_slice(), &mut content)?;
        hasher.update(&content);
        size += content.len() as u64;
    }
    Ok((hasher.finish(), size))
}

/// Hashes and counts what is written to it.
struct Hashed<W> {
    inner: W,
    hasher: Hasher,
    bytes: u64,
}

impl<W> Hashed<W> {
    fn new(inner: W) -> Self {
        Self { inner, hasher: Hasher::new(), bytes: 0 }
    }
}

impl<W: Write> Write for Hashed<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.inner.write(bytes)?;
        self.hasher.update(&bytes[..written]);
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}
