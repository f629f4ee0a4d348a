//! Logs in: agent keys, key files, keyboard-interactive and password, until the host accepts. Must
//! not depend on how the connection was made.

use std::collections::VecDeque;
use std::path::Path;
use std::time::Duration;

use russh::client::{AuthResult, Handle, KeyboardInteractiveAuthResponse};
use russh::keys::agent::AgentIdentity;
use russh::keys::agent::client::AgentClient;
use russh::keys::{Algorithm, HashAlg, PrivateKeyWithHashAlg, PublicKey, load_public_key};
use russh::{MethodKind, MethodSet};
use tokio::net::UnixStream;

use crate::host::login::RECORDED;
use crate::host::ssh::algorithms::rsa_hash;
use crate::host::ssh::client::{Banners, Client};
use crate::host::ssh::keys::{Key, KeyCache};
use crate::host::ssh::target::Target;
use imgctl_base::error::Error;
use imgctl_base::text::escape;

/// Timeout for the agent, which may ask its owner to touch a hardware key.
const AGENT_PATIENCE: Duration = Duration::from_secs(60);
const MOST_QUESTIONS: usize = 5;
/// Maximum number of lines of a host's sentence, and of their characters.
const MOST_LINES: usize = 3;
const LONGEST_LINE: usize = 200;

/// Hint for a host that says why it refuses the user.
pub(super) const TURNED_AWAY: &str =
    "the host itself says why: follow it, or try again when the host lets users in";

enum Way {
    Agent(AgentIdentity),
    Key(Key),
    KeyboardInteractive,
    Password,
}

impl Way {
    fn method(&self) -> MethodKind {
        match self {
            Self::Agent(_) | Self::Key(_) => MethodKind::PublicKey,
            Self::KeyboardInteractive => MethodKind::KeyboardInteractive,
            Self::Password => MethodKind::Password,
        }
    }

    fn shown(&self) -> String {
        match self {
            Self::Agent(identity) => {
                format!("key of the agent {}", identity.public_key().fingerprint(HashAlg::Sha256))
            }
            Self::Key(key) => match key.certificate {
                Some(_) => format!("certificate of {}", key.shown),
                None => format!("key {}", key.shown),
            },
            Self::KeyboardInteractive => "keyboard-interactive".to_owned(),
            Self::Password => "password".to_owned(),
        }
    }
}

/// Login methods that are left to try. Outlives a connection: if a host closes it after a number of
/// attempts, the remaining ones are tried on a new connection.
pub(super) struct Attempts {
    ways: VecDeque<Way>,
    agent: Option<AgentClient<UnixStream>>,
    tried: Vec<String>,
    /// Keys that were not tried, and the reason.
    notes: Vec<String>,
    /// Login methods that the host has offered.
    offered: Option<String>,
    /// What the host said: before it knew the credentials, and about them.
    greeting: Vec<String>,
    said: Vec<String>,
}

/// Result of the attempts on one connection.
pub(super) enum Outcome {
    LoggedIn,
    /// The host closed the connection, and methods are left to try.
    Again,
}

impl Attempts {
    /// Collects the available login methods: reads keys and queries the agent.
    pub(super) async fn new(target: &Target, cache: &KeyCache) -> Self {
        let mut attempts = Self {
            ways: VecDeque::new(),
            agent: None,
            tried: Vec::new(),
            notes: Vec::new(),
            offered: None,
            greeting: Vec::new(),
            said: Vec::new(),
        };
        if let Some(socket) = &target.agent {
            attempts.ask_agent(socket, target).await;
        }
        attempts.read_keys(target, cache);
        if target.login.password.is_some() {
            attempts.ways.push_back(Way::KeyboardInteractive);
            attempts.ways.push_back(Way::Password);
        }
        attempts
    }

    async fn ask_agent(&mut self, socket: &Path, target: &Target) {
        let ask = async {
            let mut agent = AgentClient::connect_uds(socket).await?;
            let identities = agent.request_identities().await?;
            Ok::<_, russh::keys::Error>((agent, identities))
        };
        let (agent, mut identities) = match tokio::time::timeout(AGENT_PATIENCE, ask).await {
            Ok(Ok(found)) => found,
            Ok(Err(error)) => {
                return self.notes.push(format!("the agent at {}: {error}", socket.display()));
            }
            Err(_) => {
                return self
                    .notes
                    .push(format!("the agent at {} does not respond", socket.display()));
            }
        };
        // Keys of the named files come first, because hosts limit the number of attempts.
        let named: Vec<PublicKey> = target
            .named_keys
            .iter()
            .filter_map(|path| load_public_key(path.with_added_extension("pub")).ok())
            .collect();
        let is_named = |identity: &AgentIdentity| {
            let key = identity.public_key();
            named.iter().any(|named| named.key_data() == key.key_data())
        };
        if target.identities_only {
            identities.retain(is_named);
        }
        identities.sort_by_key(|identity| !is_named(identity));
        self.ways.extend(identities.into_iter().map(Way::Agent));
        self.agent = Some(agent);
    }

