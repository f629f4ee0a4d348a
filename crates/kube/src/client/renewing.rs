//! A client whose credentials expire: when they do, or when the server refuses them, they are
//! fetched again.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use serde_json::Value;

use crate::api::{Answer, Api, PatchKind};
use imgctl_base::error::Result;

/// Time before their end at which credentials are fetched again.
const EARLY: Duration = Duration::from_secs(30);

type Made = (Arc<dyn Api>, Option<Timestamp>);

pub(super) struct Renewing {
    make: Box<dyn Fn() -> Result<Made> + Send + Sync>,
    current: Mutex<Made>,
}

impl Renewing {
    /// Fetches the credentials for the first time.
    pub(super) fn new(make: impl Fn() -> Result<Made> + Send + Sync + 'static) -> Result<Self> {
        Ok(Self { current: Mutex::new(make()?), make: Box::new(make) })
    }

    /// Returns the client with valid credentials; `refused` is one whose credentials are not.
    fn client(&self, refused: Option<&Arc<dyn Api>>) -> Answer<Arc<dyn Api>> {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        let is_over = current.1.is_some_and(|until| Timestamp::now() + EARLY >= until);
        if is_over || refused.is_some_and(|refused| Arc::ptr_eq(refused, &current.0)) {
            *current = (self.make)()?;
        }
        Ok(Arc::clone(&current.0))
    }

    fn ask<T>(&self, ask: impl Fn(&dyn Api) -> Answer<T>) -> Answer<T> {
        let client = self.client(None)?;
        match ask(&*client) {
            Err(error) if error.code == 401 => ask(&*self.client(Some(&client))?),
            answer => answer,
        }
    }
}

impl Api for Renewing {
    fn raw(&self, path: &str) -> Answer<Vec<u8>> {
        self.ask(|client| client.raw(path))
    }

    fn get(&self, path: &str) -> Answer<Value> {
        self.ask(|client| client.get(path))
    }

    fn list(&self, path: &str) -> Answer<Vec<Value>> {
        self.ask(|client| client.list(path))
    }

    fn create(&self, path: &str, object: &Value) -> Answer<Value> {
        self.ask(|client| client.create(path, object))
    }

    fn replace(&self, path: &str, object: &Value) -> Answer<Value> {
        self.ask(|client| client.replace(path, object))
    }

    fn patch(&self, path: &str, kind: PatchKind, patch: &Value) -> Answer<Value> {
        self.ask(|client| client.patch(path, kind, patch))
    }

    fn delete(&self, path: &str, options: &Value) -> Answer<Value> {
        self.ask(|client| client.delete(path, options))
    }
}
