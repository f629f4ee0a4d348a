//! Checks whether hosts can join a cluster and reports all problems of all hosts at once.
//!
//! Changes nothing and does not query hosts: it evaluates the facts that they have reported.

use std::collections::{BTreeMap, BTreeSet};

use crate::pipeline::look::Looks;
use crate::pipeline::ownership::{self, Other, Owner};
use imgctl_base::error::{Error, Kind};
use imgctl_base::text::of_host;
use imgctl_host::agent::protocol::Facts;
use imgctl_model::context::{ClusterContext, Host};
use imgctl_model::host_addresses;
use imgctl_runtime::Runtime;

/// Maximum clock difference, as in sealos.
const MOST_SKEW_MS: i64 = 5_000;
/// Required space per transferred byte: a tree needs space in addition to the layers it is made
/// from.
const ROOM_PER_BYTE: u64 = 2;

#[derive(Debug, Default)]
pub struct Findings {
    /// Keyed by [`Host::id`].
    pub problems: BTreeMap<String, Vec<Problem>>,
    pub notes: Vec<String>,
}

/// One problem that blocks the run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    pub kind: Kind,
    pub what: String,
    pub hint: Option<String>,
}

impl Problem {
    fn new(what: String, hint: &str) -> Self {
        Self { kind: Kind::CheckFailed, what, hint: (!hint.is_empty()).then(|| hint.to_owned()) }
    }

    /// Combines several problems of one host into one error.
    pub fn error(host: &str, problems: &[Self]) -> Error {
        let kind = problems.first().map_or(Kind::CheckFailed, |one| one.kind);
        let list: Vec<&str> = problems.iter().map(|one| one.what.as_str()).collect();
        // Messages of the transport already name the host.
        let mut error = Error::new(kind, of_host(host, &list.join("; ")));
        let mut told: Vec<&str> = Vec::new();
        for hint in problems.iter().filter_map(|one| one.hint.as_deref()) {
            if !told.contains(&hint) {
                told.push(hint);
                error = error.hint(hint);
            }
        }
        error
    }
}

/// Why a plan cannot be carried out, as far as it is known before it begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    pub kind: Kind,
    /// One line for each host.
    pub problems: Vec<String>,
    pub hints: Vec<String>,
}

impl Refusal {
    /// Returns the refusal for these errors, which hosts would end with; `None` if there are none.
    pub fn of(errors: &[Error]) -> Option<Self> {
        let mut hints: Vec<String> = Vec::new();
        for hint in errors.iter().flat_map(Error::hints) {
            if !hints.iter().any(|told| told == hint) {
                hints.push(hint.to_owned());
            }
        }
        Some(Self {
            kind: errors.first()?.kind(),
            problems: errors.iter().map(|error| error.message().to_owned()).collect(),
            hints,
        })
    }

    pub fn error(&self) -> Error {
        let what = "the plan cannot be carried out".to_owned();
        let error =
            Error::new(self.kind, what).caused_by(Error::several(self.kind, &self.problems));
        self.hints.iter().fold(error, |error, hint| error.hint(hint.clone()))
    }
}

pub struct Question<'a> {
    pub context: &'a ClusterContext,
    pub runtime: &'a dyn Runtime,
    pub looks: &'a Looks,
    /// Hosts that join the cluster. The others only have to answer.
    pub new: &'a [Host],
    /// Bytes that each host receives.
    pub bytes: &'a BTreeMap<String, u64>,
    pub force: bool,
    /// IDs of hosts on which earlier runs began to work for this cluster.
    pub begun: &'a BTreeSet<String>,
}

/// Adds members that were installed anew: files alone would not bring back what scripts did there.
pub(crate) fn lost_members(question: &Question<'_>, force_helps: bool, found: &mut Findings) {
    let context = question.context;
    let new: BTreeSet<String> = question.new.iter().map(Host::id).collect();
    for host in context.hosts.iter().filter(|host| !new.contains(&host.id())) {
        if let Some(Ok(facts)) = question.looks.get(&host.id())
            && let Some(why) = ownership::membership_lost(context, facts)
        {
            let mut problem = Problem::new(why.to_owned(), ownership::REPLACE);
            if force_helps {
                let more = "; --force puts its files back and runs no script";
                problem.hint = problem.hint.map(|hint| hint + more);
            }
            found.problems.entry(host.id()).or_default().push(problem);
        }
    }
}

/// Adds the hosts that the runtime of a new cluster cannot use.
pub(crate) fn unfit(question: &Question<'_>, found: &mut Findings) {
    for host in question.new {
        if let Some(Ok(facts)) = question.looks.get(&host.id())
            && let Err(error) = question.runtime.fits(question.context, host, facts)
        {
            let hint = error.hints().first().map(ToString::to_string).unwrap_or_default();
            let problem = Problem::new(error.message().to_owned(), &hint);
            found.problems.entry(host.id()).or_default().push(problem);
        }
    }
}

