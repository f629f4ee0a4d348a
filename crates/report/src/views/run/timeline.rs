//! The timeline of a run: a lane for each host, in which steps are blocks and gaps are waits. The time
//! between two commands is left out.

use jiff::Timestamp;
use maud::{Markup, html};

use crate::model::run::{Attempt, HostRun, RunReport};
use crate::text::{counted, duration};
use crate::views::parts::{badge, code, headings, nothing, table};
use crate::views::run::{class_of, outcome};

/// Width of a lane, in units of its drawing.
const WIDTH: u64 = 1000;

/// Maps times to milliseconds of work.
pub(super) struct Clock {
    /// Begin and end of each command, in milliseconds since 1970.
    spans: Vec<(i64, i64)>,
}

impl Clock {
    pub(super) fn new(report: &RunReport) -> Self {
        let mut spans: Vec<(i64, i64)> = report
            .sessions
            .iter()
            .filter_map(|session| Some((millis(&session.started)?, millis(&session.last)?)))
            .collect();
        spans.sort_unstable();
        // Times of a journal that was edited may overlap.
        let mut after = i64::MIN;
        for (start, end) in &mut spans {
            *start = (*start).max(after);
            *end = (*end).max(*start);
            after = *end;
        }
        Self { spans }
    }

    /// Returns the time of all commands together, in milliseconds.
    pub(super) fn length(&self) -> u64 {
        let lengths = self.spans.iter().map(|(start, end)| start.abs_diff(*end));
        lengths.fold(0, u64::saturating_add)
    }

    /// Returns the milliseconds of work before `time`.
    fn at(&self, time: i64) -> u64 {
        let before = |(start, end): &(i64, i64)| match time {
            time if time >= *end => start.abs_diff(*end),
            time if time <= *start => 0,
            time => start.abs_diff(time),
        };
        self.spans.iter().map(before).fold(0, u64::saturating_add)
    }

    /// Returns where a time is in a lane.
    fn place(&self, time: i64) -> u64 {
        let place =
            u128::from(self.at(time)) * u128::from(WIDTH) / u128::from(self.length().max(1));
        u64::try_from(place).unwrap_or(WIDTH)
    }
}

fn millis(time: &str) -> Option<i64> {
    time.parse::<Timestamp>().ok().map(Timestamp::as_millisecond)
}

pub(super) fn body(report: &RunReport, clock: &Clock) -> Markup {
    if report.hosts.is_empty() {
        return nothing("No step began.");
    }
    let borders: Vec<u64> =
        clock.spans.iter().skip(1).map(|(start, _)| clock.place(*start)).collect();
    let rows = html! {
        @for host in &report.hosts {
            @let failed = host.steps.iter().filter(|step| matches!(class_of(outcome(step)), "bad" | "warn")).count() as u64;
            @let retries = host.steps.iter().map(|step| step.attempts.len().saturating_sub(1) as u64).sum::<u64>();
            tr {
                th scope="row" { (code(&host.host)) }
                td.lane { (lane(host, clock, &borders)) }
                td.number { (host.steps.len()) }
                td.number { (duration(busy(host))) }
                td {
                    @if failed > 0 { (badge("bad", &format!("{failed} failed"))) }
                    @if retries > 0 { " " (badge("warn", &counted(retries, "retry", "retries"))) }
                }
            }
        }
    };
    let head = html! {
        th scope="col" { "Host" }
        th scope="col" {
            span.sr { "Timeline" }
            div.axis aria-hidden="true" {
                @for quarter in 0..=4 { span { (duration(clock.length() / 4 * quarter)) } }
            }
        }
        (headings(&["Steps#", "Busy#", "Attention"]))
    };
    html! {
        (table("Timeline by host", report.hosts.len() > 12, &head, &rows))
        ul.legend {
            @for (class, word) in [("good", "done"), ("bad", "failed"), ("warn", "lost, interrupted or unknown"), ("info", "no end recorded")] {
                li { svg.key width="12" height="12" aria-hidden="true" { rect class=(class) width="12" height="12" rx="2" {} } (word) }
            }
            li.quiet { "Gaps are waits. Vertical lines separate commands." }
        }
    }
}

/// Time in which the host had a step, in milliseconds.
fn busy(host: &HostRun) -> u64 {
    let attempts = host.steps.iter().flat_map(|step| &step.attempts);
    attempts.filter_map(|attempt| attempt.duration_ms).fold(0, u64::saturating_add)
}

/// Draws a block for each attempt; those of one outcome are one path, as there may be many.
fn lane(host: &HostRun, clock: &Clock, borders: &[u64]) -> Markup {
    let mut paths = [
        ("good", String::new()),
        ("info", String::new()),
        ("warn", String::new()),
        ("bad", String::new()),
    ];
    for attempt in host.steps.iter().flat_map(|step| &step.attempts) {
        let Some((start, end)) = span(attempt, clock) else { continue };
        let class = class_of(attempt.outcome.as_deref());
        if let Some((_, path)) = paths.iter_mut().find(|(name, _)| *name == class) {
            // A short step is still to be seen.
            let width = end.saturating_sub(start).max(2);
            path.push_str(&format!("M{start} 2h{width}v14h-{width}z"));
        }
    }
    let label = format!(
        "{}, busy for {}",
        counted(host.steps.len() as u64, "step", "steps"),
        duration(busy(host))
    );
    html! {
        svg.strip viewBox="0 0 1000 18" preserveAspectRatio="none" role="img" aria-label=(label) {
            rect.track width="1000" height="18" {}
            @for (class, path) in &paths {
                @if !path.is_empty() { path class={ "block " (class) } d=(path) {} }
            }
            @for border in borders { rect.border x=(border) width="2" height="18" {} }
        }
    }
}

/// Returns where an attempt begins and ends in its lane.
fn span(attempt: &Attempt, clock: &Clock) -> Option<(u64, u64)> {
    let ended = attempt.ended.as_deref().and_then(millis);
    let length = attempt.duration_ms.and_then(|length| i64::try_from(length).ok());
    let began = attempt
        .began
        .as_deref()
        .and_then(millis)
        .or_else(|| Some(ended?.saturating_sub(length?)))?;
    // Without an end: up to the end of the command that began it.
    let ended = ended.or_else(|| {
        let of_command = clock.spans.iter().find(|(start, end)| (*start..=*end).contains(&began));
        of_command.map(|(_, end)| *end)
    });
    Some((clock.place(began), clock.place(ended.unwrap_or(began))))
}
