//! The recipes that are shipped, and what is made of choices among them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use super::File;
use super::catalogue::Catalogue;
use super::chart::Chart;
use super::choice::{self, Request};
use super::compose::{self, variables_of};
use super::composition::{ARCHITECTURES, Composition, Forge};
use super::declaration::{Declaration, Kind};
use super::record::Record;
use super::write::write;
use imgctl_base::settings::{SETTINGS_FILE, Settings};

/// Lines of a Kubefile beside the table of downloads: what a person reads.
const MOST_LINES: usize = 20;

fn recipes() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../images/recipes"))
}

fn request(recipes: &[&str]) -> Request {
    Request { recipes: recipes.iter().map(|&name| name.to_owned()).collect(), ..Request::default() }
}

fn names(catalogue: &Catalogue, request: &Request) -> Vec<String> {
    let parts = choice::decide(catalogue, request).unwrap();
    parts.iter().map(|part| format!("{}@{}", part.name(), part.release.version)).collect()
}

fn refusal(catalogue: &Catalogue, request: &Request) -> String {
    let error = choice::decide(catalogue, request).unwrap_err();
    format!("{} / {}", error.chain().join(": "), error.hints().join(" "))
}

fn composition<'a>(
    catalogue: &'a Catalogue,
    request: &Request,
    charts: Vec<Chart>,
) -> Composition<'a> {
    Composition {
        name: "demo".into(),
        parts: choice::decide(catalogue, request).unwrap(),
        architectures: ARCHITECTURES.map(str::to_owned).to_vec(),
        charts,
        forge: None,
    }
}

fn text<'a>(files: &'a [File], path: &str) -> &'a str {
    let file = files.iter().find(|file| file.path == path);
    std::str::from_utf8(&file.unwrap_or_else(|| panic!("{path} is missing")).bytes).unwrap()
}

/// The publishers' checksums by address, from the list beside the recipes.
fn published() -> BTreeMap<String, String> {
    let list = fs::read_to_string(recipes().join("checksums")).unwrap();
    let lines = list.lines().filter(|line| !line.starts_with('#'));
    lines
        .map(|line| {
            let (sum, url) = line.split_once("  ").unwrap();
            (url.to_owned(), sum.to_owned())
        })
        .collect()
}

#[test]
fn every_checksum_is_that_of_the_list_and_every_line_of_the_list_is_used() {
    let published = published();
    let mut used = BTreeSet::new();
    for recipe in Catalogue::shipped().unwrap().all() {
        for release in &recipe.declaration.versions {
            for file in &release.files {
                for (architecture, sum) in &file.sha256 {
                    let url = file.url(architecture);
                    assert_eq!(published.get(&url), Some(sum), "{url}");
                    used.insert(url);
                }
            }
        }
    }
    assert!(used.len() > 40, "{used:?}");
    assert_eq!(used.len(), published.len());
}

#[test]
fn the_recipes_in_the_program_are_those_of_the_folder_and_small() {
    let catalogue = Catalogue::shipped().unwrap();
    let shipped: Vec<&str> =
        catalogue.all().iter().map(|recipe| recipe.declaration.name.as_str()).collect();
    for name in &shipped {
        assert!(recipes().join(name).join("recipe.yml").exists(), "{name}");
    }
    let folders = fs::read_dir(recipes()).unwrap().flatten();
    assert_eq!(folders.filter(|entry| entry.path().is_dir()).count(), shipped.len());
    assert_eq!(shipped[0], "etcd", "clusters come first");
    let packed = Path::new(concat!(env!("OUT_DIR"), "/recipes.gz"));
    assert!(packed.metadata().unwrap().len() < 1 << 20);
    for recipe in catalogue.all() {
        for file in &recipe.files {
            let is_script = file.bytes.starts_with(b"#!");
            assert_eq!(file.mode, if is_script { 0o755 } else { 0o644 }, "{}", file.path);
        }
    }
}

