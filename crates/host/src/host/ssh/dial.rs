//! Establishes one connection: TCP or a tunnel through a jump host, handshake and login, with
//! retries for busy hosts. Must not depend on the purpose of the connection.
//!
//! Names are resolved by `/etc/hosts`, then the name servers of `/etc/resolv.conf`, without the C
//! library's NSS.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use hickory_resolver::TokioResolver;
use hickory_resolver::config::{LookupIpStrategy, ResolverConfig};
use hickory_resolver::net::NetError;
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use russh::AlgorithmKind;
use russh::client::{self, Handle};
use russh::keys::agent::AgentSessionBinding;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use crate::host::address::SSH_PORT;
use crate::host::known_hosts::KnownHosts;
use crate::host::login::RECORDED;
use crate::host::reactor::sessions;
use crate::host::ssh::Ssh;
use crate::host::ssh::algorithms::{SHA1, host_may_use_sha1};
use crate::host::ssh::auth::{Attempts, Outcome, TURNED_AWAY};
use crate::host::ssh::client::{Banners, Client, Fault, Lost, config};
use crate::host::ssh::keys::KeyCache;
use crate::host::ssh::target::Target;
use imgctl_base::error::{Error, Result};
use imgctl_base::fs::directory::read_text;

/// Maximum number of connections to a host that closes them after a number of login attempts.
const MOST_CALLS: usize = 6;
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(3);

trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}

/// Reason why a connection attempt failed.
enum Trouble {
    /// A reset or an end of file during the handshake: the host may be busy (`MaxStartups`).
    Passing(Error),
    Final(Error),
}

/// A connection that is logged in.
pub(super) struct Dialled {
    pub(super) handle: Handle<Client>,
    pub(super) lost: Lost,
}

pub(super) async fn dial(
    target: &Target,
    via: Option<&Arc<Ssh>>,
    cache: &KeyCache,
) -> Result<Dialled> {
    let mut attempts = Attempts::new(target, cache).await;
    for _ in 0..MOST_CALLS {
        let Called { mut handle, lost, banners } = call(target, via).await?;
        let logged_in = attempts.log_in(&mut handle, target, &banners);
        let outcome = tokio::time::timeout(login_patience(target), logged_in).await;
        match outcome {
            Ok(Ok(Outcome::LoggedIn)) => return Ok(Dialled { handle, lost }),
            Ok(Ok(Outcome::Again)) => tracing::debug!("{}: calling again", target.label),
            Ok(Err(error)) => return Err(error),
            Err(_) => {
                return Err(Error::network(format!(
                    "{} does not respond to the login of {}",
                    target.label, target.user
                )));
            }
        }
    }
    let turned_away = attempts.words();
    let error = Error::denied(format!(
        "{} ended the connection after too many attempts to log in as {}",
        target.label, target.user
    ));
    if let Some(words) = turned_away {
        return Err(error.caused_by(words).hint(TURNED_AWAY));
    }
    Err(error.hint(if target.login.is_recorded {
        RECORDED
    } else {
        "pass the key that it accepts (--pk FILE) and remove the others from the agent, or set \
         IdentitiesOnly in ~/.ssh/config"
    }))
}

/// Returns the login timeout: PAM and agents are slower than the network.
fn login_patience(target: &Target) -> Duration {
    target.connect_timeout + Duration::from_secs(60)
}

/// A connection before the login.
struct Called {
    handle: Handle<Client>,
    lost: Lost,
    banners: Banners,
}

