//! Redirects: where they may lead, and what the next host learns.

use crate::common::proxy::{Answer, Fault, Proxy};
use crate::common::registry::{PASSWORD, Registry, USER};
use crate::registry_faults::bench::{BAD_CONTENT, Bench, NETWORK, says};

const BLOB: &str = "/v2/team/app/blobs/";

#[test]
fn circles_and_chains_end() {
    let bench = Bench::new();
    let layer = bench.layer();
    let path = format!("{BLOB}{layer}");
    let itself = Fault::Answer(Answer::redirect(&path));
    let chain = Fault::edit(|request, answer| {
        *answer = Answer::redirect(&format!("{}?again", request.path));
    });
    for (what, fault, word) in [
        ("a circle", itself, "loop"),
        ("a chain", chain, "too many"),
        ("nowhere", Fault::answer("302 Found", &[], ""), "Location"),
        ("a file", Fault::Answer(Answer::redirect("file:///etc/passwd")), "refused"),
        (
            "a password",
            Fault::Answer(Answer::redirect("http://me:pw-hidden@127.0.0.1:9/")),
            "password",
        ),
    ] {
        bench.proxy.on("GET", &path, fault);
        bench.refuses(what, BAD_CONTENT, &[&layer, &bench.repository(), word]);
        let ran = bench.pull([""; 0]);
        assert!(!ran.report().contains("pw-hidden"), "{}", ran.report());
        bench.proxy.behave();
    }
}

/// A bench whose registry wants a login that lies in `auth.json`.
pub(crate) fn with_login() -> Bench {
    let bench = Bench::around(Registry::with_login());
    crate::registry_faults::bench::make(&bench.env, "maker", "team/app:v1", 1);
    let login = [
        "login".to_owned(),
        "--authfile=auth.json".to_owned(),
        format!("-u={USER}"),
        format!("-p={PASSWORD}"),
        bench.proxy.host.clone(),
    ];
    bench.env.imgctl(login).ok();
    let root = bench.env.path("maker");
    let words = ["push", "--authfile", "auth.json", "localhost/team/app:v1"];
    let mut command = crate::registry_faults::bench::at(&root, words);
    command.arg(bench.name()).current_dir(bench.env.path("."));
    crate::common::Ran::new(command).ok();
    bench.proxy.requests();
    bench
}

#[test]
fn the_next_host_does_not_learn_who_we_are() {
    let bench = with_login();
    let witness = Proxy::alone("127.0.0.2");
    let elsewhere = witness.host.clone();
    let everything = Fault::edit(move |request, answer| {
        *answer = Answer::redirect(&format!("http://{elsewhere}{}", request.path));
    });
    // Of manifests, of blobs, of tags: nothing goes along, not to a private address either.
    for path in [BLOB, "/manifests/", "/tags/list"] {
        for method in ["GET", "HEAD"] {
            bench.proxy.on(method, path, everything.clone());
        }
        let repository = bench.repository();
        let tags = bench.env.imgctl(["tags", "--authfile=auth.json", &repository]);
        let pull = bench.pull(["--authfile=auth.json", "--retry=1"]);
        assert!(!tags.success() || !pull.success(), "{path}");
        let asked = witness.requests();
        assert!(!asked.is_empty(), "{path} was not asked for elsewhere");
        for request in asked {
            for header in ["authorization", "cookie", "referer", "proxy-authorization"] {
                assert_eq!(request.header(header), None, "{}", request.line());
            }
        }
        let sent = bench.proxy.requests();
        let told =
            |request: &&crate::common::proxy::Request| request.header("authorization").is_some();
        assert!(sent.iter().any(|request| told(&request)), "nothing to leak");
        bench.proxy.behave();
        bench.env.imgctl(["rmi", "--all", "--yes"]).ok();
        bench.env.imgctl(["prune", "--all"]).ok();
        bench.assert_nothing_left();
    }
}

