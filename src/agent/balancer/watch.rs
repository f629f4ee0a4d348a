//! Looks at every server from time to time, and at the list; says in a file how all are.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;

use super::Options;
use super::probe::Probe;
use super::servers::Servers;
use crate::fs::atomic::{self, Durability};

/// Between two looks at the list.
const TICK: Duration = Duration::from_millis(250);

/// Goes on until the task is aborted.
pub(super) async fn watch(servers: Arc<Servers>, options: Arc<Options>) {
    // A task for each server: one that hangs holds up nobody else's turn. They end with the set.
    let mut tasks = JoinSet::new();
    let mut looked_at = BTreeMap::new();
    let mut told = String::new();
    loop {
        servers.reload();
        let addresses = servers.addresses();
        looked_at.retain(|address: &String, task: &mut tokio::task::AbortHandle| {
            let stays = addresses.contains(address);
            if !stays {
                task.abort();
            }
            stays
        });
        for address in addresses {
            looked_at.entry(address).or_insert_with_key(|address| {
                let look = look(Arc::clone(&servers), Arc::clone(&options), address.clone());
                tasks.spawn(look)
            });
        }
        while tasks.try_join_next().is_some() {}
        tell(&options, servers.settle(), &mut told);
        tokio::time::sleep(TICK).await;
    }
}

async fn look(servers: Arc<Servers>, options: Arc<Options>, address: String) {
    let mut probe = Probe::new(&options, address.clone());
    loop {
        servers.found(&address, probe.look().await);
        tokio::time::sleep(options.interval).await;
    }
}

/// For operators, and for imgctl, which waits until a server that it takes out is left alone.
fn tell(options: &Options, servers: String, told: &mut String) {
    let Some(path) = &options.state else { return };
    if *told == servers {
        return;
    }
    let text = format!("pid {}\n{servers}", std::process::id());
    match atomic::write(path, text.as_bytes(), 0o644, Durability::Atomic) {
        Ok(()) => *told = servers,
        Err(error) => tracing::warn!("{}", error.message()),
    }
}
