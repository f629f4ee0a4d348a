//! GitHub's cache service, version 2: entries that never change, found by a key or by its beginning.
//! A call of its API gives a signed URL, at which the content is written or read in blocks (Azure
//! Blob Storage). Must not know what the entries are.

use std::io::{self, Cursor, Read};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::cache::place::Opener;
use imgctl_base::error::{Error, IoContext as _, Kind, Result};
use imgctl_base::image::time::rfc3339;
use imgctl_base::secret::{Redactor, Secret};
use imgctl_registry::Client;
use imgctl_registry::client::service::{Answer, Call, Service, Transfer};

const SERVICE: &str = "GitHub's cache service";
const BLOBS: &str = "the storage of GitHub's cache service";
/// Path of the API's methods.
const API: &str = "/twirp/github.actions.results.api.v1.CacheService/";
/// SHA-256 of `imgctl build cache 1`: entries of another version are not found.
const VERSION: &str = "0de7dcee011393a3a6af7da0d265b20136e0d176d0c503546f8516cbb952dc97";
/// Maximum size of an answer of the API.
const MAX_ANSWER: u64 = 64 << 10;
/// Size of one block of an upload, and of one range of a download.
const BLOCK: u64 = 8 << 20;
/// Claims of a longer token are not read.
const MAX_TOKEN: usize = 64 << 10;

/// What a token says about itself. It is not verified: the service does that.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Claims {
    /// Seconds since 1970.
    expires: Option<i64>,
    /// Branches and tags whose entries the token may read, its own first.
    pub(super) readable: Vec<String>,
    /// The branch or tag to which new entries belong.
    pub(super) writable: Option<String>,
}

impl Claims {
    /// Reads the claims of a token; a token of another form has none.
    pub(super) fn of(token: &Secret) -> Option<Self> {
        #[derive(Deserialize)]
        struct Body {
            exp: Option<i64>,
            ac: Option<String>,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "PascalCase")]
        struct Scope {
            scope: String,
            permission: u32,
        }
        let text = token.expose();
        let body = text.get(..text.len().min(MAX_TOKEN))?.split('.').nth(1)?;
        let body = URL_SAFE_NO_PAD.decode(body.trim_end_matches('=')).ok()?;
        let body: Body = serde_json::from_slice(&body).ok()?;
        let scopes: Vec<Scope> = serde_json::from_str(&body.ac?).ok()?;
        let (read, write) = (1, 2);
        let may = |right: u32| move |scope: &&Scope| scope.permission & right != 0;
        Some(Self {
            expires: body.exp,
            readable: scopes.iter().filter(may(read)).map(|scope| scope.scope.clone()).collect(),
            writable: scopes.iter().find(may(write)).map(|scope| scope.scope.clone()),
        })
    }

    fn has_expired(&self) -> Option<i64> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        self.expires.filter(|expires| u64::try_from(*expires).is_ok_and(|expires| expires < now))
    }
}

/// Connections to the service, with a token.
pub(super) struct CacheService {
    http: Service,
    url: String,
    token: Secret,
    /// How long a request is repeated.
    timeout: Duration,
}

/// An entry that was found.
pub(super) struct Entry {
    pub(super) key: String,
    /// Signed, and therefore a secret.
    url: Secret,
}

/// An entry that is being written.
pub(super) struct Reserved {
    url: Secret,
}

impl CacheService {
    /// Connects to nothing yet.
    pub(super) fn new(
        client: &Client,
        url: &str,
        token: &Secret,
        timeout: Duration,
    ) -> Result<Self> {
        let url = url.trim_end_matches('/').to_owned();
        Ok(Self { http: client.service()?, url, token: token.clone(), timeout })
    }

    /// Returns the entry `key`, or the newest one whose key begins with it.
    pub(super) fn find(&self, key: &str) -> Result<Option<Entry>> {
        #[derive(Deserialize)]
        struct Found {
            #[serde(default)]
            ok: bool,
            #[serde(default, alias = "signedDownloadUrl")]
            signed_download_url: String,
            #[serde(default, alias = "matchedKey")]
            matched_key: String,
        }
        let request = json!({"key": key, "restore_keys": [key], "version": VERSION});
        let answer = self.call("GetCacheEntryDownloadURL", &request)?;
        if answer.status == 404 {
            return Ok(None);
        }
        let found: Found = self.parsed(&answer)?;
        let is_found = found.ok && found.matched_key.starts_with(key);
        Ok(is_found
            .then(|| Entry { key: found.matched_key, url: Secret::new(found.signed_download_url) }))
    }

    /// Returns exactly the entry `key`.
    pub(super) fn get(&self, key: &str) -> Result<Option<Entry>> {
        Ok(self.find(key)?.filter(|entry| entry.key == key))
    }

