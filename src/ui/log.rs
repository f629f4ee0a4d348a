//! Writes log records to stderr, through the owner of the terminal.

use std::io::{self, Write};
use std::sync::Arc;

use clap::ValueEnum;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::fmt::MakeWriter;

use crate::ui::Terminal;

/// Log level.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Level {
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

/// Starts logging for this process; further calls (in tests) have no effect.
pub(crate) fn start(level: Level, colour: bool, terminal: &Arc<Terminal>) {
    let filter = match level {
        Level::Error => LevelFilter::ERROR,
        Level::Warn => LevelFilter::WARN,
        Level::Info => LevelFilter::INFO,
        Level::Debug => LevelFilter::DEBUG,
        Level::Trace => LevelFilter::TRACE,
    };
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(filter)
        .with_target(level == Level::Debug || level == Level::Trace)
        .with_ansi(colour)
        .without_time()
        .with_writer(Through(Arc::clone(terminal)))
        .finish();
    let _ = tracing::subscriber::set_global_default(subscriber);
}

struct Through(Arc<Terminal>);

impl<'a> MakeWriter<'a> for Through {
    type Writer = Record;

    fn make_writer(&'a self) -> Record {
        Record { terminal: Arc::clone(&self.0), bytes: Vec::new() }
    }
}

/// Collects one record, which is then written in one piece.
struct Record {
    terminal: Arc<Terminal>,
    bytes: Vec<u8>,
}

impl Write for Record {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        self.bytes.extend_from_slice(buffer);
        Ok(buffer.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        if !self.bytes.is_empty() {
            self.terminal.write(&self.bytes);
        }
    }
}
