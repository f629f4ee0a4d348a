//! What other tools do with images of imgctl in each compression: operations with the versions of Debian 12 and of
//! Debian's newest suite (`scripts/referees`). The table of docs/versions.md is what came out; a cell that lacks
//! a compression has the reason beside it.

mod daemons;
mod operations;

use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::OnceLock;

use daemons::Daemon;

use crate::common::newest::{Newest, short_version};
use crate::common::registry::Registry;
use crate::common::tree::{self, Tree};
use crate::common::{Ran, TestEnv, repository, tool};

const FORMS: [&str; 3] = ["zstd", "gzip", "none"];
const DOCUMENT: &str = "docs/versions.md";
/// The lines around the table.
const BEGIN: &str = "<!-- tests/runner/tools: the table below is what this test sees -->\n";
const END: &str = "<!-- end -->\n";

/// Where a tool comes from.
#[derive(Clone, Copy)]
pub(super) enum Suite<'a> {
    Newest(&'a Newest),
    /// The packages of the machine that tests (scripts/setup).
    Installed,
}

/// An image in three compressions, in a store, a registry, and as layouts.
pub(super) struct Site {
    /// dockerd with its own image store, and with containerd's; they end before their directory goes.
    dockers: [OnceLock<(Daemon, String)>; 2],
    env: TestEnv,
    registry: Registry,
    /// What every tool must make of it.
    tree: Tree,
}

/// What a tool did with one compression.
type Outcome = Result<(), String>;
type Operation = fn(&Site, Suite<'_>, &str) -> Outcome;
/// Compressions that an operation cannot do, and why.
type Limits = &'static [(&'static str, &'static str)];

/// A row of the table.
struct Row {
    package: &'static str,
    what: &'static str,
    operation: Operation,
    newest: Limits,
    /// `None`: Debian 12 does not have the tool.
    installed: Option<Limits>,
}

const NO_ZSTD: (&str, &str) = ("zstd", "unknown to this version");

const SMALL_BLOCKS: [(&str, &str); 3] = [
    ("zstd", "knows no blocks of 512 bytes"),
    ("gzip", "knows no blocks of 512 bytes"),
    ("none", "knows no blocks of 512 bytes"),
];

const fn row(
    package: &'static str,
    what: &'static str,
    operation: Operation,
    newest: Limits,
    installed: Option<Limits>,
) -> Row {
    Row { package, what, operation, newest, installed }
}

const ROWS: [Row; 15] = [
    row("skopeo", "`copy` from a registry, the same digest", operations::skopeo, &[], Some(&[])),
    row("buildah", "`from` and `mount`, the same tree", operations::buildah, &[], Some(&[])),
    row("podman", "`pull` and `run`", operations::podman, &[], Some(&[])),
    row("umoci", "`unpack`, the same tree", operations::umoci, &[], Some(&[NO_ZSTD])),
    row("containerd", "`ctr image pull`, unpacked", daemons::containerd, &[], Some(&[])),
    row(
        "docker.io",
        "`docker load` of `imgctl save`, `docker run`, and back",
        daemons::docker,
        &[],
        None,
    ),
    row(
        "docker.io",
        "the same with containerd's image store",
        daemons::docker_containerd,
        &[],
        None,
    ),
    row(
        "docker-buildx",
        "`docker buildx build` with `FROM` ours, which imgctl loads",
        daemons::buildx,
        &[],
        None,
    ),
    row("crane", "`digest`, `copy`, `export`", operations::crane, &[], None),
    row(
        "crane",
        "`validate`",
        operations::crane_validate,
        &[("zstd", "every layer must be gzip"), ("none", "every layer must be gzip")],
        None,
    ),
    row("oras", "`copy` to a layout, which imgctl loads", operations::oras, &[], None),
    row("oras", "`discover` of a signature", operations::oras_discover, &[], None),
    row("cosign", "`verify` of a signature", operations::cosign, &[], None),
    row(
        "erofs-utils",
        "`fsck.erofs` of the index of `mount --backend erofs`, the same tree",
        operations::erofs,
        &[],
        Some(&SMALL_BLOCKS),
    ),
    row(
        "composefs",
        "`mkcomposefs` of an exported tree, and `composefs-info ls`",
        operations::composefs,
        &[],
        None,
    ),
];

impl Site {
    fn new() -> Self {
        let (env, registry) = (TestEnv::new(), Registry::start());
        let context = env.context(
            "context",
            "FROM scratch\nCOPY rootfs /\nCOPY a.txt dir /d/\nCMD [\"/bin/busybox\", \"cat\", \"/d/a.txt\"]\n",
            &[("a.txt", "content"), ("dir/b", "b")],
        );
        std::fs::create_dir_all(context.join("rootfs/bin")).unwrap();
        std::fs::copy("/bin/busybox", context.join("rootfs/bin/busybox"))
            .expect("no busybox: run scripts/setup");
        std::os::unix::fs::symlink("busybox", context.join("rootfs/bin/sh")).unwrap();
        for form in FORMS {
            let name = format!("{}/team/app:{form}", registry.host);
            let words = ["build", "--compression", form, "-t", &name, context.to_str().unwrap()];
            env.imgctl(words).ok();
            env.imgctl(["push", "--tls-verify=false", &name]).ok();
            let layout = format!("oci:{}:x", env.path(format!("layout-{form}")).display());
            env.imgctl(["copy", &name, &layout]).ok();
        }
        site_key(&env);
        let name = format!("{}/team/app:none", registry.host);
        let tree = tree::list(&env.export(&name, "exported"));
        Self { dockers: [OnceLock::new(), OnceLock::new()], env, registry, tree }
    }

    /// The image in the registry.
    fn name(&self, form: &str) -> String {
        format!("{}/team/app:{form}", self.registry.host)
    }

    fn digest(&self, form: &str) -> String {
        let layout = self.env.path(format!("layout-{form}/index.json"));
        crate::common::json(&layout)["manifests"][0]["digest"].as_str().unwrap().to_owned()
    }

    /// A path of the test's directory, which is the same inside the file system of the tools.
    fn path(&self, name: &str) -> String {
        self.env.path(name).to_str().unwrap().to_owned()
    }

    fn imgctl(&self, words: &[&str]) -> Result<String, String> {
        let mut command = self.env.command(words);
        command.env("COSIGN_PASSWORD", "pw");
        outcome(&Ran::new(command))
    }

    /// Runs a tool of a suite; gives what it wrote.
    fn run(&self, suite: Suite<'_>, words: &[&str]) -> Result<String, String> {
        outcome(&match suite {
            Suite::Newest(newest) => newest.run(&self.env, words),
            Suite::Installed => Ran::new(tool(words[0], &words[1..])),
        })
    }

    /// Whether a directory holds the tree of the image.
    fn same_tree(&self, place: &str) -> Outcome {
        let found = tree::differences(
            &self.tree,
            &tree::list(&PathBuf::from(place)),
            tree::Compare { times_before: i64::MAX, directory_times: false },
        );
        if found.is_empty() { Ok(()) } else { Err(found.join("\n")) }
    }
}

/// Makes the key that signs.
fn site_key(env: &TestEnv) {
    let mut command = env.command(["key", "generate", "--output-key-prefix", "key"]);
    command.env("COSIGN_PASSWORD", "pw").current_dir(env.path(""));
    Ran::new(command).ok();
}

fn outcome(ran: &Ran) -> Result<String, String> {
    if ran.success() { Ok(ran.stdout()) } else { Err(ran.report()) }
}

impl Suite<'_> {
    fn name(&self) -> &'static str {
        match self {
            Self::Newest(_) => "newest",
            Self::Installed => "installed",
        }
    }

    fn version(&self, package: &str) -> String {
        match self {
            Self::Newest(newest) => newest.version(package),
            Self::Installed => {
                let words = ["-W", "-f", "${Version}", package];
                short_version(&Ran::new(tool("dpkg-query", words)).ok().stdout())
            }
        }
    }
}