    fn read_keys(&mut self, target: &Target, cache: &KeyCache) {
        let passphrase = target.login.key_passphrase.as_ref();
        let mut keys = Vec::new();
        for path in &target.named_keys {
            match cache.file(path, passphrase) {
                Ok(Some(key)) => keys.push(key),
                Ok(None) => self.notes.push(format!("{} does not exist", path.display())),
                Err(why) => self.notes.push(why),
            }
        }
        let texts = target.login.key_data.iter().enumerate();
        let texts = texts.map(|(index, text)| cache.text(text, index + 1, passphrase));
        let usual = target.usual_keys.iter().map(|path| cache.file(path, passphrase));
        for read in texts.chain(usual) {
            match read {
                Ok(key) => keys.extend(key),
                Err(why) => self.notes.push(why),
            }
        }
        for key in keys {
            let in_agent = |way: &Way| match way {
                Way::Agent(identity) => {
                    identity.public_key().key_data() == key.key.public_key().key_data()
                }
                _ => false,
            };
            if key.certificate.is_some() {
                self.ways.push_back(Way::Key(key.clone()));
            }
            // The agent already offers this key.
            if !self.ways.iter().any(in_agent) {
                self.ways.push_back(Way::Key(Key { certificate: None, ..key }));
            }
        }
    }

    /// Tries the remaining methods on a new connection. `banners` are the host's.
    pub(super) async fn log_in(
        &mut self,
        handle: &mut Handle<Client>,
        target: &Target,
        banners: &Banners,
    ) -> Result<Outcome, Error> {
        let asked = handle.authenticate_none(target.user.as_str()).await;
        let mut offered = match asked {
            Ok(AuthResult::Success) => return Ok(Outcome::LoggedIn),
            Ok(AuthResult::Failure { remaining_methods, .. }) => remaining_methods,
            Err(error) => return Err(lost(target, error)),
        };
        self.greeting = banners.all();
        let mut known_hash = None;
        self.offer(&offered);
        // A method that is not offered now may be offered after another one
        // (AuthenticationMethods).
        while let Some(index) = self.next(&offered) {
            let Some(way) = self.ways.remove(index) else {
                break;
            };
            self.tried.push(way.shown());
            let result = self.attempt(&way, handle, target, banners, &mut known_hash).await;
            self.said.extend(banners.all().into_iter().skip(self.greeting.len()));
            match result {
                Ok(AuthResult::Success) => return Ok(Outcome::LoggedIn),
                Ok(AuthResult::Failure { remaining_methods, .. }) if !handle.is_closed() => {
                    offered = remaining_methods;
                    self.offer(&offered);
                }
                Err(error) if !handle.is_closed() => {
                    self.notes.push(format!("{}: {error}", way.shown()));
                }
                _ if self.ways.is_empty() => break,
                _ => return Ok(Outcome::Again),
            }
        }
        Err(self.refused(target))
    }

