//! Tests whether the new kubelet and control plane accept their flags and configuration, by starting
//! them before anything is stopped.
//!
//! The programs of the control plane run from the pulled images, without a network and with read-only
//! files: they cannot affect anything, and their errors about missing access are ignored. They log
//! to their output instead of to files.

use std::borrow::Cow;

use serde_json::json;

use crate::action::{Line, Site};
use crate::kubeadm::upgrade::etcd_manifest::{MANIFESTS, Manifest};
use crate::kubeadm::upgrade::{apply::COMPONENTS, target::Target};
use crate::kubeadm::{place, settings::etc};
use imgctl_base::error::{Error, Result};
use imgctl_template::yaml;

pub(super) const ETCD: &str = "etcd";

/// Flags that name a file to write to, and what they get in the trial, whose files are read-only: the
/// program would end at that file before it says whether it takes its other flags.
const WRITTEN: [(&str, &str); 2] = [("audit-log-path", "-"), ("log-outputs", "stderr")];

/// Fails if a program rejects its flags. If a program cannot be tested, reports that and continues.
pub(super) fn check(
    site: &Site<'_>,
    target: &Target,
    cluster: &str,
    socket: &str,
    patches: &str,
) -> Result<()> {
    let Some(config) = configuration(site, cluster, socket, "imgctl-try")? else {
        site.say("the API server's manifest has no address: the new one is not tested");
        return Ok(());
    };
    let mut problems = Vec::new();
    for component in COMPONENTS {
        let rendered = match rendered(site, &target.tree, &config, component, patches) {
            Ok(text) => text,
            Err(error) => {
                site.say(&format!("the new {component} is not tested: {error}"));
                continue;
            }
        };
        if let Err(error) = try_pod(site, component, &rendered) {
            problems.push(error.to_string());
        }
    }
    if problems.is_empty() {
        return Ok(());
    }
    let message = format!(
        "{}: the new control plane does not start with the flags of kubeadm-config and patches; nothing was stopped:",
        site.agent.host(),
    );
    Err(Error::check_failed(message).lines(problems).hint(
        "change extraArgs in the ConfigMap kube-system/kubeadm-config, or the image's patches/, \
         then run `imgctl upgrade resume`",
    ))
}

/// Returns the manifest that kubeadm would write for a component. `config` is what
/// [`configuration`] wrote.
pub(super) fn rendered(
    site: &Site<'_>,
    tree: &str,
    config: &str,
    component: &str,
    patches: &str,
) -> Result<String> {
    let line = Line::script(&[include_str!("scripts/render-manifest.sh")]).with([
        ("IMGCTL_TREE", tree),
        ("IMGCTL_CONFIG", config),
        ("IMGCTL_COMPONENT", component),
        ("IMGCTL_PATCHES", patches),
    ]);
    let line = Line { quiet: true, ..line };
    site.run_on(site.agent, &line, &format!("-render-{component}"))
}

/// Starts the container of a manifest, without a network and read-only; fails if the program rejects
/// its flags.
pub(super) fn try_pod(site: &Site<'_>, component: &str, manifest: &str) -> Result<()> {
    let manifest = Manifest::parse(manifest, component)?;
    let line = trial(&manifest, component)?;
    site.run_on(site.agent, &line, &format!("-try-{component}")).map(|_| ())
}

fn trial(manifest: &Manifest, component: &str) -> Result<Line> {
    let line = Line::script(&[include_str!("scripts/try-server.sh")])
        .with([("IMGCTL_COMPONENT", component), ("IMGCTL_IMAGE", manifest.image()?)]);
    Ok(Line { input: Some(container(manifest, component)?), ..line })
}

