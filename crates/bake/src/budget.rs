//! Limits on the memory and steps of all expressions in a project's bake files. Must not know expressions or functions.
//!
//! Freed memory is not credited back, so the total bounds what can be live at any time. Each value is counted before it is created:
//! the process never allocates more than the limits allow.

use std::cell::Cell;

use hcl::Value;

use crate::value::Outcome;

/// Maximum memory of all values, in bytes.
const MOST_MADE: usize = 128 << 20;
/// Maximum number of expressions that are evaluated, and of items that functions compare.
const MOST_STEPS: u64 = 4_000_000;
/// Memory of a value besides its text, in bytes.
pub(crate) const NODE: usize = 80;

/// What has been used so far.
#[derive(Debug, Default)]
pub(crate) struct Budget {
    made: Cell<usize>,
    steps: Cell<u64>,
}

impl Budget {
    /// Counts memory that is about to be used.
    pub(crate) fn make(&self, bytes: usize) -> Outcome<()> {
        let made = self.made.get().saturating_add(bytes);
        if made > MOST_MADE {
            return Err(format!("the values would take more than {} MiB", MOST_MADE >> 20));
        }
        self.made.set(made);
        Ok(())
    }

    /// Counts work.
    pub(crate) fn step(&self, count: u64) -> Outcome<()> {
        let steps = self.steps.get().saturating_add(count);
        if steps > MOST_STEPS {
            return Err(format!("it takes more than {MOST_STEPS} steps"));
        }
        self.steps.set(steps);
        Ok(())
    }
}

/// Returns the memory of a value with everything in it, in bytes.
pub(crate) fn size(value: &Value) -> usize {
    NODE + match value {
        Value::String(text) => text.len(),
        Value::Array(items) => items.iter().map(size).sum(),
        Value::Object(map) => map.iter().map(|(key, value)| NODE + key.len() + size(value)).sum(),
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
    }
}