/// The cell of a row: the version and the compressions; `wrong` gets what was expected otherwise.
fn cell(
    site: &Site,
    row: &Row,
    suite: Suite<'_>,
    limits: Limits,
    wrong: &mut Vec<String>,
) -> String {
    let mut good = Vec::new();
    for form in FORMS {
        let is_limit = limits.iter().any(|(limit, _)| *limit == form);
        match (row.operation)(site, suite, form) {
            Ok(()) if is_limit => wrong.push(format!("{} {}: {form} works", row.package, row.what)),
            Ok(()) => good.push(form),
            Err(_) if is_limit => {}
            Err(why) => wrong.push(format!(
                "{} {} ({}, {form}): {why}",
                row.package,
                row.what,
                suite.name()
            )),
        }
    }
    let version = suite.version(row.package);
    if good.is_empty()
        && let Some((_, why)) = limits.first()
    {
        return format!("{version}: no, it {why}");
    }
    let forms = if good.len() == FORMS.len() { "all".to_owned() } else { good.join(", ") };
    let mut text = format!("{version}: {forms}");
    for (form, why) in limits {
        let _ = write!(text, "; {form}: {why}");
    }
    text
}

/// Numbers as `0`: other versions than those of the page are no difference.
fn masked(text: &str) -> String {
    let numbers = regex::Regex::new(r"\d+(\.\d+)*").unwrap();
    numbers.replace_all(text, "0").into_owned()
}

#[test]
fn the_table_of_tools_is_what_they_do() {
    let Some(newest) = Newest::with("usr/bin/crane") else { return };
    crate::unpacking::private_mounts();
    let site = Site::new();
    let mut wrong = Vec::new();
    let mut table =
        "| tool | operation | newest Debian | Debian 12 |\n|---|---|---|---|\n".to_owned();
    for row in &ROWS {
        let new = cell(&site, row, Suite::Newest(&newest), row.newest, &mut wrong);
        let old = match row.installed {
            Some(limits) => cell(&site, row, Suite::Installed, limits, &mut wrong),
            None => "not there".to_owned(),
        };
        let _ = writeln!(table, "| {} | {} | {new} | {old} |", row.package, row.what);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
    let path = repository().join(DOCUMENT);
    let page = std::fs::read_to_string(&path).unwrap();
    let (head, rest) = page.split_once(BEGIN).expect("the page has a place for the table");
    let (written, tail) = rest.split_once(END).expect("the table has an end");
    if std::env::var_os("IMGCTL_UPDATE_DOCS").is_some() {
        std::fs::write(path, format!("{head}{BEGIN}\n{table}\n{END}{tail}")).unwrap();
        return;
    }
    assert_eq!(
        masked(written.trim()),
        masked(table.trim()),
        "IMGCTL_UPDATE_DOCS=1 writes {DOCUMENT}"
    );
}
