//! A fake of GitHub's cache service and its blob storage, which tests cannot reach: entries that never
//! change, found in the job's own branch first, uploaded in blocks, read in ranges.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use serde_json::{Value, json};

/// Part of every signed URL.
pub(crate) const SIGNATURE: &str = "c2lnbmVkLXNlY3JldA";
const METHODS: &str = "/twirp/github.actions.results.api.v1.CacheService/";

/// A running service; it ends with the process.
pub(crate) struct Service {
    pub(crate) url: String,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    url: String,
    entries: Vec<Entry>,
    /// Answers instead of the real ones: part of the path, status, how often.
    faults: Vec<(String, u16, u32)>,
    requests: Vec<String>,
}

struct Entry {
    key: String,
    version: String,
    branch: String,
    blocks: BTreeMap<String, Vec<u8>>,
    content: Vec<u8>,
    is_finished: bool,
}

/// A token as a job has it: the branches it may read, of which it may write the first if `writes`.
pub(crate) fn token(branches: &[&str], writes: bool, expires: i64) -> String {
    let encode = |value: Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let scopes: Vec<Value> = branches
        .iter()
        .enumerate()
        .map(|(at, branch)| json!({"Scope": branch, "Permission": if at == 0 && writes { 3 } else { 1 }}))
        .collect();
    let claims = json!({"ac": json!(scopes).to_string(), "exp": expires});
    format!("{}.{}.c2lnbmF0dXJl", encode(json!({"alg": "RS256"})), encode(claims))
}

struct Request {
    method: String,
    target: String,
    authorization: String,
    range: Option<(usize, usize)>,
    body: Vec<u8>,
}

impl Service {
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        let state = Arc::new(Mutex::new(State { url: url.clone(), ..State::default() }));
        let shared = Arc::clone(&state);
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let state = Arc::clone(&shared);
                std::thread::spawn(move || serve(&stream, &state));
            }
        });
        Self { url, state }
    }

    /// The next `count` requests whose path has `part` are answered with `status`.
    pub(crate) fn fail(&self, part: &str, status: u16, count: u32) {
        self.state.lock().unwrap().faults.push((part.to_owned(), status, count));
    }

    /// The service works again.
    pub(crate) fn behave(&self) {
        self.state.lock().unwrap().faults.clear();
    }

    /// The requests since the last call: method and path.
    pub(crate) fn requests(&self) -> Vec<String> {
        std::mem::take(&mut self.state.lock().unwrap().requests)
    }

    /// The keys of the finished entries.
    pub(crate) fn keys(&self) -> Vec<String> {
        let state = self.state.lock().unwrap();
        state.entries.iter().filter(|entry| entry.is_finished).map(|e| e.key.clone()).collect()
    }

    /// Evicts the entries whose content has more bytes than this.
    pub(crate) fn evict(&self, larger: usize) {
        self.state.lock().unwrap().entries.retain(|entry| entry.content.len() <= larger);
    }

    /// Replaces all entries by those of another cache: the bytes of its newest state, and its blobs by digest.
    pub(crate) fn replace(&self, index: Vec<u8>, blobs: impl Iterator<Item = (String, Vec<u8>)>) {
        let mut state = self.state.lock().unwrap();
        let newest = state.entries.iter().find(|entry| entry.key.contains("-index-")).unwrap();
        let (key, version, branch) =
            (newest.key.clone(), newest.version.clone(), newest.branch.clone());
        state.entries.clear();
        let blobs = blobs.map(|(digest, bytes)| (format!("imgctl-blob-1-{digest}"), bytes));
        for (key, content) in blobs.chain([(key, index)]) {
            let number = state.add(&key, &version, &branch);
            state.entries[number].content = content;
            state.entries[number].is_finished = true;
        }
    }

    /// What a job leaves that died while it wrote `key`.
    pub(crate) fn abandon(&self, key: &str, branch: &str) {
        let mut state = self.state.lock().unwrap();
        let version = state.entries[0].version.clone();
        state.add(key, &version, branch);
    }
}

impl State {
    fn add(&mut self, key: &str, version: &str, branch: &str) -> usize {
        self.entries.push(Entry {
            key: key.to_owned(),
            version: version.to_owned(),
            branch: branch.to_owned(),
            blocks: BTreeMap::new(),
            content: Vec::new(),
            is_finished: false,
        });
        self.entries.len() - 1
    }

    fn answer(&mut self, request: &Request) -> (u16, Vec<u8>) {
        self.requests.push(format!("{} {}", request.method, request.target));
        let fault = self
            .faults
            .iter_mut()
            .find(|(part, _, left)| *left > 0 && request.target.contains(part.as_str()));
        if let Some((_, status, left)) = fault {
            *left -= 1;
            return (*status, b"{\"code\":\"unavailable\",\"msg\":\"try later\"}".to_vec());
        }
        if let Some(method) = request.target.strip_prefix(METHODS) {
            let body = serde_json::from_slice(&request.body).unwrap();
            let (status, answer) = self.call(method, &body, &request.authorization);
            return (status, answer.to_string().into_bytes());
        }
        self.blob(request)
    }

