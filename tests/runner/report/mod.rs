//! Reports: their data, and their pages in a real Chromium, which says what a screen reader would hear,
//! what went wrong and what left the page.

mod console;
mod pages;

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::common::{Ran, TestEnv, repository};

/// Exit codes of docs/cli.md.
const USAGE: i32 = 2;
const NOT_FOUND: i32 = 3;
const BAD_CONTENT: i32 = 4;

/// Opens pages in Chromium and returns what happened with each; `None`, with a word, without Chromium.
fn browse(env: &TestEnv, works: &[Value]) -> Option<Vec<Value>> {
    if !Path::new("/usr/bin/chromium").exists() {
        imgctl_base::testing::skip("chromium is not installed");
        return None;
    }
    let list = env.write("work.json", serde_json::to_vec(works).unwrap());
    // Kept to be looked at: CI uploads them.
    let shots = repository().join("target/report-screenshots");
    let mut command = Command::new("python3");
    command.arg(repository().join("tests/runner/report/browser.py")).arg(shots).arg(list);
    let pages = Ran::new(command).ok().json();
    Some(pages.as_array().unwrap().clone())
}

/// A page light and dark, wide and narrow.
fn everywhere(name: &str, file: &Path) -> Value {
    json!({"name": name, "file": file, "everywhere": true})
}

/// Nothing went wrong on the page, left it, or is wider than the window.
fn is_clean(page: &Value) {
    assert_eq!(page["errors"], json!([]), "{}", page["name"]);
    assert_eq!(page["requests"], json!([]), "{}", page["name"]);
    assert_eq!(page["pwned"], Value::Null, "{}", page["name"]);
    assert!(page["overflow"].as_i64().unwrap() <= 0, "{}: {}", page["name"], page["overflow"]);
    // A narrow window hides nothing.
    if page["narrow"].is_array() {
        let narrow = json!({"tree": page["narrow"]});
        assert_eq!(heard(page, "heading"), heard(&narrow, "heading"), "{}", page["name"]);
        if page["acted"].is_null() {
            assert_eq!(heard(page, "link"), heard(&narrow, "link"), "{}", page["name"]);
        }
    }
}

/// Names in the accessibility tree of a role.
fn heard<'a>(page: &'a Value, role: &str) -> Vec<&'a str> {
    let nodes = page["tree"].as_array().unwrap().iter();
    let of_role = nodes.filter(|node| node[0] == role);
    of_role.map(|node| node[1].as_str().unwrap()).collect()
}

fn images(env: &TestEnv) {
    let kubefile =
        "FROM scratch\nLABEL version=v1 sealos.io.type=rootfs\nCOPY . .\nCMD [\"true\"]\n";
    let mut files: Vec<(String, String)> =
        (0..200).map(|file| (format!("etc/f{file}"), format!("file {file}\n"))).collect();
    files.push(("etc/<img src=x onerror=window.pwned=1>".to_owned(), "x".to_owned()));
    files.push(("etc/user\u{202e}gnp.exe".to_owned(), "x".to_owned()));
    let context = |env: &TestEnv, name: &str, files: &[(String, String)]| -> PathBuf {
        let files: Vec<(&str, &str)> =
            files.iter().map(|(a, b)| (a.as_str(), b.as_str())).collect();
        env.context(name, kubefile, &files)
    };
    env.build("report:v1", &context(env, "one", &files));
    files.retain(|(name, _)| name != "etc/f7");
    files.push(("bin/tool".to_owned(), "tool\n".repeat(1000)));
    env.build("report:v2", &context(env, "two", &files));
}

