//! Tests the client with the stand-in over HTTPS.

use std::time::Instant;

use serde_json::json;

use super::*;
use crate::testing::stand_in::StandIn;
use crate::testing::stand_in::serve::{Served, serve};
use imgctl_base::error::Kind;

/// This machine as a control plane.
struct ThisMachine(Runtime);

impl ThisMachine {
    fn new() -> Arc<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread();
        Arc::new(Self({ runtime }.worker_threads(1).enable_all().build().unwrap()))
    }
}

impl ControlPlane for ThisMachine {
    fn host(&self) -> &str {
        "10.9.9.9"
    }

    fn read_file(&self, path: &str, _limit: u64) -> Result<Option<Vec<u8>>> {
        Ok(std::fs::read(path).ok())
    }

    fn tunnel(&self, address: &str, port: u16) -> Result<Stream> {
        let stream = self.0.block_on(tokio::net::TcpStream::connect((address, port)));
        Ok(Box::new(stream.doing(|| "cannot connect".to_owned())?))
    }
}

fn config_map(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"a": "b"}})
}

fn path(name: &str) -> String {
    format!("/api/v1/namespaces/default/configmaps/{name}")
}

fn client(served: &Served, kubeconfig: &str) -> Arc<dyn Api> {
    connect_kubeconfig(&served.path(kubeconfig)).unwrap()
}

/// Exercises all verbs that the stand-in supports.
fn exercise(api: &dyn Api) {
    assert_eq!(api.raw("/readyz").unwrap(), b"ok");
    let created = api.create("/api/v1/namespaces/default/configmaps", &config_map("x")).unwrap();
    let error = api.create("/api/v1/namespaces/default/configmaps", &created).unwrap_err();
    assert_eq!((error.code, error.reason.as_str()), (409, "AlreadyExists"));
    let patch = json!({"data": {"c": "d"}});
    let patched = api.patch(&path("x"), PatchKind::Merge, &patch).unwrap();
    assert_eq!(patched["data"], json!({"a": "b", "c": "d"}));
    let test = json!([{"op": "test", "path": "/data/c", "value": "no"}]);
    assert_eq!(api.patch(&path("x"), PatchKind::Json, &test).unwrap_err().code, 422);
    assert_eq!(api.replace(&path("x"), &created).unwrap_err().code, 409);
    assert_eq!(api.get(&path("x")).unwrap()["data"]["c"], "d");
    api.delete(&path("x"), &Value::Null).unwrap();
    let error = api.get(&path("x")).unwrap_err();
    assert!(error.is_not_found());
    assert_eq!(error.message, "configmaps \"x\" not found");
}

#[test]
fn certificates_and_tokens_open_the_door() {
    let api = StandIn::new();
    let served = serve(&api);
    exercise(&*client(&served, "kubeconfig"));
    exercise(&*client(&served, "token.kubeconfig"));
    let error = client(&served, "wrong.kubeconfig").get(&path("x")).unwrap_err();
    assert_eq!(error.code, 401);
    assert_eq!(Error::from(error).kind(), Kind::Denied);
    // Credentials of another cluster.
    let error = client(&served, "stranger.kubeconfig").get(&path("x")).unwrap_err();
    assert_eq!(error.code, 0);
    assert!(error.message.contains("UnknownIssuer"), "{error}");
}

#[test]
fn a_host_without_a_kubeconfig_is_told() {
    let error = connect(ThisMachine::new(), &["/nowhere/a", "/nowhere/b"]).err().unwrap();
    assert_eq!(error.kind(), Kind::NotFound);
    assert!(
        error.to_string().contains("10.9.9.9: there is no /nowhere/a and no /nowhere/b"),
        "{error}"
    );
}

#[test]
fn lists_come_in_pages() {
    let api = StandIn::new();
    let served = serve(&api);
    api.add_all((0..1203).map(|number| config_map(&format!("m{number:04}"))));
    let client = client(&served, "kubeconfig");
    let all = client.list("/api/v1/configmaps").unwrap();
    assert_eq!(all.len(), 1203);
    assert_eq!(all[1202]["metadata"]["name"], "m1202");
    assert!(all.iter().all(|one| one["kind"] == "ConfigMap" && one["apiVersion"] == "v1"));
    assert_eq!(api.requests().len(), 3);
    // The continue token expires in the middle of the list.
    let expired = ApiError { code: 410, reason: "Expired".to_owned(), ..ApiError::default() };
    api.fail_next("list", "continue", expired);
    assert_eq!(client.list("/api/v1/configmaps").unwrap().len(), 1203);
    assert_eq!(client.list("/api/v1/configmaps?labelSelector=a%3Db").unwrap().len(), 0);
}

#[test]
fn a_busy_server_is_asked_again_for_reads_only() {
    let api = StandIn::new();
    let served = serve(&api);
    api.add(config_map("x"));
    let client = client(&served, "kubeconfig");
    let busy = ApiError {
        code: 429,
        reason: "TooManyRequests".to_owned(),
        retry_after: Some(1),
        ..ApiError::default()
    };
    api.fail_next("get", "configmaps/x", busy.clone());
    let begun = Instant::now();
    client.get(&path("x")).unwrap();
    assert!(begun.elapsed() >= Duration::from_secs(1));
    api.fail_next("delete", "configmaps/x", busy);
    let error = client.delete(&path("x"), &Value::Null).unwrap_err();
    assert_eq!((error.code, error.retry_after), (429, Some(1)));
    assert_eq!(api.writes().len(), 1);
}

#[test]
fn a_server_that_was_away_is_found_again() {
    let api = StandIn::new();
    let served = serve(&api);
    let client = connect_kubeconfig(&served.path("kubeconfig")).unwrap();
    client.raw("/readyz").unwrap();
    let path = served.path("kubeconfig").display().to_string();
    let through = connect(ThisMachine::new(), &[&path]).unwrap();
    through.raw("/readyz").unwrap();
    drop(served);
    for client in [&client, &through] {
        let error = client.create("/api/v1/namespaces", &json!({})).unwrap_err();
        assert_eq!(error.code, 0, "{error}");
        assert!(error.to_string().starts_with("the API server does not answer"), "{error}");
    }
}
