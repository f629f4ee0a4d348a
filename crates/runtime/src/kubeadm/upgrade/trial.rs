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
use crate::kubectl::quoted;
use imgctl_base::error::{Error, Result};
use imgctl_template::yaml;

pub(super) const ETCD: &str = "etcd";

/// Flags that name a file to write to, and what they get in the trial, whose files are read-only: the
/// program would end at that file before it says whether it takes its other flags.
const WRITTEN: [(&str, &str); 2] = [("audit-log-path", "-"), ("log-outputs", "stderr")];

/// Makes kubeadm render the manifests that it would install into a separate directory.
const RENDER: &str = r#"
scratch=$(mktemp -d); trap 'rm -rf "$scratch"' EXIT
if [ -z "$patches" ] && [ -d "$tree/patches" ]; then patches=$tree/patches; fi
# kubeadm refuses `--patches` beside `--config`.
umask 077
awk -v patches="$patches" '{ print } patches != "" && /^kind: InitConfiguration$/ { print "patches:"; print "  directory: \x27" patches "\x27" }' "$config" >"$scratch/config.yaml"
kubeadm=$tree/bin/kubeadm; [ -x "$kubeadm" ] || kubeadm=$(type -P kubeadm)
if ! KUBEADM_INIT_DRYRUN_DIR=$scratch "$kubeadm" init phase $phase --dry-run --config "$scratch/config.yaml" >"$scratch/said" 2>&1; then
  tail -n 3 "$scratch/said" >&2; exit 1
fi
# kubeadm before 1.32 makes a directory of its own below it: tmp/kubeadm-init-dryrun1234.
file=$(find "$scratch" -type f -name "$component.yaml" | head -n 1)
[ -n "$file" ] || { echo "kubeadm rendered no manifest of $component" >&2; exit 1; }
cat "$file"
"#;

/// Starts the program and waits until it reports a problem or gets as far as connecting to its
/// server. `run` is the ctr command without the name.
const TRY_SERVER: &str = r#"
command -v ctr >/dev/null 2>&1 || { echo "there is no ctr: the new $component is not tried"; exit 0; }
name=imgctl-try-$component-$$ scratch=$(mktemp -d)
ended() {
  ctr -n k8s.io tasks kill -s SIGKILL "$name" >/dev/null 2>&1 || true
  for _ in $(seq 20); do
    ctr -n k8s.io containers rm "$name" >/dev/null 2>&1 || true
    ctr -n k8s.io containers ls -q 2>/dev/null | grep -qxF "$name" || break
    sleep 0.25
  done
  kill -KILL "$pid" 2>/dev/null || true
  rm -rf "$scratch"
}
trap ended EXIT
try </dev/null >"$scratch/said" 2>&1 & pid=$!
goes_on=0
for _ in $(seq 80); do
  kill -0 "$pid" 2>/dev/null || break
  # It takes its flags; files that they name are read while it looks for etcd or the API.
  if grep -qE 'createTransport failed|connection refused|network is unreachable|"Starting( Kubernetes Scheduler)?" version=' "$scratch/said"; then
    goes_on=$((goes_on + 1)); [ "$component" = kube-apiserver ] && [ "$goes_on" -lt 12 ] || break
  fi
  sleep 0.25
done
if kill -0 "$pid" 2>/dev/null; then echo "the new $component takes its flags"; exit 0; fi
problem=$(grep -E '"command failed" err=|^Error: |[uU]nknown (shorthand )?flag|invalid argument|unrecognized feature gate|^panic: |^F[0-9]{4} |flag provided but not defined|invalid value|error verifying flags' "$scratch/said" |
  grep -vE 'stat /var/lib/kube-proxy/|cannot assign requested address|network is unreachable|connection refused|context deadline exceeded|read-only file system|no such host|i/o timeout|dial (tcp|udp|unix)|createTransport' |
  sed -E 's/^.*"command failed" err="(.*)"$/\1/; s/^Error: //' | cut -c 1-500 | awk '!seen[$0]++' | tail -n 5 || true)
if [ -n "$problem" ]; then
  echo "$problem" >&2
  exit 1
fi
echo "the new $component did not say whether it takes its flags: $(tail -n 1 "$scratch/said" | cut -c 1-300)"
"#;

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
    let phase = if component == ETCD { "'etcd local'" } else { "'control-plane all'" };
    let line = Line::query(format!(
        "tree={tree} config={config} component={component} phase={phase} patches='{patches}'{RENDER}"
    ));
    site.run_on(site.agent, &line, &format!("-render-{component}"))
}

