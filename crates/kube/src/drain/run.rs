//! Runs a drain: a single loop that lists the Node's Pods and evicts those that are due.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::api::{Api, ApiError};
use crate::drain::pods::{self, is_terminating, uid};
use crate::drain::verdict::{DaemonSets, Verdict, verdict};
use crate::drain::{Drained, Happened, OnTimeout, Options, PodEvent, PodName, policy};
use imgctl_base::error::{Context, Error, Result};

/// Maximum time without a response from the API.
const SILENCE: Duration = Duration::from_secs(120);
/// Maximum delay that a server may request before a retry.
const LONGEST_RETRY: Duration = Duration::from_secs(60);

/// Evicts every Pod of `node` that can run elsewhere, and waits until they are gone. The Node must
/// be cordoned. All Pods are checked before any is evicted: Pods that must not be evicted cause an
/// error that names all of them.
///
/// May be called again after it failed or was interrupted.
pub fn drain(
    api: &dyn Api,
    node: &str,
    options: &Options,
    events: &dyn Fn(PodEvent),
) -> Result<Drained> {
    let doing = || format!("cannot drain Node {node}");
    let told = |error: ApiError| Error::from(error).context(doing());
    let object = api.get(&format!("/api/v1/nodes/{node}")).map_err(told)?;
    if object["spec"]["unschedulable"] != true {
        let error = Error::failed("it is not cordoned: its Pods would return");
        return Err(error).context(doing);
    }
    let sets = api.list("/apis/apps/v1/daemonsets").map_err(told)?;
    let mut drain = Drain {
        api,
        node,
        options,
        events,
        policy: policy(api).map_err(told)?,
        sets: DaemonSets::of(&sets),
        waiting: BTreeMap::new(),
        skipped: BTreeMap::new(),
        drained: Drained::default(),
        begun: Instant::now(),
        is_deleting: options.disable_eviction,
        is_told: false,
    };
    drain.run().context(doing)?;
    Ok(drain.drained)
}

struct Drain<'a> {
    api: &'a dyn Api,
    node: &'a str,
    options: &'a Options,
    events: &'a dyn Fn(PodEvent),
    policy: &'static str,
    sets: DaemonSets,
    /// Pods by UID.
    waiting: BTreeMap<String, Waiting>,
    skipped: BTreeMap<String, &'static str>,
    drained: Drained,
    begun: Instant,
    is_deleting: bool,
    /// Whether the timeout was reported.
    is_told: bool,
}

/// A Pod that is being removed.
struct Waiting {
    name: PodName,
    lost: Option<&'static str>,
    /// Whether a request to remove it was accepted.
    is_asked: bool,
    due: Instant,
    blocked: Option<String>,
    /// The Pod as last seen.
    pod: Value,
}

