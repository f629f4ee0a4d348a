//! RUN on a stage.

use crate::build::stage::Stage;
use crate::error::Result;
use crate::kubefile::ast::Run;

impl Stage<'_> {
    /// Executes RUN.
    pub(crate) fn run(&mut self, _run: &Run, _text: &str) -> Result<()> {
        todo!()
    }
}