/// Starts the container of a manifest, without a network and read-only; fails if the program rejects
/// its flags.
pub(super) fn try_pod(site: &Site<'_>, component: &str, manifest: &str) -> Result<()> {
    let manifest = Manifest::parse(manifest, component)?;
    let line = Line::repeatable(format!(
        "component={component}\ntry() {{ {}; }}{TRY_SERVER}",
        run(&manifest, component)?
    ));
    site.run_on(site.agent, &line, &format!("-try-{component}")).map(|_| ())
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

/// Returns the command that runs a manifest's container as the kubelet would, but without a network
/// and read-only.
fn run(manifest: &Manifest, component: &str) -> Result<String> {
    let mut line = "mounts=()".to_owned();
    let data =
        ["data-dir", "wal-dir"].map(|flag| manifest.flag(flag).filter(|_| component == ETCD));
    for (there, inside) in manifest.mounts().filter(|(_, inside)| !data.contains(&Some(*inside))) {
        line.push_str(&format!(
            "; if [ -e {there} ]; then mounts+=(--mount type=bind,src={there},dst={inside},options=rbind:ro); fi",
            there = quoted(there),
            inside = quoted(inside)
        ));
    }
    let words: Result<Vec<String>> = manifest
        .command()
        .map(|word| Ok(quoted(&without_files(manifest, component, word)?)))
        .collect();
    line.push_str(&format!(
        "; exec ctr -n k8s.io run --rm \"${{mounts[@]}}\" {} \"$name\" {}",
        quoted(manifest.image()?),
        words?.join(" ")
    ));
    Ok(line)
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

/// Runs the new kubelet with a missing kubeconfig: it reads flags and configuration, fails to load
/// the kubeconfig, and exits. Flags that kubeadm has written and will remove itself are left out.
const TRY_KUBELET: &str = r#"
pid=$(systemctl show -p MainPID --value kubelet 2>/dev/null || true)
if [ "${pid:-0}" = 0 ] || [ ! -r "/proc/$pid/cmdline" ]; then echo 'no kubelet runs: its settings are not tried'; exit 0; fi
ours=" $(sed 's/^KUBELET_KUBEADM_ARGS=//; s/"//g' /var/lib/kubelet/kubeadm-flags.env 2>/dev/null | tr '\n' ' ') "
words=() place=program
while IFS= read -r -d '' word; do
  was=$place place=flag
  case $was in
    program | value) continue ;;
    # kubeadm writes this file and no other.
    config)
      [ -z "$config" ] || [ "$word" != /var/lib/kubelet/config.yaml ] || word=$config
      words+=("$word"); continue ;;
  esac
  case " $without " in *" ${word%%=*} "*)
    case $word in *=*) ;; *) place=value ;; esac
    continue ;;
  esac
  case $word in
    --config=/var/lib/kubelet/config.yaml) word=--config=${config:-${word#--config=}} ;;
    --config) place=config ;;
  esac
  case $word in
    --kubeconfig | --bootstrap-kubeconfig | --root-dir | --cert-dir) place=value; continue ;;
    --kubeconfig=* | --bootstrap-kubeconfig=* | --root-dir=* | --cert-dir=*) continue ;;
    --container-runtime=* | --network-plugin=* | --pod-infra-container-image=*)
      case $ours in *" $word "*) continue ;; esac ;;
  esac
  words+=("$word")
done <"/proc/$pid/cmdline"
words+=($more)
scratch=$(mktemp -d)
timeout -k 5 20 "$kubelet" "${words[@]}" --kubeconfig="$scratch/none" --root-dir="$scratch/root" --cert-dir="$scratch/pki" </dev/null >"$scratch/said" 2>&1 || true
said=$(cat "$scratch/said"); rm -rf "$scratch"
for field in $fields; do
  if grep -qE "unknown field [\\\\\"]+$field[\\\\\"]+" <<<"$said"; then echo "the kubelet does not know the field $field of its configuration" >&2; exit 1; fi
done
grep -oE 'unknown field [\\"]+[^\\"]+' <<<"$said" | tr -d '\\"' | sort -u | sed 's/^/the configuration of the kubelet has an /; s/$/, which the new one passes over/' || true
case $said in *'kubeconfig: stat '*) echo "the kubelet takes $what"; exit 0 ;; esac
problem=$(grep -E 'unknown (shorthand )?flag|failed to parse kubelet flag|unrecognized feature gate|cannot set feature gate|failed to set feature gates|failed to load [Kk]ubelet config|failed to validate kubelet configuration|invalid configuration:' <<<"$said" | cut -c 1-500 | tail -n 5 || true)
if [ -n "$problem" ]; then
  echo "$problem" >&2
  [ -z "$advice" ] || echo "$advice" >&2
  exit 1