    fn offer(&mut self, methods: &MethodSet) {
        let names: Vec<String> =
            methods.iter().map(|method| String::from(<&'static str>::from(method))).collect();
        if !names.is_empty() {
            self.offered = Some(names.join(", "));
        }
    }

    fn next(&self, offered: &MethodSet) -> Option<usize> {
        self.ways.iter().position(|way| offered.contains(&way.method()))
    }

    async fn attempt(
        &mut self,
        way: &Way,
        handle: &mut Handle<Client>,
        target: &Target,
        banners: &Banners,
        known_hash: &mut Option<Option<HashAlg>>,
    ) -> Result<AuthResult, String> {
        let user = target.user.as_str();
        let text = |error: russh::Error| error.to_string();
        match way {
            Way::Key(Key { key, certificate: Some(certificate), .. }) => handle
                .authenticate_openssh_cert(user, key.clone(), certificate.clone())
                .await
                .map_err(text),
            Way::Key(Key { key, .. }) => {
                let hash = hash_for(key.algorithm(), handle, target, known_hash).await?;
                handle
                    .authenticate_publickey(user, PrivateKeyWithHashAlg::new(key.clone(), hash))
                    .await
                    .map_err(text)
            }
            Way::Agent(identity) => {
                let algorithm = identity.public_key().algorithm();
                let hash = hash_for(algorithm, handle, target, known_hash).await?;
                let Some(agent) = &mut self.agent else {
                    return Err("the agent is gone".to_owned());
                };
                let sign = async {
                    match identity {
                        AgentIdentity::PublicKey { key, .. } => {
                            handle.authenticate_publickey_with(user, key.clone(), hash, agent).await
                        }
                        AgentIdentity::Certificate { certificate, .. } => {
                            handle
                                .authenticate_certificate_with(
                                    user,
                                    certificate.clone(),
                                    hash,
                                    agent,
                                )
                                .await
                        }
                    }
                };
                match tokio::time::timeout(AGENT_PATIENCE, sign).await {
                    Ok(result) => result.map_err(|error| error.to_string()),
                    Err(_) => Err("the agent does not respond".to_owned()),
                }
            }
            Way::Password => {
                let password = target.login.password.as_ref();
                let password = password.map(|password| password.expose().to_owned());
                handle.authenticate_password(user, password.unwrap_or_default()).await.map_err(text)
            }
            Way::KeyboardInteractive => {
                answer_questions(handle, target, banners).await.map_err(text)
            }
        }
    }

    /// Returns what the host has said about the login, otherwise its greeting.
    pub(super) fn words(&self) -> Option<String> {
        let said = if self.said.is_empty() { &self.greeting } else { &self.said };
        let mut lines: Vec<String> = Vec::new();
        for line in said.iter().flat_map(|text| text.lines()).map(str::trim) {
            let line: String = escape(line).chars().take(LONGEST_LINE).collect();
            // Frames of asterisks say nothing.
            if line.contains(char::is_alphanumeric) && !lines.contains(&line) {
                lines.push(line);
            }
        }
        lines.truncate(MOST_LINES);
        (!lines.is_empty()).then(|| format!("it says: {}", lines.join(" / ")))
    }

    fn refused(&self, target: &Target) -> Error {
        let tried = if self.tried.is_empty() {
            "no credentials to try".to_owned()
        } else {
            format!("tried: {}", self.tried.join(", "))
        };
        let offered = self.offered.as_deref().unwrap_or("nothing");
        let mut error = Error::denied(format!(
            "{} does not let {} log in; {tried}; it accepts: {offered}",
            target.label, target.user
        ));
        let words = self.words();
        let reasons: Vec<String> = self.notes.iter().cloned().chain(words.clone()).collect();
        if !reasons.is_empty() {
            error = error.caused_by(reasons.join("; "));
        }
        if words.is_some() && !self.said.is_empty() {
            return error.hint(TURNED_AWAY);
        }
        error.hint(if target.login.is_recorded {
            RECORDED
        } else {
            "check the user (--user), the keys (--pk FILE, --pk-passwd-file) or the password (--passwd-file, IMGCTL_SSH_PASSWORD)"
        })
    }
}

/// Determines the hash for RSA signatures. Asks the host only for RSA keys, because one that does
/// not announce its hashes costs a second.
async fn hash_for(
    algorithm: Algorithm,
    handle: &Handle<Client>,
    target: &Target,
    known: &mut Option<Option<HashAlg>>,
) -> Result<Option<HashAlg>, String> {
    if !algorithm.is_rsa() {
        return Ok(None);
    }
    if let Some(hash) = known {
        return Ok(*hash);
    }
    let announced = handle.best_supported_rsa_hash().await.ok().flatten();
    let hash = rsa_hash(target.login_key_algorithms.as_deref(), announced)?;
    *known = Some(hash);
    Ok(hash)
}

/// Answers each hidden prompt with the password.
async fn answer_questions(
    handle: &mut Handle<Client>,
    target: &Target,
    banners: &Banners,
) -> Result<AuthResult, russh::Error> {
    let password = target.login.password.as_ref();
    let mut response =
        handle.authenticate_keyboard_interactive_start(target.user.as_str(), None).await?;
    for _ in 0..MOST_QUESTIONS {
        match response {
            KeyboardInteractiveAuthResponse::Success => return Ok(AuthResult::Success),
            KeyboardInteractiveAuthResponse::Failure { remaining_methods, partial_success } => {
                return Ok(AuthResult::Failure { remaining_methods, partial_success });
            }
            KeyboardInteractiveAuthResponse::InfoRequest { instructions, prompts, .. } => {
                banners.add(&instructions);
                let answers = prompts
                    .iter()
                    .map(|prompt| match (prompt.echo, password) {
                        (false, Some(password)) => password.expose().to_owned(),
                        _ => String::new(),
                    })
                    .collect();
                response = handle.authenticate_keyboard_interactive_respond(answers).await?;
            }
        }
    }
    Err(russh::Error::NotAuthenticated)
}

fn lost(target: &Target, error: russh::Error) -> Error {
    Error::network(format!("the connection to {} was lost while logging in", target.label))
        .caused_by(error)
}
