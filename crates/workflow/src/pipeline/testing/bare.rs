//! The runtime of the simulation.

use imgctl_base::error::{Error, Result};
use imgctl_host::agent::protocol::Facts;
use imgctl_kube::drain;
use imgctl_model::context::{ClusterContext, Host};
use imgctl_runtime::action::Line;
use imgctl_runtime::{Action, Runtime};

/// A runtime whose steps each consist of one command. Creating a cluster, joining and leaving must
/// not be repeated.
pub struct Bare;

fn command(name: &str) -> Action {
    Action::command(name, Line::new(format!("{name} --on this-host")))
}

impl Runtime for Bare {
    fn name(&self) -> &'static str {
        "script"
    }

    fn check(&self, _context: &ClusterContext) -> Result<()> {
        Ok(())
    }

    fn prepare(&self, _context: &ClusterContext, _host: &Host) -> Result<Vec<Action>> {
        Ok(vec![command("prepare-host")])
    }

    fn init(&self, _context: &ClusterContext, _host: &Host) -> Result<Vec<Action>> {
        Ok(vec![command("init-cluster").once()])
    }

    fn join_control_plane(&self, _context: &ClusterContext, _host: &Host) -> Result<Vec<Action>> {
        Ok(vec![command("join-master").once()])
    }

    fn join_worker(&self, _context: &ClusterContext, _host: &Host) -> Result<Vec<Action>> {
        Ok(vec![command("join-worker").once()])
    }

    fn settle(&self, _context: &ClusterContext, _host: &Host) -> Result<Vec<Action>> {
        Ok(vec![command("settle")])
    }

    fn health(&self, _context: &ClusterContext, _host: &Host) -> Result<Vec<Action>> {
        Ok(vec![command("health")])
    }

    fn leave(
        &self,
        _context: &ClusterContext,
        _host: &Host,
        _draining: &drain::Options,
    ) -> Result<Vec<Action>> {
        Ok(vec![command("leave").once()])
    }

    fn reset(&self, _context: &ClusterContext, _host: &Host) -> Result<Vec<Action>> {
        Ok(vec![command("reset")])
    }

    fn fits(&self, _context: &ClusterContext, host: &Host, facts: &Facts) -> Result<()> {
        match facts.kernel.as_str() {
            "unfit" => Err(Error::failed(format!("{}: unfit", host.id())).hint("take another")),
            _ => Ok(()),
        }
    }

    fn ports(&self, _context: &ClusterContext, _host: &Host) -> Vec<u16> {
        vec![7000]
    }
}
