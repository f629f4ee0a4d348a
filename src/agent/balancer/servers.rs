//! The servers, which of them are up, and whose turn it is.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::error::{Error, IoContext, Result};

/// More than this is no list of control planes.
const LONGEST_FILE: u64 = 64 * 1024;

#[derive(Clone, Debug, PartialEq, Eq)]
struct Server {
    address: String,
    up: bool,
}

/// Shared by connections and the health watch.
pub(super) struct Servers {
    path: PathBuf,
    list: Mutex<Vec<Server>>,
    turn: AtomicUsize,
}

impl Servers {
    /// Reads the file; an empty or missing one is an error now and ignored later.
    pub(super) fn load(path: &Path) -> Result<Self> {
        let list = read(path)?;
        Ok(Self {
            path: path.to_owned(),
            list: Mutex::new(up(list)),
            turn: AtomicUsize::new(0),
        })
    }

    /// Reads the file again; servers that stay keep their state.
    pub(super) fn reload(&self) {
        let fresh = match read(&self.path) {
            Ok(fresh) => fresh,
            Err(error) => {
                tracing::warn!("the list of servers stays as it was: {}", error.message());
                return;
            }
        };
        let mut list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        let known = std::mem::take(&mut *list);
        *list = fresh
            .into_iter()
            .map(|address| {
                let up = known
                    .iter()
                    .find(|server| server.address == address)
                    .is_none_or(|server| server.up);
                Server { address, up }
            })
            .collect();
    }

    pub(super) fn addresses(&self) -> Vec<String> {
        let list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        list.iter().map(|server| server.address.clone()).collect()
    }

    /// In the order to try: those that are up in turn, then the others (better than refusing).
    pub(super) fn in_order(&self) -> Vec<String> {
        let list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut healthy, ill): (Vec<Server>, Vec<Server>) =
            list.iter().cloned().partition(|server| server.up);
        if !healthy.is_empty() {
            let turn = self.turn.fetch_add(1, Ordering::Relaxed) % healthy.len();
            healthy.rotate_left(turn);
        }
        healthy
            .into_iter()
            .chain(ill)
            .map(|server| server.address)
            .collect()
    }

    pub(super) fn mark(&self, address: &str, up: bool) {
        let mut list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(server) = list
            .iter_mut()
            .find(|server| server.address == address && server.up != up)
        {
            let state = if up { "up" } else { "down" };
            tracing::info!("{address} is {state}");
            server.up = up;
        }
    }
}

fn up(addresses: Vec<String>) -> Vec<Server> {
    addresses
        .into_iter()
        .map(|address| Server { address, up: true })
        .collect()
}

/// One `address:port` a line; empty lines and `#` comments are skipped.
fn read(path: &Path) -> Result<Vec<String>> {
    let size = std::fs::metadata(path).path("read", path)?.len();
    if size > LONGEST_FILE {
        return Err(Error::usage(format!(
            "{} is too long for a list of servers",
            path.display()
        )));
    }
    let text = std::fs::read_to_string(path).path("read", path)?;
    let mut list = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        line.parse::<std::net::SocketAddr>().map_err(|_| {
            Error::usage(format!(
                "{}:{}: `{line}` is not address:port",
                path.display(),
                number + 1
            ))
        })?;
        list.push(line.to_owned());
    }
    if list.is_empty() {
        return Err(Error::usage(format!("{} names no server", path.display()))
            .hint("one address:port per line"));
    }
    Ok(list)
}