#[test]
fn each_version_of_each_recipe_becomes_a_folder() {
    let catalogue = Catalogue::shipped().unwrap();
    let chart = chart_in(tempfile::tempdir().unwrap().path(), "web");
    for recipe in catalogue.all() {
        let own = &recipe.declaration;
        for release in &own.versions {
            let mut wanted = request(&[&format!("{}@{}", own.name, release.version)]);
            wanted.charts = own.name == choice::CHART;
            let charts = if wanted.charts { vec![chart.clone()] } else { Vec::new() };
            let files = compose::files(&composition(&catalogue, &wanted, charts)).unwrap();
            let kubefile = text(&files, "Kubefile");
            let paths: Vec<&str> = files.iter().map(|file| file.path.as_str()).collect();
            for file in &release.files {
                for key in file.keys(&ARCHITECTURES.map(str::to_owned)) {
                    let line = kubefile.lines().find(|line| line.contains(&file.url(&key)));
                    let line = line.unwrap_or_else(|| panic!("{}: {}", own.name, file.url));
                    let sum = file.sha256(&key).map(|sum| format!("--checksum=sha256:{sum} "));
                    assert!(line.contains(&sum.clone().unwrap_or_default()), "{line}");
                    assert_eq!(sum.is_some(), line.contains("--checksum"), "{line}");
                }
            }
            assert!(!kubefile.contains('@'), "{kubefile}");
            let names: BTreeSet<String> = own.settings.keys().cloned().collect();
            let nothing = r#"{"properties": {}}"#;
            let schema = if names.is_empty() { nothing } else { text(&files, SETTINGS_FILE) };
            let known = Settings::parse(schema).unwrap();
            for name in &names {
                assert!(variables_of(&recipe.kubefile).contains(name), "{}: {name}", own.name);
                assert!(known.has(name), "{name}");
            }
            // The usual values fit.
            let pairs = recipe.kubefile.split_whitespace().filter_map(|word| word.split_once('='));
            let usual =
                pairs.map(|(name, value)| (name.to_owned(), value.trim_matches('"').to_owned()));
            let usual: BTreeMap<String, String> = usual.collect();
            let missing: Vec<String> =
                known.missing(&usual).into_iter().map(|setting| setting.name).collect();
            assert_eq!(missing, own.required_settings, "{}", own.name);
            assert_eq!(known.refusals(&usual).len(), missing.len(), "{:?}", known.refusals(&usual));
            if own.kind == Kind::Rootfs {
                assert!(kubefile.contains(&format!("version=\"v{}\"", release.version)));
                assert!(paths.contains(&"scripts/init.sh"), "{paths:?}");
            }
            let runs = paths.iter().any(|path| path.starts_with("apps/"));
            assert_eq!(kubefile.contains("CMD [\"bash scripts/apply.sh\"]"), runs);
            assert_eq!(paths.contains(&"scripts/apply.sh"), runs, "{paths:?}");
        }
    }
}

#[test]
fn a_whole_cluster_is_a_kubefile_that_a_person_reads() {
    let catalogue = Catalogue::shipped().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let charts = vec![chart_in(folder.path(), "web"), chart_in(folder.path(), "api")];
    let wanted = Request { charts: true, ..Request::default() };
    let files = compose::files(&composition(&catalogue, &wanted, charts)).unwrap();
    let kubefile = text(&files, "Kubefile");
    let lines = kubefile.lines().filter(|line| !line.is_empty() && !line.starts_with("ADD "));
    assert!(lines.count() <= MOST_LINES, "{kubefile}");
    assert_eq!(kubefile.lines().filter(|line| line.starts_with("ADD ")).count(), 18, "{kubefile}");
    let settings = Settings::parse(text(&files, SETTINGS_FILE)).unwrap();
    assert!(settings.has("podSubnet") && settings.has("criData") && settings.has("localPath"));
    for path in ["apps/10-flannel.sh", "apps/50-web.sh", "charts/api.values.yaml", "Clusterfile"] {
        text(&files, path);
    }
    assert!(text(&files, "images/shim/kubernetes").contains("\nregistry.k8s.io/pause:"));
    assert!(text(&files, "README.md").contains("helm 3.18.4, the chart web and the chart api."));
}

