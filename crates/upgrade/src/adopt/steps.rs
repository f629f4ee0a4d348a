//! The steps of an adoption: all of them write on the controller, except for the record in the API.
//! Each can be repeated; the Clusterfile comes last, and without it nothing has been adopted.

use std::path::PathBuf;
use std::sync::Arc;

use crate::adopt::{k3s, read::text};
use imgctl_base::error::{Error, IoContext, Result};
use imgctl_base::fs::atomic::sync_directory;
use imgctl_host::agent::Agent;
use imgctl_kube::api::Api;
use imgctl_model::context::{ClusterContext, Host};
use imgctl_model::state_files::StateFiles;
use imgctl_runtime::certificates::{host_kubeconfig, pki::Pki};
use imgctl_runtime::k3s::{KUBECONFIG, fetch_kubeconfig, tokens_of};
use imgctl_runtime::{kubectl::ADMIN_CONF, nodes};
use imgctl_workflow::pipeline::execution_context::{ExecutionContext, PhaseUpdate};
use imgctl_workflow::pipeline::step::{Phase, Plan, Step, StepContext};
use imgctl_workflow::pipeline::{
    record,
    record::{RECORD_PATH, secret_object},
};

/// Maximum size of a certificate or key, in bytes.
const LONGEST: u64 = 1 << 20;
/// Files below `/etc/kubernetes/pki`, and whether an external etcd does without them.
const PKI: [(&str, bool); 8] = [
    ("ca.crt", false),
    ("ca.key", false),
    ("etcd/ca.crt", true),
    ("etcd/ca.key", true),
    ("front-proxy-ca.crt", false),
    ("front-proxy-ca.key", false),
    ("sa.key", false),
    ("sa.pub", false),
];

/// Returns the plan. `intent` identifies the cluster and its hosts.
pub fn plan(
    execution: &ExecutionContext<'_>,
    context: &Arc<ClusterContext>,
    intent: &str,
    external_etcd: bool,
) -> Plan {
    let mut plan = Plan::new("adopt", &context.name, intent);
    let runtime = execution.runtime.name();
    if runtime == "kubeadm"
        && let Some(first) = context.first()
    {
        plan.push(Phase::local("authorities", vec![authorities(context, first, external_etcd)]));
    }
    if runtime == "k3s"
        && let Some(first) = context.first()
    {
        plan.push(Phase::local("tokens", vec![tokens(context, first)]));
    }
    let mut steps = Vec::new();
    if execution.runtime.has_api() {
        steps.push(secret(execution, context));
    }
    steps.push(record::mark(execution, PhaseUpdate::Success));
    plan.push(Phase::local("record", steps));
    plan
}

/// Copies the authorities and the administrator's kubeconfig from the first control plane.
fn authorities(context: &Arc<ClusterContext>, first: &Host, external_etcd: bool) -> Step {
    let says = format!(
        "copy from {}: the authorities below /etc/kubernetes/pki to pki/, {ADMIN_CONF} to \
         etc/admin.conf (mode 0600)",
        first.id()
    );
    let (context, first) = (Arc::clone(context), first.clone());
    let step = Step::local("authorities", says, "", move |step: &StepContext<'_>| {
        let agent = step.pool.agent(&first)?;
        let state = &context.state;
        fetch(&*agent, state, external_etcd)?;
        if !external_etcd {
            // The keys belong to the certificates.
            Pki::load(state)?;
        }
        Ok(())
    });
    step.always()
}

/// Copies what hosts of k3s join with, and the administrator's kubeconfig, from the first server.
fn tokens(context: &Arc<ClusterContext>, first: &Host) -> Step {
    let says = format!(
        "copy from {}: the tokens of k3s to etc/token and etc/agent-token, \
         {KUBECONFIG} to etc/admin.conf (mode 0600)",
        first.id()
    );
    let (context, first) = (Arc::clone(context), first.clone());
    let step = Step::local("tokens", says, "", move |step: &StepContext<'_>| {
        let agent = step.pool.agent(&first)?;
        let directory = k3s::data_directory(&context.documents);
        let [servers, agents] = tokens_of(&*agent, &directory)?;
        let servers = servers.as_deref().and_then(k3s::token).ok_or_else(|| {
            Error::not_found(format!(
                "{}: {directory}/server/token has no token of k3s",
                agent.host()
            ))
        })?;
        // Without one of their own, agents join with the token of servers.
        let agents = agents.as_deref().and_then(k3s::token).unwrap_or(servers);
        context.state.write("etc/token", servers)?;
        context.state.write("etc/agent-token", agents)?;
        fetch_kubeconfig(&*agent, &context, &first)
    });
    step.always()
}

fn fetch(agent: &dyn Agent, state: &StateFiles, external_etcd: bool) -> Result<()> {
    let mut files = Vec::new();
    for (name, may_lack) in PKI {
        let path = format!("/etc/kubernetes/pki/{name}");
        match text(agent, &path, LONGEST)? {
            Some(content) => files.push((name, content)),
            None if name == "sa.pub" || (may_lack && external_etcd) => {}
            None => {
                return Err(Error::not_found(format!("{}: there is no {path}", agent.host())));
            }
        }
    }
    let own = files.first().map(|(_, content)| content);
    put_aside(state, own.map_or("", String::as_str))?;
    for (name, content) in &files {
        state.write(format!("pki/{name}"), content)?;
    }
    match text(agent, ADMIN_CONF, LONGEST)? {
        Some(content) => host_kubeconfig::keep(state, &content, agent, ADMIN_CONF),
        None => Ok(()),
    }
}

/// Renames the authorities of a former cluster of the same name: they are not overwritten.
fn put_aside(state: &StateFiles, authority: &str) -> Result<()> {
    let directory = state.path("pki");
    let kept = state.read("pki/ca.crt", LONGEST)?;
    if kept.is_none_or(|kept| kept == authority) {
        return Ok(());
    }
    let free = |number: &u32| -> PathBuf { directory.with_extension(format!("former-{number}")) };
    let Some(number) = (1..).find(|number| !free(number).exists()) else {
        return Ok(());
    };
    std::fs::rename(&directory, free(&number)).path("rename", &directory)?;
    sync_directory(state.directory())
}

/// Stores the Clusterfile in the cluster, through the API: no command runs on a host.
fn secret(execution: &ExecutionContext<'_>, context: &Arc<ClusterContext>) -> Step {
    let (state_store, context) = (Arc::clone(&execution.state_store), Arc::clone(context));
    let says = "store the Clusterfile, without passwords, as Secret kube-system/imgctl-cluster";
    let step = Step::local("secret", says, "", move |step: &StepContext<'_>| {
        let api = nodes::api(&context, step.pool)?;
        put_secret(&*api, &state_store.clusterfile()?)
    });
    step.always()
}

pub(super) fn put_secret(api: &dyn Api, clusterfile: &str) -> Result<()> {
    let object = secret_object(clusterfile);
    match api.get(RECORD_PATH) {
        Ok(present) if present["data"] == object["data"] => Ok(()),
        Ok(_) => api.replace(RECORD_PATH, &object).map(drop).map_err(Error::from),
        Err(error) if error.is_not_found() => {
            let list = RECORD_PATH.rsplit_once('/').map_or(RECORD_PATH, |(list, _)| list);
            api.create(list, &object).map(drop).map_err(Error::from)
        }
        Err(error) => Err(error.into()),
    }
}
