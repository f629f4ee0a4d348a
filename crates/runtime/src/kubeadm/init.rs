//! The first control plane. `kubeadm init` and `kubeadm join` run exactly once.

use std::{net::IpAddr, time::Duration};

use serde_json::Value;

use crate::action::{Action, Line, Site};
use crate::certificates::host_kubeconfig;
use crate::kubeadm::config::{API_NAME, Config};
use crate::kubeadm::settings::{Settings, etc};
use crate::kubeadm::{place, place::write};
use crate::kubectl::{ADMIN_CONF, quoted};
use imgctl_base::error::{Error, IoContext as _, Result};
use imgctl_host::agent::protocol::HostsBlock;
use imgctl_model::context::{ClusterContext, Host};
use imgctl_template::yaml;

pub(super) const API_MANIFEST: &str = "/etc/kubernetes/manifests/kube-apiserver.yaml";
pub(super) const CONFIG: &str = "kubeadm-init.yaml";
/// Preflight check to ignore: it fails on hosts with an unreadable kernel configuration. sealos
/// ignores it too.
pub(super) const IGNORED: &str = "SystemVerification";
/// Preflight checks to ignore after a failed attempt: its leftovers all belong to this cluster and
/// are reused.
const LEFT_BEHIND: &str = "DirAvailable--var-lib-etcd,\
FileAvailable--etc-kubernetes-manifests-kube-apiserver.yaml,\
FileAvailable--etc-kubernetes-manifests-kube-controller-manager.yaml,\
FileAvailable--etc-kubernetes-manifests-kube-scheduler.yaml,\
FileAvailable--etc-kubernetes-manifests-etcd.yaml,\
Port-6443,Port-10250,Port-10257,Port-10259,Port-2379,Port-2380";

const LONG: Duration = Duration::from_secs(30 * 60);

/// Returns the actions of init. `planned` is the configuration as far as it is known without access
/// to the host.
pub(super) fn actions(
    context: &ClusterContext,
    host: &Host,
    settings: &Settings,
    planned: &Config,
) -> Result<Vec<Action>> {
    actions_with(context, host, settings, planned, None)
}

/// The data of a backup that a cluster begins with.
pub(super) struct Restored {
    /// Puts it in place before kubeadm runs.
    pub(super) data: Action,
    /// Directory on the host with the files of the backup.
    pub(super) folder: String,
}

/// Like [`actions`], for a cluster that begins with the data of a backup.
pub(super) fn actions_with(
    context: &ClusterContext,
    host: &Host,
    settings: &Settings,
    planned: &Config,
    restored: Option<Restored>,
) -> Result<Vec<Action>> {
    let mut actions = before(settings, planned, true);
    let file = etc(context, CONFIG);
    let folder = restored.as_ref().map(|restored| restored.folder.clone());
    let text = if restored.is_some() {
        planned.clone().keeping_addons()?.init_text()?
    } else {
        planned.init_text()?
    };
    let config = settings.clone();
    actions.push(Action::depending_on(
        "kubeadm-config",
        format!("write {file} (mode 0600):\n{}", shown(&text)),
        &text,
        move |site| {
            let config = match &folder {
                Some(folder) => {
                    let kubelet = kubelet_of_backup(site, folder)?;
                    config.config_with(site, kubelet.as_ref())?.1.keeping_addons()?
                }
                None => config.config(site)?.1,
            };
            config.check_cgroups(site.agent.facts()?.cgroup_v2, site.agent.host(), None)?;
            let file = etc(site.context, CONFIG);
            write(site.agent, &file, 0o600, &config.init_text()?)
        },
    ));
    actions.push(api_name(host));
    let mut ignored = IGNORED.to_owned();
    if let Some(Restored { data, .. }) = restored {
        actions.push(data);
        ignored.push_str(&format!(",DirAvailable-{}", planned.etcd_data().replace('/', "-")));
    }
    let line = command(&file, &ignored);
    let resumed = command(&file, &format!("{ignored},{LEFT_BEHIND}"));
    actions.push(
        Action::new("kubeadm-init", line.clone(), move |site| {
            Once {
                proof: API_MANIFEST,
                line: Line::new(line.clone()),
                // kubeadm reuses existing files and writes identical ones again.
                again: &|| Ok(Some(Line::new(resumed.clone()))),
            }
            .run(site)
        })
        .within(LONG),
    );
    actions.push(kubeconfig());
    actions.push(Action::new(
        "admin-conf",
        "fetch /etc/kubernetes/admin.conf to the controller as etc/admin.conf",
        |site| match place::read(site.agent, ADMIN_CONF)? {
            Some(text) => host_kubeconfig::keep(site.state(), &text, site.agent, ADMIN_CONF),
            None => Ok(()),
        },
    ));
    Ok(actions)
}

/// Returns the configuration of the cluster's kubelets as the backup has it: `kubeadm init` replaces the
/// ConfigMap in the data, with what was changed there.
fn kubelet_of_backup(site: &Site<'_>, folder: &str) -> Result<Option<Value>> {
    let line = format!(
        "cd {}; if [ -e files.tar ]; then tar --no-same-owner -xf files.tar ./cluster 2>/dev/null || true; fi",
        quoted(folder)
    );
    site.run_on(site.agent, &Line::query(line), "-unpack")?;
    let path = format!("{folder}/cluster/configmap-kubelet-config.json");
    let Some(text) = place::read(site.agent, &path)? else { return Ok(None) };
    let map: Value = serde_json::from_str(&text)
        .doing(|| "the ConfigMap kubelet-config of the backup is damaged".to_owned())?;
    map["data"]["kubelet"].as_str().map(yaml::parse).transpose()
}

