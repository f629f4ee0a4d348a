//! Queries one host: its facts, running containers, and the settings of its programs.

use serde_json::Value;

use crate::observation::{CertificateSeen, HostSeen, KubeletSeen, ManifestSeen};
use crate::observe::Question;
use imgctl_base::error::{Error, Kind, Result};
use imgctl_host::agent::Agent;
use imgctl_host::agent::protocol::{InventoryQuestion, Run};
use imgctl_kube::restart::{RunningContainer, running};
use imgctl_model::context::Host;
use imgctl_runtime::{action::Line, certificates::inspect};
use imgctl_template::yaml;
use imgctl_workflow::pipeline::ownership;

/// Maximum output of a command, in bytes; the rest is ignored.
const MOST: usize = 64 << 20;

/// Prints `key<TAB>value…` lines, and files between their own markers.
pub(super) const PROBE: &str = include_str!("scripts/probe.sh");
/// Prints the running containers only.
const CONTAINERS: &str = include_str!("scripts/list-containers.sh");

/// Collects all data about a host.
pub(super) fn ask(question: &Question<'_>, host: &Host) -> HostSeen {
    let mut seen = HostSeen {
        id: host.id(),
        address: host.ip().to_owned(),
        roles: host.roles.clone(),
        local: host.local,
        ..HostSeen::default()
    };
    if let Err(error) = fill(question, host, &mut seen) {
        if error.kind() == Kind::Denied {
            seen.refused = Some(error.hints().join("; ")).filter(|hint| !hint.is_empty());
        }
        seen.unreachable = Some(error.to_string());
    }
    seen
}

fn fill(question: &Question<'_>, host: &Host, seen: &mut HostSeen) -> Result<()> {
    let agent = question.pool.agent(host)?;
    let facts = agent.facts()?;
    seen.lost = ownership::membership_lost(question.context, &facts).map(str::to_owned);
    seen.facts = Some(facts);
    let inventory = agent.inventory(&InventoryQuestion {
        root: question.context.paths.root(),
        trees: vec!["rootfs".to_owned()],
        ..InventoryQuestion::default()
    })?;
    seen.tree = inventory.trees.get("rootfs").cloned();
    if question.runtime == crate::request::SCRIPT {
        return Ok(());
    }
    let probe = Line::script(&[PROBE]).with([("IMGCTL_PATCHES", &patches(question))]);
    understand(&output(question.key, &*agent, "probe", &probe)?, seen);
    if question.containers {
        // A failure to list containers does not make the host unreachable.
        let list = Line::script(&[CONTAINERS]);
        let told = output(question.key, &*agent, "containers", &list);
        match told.and_then(|text| containers(&text)) {
            Ok(found) => seen.containers = found,
            Err(error) => seen.containers_problem = Some(error.chain().join(": ")),
        }
    }
    Ok(())
}

/// Returns the directory from which `kubeadm upgrade` will take them, as currently
/// configured.
fn patches(question: &Question<'_>) -> String {
    let own = format!("{}/patches", question.context.paths.rootfs());
    let documents = question.context.documents.iter();
    let folder = documents
        .filter(|document| document["kind"] == "InitConfiguration")
        .find_map(|document| document["patches"]["directory"].as_str());
    folder.map_or(own, str::to_owned)
}

/// Runs a read-only command and removes the files that the run left. `key` identifies the
/// observation; it is safe as a file name.
pub(crate) fn output(key: &str, agent: &dyn Agent, name: &str, line: &Line) -> Result<String> {
    let directory = format!("/run/imgctl-look-{key}-{name}");
    let request = Run {
        directory: directory.clone(),
        key: name.to_owned(),
        line: line.line.clone(),
        workdir: None,
        environment: line.environment.to_map(),
        input: None,
        timeout_seconds: Some(60),
        again: true,
    };
    let (mut text, mut errors) = (String::new(), String::new());
    let outcome = agent.run(&request, &mut |line| {
        let part = if line.error_stream { &mut errors } else { &mut text };
        if part.len() < MOST {
            part.push_str(&line.text);
            part.push('\n');
        }
    });
    let left = agent.remove(&[directory]);
    let outcome = outcome?;
    left?;
    match (outcome.code, outcome.reason) {
        (Some(0), None) => Ok(text),
        (code, reason) => {
            let how = reason.unwrap_or_else(|| format!("exit code {}", code.unwrap_or(-1)));
            Err(Error::failed(format!(
                "{}: cannot inspect the host ({name}): {how}: {}",
                agent.host(),
                errors.trim()
            )))
        }
    }
}

