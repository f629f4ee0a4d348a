//! Repeated status of a cluster: over one connection to each host, and no slower for hosts that do not
//! answer. Must not know how a status is shown.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::maintain::{self, ClusterStatus};
use crate::session::Session;
use imgctl_base::error::{Error, IoContext as _, Kind, Result};
use imgctl_host::agent::Agent;
use imgctl_host::agent::protocol::Facts;
use imgctl_journal::interrupt::Interrupt;
use imgctl_model::context::Host;
use imgctl_runtime::HostPool;

/// Time that a host has to answer before it counts as unreachable. Its answer is used when it comes.
const PATIENCE: Duration = Duration::from_secs(10);
/// A host that is lost during a query is noticed after four of these without an answer.
const ALIVE: Duration = Duration::from_secs(5);
/// Shortest pause between two queries, and how often a request to stop is looked for.
const PAUSE: Duration = Duration::from_millis(100);

/// Queries the hosts of `cluster` every `interval`, or as soon as the last query is complete, until a
/// stop is requested or `each` fails. The session's other operations must be over.
pub fn watch(
    cluster: &str,
    mut session: Session<'_>,
    interval: Duration,
    interrupt: &Interrupt,
    each: &mut dyn FnMut(ClusterStatus) -> Result<()>,
) -> Result<()> {
    session.ssh.settings.alive_interval = session.ssh.settings.alive_interval.min(ALIVE);
    let hosts = Arc::new(WatchedHosts::new(session.hosts()?, interrupt.clone(), PATIENCE));
    session.pool = Some(Arc::clone(&hosts) as Arc<dyn HostPool + Send>);
    loop {
        let begun = Instant::now();
        hosts.begin_round();
        let found = maintain::status(cluster, &session);
        if interrupt.is_asked() {
            return Ok(());
        }
        each(found?)?;
        let next = (begun + interval).max(Instant::now() + PAUSE);
        while let Some(left) = next.checked_duration_since(Instant::now()) {
            if interrupt.is_asked() {
                return Ok(());
            }
            std::thread::sleep(left.min(PAUSE));
        }
    }
}

/// The hosts of a watched cluster. Each is asked for its facts once a round, by a thread that nobody has
/// to wait for.
struct WatchedHosts {
    inner: Arc<dyn HostPool + Send>,
    interrupt: Interrupt,
    patience: Duration,
    round: AtomicU64,
    places: Mutex<BTreeMap<String, Arc<Mutex<Place>>>>,
}

/// One host.
#[derive(Default)]
struct Place {
    /// Round of the answer.
    round: u64,
    /// The host's answer in that round, or why there is none.
    answer: Option<std::result::Result<Arc<dyn Agent>, (Kind, String)>>,
    /// Where the answer to an open question comes from, and since when it is open.
    question: Option<(Receiver<Answer>, Instant)>,
}

type Answer = Result<(Arc<dyn Agent>, Facts)>;

impl WatchedHosts {
    fn new(inner: Arc<dyn HostPool + Send>, interrupt: Interrupt, patience: Duration) -> Self {
        // No place has an answer of the first round yet.
        let round = AtomicU64::new(1);
        Self { inner, interrupt, patience, round, places: Mutex::default() }
    }

    /// Has every host asked again.
    fn begin_round(&self) {
        self.round.fetch_add(1, Ordering::SeqCst);
    }

    /// Puts the question, unless it is open since an earlier round; waits for the answer.
    fn ask(&self, host: &Host, place: &mut Place) -> Answer {
        let (answer, since, patience) = match place.question.take() {
            // It has had its time.
            Some((answer, since)) => (answer, since, Duration::ZERO),
            None => {
                let (tell, answer) = mpsc::channel();
                let (inner, host) = (Arc::clone(&self.inner), host.clone());
                let asked = move || {
                    let agent = inner.agent(&host);
                    let answer = agent.and_then(|agent| {
                        let facts = agent.current_facts()?;
                        Ok((agent, facts))
                    });
                    // The watch may be over.
                    let _ = tell.send(answer);
                };
                let thread = std::thread::Builder::new().name("watch".to_owned());
                thread.spawn(asked).doing(|| "cannot start a thread".to_owned())?;
                (answer, Instant::now(), self.patience)
            }
        };
        let until = Instant::now() + patience;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match answer.recv_timeout(left.min(PAUSE)) {
                Ok(answer) => return answer,
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(Error::failed(format!("the query of host {} ended", host.id())));
                }
                Err(RecvTimeoutError::Timeout) if self.interrupt.is_asked() => {
                    return Err(Error::new(Kind::Interrupted, "interrupted"));
                }
                Err(RecvTimeoutError::Timeout) if !left.is_zero() => {}
                Err(RecvTimeoutError::Timeout) => {
                    let lasts = since.elapsed().as_secs();
                    place.question = Some((answer, since));
                    let what = format!("host {} has not answered for {lasts} s", host.id());
                    return Err(Error::network(what));
                }
            }
        }
    }
}

