//! The node-local API load balancer: `imgctl agent lb` as a systemd unit on workers.
//!
//! Workers reach the API at `127.0.0.1:<port>`; the balancer there sends each connection to a
//! healthy control plane. The list of control planes is a file which the balancer reads again when
//! it changes, so that a change of members breaks no connection.

use crate::agent::protocol::FileToWrite;
use crate::cluster::host::Host;
use crate::cluster::scene::Scene;
use crate::runtime::Action;
use crate::runtime::action::Line;

/// The API's port on control planes and of the balancer on workers.
pub(crate) const API_PORT: u16 = 6443;
/// Where workers find the API.
pub(crate) const ADDRESS: &str = "127.0.0.1";

/// The unit's name for one cluster.
pub(crate) fn unit(scene: &Scene) -> String {
    format!("imgctl-api-{}", scene.name)
}

fn binary(scene: &Scene) -> String {
    format!("{}/bin/imgctl", scene.paths.root())
}

fn servers_file(scene: &Scene) -> String {
    format!("{}/api-servers", scene.paths.etc())
}

/// `address:port` of each control plane, one per line.
fn servers(scene: &Scene) -> String {
    scene
        .control_planes()
        .map(|host| {
            if host.ip().contains(':') {
                format!("[{}]:{API_PORT}\n", host.ip())
            } else {
                format!("{}:{API_PORT}\n", host.ip())
            }
        })
        .collect()
}

/// Puts the balancer on a worker and starts it; repeated, it brings the list up to date.
pub(crate) fn actions(scene: &Scene, _host: &Host) -> Vec<Action> {
    let (unit, binary, servers_file) = (unit(scene), binary(scene), servers_file(scene));
    let text = format!(
        "[Unit]\n\
         Description=API load balancer of the cluster {name}\n\
         Wants=network-online.target\n\
         After=network-online.target\n\
         Before=kubelet.service k3s.service\n\
         \n\
         [Service]\n\
         ExecStart={binary} agent lb --listen {ADDRESS}:{API_PORT} --servers {servers_file}\n\
         Restart=always\n\
         RestartSec=2\n\
         DynamicUser=no\n\
         LimitNOFILE=65536\n\
         \n\
         [Install]\n\
         WantedBy=multi-user.target\n",
        name = scene.name,
    );
    vec![
        Action::file(
            "lb-servers",
            FileToWrite {
                path: servers_file,
                mode: 0o644,
                content: servers(scene).into_bytes(),
            },
        ),
        // A copy of its own: the agent's binary goes when a newer one comes.
        Action::command("lb-binary", crate::runtime::own_binary(&binary)),
        Action::file(
            "lb-unit",
            FileToWrite {
                path: format!("/etc/systemd/system/{unit}.service"),
                mode: 0o644,
                content: text.into_bytes(),
            },
        ),
        Action::command(
            "lb-start",
            Line {
                line: start(&unit),
                again: true,
                ..Line::default()
            },
        ),
    ]
}

/// Starts the unit and waits until it listens itself: a port that somebody else holds is no proof.
fn start(unit: &str) -> String {
    format!(
        "systemctl daemon-reload && systemctl enable --quiet --now {unit} || exit\n\
         for i in $(seq 40); do\n\
         if systemctl is-active --quiet {unit} && (exec 3<>/dev/tcp/{ADDRESS}/{API_PORT}) 2>/dev/null; then\n\
         sleep 0.25; systemctl is-active --quiet {unit} && exit 0\n\
         fi\n\
         sleep 0.25\n\
         done\n\
         journalctl --no-pager -q -n 20 -u {unit} >&2\n\
         echo 'the API load balancer does not listen on {ADDRESS}:{API_PORT} after 10 s; see journalctl -u {unit}' >&2\n\
         exit 1"
    )
}

/// Takes the balancer off a host, where there is one.
pub(crate) fn removal(scene: &Scene, _host: &Host) -> Vec<Action> {
    let unit = unit(scene);
    vec![Action::command(
        "lb-remove",
        Line {
            line: format!(
                "if [ -e /etc/systemd/system/{unit}.service ]; then \
                 systemctl disable --quiet --now {unit}; \
                 rm -f /etc/systemd/system/{unit}.service; systemctl daemon-reload; fi"
            ),
            again: true,
            ..Line::default()
        },
    )]
}