/// Parses the output of the probe.
pub(super) fn understand(text: &str, seen: &mut HostSeen) {
    let mut lines = text.lines();
    let mut before = "";
    while let Some(line) = lines.next() {
        let words: Vec<&str> = line.split('\t').collect();
        match words[..] {
            ["free", directory, kibibytes] => {
                if let Ok(free) = kibibytes.parse::<u64>() {
                    let bytes = free.saturating_mul(1024);
                    seen.free_bytes.insert(directory.to_owned(), bytes);
                }
            }
            ["swap", _] => seen.swap = true,
            ["name", name] => seen.node_name = Some(name.to_owned()),
            ["sandbox", image] => {
                let name = image.trim_matches(['"', '\'']);
                seen.sandbox_image = Some(name.to_owned()).filter(|name| !name.is_empty());
            }
            // `--feature-gates A=true`
            ["word", gates] if before == "--feature-gates" && !gates.starts_with("--") => {
                flag(&format!("--feature-gates={gates}"), &mut seen.kubelet);
                before = "";
            }
            ["word", word] => {
                flag(word, &mut seen.kubelet);
                before = word;
            }
            ["kubeadm", word] => kubeadm_flag(word, &mut seen.kubelet),
            ["settings", _] => configuration(&until_end(&mut lines), &mut seen.kubelet),
            ["manifest", name] => {
                if let Some(manifest) = manifest(&until_end(&mut lines)) {
                    seen.manifests.insert(name.to_owned(), manifest);
                }
            }
            ["patch", name] => {
                let text = until_end(&mut lines);
                seen.patches.entry(name.to_owned()).or_default().push_str(&text);
            }
            ["left", path] => seen.leftovers.push(path.to_owned()),
            ["certificate", path, key] => {
                if let Ok(read) = inspect::read(&until_end(&mut lines)) {
                    seen.certificates.push(CertificateSeen {
                        path: path.to_owned(),
                        not_after: read.not_after,
                        authority: read.is_authority,
                        key_is_here: key == "yes",
                    });
                }
            }
            _ => {}
        }
    }
}

/// Reads a file up to its end marker.
fn until_end(lines: &mut std::str::Lines<'_>) -> String {
    let text: Vec<&str> = lines.by_ref().take_while(|line| *line != "end").collect();
    text.join("\n")
}

/// Parses the output of `crictl inspect`; environments, which hold secrets, are dropped.
fn containers(text: &str) -> Result<Vec<RunningContainer>> {
    let mut all = Vec::new();
    for value in serde_json::Deserializer::from_str(text).into_iter::<Value>() {
        // crictl prints several containers one after the other, or as a list since 1.31.
        match value {
            Ok(Value::Array(list)) => all.extend(list),
            Ok(value) => all.push(value),
            Err(error) => {
                return Err(Error::bad_content(
                    "cannot parse the output of crictl on the containers",
                )
                .caused_by(error));
            }
        }
    }
    running(&all)
}

/// Parses one word of the kubelet's command line.
pub(super) fn flag(word: &str, seen: &mut KubeletSeen) {
    let Some(word) = word.strip_prefix("--") else {
        return;
    };
    let (flag, value) = word.split_once('=').unwrap_or((word, ""));
    if flag == "feature-gates" {
        let gates = value.split(',').filter_map(|gate| gate.split('=').next());
        let gates: Vec<String> =
            gates.map(str::trim).filter(|gate| !gate.is_empty()).map(str::to_owned).collect();
        seen.flag_gates.extend(gates.iter().cloned());
        seen.gates.extend(gates);
    }
    if flag == "fail-cgroupv1" {
        seen.fail_cgroup_v1_flag =
            Some(!matches!(value, "false" | "False" | "FALSE" | "f" | "F" | "0"));
    }
    seen.flags.insert(flag.to_owned());
}

/// Parses one word of `kubeadm-flags.env`.
fn kubeadm_flag(word: &str, seen: &mut KubeletSeen) {
    let word = word.trim_start_matches("KUBELET_KUBEADM_ARGS=");
    if let Some(word) = word.trim_matches(['"', '\'']).strip_prefix("--") {
        let flag = word.split('=').next().unwrap_or_default();
        seen.kubeadm_flags.insert(flag.to_owned());
    }
}

