//! The registry routes over the host's store.

use http::Method;
use serde_json::json;

use crate::agent::conversation::Conversation;
use crate::common::TestEnv;

/// An address of a blob, by its digest and size, to which it is sent.
fn upload(digest: &str, size: usize) -> String {
    format!("/v2/imgctl/blobs/uploads/{}.{size}", digest.replace(':', "."))
}

fn sha256(env: &TestEnv, bytes: &[u8]) -> String {
    let path = env.write("hashed", bytes);
    let ran = crate::common::Ran::new(crate::common::tool("sha256sum", [path])).ok();
    format!("sha256:{}", &ran.stdout()[..64])
}

#[test]
fn a_blob_goes_on_after_kill_9_and_is_served() {
    let env = TestEnv::new();
    let bytes: Vec<u8> = (0..3_000_000_u32).map(|n| (n % 251) as u8).collect();
    let digest = sha256(&env, &bytes);
    let place = upload(&digest, bytes.len());
    let mut agent = Conversation::new(&env);
    let none = agent.ask(Method::GET, &place, &[], b"");
    assert_eq!(
        (none.status.as_u16(), &none.headers["range"]),
        (204, &http::HeaderValue::from_static("0-0"))
    );
    let half =
        agent.ask(Method::PATCH, &place, &[("content-range", "0-1999999")], &bytes[..2_000_000]);
    assert_eq!(half.status, 202);
    agent.child.start_kill().unwrap();
    drop(agent);

    let agent = Conversation::new(&env);
    let kept = agent.ask(Method::GET, &place, &[], b"");
    assert_eq!(kept.headers["range"], "0-1999999");
    let wrong = agent.ask(
        Method::PUT,
        &format!("{place}?digest={digest}"),
        &[("content-range", "0-2999999")],
        &bytes,
    );
    assert_eq!(wrong.status, 416);
    let rest = agent.ask(
        Method::PUT,
        &format!("{place}?digest={digest}"),
        &[("content-range", "2000000-2999999")],
        &bytes[2_000_000..],
    );
    assert_eq!(rest.status, 201, "{:?}", rest.body);
    let got = agent.ask(Method::GET, &format!("/v2/imgctl/blobs/{digest}"), &[], b"");
    assert_eq!(got.body, bytes);
    let had = agent.call(
        "inventory",
        &json!({"root": "/nowhere", "blobs": [digest], "registry_layers": [], "trees": []}),
    );
    assert_eq!(had["done"]["blobs"], json!([digest]));
    assert_eq!(agent.ask(Method::GET, &place, &[], b"").status, 404, "it is there");
    assert_eq!(agent.end(), Some(0));
    env.imgctl(["scrub"]).ok();
}

#[test]
fn what_an_agent_holds_is_safe_from_prune_until_it_ends() {
    let env = TestEnv::new();
    let digest = sha256(&env, b"a layer");
    let agent = Conversation::new(&env);
    let put = format!("{}?digest={digest}", upload(&digest, 7));
    assert_eq!(agent.ask(Method::PUT, &put, &[], b"a layer").status, 201);
    let blob = format!("/v2/imgctl/blobs/{digest}");
    env.imgctl(["prune", "--yes"]).ok();
    assert_eq!(agent.ask(Method::HEAD, &blob, &[], b"").status, 200);
    assert_eq!(agent.end(), Some(0));
    env.imgctl(["prune", "--yes"]).ok();
    let agent = Conversation::new(&env);
    assert_eq!(agent.ask(Method::HEAD, &blob, &[], b"").status, 404);
}
