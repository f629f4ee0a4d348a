//! The systemd units that imgctl installs on a host: their start and removal. Must not know what the units run.

use crate::action::Line;

/// Returns a line that stops the units and removes their files and other `paths`, if they are there.
pub fn removal(units: &[&str], paths: &[&str]) -> Line {
    Line::script(&[include_str!("scripts/remove-units.sh")])
        .with([("IMGCTL_UNITS", &units.join(" ")), ("IMGCTL_FILES", &paths.join("\n"))])
}

/// Returns a line that enables a timer, named without suffix, and starts it anew.
pub fn enable_timer(unit: &str) -> Line {
    Line::script(&[include_str!("scripts/enable-timer.sh")]).with([("IMGCTL_UNIT", unit)])
}