async fn call(target: &Target, via: Option<&Arc<Ssh>>) -> Result<Called> {
    let mut pause = FIRST_PAUSE;
    let mut left = target.retries;
    loop {
        match handshake(target, via).await {
            Ok(made) => return Ok(made),
            Err(Trouble::Final(error)) => return Err(error),
            Err(Trouble::Passing(error)) if left == 0 => return Err(error),
            Err(Trouble::Passing(error)) => {
                tracing::debug!("retrying: {error}");
                left -= 1;
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
        }
    }
}

async fn handshake(
    target: &Target,
    via: Option<&Arc<Ssh>>,
) -> std::result::Result<Called, Trouble> {
    let stream: Box<dyn Stream> = match via {
        None => Box::new(connect(target).await?),
        Some(via) => {
            let tunnel = via.tunnel(&target.address).await;
            let tunnel = tunnel.map_err(|error| {
                Trouble::Final(error.context(format!(
                    "cannot reach {} through {}",
                    target.label,
                    via.label_of()
                )))
            })?;
            Box::new(tunnel)
        }
    };
    let known = KnownHosts::read(&target.known_hosts).map_err(Trouble::Final)?;
    let config = Arc::new(config(target, &known));
    let lost = Lost::default();
    let list = target.host_key_algorithms.as_deref();
    let banners = Banners::default();
    let client = Client::new(target, known, lost.clone(), banners.clone());
    let sessions = sessions().map_err(Trouble::Final)?;
    let shaken = sessions.spawn(client::connect_stream(config, stream, client));
    let shaken = async {
        shaken.await.unwrap_or_else(|error| {
            let ended = Error::failed("the SSH handshake ended unexpectedly").caused_by(error);
            Err(Fault::Ours(ended))
        })
    };
    match tokio::time::timeout(target.connect_timeout, shaken).await {
        Ok(Ok(handle)) if proves_with_sha1(&handle) && !host_may_use_sha1(list) => {
            Err(Trouble::Final(only_sha1(target)))
        }
        Ok(Ok(handle)) => Ok(Called { handle, lost, banners }),
        Ok(Err(Fault::Ours(error))) => Err(Trouble::Final(error)),
        Ok(Err(Fault::Ssh(error))) => Err(understand(target, error)),
        Err(_) => Err(Trouble::Passing(unreachable(
            target,
            "it accepts connections but does not speak SSH in time",
        ))),
    }
}

/// Returns whether the host has signed the handshake with SHA-1. russh verifies any RSA signature,
/// also one with another hash than was agreed on.
fn proves_with_sha1(handle: &Handle<Client>) -> bool {
    let signature = handle.agent_session_binding().map(AgentSessionBinding::signature);
    // RFC 4253, section 6.6: the name of the algorithm comes first, after its length.
    let name = signature.and_then(|signature| signature.get(4..)?.strip_prefix(SHA1.as_bytes()));
    name.is_some()
}

fn only_sha1(target: &Target) -> Error {
    Error::network(format!("{} proves its key only with SHA-1 (ssh-rsa)", target.label))
        .hint("update sshd on the host, or give it a key of another type (ssh-keygen -A)")
        .hint("to connect all the same, set `HostKeyAlgorithms +ssh-rsa` for it in ~/.ssh/config")
}

async fn connect(target: &Target) -> std::result::Result<TcpStream, Trouble> {
    let Target { address, connect_timeout, .. } = target;
    let found =
        resolve(&address.name, address.port, *connect_timeout).await.map_err(Trouble::Final)?;
    let mut last = None;
    for socket in found {
        match tokio::time::timeout(*connect_timeout, TcpStream::connect(socket)).await {
            Ok(Ok(stream)) => {
                // Otherwise, each small message waits for the peer's delayed acknowledgment.
                if let Err(error) = stream.set_nodelay(true) {
                    tracing::debug!("cannot set TCP_NODELAY: {error}");
                }
                return Ok(stream);
            }
            Ok(Err(error)) => last = Some(error),
            Err(_) => last = Some(std::io::ErrorKind::TimedOut.into()),
        }
    }
    let error = last.unwrap_or_else(|| std::io::ErrorKind::NotFound.into());
    let reset = error.kind() == std::io::ErrorKind::ConnectionReset;
    let error = match error.kind() {
        std::io::ErrorKind::TimedOut => {
            unreachable(target, &format!("no answer within {} s", connect_timeout.as_secs()))
        }
        std::io::ErrorKind::ConnectionRefused => {
            unreachable(target, "connection refused: is sshd running there?")
        }
        // The kernel wants to know the interface.
        std::io::ErrorKind::InvalidInput => {
            return Err(Trouble::Final(
                Error::usage(format!("{} has no address that leads to it", target.label))
                    .caused_by(error)
                    .hint("use its global address: a link-local one (fe80::) needs an interface"),
            ));
        }
        _ => base(target).caused_by(error),
    };
    Err(if reset { Trouble::Passing(error) } else { Trouble::Final(error) })
}

fn base(target: &Target) -> Error {
    let Target { label, address, .. } = target;
    let called = address.to_string();
    // An address with another port than the usual one says it itself.
    let where_ = match (called == *label, address.port) {
        (true, SSH_PORT) => format!(" (port {SSH_PORT})"),
        (true, _) => String::new(),
        (false, SSH_PORT) => format!(" ({called}, port {SSH_PORT})"),
        (false, _) => format!(" ({called})"),
    };
    Error::network(format!("cannot connect to {label}{where_}"))
        .hint("check the address and the port (--port), and that no firewall blocks the connection")
}

fn unreachable(target: &Target, why: &str) -> Error {
    base(target).caused_by(why.to_owned())
}

fn understand(target: &Target, error: russh::Error) -> Trouble {
    use russh::Error as E;
    let passing = match &error {
        E::Disconnect | E::HUP | E::SendError | E::RecvError => true,
        E::IO(error) => matches!(
            error.kind(),
            std::io::ErrorKind::ConnectionReset
                | std::io::ErrorKind::UnexpectedEof
                | std::io::ErrorKind::BrokenPipe
                | std::io::ErrorKind::ConnectionAborted
        ),
        _ => false,
    };
    if let E::NoCommonAlgo { kind, theirs, .. } = &error {
        if matches!(kind, AlgorithmKind::Key) && theirs.iter().any(|name| name == SHA1) {
            return Trouble::Final(only_sha1(target).caused_by(error));
        }
        let told =
            Error::network(format!("{} and imgctl have no algorithm in common", target.label));
        return Trouble::Final(told.caused_by(error).hint(
            "allow one of them in sshd_config on the host (`sshd -T` shows KexAlgorithms, Ciphers, \
             MACs), or update an sshd that has none of them",
        ));
    }
    let told = base(target).caused_by(error);
    if passing { Trouble::Passing(told) } else { Trouble::Final(told) }
}

const HOSTS_FILE: &str = "/etc/hosts";
/// Maximum size of the hosts file, in bytes.
const MOST_HOSTS: u64 = 16 << 20;

/// Of IPv6 and of IPv4: one that gets no answer does not spoil the other's.
static RESOLVERS: [OnceLock<TokioResolver>; 2] = [OnceLock::new(), OnceLock::new()];
/// Addresses of names that were resolved before, used if a later lookup fails.
static KNOWN: Mutex<BTreeMap<String, Vec<IpAddr>>> = Mutex::new(BTreeMap::new());

/// Returns the socket addresses of `name`, in the order in which to try them; never empty.
pub(super) async fn resolve(name: &str, port: u16, patience: Duration) -> Result<Vec<SocketAddr>> {
    if let Ok(address) = name.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(address, port)]);
    }
    let text = read_text(Path::new(HOSTS_FILE), MOST_HOSTS).ok().flatten().unwrap_or_default();
    let listed = in_hosts_file(&text, name);
    let found = if listed.is_empty() { ask_servers(name, patience).await } else { Ok(listed) };
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let addresses = match (found, known.get(name)) {
        (Ok(found), _) if !found.is_empty() => {
            known.insert(name.to_owned(), found.clone());
            found
        }
        // The network itself may be down: then the connection fails, which is retried.
        (_, Some(before)) => before.clone(),
        (found, None) => return Err(found.err().unwrap_or_else(|| unknown(name))),
    };
    let sockets = addresses.into_iter();
    Ok(sockets.map(|ip| SocketAddr::new(ip, port)).collect())
}

