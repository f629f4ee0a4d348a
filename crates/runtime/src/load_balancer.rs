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
        Action::command("lb-binary", crate::own_binary(&binary)),
        Action::file("lb-socket", format!("/etc/systemd/system/{unit}.socket"), 0o644, socket),
        Action::file("lb-unit", format!("/etc/systemd/system/{unit}.service"), 0o644, text),
        Action::command(
            "lb-start",
            Line::repeatable(start(&unit, &binary, &command, &state_file(context))),
        ),
    ]
}

/// Returns the shell line that starts the unit, or restarts it if its program or command line has
/// changed, and waits until it reports that it is serving: an open port is no proof. An earlier
/// imgctl version's load balancer holds the port itself.
fn start(unit: &str, binary: &str, command: &str, state: &str) -> String {
    format!(
        "systemctl daemon-reload && systemctl enable --quiet {unit}.socket {unit}.service || exit\n\
         if ! systemctl is-active --quiet {unit}.socket; then\n\
         systemctl stop {unit}.service\n\
         systemctl start {unit}.socket || {{\n\
         journalctl --no-pager -q -n 20 -u {unit}.socket >&2\n\
         echo 'the API load balancer cannot listen on {ADDRESS}:{API_PORT}; see ss -ltnp' >&2; exit 1; }}\n\
         fi\n\
         pid=$(systemctl show -p MainPID --value {unit}.service)\n\
         if [ \"${{pid:-0}}\" != 0 ] && cmp -s \"/proc/$pid/exe\" {binary} && \
         [ \"$(tr '\\0' ' ' <\"/proc/$pid/cmdline\")\" = '{command} ' ]; then\n\
         systemctl start {unit}.service || exit\n\
         else\n\
         systemctl restart {unit}.service || exit\n\
         fi\n\
         for i in $(seq 80); do\n\
         pid=$(systemctl show -p MainPID --value {unit}.service)\n\
         if [ \"${{pid:-0}}\" != 0 ] && [ \"$(head -n 1 {state} 2>/dev/null)\" = \"pid $pid\" ]; then exit 0; fi\n\
         sleep 0.25\n\
         done\n\
         journalctl --no-pager -q -n 20 -u {unit}.service >&2\n\
         echo 'the API load balancer does not serve {ADDRESS}:{API_PORT} after 20 s; see journalctl -u {unit}' >&2\n\
         exit 1"
    )
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
fn tell_workers(site: &Site<'_>, line: &str, suffix: &str) {
    let line = &Line::repeatable(line);
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

/// Returns the shell line that writes a list of servers.
fn put(file: &str, servers: &str) -> String {
    let words: String = servers.lines().map(|line| format!(" '{line}'")).collect();
    format!("printf '%s\\n'{words} >{file}.new && mv -f {file}.new {file} || exit\n")
}

/// Returns the shell line that puts a server back.
fn tell_back(context: &ClusterContext, host: &Host) -> String {
    let (file, server) = (servers_file(context), join_port(host.ip(), API_PORT));
    format!(
        "if [ -e {file} ] && grep -q '^#out {server} ' {file}; then\n{}fi",
        put(&file, &servers(context, None))
    )
}

/// Returns the shell line that takes a server out and waits until it has no more connections. A load
/// balancer of an earlier imgctl version does not report its state, so the line does not wait for it.
fn tell_out(context: &ClusterContext, out: Out<'_>) -> String {
    let (file, server) = (servers_file(context), join_port(out.ip, API_PORT));
    format!(
        "[ -e {file} ] || exit 0\n\
         {put}pid=$(systemctl show -p MainPID --value {unit} || true)\n\
         for i in $(seq 100); do\n\
         [ \"$(head -n 1 {state} 2>/dev/null)\" = \"pid $pid\" ] || exit 0\n\
         grep -qE '^{pattern} (out|unready|down) 0 ?' {state} && exit 0\n\
         sleep 0.25\n\
         done\n\
         echo 'connections to {server} are still open'",
        put = put(&file, &servers(context, Some(out))),
        unit = unit(context),
        state = state_file(context),
        pattern = server.replace('.', "\\.").replace('[', "\\[").replace(']', "\\]"),
    )
}

/// Removes the load balancer from a host, if there is one.
pub(crate) fn removal(context: &ClusterContext, _host: &Host) -> Vec<Action> {
    let unit = unit(context);
    vec![Action::command(
        "lb-remove",
        Line::repeatable(units::removal(&[&format!("{unit}.socket"), &format!("{unit}.service")])),
    )]
}
