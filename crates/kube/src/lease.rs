//! The lock that all controllers of one cluster share: Lease `kube-system/imgctl-upgrade`.
//!
//! It keeps two operators apart. It does not prove that no other controller is at work, because the
//! API may be unreachable for minutes while a control plane is upgraded. Host clocks are not
//! trusted: a lease counts as expired only if it is not renewed while this controller watches it.

use std::fmt;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::api::{Answer, Api, ApiError};
use imgctl_base::error::{Context, Error, IoContext, Kind, Result};

const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases";
const NAME: &str = "imgctl-upgrade";
/// Maximum number of attempts when others write at the same time.
const TRIES: u32 = 5;

/// Intervals of the lock; shorter in tests.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// Interval between two renewals.
    pub renew: Duration,
    /// Time without a renewal after which the lock is free.
    pub ttl: Duration,
    /// How long to wait for an API server that can serve before the lock is given up. It covers the
    /// restart of the only control plane.
    pub patience: Duration,
}

impl Default for Times {
    fn default() -> Self {
        Self {
            renew: Duration::from_secs(15),
            ttl: Duration::from_secs(60),
            patience: Duration::from_secs(420),
        }
    }
}

/// The lock. It is held and renewed until this value is dropped.
pub struct Held {
    lost: Arc<Mutex<Option<String>>>,
    stop: Option<Sender<()>>,
    renewing: Option<JoinHandle<()>>,
}

/// Acquires the lock for `holder`. A caller with the same name counts as the same holder and
/// resumes after having been killed. Fails with [`Kind::Busy`] if another holder has the lock and
/// still renews it; detecting an abandoned lock can take slightly longer than one renewal interval.
pub fn hold(api: Arc<dyn Api>, holder: &str, times: Times) -> Result<Held> {
    let mine = Mine { api, holder: holder.to_owned(), times };
    mine.take_patiently()
        .context(|| format!("cannot lock the cluster (Lease kube-system/{NAME})"))?;
    let lost = Arc::new(Mutex::new(None));
    let (stop, stopped) = mpsc::channel();
    let told = Arc::clone(&lost);
    let renewing = std::thread::Builder::new()
        .name("lease".to_owned())
        .spawn(move || {
            while stopped.recv_timeout(mine.times.renew) == Err(RecvTimeoutError::Timeout) {
                if let Some(other) = mine.renew() {
                    *told.lock().unwrap_or_else(PoisonError::into_inner) = Some(other);
                    return;
                }
            }
            mine.release();
        })
        .doing(|| "cannot start a thread".to_owned())?;
    Ok(Held { lost, stop: Some(stop), renewing: Some(renewing) })
}

impl Held {
    /// Fails if another holder has taken the lock in the meantime. An API server that does not
    /// answer is not an error.
    pub fn check(&self) -> Result<()> {
        let lost = self.lost.lock().unwrap_or_else(PoisonError::into_inner);
        match &*lost {
            None => Ok(()),
            Some(other) => Err(Error::new(
                Kind::Busy,
                format!("the lock of the cluster (Lease kube-system/{NAME}) was taken by {other}"),
            )
            .hint("only one of the two may continue: stop the other one first")),
        }
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

/// Reason why the lease was not acquired.
enum Refused {
    /// No API server can serve at the moment.
    Outage(ApiError),
    Other(Error),
}

impl From<ApiError> for Refused {
    fn from(error: ApiError) -> Self {
        match error.is_outage() {
            true => Self::Outage(error),
            false => Self::Other(error.into()),
        }
    }
}

impl From<Error> for Refused {
    fn from(error: Error) -> Self {
        Self::Other(error)
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Outage(error) => error.fmt(f),
            Self::Other(error) => error.fmt(f),
        }
    }
}

struct Mine {
    api: Arc<dyn Api>,
    holder: String,
    times: Times,
}

impl Mine {
    fn path() -> String {
        format!("{LEASES}/{NAME}")
    }

    /// Acquires the lease, and waits for an API server that can serve.
    fn take_patiently(&self) -> Result<()> {
        let until = Instant::now() + self.times.patience;
        loop {
            match self.take() {
                Err(Refused::Outage(error)) if Instant::now() < until => {
                    tracing::info!("the lock of the cluster waits: {error}");
                    std::thread::sleep(self.times.renew / 5);
                }
                Err(Refused::Outage(error)) => return Err(error.into()),
                Err(Refused::Other(error)) => return Err(error),
                Ok(()) => return Ok(()),
            }
        }
    }