/// Writes the configuration for kubeadm: the cluster's configuration with the new version, and this
/// server's address. `node` is the name that etcd's member gets.
pub(super) fn configuration(
    site: &Site<'_>,
    cluster: &str,
    socket: &str,
    node: &str,
) -> Result<Option<String>> {
    let path = format!("{MANIFESTS}/kube-apiserver.yaml");
    let Some(text) = place::read(site.agent, &path)? else {
        return Ok(None);
    };
    let manifest = Manifest::parse(&text, &path)?;
    let Some(address) = manifest.flag("advertise-address") else {
        return Ok(None);
    };
    let port: u16 = manifest.flag("secure-port").and_then(|port| port.parse().ok()).unwrap_or(6443);
    let version = yaml::parse(cluster)?["apiVersion"].clone();
    let text = yaml::write(&json!({
        "apiVersion": version,
        "kind": "InitConfiguration",
        "localAPIEndpoint": { "advertiseAddress": address, "bindPort": port },
        "nodeRegistration": { "criSocket": socket, "name": node },
    }))?;
    let file = etc(site.context, "kubeadm-upgrade-try.yaml");
    let text = format!("{}\n---\n{}\n", text.trim_end(), cluster.trim_end());
    place::write(site.agent, &file, 0o600, &text)?;
    Ok(Some(file))
}

/// Returns the mounts and the command of a manifest's container, as the trial reads them.
fn container(manifest: &Manifest, component: &str) -> Result<String> {
    let data =
        ["data-dir", "wal-dir"].map(|flag| manifest.flag(flag).filter(|_| component == ETCD));
    let mut words = String::new();
    for (there, inside) in manifest.mounts().filter(|(_, inside)| !data.contains(&Some(*inside))) {
        words.push_str(&format!("{there}\0{inside}\0"));
    }
    words.push('\0');
    for word in manifest.command() {
        words.push_str(&format!("{}\0", without_files(manifest, component, word)?));
    }
    Ok(words)
}

/// Returns a word of the command as the trial gets it: see [`WRITTEN`]. Fails if the program could not
/// write its file in the cluster either.
fn without_files<'a>(manifest: &Manifest, component: &str, word: &'a str) -> Result<Cow<'a, str>> {
    let Some((flag, value)) = word.strip_prefix("--").and_then(|flag| flag.split_once('=')) else {
        return Ok(word.into());
    };
    let Some((_, instead)) = WRITTEN.iter().find(|(name, _)| *name == flag) else {
        return Ok(word.into());
    };
    let mut paths = value.split(',').filter(|path| path.starts_with('/'));
    match paths.find(|path| manifest.is_read_only(path)) {
        Some(_) => Err(Error::check_failed(format!(
            "{component} cannot write the file of --{flag}={value}: its volume mount is readOnly"
        ))),
        None => Ok(format!("--{flag}={instead}").into()),
    }
}

/// What to start a kubelet with instead of what the running one has.
#[derive(Default)]
pub(super) struct KubeletTrial {
    /// Path of its configuration.
    pub(super) config: String,
    /// Flags that the running kubelet has and the new one does not get: `--name`.
    pub(super) without: Vec<String>,
    /// Flags to add: `--name=value`.
    pub(super) more: Vec<String>,
    /// Fields of the configuration that must be known.
    pub(super) fields: Vec<String>,
}

/// Fails if the new kubelet rejects the present flags, or the configuration that kubeadm will write.
/// `patches`: the directory of patches; `None` if kubeadm writes nothing, because the host gets the files
/// of its backup.
pub(super) fn check_kubelet(site: &Site<'_>, target: &Target, patches: Option<&str>) -> Result<()> {
    const PRESENT: &str = "the new kubelet does not start with what this host\'s kubelet is set to; change \
        the unit of kubelet, /etc/default/kubelet or the ConfigMap kube-system/kubelet-config with \
        /var/lib/kubelet/config.yaml, and restart it";
    const RENDERED: &str = "the new kubelet does not start with its flags and the configuration that kubeadm \
        will write from the ConfigMap kube-system/kubelet-config and patches; to change that: `imgctl upgrade \
        abort`, set it in a KubeletConfiguration of the Clusterfile, `imgctl apply`, and upgrade again";
    let config = match patches {
        Some(patches) => kubelet_configuration(site, target, patches)?,
        None => None,
    };
    let (what, advice) = match &config {
        Some(_) => ("the present flags and the configuration that kubeadm will write", RENDERED),
        None => ("the present flags and configuration", PRESENT),
    };
    let kubelet = format!("{}/bin/kubelet", target.tree);
    let trial = KubeletTrial { config: config.unwrap_or_default(), ..KubeletTrial::default() };
    run_kubelet(site, &kubelet, &trial, what, advice)
}

