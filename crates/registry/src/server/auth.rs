//! Authentication: users of an htpasswd file (bcrypt only) and a token.
//!
//! By design, a bcrypt check takes tens of milliseconds of CPU time. Results are cached under a
//! keyed hash, and only a few checks run at a time.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, RwLock};
use std::time::{Duration, Instant, SystemTime};

use aws_lc_rs::hmac;
use base64::Engine as _;
use http::StatusCode;
use http::header::{AUTHORIZATION, HeaderMap, WWW_AUTHENTICATE};
use tokio::sync::Semaphore;

use crate::credentials::Secret;
use crate::server::reply::Refusal;
use crate::server::{ServeOptions, Shared};
use imgctl_base::error::{Error, IoContext, Result};
use imgctl_base::fs::output::{self, Durability};

/// Maximum number of cached logins, successful and failed together.
const REMEMBERED: usize = 4096;
/// Maximum number of concurrent bcrypt checks.
const CHECKS: usize = 2;
/// Minimum interval between checks of the file for changes.
const LOOK: Duration = Duration::from_secs(1);
/// Maximum length of an `Authorization` header, in bytes.
const MAX_HEADER: usize = 4096;
/// Maximum size of an htpasswd file, in bytes.
const MAX_FILE: u64 = 16 << 20;
/// bcrypt cost of the hashes we create. `htpasswd -B` uses 5, most libraries use 10 to 12.
const COST: u32 = 10;
/// The least cost of bcrypt.
const LEAST_COST: u32 = 4;

/// Authenticates requests.
pub(super) struct Auth {
    users: Option<Users>,
    token: Option<hmac::Tag>,
    anonymous_pull: bool,
    key: hmac::Key,
    remembered: Mutex<HashMap<Vec<u8>, Option<String>>>,
    checks: Semaphore,
}

struct Users {
    path: PathBuf,
    state: RwLock<State>,
}

struct State {
    hashes: Arc<HashMap<String, String>>,
    modified: Option<SystemTime>,
    looked: Instant,
}

/// Credentials in a header.
enum Shown {
    Basic { user: String, password: Secret },
    Bearer(Secret),
}

impl Auth {
    /// Returns `None` if no login is required.
    pub(super) fn new(options: &ServeOptions) -> Result<Option<Self>> {
        if options.htpasswd.is_none() && options.token.is_none() {
            return Ok(None);
        }
        let mut bytes = [0_u8; 32];
        aws_lc_rs::rand::fill(&mut bytes)
            .map_err(|_| Error::failed("the system provides no random numbers"))?;
        let key = hmac::Key::new(hmac::HMAC_SHA256, &bytes);
        let users = match &options.htpasswd {
            Some(path) => Some(Users {
                path: path.clone(),
                state: RwLock::new(State {
                    hashes: Arc::new(read_users(path)?),
                    modified: modified(path),
                    looked: Instant::now(),
                }),
            }),
            None => None,
        };
        let token = options.token.as_ref().map(|token| hmac::sign(&key, token.expose().as_bytes()));
        Ok(Some(Self {
            users,
            token,
            anonymous_pull: options.anonymous_pull,
            key,
            remembered: Mutex::default(),
            checks: Semaphore::new(CHECKS),
        }))
    }

    /// Returns the user that the header authenticates, if any.
    async fn identify(&self, header: &[u8]) -> Option<String> {
        if header.len() > MAX_HEADER {
            return None;
        }
        let fingerprint = hmac::sign(&self.key, header).as_ref().to_vec();
        self.refresh();
        if let Some(known) = self.remembered.lock().ok()?.get(&fingerprint) {
            return known.clone();
        }
        let found = match parse(header)? {
            Shown::Bearer(token) => self.is_token(&token).then(|| "token".to_owned()),
            Shown::Basic { user, password } if self.is_token(&password) => Some(user),
            Shown::Basic { user, password } => {
                let matches = self.verify(&user, password).await;
                matches.then_some(user)
            }
        };
        let mut remembered = self.remembered.lock().ok()?;
        if remembered.len() >= REMEMBERED {
            remembered.clear();
        }
        remembered.insert(fingerprint, found.clone());
        found
    }

    /// Compares hashes under a secret key, so that the duration reveals nothing.
    fn is_token(&self, shown: &Secret) -> bool {
        self.token.as_ref().is_some_and(|token| {
            hmac::verify(&self.key, shown.expose().as_bytes(), token.as_ref()).is_ok()
        })
    }