#[test]
fn an_image_is_described_and_compared() {
    let env = TestEnv::new();
    images(&env);
    let page = env.path("image.html");
    let report = env
        .imgctl(
            ["--json", "report", "image", "report:v2", "--compare", "report:v1", "-o"]
                .map(Into::into)
                .into_iter()
                .chain([page.clone().into_os_string()]),
        )
        .ok()
        .json();
    assert_eq!(report["about"]["report"], "image");
    assert_eq!(report["image"]["imageType"], "rootfs");
    let files = &report["files"];
    let names = files["names"].as_array().unwrap();
    assert_eq!(files["types"].as_str().unwrap().len(), names.len());
    assert!(names.contains(&json!("tool")) && !names.contains(&json!("f7")));
    let changes = &report["comparison"]["files"];
    assert_eq!(changes["added"], json!({"count": 1, "bytes": 5000}));
    assert_eq!(changes["removed"]["count"], 1);
    let forward = &report["comparison"]["forward"];
    assert!(forward["missing"].as_u64() <= forward["whole"].as_u64(), "{forward}");
    // The page is a function of the JSON.
    let data = env.write("image.json", serde_json::to_vec(&report).unwrap());
    let again = env.imgctl(["report".as_ref(), "render".as_ref(), data.as_os_str()]).ok();
    assert_eq!(again.stdout(), std::fs::read_to_string(&page).unwrap());

    let act = "new Promise((done) => {
        const field = document.querySelector('#explorer input');
        const begun = performance.now();
        field.value = 'TOOL';
        field.dispatchEvent(new Event('input'));
        done([document.querySelector('#explorer [role=status]').textContent, performance.now() - begun]);
    })";
    let alone = env.path("alone.html");
    env.imgctl(
        ["report", "image", "report:v2", "-o"]
            .map(Into::into)
            .into_iter()
            .chain([alone.clone().into_os_string()]),
    )
    .ok();
    let mut works = vec![everywhere("image-compared", &page), everywhere("image", &alone)];
    works[0]["act"] = act.into();
    works.push(
        json!({"name": "image-without-scripts", "file": page, "width": 1280, "scheme": "light",
        "scripts": false}),
    );
    let Some(pages) = browse(&env, &works) else { return };
    let without = pages.last().unwrap();
    for page in &pages[..2] {
        is_clean(page);
        let title = page["title"].as_str().unwrap();
        assert_eq!(title, "localhost/report:v2 · Image report");
    }
    // The directory is a button of the explorer, which the script has filled in.
    assert!(heard(&pages[1], "button").contains(&"etc/"), "{:?}", heard(&pages[1], "button"));
    assert!(!heard(&pages[1], "heading").contains(&"Changes"));
    for page in [&pages[0], without] {
        let headings = heard(page, "heading");
        for heading in ["localhost/report:v2", "Overview", "Changes", "Findings", "Layers", "Files"]
        {
            assert!(headings.contains(&heading), "{heading}: {headings:?}");
        }
        assert_eq!((heard(page, "main").len(), heard(page, "navigation").len()), (1, 1));
        let cells = heard(page, "rowheader");
        assert!(cells.contains(&"bin/tool"), "{cells:?}");
    }
    let acted = &pages[0]["acted"];
    assert!(acted[0].as_str().unwrap().starts_with("1 found"), "{acted}");
}

#[test]
fn a_build_writes_the_page_of_its_image_with_the_findings_of_the_check() {
    let env = TestEnv::new();
    let kubefile = "FROM scratch\nMAINTAINER somebody\nCOPY . .\n";
    let context = env.context("c", kubefile, &[("a", "a\n")]);
    let html = env.path("build.html");
    let report = format!("html={}", html.display());
    env.imgctl([
        "build".as_ref(),
        "-t".as_ref(),
        "x:v1".as_ref(),
        "--report".as_ref(),
        report.as_ref(),
        context.as_os_str(),
    ])
    .ok();
    let text = std::fs::read_to_string(html).unwrap();
    assert!(text.contains("MaintainerDeprecated") && text.contains("Kubefile:2"), "{text}");
}

#[test]
fn what_cannot_be_reported_is_told() {
    let env = TestEnv::new();
    env.imgctl(["report", "image", "absent:v1"]).fails(NOT_FOUND);
    env.imgctl(["report", "run", "absent"]).fails(NOT_FOUND);
    let file = env.write("x.json", "{\"verb\":1}");
    for verb in ["plan", "render"] {
        let ran =
            env.imgctl(["report".as_ref(), verb.as_ref(), file.as_os_str()]).fails(BAD_CONTENT);
        assert!(ran.stderr().contains("x.json"), "{}", ran.stderr());
    }
    let ran = env.imgctl(["run", "x:v1", "--report", "/absent/x.html"]).fails(USAGE);
    assert!(ran.stderr().contains("/absent/x.html"), "{}", ran.stderr());
}
