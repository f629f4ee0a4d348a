//! URLs as sources of ADD, downloaded into scratch files, or copied from a mirror's directory.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::Instant;

use crate::build::addresses::Addresses;
use crate::build::items::{Content, Item, NO_TIME, rewound};
use crate::build::mirrors::{Mirrors, Place};
use crate::build::options::SecretSource;
use crate::build::percent::percent_decode;
use crate::build::run_mounts::read_secret;
use imgctl_base::error::{Context as _, Error, IoContext as _, Kind, Result};
use imgctl_base::fs::root::Root;
use imgctl_base::image::{Digest, Hasher, Platform};
use imgctl_base::progress::{Reporter, Unit};
use imgctl_base::text::without_logins;
use imgctl_embed::lock::Given;
use imgctl_layer::{Entry, EntryKind, LayerPath, Mtime};
use imgctl_registry::fetch::{SILENCE, client, network, runtime, without_login};
use imgctl_store::store::Store;
use imgctl_trust::provenance::Material;
use reqwest::header::{AUTHORIZATION, HeaderValue};
use reqwest::{StatusCode, Url};

/// Minimum number of bytes received within [`SILENCE`].
const LEAST: u64 = 16 << 10;
/// Free space that a download leaves, in bytes, and after how many bytes it is looked at.
const RESERVE: u64 = 16 << 20;
const LOOK_EVERY: u64 = 16 << 20;
/// Mode of a downloaded file (Dockerfile reference, ADD).
const DOWNLOADED_MODE: u32 = 0o600;
/// Size of the buffer of a copy, in bytes.
const BUFFER: usize = 1 << 20;
/// Name of a download whose URL has none (BuildKit).
const UNNAMED: &[u8] = b"__unnamed__";

/// Whether ADD downloads `source`.
pub(crate) fn is_url(source: &str) -> bool {
    source.starts_with("http://") || source.starts_with("https://")
}

/// A downloaded file.
pub(super) struct Fetched {
    pub name: Vec<u8>,
    pub item: Item,
    /// The file itself, for unpacking.
    pub file: File,
    /// The file, as provenance names it.
    pub material: Material,
}

/// What a build wants of a URL.
pub(super) struct Wanted<'a> {
    pub url: &'a str,
    /// The value of `--checksum`.
    pub checksum: Option<&'a Digest>,
    pub secrets: &'a BTreeMap<String, SecretSource>,
    pub addresses: &'a Addresses<'a>,
    pub platform: &'a Platform,
}

/// Downloads the file, logging in with the secrets for its host if there are any.
pub(super) fn fetch(
    store: &Store,
    wanted: &Wanted<'_>,
    reporter: &dyn Reporter,
) -> Result<Fetched> {
    let Wanted { url, checksum, addresses, .. } = wanted;
    let address = Url::parse(url).map_err(|error| {
        Error::usage(format!("`{}` is not a URL", without_logins(url))).caused_by(error)
    })?;
    let name = file_name(address.path());
    let shown = without_login(&address);
    let mirror = addresses.mirrors.name_for(shown.as_str());
    let doing = || match mirror {
        Some(mirror) => format!("cannot download {shown} from the mirror {mirror}"),
        None => format!("cannot download {shown}"),
    };
    let locked = addresses.locked(shown.as_str())?;
    let mut sink = Sink::new(store.scratch_file()?, *checksum);
    let modified = match addresses.mirrors.place_of(&shown)? {
        Some(Place::File { directory, path }) => {
            copy(&directory, &path, shown.as_str(), &mut sink, reporter).context(doing)?
        }
        asked => {
            // The login of an address is for its own host.
            let asked = match asked {
                Some(Place::Url(asked)) => asked,
                _ => address,
            };
            let login = authorization(&asked, wanted.secrets).context(doing)?;
            let download = download(store, asked, shown.as_str(), login, &mut sink, reporter);
            runtime()?.block_on(download).context(doing)?
        }
    };
    let Received { file, size, content: digest, sha256, checked } = sink.finish();
    if let (Some(found), Some(expected)) = (checked, checksum)
        && found != **expected
    {
        let wrong = Error::bad_content(format!("its digest is {found}, not {expected}"));
        let hint = match mirror {
            Some(mirror) => format!(
                "the file of the mirror {mirror} differs from that of the publisher, or --checksum belongs to another file"
            ),
            None => "the file has changed, or --checksum belongs to another file".to_owned(),
        };
        return Err(wrong.hint(hint).context(doing()));
    }
    let mut given = Given::File { digest: sha256.clone(), modified };
    match locked {
        // The time may differ where a mirror has the file; that of the first build counts.
        Some(Given::File { digest, modified }) if *digest == sha256 => {
            given = Given::File { digest: digest.clone(), modified: *modified };
        }
        Some(other) => {
            return Err(addresses.differs(shown.as_str(), other, &given).context(doing()));
        }
        None => {}
    }
    let modified = match &given {
        Given::File { modified, .. } => *modified,
        Given::Commit(_) => None,
    };
    addresses.record(shown.as_str(), given, wanted.platform)?;
    let copy = file.try_clone().doing(|| "cannot open a scratch file".to_owned())?;
    let mut entry = Entry::new(LayerPath::root(), EntryKind::File { size }, DOWNLOADED_MODE);
    entry.mtime = match modified {
        Some(seconds) => Mtime { seconds, nanoseconds: 0 },
        None => NO_TIME,
    };
    let content = Content::Range { file: rewound(file)?, offset: 0 };
    let item = Item { content, digest: Some(digest), ..Item::bare(entry) };
    Ok(Fetched { name, item, file: copy, material: Material::file(shown.as_str(), &sha256) })
}

