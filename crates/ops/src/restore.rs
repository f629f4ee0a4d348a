//! Restoring a cluster from a backup, on the same or on other hosts: the artifact is read and verified
//! as a whole before any host is touched.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use jiff::Timestamp;

use crate::adopted;
use crate::backup::{access, identities};
use crate::hosts::preferred;
use crate::operation::Operation;
use crate::session::{Needed, Session};
use crate::work::{RunOptions, Work};
use imgctl_base::error::{Context as _, Error, IoContext as _, Kind, Result};
use imgctl_base::fs::atomic;
use imgctl_base::image::Digest;
use imgctl_model::clusterfile::{Clusterfile, Status};
use imgctl_model::image::ClusterImage;
use imgctl_model::state_files::StateFiles;
use imgctl_model::{
    backup as content,
    backup::{CLUSTERFILE, CONTROLLER},
};
use imgctl_model::{context::Host, desired::HostFlags};
use imgctl_transfer::backup::place::{self, Access};
use imgctl_transfer::backup::{Config, Found, Opened};
use imgctl_transfer::transfer::location::{Archived, Location};
use imgctl_transfer::transfer::source::ImageSource;
use imgctl_workflow::pipeline::restore::Restore;
use imgctl_workflow::pipeline::{change, look, nodes::Wait};

/// Directory of unfinished restores, below the state directory.
const STAGING: &str = "restore";
/// Name of the artifact in a staging directory.
const NAME: &str = "backup";
/// Which backup an unfinished restore is of: its digest.
const MARK: &str = "digest";

#[derive(Clone, Debug)]
pub struct RestoreRequest {
    /// `oci:DIR:TAG`, `oci-archive:FILE`, `docker://NAME`, or a directory with one backup.
    pub artifact: String,
    pub hosts: HostFlags,
    pub identity: Option<PathBuf>,
    pub passphrase_file: Option<PathBuf>,
    /// Recipients (`age1…`), and files of recipients, to encrypt the cluster's state to.
    pub encrypt_state: Vec<String>,
    /// Rootfs image for a cluster that was adopted and had none.
    pub image: Option<String>,
    /// Accept images of the same names with other digests.
    pub other_images: bool,
    pub wait: Wait,
    pub options: RunOptions,
}

/// Restores a cluster.
pub fn restore(request: &RestoreRequest, session: &Session<'_>) -> Result<()> {
    if request.hosts.masters.is_none() {
        return Err(Error::usage("no hosts to restore the cluster on")
            .hint("pass --masters, and --nodes if it is to have workers"));
    }
    let keys = identities(request.identity.as_deref(), request.passphrase_file.as_deref())?;
    let access = access(session)?;
    let scratch = access.store.scratch_directory()?;
    let from = location(&request.artifact)?;
    let source = place::source(&from, &scratch, &access, session.front.reporter())?;
    let found = Found::read(&*source)?;
    let opened = found.open(&*source, &keys)?;
    let cluster = found.config.cluster.clone();
    let mut work = Work::begin(Operation::Restore, &cluster, &request.options, session)?;
    work.encrypt_state(&request.encrypt_state)?;
    let state = work.state.files().clone();
    let staging = Staging::of(&state, &found.root.digest);
    // An unfinished restore of the same backup has made this record; any other is of a cluster.
    let is_resumed =
        staging.is_begun() && work.current.as_ref().is_some_and(|current| !current.exists());
    if !is_resumed {
        refuse_if_alive(&work, session)?;
    }
    let stored = content::read_clusterfile(&opened.bytes(&*source, CLUSTERFILE)?)?;
    if stored.cluster.name != cluster {
        return Err(Error::bad_content(format!(
            "the backup is of cluster {cluster}, and its Clusterfile of {}",
            stored.cluster.name
        )));
    }
    let image = first_image(&stored, request.image.as_ref(), session)?;
    let mut desired = desired(stored, &request.hosts, session)?;
    if let Some(image) = image {
        desired.cluster.images.insert(0, image);
    }
    let (mut files, mut unpacked) = (Vec::new(), Vec::new());
    if !request.options.dry_run {
        files = staging.fill(&from, &found, &opened, &access, session)?;
        if !is_resumed {
            archive(&work, session)?;
            staging.begin()?;
        }
        let keys = content::unpack_controller(&opened.bytes(&*source, CONTROLLER)?, &state)?;
        for name in &keys.left_out {
            session.front.note(&format!(
                "{} of the backup is not one of imgctl's files, and is left out",
                name.display()
            ));
        }
        unpacked = keys.written;
    }
    // What was recorded is archived: from here on, the cluster does not exist.
    if !is_resumed {
        work.current = None;
    }
    let prepared = work.prepare(desired).and_then(|prepared| {
        same_images(&prepared.context.images, &opened, request.other_images, session)?;
        Ok(prepared)
    });
    if prepared.is_err() && !is_resumed {
        // No host knows the keys yet.
        forget(&state, &unpacked);
    }
    let prepared = prepared?;
    let mut change = work.change(&prepared, request.wait)?;
    change.restore = Some(Restore { digest: found.root.digest.clone(), files, is_resumed });
    session.front.note(&format!(
        "cluster {cluster} is restored as it was at {}; what was written later is not in the backup",
        found.config.created
    ));
    work.carry_out(&prepared, false, |execution, context| {
        change::plan(execution, context, &change)
    })?;
    if request.options.dry_run { Ok(()) } else { staging.clear() }
}

