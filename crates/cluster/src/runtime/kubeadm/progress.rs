//! Runs `kubeadm init` and `kubeadm join` exactly once: a started command is followed, finished or
//! undone.
//!
//! Two markers beside the generated configuration record a host's progress: `kubeadm.begun` is
//! written before kubeadm starts, `kubeadm.done` after it succeeds. A host with kubeadm's files but
//! no marker belongs to another cluster and is not touched.

use crate::runtime::action::{Line, Site};
use crate::runtime::kubeadm::place::write;
use crate::runtime::kubeadm::settings::etc;
use imgctl_base::error::{Error, Kind, Result};

const BEGUN: &str = "kubeadm.begun";
const DONE: &str = "kubeadm.done";
/// Exit code that kubeadm does not use: no earlier run is known.
const UNKNOWN: i32 = 97;

/// One `kubeadm init` or `kubeadm join` command.
pub(super) struct Once<'a> {
    /// File that exists after the command has done its work, or part of it.
    pub(super) proof: &'a str,
    pub(super) line: Line,
    /// Cleans up after an attempt that failed or whose outcome is unknown. Returns the command to
    /// run next, or `None` if all work turns out to be done.
    pub(super) again: &'a dyn Fn() -> Result<Option<Line>>,
}

/// Returns the paths of the markers.
pub(super) fn markers(site: &Site<'_>) -> [String; 2] {
    [etc(site.context, BEGUN), etc(site.context, DONE)]
}

/// Reports whether kubeadm has done its work on this host. `proof` is as in [`Once`].
pub(super) fn is_done(site: &Site<'_>, proof: &str) -> Result<bool> {
    Ok(look(site, proof)? == "done")
}

fn look(site: &Site<'_>, proof: &str) -> Result<String> {
    let [begun, done] = markers(site);
    let line = format!(
        "if [ -e {done} ] && [ -e {proof} ]; then echo done; \
         elif [ -e {begun} ]; then echo begun; \
         elif [ -e {proof} ]; then echo foreign; fi"
    );
    let found = site.run_on(site.agent, &Line::query(line), "-progress")?;
    Ok(found.trim().to_owned())
}

impl Once<'_> {
    pub(super) fn run(&self, site: &Site<'_>) -> Result<()> {
        let [begun, done] = markers(site);
        match look(site, self.proof)?.as_str() {
            "done" => return Ok(()),
            "foreign" => return Err(self.foreign(site)),
            "begun" => self.resume(site)?,
            _ => {
                write(site.agent, &begun, 0o600, "")?;
                site.run(&self.line)?;
            }
        }
        write(site.agent, &done, 0o600, "")
    }

    /// Follows an earlier attempt of the same step to its end. Cleans up after an attempt of
    /// another run or a failed one.
    fn resume(&self, site: &Site<'_>) -> Result<()> {
        let question = Line { line: format!("exit {UNKNOWN}"), quiet: true, ..Line::default() };
        let (outcome, _, _) = site.try_on(site.agent, &question, "")?;
        if outcome.code == Some(0) {
            return Ok(());
        }
        let Some(line) = (self.again)()? else {
            return Ok(());
        };
        site.run(&Line { again: true, ..line }).map(|_| ())
    }

    fn foreign(&self, site: &Site<'_>) -> Error {
        let host = site.agent.host();
        Error::new(
            Kind::Busy,
            format!("{host}: {} exists, but this cluster did not create it", self.proof),
        )
        .hint(format!(
            "the host belongs to another cluster; if that is no longer needed, run `kubeadm reset \
             -f` on {host}"
        ))
    }
}
