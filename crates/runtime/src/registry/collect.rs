//! Garbage collection on a registry host, and what it must not take: what containers of any host run.
//! Must not know which images a cluster keeps.
//!
//! Commands keep their logs in /run: the disk of the host may be full.

use std::sync::Mutex;

use crate::{action::HostPool, shell::program};
use imgctl_base::error::{Context as _, Error, Kind, Result};
use imgctl_base::workers::map;
use imgctl_host::agent::Agent;
use imgctl_host::agent::protocol::Run;
use imgctl_host::agent::tree::registry_gc::{CollectRequest, Collected};
use imgctl_model::context::{ClusterContext, Host};

/// Prints the images of all containers of a host: names, digests of manifests, digests of configs.
const RUNNING: &str = include_str!("scripts/running-images.sh");

/// Directory of logs, in memory.
const RUNS: &str = "/run/imgctl-registry";
/// Time that a host may take.
const SECONDS: u64 = 3600;

/// Runs a line on a host and returns its stdout.
fn run(agent: &dyn Agent, key: &str, line: &str, input: Option<String>) -> Result<Vec<String>> {
    let request = Run {
        directory: RUNS.to_owned(),
        key: key.to_owned(),
        line: line.to_owned(),
        workdir: None,
        environment: std::collections::BTreeMap::new(),
        input,
        timeout_seconds: Some(SECONDS),
        again: true,
    };
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    let outcome = agent.run(&request, &mut |output| {
        if output.error_stream {
            stderr.push(output.text);
        } else {
            stdout.push(output.text);
        }
    })?;
    if outcome.code == Some(0) {
        return Ok(stdout);
    }
    // What the agent's program says begins with its own word for an error.
    let kind = if stderr.iter().any(|line| line.contains(OPEN)) {
        Kind::Busy
    } else {
        Kind::CommandFailed
    };
    let first = stderr.first().map_or("", String::as_str);
    let more = stderr.iter().skip(1).map(|line| format!("    {line}"));
    Err(Error::new(kind, format!("{}: {first}", agent.host())).lines(more))
}

/// Part of the message about an open upload.
const OPEN: &str = "is open in";

/// Returns the images that containers of all hosts run, sorted. Fails if a host does not answer: what it
/// runs is unknown.
pub fn running(
    context: &ClusterContext,
    pool: &dyn HostPool,
    parallel: usize,
) -> Result<Vec<String>> {
    let found = Mutex::new(std::collections::BTreeSet::new());
    let asked = map(&context.hosts, parallel, |host: &Host| -> Result<()> {
        let what = || format!("cannot determine what the containers of {} run", host.id());
        let agent = pool.agent(host).context(what)?;
        let lines = run(&*agent, "running", &program(&[RUNNING]), None).context(what)?;
        let words = lines.into_iter().map(|line| line.trim().to_owned());
        let mut all = found.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        all.extend(words.filter(|word| !word.is_empty()));
        Ok(())
    });
    asked.into_iter().collect::<Result<Vec<()>>>()?;
    let found = found.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    Ok(found.into_iter().collect())
}

/// Collects on the host of `agent`, or determines what would go.
pub fn collect(agent: &dyn Agent, request: &CollectRequest) -> Result<Collected> {
    let input = serde_json::to_string(request)
        .map_err(|error| Error::failed("cannot write the request").caused_by(error))?;
    // Our parent on the host is imgctl itself.
    let line = "\"/proc/$PPID/exe\" agent registry-gc";
    let lines = run(agent, "collect", line, Some(input))?;
    let unread = || {
        Error::bad_content(format!("{}: the result of the collection is unreadable", agent.host()))
    };
    let (last, manifests) = lines.split_last().ok_or_else(unread)?;
    let collected: Collected = serde_json::from_str(last).map_err(|_| unread())?;
    Ok(Collected { manifests: manifests.to_vec(), ..collected })
}