    async fn verify(&self, user: &str, password: Secret) -> bool {
        let Some(users) = &self.users else {
            return false;
        };
        let (hash, highest) = match users.state.read() {
            Ok(state) => (state.hashes.get(user).cloned(), highest_cost(&state.hashes)),
            Err(_) => (None, COST),
        };
        let Ok(_permit) = self.checks.acquire().await else {
            return false;
        };
        let check = move || {
            let is_right = hash
                .as_deref()
                .is_some_and(|hash| bcrypt::verify(password.expose(), hash).unwrap_or(false));
            for cost in more_work(hash.as_deref().and_then(cost_of), highest) {
                let _ = bcrypt::hash_with_salt("x", cost, [0; 16]);
            }
            is_right
        };
        tokio::task::spawn_blocking(check).await.unwrap_or(false)
    }

    /// Reads the users again if their file has changed. An invalid file changes nothing.
    fn refresh(&self) {
        let Some(users) = &self.users else { return };
        let is_due = |state: &State| state.looked.elapsed() >= LOOK;
        if !users.state.read().is_ok_and(|state| is_due(&state)) {
            return;
        }
        let Ok(mut state) = users.state.write() else {
            return;
        };
        state.looked = Instant::now();
        let now = modified(&users.path);
        if now == state.modified {
            return;
        }
        state.modified = now;
        match read_users(&users.path) {
            Ok(hashes) => {
                state.hashes = Arc::new(hashes);
                if let Ok(mut remembered) = self.remembered.lock() {
                    remembered.clear();
                }
            }
            Err(error) => tracing::error!("keeping the current users: {error}"),
        }
    }
}

fn cost_of(hash: &str) -> Option<u32> {
    hash.parse::<bcrypt::HashParts>().ok().map(|parts| parts.get_cost())
}

fn highest_cost(hashes: &HashMap<String, String>) -> u32 {
    hashes.values().filter_map(|hash| cost_of(hash)).max().unwrap_or(COST)
}

/// Returns the costs of hashes that take, after one of the cost `spent`, the time of one of the cost
/// `highest`: the time doubles with each step, and must not tell which users exist.
fn more_work(spent: Option<u32>, highest: u32) -> std::ops::Range<u32> {
    match spent {
        Some(spent) => spent.max(LEAST_COST)..highest,
        None => highest..highest.saturating_add(1),
    }
}

/// Accepts a request or requires a login. `may_be_anonymous`: the request only reads content.
pub(super) async fn check(
    shared: &Shared,
    headers: &HeaderMap,
    may_be_anonymous: bool,
    user: &mut Option<String>,
) -> Result<(), Refusal> {
    let Some(auth) = &shared.auth else {
        return Ok(());
    };
    match headers.get(AUTHORIZATION) {
        Some(header) => {
            *user = auth.identify(header.as_bytes()).await;
            if user.is_some() {
                return Ok(());
            }
        }
        None if auth.anonymous_pull && may_be_anonymous => return Ok(()),
        None => {}
    }
    Err(Refusal::new(StatusCode::UNAUTHORIZED, "UNAUTHORIZED", "a login is needed")
        .with(WWW_AUTHENTICATE, "Basic realm=\"imgctl registry\""))
}

fn parse(header: &[u8]) -> Option<Shown> {
    let header = std::str::from_utf8(header).ok()?;
    let (scheme, value) = header.split_once(' ')?;
    let value = value.trim();
    if scheme.eq_ignore_ascii_case("bearer") {
        return Some(Shown::Bearer(Secret::new(value)));
    }
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    let bytes = base64::engine::general_purpose::STANDARD.decode(value).ok()?;
    let text = String::from_utf8(bytes).ok()?;
    let (user, password) = text.split_once(':')?;
    Some(Shown::Basic { user: user.to_owned(), password: Secret::new(password) })
}

fn modified(path: &Path) -> Option<SystemTime> {
    std::fs::metadata(path).and_then(|metadata| metadata.modified()).ok()
}

/// Returns the users and hashes of an htpasswd file. Fails if a hash is not bcrypt.
fn read_users(path: &Path) -> Result<HashMap<String, String>> {
    let text = read_file(path)?;
    let mut users = HashMap::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let wrong = |why: &str| {
            Error::usage(format!("{}:{}: {why}", path.display(), number + 1))
                .hint("run imgctl registry passwd USER -f FILE to write a valid line")
        };
        let (user, hash) =
            line.split_once(':').ok_or_else(|| wrong("the line is not USER:HASH"))?;
        let is_bcrypt = ["$2y$", "$2b$", "$2a$"].iter().any(|prefix| hash.starts_with(prefix))
            && hash.parse::<bcrypt::HashParts>().is_ok();
        if user.is_empty() || !is_bcrypt {
            return Err(wrong("the password is not hashed with bcrypt"));
        }
        users.insert(user.to_owned(), hash.to_owned());
    }
    Ok(users)
}