impl HostPool for WatchedHosts {
    fn agent(&self, host: &Host) -> Result<Arc<dyn Agent>> {
        let place = {
            let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(places.entry(host.id()).or_default())
        };
        let mut place = place.lock().unwrap_or_else(PoisonError::into_inner);
        let round = self.round.load(Ordering::SeqCst);
        if place.round != round || place.answer.is_none() {
            let answer = self.ask(host, &mut place);
            place.round = round;
            place.answer = Some(match answer {
                Ok((agent, facts)) => Ok(Arc::new(Known { agent, facts }) as Arc<dyn Agent>),
                Err(error) => Err((error.kind(), error.to_string())),
            });
        }
        match &place.answer {
            Some(Ok(agent)) => Ok(Arc::clone(agent)),
            Some(Err((kind, message))) => Err(Error::new(*kind, message.clone())),
            None => Err(Error::failed(format!("host {} was not asked", host.id()))),
        }
    }
}

/// An agent with the facts of this round.
struct Known {
    agent: Arc<dyn Agent>,
    facts: Facts,
}

impl Agent for Known {
    fn host(&self) -> &str {
        self.agent.host()
    }

    fn inner(&self) -> Result<&dyn Agent> {
        Ok(&*self.agent)
    }

    fn facts(&self) -> Result<Facts> {
        Ok(self.facts.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use imgctl_workflow::pipeline::testing::{Behaviour, SimulatedPool, Simulation, hosts};
    use std::sync::atomic::{AtomicBool, AtomicUsize};

    /// Simulated hosts, one of which does not answer for now.
    struct Silent {
        others: SimulatedPool,
        silent: String,
        answers: AtomicBool,
        questions: AtomicUsize,
    }

    impl HostPool for Silent {
        fn agent(&self, host: &Host) -> Result<Arc<dyn Agent>> {
            if host.id() == self.silent {
                self.questions.fetch_add(1, Ordering::SeqCst);
                while !self.answers.load(Ordering::SeqCst) {
                    std::thread::sleep(Duration::from_millis(5));
                }
            }
            self.others.agent(host)
        }
    }

    fn silent(host: &Host) -> Arc<Silent> {
        Arc::new(Silent {
            others: SimulatedPool(Simulation::new(Behaviour::default())),
            silent: host.id(),
            answers: AtomicBool::new(false),
            questions: AtomicUsize::new(0),
        })
    }

    #[test]
    fn a_silent_host_is_asked_once_and_heard_when_it_answers() {
        let all = hosts(1, 1);
        let inner = silent(&all[1]);
        let pool = WatchedHosts::new(
            Arc::clone(&inner) as Arc<dyn HostPool + Send>,
            Interrupt::default(),
            Duration::from_millis(20),
        );
        for _ in 0..3 {
            assert!(pool.agent(&all[0]).unwrap().facts().is_ok());
            let error = pool.agent(&all[1]).err().unwrap();
            assert_eq!(error.kind(), Kind::Network);
            assert!(error.message().contains("has not answered for 0 s"), "{error}");
            pool.begin_round();
        }
        assert_eq!(inner.questions.load(Ordering::SeqCst), 1);
        inner.answers.store(true, Ordering::SeqCst);
        while pool.agent(&all[1]).is_err() {
            std::thread::sleep(Duration::from_millis(5));
            pool.begin_round();
        }
        assert_eq!(inner.questions.load(Ordering::SeqCst), 1);
        pool.begin_round();
        assert!(pool.agent(&all[1]).is_ok());
        assert_eq!(inner.questions.load(Ordering::SeqCst), 2);
    }

    #[test]
    fn nobody_waits_for_a_silent_host_after_a_request_to_stop() {
        let all = hosts(1, 0);
        let interrupt = Interrupt::default();
        let forever = Duration::from_secs(86_400);
        let inner = silent(&all[0]);
        let pool = WatchedHosts::new(inner, interrupt.clone(), forever);
        interrupt.ask();
        assert_eq!(pool.agent(&all[0]).err().unwrap().kind(), Kind::Interrupted);
    }
}
