//! URLs as sources of ADD, downloaded into scratch files.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write as _;
use std::time::{Duration, Instant};

use crate::build::items::{Content, Item, NO_TIME, rewound};
use crate::build::options::SecretSource;
use crate::build::run_mounts::read_secret;
use imgctl_base::error::{Context as _, Error, IoContext as _, Kind, Result};
use imgctl_base::image::{Digest, Hasher};
use imgctl_base::progress::{Reporter, Unit};
use imgctl_base::text::without_logins;
use imgctl_registry::tls;
use imgctl_store::layer::{Entry, EntryKind, LayerPath, Mtime};
use imgctl_store::store::Store;
use imgctl_trust::provenance::Material;
use reqwest::header::{AUTHORIZATION, HeaderValue};
use reqwest::redirect::Policy;
use reqwest::{StatusCode, Url};

/// Maximum time to wait for a server without receiving data.
const SILENCE: Duration = Duration::from_secs(60);
/// Minimum number of bytes received within that time.
const LEAST: u64 = 16 << 10;
/// Free space that a download leaves, in bytes, and after how many bytes it is looked at.
const RESERVE: u64 = 16 << 20;
const LOOK_EVERY: u64 = 16 << 20;
const MOST_REDIRECTS: usize = 10;
/// Mode of a downloaded file (Dockerfile reference, ADD).
const DOWNLOADED_MODE: u32 = 0o600;
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

/// Downloads `url`, with the secrets for its host if there are any.
pub(super) fn fetch(
    store: &Store,
    url: &str,
    checksum: Option<&Digest>,
    secrets: &BTreeMap<String, SecretSource>,
    reporter: &dyn Reporter,
) -> Result<Fetched> {
    let address = Url::parse(url).map_err(|error| {
        Error::usage(format!("`{}` is not a URL", without_logins(url))).caused_by(error)
    })?;
    let doing = || format!("cannot download {}", without_logins(url));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .doing(|| "cannot start the network runtime".to_owned())?;
    let mut file = store.scratch_file()?;
    let name = file_name(address.path());
    let login = authorization(&address, secrets).context(doing)?;
    let check_room = |bytes: u64| store.check_room(bytes.saturating_add(RESERVE));
    let response = runtime
        .block_on(download(address, login, &mut file, checksum, &check_room, reporter))
        .context(doing)?;
    let copy = file.try_clone().doing(|| "cannot open a scratch file".to_owned())?;
    let mut entry =
        Entry::new(LayerPath::root(), EntryKind::File { size: response.size }, DOWNLOADED_MODE);
    entry.mtime = match response.modified {
        Some(seconds) => Mtime { seconds, nanoseconds: 0 },
        None => NO_TIME,
    };
    let content = Content::Range { file: rewound(file)?, offset: 0 };
    let item = Item { content, digest: Some(response.content), ..Item::bare(entry) };
    Ok(Fetched {
        name,
        item,
        file: copy,
        material: Material::file(&without_logins(url), &response.sha256),
    })
}

struct Downloaded {
    size: u64,
    content: [u8; 32],
    sha256: Digest,
    /// Seconds since 1970.
    modified: Option<i64>,
}

async fn download(
    url: Url,
    login: Option<HeaderValue>,
    file: &mut File,
    checksum: Option<&Digest>,
    check_room: &dyn Fn(u64) -> Result<()>,
    reporter: &dyn Reporter,
) -> Result<Downloaded> {
    let shown = without_logins(url.as_str()).into_owned();
    let mut request = client()?.get(url);
    if let Some(login) = login {
        request = request.header(AUTHORIZATION, login);
    }
    let mut response = request.send().await.map_err(network)?;
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
    check_room(response.content_length().unwrap_or_default())?;
    let task =
        reporter.start(&format!("downloading {shown}"), Unit::Bytes, response.content_length());
    let mut sha = checksum.map(|digest| Hasher::with(digest.algorithm()));
    let mut sha256 = Hasher::default();
    let mut hasher = blake3::Hasher::new();
    let mut size = 0;
    let (mut since, mut came, mut unseen) = (Instant::now(), 0, 0);
    while let Some(chunk) = response.chunk().await.map_err(network)? {
        file.write_all(&chunk).doing(|| "cannot write a scratch file".to_owned())?;
        hasher.update(&chunk);
        sha256.update(&chunk);
        if let Some(sha) = &mut sha {
            sha.update(&chunk);
        }
        let count = chunk.len() as u64;
        size += count;
        task.advance(count);
        unseen += count;
        if unseen >= LOOK_EVERY {
            check_room(0)?;
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
    if let (Some(sha), Some(expected)) = (sha, checksum) {
        let found = sha.finish();
        if found != *expected {
            return Err(Error::bad_content(format!("its digest is {found}, not {expected}"))
                .hint("the file has changed, or --checksum belongs to another file"));
        }
    }
    task.done(&shown);
    let content = *hasher.finalize().as_bytes();
    Ok(Downloaded { size, content, sha256: sha256.finish(), modified })
}

fn network(error: reqwest::Error) -> Error {
    Error::new(Kind::Network, "the transfer failed").caused_by(error.without_url())
}

fn client() -> Result<reqwest::Client> {
    tls::builder()?
        .referer(false)
        .redirect(Policy::custom(|attempt| {
            let is_secret = attempt.previous().last().is_some_and(|from| from.scheme() == "https");
            if is_secret && attempt.url().scheme() != "https" {
                attempt.error("the server leads from HTTPS to plain HTTP")
            } else if attempt.previous().len() > MOST_REDIRECTS {
                attempt.error("too many redirects")
            } else {
                attempt.follow()
            }
        }))
        .read_timeout(SILENCE)
        .connect_timeout(SILENCE)
        .build()
        .map_err(|error| Error::failed("cannot create an HTTP client").caused_by(error))
}

/// Returns the name of a URL's file: the last part of its decoded path (BuildKit, buildah). A
/// redirection does not change it.
fn file_name(path: &str) -> Vec<u8> {
    let decoded = percent_decode(path);
    let name = decoded.split(|b| *b == b'/').rfind(|part| !part.is_empty()).unwrap_or_default();
    if matches!(name, b"" | b"." | b"..") { UNNAMED.to_vec() } else { name.to_vec() }
}

/// Replaces `%XX` by the byte.
pub(super) fn percent_decode(text: &str) -> Vec<u8> {
    let mut decoded = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        let code =
            after.get(..2).filter(|_| *first == b'%').and_then(|hex| std::str::from_utf8(hex).ok());
        match code.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(byte) => {
                decoded.push(byte);
                rest = &after[2..];
            }
            None => {
                decoded.push(*first);
                rest = after;
            }
        }
    }
    decoded
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
