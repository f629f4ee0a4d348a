//! Responses, and the errors of the distribution API (distribution-spec 1.1, "Error Codes").

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderName, HeaderValue};
use http::{Response, StatusCode};
use serde_json::{Value, json};

use crate::server::body::{Body, Content};
use imgctl_base::error::{Error, Kind};

pub(super) type Reply = Response<Body>;

/// Error response to a request.
#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) status: StatusCode,
    code: &'static str,
    message: String,
    headers: Vec<(HeaderName, String)>,
    /// Cause of the error, for the log only.
    pub(super) cause: Option<Error>,
}

impl Refusal {
    pub(super) fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self { status, code, message: message.into(), headers: Vec::new(), cause: None }
    }

    pub(super) fn bad(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, code, message)
    }

    pub(super) fn missing(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, code, message)
    }

    pub(super) fn unsupported(message: impl Into<String>) -> Self {
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "UNSUPPORTED", message)
    }

    /// Adds a header.
    pub(super) fn with(mut self, name: HeaderName, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }

    /// Returns the refusal with the full cause as its message.
    pub(super) fn candid(mut self) -> Self {
        if let Some(cause) = &self.cause {
            self.message = cause.to_string();
        }
        self
    }

    /// Builds the error response.
    pub(super) fn reply(self) -> Reply {
        let error = json!({"code": self.code, "message": self.message, "detail": Value::Null});
        let mut reply = document(self.status, &json!({"errors": [error]}));
        for (name, value) in self.headers {
            set(&mut reply, name, &value);
        }
        reply
    }
}

/// Hides the details of internal errors from the client: messages can contain local paths.
impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        let (status, code, message) = match error.kind() {
            Kind::NoSpace => (StatusCode::INSUFFICIENT_STORAGE, "NO_SPACE", "the registry is full"),
            Kind::Network => (
                StatusCode::BAD_GATEWAY,
                "UPSTREAM",
                "the upstream registry does not answer as it should",
            ),
            Kind::Busy => (
                StatusCode::SERVICE_UNAVAILABLE,
                "TOOMANYREQUESTS",
                "the registry has too much to do; ask again in a while",
            ),
            _ => (
                StatusCode::INTERNAL_SERVER_ERROR,
                "UNKNOWN",
                "the registry failed; its log says more",
            ),
        };
        let mut refusal = Self::new(status, code, message);
        refusal.cause = Some(error);
        refusal
    }
}

/// Builds a response without content.
pub(super) fn empty(status: StatusCode) -> Reply {
    respond(status, Content::Bytes(Bytes::new()))
}

/// Builds a response with a JSON document.
pub(super) fn document(status: StatusCode, value: &Value) -> Reply {
    let mut reply = respond(status, Content::Bytes(value.to_string().into()));
    set(&mut reply, CONTENT_TYPE, "application/json");
    reply
}

/// Builds a response with content and its `Content-Length`.
pub(super) fn respond(status: StatusCode, content: Content) -> Reply {
    let body = Body::new(content);
    let length = http_body::Body::size_hint(&body).exact().unwrap_or(0);
    let mut reply = Response::new(body);
    *reply.status_mut() = status;
    if status != StatusCode::NO_CONTENT && status != StatusCode::NOT_MODIFIED {
        reply.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from(length));
    }
    reply
}

/// Sets a header. Ignores a value that is not valid in a header.
pub(super) fn set(reply: &mut Reply, name: HeaderName, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        reply.headers_mut().insert(name, value);
    }
}