/// Takes the bytes of a file, and computes all digests that somebody needs.
struct Sink {
    file: File,
    size: u64,
    content: blake3::Hasher,
    sha256: Hasher,
    checked: Option<Hasher>,
}

/// What a sink has received.
struct Received {
    file: File,
    size: u64,
    content: [u8; 32],
    sha256: Digest,
    /// Of the algorithm of `--checksum`.
    checked: Option<Digest>,
}

impl Sink {
    fn new(file: File, checksum: Option<&Digest>) -> Self {
        Self {
            file,
            size: 0,
            content: blake3::Hasher::new(),
            sha256: Hasher::default(),
            checked: checksum.map(|digest| Hasher::with(digest.algorithm())),
        }
    }

    fn add(&mut self, chunk: &[u8]) -> Result<()> {
        self.file.write_all(chunk).doing(|| "cannot write a scratch file".to_owned())?;
        self.content.update(chunk);
        self.sha256.update(chunk);
        if let Some(checked) = &mut self.checked {
            checked.update(chunk);
        }
        self.size += chunk.len() as u64;
        Ok(())
    }

    fn finish(self) -> Received {
        Received {
            file: self.file,
            size: self.size,
            content: *self.content.finalize().as_bytes(),
            sha256: self.sha256.finish(),
            checked: self.checked.map(Hasher::finish),
        }
    }
}

/// Copies a file of a mirror's directory; links cannot leave the directory. Returns its time in seconds
/// since 1970, which a server of the directory would say.
fn copy(
    directory: &Path,
    path: &Path,
    shown: &str,
    sink: &mut Sink,
    reporter: &dyn Reporter,
) -> Result<Option<i64>> {
    let mut file = Root::open(directory)?.open_file(path)?;
    let metadata = file.metadata().path("examine", directory.join(path))?;
    let task = reporter.start(&format!("copying {shown}"), Unit::Bytes, Some(metadata.len()));
    let mut buffer = vec![0; BUFFER];
    loop {
        let count = file.read(&mut buffer).path("read", directory.join(path))?;
        if count == 0 {
            break;
        }
        sink.add(buffer.get(..count).unwrap_or_default())?;
        task.advance(count as u64);
    }
    task.done(shown);
    Ok(Some(metadata.mtime()))
}

/// Returns the error for a server that does not answer.
fn unreachable(error: reqwest::Error) -> Error {
    network(error).hint(
        "without a network, take the file from a mirror: `--mirror FROM=TO`, or mirrors.toml \
         (docs/sources.md)",
    )
}

/// Downloads `url`, which messages call `shown`. Returns the time that the server says, in seconds since
/// 1970.
async fn download(
    store: &Store,
    url: Url,
    shown: &str,
    login: Option<HeaderValue>,
    sink: &mut Sink,
    reporter: &dyn Reporter,
) -> Result<Option<i64>> {
    let mut request = client()?.get(url);
    if let Some(login) = login {
        request = request.header(AUTHORIZATION, login);
    }
    let mut response = request.send().await.map_err(unreachable)?;
    if !response.status().is_success() {
        let error = Error::new(Kind::Network, format!("the server answered {}", response.status()));
        return Err(if response.status() == StatusCode::UNAUTHORIZED {
            error.hint(format!(
                "pass a token with --secret id={TOKEN}HOST,src=FILE, or a whole Authorization header \
                 as {HEADER}HOST"
            ))
        } else {
            error
        });
    }
    let header = |name: &str| {
        response.headers().get(name).and_then(|value| value.to_str().ok()).map(str::to_owned)
    };
    let modified = header("last-modified").and_then(|text| {
        jiff::fmt::rfc2822::parse(&text).ok().map(|time| time.timestamp().as_second())
    });
    store.check_room(response.content_length().unwrap_or_default().saturating_add(RESERVE))?;
    let task =
        reporter.start(&format!("downloading {shown}"), Unit::Bytes, response.content_length());
    let (mut since, mut came, mut unseen) = (Instant::now(), 0, 0);
    while let Some(chunk) = response.chunk().await.map_err(network)? {
        sink.add(&chunk)?;
        let count = chunk.len() as u64;
        task.advance(count);
        unseen += count;
        if unseen >= LOOK_EVERY {
            store.check_room(RESERVE)?;
            unseen = 0;
        }
        came += count;
        if since.elapsed() >= SILENCE {
            if came < LEAST {
                let seconds = SILENCE.as_secs();
                let message = format!("the server sent only {came} bytes in {seconds} s");
                return Err(Error::new(Kind::Network, message));
            }
            (since, came) = (Instant::now(), 0);
        }
    }
    task.done(shown);
    Ok(modified)
}

