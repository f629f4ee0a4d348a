//! Renders charts with imgctl and with Helm 4 and Helm 3 (`scripts/referees`): both make the same
//! manifests, both refuse, or the corpus says that they differ.
//!
//! `== NAME ==` begins a chart of the corpus, `-- PATH --` a file of it. A path through `X.tgz/` packs what is
//! below. `given.yaml` holds values that are passed. `expressions` has a template in each line, or an
//! expression whose text and JSON count. `~` before an expression, or a file `differs`, says that Helm
//! answers otherwise, `3~` or `4~` that only that version does; the comment above says why.

mod generated;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use super::tests::packed;
use super::{Chart, RenderOptions};
use imgctl_template::yaml;

/// Files of a chart by path.
type Files = BTreeMap<String, Vec<u8>>;
/// Documents by template, sorted; or the error.
type Outcome = Result<BTreeMap<String, Vec<Value>>, String>;

const NAMES: [&str; 2] = ["4", "3"];

/// Returns Helm 4 and Helm 3, if `scripts/referees` has installed them.
fn helms() -> Option<[PathBuf; 2]> {
    let place = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/referees");
    let helms = NAMES.map(|name| place.join(format!("helm-{name}")));
    if helms.iter().all(|helm| helm.exists()) {
        return Some(helms);
    }
    imgctl_base::testing::skip("scripts/referees has not run");
    None
}

/// Splits a text into documents as Helm does, with the template that a comment names.
fn documents(text: &str, named: Option<&str>, all: &mut BTreeMap<String, Vec<Value>>) {
    let mut path = named.unwrap_or("").to_owned();
    let mut parts: Vec<String> = vec![String::new()];
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("---") {
            parts.push(format!("{rest}\n"));
        } else if let Some(part) = parts.last_mut() {
            part.push_str(line);
            part.push('\n');
        }
    }
    for part in parts {
        let source = part.lines().find_map(|line| line.strip_prefix("# Source: "));
        if let Some(source) = source.filter(|_| named.is_none()) {
            source.clone_into(&mut path);
        }
        let document = yaml::parse_first(&part).unwrap_or_else(|error| panic!("{error}: {part}"));
        if !document.is_null() {
            all.entry(path.clone()).or_default().push(document);
        }
    }
}

fn sorted(mut all: BTreeMap<String, Vec<Value>>) -> BTreeMap<String, Vec<Value>> {
    all.values_mut().for_each(|list| list.sort_by_key(ToString::to_string));
    all
}

/// A chart on disk, where Helm reads it.
struct OnDisk(tempfile::TempDir);

impl OnDisk {
    fn new(files: &Files) -> Self {
        let place = Self(tempfile::tempdir().unwrap());
        files.iter().for_each(|(path, content)| place.write(path, content));
        place
    }

    fn write(&self, path: &str, content: &[u8]) {
        let path = self.0.path().join("chart").join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }

    fn remove(&self, path: &str) {
        std::fs::remove_file(self.0.path().join("chart").join(path)).unwrap();
    }

    fn rendered(&self, helm: &Path, given: Option<&[u8]>) -> Outcome {
        let mut command = Command::new(helm);
        command.args(["template", "rel", "chart", "--namespace", "default", "--include-crds"]);
        command.args(["--kube-version", "1.34.0", "--api-versions", "example.com/v1"]);
        if let Some(given) = given {
            std::fs::write(self.0.path().join("given.yaml"), given).unwrap();
            command.args(["--values", "given.yaml"]);
        }
        command.current_dir(self.0.path()).env_clear().env("HOME", self.0.path());
        let output = command.output().unwrap();
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).into_owned());
        }
        let mut all = BTreeMap::new();
        documents(str::from_utf8(&output.stdout).unwrap(), None, &mut all);
        Ok(sorted(all))
    }
}

