//! Probes every server periodically, rereads the list, and writes the status of the servers to a
//! file.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;

use super::Options;
use super::probe::Probe;
use super::servers::Servers;
use imgctl_base::fs::atomic::{self, Durability};

/// Time between two checks of the list.
const TICK: Duration = Duration::from_millis(250);

/// Runs until the task is aborted.
pub(super) async fn watch(servers: Arc<Servers>, options: Arc<Options>) {
    // One task per server, so that a hanging server does not delay the others. The tasks end with
    // the set.
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

/// Writes the status for operators, and for imgctl, which waits until a server that it takes out of
/// service has no more connections.
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
