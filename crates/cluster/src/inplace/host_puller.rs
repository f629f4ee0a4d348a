//! Pulls images on Nodes that are hosts: runs `crictl pull`, with the container runtime's own
//! registry configuration.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde_json::Value;

use crate::cluster::host::Host;
use crate::inplace::plan::PodPlan;
use crate::inplace::pre_pull::Puller;
use crate::runtime::action::HostPool;
use imgctl_base::error::{Error, Kind, Result};
use imgctl_host::agent::Agent;
use imgctl_host::agent::protocol::Run;

/// Timeout for a pull, in seconds.
const TIMEOUT: u64 = 1800;
/// Maximum number of bytes kept of a command's output.
const LONGEST: usize = 1 << 20;

/// Hosts of a cluster. Each is connected when it has to pull, because Pods may move to other Nodes
/// during the run.
pub struct HostPuller<'a> {
    pub pool: &'a dyn HostPool,
    /// Hosts by the name of their Node.
    pub hosts: BTreeMap<String, &'a Host>,
    /// Directory on hosts for running commands: `<data>/runs`.
    pub runs: String,
}

impl Puller for HostPuller<'_> {
    fn pull(&self, pod: &PodPlan, image: &str, room: u64) -> Result<Vec<String>> {
        let host = self.hosts.get(&pod.node).ok_or_else(|| {
            Error::not_found("this Node is not a host of the cluster")
                .hint("pass --pre-pull job to pull with the Node's kubelet")
        })?;
        let agent = self.pool.agent(host)?;
        let image = quoted(image);
        if room > 0 {
            self.check_room(&*agent, room)?;
        }
        self.run(&*agent, &format!("crictl pull -- {image} >&2"))?;
        let shown = self.run(&*agent, &format!("crictl inspecti -o json -- {image}"))?;
        let shown: Value = serde_json::from_str(&shown).map_err(|error| {
            Error::bad_content(format!("{}: crictl did not return JSON", agent.host()))
                .caused_by(error)
        })?;
        let status = &shown["status"];
        let names = status["repoDigests"].as_array().into_iter().flatten();
        let mut found: Vec<String> = names
            .chain([&status["id"]])
            .filter_map(|one| one.as_str().map(str::to_owned))
            .collect();
        found.dedup();
        Ok(found)
    }
}

impl HostPuller<'_> {
    /// Checks that there is enough free space where the runtime stores images, if it reports that
    /// location.
    fn check_room(&self, agent: &dyn Agent, room: u64) -> Result<()> {
        let line = "place=$(crictl imagefsinfo -o json 2>/dev/null | sed -n 's/.*\"mountpoint\": *\"\\([^\"]*\\)\".*/\\1/p' | head -n 1); \
                    df -B1 --output=avail -- \"${place:-/var/lib}\" | tail -n 1";
        let text = self.run(agent, line)?;
        let Ok(free) = text.trim().parse::<u64>() else {
            return Ok(());
        };
        if free < room {
            Err(Error::new(
                Kind::NoSpace,
                format!(
                    "{}: {free} bytes are free for images, but {room} are needed",
                    agent.host()
                ),
            ))
        } else {
            Ok(())
        }
    }

    /// Runs a line and returns its stdout.
    fn run(&self, agent: &dyn Agent, line: &str) -> Result<String> {
        let request = Run {
            directory: self.runs.clone(),
            key: format!("inplace-{}", Timestamp::now().as_nanosecond()),
            line: line.to_owned(),
            workdir: None,
            environment: BTreeMap::new(),
            input: None,
            timeout_seconds: Some(TIMEOUT),
            again: true,
        };
        let (mut text, mut last) = (String::new(), String::new());
        let outcome = agent.run(&request, &mut |output| {
            if output.error_stream {
                last = output.text;
            } else if text.len() < LONGEST {
                text.push_str(&output.text);
                text.push('\n');
            }
        })?;
        match outcome.code {
            Some(0) => Ok(text),
            _ => Err(Error::new(
                Kind::CommandFailed,
                format!("{}: `{line}` failed: {last}", agent.host()),
            )),
        }
    }
}

/// Quotes a single shell word.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}
