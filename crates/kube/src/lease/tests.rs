//! Leases between controllers: every pair of verbs, skewed clocks, unreachable API servers.

use super::*;
use crate::failover::Failover;
use crate::testing::stand_in::StandIn;
use imgctl_base::error::Kind;

const FAST: Times = Times { renew: Duration::from_millis(30), ttl: Duration::from_secs(1) };

/// Every verb that changes a cluster.
const VERBS: [&str; 11] = [
    "run",
    "apply",
    "add",
    "delete",
    "upgrade",
    "rollback",
    "inplace apply",
    "inplace rollback",
    "cert",
    "reset",
    "uninstall",
];

fn spec(api: &StandIn) -> Value {
    api.peek(&path(NAME)).unwrap()["spec"].clone()
}

fn holder_of(identity: &str, verb: &str) -> Holder {
    Holder {
        identity: identity.to_owned(),
        host: format!("host-{identity}"),
        user: "root".to_owned(),
        verb: verb.to_owned(),
    }
}

fn take(api: &StandIn, identity: &str) -> Result<Held> {
    take_as(api, &holder_of(identity, "run"), false, Outage::Fail)
}

fn take_as(api: &StandIn, holder: &Holder, force: bool, outage: Outage) -> Result<Held> {
    hold(Arc::new(api.clone()), holder, force, outage, FAST, &|_| {})
}

fn lease(name: &str, holder: &str, seconds: u64) -> Value {
    json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"name": name, "namespace": "kube-system"},
        "spec": {
            "holderIdentity": holder, "leaseDurationSeconds": seconds, "leaseTransitions": 4,
            "renewTime": "2020-01-01T00:00:00.000000Z",
        },
    })
}

