//! Command lines of kubectl and Helm, as far as the wrappers have to understand them.

use std::ffi::OsString;

/// Flags of kubectl and Helm before the verb that take the next argument as their value.
const GLOBAL_VALUES: [&str; 30] = [
    "-n",
    "--namespace",
    "--context",
    "--kubeconfig",
    "--cluster",
    "--user",
    "-s",
    "--server",
    "-v",
    "--v",
    "--as",
    "--as-group",
    "--as-uid",
    "--token",
    "--username",
    "--password",
    "--certificate-authority",
    "--client-certificate",
    "--client-key",
    "--tls-server-name",
    "--request-timeout",
    "--cache-dir",
    "--profile",
    "--profile-output",
    "--kube-context",
    "--kube-token",
    "--kube-apiserver",
    "--registry-config",
    "--repository-cache",
    "--repository-config",
];

/// Arguments of kubectl and Helm, as far as the wrapper has to understand them.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Parsed {
    pub(super) verb: String,
    /// The word after the verb that is not a flag.
    pub(super) noun: Option<String>,
    pub(super) namespace: Option<String>,
    pub(super) files: Vec<String>,
    pub(super) kustomizations: Vec<String>,
    pub(super) recursive: bool,
    pub(super) dry_run: bool,
    pub(super) post_renderer: bool,
    /// The arguments without files.
    pub(super) rest: Vec<String>,
}

pub(super) fn parse(arguments: &[String]) -> Parsed {
    let mut parsed = Parsed::default();
    let mut words = arguments.iter();
    while let Some(word) = words.next() {
        let (flag, mut value) = match word.split_once('=') {
            Some((flag, value)) if flag.starts_with('-') => (flag, Some(value.to_owned())),
            _ => (word.as_str(), None),
        };
        // `-fFILE` and `-nNAME`.
        let short = ["-f", "-k", "-n"].into_iter().find(|short| {
            word.len() > 2 && word.starts_with(short) && !word.starts_with("--") && value.is_none()
        });
        let flag = match short {
            Some(short) => {
                value = Some(word[2..].to_owned());
                short
            }
            None => flag,
        };
        let mut next = |parsed: &mut Parsed, kept: bool| {
            let is_joined = value.is_some();
            let found = value.take().or_else(|| words.next().cloned()).unwrap_or_default();
            if kept {
                parsed.rest.push(word.clone());
                if !is_joined {
                    parsed.rest.push(found.clone());
                }
            }
            found
        };
        let is_of_verb = !parsed.verb.is_empty();
        match flag {
            "-f" | "--filename" if is_of_verb => {
                let found = next(&mut parsed, false);
                parsed.files.extend(found.split(',').map(str::to_owned));
            }
            "-k" | "--kustomize" if is_of_verb => {
                let found = next(&mut parsed, false);
                parsed.kustomizations.push(found);
            }
            "-R" | "--recursive" => parsed.recursive = value.as_deref() != Some("false"),
            "-n" | "--namespace" => parsed.namespace = Some(next(&mut parsed, true)),
            "--dry-run" => {
                parsed.dry_run = !matches!(value.as_deref(), Some("none" | "false"));
                parsed.rest.push(word.clone());
            }
            "--post-renderer" => {
                parsed.post_renderer = true;
                next(&mut parsed, true);
            }
            "--" => {
                parsed.rest.push(word.clone());
                parsed.rest.extend(words.by_ref().cloned());
            }
            flag if GLOBAL_VALUES.contains(&flag) => drop(next(&mut parsed, true)),
            _ => {
                if !word.starts_with('-') {
                    if parsed.verb.is_empty() {
                        parsed.verb.clone_from(word);
                    } else {
                        parsed.noun.get_or_insert_with(|| word.clone());
                    }
                }
                parsed.rest.push(word.clone());
            }
        }
    }
    parsed
}

/// Returns the arguments as text; `None` if one is not UTF-8.
pub(super) fn words(arguments: &[OsString]) -> Option<Vec<String>> {
    arguments.iter().map(|word| word.to_str().map(str::to_owned)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(line: &str) -> Parsed {
        parse(&line.split(' ').map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn arguments_are_understood_as_kubectl_and_helm_do() {
        let parsed = of("-n a --context x apply -f one -ftwo,three --filename=four -R --wait");
        assert_eq!(parsed.verb, "apply");
        assert_eq!(parsed.namespace.as_deref(), Some("a"));
        assert_eq!(parsed.files, ["one", "two", "three", "four"]);
        assert_eq!(parsed.rest.join(" "), "-n a --context x apply --wait");
        assert!(parsed.recursive && !parsed.dry_run);
        let parsed = of("create namespace apply --dry-run=client -o yaml");
        assert_eq!((parsed.verb.as_str(), parsed.noun.as_deref()), ("create", Some("namespace")));
        assert!(parsed.dry_run && parsed.files.is_empty());
        assert!(!of("apply --dry-run=none -k .").dry_run);
        let parsed =
            of("--kube-context c upgrade --install -f values.yaml r ./chart --namespace=b");
        assert_eq!((parsed.verb.as_str(), parsed.namespace.as_deref()), ("upgrade", Some("b")));
        assert!(of("install --post-renderer x r c").post_renderer);
        // A flag of another program.
        assert!(of("exec pod -- tail -f x").files.is_empty());
        assert_eq!(of("apply -f"), Parsed { files: vec![String::new()], ..of("apply") });
    }
}
