//! Reports progress as JSON, one object per line (docs/cli.md has the schema).

use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use imgctl_base::progress::{Reporter, Task, Unit};

/// Minimum interval between events of one task.
const INTERVAL: Duration = Duration::from_millis(200);

type Sink = Arc<Mutex<Box<dyn Write + Send>>>;

/// Writes progress events.
pub(crate) struct JsonEvents {
    sink: Sink,
    next: AtomicU64,
}

impl JsonEvents {
    /// Writes events to `sink`.
    pub(crate) fn new(sink: impl Write + Send + 'static) -> Self {
        Self { sink: Arc::new(Mutex::new(Box::new(sink))), next: AtomicU64::new(1) }
    }
}

impl Reporter for JsonEvents {
    fn start(&self, title: &str, unit: Unit, total: Option<u64>) -> Box<dyn Task> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let unit = match unit {
            Unit::Bytes => "bytes",
            Unit::Items => "items",
        };
        let start =
            json!({"event": "start", "id": id, "title": title, "unit": unit, "total": total});
        emit(&self.sink, &start);
        Box::new(Event {
            sink: Arc::clone(&self.sink),
            id,
            done: AtomicU64::new(0),
            said: Mutex::new(Instant::now()),
            ended: AtomicU64::new(0),
        })
    }

    fn note(&self, message: &str) {
        emit(&self.sink, &json!({"event": "note", "message": message}));
    }

    fn output(&self, line: &[u8], error_stream: bool) {
        let stream = if error_stream { "stderr" } else { "stdout" };
        let text = String::from_utf8_lossy(line.strip_suffix(b"\n").unwrap_or(line));
        emit(&self.sink, &json!({"event": "output", "stream": stream, "text": text}));
    }
}

/// Writes each line in one call, so that lines of several threads do not mix. A missing reader does
/// not stop the work.
fn emit(sink: &Sink, event: &Value) {
    if let Ok(mut sink) = sink.lock() {
        let _ = sink.write_all(format!("{event}\n").as_bytes());
    }
}

struct Event {
    sink: Sink,
    id: u64,
    done: AtomicU64,
    said: Mutex<Instant>,
    ended: AtomicU64,
}

impl Task for Event {
    fn advance(&self, amount: u64) {
        let done = self.done.fetch_add(amount, Ordering::Relaxed) + amount;
        let Ok(mut said) = self.said.try_lock() else {
            return;
        };
        if said.elapsed() >= INTERVAL {
            *said = Instant::now();
            emit(&self.sink, &json!({"event": "progress", "id": self.id, "done": done}));
        }
    }

    fn done(&self, summary: &str) {
        self.ended.store(1, Ordering::Relaxed);
        let done = self.done.load(Ordering::Relaxed);
        let end = json!({"event": "done", "id": self.id, "done": done, "summary": summary});
        emit(&self.sink, &end);
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if self.ended.load(Ordering::Relaxed) == 0 {
            emit(&self.sink, &json!({"event": "end", "id": self.id}));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Default)]
    struct Buffer(Arc<Mutex<Vec<u8>>>);

    impl Write for Buffer {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn each_task_starts_and_ends_once() {
        let buffer = Buffer::default();
        let events = JsonEvents::new(buffer.clone());
        let task = events.start("layer 1", Unit::Bytes, Some(10));
        task.advance(10);
        task.done("layer 1 written");
        drop(task);
        drop(events.start("layer 2", Unit::Items, None));
        events.output(b"hello\xff\n", true);
        let text = String::from_utf8(buffer.0.lock().unwrap().clone()).unwrap();
        assert_eq!(
            text.lines().collect::<Vec<_>>(),
            [
                r#"{"event":"start","id":1,"title":"layer 1","unit":"bytes","total":10}"#,
                r#"{"event":"done","id":1,"done":10,"summary":"layer 1 written"}"#,
                r#"{"event":"start","id":2,"title":"layer 2","unit":"items","total":null}"#,
                r#"{"event":"end","id":2}"#,
                "{\"event\":\"output\",\"stream\":\"stderr\",\"text\":\"hello\u{fffd}\"}",
            ]
        );
    }
}
