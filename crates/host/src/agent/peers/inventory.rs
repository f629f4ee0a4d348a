//! What containerd on this host has from the cluster's registry. containerd labels each blob with the registry
//! that it came from; other content, such as private images from elsewhere, is not shared.

use std::collections::HashSet;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use rustix::fs::{Mode, OFlags};
use serde_json::Value;

use crate::containerd;
use crate::containerd::protobuf::{Fields, Writer};
use imgctl_base::error::{Error, IoContext, Kind, Result};
use imgctl_base::image::Digest;
use imgctl_base::workers::lock;
use imgctl_registry::Target;
use imgctl_registry::layout::{Facts, MAX_MANIFEST};
use imgctl_registry::server::backend::{Backend, BlobFile, Served};

/// Prefix of the label that names the registry from which a blob came.
const SOURCE: &str = "containerd.io/distribution.source.";

/// Content that a host shares with others. Calls block.
pub(super) trait Holdings: Send + Sync + 'static {
    /// Returns the digests of everything that is shared.
    fn all(&self) -> Result<HashSet<Digest>>;

    /// Opens the content; `None` if the host does not have it or does not share it.
    fn open(&self, digest: &Digest) -> Result<Option<(File, u64)>>;
}

/// containerd's content. Never written.
pub(super) struct Containerd {
    socket: String,
    /// Label of the blobs that are shared.
    label: String,
    content: PathBuf,
    client: Mutex<Option<Arc<containerd::Containerd>>>,
}

impl Containerd {
    pub(super) fn new(socket: String, domain: &str, content: PathBuf) -> Self {
        Self { socket, label: format!("{SOURCE}{domain}"), content, client: Mutex::new(None) }
    }

    fn client(&self) -> Result<Arc<containerd::Containerd>> {
        let mut client = lock(&self.client);
        if let Some(client) = &*client {
            return Ok(Arc::clone(client));
        }
        let made = Arc::new(containerd::Containerd::connect(&self.socket)?);
        *client = Some(Arc::clone(&made));
        Ok(made)
    }

    /// Asks containerd, and retries once over a new connection, because containerd may have restarted.
    fn ask<T>(&self, ask: impl Fn(&containerd::Containerd) -> Result<T>) -> Result<T> {
        match ask(&*self.client()?) {
            Err(error) if error.kind() == Kind::Network => {
                *lock(&self.client) = None;
                ask(&*self.client()?)
            }
            answer => answer,
        }
    }

    /// Returns the digest in this record of a blob if it has the label.
    fn shared(&self, info: &[u8]) -> Result<Option<Digest>> {
        let info = Fields::of(info);
        for label in info.all(5) {
            if Fields::of(label?).text(1)? == self.label {
                return Ok(Digest::parse(&info.text(1)?).ok());
            }
        }
        Ok(None)
    }
}

impl Holdings for Containerd {
    fn all(&self) -> Result<HashSet<Digest>> {
        let filter = format!("labels.\"{}\"", self.label);
        let request = Writer::default().text(1, &filter).done();
        let answers = self.ask(|containerd| {
            containerd.call_all("containerd.services.content.v1.Content/List", &request)
        })?;
        let mut found = HashSet::new();
        for answer in &answers {
            for info in Fields::of(answer).all(1) {
                found.extend(self.shared(info?)?);
            }
        }
        Ok(found)
    }

    fn open(&self, digest: &Digest) -> Result<Option<(File, u64)>> {
        let request = Writer::default().text(1, &digest.to_string()).done();
        let answer = self.ask(|containerd| {
            containerd.call("containerd.services.content.v1.Content/Info", &request)
        });
        let answer = match answer {
            Ok(answer) => answer,
            Err(error) if error.kind() == Kind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let info = Fields::of(&answer).bytes(1)?;
        if self.shared(info)?.as_ref() != Some(digest) {
            return Ok(None);
        }
        open_blob(&self.content, digest)
    }
}

/// Opens a blob below containerd's directory. A digest is safe in a path.
pub(super) fn open_blob(content: &Path, digest: &Digest) -> Result<Option<(File, u64)>> {
    let path = content.join("blobs").join(digest.algorithm().as_str()).join(digest.hex());
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file = match rustix::fs::open(&path, flags, Mode::empty()) {
        Ok(file) => File::from(file),
        Err(rustix::io::Errno::NOENT | rustix::io::Errno::LOOP) => return Ok(None),
        Err(error) => return Err(Error::io(format!("cannot open {}", path.display()), error)),
    };
    let facts = file.metadata().path("read", &path)?;
    Ok(facts.is_file().then_some((file, facts.len())))
}

/// Serves [`Holdings`] as a registry that knows no tags and lists nothing.
pub(super) struct ByDigest(pub(super) Arc<dyn Holdings>);

impl Backend for ByDigest {
    fn may_wait(&self) -> bool {
        true
    }

    fn manifest(&self, _repository: &str, target: &Target) -> Result<Option<Served>> {
        use std::io::Read as _;
        let Target::Digest(digest) = target else { return Ok(None) };
        let Some((file, size)) = self.0.open(digest)? else { return Ok(None) };
        if size > MAX_MANIFEST {
            return Ok(None);
        }
        let mut bytes = Vec::new();
        file.take(MAX_MANIFEST)
            .read_to_end(&mut bytes)
            .doing(|| format!("cannot read manifest {digest}"))?;
        // A layer or a config was asked for as a manifest.
        let Ok(facts) = Facts::parse(&bytes) else { return Ok(None) };
        let bytes = Bytes::from(bytes);
        Ok(Some(Served { digest: digest.clone(), media_type: facts.media_type, bytes }))
    }

    fn blob(&self, _repository: &str, digest: &Digest) -> Result<Option<BlobFile>> {
        let opened = self.0.open(digest)?;
        Ok(opened.map(|(file, size)| BlobFile { file: Arc::new(file), size, growing: None }))
    }

    fn blob_size(&self, _repository: &str, digest: &Digest) -> Result<Option<u64>> {
        Ok(self.0.open(digest)?.map(|(_, size)| size))
    }

    fn tags(&self, _: &str, _: Option<&str>, _: usize) -> Result<Option<Vec<String>>> {
        Ok(None)
    }

    fn repositories(&self, _: Option<&str>, _: usize) -> Result<Vec<String>> {
        Ok(Vec::new())
    }

    fn referrers(&self, _: &str, _: &Digest) -> Result<Vec<Value>> {
        Ok(Vec::new())
    }
}
