//! Reads a backup: manifest, config and details first, then parts, each verified before it is used.

use std::io::{self, Read, Write};
use std::sync::mpsc::sync_channel;

use crate::backup::document::{
    ARTIFACT, CONFIG, Config, DETAILS, Details, ENCRYPTED, PART, PartRecord,
};
use crate::transfer::source::ImageSource;
use imgctl_age as age;
use imgctl_age::Identities;
use imgctl_base::error::{Context as _, Error, IoContext as _, Kind, Result};
use imgctl_base::image::{Descriptor, Digest, Document, Hasher, Manifest};

/// Maximum size of a config or of details, in bytes.
const LONGEST: u64 = 16 << 20;
/// Bytes of content that are hashed at once.
const PIECE: usize = 1 << 20;
/// Number of pieces that wait to be hashed.
const PIECES: usize = 2;

/// A backup of which manifest and config were read.
pub struct Found {
    pub root: Descriptor,
    pub config: Config,
    manifest: Manifest,
    /// Name for messages.
    name: String,
}

/// A backup whose details were read, with what decrypts it.
pub struct Opened<'a> {
    pub details: Details,
    found: &'a Found,
    identities: &'a Identities,
}

impl Found {
    /// Reads manifest and config, whose digests are verified.
    pub fn read(source: &dyn ImageSource) -> Result<Self> {
        let name = source.describe();
        let doing = || format!("cannot use {name} as a backup");
        let root = source.root().context(doing)?;
        let read = || -> Result<Self> {
            let no_backup = || {
                Error::usage("it is no backup of imgctl")
                    .hint("`imgctl restore` takes what `imgctl backup` wrote")
            };
            let media = root.descriptor.media_type.as_str();
            if Digest::of(&root.bytes) != root.descriptor.digest {
                return Err(edited("its manifest"));
            }
            let Document::Manifest(manifest) = Document::parse(&root.bytes, Some(media))? else {
                return Err(no_backup());
            };
            if manifest.artifact_type.as_deref() != Some(ARTIFACT)
                || manifest.config.media_type != CONFIG
            {
                return Err(no_backup());
            }
            let config = Config::parse(&small(source, &manifest.config)?)?;
            let root = root.descriptor.clone();
            Ok(Self { root, config, manifest, name: name.clone() })
        };
        read().context(doing)
    }

    /// Reads the details. Identities demand an encrypted backup: a place that others can write to may
    /// have another one by now.
    pub fn open<'a>(
        &'a self,
        source: &dyn ImageSource,
        identities: &'a Identities,
    ) -> Result<Opened<'a>> {
        let read = || -> Result<Details> {
            let first = self.manifest.layers.first();
            let first = first.ok_or_else(|| Error::bad_content("it has no details"))?;
            let is_encrypted = self.config.encryption.is_some();
            if !is_encrypted && !identities.is_empty() {
                return Err(Error::denied(
                    "it is not encrypted, although an identity or a passphrase was given: anybody \
                     who can write to its place can have replaced it",
                )
                .hint("if it was made without encryption, pass neither"));
            }
            if self.is_sealed(first, DETAILS)? != is_encrypted {
                return Err(edited("its list of layers"));
            }
            let bytes = small(source, first)?;
            let bytes = if is_encrypted {
                let mut clear = Vec::new();
                let reader = age::decrypt(bytes.as_slice(), identities)?;
                reader.take(LONGEST + 1).read_to_end(&mut clear).map_err(unreadable)?;
                clear
            } else {
                bytes
            };
            let details = Details::parse(&bytes, &self.config)?;
            for part in &details.parts {
                let layer = self.layer(part)?;
                if self.is_sealed(layer, PART)? != is_encrypted {
                    return Err(edited("its list of layers"));
                }
            }
            Ok(details)
        };
        let details = read().context(|| format!("cannot use {} as a backup", self.name))?;
        Ok(Opened { details, found: self, identities })
    }

    /// Whether a layer is encrypted; fails if it is something else than `what`.
    fn is_sealed(&self, layer: &Descriptor, what: &str) -> Result<bool> {
        match layer.media_type.strip_prefix(what) {
            Some("") => Ok(false),
            Some(ENCRYPTED) => Ok(true),
            _ => Err(Error::bad_content(format!(
                "a layer of it has the media type {}",
                layer.media_type.escape_debug()
            ))),
        }
    }

    fn layer(&self, part: &PartRecord) -> Result<&Descriptor> {
        let mut layers = self.manifest.layers.iter().skip(1);
        layers.find(|layer| layer.digest == part.blob).ok_or_else(|| {
            Error::bad_content(format!(
                "its part {} is not in the artifact: it was edited",
                part.name
            ))
        })
    }
}

