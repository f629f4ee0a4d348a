//! A cluster out of a recipe: `imgctl init`, `build`, `run` with real etcd. The publisher's archive is stood in for by one
//! that has the binaries of the example, served here.

use std::fs;

use imgctl_base::image::Digest;

use crate::cluster_etcd::support::{build_etcd, etcdctl, members, run};
use crate::common::proxy::{Fault, Proxy};
use crate::common::testbed::Bed;
use crate::common::{Ran, needs_root, repository, tool};

#[test]
fn a_recipe_becomes_a_cluster_that_answers() {
    if !needs_root() {
        return;
    }
    let bed = Bed::up(3);
    // Puts the binaries in place.
    if !build_etcd(&bed) {
        return;
    }
    let folder = bed.env.path("site");
    let place = folder.to_str().unwrap();
    bed.env.imgctl(["init", place, "--recipe", "etcd", "--name", "site"]).ok();

    let binaries = repository().join("Kubefile.examples/etcd/bin");
    let packed = bed.env.path("etcd.tgz");
    let tar = [
        "--transform=s,^bin,etcd-x,",
        "-C",
        binaries.parent().unwrap().to_str().unwrap(),
        "-czf",
        packed.to_str().unwrap(),
        "bin",
    ];
    Ran::new(tool("tar", tar)).ok();
    let body = fs::read(packed).unwrap();
    let server = Proxy::alone("127.0.0.1");
    let kubefile = fs::read_to_string(folder.join("Kubefile")).unwrap();
    let sum = Digest::of(&body).to_string();
    let lines = kubefile.lines().filter(|line| !line.contains("-arm64")).map(|line| {
        let words = line.split(' ').map(|word| {
            if word.starts_with("--checksum=") {
                format!("--checksum={sum}")
            } else if word.starts_with("https://") {
                format!("http://{}/etcd.tgz", server.host)
            } else if word.contains("etcdutl") && !binaries.join("etcdutl").exists() {
                String::new()
            } else {
                word.to_owned()
            }
        });
        words.collect::<Vec<_>>().join(" ")
    });
    let standing: Vec<String> = lines.collect();
    fs::write(folder.join("Kubefile"), standing.join("\n") + "\n").unwrap();
    server.on("GET", "/etcd.tgz", Fault::answer("200 OK", &[], body));
    bed.env.build("site:v1", &folder);

    let (first, three) = (bed.ip(1), bed.ips(1..=3));
    run(&bed, &["run", "site:v1", "--cluster", "site", "--masters", &three]).ok();
    assert_eq!(members(&bed, 1), ["h1", "h2", "h3"]);
    etcdctl(&bed, 1, "put made by-a-recipe");
    assert_eq!(etcdctl(&bed, 3, "get made --print-value-only"), "by-a-recipe");
    let status = run(&bed, &["status", "-c", "site"]).ok();
    assert!(status.stdout().contains(&first), "{}", status.report());
    bed.imgctl(["reset", "-c", "site", "--yes"]).ok();
}
