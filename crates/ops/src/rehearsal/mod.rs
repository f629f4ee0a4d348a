//! Rehearsing an upgrade on a copy of the cluster: the last backup is restored on other hosts, the upgrade and
//! its rollback run there, and what was measured is recorded beside the clusters' state, where plans of the same
//! upgrade find it. Must not know where the other hosts come from.
//!
//! ```text
//! .rehearsals/CLUSTER/lock     held while one runs
//! .rehearsals/CLUSTER/state/   the state of the copy, removed with it
//! .rehearsals/CLUSTER/ID.json  a record
//! ```

mod client;

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Instant;

pub use client::RequestAddress;

use crate::front_end::Outcome;
use crate::maintain::{self, TearDown};
use crate::rehearsal_record::{Part, Place, Rehearsal};
use crate::report::{RunRequest, of_run};
use crate::restore::{self, BackupSummary, RestoreRequest};
use crate::session::Session;
use crate::upgrade::{self, GivenChoices, RollbackRequest, UpgradeRequest};
use crate::work::RunOptions;
use client::Client;
use imgctl_base::error::{Context as _, Error, Result};
use imgctl_base::fs::atomic::remove_tree;
use imgctl_base::fs::lock::{Lock, Mode};
use imgctl_host::host::address::Address;
use imgctl_model::clusterfile::Clusterfile;
use imgctl_model::context::{Host, MASTER};
use imgctl_model::desired::HostFlags;
use imgctl_upgrade::upgrade_store::UpgradeStore;
use imgctl_workflow::backup::last::LastBackup;
use imgctl_workflow::pipeline::nodes::Wait;

/// An upgrade to rehearse.
#[derive(Clone, Debug)]
pub struct RehearsalRequest {
    /// The cluster whose last backup is restored, unless `backup` names one.
    pub cluster: String,
    /// `oci:DIR:TAG`, `oci-archive:FILE`, `docker://NAME`, or a directory with one backup.
    pub backup: Option<String>,
    pub identity: Option<PathBuf>,
    pub passphrase_file: Option<PathBuf>,
    /// Rootfs image for a cluster that was adopted and had none.
    pub base: Option<String>,
    /// Target images, as an upgrade takes them.
    pub images: Vec<String>,
    pub choices: GivenChoices,
    /// Maximum number of workers of the copy.
    pub workers: usize,
    /// Request that a client sends during the upgrade and the rollback.
    pub requests: Option<RequestAddress>,
    /// Whether to roll the copy back as well.
    pub rollback: bool,
    /// Whether the copy stays.
    pub keep: bool,
    pub wait: Wait,
    pub options: RunOptions,
}

/// Hosts for the copy of a cluster.
pub trait CopyHosts {
    /// Returns what the hosts are, for people: `the test bed`.
    fn name(&self) -> String;

    /// Returns the hosts if they are the user's: they stay, and are reset afterwards.
    fn named(&self) -> Option<&HostFlags> {
        None
    }

    /// Makes hosts without a cluster, or returns those that are named.
    fn make(&self, control_planes: usize, workers: usize) -> Result<HostFlags>;

    /// Opens a session for them. The state of its clusters is below `state_root`, and nobody is asked.
    fn session(&self, state_root: PathBuf) -> Result<Session<'_>>;

    /// Removes the hosts that [`CopyHosts::make`] has made, with all that runs on them.
    fn remove(&self) -> Result<()>;
}