/// Parses a `KubeletConfiguration`; a malformed one is ignored.
pub(super) fn configuration(text: &str, seen: &mut KubeletSeen) {
    let Ok(Value::Object(fields)) = yaml::parse(text) else {
        return;
    };
    seen.fail_cgroup_v1 = fields.get("failCgroupV1").and_then(Value::as_bool);
    seen.fail_swap_on = fields.get("failSwapOn").and_then(Value::as_bool);
    for (name, value) in &fields {
        let inner = value.as_object();
        if name == "featureGates" {
            seen.gates.extend(inner.into_iter().flatten().map(|(gate, _)| gate.clone()));
            continue;
        }
        seen.fields.insert(name.clone());
        let names = inner.into_iter().flatten();
        seen.fields.extend(names.map(|(inner, _)| format!("{name}.{inner}")));
    }
}

/// Parses a static Pod's manifest.
pub(super) fn manifest(text: &str) -> Option<ManifestSeen> {
    let pod = yaml::parse(text).ok()?;
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let names = |value: &Value| -> Vec<String> {
        let all = list(value).into_iter();
        all.filter_map(|one| Some(one["name"].as_str()?.to_owned())).collect()
    };
    let spec = &pod["spec"];
    let first = &spec["containers"][0];
    let words = [&first["command"], &first["args"]];
    Some(ManifestSeen {
        containers: names(&spec["containers"]),
        image: first["image"].as_str().map(str::to_owned),
        arguments: words
            .into_iter()
            .flat_map(list)
            .filter_map(|word| Some(word.as_str()?.to_owned()))
            .collect(),
        environment: names(&first["env"]),
        has_limits: first["resources"]["limits"].is_object(),
        volumes: names(&spec["volumes"]),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn containers_of_all_releases_of_crictl() {
        let one = |id: &str| {
            serde_json::json!({"info": {}, "status": {"id": id, "state": "CONTAINER_RUNNING",
                "labels": {"io.kubernetes.pod.uid": "u", "io.kubernetes.container.name": "web"}}})
        };
        let ids = |text: &str| -> Vec<String> {
            let all = containers(text).unwrap().into_iter();
            all.map(|container| container.id).collect()
        };
        let stream = format!("{:#}\n{:#}\n", one("a"), one("b"));
        let list = format!("{:#}\n", serde_json::json!([one("a"), one("b")]));
        assert_eq!(ids(&stream), ["a", "b"]);
        assert_eq!(ids(&list), ["a", "b"]);
        assert!(ids("").is_empty());
        // Truncated output is not taken for complete.
        for cut in [&stream[..stream.len() - 3], "[{]", "E1122 connect: no such file"] {
            let error = containers(cut).unwrap_err();
            assert!(error.to_string().contains("crictl"), "{error}");
        }
    }

    /// Uses a fake crictl: test machines have no container runtime.
    #[test]
    fn hosts_that_cannot_say_what_runs_fail_with_the_reason() {
        use std::os::unix::fs::PermissionsExt;
        let directory = tempfile::tempdir().unwrap();
        let told = |crictl: Option<&str>| {
            let program = directory.path().join("crictl");
            let _ = std::fs::remove_file(&program);
            if let Some(text) = crictl {
                std::fs::write(&program, format!("#!/bin/bash\n{text}\n")).unwrap();
                std::fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
            }
            let ran = std::process::Command::new("/bin/bash")
                .args(["-e", "-c", CONTAINERS])
                .env_clear()
                .env("PATH", directory.path())
                .output()
                .unwrap();
            let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
            (ran.status.success(), text(ran.stdout), text(ran.stderr))
        };
        let (is_well, _, errors) = told(None);
        assert!(!is_well && errors.contains("there is no crictl"), "{errors}");
        let (is_well, _, errors) = told(Some("echo 'no such socket' >&2; exit 1"));
        assert!(!is_well && errors.contains("no such socket"), "{errors}");
        assert_eq!(told(Some("exit 0")), (true, String::new(), String::new()));
        let half = "[ $1 = ps ] && { echo a b; exit 0; }; echo \"$5 is gone\" >&2; exit 1";
        let (is_well, all, errors) = told(Some(half));
        assert!(!is_well && all.is_empty() && errors.contains("is gone"), "{errors}");
        let whole = "[ $1 = ps ] && { echo a; echo b; exit 0; }; echo \"$*\"";
        let (is_well, all, _) = told(Some(whole));
        assert!(is_well);
        assert_eq!(all, "inspect --output json a b\n");
    }
}
