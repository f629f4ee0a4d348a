//! Connections that break again and again: what was begun is gone on with, and finishes.

use crate::common::proxy::{Answer, Fault, Proxy};
use crate::common::registry::Registry;
use crate::common::{Ran, TestEnv};
use crate::registry_faults::bench::{BAD_CONTENT, BIG, Bench, at, make};
use crate::registry_faults::server::Server;

const BLOB: &str = "/v2/team/app/blobs/";

#[test]
fn a_pull_that_is_cut_every_mebibyte_finishes() {
    for flags in [&[][..], &["--unpack"]] {
        let bench = Bench::new();
        bench.proxy.on("GET", BLOB, Fault::Cut(1 << 20));
        bench.pulls(flags);
        let path = format!("{BLOB}{}", bench.layer());
        let asked: Vec<_> = bench.proxy.requests();
        let ranges: Vec<_> = asked
            .iter()
            .filter(|request| request.path == path)
            .map(|request| request.header("range").map(str::to_owned))
            .collect();
        let pieces = BIG.div_ceil(1 << 20);
        assert!((pieces..=pieces + 1).contains(&ranges.len()), "{ranges:?}");
        assert_eq!(ranges[1].as_deref(), Some("bytes=1048576-"));
    }
}

#[test]
fn a_pull_finishes_though_the_registry_ignores_ranges() {
    let bench = Bench::new();
    let path = format!("{BLOB}{}", bench.layer());
    // Cut twice, each time a little later; then the whole comes again.
    bench.proxy.on_first(1, "GET", &path, Fault::Cut(1 << 20));
    bench.proxy.on("GET", &path, Fault::Without("range"));
    bench.pulls(&["--unpack"]);
    assert_eq!(bench.proxy.count("GET", &path), 2);
}

/// A wrong answer to a range, by name.
type Lie = (&'static str, fn(&mut Answer));

#[test]
fn ranges_that_are_answered_wrongly_are_not_believed() {
    let bench = Bench::new();
    let layer = bench.layer();
    let path = format!("{BLOB}{layer}");
    let others: [Lie; 4] = [
        ("another start", |answer| {
            answer.set("Content-Range", "bytes 1048577-3146607/3146608");
        }),
        ("another total", |answer| {
            answer.set("Content-Range", "bytes 1048576-3146607/9999999");
        }),
        ("nonsense", |answer| answer.set("Content-Range", "x")),
        ("other bytes", |answer| answer.body[5] ^= 1),
    ];
    for (what, lie) in others {
        let lie = Fault::edit(move |request, answer| {
            if request.header("range").is_some() {
                return lie(answer);
            }
            answer.length = Some(answer.body.len());
            answer.body.truncate(1 << 20);
        });
        bench.proxy.on("GET", &path, lie);
        bench.refuses(what, BAD_CONTENT, &[&layer, &bench.repository()]);
        // What came before the lie is gone on with, and the lie is not in it.
        let ran = bench.pull(["--retry=2"]).fails(BAD_CONTENT);
        assert!(!ran.success());
        bench.proxy.behave();
        bench.pulls(&[]);
        bench.env.imgctl(["rmi", "--all", "--yes"]).ok();
        bench.env.imgctl(["prune", "--all"]).ok();
    }
}

/// Pushes to `host` through a proxy that lets a mebibyte of each request's body through.
fn push_in_pieces(host: &str) {
    let (env, proxy) = (TestEnv::new(), Proxy::start(host));
    let root = make(&env, "maker", "team/app:v1", 7);
    for method in ["PATCH", "PUT"] {
        proxy.on(method, "/blobs/uploads/.", Fault::CutRequest(1 << 20));
    }
    let name = format!("{}/team/app:v1", proxy.host);
    let ran = Ran::new(at(&root, ["push", "localhost/team/app:v1", &name]));
    let bodies: Vec<_> = proxy
        .requests()
        .iter()
        .map(|request| format!("{} {:?}", request.line(), request.header("content-length")))
        .collect();
    println!("{}\n{bodies:#?}", ran.report());
    ran.ok();
}

#[test]
fn a_push_that_is_cut_every_mebibyte_finishes() {
    let registry = Registry::start();
    push_in_pieces(&registry.host);
    registry.assert_serves("team/app:v1");
}

#[test]
fn and_so_does_one_to_our_own_server() {
    let env = TestEnv::new();
    let server = Server::start(&env.path("tree"));
    push_in_pieces(&server.host);
    server.stop();
    Registry::over(&env.path("tree")).assert_serves("team/app:v1");
}
