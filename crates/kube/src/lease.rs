//! The lock that all controllers of one cluster share: Lease `kube-system/imgctl`.
//!
//! It keeps commands of two controllers apart. It does not prove that no other controller is at
//! work, because the API may be unreachable for minutes while a control plane is upgraded. Clocks
//! are not trusted: a Lease counts as abandoned when it was not renewed for its whole duration,
//! measured with this machine's monotonic clock while API servers answered.

use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use std::{collections::BTreeMap, thread::JoinHandle};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::api::{Api, ApiError};
use imgctl_base::error::{Context, Error, IoContext, Result};

const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases";
/// Name of the Lease in the namespace kube-system.
pub const NAME: &str = "imgctl";
/// Lease of upgrades by imgctl 0.1, which is respected but not taken.
const OLDER: &str = "imgctl-upgrade";
/// Annotation that says in words who holds the Lease.
const ANNOTATION: &str = "imgctl.io/holder";
/// Longest duration of a Lease that its holder renews, in seconds. imgctl 0.1 held the Lease for an
/// hour, and never renewed it.
const LONGEST: i64 = 600;

/// Who holds the Lease. Holders with the same identity never run at the same time, so one of them
/// may resume where another one was killed.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Holder {
    #[serde(skip)]
    pub identity: String,
    pub host: String,
    pub user: String,
    pub verb: String,
}

/// Intervals of the lock; shorter in tests.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// Interval between two renewals.
    pub renew: Duration,
    /// Time without a renewal after which the lock is free, in whole seconds.
    pub ttl: Duration,
}

impl Default for Times {
    fn default() -> Self {
        Self { renew: Duration::from_secs(5), ttl: Duration::from_secs(60) }
    }
}

/// What to do while no API server answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outage {
    Fail,
    /// Tell the user, and take the Lease as soon as one answers.
    Warn,
    /// Take the Lease as soon as one answers: the cluster is being created.
    Expect,
}

/// The lock. It is held and renewed until this value is dropped.
pub struct Held {
    loss: Arc<Mutex<Loss>>,
    stop: Option<Sender<()>>,
    renewing: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Loss {
    /// The other holder.
    to: Option<String>,
    act: Option<Box<dyn Fn() + Send>>,
}

/// Acquires the lock. A holder with the same identity counts as the same one: it was killed and
/// resumes. `force` takes the lock from any other holder, who notices and stops. Fails with
/// [`Kind::Busy`](imgctl_base::error::Kind::Busy) if another holder renews the lock; `tell` receives the reason for a wait.
pub fn hold(
    api: Arc<dyn Api>,
    holder: &Holder,
    force: bool,
    outage: Outage,
    times: Times,
    tell: &dyn Fn(&str),
) -> Result<Held> {
    let now = format!("{:.6}", Timestamp::now());
    let mine = Contender { api, holder: holder.clone(), acquired: now, force, times };
    let is_held = match outage {
        Outage::Expect => false,
        _ => mine
            .take(outage == Outage::Warn, tell)
            .context(|| format!("cannot lock the cluster (Lease kube-system/{NAME})"))?,
    };
    let loss = Arc::new(Mutex::new(Loss::default()));
    let (stop, stopped) = mpsc::channel();
    let told = Arc::clone(&loss);
    let renewing = std::thread::Builder::new()
        .name("lease".to_owned())
        .spawn(move || {
            if let Some(other) = mine.keep(is_held, &stopped) {
                let mut loss = lock(&told);
                loss.to = Some(other);
                loss.act.iter().for_each(|act| act());
            }
        })
        .doing(|| "cannot start a thread".to_owned())?;
    Ok(Held { loss, stop: Some(stop), renewing: Some(renewing) })
}

impl Held {
    /// Fails if another holder has the lock. An API server that does not answer is not an error.
    pub fn check(&self) -> Result<()> {
        match &lock(&self.loss).to {
            None => Ok(()),
            Some(other) => Err(Error::busy(format!(
                "the lock of the cluster (Lease kube-system/{NAME}) belongs to {other}"
            ))
            .hint("only one of the two may continue: stop the other one first")),
        }
    }

