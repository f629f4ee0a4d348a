//! Operations on an existing cluster that keep its images and hosts, or end them: status, certificates,
//! uninstallation, tear-down.

use jiff::Timestamp;

use crate::operation::Operation;
use crate::standing::{Standing, standing};
use crate::work::{RunOptions, Work};
use crate::{front_end::Outcome, session::Session};
use imgctl_base::error::{Error, Kind, Result};
use imgctl_inplace::{drift, drift::Report};
use imgctl_model::state_files::StateFiles;
use imgctl_model::{
    clusterfile::Phase,
    context::{ClusterContext, Host},
    image::ClusterImage,
};
use imgctl_runtime::certificates::control_plane::read_kubeconfig;
use imgctl_runtime::certificates::rotation;
use imgctl_runtime::certificates::validity::Validity;
use imgctl_runtime::certificates::{inspect, inspect::Certificate};
use imgctl_runtime::kubeadm::{Kubeadm, renew::Wanted};
use imgctl_runtime::renewal::inventory::OfHost;
use imgctl_runtime::{HostPool, choice, control_plane};
use imgctl_upgrade::upgrade_store::UpgradeStore;
use imgctl_workflow::apps::prune::Prune;
use imgctl_workflow::backup::schedule;
use imgctl_workflow::pipeline::system_pods::PodStatus;
use imgctl_workflow::pipeline::{maintain, nodes::NETWORK_HINT};
use imgctl_workflow::pipeline::{status, status::Status};

pub use imgctl_workflow::backup::last::LastBackup;

/// Files of a cluster's state with certificates.
pub(crate) const KEPT_CERTIFICATES: [&str; 4] =
    ["pki/ca.crt", "pki/etcd/ca.crt", "pki/front-proxy-ca.crt", "etc/admin.conf"];
/// Maximum size of a certificate or kubeconfig, in bytes.
const LONGEST: u64 = 1 << 20;

pub struct ClusterStatus {
    pub phase: Option<Phase>,
    /// By the records of this machine.
    pub standing: Standing,
    pub status: Status,
    /// Where Pods run other images than their templates specify; `None` if the API cannot be
    /// queried.
    pub in_place: Option<Report>,
    pub last_backup: Option<LastBackup>,
    /// Why the last change failed, if it did.
    pub last_failure: Option<String>,
    /// As they were installed.
    pub installed: Vec<ClusterImage>,
}

/// Queries the hosts of `cluster`.
pub fn status(cluster: &str, session: &Session<'_>) -> Result<ClusterStatus> {
    let looking = RunOptions::look();
    let work = Work::begin(Operation::Status, cluster, &looking, session);
    let work = work.map_err(|error| without_identity(error, cluster, session))?;
    let desired = work.existing()?.clone();
    let phase = desired.cluster.status.phase;
    let failure = desired.last_failure();
    let prepared = work.recorded(desired)?;
    let files = session.image_files()?;
    let runtime = choice::of(&prepared.context, &files, Validity::default())?;
    let pool = session.hosts()?;
    let key = format!("status-{}", Timestamp::now().as_millisecond());
    let others = images_of_upgrade(&work)?;
    let parallel = looking.execution.parallel;
    let status = status::ask(&prepared.context, &others, &*runtime, &pool, parallel, &key);
    // A cluster without an API has no drift, and an API that does not answer is visible already.
    let in_place = if status.nodes.is_empty() { None } else { in_place(&prepared.context, &*pool) };
    let own = LastBackup::read(work.state.directory())?;
    let timers =
        prepared.context.first().and_then(|first| of_timer(&prepared.context, first, &*pool));
    let last_backup =
        own.into_iter().chain(timers).max_by(|one, other| one.created.cmp(&other.created));
    let installed = prepared.context.images.clone();
    let standing = standing(&work.state, work.existing()?)?;
    // What is unfinished says more.
    let last_failure = failure.filter(|_| standing.unfinished.is_none());
    Ok(ClusterStatus { phase, standing, status, in_place, last_backup, last_failure, installed })
}

/// Returns the rootfs images of the open upgrade that the store has: hosts may run either of them.
fn images_of_upgrade(work: &Work<'_>) -> Result<Vec<ClusterImage>> {
    let Some(open) = UpgradeStore::of(work.state.files()).open()? else { return Ok(Vec::new()) };
    let store = work.session.store()?;
    let names = std::iter::once(&open.from).chain(&open.hops).map(|release| &release.image);
    let load = |name: &String| ClusterImage::load(store, work.state.name(), name, None).ok();
    Ok(names.filter_map(load).collect())
}

