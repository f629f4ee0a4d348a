//! Holds the source to its own rules: which crate may use which, no circles between the modules of a
//! crate, a head on every file, no long files, and nothing below the command line that prints or
//! reads the environment.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use circles::{Sources, circles};

#[path = "architecture/circles.rs"]
mod circles;

/// Each crate below `crates/`, and the crates that it may use. Cargo refuses circles; this table makes
/// a new arrow a decision.
const CRATES: [(&str, &[&str]); 28] = [
    ("base", &[]),
    ("age", &["base"]),
    ("bake", &["base"]),
    ("kubefile", &["base"]),
    ("recipe", &["base"]),
    ("template", &["base"]),
    ("registry", &["base"]),
    ("report", &["base"]),
    ("layer", &["base"]),
    ("store", &["base", "layer", "template"]),
    ("transfer", &["age", "base", "layer", "registry", "store"]),
    ("trust", &["base", "layer", "registry", "store", "transfer"]),
    ("describe", &["base", "layer", "registry", "report", "store", "transfer", "trust"]),
    ("embed", &["base", "layer", "registry", "store", "template", "transfer"]),
    ("sandbox", &["base", "store"]),
    (
        "build",
        &[
            "base", "embed", "kubefile", "layer", "registry", "sandbox", "store", "transfer",
            "trust",
        ],
    ),
    ("host", &["base", "layer", "registry", "store", "template", "transfer"]),
    ("kube", &["base"]),
    ("journal", &["base"]),
    ("inplace", &["base", "journal", "kube", "registry"]),
    ("model", &["age", "base", "host", "registry", "store", "template"]),
    ("runtime", &["base", "host", "journal", "kube", "model", "registry", "template"]),
    (
        "workflow",
        &[
            "age", "base", "host", "journal", "kube", "layer", "model", "registry", "runtime",
            "store", "template", "transfer",
        ],
    ),
    ("ui", &["base", "journal"]),
    (
        "upgrade",
        &[
            "base", "host", "journal", "kube", "layer", "model", "runtime", "store", "template",
            "workflow",
        ],
    ),
    (
        "ops",
        &[
            "age", "base", "host", "inplace", "journal", "kube", "layer", "model", "registry",
            "report", "runtime", "store", "transfer", "upgrade", "workflow",
        ],
    ),
    ("console", &["base", "describe", "layer", "ops", "registry", "report", "store"]),
    (
        "frontend",
        &[
            "base", "build", "describe", "host", "inplace", "journal", "layer", "model", "ops",
            "registry", "report", "runtime", "store", "template", "transfer", "trust", "ui",
            "upgrade", "workflow",
        ],
    ),
];

/// The root package: the verbs.
const ROOT: &str = "imgctl";

const LONGEST_FILE: usize = 600;

/// Where the files of the verbs are, and how many modules of the workspace each may name.
const VERBS: &str = "src/cli/commands/";
const MODULES_OF_A_VERB: usize = 12;

/// Where a verdict about an image is made, which names and pushes of images take. A new place is a new way into a
/// store: it asks the policy, or the reason why it need not is here.
const VERDICTS: [(&str, &str, &str); 7] = [
    ("by_policy", "crates/registry/src/client/mod.rs", "the gate has decided"),
    (
        "by_policy",
        "crates/transfer/src/transfer/arbiter.rs",
        "there is no policy, or it was built here",
    ),
    ("made_from", "crates/build/src/build/engine.rs", "out of base images, each with its verdict"),
    ("made_from", "crates/transfer/src/transfer/manifest_list.rs", "out of members with verdicts"),
    ("made_from", "src/cli/commands/edit.rs", "out of the images that were named"),
    ("not_asked", "crates/host/src/agent/tree/history.rs", "the record of a tree is no image"),
    (
        "not_asked",
        "crates/transfer/src/transfer/store_backend/writable.rs",
        "hosts: their controller asked",
    ),
];

/// As [`VERDICTS`], for who admits everything.
const ARBITERS: [(&str, &str); 8] = [
    ("crates/build/src/build/base_image.rs", "a build without registries, which only tests make"),
    ("crates/workflow/src/apps/steps.rs", "parts of an image that has been admitted"),
    ("crates/ops/src/session.rs", "no policy exists"),
    (
        "crates/transfer/src/transfer/copy.rs",
        "into a scratch store, and asked when it is copied from there",
    ),
    ("crates/transfer/src/backup/place.rs", "backups are no images"),
    ("crates/transfer/src/transfer/push.rs", "the source has its verdict"),
    ("crates/transfer/src/transfer/shelf.rs", "reads documents, copies nothing"),
    ("crates/frontend/src/registry_options.rs", "no policy exists"),
];