#[test]
fn requests_mean_recipes_and_versions() {
    let catalogue = Catalogue::shipped().unwrap();
    let with = |recipes: &[&str], version: Option<&str>, network: Option<&str>| Request {
        version: version.map(str::to_owned),
        network: network.map(str::to_owned),
        ..request(recipes)
    };
    for (wanted, expected) in [
        (
            with(&[], None, None),
            &["kubernetes@1.36.3", "flannel@0.27.4", "local-path@0.0.32", "helm@3.18.4"][..],
        ),
        (
            with(&[], Some("1.34"), Some("none")),
            &["kubernetes@1.34.9", "local-path@0.0.32", "helm@3.18.4"],
        ),
        (
            with(&["kubernetes"], Some("v1.35.6"), Some("calico")),
            &["kubernetes@1.35.6", "calico@3.31.4"],
        ),
        (
            with(&["kubernetes"], None, Some("cilium@1.19")),
            &["kubernetes@1.36.3", "cilium@1.19.6", "helm@3.18.4"],
        ),
        (with(&["calico", "kubernetes"], None, None), &["kubernetes@1.36.3", "calico@3.31.4"]),
        (with(&["etcd"], Some("3.5.24"), None), &["etcd@3.5.24"]),
        (with(&["gateway-api"], Some("1.4"), None), &["gateway-api@1.4.1"]),
        (
            with(&["k3s", "gateway-api@1.4.1"], None, None),
            &["k3s@1.34.1+k3s1", "gateway-api@1.4.1"],
        ),
    ] {
        assert_eq!(names(&catalogue, &wanted), expected);
    }
    let charts = Request { charts: true, ..request(&["k3s"]) };
    assert_eq!(names(&catalogue, &charts), ["k3s@1.34.1+k3s1", "helm@3.18.4", "app-helm@1"]);
    for (wanted, expected) in [
        (with(&["kubernetes"], Some("1.34.2"), None), "version 1.34.2; the nearest is 1.34.9"),
        (with(&["kubernetes"], Some("1.20"), None), "the nearest is 1.34.9"),
        (with(&["kubernetes"], Some("2"), None), "the nearest is 1.36.3"),
        (with(&["kubernetes"], Some("latest"), None), "`latest` is not a version"),
        (with(&["kubernetes"], Some("1.3"), None), "does not know version 1.3;"),
        (with(&["kuberntes"], None, None), "did you mean kubernetes?"),
        (with(&["k8s"], None, None), "did you mean kubernetes?"),
        (with(&["x"], None, None), "the recipes are app-helm, calico"),
        (with(&["kubernetes", "k3s"], None, None), "kubernetes and k3s each make a cluster"),
        (
            with(&["kubernetes", "flannel"], None, Some("calico")),
            "flannel and calico are both networks",
        ),
        (with(&["kubernetes"], None, Some("helm")), "helm is not a network"),
        (with(&["k3s", "flannel"], None, None), "flannel does not run on k3s"),
        (with(&["etcd", "helm"], None, None), "helm does not run on etcd"),
        (with(&["helm"], None, Some("flannel")), "no recipe makes one"),
        (with(&["helm", "metallb"], Some("1"), None), "--recipe NAME@VERSION"),
        (with(&["app-helm"], None, None), "app-helm needs a chart"),
    ] {
        let found = refusal(&catalogue, &wanted);
        assert!(found.contains(expected), "{expected}: {found}");
    }
}

#[test]
fn parts_that_collide_are_refused() {
    let recipe = |name: &str, kubefile: &str, file: &str, arch: &str| {
        let yaml = format!(
            "name: {name}\nsummary: s\nkind: application\ngroup: addon\nruns-on: [one]\nlicence: l\n\
             architectures: [{arch}]\nversions:\n- version: 1.0.0\n"
        );
        vec![
            File::text(format!("{name}/recipe.yml"), yaml),
            File::text(format!("{name}/Kubefile"), kubefile),
            File::text(format!("{name}/files/{file}"), name),
        ]
    };
    for (one, other, expected) in [
        (
            recipe("one", "ENV a=1 \\\n    b=2\n", "f", "amd64, arm64"),
            recipe("two", "ENV b=3\n", "g", "amd64, arm64"),
            "both set the variable b",
        ),
        (
            recipe("one", "", "f", "amd64, arm64"),
            recipe("two", "", "f", "amd64, arm64"),
            "one and two both write f",
        ),
        (
            recipe("one", "", "f", "amd64, arm64"),
            recipe("two", "", "g", "amd64"),
            "two is not available for arm64",
        ),
    ] {
        let catalogue = Catalogue::read(one.into_iter().chain(other)).unwrap();
        let error = compose::files(&composition(&catalogue, &request(&["one", "two"]), Vec::new()))
            .unwrap_err();
        assert!(error.message().contains(expected), "{}", error.message());
    }
    assert_eq!(
        variables_of("LABEL a=1 \\\n  b=2\nENV c=1 d=\"\" \\\n  e=3\nLABEL f=1\n"),
        ["c", "d", "e"]
    );
}

