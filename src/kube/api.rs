//! The Kubernetes API in terms of paths and JSON: what the other parts of kube/ and those above it
//! need, and no more, so that a stand-in is small.

use std::fmt;

use serde_json::Value;

use crate::error::{Error, Kind};

/// How a patch is meant; also names its media type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PatchKind {
    /// `application/json-patch+json`: with `test` operations, free of races.
    Json,
    /// `application/merge-patch+json`.
    Merge,
    /// `application/strategic-merge-patch+json`.
    Strategic,
}

/// A refusal of the server (`kind: Status`), or no answer at all.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ApiError {
    /// HTTP status; 0: no answer came.
    pub(crate) code: u16,
    /// `NotFound`, `Conflict`, `TooManyRequests`, …
    pub(crate) reason: String,
    pub(crate) message: String,
    /// `(reason, message)` of `details.causes`.
    pub(crate) causes: Vec<(String, String)>,
    /// `details.retryAfterSeconds` or the header.
    pub(crate) retry_after: Option<u64>,
}

impl ApiError {
    pub(crate) fn is_not_found(&self) -> bool {
        self.code == 404
    }

    /// The object is no longer as it was when it was read (409), or a `test` of a JSON patch
    /// failed (422).
    pub(crate) fn is_conflict(&self) -> bool {
        self.code == 409 || self.code == 422
    }
}

impl fmt::Display for ApiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.code {
            0 => write!(f, "the API server does not answer: {}", self.message),
            code => write!(
                f,
                "the API server says {code} {}: {}",
                self.reason, self.message
            ),
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
        Self::new(kind, error.to_string())
    }
}

/// What the API gave.
pub(crate) type Answer<T> = Result<T, ApiError>;

/// One API server. Paths begin with `/api/v1/…` or `/apis/…` and may carry a query. All calls
/// block, and may be made from several threads at once.
pub(crate) trait Api: Send + Sync {
    /// The body as it came, byte for byte.
    fn raw(&self, path: &str) -> Answer<Vec<u8>>;

    /// One object.
    fn get(&self, path: &str) -> Answer<Value>;

    /// All items of a list, page after page; each has `apiVersion` and `kind` as the list says.
    fn list(&self, path: &str) -> Answer<Vec<Value>>;

    fn create(&self, path: &str, object: &Value) -> Answer<Value>;

    fn replace(&self, path: &str, object: &Value) -> Answer<Value>;

    fn patch(&self, path: &str, kind: PatchKind, patch: &Value) -> Answer<Value>;

    /// `options` is a `DeleteOptions`, or null.
    fn delete(&self, path: &str, options: &Value) -> Answer<Value>;
}
