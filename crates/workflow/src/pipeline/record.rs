//! Where the cluster's state is recorded: on the controller, on control planes, in the API.

use std::sync::Arc;

use base64::{Engine as _, engine::general_purpose::STANDARD};

use crate::pipeline::execution_context::{ExecutionContext, PhaseUpdate, StateStore};
use crate::pipeline::step::{Lane, Order, Phase, Step};
use imgctl_base::error::Result;
use imgctl_host::agent::protocol::FileToWrite;
use imgctl_model::{clusterfile, context::ClusterContext};
use imgctl_runtime::{Action, action::Line};

/// Secret of a Kubernetes cluster with its Clusterfile.
pub const RECORD_PATH: &str = "/api/v1/namespaces/kube-system/secrets/imgctl-cluster";
/// Key in that Secret.
pub const RECORD_KEY: &str = "Clusterfile";
/// One byte more than a Clusterfile may have.
const LONGEST: u64 = clusterfile::MAX_LENGTH as u64 + 1;

/// Directory of backups that a timer makes, on a control plane below the cluster's.
pub(crate) const SCHEDULE: &str = "schedule";

/// Returns the step that records the state of the cluster on the controller.
pub fn mark(execution: &ExecutionContext<'_>, mark: PhaseUpdate) -> Step {
    let state_store = Arc::clone(&execution.state_store);
    let (name, says) = match &mark {
        PhaseUpdate::InProcess => ("record", "write the Clusterfile, phase ClusterInProcess"),
        PhaseUpdate::Success => ("record", "write the Clusterfile, phase ClusterSuccess"),
        PhaseUpdate::Commands { .. } => ("commands", "record the installed images"),
        PhaseUpdate::Failed(_) => ("record", "write the Clusterfile, phase ClusterFailed"),
        PhaseUpdate::Gone => ("record", "rename the Clusterfile to Clusterfile.<time>"),
    };
    Step::local(name, says, &format!("{mark:?}"), move |_| state_store.mark(&mark)).always()
}

/// Returns the phases that record the state after everything has succeeded.
pub fn phases(
    execution: &ExecutionContext<'_>,
    context: &ClusterContext,
    marks: Vec<Step>,
) -> Vec<Phase> {
    let mut remote = Phase::new("copy", Order::Parallel);
    for host in context.control_planes().filter(|_| execution.copy_state) {
        remote = remote.lane(Lane::on(host, [copies(execution, context)]));
    }
    let mut phases = vec![Phase::local("record", marks), remote];
    if let Some(first) = context.first().filter(|_| execution.runtime.has_api()) {
        phases.push(Phase::on("mirror-state", first, [secret(execution)]));
    }
    phases
}

/// Returns the step that copies the record to control planes, so that a lost controller can be
/// replaced.
fn copies(execution: &ExecutionContext<'_>, context: &ClusterContext) -> Step {
    let state_store = Arc::clone(&execution.state_store);
    let directory = format!("{}/state", context.paths.root());
    let says = format!("keep a copy of the Clusterfile, without secrets, in {directory}");
    let scheduled =
        format!("{}/{SCHEDULE}/clusters/{}/Clusterfile", context.paths.root(), context.name);
    let action = Action::new("state", says, move |site| {
        for file in state_store.copies()? {
            site.agent
                .write_file(&FileToWrite { path: format!("{directory}/{}", file.path), ..file })?;
        }
        // A timer that backs the cluster up has to know what it is now.
        if site.agent.read_file(&scheduled, LONGEST)?.is_some() {
            let content = state_store.whole()?.into_bytes();
            site.agent.write_file(&FileToWrite {
                path: scheduled.clone(),
                mode: 0o600,
                content,
            })?;
        }
        Ok(())
    });
    Step::from(action).always()
}

/// Returns the step that stores the Clusterfile as a Secret in the cluster.
fn secret(execution: &ExecutionContext<'_>) -> Step {
    let state_store = Arc::clone(&execution.state_store);
    let says = "kubectl apply: Secret kube-system/imgctl-cluster with the Clusterfile";
    let action = Action::new("secret", says, move |site| {
        let manifest = secret_object(&state_store.clusterfile()?);
        site.run(&kubectl("apply -f - >/dev/null", Some(manifest.to_string()))).map(|_| ())
    });
    Step::from(action).always()
}

/// Returns the Secret with a Clusterfile.
pub fn secret_object(clusterfile: &str) -> serde_json::Value {
    serde_json::json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": "imgctl-cluster",
            "namespace": "kube-system",
            "labels": {"app.kubernetes.io/managed-by": "imgctl"},
        },
        "data": {RECORD_KEY: STANDARD.encode(clusterfile)},
    })
}

/// Returns a `kubectl` command that uses the kubeconfig of the runtime on a control plane.
pub(crate) fn kubectl(arguments: &str, input: Option<String>) -> Line {
    Line {
        line: format!(
            "for config in /etc/kubernetes/admin.conf /etc/rancher/k3s/k3s.yaml; do \
             if [ -r $config ]; then export KUBECONFIG=$config; break; fi; done; \
             kubectl {arguments}"
        ),
        input,
        again: true,
        ..Line::default()
    }
}

pub fn failed(state_store: &dyn StateStore, message: &str) -> Result<()> {
    state_store.mark(&PhaseUpdate::Failed(message.to_owned()))
}
