//! The Kubernetes API in terms of paths and JSON: only what kube/ and the modules above it need, so
//! that a stand-in stays small.

use std::fmt;

use serde_json::Value;

use imgctl_base::error::{Error, Kind};

/// Semantics of a patch; determines its media type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PatchKind {
    /// `application/json-patch+json`: free of races with `test` operations.
    Json,
    /// `application/merge-patch+json`.
    Merge,
    /// `application/strategic-merge-patch+json`.
    Strategic,
}

/// An error response of the server (`kind: Status`), or no response at all.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ApiError {
    /// HTTP status; 0: no response.
    pub code: u16,
    /// `NotFound`, `Conflict`, `TooManyRequests`, …
    pub reason: String,
    pub message: String,
    /// `(reason, message)` of `details.causes`.
    pub causes: Vec<(String, String)>,
    /// `details.retryAfterSeconds` or the header.
    pub retry_after: Option<u64>,
    /// What helps where there is no way to the server.
    pub hints: Vec<String>,
}

impl ApiError {
    pub fn is_not_found(&self) -> bool {
        self.code == 404
    }

    /// Returns whether the server is unreachable or cannot serve at the moment, for example because
    /// its etcd is away. Another server may be able to answer.
    pub fn is_outage(&self) -> bool {
        matches!(self.code, 0 | 500 | 502..=504)
    }

    /// Returns whether the object has changed since it was read (409), or a `test` of a JSON patch
    /// failed (422).
    pub fn is_conflict(&self) -> bool {
        self.code == 409 || self.code == 422
    }
}

impl fmt::Display for ApiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.code {
            0 => write!(f, "the API server does not answer: {}", self.message),
            code => write!(f, "the API server returned {code} {}: {}", self.reason, self.message),
        }
    }
}

impl From<ApiError> for Error {
    fn from(error: ApiError) -> Self {
        let kind = match error.code {
            0 => Kind::Network,
            401 | 403 => Kind::Denied,
            404 => Kind::NotFound,
            _ => Kind::Failed,
        };
        let told = Self::new(kind, error.to_string());
        error.hints.into_iter().fold(told, Self::hint)
    }
}

/// There is no way to the server.
impl From<Error> for ApiError {
    fn from(error: Error) -> Self {
        Self {
            message: error.chain().join(": "),
            hints: error.hints().into_iter().map(str::to_owned).collect(),
            ..Self::default()
        }
    }
}

pub type Answer<T> = Result<T, ApiError>;

/// One API server. Paths begin with `/api/v1/…` or `/apis/…` and may contain a query. All calls
/// block and may be made from several threads concurrently.
pub trait Api: Send + Sync {
    /// Returns the response body, byte for byte.
    fn raw(&self, path: &str) -> Answer<Vec<u8>>;

    fn get(&self, path: &str) -> Answer<Value>;

    /// Returns all items of a list, page by page; each gets `apiVersion` and `kind` from the list.
    fn list(&self, path: &str) -> Answer<Vec<Value>>;

    fn create(&self, path: &str, object: &Value) -> Answer<Value>;

    fn replace(&self, path: &str, object: &Value) -> Answer<Value>;

    fn patch(&self, path: &str, kind: PatchKind, patch: &Value) -> Answer<Value>;

    /// `options` is a `DeleteOptions`, or null.
    fn delete(&self, path: &str, options: &Value) -> Answer<Value>;
}

/// Percent-encodes a value for the query of a path.
pub fn encoded(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte);
    let encode = |byte: u8| {
        if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }
    };
    text.bytes().map(encode).collect()
}
