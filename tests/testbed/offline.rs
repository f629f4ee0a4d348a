//! Follows tutorial 7, "Kubernetes offline from zero", with the commands that it shows, on three hosts and without the
//! Internet. What cannot be had here is stood in for: the publishers' files by programs that record their calls, in a
//! mirror (`mirrors.toml`); container images by small ones, in a registry beside the test; kubeadm by the scripts of the
//! recipe (`distribution="script"`), so that no API server runs, and kubectl at the desk by a program that is glad of everything.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use crate::common::mirror::Mirror;
use crate::common::terminal::on_a_terminal;
use crate::common::testbed::Bed;
use crate::common::tutorial::{Act, acts, without};
use crate::common::{IMGCTL, Ran, needs_root, repository, tool};
use crate::recipes::stand_in;
use crate::tutorials::{carry_out, is_shown, shell};

const NAME: &str = "7-kubernetes-offline.md";
/// The prompt of the machine that has no network: another store.
const BEHIND: &str = "behind";

/// Answers the questions of the first command as the tutorial does, and expects the lines that it shows.
fn answer(home: &Path, act: &Act) {
    let Act::Command { text, shown, .. } = act else {
        panic!("the tutorial begins with a command")
    };
    assert_eq!(text, "imgctl init my-cluster");
    let (questions, lines): (Vec<&String>, Vec<&String>) =
        shown.iter().partition(|line| line.contains("]:"));
    assert_eq!(questions.len(), 4, "{shown:?}");
    let asked: Vec<(String, String)> = questions
        .iter()
        .map(|line| line.split_once("]:").unwrap())
        .map(|(prompt, answer)| (format!("{prompt}]: "), format!("{}\n", answer.trim())))
        .collect();
    let keys: Vec<(&str, &str)> =
        asked.iter().map(|(prompt, answer)| (&**prompt, &**answer)).collect();
    let line = format!("cd ~ && {IMGCTL} init my-cluster");
    let screen = on_a_terminal(&line, &[("HOME", home)], &keys);
    let plain = |line: &str| without(line, &[(r"\([0-9]+ files\)", "(FILES)")]);
    for line in lines {
        let found = screen.lines().any(|told| is_shown(&plain(line), &plain(told)));
        assert!(found, "{line}: {screen}");
    }
}

/// Puts a chart called `web` beside the folder.
fn write_chart(home: &Path) {
    let hello = repository().join("Kubefile.examples/app-helm/charts/hello");
    let web = home.join("web");
    Ran::new(tool("cp", ["-R", hello.to_str().unwrap(), web.to_str().unwrap()])).ok();
    let head = fs::read_to_string(web.join("Chart.yaml")).unwrap();
    fs::write(web.join("Chart.yaml"), head.replace("name: hello", "name: web")).unwrap();
}

/// Returns a command with the prompt of a machine.
fn at(prompt: &str, text: &str) -> Act {
    Act::Command { prompt: prompt.to_owned(), text: text.to_owned(), shown: Vec::new() }
}

#[test]
fn kubernetes_offline_from_zero_can_be_followed() {
    if !needs_root() {
        return;
    }
    let bed = Bed::up(3).with_agent();
    // Also makes the home.
    shell(&bed, Path::new("/dev/null"));
    let home = bed.env.path("home");
    write_chart(&home);
    let key = home.join(".ssh/id_ed25519");
    bed.env.write(&key, fs::read(bed.key()).unwrap());
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
    let kubectl = bed.env.write("programs/kubectl", "#!/bin/sh\ntest -n \"$KUBECONFIG\"\n");
    fs::set_permissions(kubectl, fs::Permissions::from_mode(0o755)).unwrap();

    let document = fs::read_to_string(repository().join("docs/tutorials").join(NAME)).unwrap();
    let document = (1..=3)
        .fold(document, |text, host| text.replace(&format!("10.0.0.1{host}"), &bed.ip(host)));
    let mut all = acts(&document);
    answer(&home, &all.remove(0));

    let mirror = stand_in(&bed, &home.join("my-cluster"));
    let toml = format!("[[mirror]]\nfrom = \"https://\"\nto = \"{}\"\n", mirror.display());
    bed.env.write(home.join(".config/imgctl/mirrors.toml"), toml);
    let registry = Mirror::new(&bed.env);
    let named = registry.fill(&bed.env, home.join("my-cluster").to_str().unwrap());
    assert!(named.len() > 10, "{named:?}");
    let before =
        format!("export CONTAINERS_REGISTRIES_CONF={}\n", registry.configuration.display());

    // One machine after the other.
    let is = |act: &Act, start: &str| matches!(act, Act::Command { text, .. } if text.starts_with(start));
    let gap = all.iter().position(|act| is(act, "imgctl load ")).unwrap();
    let next = all.iter().position(|act| is(act, "imgctl upgrade ")).unwrap();
    let upgrade = all.split_off(next);
    let mut behind = all.split_off(gap);
    assert!((all.len(), behind.len(), upgrade.len()) >= (3, 6, 2), "{}", all.len());
    for act in &mut behind {
        if let Act::Command { prompt, .. } = act {
            BEHIND.clone_into(prompt);
        }
    }
    carry_out(&bed, NAME, &all, &before);
    // No registry is known there.
    carry_out(&bed, NAME, &behind, "export CONTAINERS_REGISTRIES_CONF=/dev/null\n");
    let calls = bed.says(1, "grep -v '^kubeadm' /var/log/calls");
    let lines: Vec<&str> = calls.lines().collect();
    assert_eq!(lines.first(), Some(&"kubectl apply -f manifests/flannel"), "{calls}");
    assert!(lines.last().unwrap().starts_with("helm upgrade --install web charts/web"), "{calls}");

    // "Change your chart or its values, build `my-cluster:v2`, and carry it over as before": the same commands with v2.
    fs::write(home.join("my-cluster/charts/web.values.yaml"), "replicas: 2\n").unwrap();
    let again = |act: &Act| match act {
        Act::Command { prompt, text, .. } => at(prompt, &text.replace(":v1", ":v2")),
        Act::File { .. } => panic!("the tutorial has no files"),
    };
    let build: Vec<Act> = all
        .iter()
        .filter(|act| is(act, "imgctl build -t") || is(act, "imgctl save"))
        .map(again)
        .collect();
    assert_eq!(build.len(), 2);
    carry_out(&bed, NAME, &build, &before);
    let mut carried = vec![again(&behind[0])];
    let upgrade = upgrade.iter().map(|act| match act {
        Act::Command { text, .. } => at(BEHIND, text),
        Act::File { .. } => panic!("the tutorial has no files"),
    });
    carried.extend(upgrade);
    let agreed = "export CONTAINERS_REGISTRIES_CONF=/dev/null IMGCTL_YES=true\n";
    carry_out(&bed, NAME, &carried, agreed);
    let calls = bed.says(1, "grep -c 'helm upgrade --install web charts/web' /var/log/calls");
    assert_eq!(calls, "2", "the applications follow their cluster");
    let values = "cat /var/lib/sealos/data/my-cluster/rootfs/charts/web.values.yaml";
    assert_eq!(bed.says(1, values), "replicas: 2");
}