/// Reads a small file of a server or of its mirror; `None` if it is not there. A server's answer that
/// forbids a file means the same: object stores give it for files that do not exist.
pub(super) fn read_small(address: &Url, mirrors: &Mirrors, limit: u64) -> Result<Option<Vec<u8>>> {
    let doing = || match mirrors.name_for(address.as_str()) {
        Some(mirror) => format!("cannot read {address} from the mirror {mirror}"),
        None => format!("cannot read {address}"),
    };
    let url = match mirrors.place_of(address)? {
        Some(Place::File { directory, path }) => {
            let file = match Root::open(&directory).and_then(|root| root.open_file(&path)) {
                Err(error) if error.kind() == Kind::NotFound => return Ok(None),
                file => file.context(doing)?,
            };
            let mut bytes = Vec::new();
            file.take(limit + 1).read_to_end(&mut bytes).doing(doing)?;
            return bounded(bytes, limit).map(Some).context(doing);
        }
        Some(Place::Url(url)) => url,
        None => address.clone(),
    };
    let read = async {
        let mut response = client()?.get(url).send().await.map_err(unreachable)?;
        match response.status() {
            StatusCode::NOT_FOUND | StatusCode::FORBIDDEN | StatusCode::GONE => return Ok(None),
            status if !status.is_success() => {
                return Err(Error::new(Kind::Network, format!("the server answered {status}")));
            }
            _ => {}
        }
        let mut bytes = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(network)? {
            bytes.extend_from_slice(&chunk);
            bytes = bounded(bytes, limit)?;
        }
        Ok(Some(bytes))
    };
    runtime()?.block_on(read).context(doing)
}

fn bounded(bytes: Vec<u8>, limit: u64) -> Result<Vec<u8>> {
    if bytes.len() as u64 > limit {
        return Err(Error::bad_content(format!("it has more than {limit} bytes")));
    }
    Ok(bytes)
}

/// Returns the name of a URL's file: the last part of its decoded path (BuildKit, buildah). A
/// redirection does not change it.
pub(super) fn file_name(path: &str) -> Vec<u8> {
    let decoded = percent_decode(path);
    let name = decoded.split(|b| *b == b'/').rfind(|part| !part.is_empty()).unwrap_or_default();
    if matches!(name, b"" | b"." | b"..") { UNNAMED.to_vec() } else { name.to_vec() }
}

/// Secrets with the name of a host behind these prefixes log in there (Dockerfile reference, ADD).
const HEADER: &str = "HTTP_AUTH_HEADER_";
const TOKEN: &str = "HTTP_AUTH_TOKEN_";

/// Returns the header that the secrets give for the host of `url`.
fn authorization(
    url: &Url,
    secrets: &BTreeMap<String, SecretSource>,
) -> Result<Option<HeaderValue>> {
    let host = url.host_str().unwrap_or_default();
    let with_port = url.port().map(|port| format!("{host}:{port}"));
    for host in with_port.iter().map(String::as_str).chain([host]) {
        for (prefix, scheme) in [(HEADER, ""), (TOKEN, "Bearer ")] {
            let id = format!("{prefix}{host}");
            let Some(secret) = secrets.get(&id) else { continue };
            let mut value = scheme.as_bytes().to_vec();
            value.extend(read_secret(secret)?.trim_ascii());
            let mut value = HeaderValue::from_bytes(&value).map_err(|_| {
                Error::usage(format!("secret `{id}` is not the value of an HTTP header"))
            })?;
            value.set_sensitive(true);
            return Ok(Some(value));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_names_come_from_the_decoded_path() {
        for (path, name) in [
            ("/a/b.txt", "b.txt"),
            ("/a/", "a"),
            ("/a%20b", "a b"),
            ("/a%2Fb", "b"),
            ("/100%", "100%"),
            ("/", "__unnamed__"),
            ("", "__unnamed__"),
            ("/..", "__unnamed__"),
        ] {
            assert_eq!(String::from_utf8(file_name(path)).unwrap(), name, "{path}");
        }
    }
}