impl Opened<'_> {
    /// Returns a small part, verified.
    pub fn bytes(&self, source: &dyn ImageSource, name: &str) -> Result<Vec<u8>> {
        let part = self.part(name)?;
        if part.size > LONGEST {
            return Err(Error::bad_content(format!("{name} of the backup is too large")));
        }
        let mut bytes = Vec::new();
        self.read(source, part, |blob| verify(blob, part, &mut bytes))?;
        Ok(bytes)
    }

    /// Writes the zstd frames of a part to `to`; their content is verified on the way. What was written before an
    /// error must not be used.
    pub fn write_frames(
        &self,
        source: &dyn ImageSource,
        name: &str,
        to: &mut dyn Write,
    ) -> Result<()> {
        let part = self.part(name)?;
        self.read(source, part, |blob| {
            let mut frames = Copied { inner: blob, to, failed: None };
            let verified = verify(&mut frames, part, &mut io::sink());
            match frames.failed {
                Some(error) => Err(Error::io("cannot write it", error)),
                None => verified,
            }
        })
    }

    fn part(&self, name: &str) -> Result<&PartRecord> {
        self.details
            .part(name)
            .ok_or_else(|| Error::not_found(format!("{} has no part {name}", self.found.name)))
    }

    /// Reads a part with `consume`, which gets it decrypted.
    fn read(
        &self,
        source: &dyn ImageSource,
        part: &PartRecord,
        consume: impl FnOnce(&mut dyn Read) -> Result<()>,
    ) -> Result<()> {
        let read = || -> Result<()> {
            let layer = self.found.layer(part)?;
            let mut blob = Verified::new(source.open(layer, 0)?, layer);
            let consumed = if self.found.config.encryption.is_some() {
                age::decrypt(&mut blob, self.identities).and_then(|mut reader| consume(&mut reader))
            } else {
                consume(&mut blob)
            };
            // Damage to the blob is the reason of whatever it made of its content.
            blob.check()?;
            consumed
        };
        read().context(|| format!("cannot use {} of {}", part.name, self.found.name))
    }
}

/// Copies what is read to `to`.
struct Copied<'a> {
    inner: &'a mut dyn Read,
    to: &'a mut dyn Write,
    failed: Option<io::Error>,
}

impl Read for Copied<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(into)?;
        if let Err(error) = self.to.write_all(&into[..read]) {
            self.failed = Some(error);
            return Err(io::Error::other("it cannot be written"));
        }
        Ok(read)
    }
}

/// Decompresses a part, writes it to `to` and verifies it. Another thread hashes.
fn verify(reader: &mut dyn Read, part: &PartRecord, to: &mut dyn Write) -> Result<()> {
    let decoder = zstd::stream::Decoder::new(reader).map_err(unreadable)?;
    let mut decoder = decoder.take(part.size.saturating_add(1));
    let (hashed, size) = std::thread::scope(|scope| -> Result<_> {
        let (sender, pieces) = sync_channel::<Vec<u8>>(PIECES);
        let hash = scope.spawn(move || {
            let mut hasher = Hasher::new();
            pieces.iter().for_each(|piece| hasher.update(&piece));
            hasher.finish()
        });
        let mut size = 0;
        loop {
            let mut piece = Vec::with_capacity(PIECE);
            let mut limited = (&mut decoder).take(PIECE as u64);
            limited.read_to_end(&mut piece).map_err(unreadable)?;
            if piece.is_empty() {
                break;
            }
            size += piece.len() as u64;
            to.write_all(&piece).doing(|| "cannot write it".to_owned())?;
            if sender.send(piece).is_err() {
                break;
            }
        }
        drop(sender);
        let died = |_| Error::failed("the thread that hashes it has died");
        Ok((hash.join().map_err(died)?, size))
    })?;
    if size == part.size && hashed == part.digest {
        return Ok(());
    }
    Err(edited("its content"))
}

/// Whoever edited the artifact, or the disk under it.
fn edited(what: &str) -> Error {
    Error::bad_content(format!("{what} is not what was backed up: it was damaged or edited"))
}

fn unreadable(error: io::Error) -> Error {
    match error.kind() {
        io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof | io::ErrorKind::Other => {
            Error::new(Kind::BadContent, "it is truncated or damaged").caused_by(error)
        }
        _ => Error::io("cannot read it", error),
    }
}

/// Returns a small blob, verified.
fn small(source: &dyn ImageSource, blob: &Descriptor) -> Result<Vec<u8>> {
    if blob.size > LONGEST {
        return Err(Error::bad_content(format!("blob {} is too large", blob.digest)));
    }
    let mut bytes = Vec::new();
    let mut reader = Verified::new(source.open(blob, 0)?, blob);
    reader.read_to_end(&mut bytes).doing(|| format!("cannot read blob {}", blob.digest))?;
    reader.check()?;
    Ok(bytes)
}

/// Reads at most a blob's size and hashes it.
struct Verified<'a> {
    inner: io::Take<Box<dyn Read + Send>>,
    hasher: Hasher,
    bytes: u64,
    blob: &'a Descriptor,
}

impl<'a> Verified<'a> {
    fn new(inner: Box<dyn Read + Send>, blob: &'a Descriptor) -> Self {
        let inner = inner.take(blob.size.saturating_add(1));
        Self { inner, hasher: Hasher::with(blob.digest.algorithm()), bytes: 0, blob }
    }

    /// Reads the rest; fails if the blob is not the one that was announced.
    fn check(mut self) -> Result<()> {
        let blob = self.blob;
        io::copy(&mut self, &mut io::sink())
            .doing(|| format!("cannot read blob {}", blob.digest))?;
        let computed = self.hasher.finish();
        if self.bytes == blob.size && computed == blob.digest {
            return Ok(());
        }
        let what = if self.bytes < blob.size { "is truncated" } else { "has other content" };
        Err(Error::bad_content(format!(
            "blob {} of {} bytes {what}: the backup was damaged or edited",
            blob.digest, blob.size
        ))
        .hint("use another backup, or another copy of this one"))
    }
}

impl Read for Verified<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(into)?;
        self.hasher.update(&into[..read]);
        self.bytes += read as u64;
        Ok(read)
    }
}
