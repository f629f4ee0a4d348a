//! The node-local API load balancer: `imgctl agent lb` as a systemd unit on workers.
//!
//! Workers reach the API at `127.0.0.1:<port>`; the local load balancer forwards each connection to
//! a ready control plane. The list of control planes is a file that the load balancer reloads when
//! it changes: members join and leave, and a control plane under maintenance is taken out of the
//! list.

use crate::action::{Line, Site};
use crate::{Action, units};
use imgctl_base::address::join_port;
use imgctl_model::context::{ClusterContext, Host};

/// Port of the API on control planes and of the load balancer on workers.
pub const API_PORT: u16 = 6443;
/// Address that workers use to reach the API.
pub(crate) const ADDRESS: &str = "127.0.0.1";

/// Name that workers use to reach the API; the API servers' certificates include it.
const NAME: &str = "apiserver.cluster.local";
/// Time after which a server that was taken out is used again if it is not put back: longer than a
/// control plane upgrade usually takes. After that, only its `/readyz` decides.
const OUT_SECONDS: u32 = 15 * 60;
/// Maximum number of workers to notify at the same time.
const AT_ONCE: usize = 32;

/// Credentials with which a worker checks API servers after it has joined.
#[derive(Clone, Copy)]
pub(crate) struct Papers {
    pub authority: &'static str,
    /// The kubelet's own certificate, for API servers that reject anonymous requests.
    pub certificate: &'static str,
    pub key: &'static str,
}

pub(crate) fn unit(context: &ClusterContext) -> String {
    format!("imgctl-api-{}", context.name)
}

fn binary(context: &ClusterContext) -> String {
    format!("{}/bin/imgctl", context.paths.root())
}

fn servers_file(context: &ClusterContext) -> String {
    format!("{}/api-servers", context.paths.etc())
}

fn state_file(context: &ClusterContext) -> String {
    format!("/run/{}.state", unit(context))
}

/// A control plane that is out of service, at the address that workers know.
#[derive(Clone, Copy)]
struct Out<'a> {
    host: &'a Host,
    ip: &'a str,
}

/// Returns `address:port` of each control plane, one per line. A load balancer of an earlier imgctl
/// version treats the line of a server that is out as a comment, and sends it no traffic either.
fn servers(context: &ClusterContext, out: Option<Out<'_>>) -> String {
    let line = |host: &Host| match out.filter(|out| out.host.address == host.address) {
        Some(out) => format!("#out {} {OUT_SECONDS}\n", join_port(out.ip, API_PORT)),
        None => format!("{}\n", join_port(host.ip(), API_PORT)),
    };
    context.control_planes().map(line).collect()
}

/// Installs the load balancer on a worker and starts it. A repeated run updates list, program and
/// unit.
pub(crate) fn actions(context: &ClusterContext, _host: &Host, papers: Papers) -> Vec<Action> {
    let (unit, binary, servers_file) = (unit(context), binary(context), servers_file(context));
    let command = format!(
        "{binary} agent lb --socket --servers {servers_file} --ca {} --name {NAME} \
         --certificate {} --key {} --state {}",
        papers.authority,
        papers.certificate,
        papers.key,
        state_file(context)
    );
    let text = format!(
        "[Unit]\n\
         Description=API load balancer of the cluster {name}\n\
         Wants=network-online.target\n\
         After=network-online.target\n\
         Before=kubelet.service k3s.service\n\
         Requires={unit}.socket\n\
         After={unit}.socket\n\
         \n\
         [Service]\n\
         StandardInput=socket\n\
         StandardOutput=journal\n\
         StandardError=journal\n\
         ExecStart={command}\n\
         Restart=always\n\
         RestartSec=2\n\
         DynamicUser=no\n\
         LimitNOFILE=65536\n\
         \n\
         [Install]\n\
         WantedBy=multi-user.target\n",
        name = context.name,
    );
    // systemd owns the socket: clients that connect while the load balancer is replaced wait
    // instead of being refused.
    let socket = format!(
        "[Unit]\n\
         Description=Socket of the API load balancer of the cluster {name}\n\
         \n\
         [Socket]\n\
         ListenStream={ADDRESS}:{API_PORT}\n\
         Backlog=4096\n\
         \n\
         [Install]\n\
         WantedBy=sockets.target\n",
        name = context.name,
    );
    vec![
        Action::file("lb-servers", servers_file, 0o644, servers(context, None)),
        // A separate copy: the agent's binary is removed when a newer version is installed.
        Action::command("lb-binary", crate::own_binary(&binary))
            .saying(format!("copy imgctl to {binary}")),
        Action::file("lb-socket", format!("/etc/systemd/system/{unit}.socket"), 0o644, socket),
        Action::file("lb-unit", format!("/etc/systemd/system/{unit}.service"), 0o644, text),
        Action::command("lb-start", start(&unit, &binary, &command, &state_file(context)))
            .saying(format!("start {unit}, or restart it if its program or command line changed")),
    ]
}

