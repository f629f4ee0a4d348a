//! The whole screen of a run over hosts: a function of its state, the time and the size. Hosts that need
//! attention come first, the rest is counted. Must not know where it is shown.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::canvas::{Canvas, Tone, column, name_column, width};
use crate::hosts_view::seconds;
use crate::run_state::{Host, Mood, RunState};
use crate::table::{counted, human};

/// Draws a run. `recent` are the last lines, the newest last.
pub(super) fn draw(
    state: &RunState,
    canvas: &mut Canvas<'_>,
    recent: &VecDeque<String>,
    now: Instant,
) {
    let height = canvas.height();
    let mut y = 0;
    title(state, canvas, now);
    y += 1;
    progress(state, canvas, y);
    y += 1;
    hosts_counted(state, canvas, y, now);
    y += 1;
    if height >= 10 {
        phases(state, canvas, y);
        y += 1;
        bytes(state, canvas, y);
        y += 2;
    }
    let mut end = height;
    if height >= 12 {
        end -= 1;
        let keys = "Ctrl-C starts no further step   Ctrl-Z suspends the view";
        canvas.line(end, &[(Tone::Faint, keys)]);
    }
    if height >= 16 && !recent.is_empty() {
        let lines = recent.len().min(height / 4);
        end -= lines + 1;
        let rule = "-".repeat(canvas.width());
        canvas.line(end, &[(Tone::Faint, rule)]);
        for (place, line) in recent.iter().skip(recent.len() - lines).enumerate() {
            canvas.line(end + 1 + place, &[(tone_of(line), line)]);
        }
    }
    rows(state, canvas, y..end, now);
}

fn title(state: &RunState, canvas: &mut Canvas<'_>, now: Instant) {
    let elapsed = state.begun.map_or(Duration::ZERO, |begun| now.saturating_duration_since(begun));
    let resumed = if state.resumed { ", resumed" } else { "" };
    let elapsed = seconds(elapsed);
    let room = canvas.width().saturating_sub(width(&elapsed) + 1);
    let text = column(&format!("{} {}{resumed}", state.verb, state.cluster), room);
    canvas.line(0, &[(Tone::Strong, text.trim_end())]);
    canvas.right(0, &elapsed, Tone::Strong, 0);
}

fn progress(state: &RunState, canvas: &mut Canvas<'_>, y: usize) {
    let (ended, steps) = (state.ended, state.steps);
    let phase = state.phase.as_ref();
    if canvas.width() < 60 {
        let phase = phase.map(|phase| format!("  {} {}/{}", phase.name, phase.ended, phase.steps));
        let text = format!("{ended}/{steps}{}", phase.unwrap_or_default());
        return canvas.line(y, &[(Tone::Plain, text)]);
    }
    let length = (canvas.width() / 4).clamp(10, 30);
    let full = (ended * length).checked_div(steps).unwrap_or(length).min(length);
    let bar = format!("[{}{}] ", "#".repeat(full), ".".repeat(length - full));
    let phase = phase.map(|phase| {
        format!(
            "   {}: {} of {} on {}",
            phase.name,
            phase.ended,
            counted(phase.steps, "step"),
            counted(phase.hosts, "host")
        )
    });
    let text = format!("{ended} of {steps} steps{}", phase.unwrap_or_default());
    canvas.line(y, &[(Tone::Good, bar), (Tone::Plain, text)]);
}

fn hosts_counted(state: &RunState, canvas: &mut Canvas<'_>, y: usize, now: Instant) {
    let (counts, waiting) = state.counts(now);
    let mut pieces = Vec::new();
    let mut add = |tone, text: String| {
        if !pieces.is_empty() {
            pieces.push((Tone::Plain, "  ".to_owned()));
        }
        pieces.push((tone, text));
    };
    for mood in Mood::ALL {
        if let Some(count) = counts.get(&mood) {
            add(tone(mood), format!("{count} {}", mood.word()));
        }
    }
    if waiting > 0 {
        add(Tone::Faint, format!("{waiting} not begun"));
    }
    canvas.line(y, &pieces);
}

/// The phases that are over, as many of the last ones as fit.
fn phases(state: &RunState, canvas: &mut Canvas<'_>, y: usize) {
    let mut text = String::new();
    for (name, took) in state.phases.iter().rev() {
        let more = format!("{name} {}", seconds(*took));
        let longer = if text.is_empty() { more } else { format!("{more}, {text}") };
        if width(&longer) + 6 > canvas.width() {
            break;
        }
        text = longer;
    }
    if !text.is_empty() {
        canvas.line(y, &[(Tone::Faint, format!("done: {text}"))]);
    }
}

