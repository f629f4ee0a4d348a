//! Uploads: blobs that are being received, `_uploads/<id>/{data,startedat}`, which outlive the
//! process.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::{Duration, SystemTime};

use crate::layout::{Layout, names, paths};
use imgctl_base::error::{Error, IoContext, Result};
use imgctl_base::image::{Algorithm, Digest, Hasher};

const BUFFER: usize = 256 << 10;

/// A blob that is being received. After a drop, it can be resumed by its ID.
pub trait UploadSession: Send {
    fn id(&self) -> &str;
    /// Returns the number of received bytes.
    fn offset(&self) -> u64;
    fn append(&mut self, bytes: &[u8]) -> Result<()>;
    /// Turns the upload into the blob `digest`. A different digest is an error of kind
    /// `BadContent`.
    fn commit(&mut self, digest: &Digest) -> Result<()>;
    fn cancel(&mut self) -> Result<()>;
}

/// One blob that is being received. When dropped, it stays on disk and can be resumed.
pub struct Upload {
    layout: Layout,
    repository: String,
    id: String,
    file: File,
    offset: u64,
    /// Hash of all written bytes; `None` if another process began the upload.
    hasher: Option<(Algorithm, Hasher)>,
}

impl Layout {
    /// Begins an upload. `algorithm` is the algorithm of the expected digest, if known.
    pub fn start_upload(&self, repository: &str, algorithm: Option<Algorithm>) -> Result<Upload> {
        let repository = names::repository(repository)?.to_owned();
        let id = random_id()?;
        let directory = paths::upload(&repository, &id);
        let file = self.tree.create_in_place(&format!("{directory}/data"))?;
        let started = jiff::Timestamp::now().to_string();
        let path = format!("{directory}/startedat");
        std::io::Write::write_all(&mut self.tree.create_in_place(&path)?, started.as_bytes())
            .path("write", self.tree.shown(&path))?;
        let algorithm = algorithm.unwrap_or(Algorithm::Sha256);
        Ok(Upload {
            layout: self.clone(),
            repository,
            id,
            file,
            offset: 0,
            hasher: Some((algorithm, Hasher::with(algorithm))),
        })
    }

    /// Resumes an upload that an earlier process began; `None` if it does not exist.
    pub fn resume_upload(&self, repository: &str, id: &str) -> Result<Option<Upload>> {
        let repository = names::repository(repository)?.to_owned();
        if !names::is_upload(id) {
            return Ok(None);
        }
        let path = format!("{}/data", paths::upload(&repository, id));
        let Some(file) = self.tree.open_writable(&path)? else {
            return Ok(None);
        };
        let offset = file.metadata().path("look at", self.tree.shown(&path))?.len();
        Ok(Some(Upload {
            layout: self.clone(),
            repository,
            id: id.to_owned(),
            file,
            offset,
            hasher: None,
        }))
    }

    /// Removes uploads without activity for `age`. Returns their number.
    pub(crate) fn sweep_uploads(&self, repository: &str, age: Duration) -> Result<u64> {
        let directory = paths::uploads(names::repository(repository)?);
        let mut swept = 0;
        for id in self.tree.directories(&directory)? {
            let data = format!("{directory}/{id}/data");
            let metadata = match self.tree.metadata(&data)? {
                Some(metadata) => Some(metadata),
                None => self.tree.metadata(&format!("{directory}/{id}"))?,
            };
            let is_stale = metadata.is_some_and(|metadata| is_older(metadata.mtime.0, age));
            if is_stale && self.tree.discard(&format!("{directory}/{id}"))? {
                swept += 1;
            }
        }
        Ok(swept)
    }

    /// Calls [`Layout::sweep_uploads`] for every repository, including those that only have
    /// uploads.
    pub(crate) fn sweep_all_uploads(&self, age: Duration) -> Result<u64> {
        let mut swept = 0;
        self.each_repository(&mut |repository| {
            swept += self.sweep_uploads(repository, age)?;
            Ok(())
        })?;
        Ok(swept)
    }
}

impl UploadSession for Upload {
    fn id(&self) -> &str {
        &self.id
    }

    fn offset(&self) -> u64 {
        self.offset
    }

    fn append(&mut self, bytes: &[u8]) -> Result<()> {
        let path = || self.layout.tree.shown(&self.directory());
        self.file.write_all_at(bytes, self.offset).path("write the upload", path())?;
        self.offset += bytes.len() as u64;
        if let Some((_, hasher)) = &mut self.hasher {
            hasher.update(bytes);
        }
        Ok(())
    }

    fn commit(&mut self, digest: &Digest) -> Result<()> {
        let tree = &self.layout.tree;
        let directory = self.directory();
        let found = self.digest(digest.algorithm())?;
        if found != *digest {
            return Err(Error::bad_content(format!(
                "the content has the digest {found}, not {digest}"
            )));
        }
        // A failed write may have left more bytes than were counted.
        self.file.set_len(self.offset).path("cut", tree.shown(&directory))?;
        tree.sync_file(&self.file).path("sync", tree.shown(&directory))?;
        // A link whose blob was lost in a power failure does no harm: the blob is missing, not
        // wrong.
        let link = paths::layer_link(&self.repository, digest);
        let mut link = tree.prepare(&link, digest.to_string().as_bytes())?;
        let data = format!("{directory}/data");
        tree.rename(&data, &paths::blob_data(digest), &mut link)?;
        tree.commit(vec![link])?;
        tree.discard(&directory)?;
        Ok(())
    }

    fn cancel(&mut self) -> Result<()> {
        self.layout.tree.discard(&self.directory()).map(|_| ())
    }
}

impl Upload {
    /// Returns another handle to the content, for reading it while it arrives.
    pub fn reader(&self) -> Result<File> {
        self.file.try_clone().path("read", self.layout.tree.shown(&self.directory()))
    }

    fn directory(&self) -> String {
        paths::upload(&self.repository, &self.id)
    }

    /// Returns the digest of the received bytes: from the running hash, otherwise by reading all of
    /// them.
    fn digest(&self, wanted: Algorithm) -> Result<Digest> {
        if let Some((algorithm, hasher)) = &self.hasher
            && *algorithm == wanted
        {
            return Ok(hasher.clone().finish());
        }
        let mut hasher = Hasher::with(wanted);
        let mut buffer = vec![0; BUFFER];
        let mut at = 0;
        while at < self.offset {
            let count = self
                .file
                .read_at(&mut buffer, at)
                .path("read", self.layout.tree.shown(&self.directory()))?;
            if count == 0 {
                return Err(Error::failed("the upload was truncated while it was read"));
            }
            hasher.update(buffer.get(..count).unwrap_or_default());
            at += count as u64;
        }
        Ok(hasher.finish())
    }
}

/// Returns whether a time in seconds since 1970 is at least `age` ago.
pub(super) fn is_older(seconds: i64, age: Duration) -> bool {
    let then = SystemTime::UNIX_EPOCH + Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
    SystemTime::now().duration_since(then).is_ok_and(|since| since >= age)
}

/// Returns a random UUID (version 4).
fn random_id() -> Result<String> {
    let mut bytes = [0_u8; 16];
    aws_lc_rs::rand::fill(&mut bytes)
        .map_err(|_| Error::failed("the system provides no random numbers"))?;
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let number = u128::from_be_bytes(bytes);
    let hex = format!("{number:032x}");
    let part = |from, to| hex.get(from..to).unwrap_or_default();
    Ok([part(0, 8), part(8, 12), part(12, 16), part(16, 20), part(20, 32)].join("-"))
}