    /// Calls `act` when another holder has the lock.
    pub fn on_loss(&self, act: impl Fn() + Send + 'static) {
        let mut loss = lock(&self.loss);
        if loss.to.is_some() {
            act();
        }
        loss.act = Some(Box::new(act));
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(renewing) = self.renewing.take() {
            let _ = renewing.join();
        }
    }
}

fn lock(loss: &Mutex<Loss>) -> MutexGuard<'_, Loss> {
    loss.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns who holds the lock and renews it; watches a Lease for as long as two renewals take.
pub fn living(api: &dyn Api, times: Times) -> Result<Option<String>, ApiError> {
    let mut seen = Seen::new();
    let until = Instant::now() + times.renew * 2;
    loop {
        let mut is_held = false;
        for name in [OLDER, NAME] {
            match look(api, name, "", &mut seen)? {
                Found::Living(who, ..) => return Ok(Some(who)),
                Found::Silent(..) => is_held = true,
                _ => {}
            }
        }
        if !is_held || Instant::now() >= until {
            return Ok(None);
        }
        std::thread::sleep(times.renew / 5);
    }
}

/// Versions of other holders' Leases by name, each with the time at which it was first seen.
type Seen = BTreeMap<&'static str, (Value, Instant)>;

/// State of a Lease.
enum Found {
    Missing,
    /// Nobody holds it, the asking holder does, or it is abandoned.
    Free(Value),
    /// Another holder has it and has not renewed it since it is watched.
    Silent(String, Value),
    /// Another holder renews it, or cannot be judged. The hint says what to do.
    Living(String, String, Value),
}

/// Reads the Lease `name`, and compares it with what was seen of it before.
fn look(
    api: &dyn Api,
    name: &'static str,
    identity: &str,
    seen: &mut Seen,
) -> Result<Found, ApiError> {
    let lease = match api.get(&path(name)) {
        Err(error) if error.is_not_found() => return Ok(Found::Missing),
        // Its holder cannot renew the Lease either: the watch begins again.
        Err(error) => {
            seen.clear();
            return Err(error);
        }
        Ok(lease) => lease,
    };
    let other = holder(&lease);
    if other.is_empty() || other == identity {
        return Ok(Found::Free(lease));
    }
    let who = describe(&lease);
    let seconds = lease["spec"]["leaseDurationSeconds"].as_i64().unwrap_or(0);
    if seconds > LONGEST {
        return Ok(Found::Living(
            who,
            format!(
                "an older imgctl holds the Lease without renewing it: wait until it ends; if it \
                 was killed, run `kubectl -n kube-system delete lease {name}`"
            ),
            lease,
        ));
    }
    let version = &lease["metadata"]["resourceVersion"];
    let (known, since) = seen.entry(name).or_insert_with(|| (version.clone(), Instant::now()));
    let duration = Duration::from_secs(u64::try_from(seconds.max(1)).unwrap_or(1));
    Ok(if known != version {
        Found::Living(
            who,
            format!(
                "wait until that command ends, or stop it; if it is killed, its Lease expires {} \
                 s later",
                duration.as_secs()
            ),
            lease,
        )
    } else if since.elapsed() >= duration {
        Found::Free(lease)
    } else {
        Found::Silent(who, lease)
    })
}

fn path(name: &str) -> String {
    format!("{LEASES}/{name}")
}

fn holder(lease: &Value) -> &str {
    lease["spec"]["holderIdentity"].as_str().unwrap_or_default()
}

/// Says in words who holds a Lease: `root on ctl1 ("imgctl run" since 2026-01-01T10:00:00Z)`.
fn describe(lease: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let said = text(&lease["metadata"]["annotations"][ANNOTATION]);
    let since = match text(&lease["spec"]["acquireTime"]) {
        time if time.is_empty() => text(&lease["spec"]["renewTime"]),
        time => time,
    };
    let since = since.split('.').next().unwrap_or_default();
    match serde_json::from_str::<Holder>(&said) {
        Ok(who) => {
            format!("{} on {} (`imgctl {}` since {since}Z)", who.user, who.host, who.verb)
        }
        Err(_) => format!("{} (since {since}Z)", holder(lease)),
    }
}

/// Outcome of an attempt to take or renew the Lease.
enum Attempt {
    Held,
    /// Another client was faster.
    Late,
    Silent(String),
    Living(String, String),
}

struct Contender {
    api: Arc<dyn Api>,
    holder: Holder,
    /// Time at which this process began to hold the Lease.
    acquired: String,
    /// Takes the Lease from any holder, but never back from one that has taken it.
    force: bool,
    times: Times,
}

impl Contender {
    /// Acquires the lock. Returns `false` if no API server answers and `may_go_on`.
    fn take(&self, may_go_on: bool, tell: &dyn Fn(&str)) -> Result<bool> {
        let mut seen = Seen::new();
        let mut is_told = false;
        loop {
            match self.attempt(&[OLDER, NAME], &mut seen, self.force) {
                Ok(Attempt::Held) => return Ok(true),
                Ok(Attempt::Living(who, hint)) => {
                    let message = format!("the cluster is being changed by {who}");
                    return Err(Error::busy(message).hint(hint));
                }
                Ok(Attempt::Silent(who)) if !is_told => {
                    is_told = true;
                    tell(&format!("the cluster is locked by {who}; waiting for a sign of life"));
                }
                Ok(_) => {}
                // A server that starts, or that never becomes ready, may refuse everything.
                Err(error) if may_go_on && (error.is_outage() || !self.is_ready()) => {
                    tell(&format!(
                        "other controllers are not locked out until an API server answers: {error}"
                    ));
                    return Ok(false);
                }
                Err(error) => return Err(error.into()),
            }
            std::thread::sleep(self.times.renew / 5);
        }
    }