fn read_file(path: &Path) -> Result<String> {
    let size = std::fs::metadata(path).path("read", path)?.len();
    if size > MAX_FILE {
        return Err(Error::usage(format!("{} is too large for an htpasswd file", path.display())));
    }
    std::fs::read_to_string(path).path("read", path)
}

/// Returns the bcrypt hash of a password, in the format of htpasswd.
pub fn hash_password(password: &Secret) -> Result<String> {
    if password.expose().is_empty() {
        return Err(Error::usage("the password is empty"));
    }
    if password.expose().len() > 72 {
        return Err(Error::usage("the password has more than 72 bytes")
            .hint("bcrypt looks at the first 72 bytes only"));
    }
    let parts = bcrypt::hash_with_result(password.expose(), COST)
        .map_err(|error| Error::failed("cannot hash the password").caused_by(error))?;
    Ok(parts.format_for_version(bcrypt::Version::TwoY))
}

/// Writes a user with that hash to an htpasswd file, replacing an existing line. Creates a missing
/// file, readable only by its owner.
pub fn set_password(path: &Path, user: &str, hash: &str) -> Result<()> {
    if user.is_empty() || user.contains(|c: char| c == ':' || c.is_control()) {
        return Err(Error::usage(format!("`{user}` is not a valid user name"))
            .hint("a name has no colon and no control characters"));
    }
    use std::os::unix::fs::PermissionsExt as _;
    let (old, mode) = match std::fs::metadata(path) {
        Ok(metadata) => (read_file(path)?, metadata.permissions().mode() & 0o7777),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => (String::new(), 0o600),
        Err(error) => return Err(error).path("read", path),
    };
    let line = format!("{user}:{hash}");
    let mut lines: Vec<&str> = Vec::new();
    let mut is_done = false;
    for old in old.lines() {
        let is_user = old.split_once(':').is_some_and(|(name, _)| name == user);
        match (is_user, is_done) {
            (true, false) => lines.push(&line),
            (true, true) => {}
            (false, _) => lines.push(old),
        }
        is_done |= is_user;
    }
    if !is_done {
        lines.push(&line);
    }
    let text = lines.join("\n") + "\n";
    output::write(path, text.as_bytes(), mode, Durability::Durable)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_set_in_its_place_and_verifies() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("htpasswd");
        let hash = hash_password(&Secret::new("pass:word")).unwrap();
        set_password(&path, "alice", "old").unwrap();
        set_password(&path, "bob", &hash).unwrap();
        assert!(read_users(&path).is_err(), "`old` is no bcrypt");
        set_password(&path, "alice", &hash).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(text, format!("alice:{hash}\nbob:{hash}\n"));
        let users = read_users(&path).unwrap();
        assert!(bcrypt::verify("pass:word", &users["alice"]).unwrap());
        use std::os::unix::fs::PermissionsExt;
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        for user in ["", "a:b", "a\nb"] {
            assert!(set_password(&path, user, &hash).is_err());
        }
        for password in ["", &"x".repeat(73)] {
            assert!(hash_password(&Secret::new(password)).is_err());
        }
    }

    #[test]
    fn other_hashes_are_refused_with_their_line() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("htpasswd");
        for line in ["a:$apr1$x$y", "a:{SHA}x=", "a:plain", "nocolon", ":$2y$05$"] {
            std::fs::write(&path, format!("# users\n\n{line}\n")).unwrap();
            let error = read_users(&path).unwrap_err();
            assert!(error.to_string().contains("htpasswd:3: "), "{error}");
        }
    }

    #[test]
    fn every_check_takes_as_much_work_as_the_dearest() {
        let hashes = |costs: &[u32]| {
            let hash = |cost: &u32| bcrypt::hash("x", *cost).unwrap();
            costs.iter().map(|cost| (cost.to_string(), hash(cost))).collect::<HashMap<_, _>>()
        };
        assert_eq!(highest_cost(&hashes(&[])), COST);
        assert_eq!(highest_cost(&hashes(&[5, 7, 4])), 7);
        assert_eq!(cost_of(&bcrypt::hash("x", 5).unwrap()), Some(5));
        let work = |costs: std::ops::Range<u32>| costs.map(|cost| 1_u64 << cost).sum::<u64>();
        for highest in 4..20 {
            assert_eq!(work(more_work(None, highest)), 1 << highest);
            for spent in 4..=highest {
                assert_eq!((1 << spent) + work(more_work(Some(spent), highest)), 1 << highest);
            }
        }
    }
}