#[test]
fn declarations_that_are_not_valid_are_refused() {
    let sum = "0".repeat(64);
    let good = format!(
        "name: x\nsummary: s\nkind: application\ngroup: addon\nruns-on: [kubernetes]\nlicence: l\narchitectures: [amd64]\n\
         versions:\n- version: 1.1.0\n  files:\n  - url: https://h/{{arch}}/f\n    to: bin/\n    mode: \"0755\"\n    \
         sha256: {{amd64: {sum}}}\n- version: 1.0.0\n"
    );
    Declaration::parse("x", &good).unwrap();
    for (from, to, expected) in [
        ("licence: l", "licence: l\nlicense: m", "recipe.yml cannot be read"),
        ("name: x", "name: y", "is that of `y`"),
        ("runs-on: [kubernetes]\n", "", "says what it runs on"),
        ("kind: application", "kind: rootfs", "has a distribution"),
        ("version: 1.0.0", "version: 1.2.0", "is not older"),
        ("version: 1.0.0", "version: newest", "not a version"),
        ("https://h", "http://h", "not one of https"),
        ("to: bin/", "to: ../bin/", "leaves the image"),
        ("to: bin/", "to: /bin/", "leaves the image"),
        ("mode: \"0755\"", "unpack: true\n    take: [../a]", "leaves the image"),
        ("mode: \"0755\"", "take: [a]\n    mode: \"0755\"", "only an archive"),
        ("    mode: \"0755\"\n", "", "a file has a mode"),
        ("amd64: 0", "arm64: 0", "its checksums are for"),
        ("amd64: 0", "any: 0", "its checksums are for"),
        ("amd64: 0000", "amd64: ABCD", "not a SHA-256"),
        ("amd64: 0000", "amd64: ", "not a SHA-256"),
        (
            "https://h/{arch}/f",
            "https://h/{name}/f\n    name: {arm64: z}",
            "an architecture has no name",
        ),
    ] {
        let text = good.replacen(from, to, 1);
        assert_ne!(text, good, "{from}");
        let error = Declaration::parse("x", &text).unwrap_err();
        let found = error.chain().join(": ");
        assert!(found.contains(expected), "{from} -> {to}: {found}");
    }
    let stray = [File::text("x/recipe.yml", good), File::text("x/fetch", "#!/bin/sh\n")];
    let error = Catalogue::read(stray).unwrap_err();
    assert!(error.message().contains("`fetch` is not a part of a recipe"), "{}", error.message());
}

/// Makes a chart below `folder` and reads it.
fn chart_in(folder: &Path, name: &str) -> Chart {
    let place = folder.join(name);
    fs::create_dir_all(place.join("templates")).unwrap();
    fs::write(place.join("Chart.yaml"), format!("apiVersion: v2\nname: {name}\nversion: 1.0.0\n"))
        .unwrap();
    fs::write(place.join("templates/a.yaml"), "kind: A\n").unwrap();
    Chart::read(&place).unwrap()
}

#[test]
fn charts_are_read_from_folders_and_archives() {
    let folder = tempfile::tempdir().unwrap();
    let chart = chart_in(folder.path(), "web");
    assert_eq!((chart.name.as_str(), chart.place.as_str()), ("web", "charts/web"));
    let paths: Vec<String> = chart.files().into_iter().map(|file| file.path).collect();
    let own = ["charts/web/Chart.yaml", "charts/web/templates/a.yaml"];
    assert_eq!(paths[..2], own);
    assert_eq!(paths[2..], ["charts/web.values.yaml", "apps/50-web.sh"]);

    let mut archive =
        tar::Builder::new(flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast()));
    archive.append_dir_all("web", folder.path().join("web")).unwrap();
    let bytes = archive.into_inner().unwrap().finish().unwrap();
    let packed = folder.path().join("web-1.0.0.tgz");
    fs::write(&packed, &bytes).unwrap();
    let chart = Chart::read(&packed).unwrap();
    assert_eq!((chart.name.as_str(), chart.place.as_str()), ("web", "charts/web.tgz"));
    assert!(text(&chart.files(), "apps/50-web.sh").contains("--install web charts/web.tgz "));
    fs::write(&packed, &bytes[..bytes.len() / 2]).unwrap();
    assert!(Chart::read(&packed).is_err());

    let head = folder.path().join("web/Chart.yaml");
    let fails = |text: &str| {
        fs::write(&head, text).unwrap();
        let error = Chart::read(&folder.path().join("web")).unwrap_err();
        format!("{} / {}", error.chain().join(": "), error.hints().join(" "))
    };
    assert!(fails("name: web\ndependencies: [{name: redis}]\n").contains("helm dependency build"));
    assert!(fails("name: web; reboot\n").contains("is called `web; reboot`"));
    assert!(fails("name: ../web\n").contains("is called"));
    assert!(fails("version: 1\n").contains("cannot be read"));
    fs::write(&head, "name: web\n").unwrap();
    std::os::unix::fs::symlink("/etc/passwd", folder.path().join("web/templates/b")).unwrap();
    assert!(fails("name: web\n").contains("is not a file"));
    for place in ["../web", "charts/../web", "charts/a/b", "charts/", "charts/.web", "web"] {
        let error = Chart::recorded(folder.path(), place).unwrap_err();
        assert!(error.message().contains("is not a chart of the folder"), "{place}");
    }
    assert!(Chart::read(&folder.path().join("none")).unwrap_err().message().contains("no chart"));
}