/// Rehearses an upgrade. `hosts_for` returns the hosts for a copy of the cluster that it gets.
///
/// # Errors
/// If the backup cannot be restored, or the upgrade or the rollback fails on the copy. The record says so, too.
pub fn rehearse<'a>(
    request: &RehearsalRequest,
    hosts_for: &dyn Fn(&str) -> Box<dyn CopyHosts + 'a>,
    session: &Session<'_>,
) -> Result<()> {
    let backup = match &request.backup {
        Some(named) => named.clone(),
        None => last_backup(&request.cluster, session)?,
    };
    let seen = restore::summary(
        &backup,
        request.identity.as_deref(),
        request.passphrase_file.as_deref(),
        session,
    )?;
    let hosts = &*hosts_for(&seen.cluster);
    let (all_planes, all_workers) = counts(&seen.clusterfile)?;
    let (control_planes, workers) = match hosts.named() {
        Some(flags) => named(flags, &seen.clusterfile)?,
        None => (all_planes, all_workers.min(request.workers)),
    };
    let place = Place::of(session.controller.state_root()?, &seen.cluster);
    session.front.note(&format!(
        "the backup of {} is restored on {} (control planes: {control_planes} of {all_planes}, \
         workers: {workers} of {all_workers}); \
         cluster {} itself is not touched",
        seen.created,
        hosts.name(),
        seen.cluster
    ));
    if request.options.dry_run {
        return Ok(());
    }
    place.make()?;
    let lock = Lock::try_acquire(&place.lock(), Mode::Exclusive)?;
    let _lock = lock.ok_or_else(|| {
        Error::busy(format!("another rehearsal of cluster {} is running", seen.cluster))
            .hint("wait until it has ended")
    })?;
    // Of a rehearsal that was killed.
    remove_tree(&place.state())?;
    let mut rehearsal = Rehearsal::new(
        &seen.cluster,
        &backup,
        &seen.created,
        &hosts.name(),
        control_planes,
        workers,
    );
    let flags = hosts.make(control_planes, workers)?;
    let went = on_copy(request, &flags, &backup, &seen, hosts, &place, &mut rehearsal);
    rehearsal.end(&went);
    // Before the copy is removed: what was measured stays if that fails.
    let path = place.write(&rehearsal)?;
    if request.keep {
        session.front.note(&format!(
            "the copy stays: SEALOS_RUNTIME_ROOT={} imgctl status --cluster {}",
            place.state().display(),
            seen.cluster
        ));
    } else {
        let removed = remove(request, &seen, hosts, &place);
        // The reason why the rehearsal failed is more useful.
        if went.is_ok() {
            removed?;
        } else if let Err(error) = removed {
            session.front.note(&format!("the copy was not removed: {}", error.chain().join(": ")));
        }
    }
    session.front.show(&Outcome::Rehearsed { rehearsal: Box::new(rehearsal), path })?;
    went
}

/// Returns the numbers of control planes and of workers.
fn counts(clusterfile: &Clusterfile) -> Result<(usize, usize)> {
    let (mut control_planes, mut workers) = (0, 0);
    for group in &clusterfile.cluster.hosts {
        let is_control_plane = group.roles.iter().any(|role| role == MASTER);
        let count = if is_control_plane { &mut control_planes } else { &mut workers };
        *count += clusterfile.cluster.addresses_of(group)?.len();
    }
    Ok((control_planes, workers))
}

/// Returns the numbers of named control planes and workers. Refuses hosts of the cluster itself, which the copy
/// would replace.
fn named(flags: &HostFlags, clusterfile: &Clusterfile) -> Result<(usize, usize)> {
    let (control_planes, workers) = flags.parse()?;
    let mut own = Vec::new();
    for group in &clusterfile.cluster.hosts {
        own.extend(clusterfile.cluster.addresses_of(group)?);
    }
    let is_own = |host: &&Address| own.iter().any(|member| member.name == host.name);
    match control_planes.iter().chain(&workers).find(is_own) {
        None => Ok((control_planes.len(), workers.len())),
        Some(host) => Err(Error::usage(format!(
            "{host} is a host of cluster {} itself",
            clusterfile.cluster.name
        ))
        .hint("name hosts for the copy that no cluster has")),
    }
}

fn last_backup(cluster: &str, session: &Session<'_>) -> Result<String> {
    let state = session.state(cluster)?;
    let last = LastBackup::read(state.directory())?.ok_or_else(|| {
        Error::not_found(format!("no backup of cluster {cluster} is recorded here"))
            .hint(format!("`imgctl backup --cluster {cluster}` makes one, or name one with --from"))
    })?;
    Ok(last.place)
}

/// Restores, upgrades and rolls back; what was measured so far is in `rehearsal`, also if it fails.
fn on_copy(
    request: &RehearsalRequest,
    flags: &HostFlags,
    backup: &str,
    seen: &BackupSummary,
    hosts: &dyn CopyHosts,
    place: &Place,
    rehearsal: &mut Rehearsal,
) -> Result<()> {
    let copy = hosts.session(place.state())?;
    let cluster = &seen.cluster;
    part("restore", rehearsal, &copy, cluster, || {
        let request = RestoreRequest {
            artifact: backup.to_owned(),
            hosts: flags.clone(),
            identity: request.identity.clone(),
            passphrase_file: request.passphrase_file.clone(),
            encrypt_state: Vec::new(),
            image: request.base.clone(),
            other_images: false,
            wait: request.wait,
            options: request.options.clone(),
        };
        restore::restore(&request, &copy)
    })?;
    let client = match &request.requests {
        Some(asked) => Some(Client::start(asked, &addresses(cluster, &copy)?)),
        None => None,
    };
    let moved = moved(request, cluster, &copy, rehearsal);
    rehearsal.answers = client.map(Client::stop);
    moved
}

