//! What is known of a run over hosts while it goes on: a function of its events. Must not know how it is
//! shown.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use imgctl_journal::event::{Event, Outcome, Sources, WAITING};

/// A step that has taken this long needs attention.
pub(super) const SLOW: Duration = Duration::from_secs(10);
/// Maximum number of characters that are kept of foreign text.
const LONGEST: usize = 500;

/// A run, from its first event on.
#[derive(Default)]
pub(super) struct RunState {
    pub(super) verb: String,
    pub(super) cluster: String,
    pub(super) resumed: bool,
    pub(super) begun: Option<Instant>,
    pub(super) steps: usize,
    pub(super) ended: usize,
    /// Names of the phases that are over, and how long they took.
    pub(super) phases: Vec<(String, Duration)>,
    pub(super) phase: Option<Phase>,
    pub(super) hosts: BTreeMap<String, Host>,
    /// Bytes of steps that have ended, by source.
    moved: Sources,
}

/// The current phase.
pub(super) struct Phase {
    pub(super) name: String,
    pub(super) hosts: usize,
    pub(super) steps: usize,
    pub(super) ended: usize,
    /// Hosts that have begun with it.
    begun: BTreeSet<String>,
}

#[derive(Default)]
pub(super) struct Host {
    pub(super) step: Option<Step>,
    /// Identifier of the last step that began.
    last_step: String,
    pub(super) retries: u32,
    /// Why the host failed.
    pub(super) failed: Option<String>,
}

/// The step that a host is at.
pub(super) struct Step {
    /// Without phase and host.
    pub(super) name: String,
    pub(super) since: Instant,
    pub(super) from: Sources,
    pub(super) total: Option<u64>,
    /// The last line of its output, or what it does.
    pub(super) says: String,
    waits: bool,
    is_retried: bool,
}

/// How a host fares; what needs attention comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Mood {
    Failed,
    /// It is at a step again, after a lost connection or a reboot.
    Retried,
    Slow,
    Waiting,
    Working,
    /// It has nothing to do at the moment.
    Idle,
}

impl Mood {
    pub(super) const ALL: [Self; 6] =
        [Self::Failed, Self::Retried, Self::Slow, Self::Waiting, Self::Working, Self::Idle];

    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Failed => "failed",
            Self::Retried => "retried",
            Self::Slow => "slow",
            Self::Waiting => "waiting",
            Self::Working => "working",
            Self::Idle => "done",
        }
    }
}

impl Host {
    pub(super) fn mood(&self, now: Instant) -> Mood {
        match &self.step {
            _ if self.failed.is_some() => Mood::Failed,
            None => Mood::Idle,
            Some(step) if step.is_retried => Mood::Retried,
            Some(step) if step.waits => Mood::Waiting,
            Some(step) if now.saturating_duration_since(step.since) >= SLOW => Mood::Slow,
            Some(_) => Mood::Working,
        }
    }
}

impl RunState {
    /// Takes one event that happened at `now`.
    pub(super) fn take(&mut self, event: &Event, now: Instant) {
        match event {
            Event::Start { verb, cluster, steps, resumed, .. } => {
                *self = Self {
                    verb: bounded(verb),
                    cluster: bounded(cluster),
                    resumed: *resumed,
                    steps: *steps,
                    begun: Some(now),
                    ..Self::default()
                };
            }
            Event::PhaseStart { phase, hosts, steps } => {
                self.phase = Some(Phase {
                    name: bounded(phase),
                    hosts: *hosts,
                    steps: *steps,
                    ended: 0,
                    begun: BTreeSet::new(),
                });
            }
            Event::StepStart { host, step, says, bytes, attempt, .. } => {
                self.begins(host);
                let own = self.hosts.entry(host.clone()).or_default();
                let is_retried = *attempt > 1 || own.last_step == *step;
                own.retries += u32::from(is_retried);
                own.last_step.clone_from(step);
                own.step = Some(Step {
                    name: bounded(step.rsplit('/').next().unwrap_or(step)),
                    since: now,
                    from: Sources::default(),
                    total: *bytes,
                    says: says.first().map(|text| bounded(text)).unwrap_or_default(),
                    waits: false,
                    is_retried,
                });
            }
            Event::StepSkipped { host, .. } => {
                self.begins(host);
                self.ends();
            }
            Event::Output { host, text, .. } => {
                if let Some(step) = self.step(host) {
                    let waits = text.strip_prefix(WAITING);
                    step.waits = waits.is_some();
                    step.says = bounded(waits.unwrap_or(text));
                }
            }
            Event::Progress { host, from, .. } => {
                if let Some(step) = self.step(host) {
                    step.from = *from;
                }
            }
            Event::StepEnd { host, outcome, from, .. } => {
                let step = self.hosts.get_mut(host).and_then(|host| host.step.take());
                let moved = from.or(step.map(|step| step.from)).unwrap_or_default();
                self.moved = sum(self.moved, moved);
                if matches!(outcome, Outcome::Done | Outcome::Assumed) {
                    self.ends();
                }
            }
            Event::Failure { host, step, message, .. } => {
                let name = step.rsplit('/').next().unwrap_or(step);
                let own = self.hosts.entry(host.clone()).or_default();
                own.failed = Some(bounded(&format!("{name}: {message}")));
            }
            Event::Note { .. } => {}
            Event::PhaseEnd { phase, duration_ms } => {
                self.phases.push((bounded(phase), Duration::from_millis(*duration_ms)));
                self.phase = None;
                self.hosts.values_mut().for_each(|host| host.step = None);
            }
            Event::End { .. } => self.phase = None,
        }
    }