fn command(file: &str, ignored: &str) -> String {
    format!(
        "kubeadm init --config {file} --skip-certificate-key-print --skip-token-print \
         --ignore-preflight-errors={ignored}"
    )
}

/// Returns the actions that every control plane needs before kubeadm runs.
pub(super) fn before(settings: &Settings, planned: &Config, first: bool) -> Vec<Action> {
    let (policy, certificates) = (settings.clone(), settings.clone());
    let member = planned.member(first, "<hostname>");
    let names: Vec<String> = member
        .map(|member| {
            let certificates = member.certificates();
            let identities = member.identities(first);
            let certificates = certificates.iter().map(|(name, ..)| format!("pki/{name}.crt"));
            let identities = identities.iter().map(|identity| identity.file.to_owned());
            certificates.chain(identities).collect()
        })
        .unwrap_or_default();
    vec![
        Action::new(
            "audit-policy",
            "write the files of the image's statics/ to /etc/kubernetes, with audit-policy.yml",
            move |site| {
                place::statics(site)?;
                let (_, config) = policy.config(site)?;
                place::audit_policy(site, &config)
            },
        ),
        Action::new(
            "certificates",
            format!(
                "write below /etc/kubernetes: the authorities pki/ca, pki/etcd/ca, pki/front-proxy-ca, pki/sa; {}",
                names.join(", ")
            ),
            move |site| {
                let (_, config) = certificates.config(site)?;
                place::control_plane(site, &certificates, &config, first)
            },
        ),
    ]
}

/// Resolves the API name to this host itself.
pub(super) fn api_name(host: &Host) -> Action {
    Action::new("api-name", format!("hosts file: {} {API_NAME}", host.ip()), |site| {
        set_api_name(site, &own_address(site)?)
    })
}

/// Returns the host's IP address, also for a host that is known by a name: the hosts file needs an
/// address.
pub(super) fn own_address(site: &Site<'_>) -> Result<String> {
    let known = site.host.ip();
    if known.parse::<IpAddr>().is_ok() {
        return Ok(known.to_owned());
    }
    let addresses = site.agent.facts()?.addresses;
    let global = addresses
        .into_iter()
        .find(|address| address.parse::<IpAddr>().is_ok_and(|address| !address.is_loopback()));
    global.ok_or_else(|| Error::failed(format!("{}: it has no local address", site.agent.host())))
}

pub(super) fn set_api_name(site: &Site<'_>, address: &str) -> Result<()> {
    let block = HostsBlock {
        cluster: hosts_block(site.context),
        entries: vec![(address.to_owned(), API_NAME.to_owned())],
    };
    site.agent.set_hosts(&block).map(|_| ())
}

/// Returns the name of the API's block in the hosts file. It is separate from the cluster's block,
/// because it changes while a control plane joins.
pub(super) fn hosts_block(context: &ClusterContext) -> String {
    format!("{}.apiserver", context.name)
}

/// Installs a kubeconfig for users who log in to a control plane. Moves an unrelated existing
/// configuration aside.
pub(super) fn kubeconfig() -> Action {
    let line = Line::script(&[include_str!("scripts/kubeconfig.sh")])
        .with([("IMGCTL_KUBECONFIG", ADMIN_CONF), ("IMGCTL_NAME", API_NAME)]);
    Action::command("kubeconfig", line)
        .saying(format!("install -m 0600 {ADMIN_CONF} $HOME/.kube/config"))
}

/// Returns the documents with secrets masked.
fn shown(text: &str) -> String {
    let secret = |line: &str| {
        let key = line.trim_start().trim_start_matches("- ");
        ["certificateKey:", "token:"].iter().any(|name| key.starts_with(name))
    };
    text.lines()
        .map(|line| match line.split_once(':') {
            Some((key, _)) if secret(line) => format!("    {key}: ***\n"),
            _ => format!("    {line}\n"),
        })
        .collect()
}

/// Returns the hostname, for callers that only have the site.
pub(super) fn hostname(site: &Site<'_>) -> Result<String> {
    Ok(site.agent.facts()?.hostname)
}

const BEGUN: &str = "kubeadm.begun";
const DONE: &str = "kubeadm.done";
/// Exit code that kubeadm does not use: no earlier run is known.
const UNKNOWN: i32 = 97;

/// One `kubeadm init` or `kubeadm join` command: a started one is followed, finished or undone.
///
/// Two markers beside the generated configuration record a host's progress: `kubeadm.begun` is
/// written before kubeadm starts, `kubeadm.done` after it succeeds. A host with kubeadm's files but
/// no marker belongs to another cluster and is not touched.
pub(super) struct Once<'a> {
    /// File that exists after the command has done its work, or part of it.
    pub(super) proof: &'a str,
    pub(super) line: Line,
    /// Cleans up after an attempt that failed or whose outcome is unknown. Returns the command to
    /// run next, or `None` if all work turns out to be done.
    pub(super) again: &'a dyn Fn() -> Result<Option<Line>>,
}

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
        Error::busy(format!("{host}: {} exists, but this cluster did not create it", self.proof),
        )
        .hint(format!(
            "the host belongs to another cluster; if that is no longer needed, run `kubeadm reset \
             -f` on {host}"
        ))
    }
}
