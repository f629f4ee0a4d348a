//! One client for all API servers of a cluster: a request goes to the server that answered last,
//! and to the next one when that server is unreachable or cannot serve.
//!
//! A request may reach two servers, so it is for reads and for writes that carry a resource version.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::Value;

use crate::api::{Answer, Api, ApiError, PatchKind};
use imgctl_base::error::Result;

/// Connects to one API server. Called again after the connection has failed.
pub type Connect = Box<dyn Fn() -> Result<Arc<dyn Api>> + Send + Sync>;

/// API servers of one cluster, in the order in which they are tried.
pub struct Failover {
    servers: Vec<Server>,
    /// Index of the server that answered last.
    current: AtomicUsize,
}

struct Server {
    connect: Connect,
    api: Mutex<Option<Arc<dyn Api>>>,
}

impl Failover {
    pub fn new(servers: Vec<Connect>) -> Self {
        let servers = servers.into_iter().map(|connect| Server { connect, api: Mutex::new(None) });
        Self { servers: servers.collect(), current: AtomicUsize::new(0) }
    }

    /// Sends a request to each server in turn, starting with the current one, until one can serve.
    /// Fails with the error of the server tried last.
    fn ask<T>(&self, request: impl Fn(&dyn Api) -> Answer<T>) -> Answer<T> {
        let first = self.current.load(Ordering::Relaxed);
        let mut last = ApiError {
            message: "the cluster has no control plane".to_owned(),
            ..ApiError::default()
        };
        for at in 0..self.servers.len() {
            let at = (first + at) % self.servers.len();
            let answer = self.servers[at].api().and_then(|api| request(&*api));
            match answer {
                Err(error) if error.is_outage() => {
                    self.servers[at].disconnect();
                    last = error;
                }
                answer => {
                    self.current.store(at, Ordering::Relaxed);
                    return answer;
                }
            }
        }
        Err(last)
    }
}

impl Server {
    fn api(&self) -> Answer<Arc<dyn Api>> {
        let mut api = self.api.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(api) = &*api {
            return Ok(Arc::clone(api));
        }
        let new = (self.connect)()?;
        *api = Some(Arc::clone(&new));
        Ok(new)
    }

    fn disconnect(&self) {
        *self.api.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

impl Api for Failover {
    fn raw(&self, path: &str) -> Answer<Vec<u8>> {
        self.ask(|api| api.raw(path))
    }

    fn get(&self, path: &str) -> Answer<Value> {
        self.ask(|api| api.get(path))
    }

    fn list(&self, path: &str) -> Answer<Vec<Value>> {
        self.ask(|api| api.list(path))
    }

    fn create(&self, path: &str, object: &Value) -> Answer<Value> {
        self.ask(|api| api.create(path, object))
    }

    fn replace(&self, path: &str, object: &Value) -> Answer<Value> {
        self.ask(|api| api.replace(path, object))
    }

    fn patch(&self, path: &str, kind: PatchKind, patch: &Value) -> Answer<Value> {
        self.ask(|api| api.patch(path, kind, patch))
    }

    fn delete(&self, path: &str, options: &Value) -> Answer<Value> {
        self.ask(|api| api.delete(path, options))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::stand_in::StandIn;
    use imgctl_base::error::Error;

    const PATH: &str = "/api/v1/namespaces/kube-system";

    /// A control plane whose API server is away, or up without its etcd.
    struct Away(u16);

    impl Api for Away {
        fn raw(&self, _: &str) -> Answer<Vec<u8>> {
            Err(self.error())
        }
        fn get(&self, _: &str) -> Answer<Value> {
            Err(self.error())
        }
        fn list(&self, _: &str) -> Answer<Vec<Value>> {
            Err(self.error())
        }
        fn create(&self, _: &str, _: &Value) -> Answer<Value> {
            Err(self.error())
        }
        fn replace(&self, _: &str, _: &Value) -> Answer<Value> {
            Err(self.error())
        }
        fn patch(&self, _: &str, _: PatchKind, _: &Value) -> Answer<Value> {
            Err(self.error())
        }
        fn delete(&self, _: &str, _: &Value) -> Answer<Value> {
            Err(self.error())
        }
    }

    impl Away {
        fn error(&self) -> ApiError {
            ApiError { code: self.0, message: "away".to_owned(), ..ApiError::default() }
        }
    }

    #[test]
    fn the_next_server_answers_when_one_is_away_or_cannot_serve() {
        let up = StandIn::new();
        up.add(serde_json::json!({
            "apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "kube-system"},
        }));
        let servers: Vec<Connect> = vec![
            Box::new(|| Err(Error::failed("no route to host"))),
            Box::new(|| Ok(Arc::new(Away(0)))),
            Box::new(|| Ok(Arc::new(Away(503)))),
            Box::new(move || Ok(Arc::new(up.clone()))),
        ];
        let api = Failover::new(servers);
        assert_eq!(api.get(PATH).unwrap()["metadata"]["name"], "kube-system");
        assert_eq!(api.current.load(Ordering::Relaxed), 3);
        // An answer of a server that serves is final.
        assert_eq!(api.get("/api/v1/namespaces/none").unwrap_err().code, 404);
    }

    #[test]
    fn the_last_error_is_told_when_none_serves() {
        let error = Failover::new(vec![
            Box::new(|| Ok(Arc::new(Away(503)))),
            Box::new(|| Err(Error::failed("no route to host"))),
        ]);
        let error = error.get(PATH).unwrap_err();
        assert!(error.message.contains("no route to host"), "{error}");
        assert!(Failover::new(Vec::new()).get(PATH).is_err());
    }
}
