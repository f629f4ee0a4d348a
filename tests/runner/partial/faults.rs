//! Registries that know no ranges, lie about them or break off, and blobs here that are damaged: the
//! image is complete and right afterwards.

use std::os::unix::fs::PermissionsExt;

use super::{Bench, FORMS};
use crate::common::proxy::{Fault, Proxy};

/// What the warning of a blob that is fetched as a whole says.
const WHOLE: &str = "fetched as a whole";

#[test]
fn a_registry_without_ranges_gives_the_whole() {
    for compression in FORMS {
        let bench = Bench::new(compression);
        let proxy = Proxy::start(&bench.registry.host);
        proxy.on("GET", "/blobs/", Fault::Without("Range"));
        let name = format!("{}/team/app:v2", proxy.host);
        let pulled = bench.env.imgctl(["pull", "--json", &name]).ok();
        assert!(!pulled.stderr().contains(WHOLE), "nothing went wrong\n{}", pulled.report());
        assert_eq!(pulled.json()[0]["bytesReused"], 0);
        bench.assert_is_new(&name);
    }
}

#[test]
fn wrong_bytes_in_ranges_are_noticed() {
    for flags in [&[][..], &["--unpack"]] {
        let bench = Bench::new("zstd");
        let proxy = Proxy::start(&bench.registry.host);
        // The list is right; the contents are not.
        let list =
            bench.layer(2)["annotations"]["io.github.containers.zstd-chunked.manifest-position"]
                .as_str()
                .unwrap()
                .split(':')
                .next()
                .unwrap()
                .parse::<u64>()
                .unwrap();
        let lie = Fault::edit(move |request, answer| {
            let start = request.header("range").and_then(|range| {
                range.strip_prefix("bytes=")?.split('-').next()?.parse::<u64>().ok()
            });
            if start.is_some_and(|start| start + 8 < list) {
                answer.body.iter_mut().for_each(|byte| *byte ^= 1);
            }
        });
        proxy.on("GET", "/blobs/", lie);
        let name = format!("{}/team/app:v2", proxy.host);
        let words = ["pull", name.as_str()];
        let ran = bench.env.imgctl(words.iter().chain(flags)).ok();
        assert!(ran.stderr().contains(WHOLE), "{}", ran.report());
        bench.assert_is_new(&name);
    }
}

#[test]
fn ranges_that_break_off_are_gone_on_with() {
    let bench = Bench::new("none");
    let proxy = Proxy::start(&bench.registry.host);
    proxy.on_first(8, "GET", "/blobs/", Fault::Cut(30_000));
    let name = format!("{}/team/app:v2", proxy.host);
    let pulled = bench.env.imgctl(["pull", "--json", &name]).ok().json();
    assert!(pulled[0]["bytesReused"].as_u64().unwrap() > 5_000_000, "{pulled}");
    bench.assert_is_new(&name);
}

#[test]
fn answers_to_other_requests_are_noticed() {
    let answers: [(&str, Fault); 3] = [
        ("multipart", {
            let headers = [("Content-Type", "multipart/byteranges; boundary=x")];
            Fault::answer("206 Partial Content", &headers, "--x\r\n\r\nhello\r\n--x--\r\n")
        }),
        ("416", Fault::answer("416 Range Not Satisfiable", &[], "")),
        ("other", {
            let headers = [("Content-Range", "bytes 0-4/5")];
            Fault::answer("206 Partial Content", &headers, "hello")
        }),
    ];
    for (what, fault) in answers {
        let bench = Bench::new("zstd");
        let proxy = Proxy::start(&bench.registry.host);
        let digest = bench.layer(2)["digest"].as_str().unwrap().to_owned();
        // The list and the first range; what follows is the whole.
        proxy.on_first(1, "GET", &format!("/blobs/{digest}"), fault);
        let name = format!("{}/team/app:v2", proxy.host);
        let ran = bench.env.imgctl(["pull", &name]).ok();
        println!("{what}: {}", ran.stderr());
        bench.assert_is_new(&name);
    }
}

#[test]
fn damaged_blobs_here_are_noticed_and_a_whole_layer_comes() {
    for compression in FORMS {
        for flags in [&[][..], &["--unpack"]] {
            let bench = Bench::new(compression);
            let digest = bench.layer(1)["digest"].as_str().unwrap().replace(':', "/");
            let path = bench.env.root().join("store/blobs").join(digest);
            let mut bytes = std::fs::read(&path).unwrap();
            bytes[3_000_000] ^= 1;
            std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
            std::fs::write(&path, bytes).unwrap();
            let name = bench.name(2);
            let words = ["pull", name.as_str()];
            let ran = bench.env.imgctl(words.iter().chain(flags)).ok();
            assert!(ran.stderr().contains(WHOLE), "{}", ran.report());
            bench.env.imgctl(["rmi", &bench.name(1)]).ok();
            bench.env.imgctl(["prune", "--all"]).ok();
            bench.assert_is_new(&name);
        }
    }
}
