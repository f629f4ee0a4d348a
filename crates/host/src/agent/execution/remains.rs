//! Removes the processes that a command leaves behind when its supervisor was killed: they must not
//! continue while the key is run again.

use std::os::unix::ffi::OsStrExt;

use rustix::process::{Pid, Signal, kill_process};

use crate::agent::execution::surroundings::MARKER;

/// Maximum number of passes over the processes: a killed process may have started others.
const ROUNDS: usize = 5;

/// Kills all processes that have `marker` in their environment.
pub(super) fn kill(marker: &str) {
    let wanted = format!("{MARKER}={marker}");
    for _ in 0..ROUNDS {
        let mut found = false;
        for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
            let name = entry.file_name();
            let pid = name.to_str().and_then(|name| name.parse::<i32>().ok());
            let Some(pid) = pid.and_then(Pid::from_raw) else {
                continue;
            };
            let environment = std::fs::read(entry.path().join("environ")).unwrap_or_default();
            let is_ours = environment
                .split(|byte| *byte == 0)
                .any(|variable| variable == std::ffi::OsStr::new(&wanted).as_bytes());
            if is_ours {
                found = true;
                let _ = kill_process(pid, Signal::KILL);
            }
        }
        if !found {
            return;
        }
    }
}
