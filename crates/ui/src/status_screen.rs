//! The status of a cluster on the whole screen, refreshed: hosts that need attention first, and how long
//! they have. Must not know clusters: it is given rows.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ratatui_core::buffer::Buffer;

use crate::canvas::{Canvas, Tone, column, name_column, width};
use crate::hosts_view::seconds;
use crate::screen::{Screen, View};

/// How a host is; what needs attention comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Health {
    Unreachable,
    Ill,
    /// It is well, but something needs attention soon.
    Warned,
    Well,
}

impl Health {
    const ALL: [Self; 4] = [Self::Unreachable, Self::Ill, Self::Warned, Self::Well];

    fn word(self) -> &'static str {
        match self {
            Self::Unreachable => "unreachable",
            Self::Ill => "ill",
            Self::Warned => "warned",
            Self::Well => "well",
        }
    }

    fn tone(self) -> Tone {
        match self {
            Self::Unreachable | Self::Ill => Tone::Bad,
            Self::Warned => Tone::Warning,
            Self::Well => Tone::Good,
        }
    }
}

/// One status.
#[derive(Clone, Debug, Default)]
pub struct Shown {
    /// The cluster, and what it runs.
    pub title: String,
    /// Time of the query.
    pub time: String,
    pub hosts: Vec<ShownHost>,
    /// Nodes that are Ready, and all.
    pub nodes: (usize, usize),
    /// What is wrong apart from hosts.
    pub problems: Vec<String>,
    /// What else is worth a line.
    pub remarks: Vec<String>,
}

#[derive(Clone, Debug)]
pub struct ShownHost {
    pub name: String,
    pub health: Health,
    /// Roles, system, space, certificates: as many as fit.
    pub facts: String,
    pub problems: Vec<String>,
}

/// The view; dropping it ends it.
pub struct StatusScreen {
    screen: Screen,
    view: Arc<StatusView>,
}

struct StatusView {
    state: Mutex<State>,
    has_colours: bool,
    quit: Box<dyn Fn() + Send + Sync>,
}

#[derive(Default)]
struct State {
    shown: Option<Shown>,
    /// When the last status arrived.
    at: Option<Instant>,
    /// When each host became what it is.
    since: BTreeMap<String, (Health, Instant)>,
}

impl StatusScreen {
    /// Takes the screen; `quit` is called when the user presses q.
    pub(super) fn new(
        screen: Screen,
        has_colours: bool,
        quit: Box<dyn Fn() + Send + Sync>,
    ) -> Self {
        let view = Arc::new(StatusView { state: Mutex::default(), has_colours, quit });
        screen.open(Arc::clone(&view) as Arc<dyn View>, Duration::ZERO);
        Self { screen, view }
    }

    /// Shows this status from now on.
    pub fn show(&self, shown: Shown) {
        self.view.lock().take(shown, Instant::now());
        self.screen.changed();
    }
}

impl Drop for StatusScreen {
    fn drop(&mut self) {
        self.screen.close();
    }
}

impl StatusView {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl View for StatusView {
    fn draw(&self, buffer: &mut Buffer, recent: &VecDeque<String>, now: Instant) {
        draw(&self.lock(), &mut Canvas::new(buffer, self.has_colours), recent, now);
    }

