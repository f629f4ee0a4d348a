//! Work on many hosts: done in parallel, reported in the order of the hosts.

use std::sync::atomic::{AtomicUsize, Ordering};

use imgctl_base::error::{Error, Kind};
use imgctl_cluster::cluster::host::Host;

/// Runs `work` for each host, at most `parallel` at once, started in host order; returns the
/// results in host order.
pub(crate) fn for_each<T: Send>(
    hosts: &[Host],
    parallel: usize,
    work: impl Fn(usize, &Host) -> T + Sync,
) -> Vec<T> {
    let next = AtomicUsize::new(0);
    let mut results: Vec<(usize, T)> = std::thread::scope(|scope| {
        let worker = || {
            let mut done = Vec::new();
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                match hosts.get(index) {
                    Some(host) => done.push((index, work(index, host))),
                    None => return done,
                }
            }
        };
        let workers: Vec<_> = (0..parallel.min(hosts.len())).map(|_| scope.spawn(worker)).collect();
        workers
            .into_iter()
            .flat_map(|worker| match worker.join() {
                Ok(done) => done,
                Err(panic) => std::panic::resume_unwind(panic),
            })
            .collect()
    });
    results.sort_by_key(|(index, _)| *index);
    results.into_iter().map(|(_, result)| result).collect()
}

/// Returns one error for all failed hosts, or `None` if none failed. A single failed host keeps its
/// own error.
pub(crate) fn sum_up(doing: &str, hosts: usize, mut failed: Vec<(String, Error)>) -> Option<Error> {
    if failed.len() <= 1 {
        return failed.pop().map(|(_, error)| error);
    }
    let first = failed.first().map_or(Kind::Failed, |(_, error)| error.kind());
    let same = failed.iter().all(|(_, error)| error.kind() == first);
    let kind = if same { first } else { Kind::CommandFailed };
    let reasons: Vec<String> = failed.iter().map(|(_, error)| error.to_string()).collect();
    let mut whole =
        Error::new(kind, format!("cannot {doing} on {} of {hosts} hosts", failed.len()))
            .caused_by(reasons.join("\n"));
    let mut hints: Vec<&str> = failed.iter().flat_map(|(_, error)| error.hints()).collect();
    hints.sort_unstable();
    hints.dedup();
    for hint in hints {
        whole = whole.hint(hint);
    }
    Some(whole)
}