pub fn findings(question: &Question<'_>) -> Findings {
    let mut found = Findings::default();
    let context = question.context;
    let new: BTreeSet<String> = question.new.iter().map(Host::id).collect();
    for host in &context.hosts {
        let Some(look) = question.looks.get(&host.id()) else {
            continue;
        };
        let problems = match look {
            Err(error) => vec![unreachable(error)],
            Ok(facts) => {
                let is_new = new.contains(&host.id());
                let mut problems = always(question, host, facts);
                if is_new {
                    problems.extend(before_joining(question, host, facts, &mut found.notes));
                } else if let Some(other) = ownership::taken(context, facts) {
                    let what = format!(
                        "it belongs to cluster {}, not to cluster {}",
                        other.named(),
                        ownership::this(context)
                    );
                    problems.push(Problem::new(what, &ownership::take_out(context, host)));
                }
                problems
            }
        };
        if !problems.is_empty() {
            found.problems.insert(host.id(), problems);
        }
    }
    twins(question, &mut found);
    let masters = context.control_planes().count();
    if masters > 0 && masters.is_multiple_of(2) {
        found.notes.push(format!(
            "{masters} control planes tolerate no more failures than {}: use an odd number",
            masters - 1
        ));
    }
    found
}

/// Reports a problem for each host with another rootfs image: its files do not change until an
/// upgrade also moves the members that run there.
pub(crate) fn refuse_switch(
    context: &ClusterContext,
    behind: &BTreeSet<String>,
    found: &mut Findings,
) {
    let image = context.rootfs().map_or("", |image| &image.name);
    for id in behind {
        let problem = Problem::new(
            format!("its rootfs image is not {image}, and only an upgrade can change it"),
            &format!(
                "run `imgctl upgrade {image}`, or remove the host with `imgctl delete` and add it \
                 again"
            ),
        );
        found.problems.entry(id.clone()).or_default().push(problem);
    }
}

fn unreachable(error: &Error) -> Problem {
    Problem {
        kind: error.kind(),
        what: error.chain().join(": "),
        hint: (!error.hints().is_empty()).then(|| error.hints().join("; ")),
    }
}

/// Returns problems that apply to every host of the operation.
fn always(question: &Question<'_>, host: &Host, facts: &Facts) -> Vec<Problem> {
    let mut problems = Vec::new();
    if facts.skew_ms.abs() > MOST_SKEW_MS {
        problems.push(Problem::new(
            format!(
                "its clock is {:.1} s {} the controller's",
                seconds(facts.skew_ms.abs()),
                if facts.skew_ms > 0 { "ahead of" } else { "behind" }
            ),
            "synchronize the clocks (chronyc makestep, timedatectl set-ntp true); at most 5 s are \
             allowed",
        ));
    }
    if !facts.writable {
        problems.push(Problem::new(
            format!("{} is not writable", question.context.paths.root()),
            "mount it read-write, or choose another directory with SEALOS_DATA_ROOT",
        ));
    }
    for obstacle in &facts.obstacles {
        problems.push(Problem::new(
            obstacle.clone(),
            "mount what is missing, or make it writable; nothing is changed on the host until then",
        ));
    }
    if facts.bash.is_none() {
        problems.push(Problem::new(
            "bash is missing".to_owned(),
            "install bash: the scripts and commands of images need it",
        ));
    }
    let bytes = question.bytes.get(&host.id()).copied().unwrap_or(0);
    let needed = bytes.saturating_mul(ROOM_PER_BYTE);
    if bytes > 0 && facts.free_bytes < needed {
        problems.push(Problem {
            kind: Kind::NoSpace,
            what: format!(
                "{} are free on the file system of {}, about {} are needed",
                megabytes(facts.free_bytes),
                question.context.paths.root(),
                megabytes(needed)
            ),
            hint: Some(
                "free space there, or choose another directory with SEALOS_DATA_ROOT".to_owned(),
            ),
        });
    }
    problems
}

