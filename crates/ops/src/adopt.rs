//! Adopting a cluster that another program made, or whose controller was lost: read it, judge it,
//! record it. On its hosts, nothing but the agent is new afterwards.

use std::collections::BTreeSet;
use std::sync::Arc;

use jiff::Timestamp;

use crate::front_end::{Announcement, Outcome};
use crate::operation::Operation;
use crate::session::Session;
use crate::work::{Prepared, RunOptions, Work, declined};
use imgctl_base::error::{Error, Result};
use imgctl_base::image::time::rfc3339;
use imgctl_host::agent::Agent;
use imgctl_model::clusterfile::{Adopted, Clusterfile};
use imgctl_model::context::{ClusterContext, Host};
use imgctl_model::{desired::HostFlags, local_addresses};
use imgctl_runtime::HostPool;
use imgctl_upgrade::adopt::clusterfile::{clusterfile, with_logins};
use imgctl_upgrade::adopt::findings::findings;
use imgctl_upgrade::adopt::read::{Question, look, read};
use imgctl_upgrade::adopt::reading::{Adoption, Reading};
use imgctl_upgrade::adopt::steps;
use imgctl_workflow::pipeline::change::Planned;

/// A cluster to adopt.
#[derive(Clone, Debug)]
pub struct AdoptRequest {
    /// Name that the cluster gets; of a cluster with a record, its former name.
    pub cluster: String,
    pub hosts: HostFlags,
    /// Recipients (`age1…`), and files of recipients, to encrypt the cluster's state to.
    pub encrypt_state: Vec<String>,
    pub options: RunOptions,
}

/// Reads the cluster and records it as one of this controller.
pub fn adopt(request: &AdoptRequest, session: &Session<'_>) -> Result<()> {
    let work = Work::begin(Operation::Adopt, &request.cluster, &request.options, session)?;
    let named = named(request)?;
    let (reading, named) = read_cluster(&named, &work)?;
    let found = findings(&request.cluster, &reading);
    let mut adoption = Adoption::of(&request.cluster, &reading, found);
    if work.current.as_ref().is_some_and(Clusterfile::exists) {
        check_same(&reading, &named, &work)?;
        adoption.known = true;
        // The record is this machine's own.
        adoption.findings.retain(|finding| finding.check != "record");
        return session.front.show(&seen(adoption));
    }
    if adoption.blockers().next().is_some() {
        session.front.show(&seen(adoption))?;
        return Err(Error::check_failed(format!(
            "cluster {} cannot be adopted in its present state; nothing was changed",
            request.cluster
        ))
        .hint("the errors above say what to do first"));
    }
    let desired = clusterfile(&reading, &named, &rfc3339(Timestamp::now().as_second()));
    let prepared = work.recorded(desired)?;
    carry_out(&work, &prepared, &reading, adoption, request)
}

/// Returns the hosts of the command line as a Clusterfile.
fn named(request: &AdoptRequest) -> Result<Clusterfile> {
    let mut named =
        Clusterfile::new(&request.cluster, &[], &request.hosts, local_addresses::primary())?;
    // A cluster without an image, whatever it is.
    named.cluster.status.adopted = Some(Adopted::default());
    Ok(named)
}

/// Reads the cluster. A record names all of its hosts: the command line need not.
fn read_cluster(named: &Clusterfile, work: &Work<'_>) -> Result<(Reading, Clusterfile)> {
    let session = work.session;
    let pool = session.hosts()?;
    let parallel = work.options.execution.parallel.max(1);
    let key = format!("adopt-{}", Timestamp::now().as_millisecond());
    let question = |context| Question { context, pool: &*pool, parallel, key: &key };
    let context = session.cluster_context(named, Vec::new())?;
    let first = look(&question(&context))?;
    let Some(record) = &first.record else {
        return Ok((read(&question(&context), first), named.clone()));
    };
    // Before anything is asked about the hosts of a cluster that is not meant.
    record.check_name(&named.cluster.name)?;
    let mut whole = with_logins(&record.clusterfile, named);
    whole.cluster.name.clone_from(&named.cluster.name);
    let known = whole.cluster.addresses()?;
    let strangers: Vec<String> = named
        .cluster
        .addresses()?
        .iter()
        .filter(|address| !known.contains(address))
        .map(ToString::to_string)
        .collect();
    if !strangers.is_empty() {
        return Err(Error::usage(format!(
            "{} is not a host of the recorded cluster ({})",
            strangers.join(", "),
            record.source
        ))
        .hint("name one of its control planes; the record has the other hosts"));
    }
    let whole = session.cluster_context(&whole, Vec::new())?;
    let chosen = chosen_hosts(&context, &whole, &record.source, work)?;
    let pool = Chosen { pool: &*pool, hosts: chosen };
    let question = Question { context: &whole, pool: &pool, parallel, key: &key };
    Ok((read(&question, first), named.clone()))
}