/// What a backup is of.
pub(crate) struct BackupSummary {
    pub(crate) cluster: String,
    /// When it began, RFC 3339 in UTC.
    pub(crate) created: String,
    /// Without the logins of its hosts.
    pub(crate) clusterfile: Clusterfile,
}

/// Reads what a backup is of.
pub(crate) fn summary(
    artifact: &str,
    identity: Option<&Path>,
    passphrase_file: Option<&Path>,
    session: &Session<'_>,
) -> Result<BackupSummary> {
    let keys = identities(identity, passphrase_file)?;
    let access = access(session)?;
    let scratch = access.store.scratch_directory()?;
    let source = place::source(&location(artifact)?, &scratch, &access, session.front.reporter())?;
    let found = Found::read(&*source)?;
    let opened = found.open(&*source, &keys)?;
    let clusterfile = content::read_clusterfile(&opened.bytes(&*source, CLUSTERFILE)?)?;
    let Config { cluster, created, .. } = found.config.clone();
    Ok(BackupSummary { cluster, created, clusterfile })
}

/// Returns the rootfs image that the new hosts of a cluster get which had none.
fn first_image(
    stored: &Clusterfile,
    image: Option<&String>,
    session: &Session<'_>,
) -> Result<Option<String>> {
    if !adopted::has_no_image(stored) {
        return match image {
            Some(_) => Err(Error::usage(format!(
                "cluster {} had a rootfs image when it was backed up",
                stored.cluster.name
            ))
            .hint("omit --image; --other-images accepts other content under the same name")),
            None => Ok(None),
        };
    }
    adopted::chosen_image(stored, image, Needed::Layers, session).map(Some)
}

/// A path without a transport is a directory with one backup, or an archive.
fn location(text: &str) -> Result<Location> {
    let path = Path::new(text);
    let in_directory = |path: &Path| -> Result<Location> {
        let name = Some(place::only(path)?);
        Ok(Location::OciDirectory(Archived { path: path.to_owned(), name }))
    };
    if path.is_dir() {
        return in_directory(path);
    }
    if path.is_file() {
        return Ok(Location::OciArchive(Archived { path: path.to_owned(), name: None }));
    }
    match Location::parse(OsStr::new(text))? {
        Location::Name(name) => Err(Error::not_found(format!("there is no backup {name}"))
            .hint("write oci:DIR:TAG, docker://REPOSITORY:TAG or the path of a directory")),
        Location::OciDirectory(Archived { path, name: None }) => in_directory(&path),
        location => Ok(location),
    }
}

/// Returns the cluster as it was, on other hosts.
fn desired(stored: Clusterfile, hosts: &HostFlags, session: &Session<'_>) -> Result<Clusterfile> {
    let mut desired = stored;
    let cluster = &mut desired.cluster;
    if cluster.hosts.iter().any(|group| !group.environment.is_empty()) {
        session.front.note(
            "variables of single hosts (hosts[].env) are not carried over to the new hosts: set \
             them in the Clusterfile and run `imgctl apply` if they need them",
        );
    }
    cluster.hosts.clear();
    // Hosts that are left of the lost cluster do not belong to this one.
    cluster.uid = None;
    cluster.created = None;
    cluster.deleted = None;
    let environment = std::mem::take(&mut cluster.status.environment);
    // An adopted cluster of kubeadm keeps its API endpoint and settings. k3s gets both from the first
    // server's new configuration.
    let adopted = cluster.status.adopted.take().filter(|adopted| adopted.runtime != "k3s");
    cluster.status = Status { environment, adopted, ..Status::default() };
    cluster.ssh = hosts.ssh.clone();
    cluster.add_hosts(hosts)?;
    Ok(desired)
}

/// Fails if a host of the recorded cluster still has it: there would be two clusters of one name.
pub(crate) fn refuse_if_alive(work: &Work<'_>, session: &Session<'_>) -> Result<()> {
    let Some(current) = &work.current else { return Ok(()) };
    let name = work.state.name();
    if !current.exists() {
        return Err(Error::busy(format!("cluster {name} exists, and was never completed"))
            .hint(format!("run `imgctl reset --cluster {name}` first")));
    }
    let hosts = session.with_surroundings(|around| current.cluster.hosts(around))?;
    let (pool, parallel) = (session.hosts()?, work.options.execution.parallel.max(1));
    let mut looks = look::look(&hosts, &pool, parallel);
    // The flags are for the new hosts first: they may not fit a host of the lost cluster.
    let is_denied = |host: &Host| {
        let look = looks.get(&host.id());
        look.is_some_and(|look| look.as_ref().is_err_and(|error| error.kind() == Kind::Denied))
    };
    let mut denied: Vec<Host> = hosts.into_iter().filter(is_denied).collect();
    for host in &mut denied {
        host.login = preferred(&session.ssh.login, &host.login);
    }
    looks.extend(look::look(&denied, &pool, parallel));
    let alive: Vec<&str> = looks
        .iter()
        .filter(|(_, look)| {
            look.as_ref().is_ok_and(|facts| facts.clusters.iter().any(|other| other == name))
        })
        .map(|(host, _)| host.as_str())
        .collect();
    if alive.is_empty() {
        return Ok(());
    }
    Err(Error::busy(format!("cluster {name} still is on {}", alive.join(", "))).hint(format!(
        "two clusters of one name must not run at once: `imgctl reset --cluster {name} --force` \
         removes what is left of it (hosts that do not answer are left out)"
    )))
}