    fn call(&mut self, method: &str, body: &Value, authorization: &str) -> (u16, Value) {
        let token = authorization.strip_prefix("Bearer ").unwrap_or_default();
        let claims = token.split('.').nth(1).and_then(|part| URL_SAFE_NO_PAD.decode(part).ok());
        let Some(claims) = claims else {
            return (401, json!({"code": "unauthenticated", "msg": format!("bad token {token}")}));
        };
        let claims: Value = serde_json::from_slice(&claims).unwrap();
        let scopes: Value = serde_json::from_str(claims["ac"].as_str().unwrap()).unwrap();
        let scopes = scopes.as_array().unwrap();
        let text = |name: &str| body[name].as_str().unwrap_or_default().to_owned();
        let (key, version) = (text("key"), text("version"));
        let own = scopes[0]["Scope"].as_str().unwrap();
        match method {
            "GetCacheEntryDownloadURL" => {
                let found = scopes.iter().find_map(|scope| {
                    let of_scope = |entry: &&(usize, &Entry)| {
                        let entry = entry.1;
                        entry.is_finished
                            && entry.version == version
                            && scope["Scope"] == entry.branch
                    };
                    let all: Vec<(usize, &Entry)> = self.entries.iter().enumerate().collect();
                    let exact = all.iter().filter(of_scope).find(|(_, entry)| entry.key == key);
                    exact.copied().or_else(|| {
                        let keys = body["restore_keys"].as_array().unwrap();
                        keys.iter().find_map(|prefix| {
                            let begins = |(_, e): &&(usize, &Entry)| {
                                e.key.starts_with(prefix.as_str().unwrap())
                            };
                            all.iter().rev().filter(of_scope).find(begins).copied()
                        })
                    })
                });
                match found {
                    None => (200, json!({"ok": false})),
                    Some((number, entry)) => {
                        let url = format!("{}blob/{number}?sig={SIGNATURE}", self.url);
                        let answer = json!({"ok": true, "signed_download_url": url, "matched_key": entry.key});
                        (200, answer)
                    }
                }
            }
            "CreateCacheEntry" => {
                if scopes[0]["Permission"] != 3 {
                    return (403, json!({"code": "permission_denied", "msg": "read only"}));
                }
                let is_same = |e: &Entry| e.key == key && e.version == version && e.branch == own;
                if self.entries.iter().any(is_same) {
                    return (409, json!({"code": "already_exists", "msg": "cache entry exists"}));
                }
                let number = self.add(&key, &version, own);
                let url = format!("{}blob/{number}?sig={SIGNATURE}", self.url);
                (200, json!({"ok": true, "signed_upload_url": url}))
            }
            "FinalizeCacheEntryUpload" => {
                let is_same =
                    |e: &&mut Entry| e.key == key && e.version == version && e.branch == own;
                let entry = self.entries.iter_mut().find(is_same).unwrap();
                assert_eq!(body["size_bytes"], entry.content.len());
                entry.is_finished = true;
                (200, json!({"ok": true, "entry_id": "1"}))
            }
            _ => (404, json!({"code": "bad_route"})),
        }
    }

    fn blob(&mut self, request: &Request) -> (u16, Vec<u8>) {
        assert_eq!(request.authorization, "", "the token is the service's alone");
        let (path, query) = request.target.split_once('?').unwrap();
        assert!(query.starts_with(&format!("sig={SIGNATURE}")));
        let number: usize = path.strip_prefix("/blob/").unwrap().parse().unwrap();
        let Some(entry) = self.entries.get_mut(number) else { return (404, Vec::new()) };
        if request.method == "GET" {
            return match request.range {
                None => (200, entry.content.clone()),
                Some((first, last)) => {
                    (206, entry.content[first..=last.min(entry.content.len() - 1)].to_vec())
                }
            };
        }
        if let Some(name) = query.split("blockid=").nth(1) {
            entry.blocks.insert(name.to_owned(), request.body.clone());
        } else if query.contains("comp=blocklist") {
            let list = String::from_utf8(request.body.clone()).unwrap();
            entry.content.clear();
            for part in list.split("<Latest>").skip(1) {
                let name = part.split('<').next().unwrap();
                STANDARD.decode(name).unwrap();
                entry.content.extend(&entry.blocks[name]);
            }
        } else {
            entry.content.clone_from(&request.body);
        }
        (201, Vec::new())
    }
}

fn serve(stream: &TcpStream, state: &Mutex<State>) {
    let mut reader = BufReader::new(stream);
    while let Some(request) = read(&mut reader) {
        let (status, body) = state.lock().unwrap().answer(&request);
        let head = format!("HTTP/1.1 {status} x\r\nContent-Length: {}\r\n\r\n", body.len());
        let mut stream = stream;
        if stream.write_all(&[head.as_bytes(), &body].concat()).is_err() {
            return;
        }
    }
}

fn read(reader: &mut BufReader<&TcpStream>) -> Option<Request> {
    let mut first = String::new();
    reader.read_line(&mut first).ok().filter(|count| *count > 0)?;
    let mut words = first.split(' ').map(str::to_owned);
    let mut request = Request {
        method: words.next()?,
        target: words.next()?,
        authorization: String::new(),
        range: None,
        body: Vec::new(),
    };
    let mut length = 0;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let Some((name, value)) = line.trim().split_once(':') else { break };
        let value = value.trim();
        match name.to_ascii_lowercase().as_str() {
            "content-length" => length = value.parse().unwrap(),
            "authorization" => value.clone_into(&mut request.authorization),
            "range" => {
                let (first, last) = value.strip_prefix("bytes=").unwrap().split_once('-').unwrap();
                request.range = Some((first.parse().unwrap(), last.parse().unwrap()));
            }
            _ => {}
        }
    }
    request.body = vec![0; length];
    reader.read_exact(&mut request.body).ok()?;
    Some(request)
}