    /// Begins to write an entry; `None` if it exists or another process writes it.
    pub(super) fn reserve(&self, key: &str) -> Result<Option<Reserved>> {
        #[derive(Deserialize)]
        struct Created {
            #[serde(default)]
            ok: bool,
            #[serde(default, alias = "signedUploadUrl")]
            signed_upload_url: String,
        }
        let answer = self.call("CreateCacheEntry", &json!({"key": key, "version": VERSION}))?;
        if answer.status == 409 {
            return Ok(None);
        }
        let created: Created = self.parsed(&answer)?;
        if !created.ok {
            return Err(self.refused(&answer));
        }
        Ok(Some(Reserved { url: Secret::new(created.signed_upload_url) }))
    }

    /// Writes the content of a reserved entry, which can be found afterwards.
    pub(super) fn write(
        &self,
        key: &str,
        reserved: &Reserved,
        size: u64,
        open: &Opener<'_>,
    ) -> Result<()> {
        if size <= BLOCK {
            let content = block(&mut open(0)?, size)?;
            self.put(&reserved.url, "", &[("x-ms-blob-type", "BlockBlob")], content)?;
        } else {
            self.put_blocks(&reserved.url, size, open)?;
        }
        let request = json!({"key": key, "size_bytes": size, "version": VERSION});
        let answer = self.call("FinalizeCacheEntryUpload", &request)?;
        let finished: Value = self.parsed(&answer)?;
        match finished["ok"].as_bool() {
            Some(true) => Ok(()),
            _ => Err(self.refused(&answer)),
        }
    }

    fn put_blocks(&self, url: &Secret, size: u64, open: &Opener<'_>) -> Result<()> {
        let mut reader = open(0)?;
        let mut list = String::from("<?xml version=\"1.0\" encoding=\"utf-8\"?><BlockList>");
        let mut sent = 0;
        while sent < size {
            let length = BLOCK.min(size - sent);
            // Numbers of the same length, in an alphabet that URLs need not escape.
            let name = STANDARD.encode(format!("{:012}", sent / BLOCK));
            let content = block(&mut reader, length)?;
            self.put(url, &format!("comp=block&blockid={name}"), &[], content)?;
            list.push_str(&format!("<Latest>{name}</Latest>"));
            sent += length;
        }
        list.push_str("</BlockList>");
        let media_type = [("content-type", "application/xml")];
        self.put(url, "comp=blocklist", &media_type, list.into_bytes())
    }

    fn put(
        &self,
        url: &Secret,
        query: &str,
        headers: &[(&str, &str)],
        content: Vec<u8>,
    ) -> Result<()> {
        let url = match query {
            "" => url.expose().to_owned(),
            query if url.expose().contains('?') => format!("{}&{query}", url.expose()),
            query => format!("{}?{query}", url.expose()),
        };
        let answer = self.http.transfer(&Transfer {
            service: BLOBS,
            url: &url,
            content: Some(content.into()),
            headers,
            limit: MAX_ANSWER,
            until: self.until(),
        })?;
        match answer.status {
            200..300 => Ok(()),
            status => Err(storage_refused(status)),
        }
    }

    /// Reads a whole entry of at most `limit` bytes.
    pub(super) fn read(&self, entry: &Entry, limit: u64) -> Result<Vec<u8>> {
        let answer = self.get_bytes(&entry.url, &[], limit)?;
        match answer.status {
            200 => Ok(answer.body),
            status => Err(storage_refused(status)),
        }
    }

    /// Opens the entry `key` of `size` bytes at `offset`.
    pub(super) fn open(
        self: &Arc<Self>,
        key: &str,
        offset: u64,
        size: u64,
    ) -> Result<Box<dyn Read + Send + 'static>> {
        let entry = self.get(key)?.ok_or_else(|| missing(key))?;
        Ok(Box::new(Ranges {
            service: Arc::clone(self),
            entry,
            position: offset,
            size,
            current: Cursor::default(),
        }))
    }

    fn get_bytes(&self, url: &Secret, headers: &[(&str, &str)], limit: u64) -> Result<Answer> {
        self.http.transfer(&Transfer {
            service: BLOBS,
            url: url.expose(),
            content: None,
            headers,
            limit,
            until: self.until(),
        })
    }

    fn until(&self) -> Instant {
        Instant::now() + self.timeout
    }

    fn call(&self, method: &str, request: &Value) -> Result<Answer> {
        let answer = self.http.call(&Call {
            service: SERVICE,
            url: &format!("{}{API}{method}", self.url),
            body: Some(("application/json", request.to_string().into_bytes())),
            accept: "application/json",
            token: Some(&self.token),
            limit: MAX_ANSWER,
            until: self.until(),
        })?;
        match answer.status {
            200 | 404 | 409 => Ok(answer),
            401 | 403 => Err(self.not_accepted(answer.status)),
            _ => Err(self.refused(&answer)),
        }
    }

    fn not_accepted(&self, status: u16) -> Error {
        let why = match Claims::of(&self.token).and_then(|claims| claims.has_expired()) {
            Some(expired) => format!("it expired at {}", rfc3339(expired)),
            None => "it may have expired, or may not do this".to_owned(),
        };
        Error::new(Kind::Denied, format!("{SERVICE} answered {status} to the token: {why}"))
            .hint("the token is ACTIONS_RUNTIME_TOKEN, which lasts as long as the job")
    }

    fn refused(&self, answer: &Answer) -> Error {
        let mut redactor = Redactor::default();
        redactor.add(&self.token);
        let said = answer.said();
        let (status, said) = (answer.status, redactor.redact(&said));
        Error::new(Kind::Network, format!("{SERVICE} answered {status}: {said}"))
    }

    /// Answers hold signed URLs, which are not shown.
    fn parsed<T: serde::de::DeserializeOwned>(&self, answer: &Answer) -> Result<T> {
        if answer.status != 200 {
            return Err(self.refused(answer));
        }
        serde_json::from_slice(&answer.body)
            .map_err(|_| Error::bad_content(format!("the answer of {SERVICE} is malformed")))
    }
}