impl Drain<'_> {
    fn run(&mut self) -> Result<()> {
        let mut heard = Instant::now();
        loop {
            match pods::on_node(self.api, self.node) {
                Ok(all) => {
                    heard = Instant::now();
                    self.look(all)?;
                    if self.waiting.is_empty() {
                        return Ok(());
                    }
                    self.ask_those_due()?;
                }
                // The API server itself may be restarting for an upgrade.
                Err(error) if is_passing(&error) && heard.elapsed() < SILENCE => {
                    tracing::debug!("{}: {error}", self.node);
                }
                Err(error) => return Err(error.into()),
            }
            if !self.options.timeout.is_zero() && self.begun.elapsed() >= self.options.timeout {
                self.time_is_over()?;
            }
            std::thread::sleep(self.options.poll);
        }
    }

    /// Processes the Pods on the Node: new Pods are judged, and Pods that are no longer present
    /// count as gone, even if a new Pod has the same name.
    fn look(&mut self, all: Vec<Value>) -> Result<()> {
        let mut refused = Vec::new();
        let mut seen = BTreeMap::new();
        for pod in all {
            let id = uid(&pod).to_owned();
            if let Some(known) = self.waiting.remove(&id) {
                seen.insert(id, Waiting { pod, ..known });
                continue;
            }
            let name = PodName::of(&pod);
            match verdict(&pod, &self.sets, self.options) {
                Verdict::Evict(lost) | Verdict::Delete(lost) => {
                    let waiting = Waiting {
                        name,
                        lost,
                        // A terminating Pod needs no request.
                        is_asked: is_terminating(&pod),
                        due: Instant::now(),
                        blocked: None,
                        pod,
                    };
                    seen.insert(id, waiting);
                }
                Verdict::Skip(why) => {
                    if self.skipped.insert(id, why).is_none() {
                        self.tell(&name, Happened::Skipped(why));
                    }
                }
                Verdict::Refuse(why) => refused.push(format!("Pod {name}: {why}")),
            }
        }
        if !refused.is_empty() {
            refused.sort();
            let lines = refused.iter().map(|pod| format!("  {pod}"));
            return Err(Error::denied("these Pods must not be evicted:").lines(lines));
        }
        for (_, gone) in std::mem::replace(&mut self.waiting, seen) {
            self.tell(&gone.name, Happened::Gone);
            self.drained.gone += 1;
        }
        Ok(())
    }

    fn ask_those_due(&mut self) -> Result<()> {
        let now = Instant::now();
        let mut waiting = std::mem::take(&mut self.waiting);
        let outcome = waiting
            .values_mut()
            .filter(|one| !one.is_asked && one.due <= now)
            .try_for_each(|one| self.ask(one));
        self.waiting = waiting;
        outcome
    }

    /// Requests the removal of one Pod.
    fn ask(&mut self, waiting: &mut Waiting) -> Result<()> {
        let mut options = json!({"preconditions": {"uid": uid(&waiting.pod)}});
        if let Some(grace) = self.options.grace {
            options["gracePeriodSeconds"] = json!(grace);
        }
        let path = waiting.name.path();
        let answer = if self.is_deleting {
            self.api.delete(&path, &options)
        } else {
            let eviction = json!({
                "apiVersion": self.policy,
                "kind": "Eviction",
                "metadata": {
                    "name": waiting.name.name,
                    "namespace": waiting.name.namespace,
                },
                "deleteOptions": options,
            });
            self.api.create(&format!("{path}/eviction"), &eviction)
        };
        let Err(error) = answer else {
            waiting.is_asked = true;
            waiting.blocked = None;
            let happened = if self.is_deleting {
                Happened::Deleting(waiting.lost)
            } else {
                Happened::Evicting(waiting.lost)
            };
            self.tell(&waiting.name, happened);
            return Ok(());
        };
        let pause = match error.code {
            // Removed or replaced: the next pass shows it.
            404 | 409 => self.options.poll,
            429 => {
                let asked = error.retry_after.filter(|seconds| *seconds > 0);
                asked.map_or(self.options.retry, Duration::from_secs)
            }
            403 if is_namespace_terminating(&error) => self.options.retry,
            500 if error.message.contains("more than one PodDisruptionBudget") => {
                return Err(self.two_budgets(waiting, &error));
            }
            _ if is_passing(&error) => self.options.retry,
            _ => {
                let pod = format!("Pod {} cannot be evicted", waiting.name);
                return Err(Error::from(error).context(pod));
            }
        };
        waiting.due = Instant::now() + pause.min(LONGEST_RETRY);
        if !matches!(error.code, 404 | 409) {
            let why = pods::refusal(&error);
            if waiting.blocked.as_ref() != Some(&why) {
                self.tell(&waiting.name, Happened::Blocked(why.clone()));
                waiting.blocked = Some(why);
            }
        }
        Ok(())
    }

    fn two_budgets(&self, waiting: &Waiting, error: &ApiError) -> Error {
        let budgets = pods::budgets(self.api, self.policy, &waiting.pod);
        Error::failed(format!(
            "Pod {} can never be evicted: {}",
            waiting.name,
            budgets.unwrap_or_else(|| error.message.clone())
        ))
        .hint("leave only one PodDisruptionBudget for it, then run the same command again")
    }

    fn time_is_over(&mut self) -> Result<()> {
        if self.is_told && self.options.on_timeout == OnTimeout::Wait {
            return Ok(());
        }
        let left: Vec<(PodName, String)> =
            self.waiting.values().map(|one| (one.name.clone(), self.why(one))).collect();
        if !self.is_told {
            for (name, why) in &left {
                self.tell(name, Happened::TimedOut(why.clone()));
            }
            self.is_told = true;
        }
        match self.options.on_timeout {
            OnTimeout::Wait => return Ok(()),
            OnTimeout::Delete if !self.is_deleting => {
                self.is_deleting = true;
                self.is_told = false;
                self.begun = Instant::now();
                for one in self.waiting.values_mut().filter(|one| !one.is_asked) {
                    one.due = self.begun;
                    self.drained.forced.push(one.name.clone());
                }
                return Ok(());
            }
            OnTimeout::Delete | OnTimeout::Abort => {}
        }
        let lines: Vec<String> =
            left.iter().map(|(name, why)| format!("  Pod {name}: {why}")).collect();
        Err(Error::failed(format!(
            "{} {} left after {} s:",
            lines.len(),
            if lines.len() == 1 { "Pod is" } else { "Pods are" },
            self.options.timeout.as_secs(),
        ))
        .lines(lines)
        .hint(
            "check these Pods, then run the same command again; pass --drain-timeout for more \
             time, or --drain-on-timeout delete to override their PodDisruptionBudgets",
        ))
    }

    /// Returns what a Pod is waiting for.
    fn why(&self, waiting: &Waiting) -> String {
        if waiting.is_asked || is_terminating(&waiting.pod) {
            return pods::lingering(&waiting.pod);
        }
        let said = waiting.blocked.clone();
        let budgets = pods::budgets(self.api, self.policy, &waiting.pod);
        match (said, budgets) {
            (Some(said), Some(budgets)) => format!("{said} ({budgets})"),
            (Some(one), None) | (None, Some(one)) => one,
            (None, None) => "it could not be evicted yet".to_owned(),
        }
    }

    fn tell(&self, pod: &PodName, happened: Happened) {
        (self.events)(PodEvent { pod: pod.clone(), happened });
    }
}

/// Returns whether the error may be temporary.
fn is_passing(error: &ApiError) -> bool {
    matches!(error.code, 0 | 429 | 500 | 502..=504)
}

fn is_namespace_terminating(error: &ApiError) -> bool {
    let is_cause = |(reason, _): &(String, String)| reason == "NamespaceTerminating";
    error.causes.iter().any(is_cause)
}