#[test]
fn a_folder_gets_all_files_or_none() {
    let catalogue = Catalogue::shipped().unwrap();
    let place = tempfile::tempdir().unwrap();
    let folder = place.path().join("a/b");
    let files = compose::files(&composition(&catalogue, &request(&["etcd"]), Vec::new())).unwrap();
    let first = write(&folder, &files, &[]).unwrap();
    assert_eq!(first.written.len(), files.len());
    let again = write(&folder, &files, &[]).unwrap();
    assert_eq!((again.written.len(), again.kept.len()), (0, files.len()));

    // Builds add to the lock file, which stays as they made it.
    fs::write(folder.join("imgctl.lock"), "version = 1\n# more\n").unwrap();
    assert_eq!(write(&folder, &files, &files).unwrap().written, Vec::<String>::new());
    assert!(fs::read_to_string(folder.join("imgctl.lock")).unwrap().contains("# more"));

    // Others' files stay, and nothing is added beside them.
    let taken = place.path().join("taken");
    fs::create_dir(&taken).unwrap();
    fs::write(taken.join("README.md"), "mine").unwrap();
    fs::write(taken.join("scripts"), "mine").unwrap();
    let error = write(&taken, &files, &[]).unwrap_err();
    let told = error.chain().join("\n");
    assert!(told.contains("README.md") && told.contains("scripts/backup.sh"), "{told}");
    assert_eq!(fs::read_dir(&taken).unwrap().count(), 2);

    // A failure half-way: two files of one name, as no composition has them.
    let half = [File::text("x/f", "1"), File::text("x/f/g", "2")];
    let fresh = place.path().join("fresh/er");
    assert!(write(&fresh, &half, &[]).is_err());
    assert!(!place.path().join("fresh").exists());

    // What a killed command left is removed.
    fs::create_dir_all(folder.join(".imgctl-init/0")).unwrap();
    fs::remove_file(folder.join("Kubefile")).unwrap();
    assert_eq!(write(&folder, &files, &[]).unwrap().written, ["Kubefile"]);
    assert!(!folder.join(".imgctl-init").exists());
}

#[test]
fn files_that_were_written_before_are_replaced_if_nobody_changed_them() {
    let catalogue = Catalogue::shipped().unwrap();
    let place = tempfile::tempdir().unwrap();
    let (small, large) = (request(&["kubernetes"]), request(&["kubernetes", "metrics-server"]));
    let former = compose::files(&composition(&catalogue, &small, Vec::new())).unwrap();
    let files = compose::files(&composition(&catalogue, &large, Vec::new())).unwrap();
    write(place.path(), &former, &[]).unwrap();
    assert!(write(place.path(), &files, &[]).is_err());
    let written = write(place.path(), &files, &former).unwrap().written;
    assert!(
        written.contains(&"Kubefile".into())
            && written.contains(&"apps/40-metrics-server.sh".into())
    );
    let record = fs::read_to_string(place.path().join("imgctl-init.yml")).unwrap();
    let record = Record::parse(&record).unwrap();
    assert_eq!(record.recipes(), ["flannel@0.27.4", "kubernetes@1.36.3", "metrics-server@0.8.1"]);

    let third = request(&["kubernetes", "metrics-server", "local-path"]);
    let third = compose::files(&composition(&catalogue, &third, Vec::new())).unwrap();
    fs::write(place.path().join("Kubefile"), "FROM scratch\n").unwrap();
    let error = write(place.path(), &third, &files).unwrap_err();
    assert!(error.chain().join("\n").contains("Kubefile"));
    assert!(!place.path().join("apps/20-local-path.sh").exists());
}

#[test]
fn the_file_of_a_forge_is_written_where_it_is_read() {
    let catalogue = Catalogue::shipped().unwrap();
    for (forge, path) in
        [(Forge::Github, ".github/workflows/image.yml"), (Forge::Gitlab, ".gitlab-ci.yml")]
    {
        let mut composition = composition(&catalogue, &request(&["etcd"]), Vec::new());
        composition.forge = Some(forge);
        let files = compose::files(&composition).unwrap();
        assert!(text(&files, path).contains("imgctl"));
        assert!(text(&files, "imgctl-init.yml").contains("forge: git"));
    }
}
