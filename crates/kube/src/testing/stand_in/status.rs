//! Errors in the words of the real server.

use serde_json::Value;

use crate::api::ApiError;
use crate::testing::stand_in::path::Path;

fn error(code: u16, reason: &str, message: String) -> ApiError {
    ApiError { code, reason: reason.to_owned(), message, ..ApiError::default() }
}

pub(super) fn no_such_path() -> ApiError {
    error(404, "NotFound", "the server could not find the requested resource".to_owned())
}

pub(super) fn not_found(path: &Path) -> ApiError {
    let message = format!("{} \"{}\" not found", path.qualified(), path.name);
    error(404, "NotFound", message)
}

pub(super) fn exists(path: &Path, name: &str) -> ApiError {
    let message = format!("{} \"{name}\" already exists", path.qualified());
    error(409, "AlreadyExists", message)
}

/// Returns a 409; `why` is the sentence after the colon.
pub(super) fn conflict(what: &str, name: &str, why: &str) -> ApiError {
    let message = format!("Operation cannot be fulfilled on {what} \"{name}\": {why}");
    error(409, "Conflict", message)
}

pub(super) fn modified(path: &Path) -> ApiError {
    conflict(
        &path.qualified(),
        &path.name,
        "the object has been modified; please apply your changes to the latest version and try again",
    )
}

/// Returns the error for an object with a different uid; the wording differs between patches and
/// replacements.
pub(super) fn other_uid(path: &Path, old: &Value, asked: &str, is_patch: bool) -> ApiError {
    let has = old["metadata"]["uid"].as_str().unwrap_or_default();
    if is_patch {
        let kind = old["kind"].as_str().unwrap_or_default();
        let why = format!("Invalid value: \"{asked}\": field is immutable");
        let mut refusal = invalid(kind, &path.name, "metadata.uid", &why, "FieldValueInvalid");
        refusal.causes.push(refusal.causes[0].clone());
        return refusal;
    }
    let key = format!("/registry/{}/{}/{}", path.plural, path.namespace, path.name);
    let why = format!(
        "StorageError: invalid object, Code: 4, Key: {key}, ResourceVersion: 0, \
         AdditionalErrorMsg: Precondition failed: UID in precondition: {asked}, UID in object \
         meta: {has}"
    );
    conflict(&path.qualified(), &path.name, &why)
}

/// Returns a 422 about one field.
pub(super) fn invalid(kind: &str, name: &str, field: &str, why: &str, cause: &str) -> ApiError {
    let mut refusal =
        error(422, "Invalid", format!("{kind} \"{name}\" is invalid: {field}: {why}"));
    refusal.causes = vec![(cause.to_owned(), why.to_owned())];
    refusal
}

/// Returns a 422 without details: a `test` of a JSON patch failed.
pub(super) fn unprocessable() -> ApiError {
    error(
        422,
        "Invalid",
        "the server rejected our request due to an error in our request".to_owned(),
    )
}

pub(super) fn bad_request(message: &str) -> ApiError {
    error(400, "BadRequest", message.to_owned())
}

pub(super) fn forbidden(path: &Path, why: &str) -> ApiError {
    let message = format!("{} \"{}\" is forbidden: {why}", path.qualified(), path.name);
    error(403, "Forbidden", message)
}

/// Returns a 403: the namespace is terminating.
pub(super) fn terminating(path: &Path) -> ApiError {
    let namespace = &path.namespace;
    let why = format!(
        "unable to create new content in namespace {namespace} because it is being terminated"
    );
    let mut refusal = forbidden(path, &why);
    refusal.causes = vec![(
        "NamespaceTerminating".to_owned(),
        format!("namespace {namespace} is being terminated"),
    )];
    refusal
}

/// Returns a 429: a budget does not allow the eviction now.
pub(super) fn too_many(cause: String, retry_after: Option<u64>) -> ApiError {
    let mut refusal = error(
        429,
        "TooManyRequests",
        "Cannot evict pod as it would violate the pod's disruption budget.".to_owned(),
    );
    refusal.causes = vec![("DisruptionBudget".to_owned(), cause)];
    refusal.retry_after = retry_after;
    refusal
}

/// Returns a 500: a Pod has two budgets.
pub(super) fn two_budgets() -> ApiError {
    error(
        500,
        "",
        "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."
            .to_owned(),
    )
}