/// Returns the path of a file with what the new kubeadm will write as the kubelet's configuration; `None`
/// if it does not say.
fn kubelet_configuration(
    site: &Site<'_>,
    target: &Target,
    patches: &str,
) -> Result<Option<String>> {
    let file = etc(site.context, "kubeadm-upgrade-kubelet.yaml");
    let line = Line::script(&[include_str!("scripts/render-kubelet.sh")]).with([
        ("IMGCTL_TREE", &target.tree),
        ("IMGCTL_PATCHES", patches),
        ("IMGCTL_FILE", &file),
    ]);
    let told = site.run_on(site.agent, &line, "-kubelet-config")?;
    if told.trim() == "rendered" {
        return Ok(Some(file));
    }
    if !told.trim().is_empty() {
        site.say(told.trim());
    }
    Ok(None)
}

/// Fails if the installed kubelet rejects other flags or another configuration.
pub(super) fn try_kubelet(site: &Site<'_>, trial: &KubeletTrial) -> Result<()> {
    run_kubelet(site, "", trial, "the new flags and configuration", "")
}

/// Starts a kubelet, by default the installed one. Messages tell `what` is tried, and give `advice`.
fn run_kubelet(
    site: &Site<'_>,
    kubelet: &str,
    trial: &KubeletTrial,
    what: &str,
    advice: &str,
) -> Result<()> {
    let line = Line::script(&[include_str!("scripts/try-kubelet.sh")]).with([
        ("IMGCTL_KUBELET", kubelet),
        ("IMGCTL_CONFIG", &trial.config),
        ("IMGCTL_WITHOUT", &trial.without.join(" ")),
        ("IMGCTL_MORE", &trial.more.join(" ")),
        ("IMGCTL_FIELDS", &trial.fields.join(" ")),
        ("IMGCTL_WHAT", what),
        ("IMGCTL_ADVICE", advice),
    ]);
    site.run_on(site.agent, &line, "-kubelet").map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;
    use std::os::unix::fs::PermissionsExt as _;
    use std::process::{Command, Stdio};

    /// An API server whose audit log is in a mount, beside a policy that is in one of its own.
    fn api_server(audit: &str, is_read_only: bool) -> Manifest {
        let manifest = json!({"spec": {
            "containers": [{
                "image": "registry.k8s.io/kube-apiserver:v1.34.1",
                "command": [
                    "kube-apiserver", format!("--audit-log-path={audit}"), "--audit-log-maxage=7",
                    "--audit-policy-file=/etc/kubernetes/audit/policy.yml", "--no-such-flag=1",
                ],
                "volumeMounts": [
                    {"name": "policy", "mountPath": "/etc/kubernetes/audit", "readOnly": true},
                    {"name": "log", "mountPath": "/etc/kubernetes/audit/log", "readOnly": is_read_only},
                ],
            }],
            "volumes": [
                {"name": "policy", "hostPath": {"path": "/etc/kubernetes/audit"}},
                {"name": "log", "hostPath": {"path": "/var/log/kubernetes"}},
            ],
        }});
        Manifest::parse(&manifest.to_string(), "kube-apiserver").unwrap()
    }

    #[test]
    fn a_trial_writes_no_audit_log_and_keeps_every_other_flag() {
        let api_server = api_server("/etc/kubernetes/audit/log/audit.log", false);
        let input = container(&api_server, COMPONENTS[0]).unwrap();
        let (mounts, command) = input.split_once("\0\0").unwrap();
        let words: Vec<&str> = command.trim_end_matches('\0').split('\0').collect();
        assert_eq!(
            words,
            [
                "kube-apiserver",
                "--audit-log-path=-",
                "--audit-log-maxage=7",
                "--audit-policy-file=/etc/kubernetes/audit/policy.yml",
                "--no-such-flag=1",
            ]
        );
        assert_eq!(mounts.split('\0').count(), 4, "{mounts}");
    }

    /// ctr is a stand-in that writes down what it is told.
    #[test]
    fn every_word_of_a_command_and_every_mount_that_is_there_reach_ctr() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().to_str().unwrap();
        let ctr = "#!/bin/bash\ncase \"$*\" in *' run '*) printf '[%s]' \"$@\" >\"$TEST/told\"\n\
            echo 'Error: unknown flag: --no-such-flag'; exit 1 ;; esac\n";
        std::fs::write(directory.path().join("ctr"), ctr).unwrap();
        let mode = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(directory.path().join("ctr"), mode).unwrap();
        let manifest = json!({"spec": {
            "containers": [{
                "image": "r/i:1",
                "command": ["kube-scheduler", "--a=it's b", "--c=x\ny", ""],
                "volumeMounts": [
                    {"name": "is", "mountPath": "/in"}, {"name": "none", "mountPath": "/none"},
                ],
            }],
            "volumes": [
                {"name": "is", "hostPath": {"path": root}},
                {"name": "none", "hostPath": {"path": format!("{root}/none")}},
            ],
        }});
        let manifest = Manifest::parse(&manifest.to_string(), "kube-scheduler").unwrap();
        let line = trial(&manifest, "kube-scheduler").unwrap();
        let mut bash = Command::new("bash");
        bash.args(["-ec", &line.line]).envs(line.environment.to_map()).env("TEST", root);
        bash.env("PATH", format!("{root}:/usr/bin:/bin")).stdin(Stdio::piped());
        let mut bash = bash.stderr(Stdio::piped()).spawn().unwrap();
        let input = line.input.unwrap();
        bash.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        let ran = bash.wait_with_output().unwrap();
        let errors = String::from_utf8(ran.stderr).unwrap();
        assert_eq!(
            (ran.status.code(), errors.as_str()),
            (Some(1), "unknown flag: --no-such-flag\n")
        );
        let told = std::fs::read_to_string(directory.path().join("told")).unwrap();
        let mount =
            format!("[--rm][--mount][type=bind,src={root},dst=/in,options=rbind:ro][r/i:1]");
        assert!(told.contains(&mount), "{told}");
        assert!(told.ends_with("[kube-scheduler][--a=it's b][--c=x\ny][]"), "{told}");
    }

    #[test]
    fn a_log_that_the_cluster_could_not_write_is_refused() {
        for audit in ["/etc/kubernetes/audit/audit.log", "/etc/kubernetes/audit/log/audit.log"] {
            let error = container(&api_server(audit, true), COMPONENTS[0]).unwrap_err();
            let told = error.to_string();
            assert!(told.contains(audit) && told.contains("kube-apiserver"), "{told}");
        }
        // A directory whose name only begins like that of a mount is not in it.
        container(&api_server("/etc/kubernetes/audit-log/audit.log", true), COMPONENTS[0]).unwrap();
    }

    #[test]
    fn a_trial_of_etcd_gets_no_data_and_logs_to_its_output() {
        let manifest = json!({"spec": {
            "containers": [{
                "image": "registry.k8s.io/etcd:3.6.5-0",
                "command": ["etcd", "--data-dir=/data", "--wal-dir=/wal", "--log-outputs=stderr,/var/log/etcd.log"],
                "volumeMounts": [
                    {"name": "data", "mountPath": "/data"}, {"name": "wal", "mountPath": "/wal"},
                    {"name": "pki", "mountPath": "/pki"},
                ],
            }],
            "volumes": [
                {"name": "data", "hostPath": {"path": "/var/lib/etcd"}},
                {"name": "wal", "hostPath": {"path": "/fast/wal"}},
                {"name": "pki", "hostPath": {"path": "/etc/kubernetes/pki/etcd"}},
            ],
        }});
        let manifest = Manifest::parse(&manifest.to_string(), ETCD).unwrap();
        let line = container(&manifest, ETCD).unwrap();
        assert!(
            line.contains("--log-outputs=stderr") && !line.contains("/var/log/etcd.log"),
            "{line}"
        );
        assert!(line.contains("/etc/kubernetes/pki/etcd\0/pki\0"), "{line}");
        assert!(!line.contains("/var/lib/etcd") && !line.contains("/fast/wal"), "{line}");
    }
}