fn ours(files: &Files, given: Option<&[u8]>) -> Outcome {
    let options = RenderOptions {
        release: "rel".to_owned(),
        namespace: "default".to_owned(),
        kubernetes: "v1.34.0".to_owned(),
        api_versions: vec!["example.com/v1".to_owned()],
    };
    let values = |given| super::values_of(str::from_utf8(given).unwrap()).unwrap();
    let given = given.map(|given| Value::Object(values(given)));
    let rendered = Chart::load(files.clone())
        .and_then(|chart| chart.render(&given.into_iter().collect::<Vec<_>>(), &options));
    let rendered = rendered.map_err(|error| format!("{error}"))?;
    let mut all = BTreeMap::new();
    rendered.iter().for_each(|one| documents(&one.text, Some(&one.path), &mut all));
    Ok(sorted(all))
}

/// Asks both at the same time.
fn of_both<T: Send>(helms: &[PathBuf; 2], ask: impl Fn(&Path) -> T + Sync) -> [T; 2] {
    std::thread::scope(|scope| {
        let threads = helms.each_ref().map(|helm| scope.spawn(|| ask(helm)));
        threads.map(|thread| thread.join().unwrap())
    })
}

/// Whether both have the same documents, or both are errors.
fn agree(ours: &Outcome, theirs: &Outcome) -> bool {
    match (ours, theirs) {
        (Ok(ours), Ok(theirs)) => ours == theirs,
        (Err(_), Err(_)) => true,
        _ => false,
    }
}

fn shown(outcome: &Outcome) -> String {
    match outcome {
        Ok(all) => serde_json::to_string(all).unwrap(),
        Err(error) => format!("error: {}", error.trim_end()),
    }
}

/// A chart of the corpus.
struct Case {
    name: &'static str,
    files: Files,
    given: Option<Vec<u8>>,
    expressions: String,
    differs: String,
}

impl Case {
    fn parse(name: &'static str, text: &str) -> Self {
        let mut files = Files::new();
        let mut path = String::new();
        for line in text.split_inclusive('\n') {
            let begins = line.trim_end().strip_prefix("-- ").and_then(|l| l.strip_suffix(" --"));
            match begins {
                Some(begins) => {
                    begins.clone_into(&mut path);
                    files.insert(path.clone(), Vec::new());
                }
                None => {
                    files.get_mut(&path).into_iter().for_each(|f| f.extend(line.as_bytes()));
                }
            }
        }
        let mut taken = |path: &str| files.remove(path);
        let given = taken("given.yaml");
        let [expressions, differs] = ["expressions", "differs"]
            .map(|path| String::from_utf8(taken(path).unwrap_or_default()).unwrap());
        let mut archives: BTreeMap<String, Files> = BTreeMap::new();
        files.retain(|path, content| match path.split_once(".tgz/") {
            Some((archive, below)) => {
                let archive = archives.entry(format!("{archive}.tgz")).or_default();
                archive.insert(below.to_owned(), std::mem::take(content));
                false
            }
            None => true,
        });
        for (archive, below) in archives {
            let below: Vec<(&str, &[u8])> = below.iter().map(|(p, c)| (&**p, &**c)).collect();
            files.insert(archive, packed(&below));
        }
        Self { name, files, given, expressions, differs }
    }
}

/// The charts of a file of the corpus.
fn corpus(text: &'static str) -> impl Iterator<Item = Case> {
    let charts = text.split("== ").skip(1).map(|chart| chart.split_once(" ==\n").unwrap());
    charts.map(|(name, text)| Case::parse(name, text))
}