struct Source {
    /// Relative to the repository.
    path: PathBuf,
    /// Without `imgctl-`.
    package: String,
    text: String,
}

fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn sources() -> Vec<Source> {
    let mut sources = in_package(ROOT, "src");
    for (package, _) in CRATES {
        let found = in_package(package, &format!("crates/{package}/src"));
        assert!(!found.is_empty(), "crates/{package} has no sources");
        sources.extend(found);
    }
    sources
}

fn in_package(package: &str, folder: &str) -> Vec<Source> {
    let mut sources = Vec::new();
    for entry in walkdir::WalkDir::new(repository().join(folder)).sort_by_file_name() {
        let path = entry.unwrap().into_path();
        if path.extension().is_some_and(|end| end == "rs") {
            sources.push(Source {
                package: package.to_owned(),
                text: std::fs::read_to_string(&path).unwrap(),
                path: path.strip_prefix(repository()).unwrap().to_owned(),
            });
        }
    }
    sources
}

/// The text without comments and without `#[cfg(test)]` modules at the file's end.
fn code(text: &str) -> String {
    let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
    text.lines().map(|line| line.split("//").next().unwrap()).collect::<Vec<_>>().join("\n")
}

/// The members of a `{a::b, c::{d, e}}` group, each up to the group's end; `group` starts behind the
/// brace.
fn members(group: &str) -> Vec<&str> {
    let (mut depth, mut members, mut start) = (1, Vec::new(), true);
    for (at, character) in group.char_indices() {
        match character {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 1 => start = true,
            _ if character.is_whitespace() => {}
            _ if start => {
                members.push(&group[at..]);
                start = false;
            }
            _ => {}
        }
        if depth == 0 {
            break;
        }
    }
    members
}

fn word(text: &str) -> String {
    text.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect()
}

/// The path of a source's module, as in `crate::cli::context` or `imgctl_base::error`.
fn module_path(source: &Source) -> String {
    let parts: Vec<&str> = source.path.iter().map(|part| part.to_str().unwrap()).collect();
    let (root, inside) = match parts.as_slice() {
        ["crates", package, "src", inside @ ..] => (format!("imgctl_{package}"), inside),
        ["src", inside @ ..] => ("crate".to_owned(), inside),
        _ => panic!("{} is in no package", source.path.display()),
    };
    let names = inside.iter().map(|part| part.trim_end_matches(".rs"));
    let names = names.filter(|name| !["mod", "lib"].contains(name));
    std::iter::once(root.as_str()).chain(names).collect::<Vec<_>>().join("::")
}

/// All paths that a path with groups stands for: `a::{b, c::d}` is `a::b` and `a::c::d`.
fn expanded(text: &str) -> Vec<String> {
    let head = word(text);
    let Some(rest) = text[head.len()..].strip_prefix("::") else {
        return vec![head];
    };
    let members = match rest.strip_prefix('{') {
        None => expanded(rest),
        Some(group) => members(group).into_iter().flat_map(expanded).collect(),
    };
    members.iter().map(|member| format!("{head}::{member}")).collect()
}

/// The modules among `modules` that a source names by a path from the root of a crate, or from
/// `super`.
fn modules_named(source: &Source, modules: &BTreeSet<String>) -> BTreeSet<String> {
    let own = module_path(source);
    let parent = own.rsplit_once("::").map_or("crate", |(parent, _)| parent);
    let code = code(&source.text).replace("super::", &format!("{parent}::"));
    let mut found = BTreeSet::new();
    for (at, _) in code.match_indices("crate::").chain(code.match_indices("imgctl_")) {
        if code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == ':') {
            continue;
        }
        for path in expanded(&code[at..]) {
            let mut module = path.as_str();
            while !modules.contains(module)
                && let Some((above, _)) = module.rsplit_once("::")
            {
                module = above;
            }
            if modules.contains(module) && module != own {
                found.insert(module.to_owned());
            }
        }
    }
    found
}