    /// Returns the bytes that were moved so far, by source.
    pub(super) fn moved(&self) -> Sources {
        let running = self.hosts.values().filter_map(|host| host.step.as_ref());
        running.fold(self.moved, |all, step| sum(all, step.from))
    }

    /// Returns the hosts that are at work or have failed: those that need attention first, and among
    /// equals those that take longest.
    pub(super) fn listed(&self, now: Instant) -> Vec<(&str, &Host, Mood)> {
        let mut listed: Vec<_> = self
            .hosts
            .iter()
            .map(|(name, host)| (name.as_str(), host, host.mood(now)))
            .filter(|(_, _, mood)| *mood != Mood::Idle)
            .collect();
        let since = |host: &Host| host.step.as_ref().map(|step| step.since);
        listed.sort_by_key(|(_, host, mood)| (*mood, since(host)));
        listed
    }

    /// Returns how many hosts of the current phase fare how, and how many have not begun with it.
    /// Failed hosts of earlier phases count, too.
    pub(super) fn counts(&self, now: Instant) -> (BTreeMap<Mood, usize>, usize) {
        let mut counts = BTreeMap::new();
        let Some(phase) = &self.phase else { return (counts, 0) };
        for (name, host) in &self.hosts {
            let mood = host.mood(now);
            if mood == Mood::Failed || phase.begun.contains(name) {
                *counts.entry(mood).or_default() += 1;
            }
        }
        (counts, phase.hosts.saturating_sub(phase.begun.len()))
    }

    fn begins(&mut self, host: &str) {
        self.hosts.entry(host.to_owned()).or_default();
        if let Some(phase) = self.phase.as_mut().filter(|phase| !phase.begun.contains(host)) {
            phase.begun.insert(host.to_owned());
        }
    }

    fn ends(&mut self) {
        self.ended += 1;
        if let Some(phase) = &mut self.phase {
            phase.ended += 1;
        }
    }

    fn step(&mut self, host: &str) -> Option<&mut Step> {
        self.hosts.get_mut(host)?.step.as_mut()
    }
}

fn sum(one: Sources, other: Sources) -> Sources {
    Sources {
        controller: one.controller + other.controller,
        hosts: one.hosts + other.hosts,
        registry: one.registry + other.registry,
    }
}

fn bounded(text: &str) -> String {
    text.char_indices().nth(LONGEST).map_or(text, |(end, _)| &text[..end]).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn begins(attempt: u32) -> Event {
        Event::StepStart {
            phase: "p".into(),
            host: "h".into(),
            step: "p/h/s".into(),
            attempt,
            says: vec!["work".into()],
            bytes: None,
        }
    }

    fn says(text: &str) -> Event {
        Event::Output {
            host: "h".into(),
            step: "p/h/s".into(),
            stream: "stdout",
            text: text.into(),
        }
    }

    fn ends(outcome: Outcome) -> Event {
        Event::StepEnd {
            phase: "p".into(),
            host: "h".into(),
            step: "p/h/s".into(),
            outcome,
            attempt: 1,
            duration_ms: 1,
            recalled: false,
            from: None,
            log: None,
        }
    }

    #[test]
    fn a_host_fares_as_its_last_events_say() {
        let now = Instant::now();
        let mut state = RunState::default();
        let mood = |state: &RunState, now| state.hosts["h"].mood(now);
        state.take(&Event::PhaseStart { phase: "p".into(), hosts: 3, steps: 3 }, now);
        state.take(&begins(1), now);
        assert_eq!(mood(&state, now), Mood::Working);
        assert_eq!(mood(&state, now + SLOW), Mood::Slow);
        state.take(&says("waiting: a Node is not Ready"), now);
        assert_eq!(mood(&state, now + SLOW), Mood::Waiting);
        state.take(&says("it is"), now);
        assert_eq!(mood(&state, now), Mood::Working);
        // The connection is lost: the same attempt begins again.
        state.take(&ends(Outcome::Lost), now);
        assert_eq!((mood(&state, now), state.ended), (Mood::Idle, 0));
        state.take(&begins(1), now);
        assert_eq!((mood(&state, now), state.hosts["h"].retries), (Mood::Retried, 1));
        state.take(&ends(Outcome::Done), now);
        assert_eq!((mood(&state, now), state.ended), (Mood::Idle, 1));
        assert_eq!(state.counts(now), (BTreeMap::from([(Mood::Idle, 1)]), 2));
    }

    #[test]
    fn bytes_of_running_and_ended_steps_add_up() {
        let now = Instant::now();
        let mut state = RunState::default();
        state.take(&begins(1), now);
        let from = Sources { controller: 5, hosts: 7, registry: 0 };
        let (host, step) = ("h".to_owned(), "p/h/s".to_owned());
        state.take(&Event::Progress { host, step, bytes: 12, from }, now);
        assert_eq!(state.moved(), from);
        state.take(&ends(Outcome::Done), now);
        assert_eq!(state.moved(), from);
    }
}
