//! Events of a run over hosts as JSON, one object per line on stdout (docs/operations.md).

use std::sync::Mutex;

use jiff::Timestamp;
use serde_json::Value;

use crate::ui::output;
use imgctl_cluster::pipeline::event::{Event, Listener};

/// Minimum interval between progress lines of one host.
const INTERVAL_MS: i64 = 500;

/// Writes events to stdout.
#[derive(Default)]
pub(crate) struct JsonEvents {
    /// Time of the last progress line, by host.
    told: Mutex<std::collections::HashMap<String, Timestamp>>,
}

impl Listener for JsonEvents {
    fn event(&self, event: &Event) {
        let now = Timestamp::now();
        if let Event::Progress { host, .. } = event {
            let Ok(mut told) = self.told.lock() else {
                return;
            };
            let is_soon =
                |last: &Timestamp| now.as_millisecond() - last.as_millisecond() < INTERVAL_MS;
            if told.get(host).is_some_and(is_soon) {
                return;
            }
            told.insert(host.clone(), now);
        }
        // A closed stdout must not leave hosts half done.
        let _ = output::stdout(line(event, now).as_bytes());
    }
}

fn line(event: &Event, now: Timestamp) -> String {
    let mut object = serde_json::Map::new();
    let time = now.strftime("%Y-%m-%dT%H:%M:%S.%3fZ").to_string();
    object.insert("time".to_owned(), Value::String(time));
    if let Ok(Value::Object(fields)) = serde_json::to_value(event) {
        object.extend(fields);
    }
    format!("{}\n", Value::Object(object))
}

#[cfg(test)]
mod tests {
    use super::*;
    use imgctl_cluster::pipeline::event::Outcome;

    #[test]
    fn one_object_per_line_with_time_and_kind() {
        let event = Event::StepEnd {
            phase: "init".into(),
            host: "h".into(),
            step: "init/h/x".into(),
            outcome: Outcome::Done,
            attempt: 1,
            duration_ms: 5,
            recalled: false,
            log: None,
        };
        assert_eq!(
            line(&event, Timestamp::UNIX_EPOCH),
            "{\"time\":\"1970-01-01T00:00:00.000Z\",\"event\":\"step-end\",\"phase\":\"init\",\
             \"host\":\"h\",\"step\":\"init/h/x\",\"outcome\":\"done\",\"attempt\":1,\
             \"duration_ms\":5,\"recalled\":false}\n"
        );
    }
}