/// Adds what can be seen of a cluster whose state is encrypted to somebody else.
fn without_identity(error: Error, cluster: &str, session: &Session<'_>) -> Error {
    let is_encrypted = session
        .state(cluster)
        .and_then(|state| state.files().recipients())
        .is_ok_and(|recipients| recipients.is_some());
    if error.kind() == Kind::Denied && is_encrypted {
        return error.hint(
            "`imgctl journal`, `imgctl upgrade status` and `imgctl state show` need no identity",
        );
    }
    error
}

/// Returns the last backup that the timer of the first control plane has made, if there is one.
fn of_timer(context: &ClusterContext, first: &Host, pool: &dyn HostPool) -> Option<LastBackup> {
    let path = schedule::last(context);
    let read = pool.agent(first).and_then(|agent| agent.read_file(&path, 64 << 10));
    let read = read.inspect_err(|error| tracing::info!("{path}: {error}")).ok()??;
    serde_json::from_slice(&read).ok()
}

impl ClusterStatus {
    /// Fails unless all hosts and Nodes are healthy.
    pub fn check(&self) -> Result<()> {
        if self.status.is_well() { Ok(()) } else { Err(not_well(&self.status)) }
    }
}

/// Names the unhealthy hosts and Nodes.
fn not_well(status: &Status) -> Error {
    let mut ill = Vec::new();
    for host in status.hosts.iter().filter(|host| !host.healthy) {
        ill.push(host.host.clone());
    }
    for node in status.nodes.iter().filter(|node| !node.ready) {
        if !node.host.as_ref().is_some_and(|host| ill.contains(host)) {
            ill.push(format!("Node {}", node.name));
        }
    }
    let is_told = |pod: &&PodStatus| {
        let mut hosts = status.hosts.iter();
        hosts.any(|host| host.problems.contains(&pod.problem()))
    };
    for pod in status.pods.iter().filter(|pod| !is_told(pod)) {
        ill.push(format!("Pod {} ({})", pod.name, pod.reason));
    }
    let what = format!("cluster {} is not healthy: {}", status.cluster, ill.join(", "));
    let error = Error::check_failed(what);
    if status.nodes.iter().any(|node| node.lacks_network) {
        error.hint(NETWORK_HINT)
    } else {
        error
    }
}

/// Returns where Pods run other images than their templates specify; `None` if the API cannot be
/// queried.
fn in_place(context: &ClusterContext, pool: &dyn HostPool) -> Option<Report> {
    let agent = pool.agent(context.first()?);
    let asked = agent.and_then(control_plane::connect).and_then(|api| drift::report(&*api, None));
    asked.inspect_err(|error| tracing::info!("images of Pods: {error}")).ok()
}