fn moved(
    request: &RehearsalRequest,
    cluster: &str,
    copy: &Session<'_>,
    rehearsal: &mut Rehearsal,
) -> Result<()> {
    let mut choices = request.choices.clone();
    // A rehearsal does not wait.
    choices.choices.windows.clear();
    choices.choices.pause_after = None;
    part("upgrade", rehearsal, copy, cluster, || {
        let request = UpgradeRequest {
            cluster: cluster.to_owned(),
            images: request.images.clone(),
            saved: None,
            id: None,
            choices,
            preview: None,
            options: request.options.clone(),
        };
        upgrade::upgrade(&request, copy)
    })?;
    let upgrades = UpgradeStore::of(copy.state(cluster)?.files());
    let ended = upgrades.history()?.pop().ok_or_else(|| {
        Error::usage("there was nothing to upgrade: the cluster already has the image")
            .hint("name the image that the cluster is to be upgraded to")
    })?;
    let document = upgrades.document(&ended.id)?;
    rehearsal.record_upgrade(&document, upgrades.report(&ended.id)?);
    if !request.rollback {
        return Ok(());
    }
    part("rollback", rehearsal, copy, cluster, || {
        let request = RollbackRequest {
            cluster: cluster.to_owned(),
            scope: None,
            id: None,
            preview: false,
            from_snapshot: None,
            choices: GivenChoices::default(),
            options: request.options.clone(),
        };
        upgrade::rollback(&request, copy)
    })
}

/// Runs one part, records how long it and its phases took, and asks the hosts whether they are healthy.
fn part(
    name: &str,
    rehearsal: &mut Rehearsal,
    copy: &Session<'_>,
    cluster: &str,
    run: impl FnOnce() -> Result<()>,
) -> Result<()> {
    copy.front.note(&format!("rehearsal: {name}"));
    let began = Instant::now();
    let went = run();
    let seconds = began.elapsed().as_secs_f64();
    let request = RunRequest {
        cluster: cluster.to_owned(),
        run: None,
        generator: String::new(),
        created: None,
    };
    // A part that fails before its first step has no journal.
    let run = of_run(&request, copy).ok().filter(|report| report.run.verb == name);
    rehearsal.parts.push(Part::new(name, seconds, run.as_ref()));
    went.context(|| format!("the rehearsal failed in its {name}"))?;
    let status = maintain::status(cluster, copy)?;
    status.check().context(|| format!("after the {name}, the copy is not healthy"))
}

/// Returns the addresses of the copy's hosts, without ports.
fn addresses(cluster: &str, copy: &Session<'_>) -> Result<Vec<IpAddr>> {
    let (clusterfile, _) = copy.state(cluster)?.require()?;
    let hosts = copy.with_surroundings(|around| clusterfile.cluster.hosts(around))?;
    let address = |host: &Host| {
        host.ip().trim_matches(['[', ']']).parse().map_err(|_| {
            Error::usage(format!("--requests needs addresses, and {} is a name", host.ip()))
                .hint("name the hosts of the copy by their IP addresses")
        })
    };
    hosts.iter().map(address).collect()
}

fn remove(
    request: &RehearsalRequest,
    seen: &BackupSummary,
    hosts: &dyn CopyHosts,
    place: &Place,
) -> Result<()> {
    if hosts.named().is_some() {
        let copy = hosts.session(place.state())?;
        // Without this file, the restore was refused, and the hosts have nothing of the copy.
        if copy.state(&seen.cluster)?.clusterfile().exists() {
            let request = TearDown {
                cluster: seen.cluster.clone(),
                force: true,
                options: request.options.clone(),
            };
            maintain::tear_down(&request, &copy)?;
        }
    }
    hosts.remove()?;
    remove_tree(&place.state())
}