/// Returns the addresses that the system last found for the name of a host that was connected to, in
/// this process; none for addresses.
pub fn resolved(name: &str) -> Vec<IpAddr> {
    let known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    known.get(name).cloned().unwrap_or_default()
}

/// Returns the addresses of a name in a hosts file. What is there needs no name server, which may be
/// out of reach.
fn in_hosts_file(text: &str, name: &str) -> Vec<IpAddr> {
    let name = name.trim_end_matches('.');
    let mut found = Vec::new();
    for line in text.lines() {
        let mut words = line.split('#').next().unwrap_or_default().split_whitespace();
        if let Some(address) = words.next().and_then(|word| word.parse::<IpAddr>().ok())
            && words.any(|word| word.eq_ignore_ascii_case(name))
            && !found.contains(&address)
        {
            found.push(address);
        }
    }
    found
}

/// Asks the name servers for addresses of both families.
async fn ask_servers(name: &str, patience: Duration) -> Result<Vec<IpAddr>> {
    let (six, four) =
        (resolver(LookupIpStrategy::Ipv6Only)?, resolver(LookupIpStrategy::Ipv4Only)?);
    let six = tokio::time::timeout(patience, six.lookup_ip(name));
    let four = tokio::time::timeout(patience, four.lookup_ip(name));
    let mut found = Vec::new();
    let mut failure = None;
    let (six, four) = tokio::join!(six, four);
    for answer in [six, four] {
        match answer {
            Ok(Ok(addresses)) => found.extend(addresses.iter()),
            Ok(Err(error)) => failure = Some(unresolved(&error)),
            Err(_) => failure = Some("the name servers do not respond".to_owned()),
        }
    }
    match failure {
        Some(why) if found.is_empty() => Err(unknown(name).caused_by(why)),
        _ => Ok(found),
    }
}