/// The certificates of a cluster.
pub struct Certificates {
    /// Of each host, in the Clusterfile's order.
    pub hosts: Vec<(String, Result<OfHost>)>,
    /// Of this controller, with their files below the cluster's directory.
    pub controller: Vec<(&'static str, Certificate)>,
}

/// Reads the certificates on all hosts, and those that the controller keeps.
pub fn certificates(cluster: &str, session: &Session<'_>) -> Result<Certificates> {
    let looking = RunOptions::look();
    let work = Work::begin(Operation::Cert, cluster, &looking, session)?;
    let prepared = work.recorded(work.existing()?.clone())?;
    let files = session.image_files()?;
    let runtime = choice::of(&prepared.context, &files, Validity::default())?;
    let pool = session.hosts()?;
    let key = format!("cert-{}", Timestamp::now().as_millisecond());
    let parallel = looking.execution.parallel;
    let hosts = status::certificates(&prepared.context, &*runtime, &pool, parallel, &key);
    let mut controller = Vec::new();
    for file in KEPT_CERTIFICATES {
        if let Some(certificate) = read_certificate(work.state.files(), file)? {
            controller.push((file, certificate));
        }
    }
    Ok(Certificates { hosts, controller })
}

impl Certificates {
    /// Fails if the certificates of a host could not be read.
    pub fn check(&self) -> Result<()> {
        let Some((host, Err(error))) = self.hosts.iter().find(|(_, read)| read.is_err()) else {
            return Ok(());
        };
        let told = format!("cannot read the certificates of {host}: {error}");
        let hints = error.hints().into_iter();
        Err(hints.fold(Error::new(error.kind(), told), Error::hint))
    }
}

/// Reads one of [`KEPT_CERTIFICATES`]; `None` if the controller does not have it.
pub(crate) fn read_certificate(files: &StateFiles, name: &str) -> Result<Option<Certificate>> {
    let Some(text) = files.read(name, LONGEST)? else { return Ok(None) };
    let text =
        if name.ends_with(".conf") { read_kubeconfig(&text)?.certificate } else { Some(text) };
    text.map(|text| inspect::read(&text)).transpose()
}

#[derive(Clone, Debug)]
pub struct Renewal {
    pub cluster: String,
    /// DNS names and addresses to add to the API server's certificate.
    pub alt_names: Vec<String>,
    /// Certificates to renew: `all`, `admin.conf`, `apiserver` and others.
    pub renew: Vec<String>,
    pub options: RunOptions,
}

/// Renews certificates on the control planes, one after the other.
pub fn renew_certificates(request: &Renewal, session: &Session<'_>) -> Result<()> {
    for wanted in &request.renew {
        Wanted::parse(wanted)?;
    }
    let work = Work::begin(Operation::Cert, &request.cluster, &request.options, session)?;
    rotation::refuse_while_open(work.state.files(), "cert --renew")?;
    let prepared = work.recorded(work.existing()?.clone())?;
    let distribution = prepared.context.rootfs().map(ClusterImage::distribution);
    if !matches!(distribution, Some("" | "kubernetes" | "kubeadm")) {
        return Err(Error::usage(format!(
            "cluster {} was not made with kubeadm: imgctl does not manage its certificates",
            request.cluster
        )));
    }
    let files = session.image_files()?;
    let kubeadm = Kubeadm::new(&files, request.options.validity);
    work.carry_out(&prepared, false, |execution, context| {
        maintain::renew(execution, context, &kubeadm, &request.alt_names, &request.renew)
    })
}

/// Has hosts renew their certificates themselves, or no longer.
#[derive(Clone, Debug)]
pub struct Timers {
    pub cluster: String,
    pub renew: bool,
    pub options: RunOptions,
}

/// Installs the timers that renew certificates, or removes them. The Clusterfile says so from then on.
pub fn timers(request: &Timers, session: &Session<'_>) -> Result<()> {
    let work = Work::begin(Operation::Cert, &request.cluster, &request.options, session)?;
    let mut desired = work.existing()?.clone();
    desired.cluster.renew_certificates = Some(request.renew);
    let prepared = work.recorded(desired)?;
    work.carry_out(&prepared, false, maintain::timers)
}

#[derive(Clone, Debug)]
pub struct Uninstallation {
    pub cluster: String,
    /// Image, as the cluster lists it.
    pub image: String,
    /// Also removes Namespaces, PersistentVolumeClaims and CustomResourceDefinitions.
    pub purge: bool,
    pub options: RunOptions,
}

pub fn uninstall(request: &Uninstallation, session: &Session<'_>) -> Result<()> {
    let mut work = Work::begin(Operation::Uninstall, &request.cluster, &request.options, session)?;
    work.prune = if request.purge { Prune::All } else { Prune::Objects };
    let desired = work.existing()?.clone();
    if !desired.cluster.images.contains(&request.image) {
        let what = format!("cluster {} has no image {}", request.cluster, request.image);
        return Err(
            Error::not_found(what).hint(format!("it has {}", desired.cluster.images.join(", ")))
        );
    }
    let mut prepared = work.recorded(desired)?;
    prepared.forget_image(&request.image);
    work.carry_out(&prepared, false, |execution, context| {
        maintain::uninstall(execution, context, &request.image)
    })
}

#[derive(Clone, Debug)]
pub struct TearDown {
    pub cluster: String,
    /// Skips hosts that do not answer.
    pub force: bool,
    pub options: RunOptions,
}

pub fn tear_down(request: &TearDown, session: &Session<'_>) -> Result<()> {
    let work = Work::begin(Operation::Reset, &request.cluster, &request.options, session)?;
    let mut desired = work.existing()?.clone();
    desired.cluster.hosts.extend(work.state.touched()?);
    let prepared = work.recorded(desired)?;
    let outcome = work.with_execution(&prepared, request.force, |execution| {
        work.carry_out_plan(&maintain::reset(execution, &prepared.context)?, execution)
    })?;
    session.front.show(&match outcome {
        Outcome::Changed { cluster, .. } => Outcome::TornDown { cluster },
        other => other,
    })
}