fn bytes(state: &RunState, canvas: &mut Canvas<'_>, y: usize) {
    let moved = state.moved();
    if moved.sum() == 0 {
        return;
    }
    let sources =
        [("controller", moved.controller), ("hosts", moved.hosts), ("registry", moved.registry)];
    let from = sources.iter().filter(|(_, bytes)| *bytes > 0);
    let from: Vec<String> =
        from.map(|(source, bytes)| format!("{source} {}", human(*bytes))).collect();
    let text = format!("moved {} (from {})", human(moved.sum()), from.join(", "));
    canvas.line(y, &[(Tone::Faint, text)]);
}

fn rows(state: &RunState, canvas: &mut Canvas<'_>, lines: std::ops::Range<usize>, now: Instant) {
    let listed = state.listed(now);
    let room = lines.len();
    let shown = if listed.len() > room { room.saturating_sub(1) } else { listed.len() };
    let longest = listed.iter().take(shown).map(|(name, ..)| width(name)).max().unwrap_or(0);
    let of_name = name_column(longest, canvas.width(), 7);
    for (y, (name, host, mood)) in lines.clone().zip(&listed[..shown]) {
        let name = column(name, of_name);
        canvas.line(
            y,
            &[
                (tone(*mood), column(mood.word(), 7)),
                (Tone::Plain, format!("  {name}  ")),
                (Tone::Plain, detail(host, now)),
            ],
        );
    }
    if listed.len() > shown && room > 0 {
        let more = format!("and {} more at work", listed.len() - shown);
        canvas.line(lines.end - 1, &[(Tone::Faint, more)]);
    }
}

/// What a host is at: step, duration, bytes, what it says.
fn detail(host: &Host, now: Instant) -> String {
    let mut text = String::new();
    if let Some(why) = &host.failed {
        text.push_str(why);
    } else if let Some(step) = &host.step {
        let lasts = seconds(now.saturating_duration_since(step.since));
        text.push_str(&format!("{}  {lasts}  ", step.name));
        match (step.from.sum(), step.total) {
            (bytes, Some(total)) if total > 0 => {
                text.push_str(&format!("{} of {}  ", human(bytes), human(total)));
            }
            (0, _) => {}
            (bytes, _) => text.push_str(&format!("{}  ", human(bytes))),
        }
        text.push_str(&step.says);
    }
    match host.retries {
        0 => text,
        1 => format!("{text}  (1 retry)"),
        many => format!("{text}  ({many} retries)"),
    }
}

fn tone(mood: Mood) -> Tone {
    match mood {
        Mood::Failed => Tone::Bad,
        Mood::Retried | Mood::Slow | Mood::Waiting => Tone::Warning,
        Mood::Working => Tone::Plain,
        Mood::Idle => Tone::Good,
    }
}

fn tone_of(line: &str) -> Tone {
    if line.starts_with("FAILED ") { Tone::Bad } else { Tone::Plain }
}

#[cfg(test)]
mod tests {
    use super::*;
    use imgctl_journal::event::{Event, Outcome, Sources};
    use ratatui_core::backend::TestBackend;
    use ratatui_core::style::Color;
    use ratatui_core::terminal::Terminal;

    fn begins(host: &str, says: &str) -> Event {
        Event::StepStart {
            phase: "sync".into(),
            host: host.into(),
            step: format!("sync/{host}/files"),
            attempt: 1,
            says: vec![says.into()],
            bytes: Some(500_000_000),
        }
    }

    fn ends(host: &str, outcome: Outcome) -> Event {
        Event::StepEnd {
            phase: "sync".into(),
            host: host.into(),
            step: format!("sync/{host}/files"),
            outcome,
            attempt: 1,
            duration_ms: 9000,
            recalled: false,
            from: Some(Sources { controller: 1_000_000, hosts: 4_000_000, registry: 0 }),
            log: None,
        }
    }

    fn output(host: &str, text: &str) -> Event {
        Event::Output {
            host: host.into(),
            step: format!("sync/{host}/files"),
            stream: "stdout",
            text: text.into(),
        }
    }