/// The crates of this workspace that a manifest names in one of its sections.
fn dependencies(manifest: &str, section: &str) -> BTreeSet<String> {
    let header = format!("[{section}]");
    manifest
        .lines()
        .skip_while(|line| line.trim() != header)
        .skip(1)
        .take_while(|line| !line.starts_with('['))
        .filter_map(|line| line.strip_prefix("imgctl-"))
        .map(|rest| rest.split(['.', ' ', '=']).next().unwrap().to_owned())
        .collect()
}

#[test]
fn verdicts_about_images_are_made_where_the_policy_is_asked() {
    let mut expected: BTreeSet<(String, String)> = VERDICTS
        .iter()
        .map(|(how, file, _)| (format!("Verdict::{how}("), (*file).to_owned()))
        .collect();
    expected.extend(
        ARBITERS.iter().map(|(file, _)| ("Arbiter::everything".to_owned(), (*file).to_owned())),
    );
    let makers = ["by_policy(", "made_from(", "not_asked("].map(|how| format!("Verdict::{how}"));
    let makers: Vec<String> =
        makers.into_iter().chain(["Arbiter::everything".to_owned()]).collect();
    let mut found = BTreeSet::new();
    for source in sources() {
        let path = source.path.to_str().unwrap();
        let is_test =
            path.ends_with("tests.rs") || path.contains("/tests/") || path.ends_with("/testing.rs");
        if is_test {
            continue;
        }
        let code = code(&source.text);
        for maker in makers.iter().filter(|maker| code.contains(maker.as_str())) {
            found.insert((maker.clone(), path.to_owned()));
        }
    }
    assert_eq!(found, expected, "see VERDICTS and ARBITERS");
}