/// Returns the IDs of hosts that may be logged in to: those that the user has named, and with the user's
/// consent those that the record names. Whoever can write the record must not choose which machines
/// get passwords. `--yes` does not answer for hosts that are not known when it is written.
fn chosen_hosts(
    named: &ClusterContext,
    whole: &ClusterContext,
    source: &str,
    work: &Work<'_>,
) -> Result<BTreeSet<String>> {
    let front = &work.session.front;
    let mut chosen: BTreeSet<String> = named.hosts.iter().map(Host::id).collect();
    if let Some(current) = work.current.as_ref().filter(|current| current.exists()) {
        // This machine manages them.
        chosen.extend(current.cluster.addresses()?.iter().map(ToString::to_string));
    }
    let others: Vec<&Host> =
        whole.hosts.iter().filter(|host| !chosen.contains(&host.id())).collect();
    if others.is_empty() {
        return Ok(chosen);
    }
    let list: Vec<String> = others
        .iter()
        .map(|host| if host.local { format!("{} (this machine)", host.id()) } else { host.id() })
        .collect();
    front.note(&format!(
        "the record of the cluster ({source}) names hosts that you have not named: {}",
        list.join(", ")
    ));
    match front.confirm_here("Log in to these hosts as well?")? {
        Some(true) => chosen.extend(others.iter().map(|host| host.id())),
        Some(false) => return Err(declined()),
        // What the named hosts say can be shown.
        None if work.options.dry_run => {}
        None => {
            let of = |flag: &str, are_planes: bool| {
                let of_role = |host: &&Host| host.is_control_plane() == are_planes;
                let ids: Vec<String> = whole.hosts.iter().filter(of_role).map(Host::id).collect();
                (!ids.is_empty()).then(|| format!("{flag} {}", ids.join(",")))
            };
            let flags: Vec<String> =
                [of("--masters", true), of("--nodes", false)].into_iter().flatten().collect();
            return Err(Error::usage(
                "imgctl logs in only to hosts that you name, and nobody can be asked about those \
                 of the record; nothing was changed",
            )
            .hint(format!("if they are the cluster's hosts, name all: {}", flags.join(" "))));
        }
    }
    Ok(chosen)
}

/// A pool that connects to some hosts alone.
struct Chosen<'a> {
    pool: &'a dyn HostPool,
    /// Their IDs.
    hosts: BTreeSet<String>,
}

impl HostPool for Chosen<'_> {
    fn agent(&self, host: &Host) -> Result<Arc<dyn Agent>> {
        if self.hosts.contains(&host.id()) {
            return self.pool.agent(host);
        }
        Err(Error::denied("the record alone names it, so imgctl has not logged in to it")
            .hint("name it with --masters or --nodes, or run the command on a terminal"))
    }
}

/// Fails if a cluster of this name is recorded and is not the one that was read.
fn check_same(reading: &Reading, named: &Clusterfile, work: &Work<'_>) -> Result<()> {
    let current = work.existing()?;
    let name = work.state.name();
    let other = |why: String| {
        Error::usage(format!("this machine already manages a cluster {name}: {why}"))
            .hint("choose another name with -c")
    };
    let adopted = current.cluster.status.adopted.as_ref();
    if let (Some(adopted), Some(id)) = (adopted, reading.cluster_id()) {
        if adopted.cluster_id == id {
            return Ok(());
        }
        return Err(other("it is not the one that these hosts are in".to_owned()));
    }
    let known: BTreeSet<_> = current.cluster.addresses()?.into_iter().collect();
    let unknown = named.cluster.addresses()?.into_iter().find(|host| !known.contains(host));
    match unknown {
        None => Ok(()),
        Some(host) => Err(other(format!("{host} is not one of its hosts"))),
    }
}

fn carry_out(
    work: &Work<'_>,
    prepared: &Prepared,
    reading: &Reading,
    adoption: Adoption,
    request: &AdoptRequest,
) -> Result<()> {
    let (session, options) = (work.session, work.options);
    let external_etcd = reading.observation.external_etcd();
    let context: Arc<ClusterContext> = Arc::new(prepared.context.clone());
    let intent = intent(reading, &context);
    if !options.dry_run {
        session.front.announce(&Announcement::Adoption(&adoption))?;
        if !session.front.confirm("Adopt the cluster?")? {
            return Err(declined());
        }
    }
    work.encrypt_state(&request.encrypt_state)?;
    let outcome = work.with_execution(prepared, false, |execution| {
        let plan = steps::plan(execution, &context, &intent, external_etcd);
        let planned = Planned::new(plan, Arc::clone(&context), execution);
        work.carry_out_plan(&planned, execution)
    })?;
    session.front.show(&match outcome {
        Outcome::Steps { steps, .. } => {
            Outcome::Adoption { adoption: Box::new(adoption), steps: Some(steps) }
        }
        outcome => outcome,
    })
}

/// Returns the outcome of an adoption that goes no further.
fn seen(adoption: Adoption) -> Outcome {
    Outcome::Adoption { adoption: Box::new(adoption), steps: None }
}

/// Identifies the cluster and its hosts, for the journal.
fn intent(reading: &Reading, context: &ClusterContext) -> String {
    let ids: BTreeSet<String> = context.hosts.iter().map(Host::id).collect();
    let ids: Vec<String> = ids.into_iter().collect();
    format!("adopt {} {}", reading.cluster_id().unwrap_or_default(), ids.join(","))
}