#[test]
fn the_way_back_home_goes_without_credentials_too() {
    let bench = with_login();
    let witness = Proxy::alone("127.0.0.2");
    let home = bench.proxy.host.clone();
    witness.on(
        "GET",
        BLOB,
        Fault::Answer(Answer::redirect(&format!("http://{home}/v2/secret/blobs/x"))),
    );
    let to = Answer::redirect(&format!("http://{}{BLOB}x", witness.host));
    bench.proxy.on("GET", BLOB, Fault::Answer(to));
    let ran = bench.pull(["--authfile=auth.json", "--retry=1"]);
    assert!(!ran.success(), "{}", ran.report());
    let asked = bench.proxy.requests();
    let returned: Vec<_> =
        asked.iter().filter(|request| request.path.contains("/secret/")).collect();
    assert!(!returned.is_empty());
    for request in returned {
        assert_eq!(request.header("authorization"), None);
    }
}

#[test]
fn an_upload_is_not_sent_elsewhere_with_credentials() {
    let bench = with_login();
    let witness = Proxy::alone("127.0.0.2");
    witness.on("PUT", "/", Fault::answer("201 Created", &[], ""));
    witness.on("PATCH", "/", Fault::answer("202 Accepted", &[], ""));
    let location = format!("http://{}/v2/team/other/blobs/uploads/1", witness.host);
    let begun = location.clone();
    bench.proxy.on(
        "POST",
        "/blobs/uploads/",
        Fault::answer("202 Accepted", &[("Location", &begun)], ""),
    );
    // Content that the registry has nowhere: there is nothing to mount.
    let root = crate::registry_faults::bench::make(&bench.env, "another", "team/app:v1", 2);
    let push = |target: &str| {
        let words = ["push", "--authfile=auth.json", "--retry=1"];
        let mut command = crate::registry_faults::bench::at(&root, words);
        let to = format!("{}/{target}", bench.proxy.host);
        command.args(["localhost/team/app:v1", &to]).current_dir(bench.env.path("."));
        crate::common::Ran::new(command)
    };
    // Some registries do upload elsewhere; but what they tell of us stays with them.
    says("elsewhere", &push("team/other:v1").fails(BAD_CONTENT), &["team/other"]);
    for request in witness.requests() {
        assert_eq!(request.header("authorization"), None, "{}", request.line());
    }
    bench.proxy.behave();
    for method in ["PATCH", "PUT"] {
        let to = Answer::redirect(&location);
        bench.proxy.on(method, "/blobs/uploads/", Fault::Answer(to));
    }
    let ran = push("team/third:v1");
    says("redirected", &ran.fails(BAD_CONTENT), &["team/third", "127.0.0.2"]);
    assert!(witness.requests().is_empty(), "an upload went elsewhere");
}

#[test]
fn pages_are_not_followed_to_another_host() {
    let bench = with_login();
    let witness = Proxy::alone("127.0.0.2");
    let link = format!("<http://{}/v2/team/app/tags/list>; rel=\"next\"", witness.host);
    bench.proxy.on(
        "GET",
        "/tags/list",
        Fault::edit(move |request, answer| {
            if request.header("authorization").is_some() {
                answer.set("Link", &link);
            }
        }),
    );
    let repository = bench.repository();
    let ran = bench.env.imgctl(["tags", "--authfile=auth.json", &repository]);
    let ran = ran.fails(BAD_CONTENT);
    says("a page elsewhere", &ran, &[&repository]);
    assert!(witness.requests().is_empty());
}

#[test]
fn a_redirect_to_where_nobody_is_says_where() {
    let bench = Bench::new();
    let layer = bench.layer();
    let port = imgctl_base::testing::free_port();
    let to = Answer::redirect(&format!("http://127.0.0.1:{port}/signed?signature=pw-hidden"));
    bench.proxy.on("GET", BLOB, Fault::Answer(to));
    let repository = bench.repository();
    bench.refuses("nobody there", NETWORK, &[&repository, "cannot connect"]);
    let ran = bench.pull(["--retry=1", "--log-level=trace"]).fails(NETWORK);
    assert!(!ran.stderr().contains("pw-hidden"), "{}", ran.report());
    assert!(layer.starts_with("sha256:"));
}