/// Says why a name has no address. The error itself prints the query in the form for debugging.
fn unresolved(error: &NetError) -> String {
    if error.is_nx_domain() {
        "there is no host of this name".to_owned()
    } else if error.is_no_records_found() {
        "the name has no address".to_owned()
    } else {
        error.to_string()
    }
}

/// The error kind is not retried: a misspelled name stays wrong.
fn unknown(name: &str) -> Error {
    Error::not_found(format!("cannot find the address of {name}")).hint(
        "use its IP address, or add the name to /etc/hosts or the name servers of this machine",
    )
}

fn resolver(family: LookupIpStrategy) -> Result<&'static TokioResolver> {
    let cell = &RESOLVERS[usize::from(matches!(family, LookupIpStrategy::Ipv4Only))];
    if let Some(resolver) = cell.get() {
        return Ok(resolver);
    }
    let mut builder = TokioResolver::builder_tokio().unwrap_or_else(|error| {
        // No public name servers are used as a fallback, so only /etc/hosts remains.
        tracing::debug!("there is no name server: {error}");
        let provider = TokioRuntimeProvider::default();
        TokioResolver::builder_with_config(ResolverConfig::default(), provider)
    });
    builder.options_mut().ip_strategy = family;
    let made = builder
        .build()
        .map_err(|error| Error::failed("cannot set up name resolution").caused_by(error))?;
    Ok(cell.get_or_init(|| made))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::reactor::block_on;
    use imgctl_base::error::Kind;

    #[test]
    fn addresses_need_no_server_and_etc_hosts_counts() {
        let patience = Duration::from_secs(10);
        let v6 = block_on(resolve("fe80::1", 22, patience)).unwrap();
        assert_eq!(v6[0].to_string(), "[fe80::1]:22");
        let local = block_on(resolve("localhost", 2222, patience)).unwrap();
        assert!(!local.is_empty());
        assert!(local.iter().all(|address| address.ip().is_loopback()));
    }

    #[test]
    fn the_hosts_file_is_read_as_the_system_reads_it() {
        let text = "127.0.0.1 localhost\n10.0.0.7\th7.lab H7 # not h8\nfd00::7 h7\n#10.0.0.9 h7\n\
                    nonsense h7\n10.0.0.7 h7\n";
        let found = |name: &str| {
            let all = in_hosts_file(text, name);
            all.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(found("h7"), ["10.0.0.7", "fd00::7"]);
        assert_eq!(found("h7.lab."), ["10.0.0.7"]);
        assert!(found("h8").is_empty() && found("10.0.0.7").is_empty());
    }

    #[test]
    fn a_name_that_nobody_knows_is_no_matter_of_the_network() {
        let patience = Duration::from_secs(3);
        let error = block_on(resolve("no-such-host.invalid", 22, patience)).unwrap_err();
        assert_eq!(error.kind(), Kind::NotFound);
        assert!(error.to_string().contains("no-such-host.invalid"), "{error}");
    }
}
