//! What a person reads in a new folder: the head of the Kubefile, README, Clusterfile, the file of a CI system. Texts only.

use std::fmt::Write as _;

use crate::File;
use crate::choice::Part;
use crate::composition::{Composition, Forge};
use crate::declaration::Group;

const GITHUB: &str = include_str!("github.yml");
const GITLAB: &str = include_str!("gitlab.yml");

/// Returns the file of a CI system (docs/ci.md).
pub(crate) fn pipeline(forge: Forge) -> File {
    match forge {
        Forge::Github => File::text(".github/workflows/image.yml", GITHUB),
        Forge::Gitlab => File::text(".gitlab-ci.yml", GITLAB),
    }
}

/// What the image contains, in words: `kubernetes 1.36.3, flannel 0.27.4, helm 3.18.4 and the chart web`.
fn content(composition: &Composition<'_>) -> String {
    let shown = composition.parts.iter().filter(|part| part.recipe.declaration.group != Group::App);
    let mut names: Vec<String> = shown.map(Part::title).collect();
    names.extend(composition.charts.iter().map(|chart| format!("the chart {}", chart.name)));
    match names.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} and {last}", rest.join(", ")),
        _ => names.concat(),
    }
}

/// Comments at the top of the Kubefile.
pub(crate) fn head(composition: &Composition<'_>, downloads: bool) -> Vec<String> {
    let mut head = vec![format!("{}: {}.", composition.name, content(composition))];
    if downloads {
        head.push(
            "ADD takes the publishers' files; one that has another checksum is refused.".into(),
        );
    }
    head
}

/// `imgctl.lock` before the first build, which adds what it finds: digests of addresses and of container images.
pub(crate) const LOCK: &str = "\
# What this image is made of, by digest: `imgctl build` adds to it, `imgctl build --locked` insists on it. Commit this file.
version = 1
";

/// `README.md`.
pub(crate) fn readme(composition: &Composition<'_>) -> String {
    let name = &composition.name;
    let mut text = format!("# {name}\n\nOne OCI image: {}.\n\n```sh\n", content(composition));
    let run = match composition.cluster() {
        Some(_) => format!(" --cluster {name} --masters 10.0.0.11 --nodes 10.0.0.12,10.0.0.13"),
        None => String::new(),
    };
    let commands = [
        (format!("imgctl build -t {name}:v1 ."), "with a network: downloads, checks, embeds"),
        (format!("imgctl save -o {name}.tar {name}:v1"), "one file to carry"),
        (format!("imgctl load -i {name}.tar"), "on the machine that reaches the hosts"),
        (format!("imgctl run {name}:v1{run}"), ""),
        ("imgctl status".to_owned(), ""),
    ];
    for (command, why) in commands {
        let _ = if why.is_empty() {
            writeln!(text, "{command}")
        } else {
            writeln!(text, "{command:48}# {why}")
        };
    }
    text.push_str("```\n\n| file | what it is |\n|---|---|\n");
    let mut row = |file: &str, what: &str| {
        let _ = writeln!(text, "| `{file}` | {what} |");
    };
    row("Kubefile", "the image: the publishers' files, labels, variables");
    if composition.cluster().is_some() {
        row(
            "Clusterfile",
            "the same cluster as a file: put your addresses in, then `imgctl apply -f Clusterfile`",
        );
        row(
            "etc, scripts",
            "configuration (`.tmpl` is rendered for each host) and the scripts that hosts run",
        );
    }
    for chart in &composition.charts {
        row(
            &format!("charts/{}.values.yaml", chart.name),
            &format!("your values for the chart {}", chart.name),
        );
    }
    if composition.parts.iter().any(|part| !part.recipe.declaration.settings.is_empty()) {
        row(
            imgctl_base::settings::SETTINGS_FILE,
            "the variables of `imgctl run -e NAME=VALUE`; `run` asks for what is required, and refuses what does not fit",
        );
    }
    row("apps", "what is installed on the cluster, in the order of the names");
    row(
        crate::record::FILE,
        "what this folder was made from; `imgctl init --add RECIPE` adds a part",
    );
    let unpinned = composition.unpinned();
    if !unpinned.is_empty() {
        text.push_str("\nNo checksum of these files was known when this folder was made; the first build records them in \
                       `imgctl.lock`. Compare them with the publisher's, and commit that file.\n\n");
        for file in unpinned {
            for architecture in file.keys(&composition.architectures) {
                let _ = writeln!(text, "- {}", file.url(&architecture));
            }
        }
    }
    text
}

/// `Clusterfile`.
pub(crate) fn clusterfile(composition: &Composition<'_>) -> String {
    let name = &composition.name;
    format!(
        "# Put the addresses of your hosts in, then: imgctl apply -f Clusterfile\n\
         apiVersion: apps.sealos.io/v1beta1\n\
         kind: Cluster\n\
         metadata:\n\
         \x20 name: {name}\n\
         spec:\n\
         \x20 image:\n\
         \x20 - {name}:v1\n\
         \x20 ssh:\n\
         \x20   user: root\n\
         \x20   pk: ~/.ssh/id_ed25519\n\
         \x20 hosts:\n\
         \x20 - ips: [10.0.0.11]\n\
         \x20   roles: [master]\n\
         \x20 - ips: [10.0.0.12, 10.0.0.13]\n\
         \x20   roles: [node]\n"
    )
}