fn until(what: impl Fn() -> bool) {
    let until = Instant::now() + Duration::from_secs(20);
    while !what() {
        assert!(Instant::now() < until);
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn every_pair_of_verbs_on_two_controllers_excludes_each_other() {
    std::thread::scope(|scope| {
        for first in VERBS {
            scope.spawn(move || {
                let api = StandIn::new();
                for second in VERBS {
                    let held = take_as(&api, &holder_of("a", first), false, Outage::Fail);
                    let held = held.unwrap();
                    let other = holder_of("b", second);
                    for outage in [Outage::Fail, Outage::Warn] {
                        let error = take_as(&api, &other, false, outage).err().unwrap();
                        assert_eq!(error.kind(), Kind::Busy, "{first}, {second}: {error}");
                        let said = error.chain().join(": ");
                        let who = format!("root on host-a (`imgctl {first}` since 20");
                        assert!(said.contains(&who), "{first}, {second}: {said}");
                        assert!(error.hints()[0].contains("wait"), "{:?}", error.hints());
                    }
                    held.check().unwrap();
                    drop(held);
                    take_as(&api, &other, false, Outage::Fail).unwrap().check().unwrap();
                }
            });
        }
    });
}

#[test]
fn one_holds_it_at_a_time_and_renews_it() {
    let api = StandIn::new();
    let held = take(&api, "a").unwrap();
    let first = spec(&api);
    assert_eq!(first["holderIdentity"], "a");
    assert_eq!(first["leaseTransitions"], 0);
    assert_eq!(take(&api, "b").err().unwrap().kind(), Kind::Busy);
    assert!(living(&api, FAST).unwrap().unwrap().contains("root on host-a"));
    until(|| spec(&api)["renewTime"] != first["renewTime"]);
    assert_eq!(spec(&api)["acquireTime"], first["acquireTime"]);
    held.check().unwrap();
    // The same holder again: it was killed and resumes.
    drop(take(&api, "a").unwrap());
    drop(held);
    assert_eq!(spec(&api)["holderIdentity"], "");
    assert_eq!(living(&api, FAST).unwrap(), None);
    let before = spec(&api)["leaseTransitions"].as_u64().unwrap();
    drop(take(&api, "b").unwrap());
    assert_eq!(spec(&api)["leaseTransitions"], before + 1);
}

#[test]
fn without_an_api_server_the_caller_decides() {
    let times = FAST;
    let gone = || Arc::new(Failover::new(Vec::new()));
    let holder = holder_of("a", "run");
    let error = hold(gone(), &holder, false, Outage::Fail, times, &|_| {}).err().unwrap();
    assert_eq!(error.kind(), Kind::Network);
    let told = Mutex::new(Vec::new());
    let tell = |text: &str| told.lock().unwrap().push(text.to_owned());
    hold(gone(), &holder, false, Outage::Warn, times, &tell).unwrap().check().unwrap();
    assert!(told.lock().unwrap()[0].contains("until an API server answers"));
    // A server that never becomes ready refuses everybody; the refusal of a ready one counts.
    let refused = || ApiError { code: 403, message: "forbidden".into(), ..ApiError::default() };
    for (is_ready, goes_on) in [(false, true), (true, false)] {
        let api = StandIn::new();
        api.fail_next("get", "/leases", refused());
        if !is_ready {
            api.fail_next("get", "/readyz", refused());
        }
        let taken = take_as(&api, &holder, false, Outage::Warn);
        assert_eq!(taken.is_ok(), goes_on, "ready: {is_ready}");
    }
    // A cluster that is being created: the Lease is taken as soon as the API is there.
    let api = StandIn::new();
    for _ in 0..6 {
        api.fail_next("get", "/leases", ApiError::default());
    }
    let held = take_as(&api, &holder, false, Outage::Expect).unwrap();
    until(|| api.peek(&path(NAME)).is_some());
    assert_eq!(spec(&api)["holderIdentity"], "a");
    held.check().unwrap();
    // Of another controller that creates it, only the first one goes on.
    let late = take_as(&api, &holder_of("b", "run"), false, Outage::Expect).unwrap();
    let (stopped, wait) = mpsc::channel();
    late.on_loss(move || stopped.send(()).unwrap());
    wait.recv_timeout(Duration::from_secs(20)).unwrap();
    assert!(late.check().unwrap_err().to_string().contains("root on host-a"));
    held.check().unwrap();
}

#[test]
fn a_dead_holders_lock_is_taken_over_whatever_the_clocks_say() {
    let api = StandIn::new();
    // Renewed in the future, by the clock of its holder.
    let mut dead = lease(NAME, "dead", 1);
    dead["spec"]["renewTime"] = json!("2999-01-01T00:00:00.000000Z");
    api.add(dead);
    assert_eq!(living(&api, FAST).unwrap(), None);
    let began = Instant::now();
    let held = take(&api, "a").unwrap();
    assert!(began.elapsed() >= Duration::from_secs(1));
    assert_eq!(spec(&api)["leaseTransitions"], 5);
    held.check().unwrap();
    drop(held);
    // A live holder whose clock is years behind.
    api.add(lease(NAME, "slow", 60));
    let count = std::sync::atomic::AtomicU64::new(0);
    api.react(move |api, request| {
        if request.verb == "get" {
            let number = count.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            api.change(&path(NAME), |lease| lease["spec"]["x"] = json!(number));
        }
    });
    assert_eq!(take(&api, "b").err().unwrap().kind(), Kind::Busy);
}

#[test]
fn an_outage_does_not_count_as_silence() {
    let api = StandIn::new();
    api.add(lease(NAME, "other", 1));
    let outages = Arc::new(std::sync::atomic::AtomicU64::new(0));
    let left = Arc::clone(&outages);
    // The API is away for most of the time.
    api.react(move |api, request| {
        if request.verb == "get" && left.fetch_add(1, std::sync::atomic::Ordering::SeqCst) < 60 {
            api.fail_next("get", "leases/imgctl", ApiError::default());
        }
    });
    let began = Instant::now();
    let held = take_as(&api, &holder_of("a", "run"), false, Outage::Expect).unwrap();
    until(|| spec(&api)["holderIdentity"] == "a");
    // Sixty reads that failed, then a whole second of answers.
    assert!(began.elapsed() >= Duration::from_secs(1));
    assert!(outages.load(std::sync::atomic::Ordering::SeqCst) > 60);
    held.check().unwrap();
}

#[test]
fn force_takes_the_lock_and_the_former_holder_stops() {
    let api = StandIn::new();
    let held = take(&api, "a").unwrap();
    let (stopped, wait) = mpsc::channel();
    held.on_loss(move || stopped.send(()).unwrap());
    let new = take_as(&api, &holder_of("b", "reset"), true, Outage::Fail).unwrap();
    wait.recv_timeout(Duration::from_secs(20)).unwrap();
    let error = held.check().unwrap_err().to_string();
    assert!(error.contains("`imgctl reset`"), "{error}");
    drop(held);
    assert_eq!(spec(&api)["holderIdentity"], "b", "not ours to release");
    new.check().unwrap();
}

#[test]
fn leases_of_an_older_imgctl_are_respected() {
    // An upgrade that lives, and one that was killed.
    let api = StandIn::new();
    let older = Contender {
        api: Arc::new(api.clone()),
        holder: holder_of("old", "upgrade"),
        acquired: "2020-01-01T00:00:00.000000Z".to_owned(),
        force: false,
        times: FAST,
    };
    api.add(lease(OLDER, "old", 1));
    let is_alive = std::sync::atomic::AtomicBool::new(true);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while is_alive.load(std::sync::atomic::Ordering::SeqCst) {
                let written = older.written(api.peek(&path(OLDER)).unwrap());
                api.change(&path(OLDER), |lease| *lease = written);
                std::thread::sleep(Duration::from_millis(10));
            }
        });
        let error = take(&api, "a").err().unwrap();
        assert_eq!(error.kind(), Kind::Busy);
        is_alive.store(false, std::sync::atomic::Ordering::SeqCst);
    });
    drop(take(&api, "a").unwrap());
    // A run that holds the Lease for an hour and never renews it.
    api.add(lease(NAME, "old", 3600));
    let error = take(&api, "a").err().unwrap();
    assert!(error.hints()[0].contains("delete lease imgctl"), "{:?}", error.hints());
    drop(take_as(&api, &holder_of("a", "apply"), true, Outage::Fail).unwrap());
}