#[test]
fn every_crate_uses_what_the_table_allows() {
    let mut there: Vec<String> = std::fs::read_dir(repository().join("crates"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    there.sort();
    let mut known: Vec<&str> = CRATES.iter().map(|(name, _)| *name).collect();
    known.sort_unstable();
    assert_eq!(
        there, known,
        "crates/ and the table CRATES differ; docs/architecture.md has the same table"
    );
    for (name, allowed) in CRATES {
        let path = repository().join(format!("crates/{name}/Cargo.toml"));
        let manifest = std::fs::read_to_string(path).unwrap();
        let used = dependencies(&manifest, "dependencies");
        let allowed: BTreeSet<String> = allowed.iter().map(|&name| name.to_owned()).collect();
        assert_eq!(used, allowed, "crates/{name} uses other crates");
        let (tests, code): (Vec<Source>, Vec<Source>) =
            in_package(name, &format!("crates/{name}/src"))
                .into_iter()
                .partition(|source| is_for_tests(&source.path));
        let named: BTreeSet<String> =
            code.iter().flat_map(|source| crates_named(&self::code(&source.text))).collect();
        assert_eq!(named, allowed, "the manifest of crates/{name} and its code differ");
        let everywhere: BTreeSet<String> =
            code.iter().chain(&tests).flat_map(|source| crates_named(&source.text)).collect();
        for other in dependencies(&manifest, "dev-dependencies") {
            assert!(
                allowed.contains(&other) || other == name,
                "the tests of crates/{name} use {other}"
            );
            assert!(everywhere.contains(&other), "the tests of crates/{name} do not use {other}");
        }
    }
}

/// The crates of this workspace that a source names, without `imgctl_`.
fn crates_named(code: &str) -> BTreeSet<String> {
    code.match_indices("imgctl_")
        .filter(|(at, _)| !code[..*at].ends_with(|c: char| c.is_alphanumeric() || c == '_'))
        .map(|(at, prefix)| (word(&code[at + prefix.len()..]), at + prefix.len()))
        .filter(|(name, at)| code[at + name.len()..].starts_with("::"))
        .map(|(name, _)| name)
        .collect()
}

#[test]
fn the_documented_table_of_crates_is_this_one() {
    let document = std::fs::read_to_string(repository().join("docs/architecture.md")).unwrap();
    for (name, allowed) in CRATES {
        let allowed = match allowed {
            [] => "-".to_owned(),
            _ => allowed.join(", "),
        };
        let found = document.lines().any(|line| {
            line.starts_with(&format!("| `{name}` |")) && line.ends_with(&format!("| {allowed} |"))
        });
        assert!(found, "docs/architecture.md lacks the row of crate {name} with `{allowed}`");
    }
}

#[test]
fn files_and_modules_form_no_circle() {
    let folders = CRATES.iter().map(|(name, _)| (*name, format!("crates/{name}/src")));
    for (name, folder) in folders.chain([(ROOT, "src".to_owned())]) {
        let sources = Sources::read(&repository().join(folder));
        let mut found = circles(&sources.between_files());
        found.extend(circles(&sources.between_top_modules()));
        let found: Vec<String> = found.iter().map(|arrows| arrows.join("\n")).collect();
        assert!(found.is_empty(), "circles in {name}:\n{}", found.join("\n\n"));
    }
}

#[test]
fn a_verb_names_at_most_a_dozen_modules() {
    let sources = sources();
    let modules: BTreeSet<String> = sources.iter().map(module_path).collect();
    let verbs: Vec<&Source> =
        sources.iter().filter(|source| source.path.starts_with(VERBS)).collect();
    assert!(verbs.len() > 30, "{VERBS} has the files of the verbs");
    let mut many = Vec::new();
    for source in verbs {
        let named = modules_named(source, &modules);
        if named.len() > MODULES_OF_A_VERB {
            let named: Vec<String> = named.into_iter().collect();
            many.push(format!("{}: {}: {named:?}", source.path.display(), named.len()));
        }
    }
    assert!(
        many.is_empty(),
        "a verb turns arguments into a request, calls one function and shows the outcome; these \
         name more than {MODULES_OF_A_VERB} modules:\n{}",
        many.join("\n")
    );
}

#[test]
fn every_file_says_what_it_is_for() {
    for source in sources() {
        let head = source.text.lines().next().unwrap_or_default();
        assert!(head.starts_with("//! "), "{} does not begin with //!", source.path.display());
    }
}

#[test]
fn no_file_is_too_long() {
    let long: Vec<String> = sources()
        .iter()
        .map(|source| (source.text.lines().count(), source))
        .filter(|(lines, _)| *lines > LONGEST_FILE)
        .map(|(lines, source)| format!("{}: {lines} lines", source.path.display()))
        .collect();
    assert!(long.is_empty(), "over {LONGEST_FILE} lines:\n{}", long.join("\n"));
}

/// Where files of hosts are made of values: they cannot be files of the source.
const TEMPLATES: [&str; 2] =
    ["crates/workflow/src/apps/managed.rs", "crates/workflow/src/apps/sudo.rs"];

/// A program that hosts run is a file beside the module that runs it, where `scripts/shellcheck` finds it.
#[test]
fn programs_of_hosts_are_files() {
    let ends_a_command = |line: &str| {
        let rest = ["fi", "esac", "done"].iter().find_map(|word| line.trim().strip_prefix(word));
        rest.is_some_and(|rest| ["\\n", "\"", ";"].iter().any(|part| rest.starts_with(part)))
            || ["fi", "esac"].contains(&line.trim())
    };
    let found: BTreeSet<String> = sources()
        .iter()
        .filter(|source| !is_for_tests(&source.path))
        .filter(|source| code(&source.text).lines().any(ends_a_command))
        .map(|source| source.path.display().to_string())
        .collect();
    let known: BTreeSet<String> = TEMPLATES.map(str::to_owned).into();
    assert_eq!(
        found, known,
        "a program is a .sh file: see \"Programs of hosts\" in docs/architecture.md"
    );
}

/// Where docs/architecture.md says how large each crate is.
const SIZES: &str = "### Sizes";
/// By how many lines a crate may be smaller than its table says.
const ROOM: usize = 250;

/// A crate grows only with a reason: a larger number in the table is a decision.
#[test]
fn crates_are_as_large_as_their_table_says() {
    let page = std::fs::read_to_string(repository().join("docs/architecture.md")).unwrap();
    let (_, table) = page.split_once(SIZES).expect("docs/architecture.md has no sizes");
    let said: BTreeMap<String, usize> = table
        .lines()
        .skip_while(|line| !line.starts_with("|---"))
        .skip(1)
        .take_while(|line| line.starts_with('|'))
        .map(|line| {
            let mut cells = line.split('|').map(str::trim).skip(1);
            let name = cells.next().unwrap().trim_matches('`').to_owned();
            (name, cells.next().unwrap().replace(',', "").parse().unwrap())
        })
        .collect();
    let mut lines: BTreeMap<String, usize> = BTreeMap::new();
    for source in sources().iter().filter(|source| !is_for_tests(&source.path)) {
        let text = source.text.split("#[cfg(test)]\nmod tests {").next().unwrap();
        *lines.entry(source.package.clone()).or_default() += text.lines().count();
    }
    let wrong: Vec<String> = lines
        .iter()
        .filter_map(|(name, lines)| {
            let most = *said.get(name)?;
            let fits = *lines <= most && most < lines + ROOM;
            (!fits).then(|| format!("{name}: {lines} lines, the table says {most}"))
        })
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(lines.keys().eq(said.keys()), "{lines:?}\n{said:?}");
}

/// Whether a file holds only tests, or what only tests use.
fn is_for_tests(path: &Path) -> bool {
    path.components().any(|part| {
        let name = part.as_os_str().to_string_lossy();
        let stem = name.strip_suffix(".rs").unwrap_or(&name);
        ["tests", "testing", "against_helm"].contains(&stem)
            || ["_tests", "_testing"].iter().any(|end| stem.ends_with(end))
    })
}

#[test]
fn only_the_command_line_prints_and_reads_the_environment() {
    let forbidden = [
        "env::var(",
        "env::var_os(",
        "env::vars(",
        "env::vars_os(",
        "env::args",
        "println!",
        "print!(",
        "eprint!(",
    ];
    let mut wrong = Vec::new();
    for source in sources().iter().filter(|source| source.package != ROOT) {
        // Behind the feature `testing`, which no release has.
        if source.path.ends_with("testing.rs") {
            continue;
        }
        let code = code(&source.text);
        for word in forbidden.iter().filter(|word| code.contains(**word)) {
            wrong.push(format!("{} says {word}", source.path.display()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Files that may name the standard streams: the edge at which text leaves escaped, and what needs the
/// descriptors alone. `clippy.toml` refuses them elsewhere, unless a file says that it expects them.
const STREAMS: [&str; 4] = [
    "crates/ui/src/edge.rs",
    "crates/ui/src/tty.rs",
    "crates/sandbox/src/init.rs",
    "crates/host/src/agent/server/stdio.rs",
];

#[test]
fn text_leaves_at_one_place() {
    let words = ["io::stdout", "io::stderr", "println!", "print!(", "set_message(", "/dev/tty"];
    let mut wrong = Vec::new();
    for source in sources() {
        // Behind the feature `testing`, which no release has, and tests.
        if STREAMS.iter().any(|file| source.path.ends_with(file))
            || source.path.components().any(|part| part.as_os_str() == "testing")
            || ["testing.rs", "tests.rs"].iter().any(|name| source.path.ends_with(name))
        {
            continue;
        }
        let code = code(&source.text);
        let found = words.iter().filter(|word| code.contains(**word));
        wrong.extend(found.map(|word| format!("{} says {word}", source.path.display())));
    }
    assert!(wrong.is_empty(), "only crates/ui/src/edge.rs writes text:\n{}", wrong.join("\n"));
}

/// Cargo is told the roots (`autotests = false`), so a file that nothing declares would never run.
#[test]
fn every_test_file_is_reached_from_a_test_binary() {
    let manifest = std::fs::read_to_string(repository().join("Cargo.toml")).unwrap();
    let roots = manifest.lines().filter_map(|line| line.strip_prefix("path = \"tests/"));
    let mut pending: Vec<PathBuf> =
        roots.map(|rest| PathBuf::from("tests").join(rest.trim_end_matches('"'))).collect();
    let files: BTreeMap<PathBuf, String> =
        in_package("tests", "tests").into_iter().map(|file| (file.path, file.text)).collect();
    let mut reached = BTreeSet::new();
    while let Some(path) = pending.pop() {
        let text = files.get(&path).unwrap_or_else(|| panic!("no {}", path.display()));
        pending.extend(modules(&path, text));
        reached.insert(path);
    }
    let forgotten: Vec<_> = files.keys().filter(|path| !reached.contains(*path)).collect();
    assert!(forgotten.is_empty(), "no `mod` leads to {forgotten:?}");
}

/// The files of the modules that a file declares.
fn modules(path: &Path, text: &str) -> Vec<PathBuf> {
    let directory = path.parent().unwrap();
    let stem = path.file_stem().unwrap();
    // `#[path]` counts from the file's own folder, everything else from that of its module.
    let owns = if ["main", "mod"].iter().any(|root| stem == *root) {
        directory.to_owned()
    } else {
        directory.join(stem)
    };
    let mut found = Vec::new();
    let mut given = None;
    for line in text.lines() {
        let line = line.trim_start_matches("pub(crate) ");
        if let Some(rest) = line.strip_prefix("#[path = \"") {
            let mut file = directory.to_owned();
            for part in Path::new(rest.trim_end_matches("\"]")) {
                if part == ".." {
                    file.pop()
                } else {
                    file.push(part);
                    true
                };
            }
            given = Some(file);
        } else if let Some(name) = line.strip_prefix("mod ").and_then(|rest| rest.strip_suffix(';'))
        {
            let file = owns.join(name).with_extension("rs");
            let folder = owns.join(name).join("mod.rs");
            let there = if repository().join(&file).exists() { file } else { folder };
            found.push(given.take().unwrap_or(there));
        }
    }
    found
}

/// The arrows of a crate of these files, without its folder's name.
fn arrows_of(files: &[(&str, &str)]) -> Vec<String> {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in files {
        let path = folder.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    let prefix = format!("{}/", folder.path().display());
    let arrows = Sources::read(folder.path()).between_files();
    let line = |((from, to), names): (&(String, String), &BTreeSet<String>)| {
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        format!("{from} -> {to}: {}", names.join(" ")).replace(&prefix, "")
    };
    arrows.iter().map(line).collect()
}

#[test]
fn arrows_lead_to_the_file_that_defines_a_name() {
    let arrows = arrows_of(&[
        ("lib.rs", "pub mod a;\nmod b;\n#[cfg(test)]\nmod absent;\nuse a::Own;\n"),
        (
            "a/mod.rs",
            "mod deep;\nmod other;\npub use self::deep::{Given, Other as Renamed};\n\
             pub use other::*;\npub struct Own;\n",
        ),
        ("a/deep.rs", "use super::{Own, other::Third};\npub struct Given; pub struct Other;\n"),
        ("a/other.rs", "pub struct Third;\n#[cfg(test)]\nuse crate::b::Hidden;\n"),
        (
            "b.rs",
            "use crate::{a::{self, Given as G}, std};\nuse serde::Value;\n\
             // crate::a::InComment\nconst S: &str = \"crate::a::InText\";\n\
             fn f<'a>(x: a::Renamed, y: char) -> impl Fn() + use<'a> { '\"'; a::Own::new() }\n\
             mod inner { fn g() { super::super::a::Third::new() } }\n\
             #[cfg(test)]\nmod tests { use crate::a::Tested; }\n",
        ),
    ]);
    assert_eq!(
        arrows,
        [
            "a/deep.rs -> a/other.rs: Third",
            "b.rs -> a/deep.rs: Given Other",
            "b.rs -> a/mod.rs: Own a",
            "b.rs -> a/other.rs: Third",
            "lib.rs -> a/mod.rs: Own",
        ]
    );
}

#[test]
fn circles_are_found_and_kept_apart() {
    let arrow = |from: &str, to: &str| ((from.to_owned(), to.to_owned()), BTreeSet::new());
    let pairs = ["ab", "bc", "ca", "cd", "de", "ed", "ef"];
    let arrows = pairs.iter().map(|pair| arrow(&pair[..1], &pair[1..])).collect();
    assert_eq!(
        circles(&arrows),
        [["a -> b: ", "b -> c: ", "c -> a: "].as_slice(), &["d -> e: ", "e -> d: "]]
    );
    assert!(circles(&[arrow("a", "b"), arrow("a", "c"), arrow("b", "c")].into()).is_empty());
}

#[test]
fn the_reader_of_modules_reads_groups_and_items() {
    let source = |text: &str| Source {
        path: "src/cli/commands/run.rs".into(),
        package: ROOT.to_owned(),
        text: text.to_owned(),
    };
    let modules =
        ["crate::cli::commands::add", "crate::ui", "imgctl_base::fs", "imgctl_base::fs::a"];
    let modules: BTreeSet<String> = modules.map(str::to_owned).into();
    let text = "use crate::{cli::commands::run, ui::Ui};\nuse imgctl_base::fs::{a::Item, root};\n\
                // crate::other\nfn f() { super::add::run(my_crate::ui::x) }\n";
    assert_eq!(modules_named(&source(text), &modules), modules);
}

#[test]
fn the_reader_of_manifests_reads_one_section() {
    let text = "[dependencies]\nimgctl-base.workspace = true\nserde = \"1\"\n\n\
                [dev-dependencies]\nimgctl-kube = { workspace = true }\n[lints]\nimgctl-x = 1\n";
    assert_eq!(dependencies(text, "dependencies"), ["base".to_owned()].into());
    assert_eq!(dependencies(text, "dev-dependencies"), ["kube".to_owned()].into());
}