/// Archives the record of the cluster that was lost.
fn archive(work: &Work<'_>, session: &Session<'_>) -> Result<()> {
    if work.current.is_none() {
        return Ok(());
    }
    let to = work.state.archive(Timestamp::now().as_second())?;
    work.state.untouch_all()?;
    session.front.note(&format!("the record of the lost cluster is kept as {}", to.display()));
    Ok(())
}

/// Removes the controller's files of a backup that is not restored.
fn forget(state: &StateFiles, unpacked: &[PathBuf]) {
    for name in unpacked {
        let path = state.path(name);
        if let Err(error) = std::fs::remove_file(&path) {
            tracing::warn!("cannot remove {}: {error}", path.display());
        }
    }
}

/// Fails if an image is not the one that the cluster had.
fn same_images(
    images: &[ClusterImage],
    opened: &Opened<'_>,
    accept: bool,
    session: &Session<'_>,
) -> Result<()> {
    let backed_up = opened.details.about.get("images").and_then(|images| images.as_array());
    for image in images {
        let was = backed_up.into_iter().flatten().find(|was| was["name"] == image.name.as_str());
        let Some(digest) = was.and_then(|was| was["digest"].as_str()) else { continue };
        if digest == image.digest.to_string() {
            continue;
        }
        let what = format!(
            "image {} is {} here, and the cluster that was backed up had {digest}",
            image.name, image.digest
        );
        if accept {
            session.front.note(&what);
            continue;
        }
        return Err(Error::check_failed(what).hint(format!(
            "pull the image of that digest and tag it {}, or pass --other-images",
            image.name
        )));
    }
    Ok(())
}

/// Where a backup lies on this machine while it is restored. It holds all secrets of the cluster, and
/// goes when the restore is done.
struct Staging {
    state: StateFiles,
    directory: PathBuf,
    digest: Digest,
}

impl Staging {
    fn of(state: &StateFiles, digest: &Digest) -> Self {
        let directory = state.path(STAGING);
        Self { state: state.clone(), directory, digest: digest.clone() }
    }

    /// Whether a restore of this backup has begun.
    fn is_begun(&self) -> bool {
        let mark = std::fs::read_to_string(self.directory.join(MARK));
        mark.is_ok_and(|mark| mark.trim() == self.digest.to_string())
    }

    fn begin(&self) -> Result<()> {
        atomic::write_private(&self.directory.join(MARK), &self.digest.to_string())
    }

    /// Fetches the artifact, verifies all of it, and returns the files for control planes.
    fn fill(
        &self,
        from: &Location,
        found: &Found,
        opened: &Opened<'_>,
        access: &Access,
        session: &Session<'_>,
    ) -> Result<Vec<PathBuf>> {
        if !self.is_begun() {
            atomic::remove_tree(&self.directory)?;
        }
        let (artifact, files) = (self.directory.join("oci"), self.directory.join("files"));
        atomic::make_private(&self.directory)?;
        atomic::make_private(&files)?;
        let here = Archived { path: artifact, name: Some(NAME.to_owned()) };
        place::copy(from, &Location::OciDirectory(here.clone()), access, session.front.reporter())?;
        let scratch = access.store.scratch_directory()?;
        let copied: Box<dyn ImageSource> = place::source(
            &Location::OciDirectory(here),
            &scratch,
            access,
            session.front.reporter(),
        )?;
        let mut all = Vec::new();
        for part in &opened.details.parts {
            // Hosts get the frames as they are.
            let path = files.join(format!("{}.zst", part.name));
            // It has its name once all of it is there.
            if !path.exists() {
                let mut file = self.state.create(&path)?;
                opened.write_frames(&*copied, &part.name, &mut file)?;
                file.commit()?;
            }
            // The controller's own parts stay here.
            if ![CLUSTERFILE, CONTROLLER].contains(&part.name.as_str()) {
                all.push(path);
            }
        }
        if all.is_empty() {
            return Err(Error::bad_content(format!(
                "the backup of {} has no data of the cluster",
                found.config.created
            )));
        }
        let doing = || format!("cannot sync {}", files.display());
        std::fs::File::open(&files).and_then(|directory| directory.sync_all()).doing(doing)?;
        Ok(all)
    }

    fn clear(&self) -> Result<()> {
        atomic::remove_tree(&self.directory)
            .context(|| "the cluster is restored, and the copy of its backup is left".to_owned())
    }
}
