//! The site that `scripts/site` builds, where mdBook is installed already: pages need nothing from
//! elsewhere, and links lead to files of the site or to the repository.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::{pages, repository};

/// The values of an attribute in a page.
fn values<'a>(page: &'a str, attribute: &str) -> Vec<&'a str> {
    let start = format!(" {attribute}=\"");
    let found = page.match_indices(&start).map(|(at, _)| &page[at + start.len()..]);
    found.filter_map(|rest| rest.split('"').next()).collect()
}

/// What a page loads by itself from another place.
fn loaded(page: &str) -> Vec<&str> {
    let tags = page.split('<').filter(|tag| !tag.starts_with("a "));
    tags.flat_map(|tag| [values(tag, "src"), values(tag, "href")].concat())
        .filter(|place| place.contains("://") || place.starts_with("//"))
        .collect()
}

fn html(folder: &Path) -> Vec<PathBuf> {
    let entries = walkdir::WalkDir::new(folder).into_iter().map(|entry| entry.unwrap().into_path());
    entries.filter(|path| path.extension().is_some_and(|end| end == "html")).collect()
}

#[test]
fn the_site_is_complete_and_loads_nothing_from_elsewhere() {
    let script = repository().join("scripts/site");
    let installed = Command::new(&script).arg("--installed").output().unwrap();
    if !installed.status.success() {
        println!("skipped: mdBook is not installed; scripts/site installs it");
        return;
    }
    let site = tempfile::tempdir().unwrap();
    let built = Command::new(&script).arg("--output").arg(site.path()).output().unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let made = html(site.path());
    assert!(made.len() >= pages("docs").len() - 1, "{} pages", made.len());
    let mut wrong = Vec::new();
    for path in &made {
        let text = std::fs::read_to_string(path).unwrap();
        wrong.extend(loaded(&text).iter().map(|from| format!("{} loads {from}", path.display())));
        let links = values(&text, "href");
        for link in links.iter().filter(|link| !link.contains(':') && !link.starts_with('#')) {
            let file = link.split(['#', '?']).next().unwrap();
            // The page for addresses that are not there is served anywhere: its links begin at the root.
            let from =
                if path.ends_with("404.html") { site.path() } else { path.parent().unwrap() };
            let mut target = from.join(file.trim_start_matches('/'));
            if target.is_dir() {
                target.push("index.html");
            }
            if !target.exists() {
                wrong.push(format!("{}: no {link}", path.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let page = |name: &str| std::fs::read_to_string(site.path().join(name)).unwrap();
    assert!(
        page("cluster-image.html").contains("href=\"clusterfile.html\""),
        "links between pages"
    );
    assert!(page("tutorials/4-your-own-cluster.html").contains(
        "href=\"https://github.com/team/imgctl/blob/main/Kubefile.examples/etcd/README.md\""
    ));
    in_a_browser(site.path());
}

/// Opens pages in Chromium: nothing goes wrong, nothing is loaded from elsewhere, and the search finds.
fn in_a_browser(site: &Path) {
    if !Path::new("/usr/bin/chromium").exists() {
        println!("skipped: chromium is not installed");
        return;
    }
    let url = |page: &str| format!("file://{}/{page}", site.display());
    let found = "new Promise((done) => {
        const look = () => {
            const found = [...document.querySelectorAll('#mdbook-searchresults a')];
            found.length ? done(found.map((one) => one.textContent)) : setTimeout(look, 100);
        };
        look();
    })";
    let works = json!([
        {"name": "site-home", "url": url("index.html"), "width": 1280, "scheme": "light"},
        {"name": "site-tutorial", "url": url("tutorials/1-first-image.html"), "width": 390, "scheme": "dark"},
        {"name": "site-search", "url": url("index.html?search=drain"), "width": 1280, "scheme": "light",
         "act": found},
    ]);
    let list = site.join("work.json");
    std::fs::write(&list, works.to_string()).unwrap();
    let mut browser = Command::new("python3");
    browser.arg(repository().join("tests/runner/report/browser.py"));
    browser.arg(repository().join("target/report-screenshots")).arg(list);
    let ran = browser.output().unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    let pages: Vec<Value> = serde_json::from_slice(&ran.stdout).unwrap();
    for page in &pages {
        assert_eq!(page["errors"], json!([]), "{}", page["name"]);
        assert!(page["overflow"].as_i64().unwrap() <= 0, "{}: {}", page["name"], page["overflow"]);
        for request in page["requests"].as_array().unwrap() {
            assert!(request.as_str().unwrap().starts_with(&url("")), "{}: {request}", page["name"]);
        }
    }
    let heading = json!(["heading", "1. Your first image"]);
    assert!(pages[1]["tree"].as_array().unwrap().contains(&heading), "{}", pages[1]["tree"]);
    let results = pages[2]["acted"].as_array().unwrap();
    assert!(results.iter().any(|one| one.as_str().unwrap().contains("Drains")), "{results:?}");
}

#[test]
fn what_a_page_loads_is_seen() {
    let page = r#"<a href="https://a.example">x</a><script src="https://b.example/x.js"></script>
        <link rel="x" href="//c.example"><img src="d.png">"#;
    assert_eq!(loaded(page), ["https://b.example/x.js", "//c.example"]);
}
