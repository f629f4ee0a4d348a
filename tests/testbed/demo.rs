//! `Kubefile.examples/demo`: the page of a cluster in a real browser, before and after an upgrade.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::common::testbed::Bed;
use crate::common::{Ran, needs_root, repository};

/// What the page says when it has heard of the hosts that answer.
const ACT: &str = "new Promise((done) => {
    const summary = document.getElementById('summary');
    const colour = (card) => getComputedStyle(card).getPropertyValue('--hue');
    const look = () => summary.textContent.includes('WANTED')
        ? done({summary: summary.textContent, colours: [...document.querySelectorAll('li')].map(colour),
            images: [...document.querySelectorAll('[data-key=image],[data-key=digest]')].map((one) => one.textContent)})
        : setTimeout(look, 100);
    look();
})";

/// The page of the first host in Chromium, once its summary has `wanted`; `None` without Chromium.
fn page(bed: &Bed, name: &str, wanted: &str) -> Option<Value> {
    if !Path::new("/usr/bin/chromium").exists() {
        imgctl_base::testing::skip("chromium is not installed");
        return None;
    }
    let work = json!([{
        "name": name, "url": format!("http://{}:8080/", bed.ip(1)), "width": 1280, "scheme": "light",
        "act": ACT.replace("WANTED", wanted),
    }]);
    let list = bed.env.write("work.json", work.to_string());
    let shots = repository().join("target/report-screenshots");
    let mut browser = Command::new("python3");
    browser.arg(repository().join("tests/runner/report/browser.py")).arg(shots).arg(list);
    let page = Ran::new(browser).ok().json()[0].take();
    if !wanted.starts_with('1') {
        // A host that does not answer is an error on the console, too.
        assert_eq!(page["errors"], json!([]));
    }
    assert!(page["overflow"].as_i64().unwrap() <= 0, "{page}");
    for request in page["requests"].as_array().unwrap() {
        let known = [1, 2].map(|host| format!("http://{}:8080/cgi-bin/state", bed.ip(host)));
        assert!(known.contains(&request.as_str().unwrap().to_owned()), "{request}");
    }
    Some(page)
}

#[test]
fn the_page_shows_the_cluster_and_its_upgrade() {
    if !needs_root() {
        return;
    }
    let bed = Bed::up(2);
    let folder = repository().join("Kubefile.examples/demo");
    let folder = folder.to_str().unwrap();
    bed.imgctl(["build", "-t", "demo:v1", folder]).ok();
    bed.imgctl(["build", "-t", "demo:v2", "--build-arg", "VERSION=2.0.0", folder]).ok();
    let flags = bed.list()["run_flags"].as_str().unwrap().to_owned();
    let title = "demoTitle=<b>It's \"ours\"</b>";
    let run = ["run", "demo:v1", "--cluster", "demo", "--env", title];
    bed.imgctl(run.into_iter().chain(flags.split(' '))).ok();
    let first = page(&bed, "demo-v1", "2 of 2 hosts answer: v1.0.0.");

    bed.imgctl(["upgrade", "demo:v2", "--cluster", "demo", "--yes"]).ok();
    let second = page(&bed, "demo-v2", "2 of 2 hosts answer: v2.0.0.");
    if let (Some(first), Some(second)) = (first, second) {
        assert_eq!(first["title"], "<b>It's \"ours\"</b>");
        assert_ne!(first["acted"]["colours"], second["acted"]["colours"]);
        let listed = bed.imgctl(["--json", "images"]).ok().json();
        let digest = |name: &str| {
            let mut images = listed.as_array().unwrap().iter();
            let image = images.find(|image| image.to_string().contains(name)).unwrap();
            image["digest"].as_str().unwrap()[..19].to_owned()
        };
        for (page, name) in [(first, "demo:v1"), (second, "demo:v2")] {
            let one = [json!(name), json!(digest(name))];
            assert_eq!(page["acted"]["images"], json!([one.clone(), one].concat()));
        }
    }

    // One host less answers, and the page says so.
    bed.kill(2);
    page(&bed, "demo-lost", "1 of 2 hosts answer: v2.0.0.");
    bed.start(2);
    bed.imgctl(["reset", "--cluster", "demo", "--yes"]).ok();
    bed.exec(1, "test -e /etc/systemd/system/demo.service").fails(1);
}