fn storage_refused(status: u16) -> Error {
    let kind = match status {
        404 => Kind::NotFound,
        401 | 403 => Kind::Denied,
        _ => Kind::Network,
    };
    Error::new(kind, format!("{BLOBS} answered {status}"))
}

fn missing(key: &str) -> Error {
    Error::not_found(format!("{SERVICE} has no entry {key}"))
}

fn block(reader: &mut dyn Read, length: u64) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    reader.take(length).read_to_end(&mut bytes).doing(|| "cannot read a layer".to_owned())?;
    if bytes.len() as u64 != length {
        return Err(Error::bad_content("a layer is shorter than its descriptor says"));
    }
    Ok(bytes)
}

/// Reads an entry in ranges, so that a broken connection costs one of them.
struct Ranges {
    service: Arc<CacheService>,
    entry: Entry,
    position: u64,
    size: u64,
    current: Cursor<Vec<u8>>,
}

impl Ranges {
    fn next(&mut self) -> Result<()> {
        let length = BLOCK.min(self.size - self.position);
        let mut answer = self.range(length)?;
        if matches!(answer.status, 401 | 403) {
            // A signed URL lasts for some minutes.
            let key = &self.entry.key;
            self.entry = self.service.get(key)?.ok_or_else(|| missing(key))?;
            answer = self.range(length)?;
        }
        let is_whole = answer.status == 200 && self.position == 0 && length == self.size;
        if answer.status != 206 && !is_whole {
            return Err(storage_refused(answer.status));
        }
        if answer.body.len() as u64 != length {
            return Err(Error::bad_content(format!("{BLOBS} sent another range than requested")));
        }
        self.position += length;
        self.current = Cursor::new(answer.body);
        Ok(())
    }

    fn range(&self, length: u64) -> Result<Answer> {
        let range = format!("bytes={}-{}", self.position, self.position + length - 1);
        self.service.get_bytes(&self.entry.url, &[("range", &range)], length)
    }
}

impl Read for Ranges {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        loop {
            let read = self.current.read(buffer)?;
            if read > 0 || self.position >= self.size {
                return Ok(read);
            }
            self.next().map_err(io::Error::other)?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use imgctl_base::testing::damaged;

    fn token(claims: &Value) -> Secret {
        let body = URL_SAFE_NO_PAD.encode(claims.to_string());
        Secret::new(format!("e30.{body}.c2ln"))
    }

    #[test]
    fn claims_tell_what_may_be_read_and_written() {
        let ac = r#"[{"Scope":"refs/heads/x","Permission":3},{"Scope":"refs/heads/main","Permission":1}]"#;
        let claims = Claims::of(&token(&json!({"exp": 100, "ac": ac}))).unwrap();
        assert_eq!(claims.readable, ["refs/heads/x", "refs/heads/main"]);
        assert_eq!(claims.writable.as_deref(), Some("refs/heads/x"));
        assert_eq!(claims.has_expired(), Some(100));
        let fork = r#"[{"Scope":"refs/pull/1/merge","Permission":1}]"#;
        assert_eq!(Claims::of(&token(&json!({"ac": fork}))).unwrap().writable, None);
        for other in ["", "opaque", "a.b.c", "..."] {
            assert_eq!(Claims::of(&Secret::new(other)), None, "{other}");
        }
        assert_eq!(Claims::of(&token(&json!({"ac": 3}))), None);
    }

    #[test]
    fn any_token_has_claims_or_none() {
        let ac = r#"[{"Scope":"refs/heads/x","Permission":3},{"Scope":"refs/heads/main","Permission":1}]"#;
        let valid = json!({"exp": 100, "ac": ac}).to_string();
        bolero::check!().for_each(|input: &[u8]| {
            let whole = String::from_utf8_lossy(input).into_owned();
            let body = URL_SAFE_NO_PAD.encode(damaged(valid.as_bytes(), input));
            for text in [whole, format!("e30.{body}.c2ln")] {
                if let Some(claims) = Claims::of(&Secret::new(text)) {
                    assert!(claims.writable.is_none_or(
                        |scope| claims.readable.len() < 1 << 16 && scope.len() < MAX_TOKEN
                    ));
                }
            }
        });
    }
}