/// Returns the line that starts the unit and waits until it reports that it is serving.
fn start(unit: &str, binary: &str, command: &str, state: &str) -> Line {
    Line::script(&[include_str!("scripts/start-load-balancer.sh")]).with([
        ("IMGCTL_UNIT", unit),
        ("IMGCTL_BINARY", binary),
        ("IMGCTL_COMMAND", command),
        ("IMGCTL_STATE", state),
        ("IMGCTL_LISTENS", &format!("{ADDRESS}:{API_PORT}")),
    ])
}

/// Takes the host's API server out of the workers' load balancers before `action`, because the
/// action stops it; [`put_back`] reverts that. A repeated run restarts the time that the server
/// stays out.
pub(crate) fn taken_out_before(context: &ClusterContext, action: Action) -> Action {
    taken_out(context, action, None)
}

/// Like [`taken_out_before`], for a host that has a new address and that workers know by its `old` one.
pub(crate) fn taken_out_at(context: &ClusterContext, action: Action, old: &str) -> Action {
    taken_out(context, action, Some(old.to_owned()))
}

fn taken_out(context: &ClusterContext, mut action: Action, known: Option<String>) -> Action {
    if context.control_planes().count() < 2 || context.workers().next().is_none() {
        return action;
    }
    let does = std::sync::Arc::clone(&action.does);
    action.says.insert(
        0,
        "remove this API server from the workers' load balancers until its gate passes".to_owned(),
    );
    action.does = std::sync::Arc::new(move |site| {
        let ip = known.as_deref().unwrap_or_else(|| site.host.ip());
        tell_workers(site, &tell_out(site.context, Out { host: site.host, ip }), "-out");
        does(site)
    });
    action
}

/// Puts the host's API server back into the workers' load balancers.
pub(crate) fn put_back(context: &ClusterContext) -> Vec<Action> {
    if context.control_planes().count() < 2 || context.workers().next().is_none() {
        return Vec::new();
    }
    let says = "return this API server to the workers' load balancers";
    let action = Action::new("balancers-back", says, |site| {
        tell_workers(site, &tell_back(site.context, site.host), "-back");
        Ok(())
    });
    vec![action]
}

/// Sends the list to all workers. A worker that cannot be notified is not an error: its load
/// balancer checks `/readyz` itself.
fn tell_workers(site: &Site<'_>, line: &Line, suffix: &str) {
    let workers: Vec<&Host> = site.context.workers().collect();
    for some in workers.chunks(AT_ONCE) {
        std::thread::scope(|scope| {
            for worker in some {
                scope.spawn(move || {
                    let told = site
                        .pool
                        .agent(worker)
                        .and_then(|agent| site.run_on(&*agent, line, suffix));
                    if let Err(error) = told {
                        site.say(&format!(
                            "{}: its load balancer was not updated and relies on /readyz alone: \
                             {error}",
                            worker.id()
                        ));
                    }
                });
            }
        });
    }
}

