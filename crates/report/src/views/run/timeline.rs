//! The timeline of a run: a lane for each host, in which steps are blocks and gaps are waits. The time
//! between two commands is left out.

use std::collections::BTreeSet;

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
    /// Begin and end of each command, in milliseconds since 1970: sorted, without overlaps.
    spans: Vec<(i64, i64)>,
    /// Milliseconds of work before each span, and of all. A long journal has as many spans as it likes.
    before: Vec<u64>,
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
        let mut before = vec![0_u64];
        for (start, end) in &spans {
            let last = before.last().copied().unwrap_or_default();
            before.push(last.saturating_add(start.abs_diff(*end)));
        }
        Self { spans, before }
    }

    /// Returns the time of all commands together, in milliseconds.
    pub(super) fn length(&self) -> u64 {
        self.before.last().copied().unwrap_or_default()
    }

    /// Returns the number of the last span that begins at or before `time`.
    fn span_at(&self, time: i64) -> Option<usize> {
        self.spans.partition_point(|(start, _)| *start <= time).checked_sub(1)
    }

    /// Returns the milliseconds of work before `time`.
    fn at(&self, time: i64) -> u64 {
        let Some(at) = self.span_at(time) else { return 0 };
        let within = self.spans.get(at).map_or(0, |(start, end)| start.abs_diff(time.min(*end)));
        self.before.get(at).map_or(0, |before| before.saturating_add(within))
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
    // One at each place, however many commands there were.
    let borders: BTreeSet<u64> =
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
fn lane(host: &HostRun, clock: &Clock, borders: &BTreeSet<u64>) -> Markup {
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
        let of_command = clock.span_at(began).and_then(|at| clock.spans.get(at));
        of_command.map(|(_, end)| *end).filter(|end| began <= *end)
    });
    Some((clock.place(began), clock.place(ended.unwrap_or(began))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_that_the_spans_add_up_to() {
        let spans = vec![(10, 20), (20, 20), (20, 25), (40, 100)];
        let clock = Clock { before: vec![0, 10, 10, 15, 75], spans: spans.clone() };
        for time in 0..120 {
            let before = |(start, end): &(i64, i64)| time.clamp(*start, *end).abs_diff(*start);
            assert_eq!(clock.at(time), spans.iter().map(before).sum::<u64>(), "{time}");
        }
        assert_eq!(clock.length(), 75);
    }
}