fi
echo "the kubelet did not say whether it takes $what"
"#;

/// Has the new kubeadm say what it will write to /var/lib/kubelet/config.yaml, from the ConfigMap and
/// the patches, and writes that to `file`. Prints `rendered` if it did.
const RENDER_KUBELET: &str = r#"
mkdir -p "$(dirname "$file")"; rm -f "$file"
if [ -z "$patches" ] && [ -d "$tree/patches" ]; then patches=$tree/patches; fi
scratch=$(mktemp -d); touch "$scratch/begun"
# kubeadm leaves directories, in older releases with the files.
tidy() { find /etc/kubernetes/tmp -mindepth 1 -maxdepth 1 -name 'kubeadm-*' -newer "$scratch/begun" -exec rm -rf {} + 2>/dev/null || true; rm -rf "$scratch"; }
trap tidy EXIT
if ! KUBEADM_UPGRADE_DRYRUN_DIR=$scratch "$tree/bin/kubeadm" upgrade node phase kubelet-config --dry-run ${patches:+--patches "$patches"} </dev/null >"$scratch/said" 2>"$scratch/errors"; then
  echo "kubeadm does not say what it will write to /var/lib/kubelet/config.yaml: $(tail -n 1 "$scratch/errors" | cut -c 1-300)"; exit 0
fi
umask 077
# kubeadm before 1.34 indents the content with a tab.
awk '/^\[dryrun\] Would write file "\/var\/lib\/kubelet\/config.yaml"/ { inside = 1; next } /^\[/ { inside = 0 } inside { sub(/^\t/, ""); print }' "$scratch/said" >"$file"
if grep -q '^kind: KubeletConfiguration' "$file"; then echo rendered; else rm -f "$file"; fi
"#;

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
    let line = format!(
        "kubelet={}/bin/kubelet config={} without= more= fields= what={} advice={}\n{TRY_KUBELET}",
        target.tree,
        quoted(config.as_deref().unwrap_or_default()),
        quoted(what),
        quoted(advice)
    );
    site.run_on(site.agent, &Line::repeatable(line), "-kubelet").map(|_| ())
}

/// Returns the path of a file with what the new kubeadm will write as the kubelet's configuration; `None`
/// if it does not say.
fn kubelet_configuration(
    site: &Site<'_>,
    target: &Target,
    patches: &str,
) -> Result<Option<String>> {
    let file = etc(site.context, "kubeadm-upgrade-kubelet.yaml");
    let line = format!(
        "tree={} patches={} file={}{RENDER_KUBELET}",
        target.tree,
        quoted(patches),
        quoted(&file)
    );
    let told = site.run_on(site.agent, &Line::repeatable(line), "-kubelet-config")?;
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
    let line = format!(
        "kubelet=$(type -P kubelet || echo /usr/bin/kubelet) config={} without={} more={} fields={} what='the new flags and configuration' advice=\n{TRY_KUBELET}",
        quoted(&trial.config),
        quoted(&trial.without.join(" ")),
        quoted(&trial.more.join(" ")),
        quoted(&trial.fields.join(" ")),
    );
    site.run_on(site.agent, &Line::repeatable(line), "-kubelet").map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let line =
            run(&api_server("/etc/kubernetes/audit/log/audit.log", false), COMPONENTS[0]).unwrap();
        let command = line.split("\"$name\" ").nth(1).unwrap();
        let words: Vec<&str> = command.split(' ').map(|word| word.trim_matches('\'')).collect();
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
        assert_eq!(line.matches("rbind:ro").count(), 2, "{line}");
    }

    #[test]
    fn a_log_that_the_cluster_could_not_write_is_refused() {
        for audit in ["/etc/kubernetes/audit/audit.log", "/etc/kubernetes/audit/log/audit.log"] {
            let error = run(&api_server(audit, true), COMPONENTS[0]).unwrap_err();
            let told = error.to_string();
            assert!(told.contains(audit) && told.contains("kube-apiserver"), "{told}");
        }
        // A directory whose name only begins like that of a mount is not in it.
        run(&api_server("/etc/kubernetes/audit-log/audit.log", true), COMPONENTS[0]).unwrap();
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
        let line = run(&manifest, ETCD).unwrap();
        assert!(
            line.contains("--log-outputs=stderr") && !line.contains("/var/log/etcd.log"),
            "{line}"
        );
        assert!(line.contains("src=/etc/kubernetes/pki/etcd"), "{line}");
        assert!(!line.contains("/var/lib/etcd") && !line.contains("/fast/wal"), "{line}");
    }
}