#[test]
fn an_api_that_is_away_takes_no_lock() {
    let api = StandIn::new();
    let held = take(&api, "a").unwrap();
    for _ in 0..20 {
        api.fail_next("get", "leases", ApiError::default());
    }
    until(|| api.requests().iter().filter(|request| request.code == 0).count() == 20);
    held.check().unwrap();
    let renewed = spec(&api)["renewTime"].clone();
    until(|| spec(&api)["renewTime"] != renewed);
}

#[test]
fn the_next_control_plane_serves_when_one_goes() {
    let api = StandIn::new();
    let (first, second) = (api.clone(), api.clone());
    let is_up = Arc::new(std::sync::atomic::AtomicBool::new(true));
    let up = Arc::clone(&is_up);
    let servers = Failover::new(vec![
        Box::new(move || {
            if up.load(std::sync::atomic::Ordering::SeqCst) {
                Ok(Arc::new(first.clone()))
            } else {
                Err(Error::failed("connection refused"))
            }
        }),
        Box::new(move || Ok(Arc::new(second.clone()))),
    ]);
    let holder = holder_of("a", "upgrade");
    let held = hold(Arc::new(servers), &holder, false, Outage::Fail, FAST, &|_| {}).unwrap();
    is_up.store(false, std::sync::atomic::Ordering::SeqCst);
    api.fail_next("get", "leases", ApiError { code: 503, ..ApiError::default() });
    let renewed = spec(&api)["renewTime"].clone();
    until(|| spec(&api)["renewTime"] != renewed);
    held.check().unwrap();
}

#[test]
fn of_two_that_begin_at_once_one_wins() {
    let api = StandIn::new();
    let names: Vec<String> = (0..8).map(|number| format!("h{number}")).collect();
    let won: Vec<Held> = std::thread::scope(|scope| {
        let takers: Vec<_> = names.iter().map(|name| scope.spawn(|| take(&api, name))).collect();
        let outcomes = takers.into_iter().map(|taker| taker.join().unwrap());
        outcomes.filter_map(Result::ok).collect()
    });
    assert_eq!(won.len(), 1);
}