/// Returns problems that apply to a host before it joins the cluster.
fn before_joining(
    question: &Question<'_>,
    host: &Host,
    facts: &Facts,
    notes: &mut Vec<String>,
) -> Vec<Problem> {
    let context = question.context;
    let mut problems = Vec::new();
    let belongs = foreign(question, host, facts);
    let is_ours = facts.clusters.contains(&context.name) && !belongs.same_name;
    if !belongs.to.is_empty() {
        let what = format!("it belongs to another cluster: {}", belongs.to.join(", "));
        if question.force {
            notes.push(format!("{}: {what}", host.id()));
        } else {
            problems.push(Problem::new(
                what,
                "remove it from that cluster (imgctl delete, imgctl reset), or pass --force if \
                 that cluster no longer exists",
            ));
        }
    }
    if context.hosts.len() > 1 && host_addresses::is_no_hostname(&facts.hostname) {
        problems.push(Problem::new(
            format!("its hostname is `{}`, by which every machine means itself", facts.hostname),
            "give each host a hostname of its own (hostnamectl hostname NAME)",
        ));
    }
    let mut ports = question.runtime.ports(context, host);
    if let Some(registry) = context.registry.as_ref().filter(|_| context.serves_registry(host)) {
        ports.push(registry.port);
    }
    ports.sort_unstable();
    ports.dedup();
    // An interrupted run has left services of this cluster: their ports are no problem.
    if !is_ours {
        let taken: Vec<String> = ports
            .iter()
            .filter(|port| facts.listening.contains(port))
            .map(ToString::to_string)
            .collect();
        if !taken.is_empty() {
            problems.push(Problem::new(
                format!("port {} is in use", taken.join(", ")),
                "stop the process that listens there (see ss -ltnp), or configure another port",
            ));
        }
        if !facts.runtimes.is_empty() {
            notes.push(format!(
                "{}: {} already exists; the image's check decides whether that is allowed",
                host.id(),
                facts.runtimes.join(", ")
            ));
        }
    }
    problems
}

/// Number of hosts that the problem of one of many equal hosts names.
const NAMED_TWINS: usize = 3;

/// Other clusters that a host which is to join belongs to.
struct Foreign {
    to: Vec<String>,
    /// One of them has the name of this cluster.
    same_name: bool,
}

fn foreign(question: &Question<'_>, host: &Host, facts: &Facts) -> Foreign {
    let context = question.context;
    let named = |name: &String| {
        let uid = facts.cluster_uids.get(name).cloned();
        Other { cluster: name.clone(), uid }.named()
    };
    let others = facts.clusters.iter().filter(|name| **name != context.name);
    let mut to: Vec<String> = others.map(named).collect();
    let same_name = match ownership::owner(context, facts) {
        Owner::Other(other) => other.cluster == context.name,
        // No run of this cluster has left the tree: it is of a cluster that has no UID yet.
        Owner::Unmarked => {
            context.uid.is_some()
                && facts.cluster_trees.contains(&context.name)
                && !question.begun.contains(&host.id())
        }
        Owner::Nobody | Owner::Ours => false,
    };
    if same_name {
        let this = ownership::this(context);
        to.push(format!("{}, which is not {this}", named(&context.name)));
    }
    Foreign { to, same_name }
}

/// Reports hosts with the same name, and machines listed under two addresses.
fn twins(question: &Question<'_>, found: &mut Findings) {
    let mut names: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    let mut machines: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for host in &question.context.hosts {
        if let Some(Ok(facts)) = question.looks.get(&host.id()) {
            names.entry(&facts.hostname).or_default().push(host.id());
            if !facts.machine_id.is_empty() {
                machines.entry(&facts.machine_id).or_default().push(host.id());
            }
        }
    }
    let mut tell = |ids: &[String], what: &dyn Fn(&str) -> String, hint: &str| {
        for id in ids.iter().skip(1) {
            let others = ids.iter().map(String::as_str).filter(|other| other != id);
            let mut others: Vec<&str> = others.take(NAMED_TWINS).collect();
            let more = (ids.len() - 1).saturating_sub(NAMED_TWINS);
            let more = format!("{more} others");
            if ids.len() - 1 > NAMED_TWINS {
                others.push(&more);
            }
            let problem = Problem::new(what(&others.join(", ")), hint);
            found.problems.entry(id.clone()).or_default().push(problem);
        }
    };
    for ids in machines.values().filter(|ids| ids.len() > 1) {
        tell(
            ids,
            &|others| format!("it is the same machine as {others} (same machine-id)"),
            "list each machine once; give a clone a new /etc/machine-id (systemd-machine-id-setup)",
        );
    }
    for (name, ids) in names.iter().filter(|(_, ids)| ids.len() > 1) {
        let same_machine = machines.values().any(|machine| machine == ids);
        if !same_machine {
            tell(
                ids,
                &|others| format!("its hostname `{name}` is also that of {others}"),
                "give each host a hostname of its own (hostnamectl hostname NAME)",
            );
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "one digit is shown")]
fn seconds(milliseconds: i64) -> f64 {
    milliseconds as f64 / 1000.0
}

/// Formats bytes as `120 MB`, rounded up.
pub(crate) fn megabytes(bytes: u64) -> String {
    format!("{} MB", bytes.div_ceil(1_000_000))
}

#[cfg(test)]
mod tests;
