//! Image commands: those of rootfs images and patches run on every host of the operation, those of
//! applications on the first control plane.

use crate::pipeline::step::{Lane, Order, Phase};
use imgctl_base::quote::quote as quoted;
use imgctl_model::context::{ClusterContext, Host, Paths};
use imgctl_model::image::{ClusterImage, ImageKind};
use imgctl_model::variables::Variables;
use imgctl_runtime::{Action, action::Line};

/// `--cmd`: replaces the `CMD` of one image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replacement {
    /// Name of the image in `spec.image`.
    pub image: String,
    pub command: Vec<String>,
}

/// Where the commands of an application record the objects that they send.
#[derive(Clone, Debug)]
pub struct Recording {
    /// On the host of the commands.
    pub directory: String,
}

impl Recording {
    pub fn of(context: &ClusterContext, image: &ClusterImage) -> Self {
        Self { directory: format!("{}/recording/{}", context.paths.root(), image.mount_name) }
    }

    /// Returns the file with the objects.
    pub fn objects(&self) -> String {
        format!("{}/objects.jsonl", self.directory)
    }

    /// Returns what a command's shell does first: it reads the file `begin`.
    pub fn prelude(&self) -> String {
        let file = quoted(&format!("{}/begin", self.directory));
        format!("if [ -e {file} ]; then . {file}; fi")
    }
}

/// Returns the commands of one image as a phase. Images run one after the other.
pub fn phase(
    context: &ClusterContext,
    image: &ClusterImage,
    hosts: &[Host],
    replacement: Option<&Replacement>,
    recording: Option<&Recording>,
) -> Phase {
    let first: Vec<Host> = context.first().cloned().into_iter().collect();
    let hosts = match image.kind {
        ImageKind::Application => &first,
        ImageKind::Rootfs | ImageKind::Patch => hosts,
    };
    let guest = Phase::new("guest", Order::Parallel);
    hosts.iter().fold(guest, |phase, host| {
        phase.lane(Lane::on(host, actions(context, image, host, replacement, recording)))
    })
}

fn actions(
    context: &ClusterContext,
    image: &ClusterImage,
    host: &Host,
    replacement: Option<&Replacement>,
    recording: Option<&Recording>,
) -> Vec<Action> {
    let replaced = replacement
        .filter(|replacement| replacement.image == image.name)
        .map(|replacement| replacement.command.as_slice());
    let lines = lines(image, replaced);
    if lines.is_empty() {
        return Vec::new();
    }
    let environment = context.environment_on(host, Some(image));
    let workdir = workdir(context, image);
    let mut actions = Vec::new();
    if image.layers.iter().all(|layer| layer.registry) {
        // The image has only embedded images, so no tree was made for it.
        actions.push(Action::command(
            &format!("{}-workdir", image.mount_name),
            Line::new(format!("mkdir -p {}", quoted(&workdir))),
        ));
    }
    for (number, line) in (1..).zip(&lines) {
        actions.push(Action::command(
            &format!("{}-{number}", image.mount_name),
            Line {
                line: expand(line, &environment),
                workdir: Some(workdir.clone()),
                environment: environment.clone(),
                prelude: recording.map(Recording::prelude),
                ..Line::default()
            },
        ));
    }
    actions
}

/// Returns the directory in which the commands of `image` run.
pub(crate) fn workdir(context: &ClusterContext, image: &ClusterImage) -> String {
    match image.kind {
        ImageKind::Rootfs | ImageKind::Patch => context.paths.rootfs(),
        ImageKind::Application => {
            format!("{}/{}", context.paths.root(), Paths::application_tree(&image.mount_name))
        }
    }
}

/// Returns the directory of an application on the first control plane.
pub fn directory(context: &ClusterContext, mount_name: &str) -> String {
    format!("{}/applications/{mount_name}", context.paths.root())
}

/// Returns the actions that remove an application: the script in its label `uninstall` or `clean`,
/// otherwise a script of that name.
pub fn uninstall(context: &ClusterContext, image: &ClusterImage, host: &Host) -> Vec<Action> {
    let line = uninstall_line(image, &workdir(context, image));
    let environment = context.environment_on(host, Some(image));
    vec![
        Action::command(
            &format!("{}-uninstall", image.mount_name),
            Line { line, environment, ..Line::default() },
        ),
        remove(context, &image.mount_name),
    ]
}

/// Files of an image that remove its application, unless a label names another; the first one that
/// exists counts.
pub const UNINSTALL_SCRIPTS: [&str; 4] =
    ["scripts/uninstall.sh", "uninstall.sh", "scripts/clean.sh", "clean.sh"];

/// Returns the label that removes an application.
pub fn uninstall_label(image: &ClusterImage) -> Option<&str> {
    image.label(&["uninstall", "clean"])
}