    fn is_ready(&self) -> bool {
        self.api.raw("/readyz").is_ok()
    }

    /// Takes the lock if necessary, and renews it until `stopped`. Returns the other holder if there
    /// is one.
    fn keep(&self, mut is_held: bool, stopped: &mpsc::Receiver<()>) -> Option<String> {
        let mut seen = Seen::new();
        let (mut pause, mut is_away) = (self.times.renew, false);
        while stopped.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
            let attempt = if is_held {
                self.attempt(&[NAME], &mut Seen::new(), false)
            } else {
                self.attempt(&[OLDER, NAME], &mut seen, self.force)
            };
            pause = self.times.renew;
            is_away = attempt.is_err();
            match attempt {
                Ok(Attempt::Held) => is_held = true,
                Ok(Attempt::Living(who, _)) => return Some(who),
                Ok(Attempt::Silent(who)) if is_held => return Some(who),
                Ok(_) => pause /= 5,
                Err(error) => tracing::debug!("the lock of the cluster is not renewed: {error}"),
            }
        }
        if is_held && !is_away {
            self.release();
        }
        None
    }

    /// Takes the Lease, or renews it, unless another holder has one of `names`.
    fn attempt(
        &self,
        names: &[&'static str],
        seen: &mut Seen,
        force: bool,
    ) -> Result<Attempt, ApiError> {
        for &name in names {
            let found = look(&*self.api, name, &self.holder.identity, seen)?;
            let lease = match found {
                Found::Missing => Value::Null,
                Found::Free(lease) => lease,
                Found::Silent(_, lease) | Found::Living(_, _, lease) if force => lease,
                Found::Silent(who, _) => return Ok(Attempt::Silent(who)),
                Found::Living(who, hint, _) => return Ok(Attempt::Living(who, hint)),
            };
            if name != NAME {
                continue;
            }
            let answer = if lease.is_null() {
                self.api.create(
                    LEASES,
                    &self.written(json!({
                        "apiVersion": "coordination.k8s.io/v1",
                        "kind": "Lease",
                        "metadata": {"name": NAME, "namespace": "kube-system"},
                    })),
                )
            } else {
                self.api.replace(&path(NAME), &self.written(lease))
            };
            return match answer {
                Ok(_) => Ok(Attempt::Held),
                Err(error) if error.code == 409 => Ok(Attempt::Late),
                Err(error) => Err(error),
            };
        }
        Ok(Attempt::Late)
    }

    /// Returns the Lease with our name and the current time.
    fn written(&self, mut lease: Value) -> Value {
        let old = &lease["spec"];
        let transitions = old["leaseTransitions"].as_i64().unwrap_or(0);
        let is_other = !old.is_null() && old["holderIdentity"] != *self.holder.identity;
        lease["spec"] = json!({
            "holderIdentity": self.holder.identity,
            "leaseDurationSeconds": self.times.ttl.as_secs().max(1),
            "acquireTime": self.acquired,
            "renewTime": format!("{:.6}", Timestamp::now()),
            "leaseTransitions": transitions + i64::from(is_other),
        });
        let said = serde_json::to_string(&self.holder).unwrap_or_default();
        lease["metadata"]["annotations"][ANNOTATION] = said.into();
        lease
    }

    /// Marks the lease as free if it is still ours.
    fn release(&self) {
        let Ok(mut lease) = self.api.get(&path(NAME)) else {
            return;
        };
        if holder(&lease) == self.holder.identity {
            lease["spec"]["holderIdentity"] = json!("");
            lease["spec"]["leaseDurationSeconds"] = json!(1);
            if let Err(error) = self.api.replace(&path(NAME), &lease) {
                tracing::debug!("the lock of the cluster was not released: {error}");
            }
        }
    }
}

#[cfg(test)]
mod tests;