    fn key(&self, key: u8) {
        if matches!(key, b'q' | b'Q') {
            (self.quit)();
        }
    }
}

impl State {
    fn take(&mut self, shown: Shown, now: Instant) {
        let mut since = BTreeMap::new();
        for host in &shown.hosts {
            let before = self.since.get(&host.name).filter(|(health, _)| *health == host.health);
            let at = before.map_or(now, |(_, at)| *at);
            since.insert(host.name.clone(), (host.health, at));
        }
        *self = Self { shown: Some(shown), at: Some(now), since };
    }
}

fn draw(state: &State, canvas: &mut Canvas<'_>, recent: &VecDeque<String>, now: Instant) {
    let Some(shown) = &state.shown else {
        return canvas.line(0, &[(Tone::Plain, "asking the hosts …")]);
    };
    let age = state.at.map_or(Duration::ZERO, |at| now.saturating_duration_since(at));
    let time = match age.as_secs() {
        0..15 => shown.time.clone(),
        _ => format!("{}, {} ago", shown.time, seconds(age)),
    };
    let room = canvas.width().saturating_sub(width(&time) + 1);
    let title = column(&shown.title, room);
    let title = title.trim_end();
    canvas.line(0, &[(Tone::Strong, title)]);
    canvas.right(0, &time, Tone::Faint, width(title));
    canvas.line(1, &counted(shown));
    let height = canvas.height();
    let first = if height >= 8 { 3 } else { 2 };
    let mut end = height;
    if height >= 12 {
        end -= 1;
        let keys = "q or Ctrl-C ends   Ctrl-Z suspends";
        canvas.line(end, &[(Tone::Faint, keys)]);
    }
    let lines = lines(state, shown, recent, canvas.width(), now);
    let room = end.saturating_sub(first);
    let fits = if lines.len() > room { room.saturating_sub(1) } else { lines.len() };
    for (y, line) in (first..).zip(&lines[..fits]) {
        canvas.line(y, line);
    }
    if fits < lines.len() && room > 0 {
        let more = format!("and {} more lines", lines.len() - fits);
        canvas.line(end - 1, &[(Tone::Faint, more)]);
    }
}

/// Hosts by health, and Nodes.
fn counted(shown: &Shown) -> Vec<(Tone, String)> {
    let mut pieces = Vec::new();
    for health in Health::ALL {
        let count = shown.hosts.iter().filter(|host| host.health == health).count();
        if count > 0 {
            pieces.push((health.tone(), format!("{count} {}", health.word())));
            pieces.push((Tone::Plain, "  ".to_owned()));
        }
    }
    match shown.nodes {
        (_, 0) => {}
        (ready, all) if ready == all => pieces.push((Tone::Plain, format!("Nodes {all} Ready"))),
        (ready, all) => pieces.push((Tone::Bad, format!("Nodes {ready} of {all} Ready"))),
    }
    pieces
}

/// All lines below the head, the most important first.
fn lines(
    state: &State,
    shown: &Shown,
    recent: &VecDeque<String>,
    columns: usize,
    now: Instant,
) -> Vec<Vec<(Tone, String)>> {
    let mut hosts: Vec<&ShownHost> = shown.hosts.iter().collect();
    hosts.sort_by_key(|host| host.health);
    let longest = hosts.iter().map(|host| width(&host.name)).max().unwrap_or(0);
    let of_name = name_column(longest, columns, 11);
    let row = |host: &ShownHost| {
        let lasts = match (host.health, state.since.get(&host.name)) {
            (Health::Well, _) | (_, None) => String::new(),
            (_, Some((_, at))) => format!("{}  ", seconds(now.saturating_duration_since(*at))),
        };
        vec![
            (host.health.tone(), column(host.health.word(), 11)),
            (Tone::Plain, format!("  {}  ", column(&host.name, of_name))),
            (Tone::Plain, format!("{lasts}{}", host.facts)),
        ]
    };
    let mut lines = Vec::new();
    let (attention, well): (Vec<&ShownHost>, _) =
        hosts.into_iter().partition(|host| host.health != Health::Well);
    for host in attention {
        lines.push(row(host));
        for problem in &host.problems {
            lines.push(vec![(Tone::Plain, format!("    {problem}"))]);
        }
    }
    lines.extend(shown.problems.iter().map(|problem| vec![(Tone::Bad, problem.clone())]));
    lines.extend(well.into_iter().map(row));
    let remarks = shown.remarks.iter().chain(recent.iter().rev().take(3).rev());
    lines.extend(remarks.map(|remark| vec![(Tone::Faint, remark.clone())]));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratatui_core::backend::TestBackend;
    use ratatui_core::terminal::Terminal;

    fn host(name: &str, health: Health, problems: &[&str]) -> ShownHost {
        ShownHost {
            name: name.to_owned(),
            health,
            facts: "node  Debian 12  14.2 GB free".to_owned(),
            problems: problems.iter().map(|problem| (*problem).to_owned()).collect(),
        }
    }

    fn shown(hosts: Vec<ShownHost>) -> Shown {
        Shown {
            title: "cluster prod: ClusterSuccess, kubeadm, registry.example.com/kubernetes:v1.34"
                .to_owned(),
            time: "22:30:05Z".to_owned(),
            hosts,
            nodes: (3, 4),
            problems: vec!["Pod kube-system/coredns-1 is not Ready: Pending".to_owned()],
            remarks: vec!["last backup: 2 h ago, /backups".to_owned()],
        }
    }

    fn on_screen(state: &State, size: (u16, u16), now: Instant) -> TestBackend {
        let mut terminal = Terminal::new(TestBackend::new(size.0, size.1)).unwrap();
        terminal
            .draw(|frame| {
                let mut canvas = Canvas::new(frame.buffer_mut(), false);
                draw(state, &mut canvas, &VecDeque::new(), now);
            })
            .unwrap();
        terminal.backend().clone()
    }

    #[test]
    fn unreachable_hosts_come_first_with_how_long_they_have_been() {
        let begun = Instant::now();
        let mut hosts = vec![
            host("10.0.0.1", Health::Well, &[]),
            host("10.0.0.2", Health::Ill, &["Node n2 is not Ready"]),
            host("10.0.0.3", Health::Unreachable, &["host 10.0.0.3 has not answered for 10 s"]),
            host("10.0.0.4", Health::Warned, &["a certificate lasts 3 days"]),
        ];
        let mut state = State::default();
        insta::assert_snapshot!("status_before", on_screen(&state, (40, 3), begun));
        state.take(shown(hosts.clone()), begun);
        // Only what has changed begins anew.
        hosts[1].health = Health::Well;
        state.take(shown(hosts), begun + Duration::from_secs(60));
        let now = begun + Duration::from_secs(61);
        insta::assert_snapshot!("status", on_screen(&state, (80, 16), now));
        insta::assert_snapshot!("status_small", on_screen(&state, (20, 5), now));
        assert_eq!(state.since["10.0.0.3"].1, begun);
        assert_eq!(state.since["10.0.0.2"].1, begun + Duration::from_secs(60));
    }

    #[test]
    fn many_hosts_and_hostile_text_fit_any_size() {
        let now = Instant::now();
        let name = |number: usize| format!("h{number}\u{1b}[2J\u{202e}{}", "x".repeat(65_536));
        let hosts = (0..300).map(|number| host(&name(number), Health::Ill, &["\u{9b}31m"]));
        let mut state = State::default();
        state.take(shown(hosts.collect()), now);
        for size in [(1, 1), (20, 5), (80, 24), (200, 60)] {
            let screen = on_screen(&state, size, now);
            for cell in &screen.buffer().content {
                assert!(!cell.symbol().chars().any(imgctl_base::text::is_unsafe), "{cell:?}");
            }
        }
    }
}
