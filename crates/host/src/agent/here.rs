//! This machine as a host, for the parts of imgctl that run on hosts without a controller. Files and
//! commands are those of the agent's calls.

use std::path::Path;

use crate::agent::execution::{self, Caller};
use crate::agent::protocol::{Facts, FileToWrite, Outcome, OutputLine, Run};
use crate::agent::{Agent, facts, files, removal};
use imgctl_base::error::Result;

/// This machine, without an agent in between.
#[derive(Debug)]
pub struct Here {
    name: String,
}

impl Here {
    /// `name`: for messages.
    pub fn new(name: &str) -> Self {
        Self { name: name.to_owned() }
    }
}

impl Agent for Here {
    fn host(&self) -> &str {
        &self.name
    }

    fn facts(&self) -> Result<Facts> {
        Ok(facts::gather("/"))
    }

    fn run(&self, request: &Run, output: &mut dyn FnMut(OutputLine)) -> Result<Outcome> {
        let caller = Caller { program: Path::new("/proc/self/exe"), gone: &|| false };
        execution::run(request, &caller, output)
    }

    fn write_file(&self, file: &FileToWrite) -> Result<bool> {
        files::write(file)
    }

    fn read_file(&self, path: &str, limit: u64) -> Result<Option<Vec<u8>>> {
        files::read(path, limit)
    }

    fn remove(&self, paths: &[String]) -> Result<Vec<String>> {
        removal::remove(paths)
    }
}
