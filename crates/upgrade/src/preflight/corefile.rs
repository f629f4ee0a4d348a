//! Checks that kubeadm can migrate the Corefile of CoreDNS: it migrates plugins that it knows, and
//! refuses to upgrade with others.

use crate::document::{Finding, few};
use crate::finding::{error, note};
use crate::preflight::look::Look;

const CHECK: &str = "corefile";
const HINT: &str = "remove them from the ConfigMap kube-system/coredns; or pass --skip-check \
                    corefile to keep them, and make sure that the new CoreDNS supports them";

/// Plugins that kubeadm migrates.
const KNOWN: [&str; 15] = [
    "autopath",
    "cache",
    "errors",
    "forward",
    "health",
    "hosts",
    "k8s_external",
    "kubernetes",
    "log",
    "loadbalance",
    "loop",
    "prometheus",
    "ready",
    "reload",
    "rewrite",
];
/// Removals in CoreDNS, the first Kubernetes minor without them, and how kubeadm migrates them.
const GONE: [(&str, u64, &str); 5] = [
    ("proxy", 16, "kubeadm replaces it with `forward`"),
    ("federation", 19, "kubeadm removes it"),
    ("kubernetes.resyncperiod", 16, "kubeadm removes it"),
    ("kubernetes.upstream", 19, "kubeadm removes it"),
    ("kubernetes.transfer", 21, "kubeadm replaces it with the plugin `transfer`"),
];

pub(super) fn plugins(look: &Look<'_>) -> Vec<Finding> {
    let corefile = look.api().and_then(|api| api.corefile.as_ref());
    let (Some(corefile), true) = (corefile, look.is_kubeadm() && look.is_forward()) else {
        return Vec::new();
    };
    let Some(words) = words(corefile) else {
        return vec![
            error(CHECK, "cannot parse the Corefile of CoreDNS: its braces do not match")
                .hint("fix the ConfigMap kube-system/coredns"),
        ];
    };
    let mut found = Vec::new();
    let new = look.new_minors();
    for (word, minor, what) in GONE {
        if words.iter().any(|has| has == word) && new.contains(&minor) {
            let what = format!(
                "the Corefile has {word}, which CoreDNS of v1.{minor} no longer supports: {what}"
            );
            found.push(note(CHECK, what));
        }
    }
    let gone = |word: &str| GONE.iter().any(|(gone, ..)| *gone == word);
    let strange: Vec<&str> = words
        .iter()
        .map(String::as_str)
        .filter(|word| !word.contains('.') && !KNOWN.contains(word) && !gone(word))
        .collect();
    if !strange.is_empty() {
        let what = format!(
            "the Corefile has plugins that kubeadm cannot migrate, and it refuses to upgrade with \
             them: {}",
            few(&strange)
        );
        found.push(error(CHECK, what).hint(HINT));
    }
    found
}

/// Returns the plugins and, as `plugin.option`, their options; `None` if braces do not match.
/// Snippets (`(name) { … }`) count as servers; `import` is not a plugin.
fn words(corefile: &str) -> Option<Vec<String>> {
    let mut words: Vec<String> = Vec::new();
    let mut depth = 0_usize;
    let mut plugin = String::new();
    for line in corefile.lines() {
        let line = line.split('#').next().unwrap_or_default().trim();
        let first = line.split_whitespace().next().unwrap_or_default();
        let name = first.trim_matches(['{', '}']);
        if !name.is_empty() && name != "import" {
            match depth {
                1 => {
                    plugin = name.to_owned();
                    words.push(plugin.clone());
                }
                2 => words.push(format!("{plugin}.{name}")),
                _ => {}
            }
        }
        for letter in line.split_whitespace() {
            // Only a brace that stands alone counts; those in `{$VARIABLE}` and `{{ .Name }}` do
            // not.
            match letter {
                "{" => depth += 1,
                "}" => depth = depth.checked_sub(1)?,
                _ => {}
            }
        }
    }
    words.sort();
    words.dedup();
    (depth == 0).then_some(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plugins_and_options_are_told_apart() {
        let corefile = ".:53 {\n    errors\n    health {\n       lameduck 5s\n    }\n    # federation\n    \
                        kubernetes cluster.local in-addr.arpa {\n       upstream\n       ttl 30\n    }\n    \
                        template ANY ANY {\n        answer \"{{ .Name }} 60 IN A 1.2.3.4\"\n    }\n    import x\n}\n\
                        example.org:53 {\n    forward . {$UP}\n}\n";
        assert_eq!(
            words(corefile).unwrap(),
            [
                "errors",
                "forward",
                "health",
                "health.lameduck",
                "kubernetes",
                "kubernetes.ttl",
                "kubernetes.upstream",
                "template",
                "template.answer",
            ]
        );
        assert_eq!(words(".:53 {\n errors\n"), None);
        assert_eq!(words("}"), None);
    }
}
