//! Answers of an API server as values: one answer, and a list of objects in pages. The server may be hostile,
//! so what its answers take has a limit. Must not know how requests are sent.

use std::collections::BTreeSet;

use bytes::Bytes;
use serde_json::Value;

use crate::api::{Answer, ApiError, encoded};

/// Number of objects per page of a list.
const PAGE: usize = 500;
/// Maximum number of values in one answer: each takes memory, however short it is in JSON.
const MAX_VALUES: usize = 4_000_000;

/// What all pages of one list may take.
struct Limits {
    pages: usize,
    bytes: usize,
    values: usize,
}

const LIMITS: Limits = Limits { pages: 10_000, bytes: 256 << 20, values: 16_000_000 };

/// Parses one answer.
pub(super) fn parsed(body: &[u8]) -> Answer<Value> {
    if values(body) > MAX_VALUES {
        return Err(refused(format!("its answer has more than {MAX_VALUES} values")));
    }
    serde_json::from_slice(body)
        .map_err(|error| refused(format!("its answer is not JSON: {error}")))
}

/// Returns all objects of the list at `path`, whose pages `read` requests.
pub(super) fn list(path: &str, read: impl FnMut(&str) -> Answer<Bytes>) -> Answer<Vec<Value>> {
    within(&LIMITS, path, read)
}

fn within(
    limits: &Limits,
    path: &str,
    mut read: impl FnMut(&str) -> Answer<Bytes>,
) -> Answer<Vec<Value>> {
    let more = |limit: usize, of: &str| refused(format!("its list has more than {limit} {of}"));
    let separator = if path.contains('?') { '&' } else { '?' };
    let mut items = Vec::new();
    let mut seen = BTreeSet::new();
    let (mut pages, mut length, mut count) = (0, 0_usize, 0_usize);
    let mut next = format!("{path}{separator}limit={PAGE}");
    loop {
        pages += 1;
        if pages > limits.pages {
            return Err(more(limits.pages, "pages"));
        }
        let body = match read(&next) {
            // The continue token has expired: list everything in one request.
            Err(error) if error.code == 410 && !items.is_empty() => {
                items.clear();
                (length, count) = (0, 0);
                path.clone_into(&mut next);
                continue;
            }
            body => body?,
        };
        length = length.saturating_add(body.len());
        if length > limits.bytes {
            return Err(more(limits.bytes, "bytes"));
        }
        count = count.saturating_add(values(&body));
        if count > limits.values {
            return Err(more(limits.values, "values"));
        }
        let mut page = parsed(&body)?;
        let kind = page["kind"].as_str().unwrap_or_default();
        let kind = Value::from(kind.strip_suffix("List").unwrap_or(kind));
        let version = page["apiVersion"].clone();
        let found = page.get_mut("items").map(Value::take).unwrap_or_default();
        let found = match found {
            Value::Array(found) => found,
            Value::Null => Vec::new(),
            _ => return Err(refused("the items of its list are no list".to_owned())),
        };
        for mut item in found {
            let Value::Object(members) = &mut item else {
                return Err(refused("its list has an item that is no object".to_owned()));
            };
            members.insert("apiVersion".to_owned(), version.clone());
            members.insert("kind".to_owned(), kind.clone());
            items.push(item);
        }
        match page["metadata"]["continue"].as_str() {
            Some(token) if !token.is_empty() => {
                if !seen.insert(token.to_owned()) {
                    return Err(refused("a page of its list leads back to itself".to_owned()));
                }
                next = format!("{path}{separator}limit={PAGE}&continue={}", encoded(token));
            }
            _ => return Ok(items),
        }
    }
}

fn refused(message: String) -> ApiError {
    ApiError { message, ..ApiError::default() }
}

/// Returns an upper bound of the number of values in a document without parsing it.
fn values(body: &[u8]) -> usize {
    let (mut count, mut in_text, mut is_escaped) = (1, false, false);
    for byte in body {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if in_text => is_escaped = true,
            b'"' => in_text = !in_text,
            b',' | b'[' | b'{' if !in_text => count += 1,
            _ => {}
        }
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn page(token: &str, items: &Value) -> Bytes {
        let page = json!({"kind": "PodList", "metadata": {"continue": token}, "items": items});
        Bytes::from(page.to_string())
    }

    fn refusal(mut read: impl FnMut(usize) -> Bytes) -> (String, usize) {
        let limits = Limits { pages: 100, bytes: 10_000, values: 500 };
        let mut asked = 0;
        let error = within(&limits, "/api/v1/pods", |_| {
            asked += 1;
            Ok(read(asked))
        })
        .unwrap_err();
        (error.message, asked)
    }

    #[test]
    fn a_list_without_an_end_is_refused() {
        let (message, asked) = refusal(|_| page("x", &json!([])));
        assert_eq!((&*message, asked), ("a page of its list leads back to itself", 2));
        let (message, asked) = refusal(|number| page(&number.to_string(), &Value::Null));
        assert_eq!((&*message, asked), ("its list has more than 100 pages", 100));
        let large = json!([{"data": "y".repeat(3000)}]);
        let (message, asked) = refusal(|number| page(&number.to_string(), &large));
        assert_eq!((&*message, asked), ("its list has more than 10000 bytes", 4));
        let wide = json!([{"data": vec![0; 150]}]);
        let (message, asked) = refusal(|number| page(&number.to_string(), &wide));
        assert_eq!((&*message, asked), ("its list has more than 500 values", 4));
    }

    #[test]
    fn what_is_no_list_of_objects_is_refused() {
        for body in ["[]", "1", "{\"items\":1}", "{\"items\":[[]]}", "{\"items\":[null]}"] {
            let listed = list("/api/v1/pods", |_| Ok(Bytes::from(body)));
            assert_eq!(listed.is_ok(), ["[]", "1"].contains(&body), "{body}");
        }
    }

    #[test]
    fn an_answer_of_many_small_values_is_refused_before_they_take_memory() {
        let wide = format!("[{}[]]", "[],".repeat(MAX_VALUES / 2));
        let error = parsed(wide.as_bytes()).unwrap_err();
        assert_eq!(error.message, "its answer has more than 4000000 values");
        let text = json!({"a": format!("\\\"{}", ",[".repeat(MAX_VALUES))}).to_string();
        assert!(parsed(text.as_bytes()).is_ok());
    }
}