    fn take(&self) -> std::result::Result<(), Refused> {
        for _ in 0..TRIES {
            let answer = match self.api.get(&Self::path()) {
                Err(error) if error.is_not_found() => {
                    let lease = json!({
                        "apiVersion": "coordination.k8s.io/v1",
                        "kind": "Lease",
                        "metadata": {"name": NAME, "namespace": "kube-system"},
                        "spec": self.spec(&Value::Null),
                    });
                    self.api.create(LEASES, &lease)
                }
                Err(error) => Err(error),
                Ok(lease) => {
                    let holder = holder(&lease).to_owned();
                    if !holder.is_empty() && holder != self.holder {
                        self.watch(&lease, &holder)?;
                    }
                    self.write(lease)
                }
            };
            match answer {
                Ok(_) => return Ok(()),
                // Another writer was faster.
                Err(error) if error.code == 409 => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(Error::new(Kind::Busy, "other clients keep changing it").into())
    }

    /// Succeeds if the lease of another holder has expired.
    fn watch(&self, lease: &Value, holder: &str) -> Result<()> {
        let renewed: Option<Timestamp> =
            lease["spec"]["renewTime"].as_str().and_then(|text| text.parse().ok());
        let seconds = lease["spec"]["leaseDurationSeconds"].as_i64();
        let seconds = seconds.unwrap_or(0).clamp(0, 24 * 3600);
        let age = renewed.map(|renewed| Timestamp::now().as_second() - renewed.as_second());
        let busy = |when: &str| {
            let error = format!("{holder} is working on this cluster; it last reported {when}");
            Err(Error::new(Kind::Busy, error).hint(format!(
                "wait until it ends; if it was killed, its lock expires {} s after that",
                self.times.ttl.as_secs()
            )))
        };
        if age.is_some_and(|age| age < seconds) {
            return busy(lease["spec"]["renewTime"].as_str().unwrap_or_default());
        }
        // Our clock may be ahead of the holder's: a live holder renews the lease while we watch.
        let version = &lease["metadata"]["resourceVersion"];
        let until = Instant::now() + self.times.renew + self.times.renew / 3;
        while Instant::now() < until {
            std::thread::sleep((self.times.renew / 10).max(Duration::from_millis(1)));
            let now = self.api.get(&Self::path());
            if now.is_ok_and(|now| now["metadata"]["resourceVersion"] != *version) {
                return busy("just now");
            }
        }
        Ok(())
    }

    /// Writes our name and the current time to the lease; fails if it has changed since it was
    /// read.
    fn write(&self, mut lease: Value) -> Answer<Value> {
        lease["spec"] = self.spec(&lease["spec"]);
        self.api.replace(&Self::path(), &lease)
    }

    fn spec(&self, old: &Value) -> Value {
        let now = format!("{:.6}", Timestamp::now());
        let transitions = old["leaseTransitions"].as_i64().unwrap_or(0);
        let is_ours = old["holderIdentity"] == self.holder.as_str();
        let acquired = match (&old["acquireTime"], is_ours) {
            (Value::String(acquired), true) => acquired.clone(),
            _ => now.clone(),
        };
        json!({
            "holderIdentity": self.holder,
            "leaseDurationSeconds": self.times.ttl.as_secs().max(1),
            "acquireTime": acquired,
            "renewTime": now,
            "leaseTransitions": if is_ours || old.is_null() { transitions } else { transitions + 1 },
        })
    }

    /// Renews the lease. Returns the other holder if the lease is no longer ours.
    fn renew(&self) -> Option<String> {
        for _ in 0..TRIES {
            let lease = match self.api.get(&Self::path()) {
                Ok(lease) => lease,
                // The lease was deleted or the API is unreachable; no other holder is known.
                Err(error) => {
                    let answer = match error.is_not_found() {
                        true => self.take().err().map(|refused| refused.to_string()),
                        false => Some(error.to_string()),
                    };
                    if let Some(error) = answer {
                        tracing::debug!("the lock of the cluster was not renewed: {error}");
                    }
                    return None;
                }
            };
            let other = holder(&lease);
            if !other.is_empty() && other != self.holder {
                return Some(other.to_owned());
            }
            match self.write(lease) {
                Err(ApiError { code: 409, .. }) => {}
                Err(error) => {
                    tracing::debug!("the lock of the cluster was not renewed: {error}");
                    return None;
                }
                Ok(_) => return None,
            }
        }
        None
    }

    /// Marks the lease as free if it is still ours.
    fn release(&self) {
        let Ok(mut lease) = self.api.get(&Self::path()) else {
            return;
        };
        if holder(&lease) == self.holder {
            lease["spec"]["holderIdentity"] = json!("");
            lease["spec"]["leaseDurationSeconds"] = json!(1);
            if let Err(error) = self.api.replace(&Self::path(), &lease) {
                tracing::debug!("the lock of the cluster was not released: {error}");
            }
        }
    }
}

fn holder(lease: &Value) -> &str {
    lease["spec"]["holderIdentity"].as_str().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failover::Failover;
    use crate::testing::stand_in::StandIn;

    const FAST: Times = Times {
        renew: Duration::from_millis(30),
        ttl: Duration::from_secs(1),
        patience: Duration::from_secs(30),
    };

    fn spec(api: &StandIn) -> Value {
        api.peek(&Mine::path()).unwrap()["spec"].clone()
    }

    fn take(api: &StandIn, holder: &str) -> Result<Held> {
        hold(Arc::new(api.clone()), holder, FAST)
    }

    #[test]
    fn one_holds_it_at_a_time_and_renews_it() {
        let api = StandIn::new();
        let held = take(&api, "a").unwrap();
        let first = spec(&api);
        assert_eq!(first["holderIdentity"], "a");
        assert_eq!(first["leaseTransitions"], 0);
        let error = take(&api, "b").err().unwrap();
        assert_eq!(error.kind(), Kind::Busy);
        assert!(error.to_string().contains("a is working on this cluster"), "{error}");
        let until = Instant::now() + Duration::from_secs(5);
        while spec(&api)["renewTime"] == first["renewTime"] {
            assert!(Instant::now() < until);
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(spec(&api)["acquireTime"], first["acquireTime"]);
        held.check().unwrap();
        // The same holder again: it was killed and resumes.
        drop(take(&api, "a").unwrap());
        drop(held);
        assert_eq!(spec(&api)["holderIdentity"], "");
        drop(take(&api, "b").unwrap());
        assert_eq!(spec(&api)["leaseTransitions"], 1);
    }

    #[test]
    fn the_lock_waits_for_an_api_server_that_restarts() {
        let api = StandIn::new();
        let away = || ApiError { message: "connection refused".to_owned(), ..ApiError::default() };
        for verb in ["get", "get", "create"] {
            api.fail_next(verb, "/leases", away());
        }
        drop(take(&api, "a").unwrap());
        let gone = Failover::new(Vec::new());
        let times = Times { patience: Duration::from_millis(50), ..FAST };
        let error = hold(Arc::new(gone), "a", times).err().unwrap();
        assert_eq!(error.kind(), Kind::Network);
    }

    #[test]
    fn a_dead_holders_lock_is_taken_over_and_a_living_ones_with_a_slow_clock_is_not() {
        let api = StandIn::new();
        let old = |seconds: u64| {
            api.add(json!({
                "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
                "metadata": {"name": NAME, "namespace": "kube-system"},
                "spec": {
                    "holderIdentity": "dead", "leaseDurationSeconds": 60, "leaseTransitions": 4,
                    "renewTime": format!("{:.6}", Timestamp::now() - Duration::from_secs(seconds)),
                },
            }));
        };
        old(30);
        assert_eq!(take(&api, "a").err().unwrap().kind(), Kind::Busy);
        old(70);
        let held = take(&api, "a").unwrap();
        assert_eq!(spec(&api)["leaseTransitions"], 5);
        // Another holder takes the lock by force.
        old(70);
        let until = Instant::now() + Duration::from_secs(5);
        while held.check().is_ok() {
            assert!(Instant::now() < until);
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(held.check().unwrap_err().to_string().contains("dead"));
        drop(held);
        assert_eq!(spec(&api)["holderIdentity"], "dead", "not ours to release");
        // The lease looks expired by our clock but is renewed while we watch.
        api.react(|api, request| {
            if request.verb == "get" {
                api.change(&Mine::path(), |lease| lease["spec"]["x"] = json!(1));
            }
        });
        assert_eq!(take(&api, "b").err().unwrap().kind(), Kind::Busy);
    }

    #[test]
    fn an_api_that_is_away_takes_no_lock() {
        let api = StandIn::new();
        let held = take(&api, "a").unwrap();
        for _ in 0..20 {
            api.fail_next("get", "leases", ApiError::default());
        }
        std::thread::sleep(Duration::from_millis(200));
        held.check().unwrap();
    }

    #[test]
    fn of_two_that_begin_at_once_one_wins() {
        let api = StandIn::new();
        let names: Vec<String> = (0..8).map(|number| format!("h{number}")).collect();
        let won: Vec<Held> = std::thread::scope(|scope| {
            let takers: Vec<_> =
                names.iter().map(|name| scope.spawn(|| take(&api, name))).collect();
            let outcomes = takers.into_iter().map(|taker| taker.join().unwrap());
            outcomes.filter_map(Result::ok).collect()
        });
        assert_eq!(won.len(), 1);
    }
}