/// Returns the line that removes an application, by its label or script; it does nothing if there is
/// neither.
pub(crate) fn uninstall_line(image: &ClusterImage, workdir: &str) -> String {
    let workdir = quoted(workdir);
    match uninstall_label(image) {
        Some(value) => format!("if cd {workdir} 2>/dev/null; then bash {value}; fi"),
        None => format!(
            "cd {workdir} 2>/dev/null || exit 0; for script in {}; do if [ -e $script ]; then bash \
             $script; exit; fi; done",
            UNINSTALL_SCRIPTS.join(" ")
        ),
    }
}

/// Removes the directory of an application.
pub fn remove(context: &ClusterContext, mount_name: &str) -> Action {
    let directory = directory(context, mount_name);
    let says = format!("remove {directory}");
    Action::new(&format!("{mount_name}-files"), says, move |site| site.remove(&directory))
}

/// Returns the lines of `image`, with `replacement` in place of its `CMD`. Drops elements that only
/// produce the shell form of a Kubefile.
pub fn lines(image: &ClusterImage, replacement: Option<&[String]>) -> Vec<String> {
    let command = replacement.unwrap_or(&image.command);
    image
        .entrypoint
        .iter()
        .chain(command)
        .filter(|element| !matches!(element.as_str(), "/bin/sh" | "-c"))
        .filter(|element| !element.trim().is_empty())
        .cloned()
        .collect()
}

/// Replaces `$(NAME)`, `${NAME}` and `$NAME` if NAME is known, and `$$` by `$`. Everything else is
/// left to the shell unchanged: `$(date)`, `${X:-default}`, `$1`.
pub(crate) fn expand(line: &str, variables: &Variables) -> String {
    let mut expanded = String::with_capacity(line.len());
    let mut rest = line;
    while let Some(at) = rest.find('$') {
        expanded.push_str(&rest[..at]);
        let behind = &rest[at + 1..];
        if let Some(after) = behind.strip_prefix('$') {
            expanded.push('$');
            rest = after;
            continue;
        }
        let (name, after) = reference(behind);
        if let Some(value) = name.and_then(|name| variables.get(name)) {
            expanded.push_str(value);
            rest = after;
        } else {
            expanded.push('$');
            rest = behind;
        }
    }
    expanded.push_str(rest);
    expanded
}

/// Returns the name at the start of the text after a `$`, and the text after the whole reference.
fn reference(behind: &str) -> (Option<&str>, &str) {
    let close = match behind.as_bytes().first() {
        Some(b'(') => ')',
        Some(b'{') => '}',
        _ => {
            let end = behind.find(|c| !is_of_name(c)).unwrap_or(behind.len());
            return ((end > 0).then(|| &behind[..end]), &behind[end..]);
        }
    };
    let inside = &behind[1..];
    match inside.find(close) {
        Some(end) if end > 0 && inside[..end].chars().all(is_of_name) => {
            (Some(&inside[..end]), &inside[end + 1..])
        }
        _ => (None, behind),
    }
}

fn is_of_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn only_known_names_are_replaced() {
        let variables = BTreeMap::from([
            ("A".to_owned(), "1 $B".to_owned()),
            ("registry".to_owned(), "r".to_owned()),
            ("registryPort".to_owned(), "5000".to_owned()),
        ])
        .into();
        for (line, expected) in [
            ("x $(A) ${A} $A.", "x 1 $B 1 $B 1 $B."),
            ("$registryPort $registry/x", "5000 r/x"),
            ("$(date) ${X} $X $1 ${X:-d} $(X)", "$(date) ${X} $X $1 ${X:-d} $(X)"),
            ("${A:-d} $(A) ${A", "${A:-d} 1 $B ${A"),
            ("$$A $$(A) $$$A", "$A $(A) $1 $B"),
            ("$(echo $A)", "$(echo 1 $B)"),
            ("", ""),
            ("$", "$"),
            ("é$A é", "é1 $B é"),
        ] {
            assert_eq!(expand(line, &variables), expected, "{line}");
        }
    }

    #[test]
    fn elements_are_lines_and_the_shell_form_is_one() {
        let mut image = image();
        image.entrypoint = vec!["echo first".into()];
        image.command = vec!["/bin/sh".into(), "-c".into(), "a && b".into()];
        assert_eq!(lines(&image, None), ["echo first", "a && b"]);
        let other = ["c".to_owned(), "d -c".to_owned()];
        assert_eq!(lines(&image, Some(&other)), ["echo first", "c", "d -c"]);
        assert_eq!(lines(&image, Some(&[])), ["echo first"]);
    }

    fn image() -> ClusterImage {
        ClusterImage {
            name: "a".into(),
            mount_name: "a".into(),
            kind: ImageKind::Application,
            digest: imgctl_base::image::Digest::of(b""),
            labels: BTreeMap::new(),
            environment: BTreeMap::new(),
            entrypoint: Vec::new(),
            command: Vec::new(),
            layers: Vec::new(),
        }
    }
}