#[test]
fn charts_render_as_in_helm() {
    let Some(helms) = helms() else { return };
    let mut wrong = Vec::new();
    for case in corpus(include_str!("corpus/charts.txt")) {
        let ours = ours(&case.files, case.given.as_deref());
        let both =
            of_both(&helms, |helm| OnDisk::new(&case.files).rendered(helm, case.given.as_deref()));
        for (theirs, name) in both.into_iter().zip(NAMES) {
            let may_differ =
                case.differs.starts_with('~') || case.differs.starts_with(&format!("{name}~"));
            if agree(&ours, &theirs) == may_differ {
                let (case, ours, theirs) = (case.name, shown(&ours), shown(&theirs));
                wrong.push(format!(
                    "== {case}\n{:>7}: {ours}\n{:>7}: {theirs}",
                    "imgctl",
                    format!("Helm {name}")
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The template of an expression, which renders to one document.
fn template(number: usize, line: &str) -> String {
    let body = if line.contains("{{") {
        line.to_owned()
    } else {
        format!("{{{{ $x := {line} }}}}{{{{ $x }}}} {{{{ toJson $x }}}}")
    };
    format!(
        "{{{{ define \"{number}\" }}}}{body}{{{{ end }}}}text: {{{{ include \"{number}\" . | toJson }}}}\n"
    )
}

fn file_of(number: usize) -> String {
    format!("templates/{number:04}.yaml")
}

/// What a Helm makes of many templates in one chart: those that it refuses are taken out one by one, and
/// `alone` says of which that is likely.
fn each(
    files: &Files,
    helm: &Path,
    templates: &[String],
    alone: &[bool],
) -> Vec<Result<Value, String>> {
    let mut refused = BTreeMap::new();
    let disk = OnDisk::new(files);
    for (number, template) in templates.iter().enumerate().filter(|(number, _)| alone[*number]) {
        let path = file_of(number);
        disk.write(&path, template.as_bytes());
        if let Err(error) = disk.rendered(helm, None) {
            refused.insert(number, error);
            disk.remove(&path);
        }
    }
    for (number, template) in templates.iter().enumerate().filter(|(number, _)| !alone[*number]) {
        disk.write(&file_of(number), template.as_bytes());
    }
    let all = loop {
        match disk.rendered(helm, None) {
            Ok(all) => break all,
            Err(error) => {
                let number = error.split("templates/").find_map(|rest| rest.get(..4)?.parse().ok());
                let number: usize = number.unwrap_or_else(|| panic!("{error}"));
                disk.remove(&file_of(number));
                assert!(refused.insert(number, error.clone()).is_none(), "{error}");
            }
        }
    };
    let of = |number: usize| match refused.remove(&number) {
        Some(error) => Err(error),
        None => {
            Ok(all.get(&format!("chart/{}", file_of(number))).map_or(Value::Null, |d| d[0].clone()))
        }
    };
    (0..templates.len()).map(of).collect()
}

fn our_one(files: &Files, number: usize, template: &str) -> Result<Value, String> {
    let mut files = files.clone();
    let path = file_of(number);
    files.insert(path.clone(), template.as_bytes().to_vec());
    let all = ours(&files, None)?;
    Ok(all.get(&format!("chart/{path}")).map_or(Value::Null, |d| d[0].clone()))
}

#[test]
fn expressions_have_the_values_of_helm() {
    let Some(helms) = helms() else { return };
    let case = corpus(include_str!("corpus/expressions.txt")).next().unwrap();
    let lines = case.expressions.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let lines: Vec<(&str, &str)> = lines
        .map(|line| line.split_once("~ ").filter(|(mark, _)| mark.len() < 2).unwrap_or(("=", line)))
        .collect();
    let templates: Vec<String> =
        lines.iter().enumerate().map(|(number, (_, line))| template(number, line)).collect();
    let mut wrong = Vec::new();
    let ours: Vec<_> =
        templates.iter().enumerate().map(|(n, text)| our_one(&case.files, n, text)).collect();
    let alone: Vec<bool> = ours.iter().map(Result::is_err).collect();
    let theirs = of_both(&helms, |helm| each(&case.files, helm, &templates, &alone));
    for (theirs, name) in theirs.iter().zip(NAMES) {
        for (((mark, line), ours), theirs) in lines.iter().zip(&ours).zip(theirs) {
            let same = match (ours, theirs) {
                (Ok(ours), Ok(theirs)) => ours == theirs,
                (ours, theirs) => ours.is_err() == theirs.is_err(),
            };
            if same == (mark.is_empty() || *mark == name) {
                wrong.push(format!(
                    "{mark} {line}\n   imgctl: {ours:?}\n   Helm {name}: {theirs:?}"
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{}\n{} differ", wrong.join("\n"), wrong.len());
}