    /// A run over a hundred hosts, 20 s after its beginning: host 1 fails, 2 is retried, 3 is slow, 4
    /// waits, 5 to 32 have just begun, 33 to 40 are done.
    fn hundred(begun: Instant) -> RunState {
        let mut state = RunState::default();
        let at = |seconds| begun + Duration::from_secs(seconds);
        let start = Event::Start {
            journal: "j".into(),
            verb: "run".into(),
            cluster: "prod".into(),
            hosts: 100,
            steps: 300,
            resumed: false,
        };
        state.take(&start, begun);
        state.take(&Event::PhaseStart { phase: "check".into(), hosts: 100, steps: 100 }, begun);
        state.take(&Event::PhaseEnd { phase: "check".into(), duration_ms: 2100 }, at(2));
        state.take(&Event::PhaseStart { phase: "sync".into(), hosts: 100, steps: 200 }, at(2));
        let name = |number: usize| format!("10.0.0.{number}");
        for number in 1..5 {
            state.take(&begins(&name(number), "send 3 layers"), at(3));
        }
        for number in 33..41 {
            state.take(&begins(&name(number), "send 3 layers"), at(3));
            state.take(&ends(&name(number), Outcome::Done), at(12));
        }
        for number in 5..33 {
            state.take(&begins(&name(number), "send 3 layers"), at(18));
            let from = Sources { controller: 0, hosts: 250_000_000, registry: 0 };
            let (host, step) = (name(number), String::new());
            state.take(&Event::Progress { host, step, bytes: from.sum(), from }, at(19));
        }
        state.take(&ends(&name(1), Outcome::Failed), at(14));
        let failure = Event::Failure {
            host: name(1),
            step: "sync/10.0.0.1/files".into(),
            message: "no space left on /var/lib/sealos".into(),
            causes: Vec::new(),
            hints: Vec::new(),
            log: None,
        };
        state.take(&failure, at(14));
        state.take(&ends(&name(2), Outcome::Lost), at(15));
        state.take(&begins(&name(2), "send 3 layers"), at(16));
        state.take(&output(&name(4), "waiting: the registry does not answer"), at(17));
        state
    }

    fn on_screen(state: &RunState, size: (u16, u16), recent: &[&str], now: Instant) -> TestBackend {
        let recent: VecDeque<String> = recent.iter().map(|line| (*line).to_owned()).collect();
        let mut terminal = Terminal::new(TestBackend::new(size.0, size.1)).unwrap();
        terminal
            .draw(|frame| draw(state, &mut Canvas::new(frame.buffer_mut(), false), &recent, now))
            .unwrap();
        terminal.backend().clone()
    }

    #[test]
    fn what_needs_attention_comes_first_and_the_rest_is_counted() {
        let begun = Instant::now();
        let now = begun + Duration::from_secs(20);
        let state = hundred(begun);
        let recent = ["check: 100 hosts, 2.1 s", "FAILED 10.0.0.1: sync/10.0.0.1/files: no space"];
        insta::assert_snapshot!("hundred_hosts", on_screen(&state, (100, 24), &recent, now));
        insta::assert_snapshot!("small_terminal", on_screen(&state, (20, 5), &recent, now));
        insta::assert_snapshot!("narrow_terminal", on_screen(&state, (40, 12), &recent, now));
    }

    #[test]
    fn any_size_will_do() {
        let begun = Instant::now();
        let state = hundred(begun);
        for width in 1..70 {
            for height in 1..20 {
                on_screen(&state, (width, height), &["a line"], begun + Duration::from_secs(20));
            }
        }
        on_screen(&RunState::default(), (80, 24), &[], begun);
    }

    #[test]
    fn without_colours_there_are_none_and_words_say_it_all() {
        let begun = Instant::now();
        let now = begun + Duration::from_secs(20);
        let state = hundred(begun);
        let plain = on_screen(&state, (100, 24), &[], now);
        assert!(plain.buffer().content.iter().all(|cell| cell.fg == Color::Reset));
        let mut terminal = Terminal::new(TestBackend::new(100, 24)).unwrap();
        terminal
            .draw(|frame| {
                let mut canvas = Canvas::new(frame.buffer_mut(), true);
                draw(&state, &mut canvas, &VecDeque::new(), now);
            })
            .unwrap();
        let coloured = terminal.backend().clone();
        assert!(coloured.buffer().content.iter().any(|cell| cell.fg == Color::Red));
        assert_eq!(plain.to_string(), coloured.to_string());
    }

    #[test]
    fn hostile_text_stays_in_its_place() {
        let begun = Instant::now();
        let mut state = RunState::default();
        state.take(&Event::PhaseStart { phase: "s\u{1b}[2J".into(), hosts: 4, steps: 4 }, begun);
        let long = "x".repeat(65_536);
        for (host, says) in [
            ("a\u{1b}]0;title\u{7}", "\u{1b}[31mred"),
            ("b\u{202e}moc.elpmaxe", "\u{2066}\u{9b}2J\r\n"),
            (long.as_str(), long.as_str()),
            ("日本語のホスト名", "漢字漢字漢字漢字漢字漢字漢字漢字漢字漢字漢字漢字漢字"),
        ] {
            state.take(&begins(host, says), begun);
            state.take(&output(host, says), begun);
        }
        let recent = ["\u{1b}[2J\u{202e}x"];
        let screen = on_screen(&state, (60, 18), &recent, begun);
        for cell in &screen.buffer().content {
            assert!(!cell.symbol().chars().any(imgctl_base::text::is_unsafe), "{cell:?}");
        }
        insta::assert_snapshot!("hostile_names", screen);
    }
}