/// Returns the line that puts a server back.
fn tell_back(context: &ClusterContext, host: &Host) -> Line {
    list(include_str!("scripts/put-back-server.sh"), context, host.ip(), None)
}

/// Returns the line that takes a server out and waits until it has no more connections.
fn tell_out(context: &ClusterContext, out: Out<'_>) -> Line {
    list(include_str!("scripts/take-out-server.sh"), context, out.ip, Some(out))
        .with([("IMGCTL_UNIT", &unit(context)), ("IMGCTL_STATE", &state_file(context))])
}

/// Returns the line that changes the list of servers, for the one at `ip`.
fn list(script: &str, context: &ClusterContext, ip: &str, out: Option<Out<'_>>) -> Line {
    Line::script(&[script]).with([
        ("IMGCTL_FILE", &servers_file(context)),
        ("IMGCTL_SERVERS", &servers(context, out)),
        ("IMGCTL_SERVER", &join_port(ip, API_PORT)),
    ])
}

/// Removes the load balancer from a host, if there is one.
pub(crate) fn removal(context: &ClusterContext, _host: &Host) -> Vec<Action> {
    let unit = unit(context);
    vec![Action::command(
        "lb-remove",
        units::removal(&[&format!("{unit}.socket"), &format!("{unit}.service")], &[]),
    )]
}

#[cfg(test)]
mod tests {
    use super::*;
    use imgctl_model::{context::Paths, testing};
    use std::os::unix::fs::PermissionsExt;
    use std::process::Command;

    /// systemctl is a stand-in that knows the load balancer's process.
    #[test]
    fn a_server_is_out_until_it_is_put_back() {
        let directory = tempfile::tempdir().unwrap();
        let mut context = testing::context(&["master", "master", "node"]);
        context.paths = Paths::new(directory.path().to_str().unwrap(), "c");
        let systemctl = directory.path().join("systemctl");
        std::fs::write(&systemctl, "#!/bin/sh\necho 7\n").unwrap();
        std::fs::set_permissions(&systemctl, PermissionsExt::from_mode(0o755)).unwrap();
        let state = directory.path().join("state");
        let told = |line: &Line| {
            let ran = Command::new("bash")
                .args(["-ec", &line.line])
                .envs(line.environment.to_map())
                .env("IMGCTL_STATE", &state)
                .env("PATH", format!("{}:/usr/bin:/bin", directory.path().display()))
                .output()
                .unwrap();
            assert!(ran.status.success(), "{ran:?}");
            String::from_utf8(ran.stdout).unwrap()
        };
        let host = context.hosts[0].clone();
        let server = join_port(host.ip(), API_PORT);
        let (out, back) =
            (tell_out(&context, Out { host: &host, ip: host.ip() }), tell_back(&context, &host));
        // A host without a load balancer has nothing to change.
        assert_eq!(told(&out) + &told(&back), "");
        let list = std::path::PathBuf::from(servers_file(&context));
        let read = || std::fs::read_to_string(&list).unwrap_or_default();
        assert_eq!(read(), "");
        std::fs::create_dir_all(list.parent().unwrap()).unwrap();
        std::fs::write(&list, servers(&context, None)).unwrap();
        let all = read();
        let states = format!("pid 7\n10.9.9.9:6443 up 4\n{server} out 0 told\n");
        std::fs::write(&state, states).unwrap();
        assert_eq!(told(&out), "");
        assert!(read().starts_with(&format!("#out {server} {OUT_SECONDS}\n")), "{}", read());
        assert_eq!(read().lines().count(), all.lines().count());
        told(&back);
        assert_eq!(read(), all);
        // A list that another run has changed stays.
        std::fs::write(&list, "10.9.9.9:6443\n").unwrap();
        told(&back);
        assert_eq!(read(), "10.9.9.9:6443\n");
    }
}
