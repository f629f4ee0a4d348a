//! The `merge` strategy: merges YAML into YAML, document by document, and preserves comments and
//! order.

use serde_json::Value;

use crate::render::{json, yaml_edit};
use imgctl_base::error::{Context, Error, Result};
use imgctl_template::yaml;

#[derive(Debug, PartialEq)]
pub(super) struct Merged {
    pub(super) text: String,
    /// Describes content that the merge failed to preserve.
    pub(super) note: Option<String>,
}

/// Merges `data` into `text`, the content of the file `name`.
///
/// With several documents, each data document is merged into the documents with the same `kind` and
/// `metadata.name`. A data document with neither is merged into the document at the same position
/// if both texts have the same number of documents. A single data document with neither is merged
/// into all documents.
pub(super) fn merge(name: &str, text: &str, data: &str) -> Result<Merged> {
    let is_json = name.ends_with(".json") && text.trim_start().starts_with(['{', '[']);
    if is_json {
        // The data for a JSON file can still be YAML.
        let data = if data.trim_start().starts_with('{') {
            data.to_owned()
        } else {
            yaml::parse(data).context(|| format!("cannot read the data for {name}"))?.to_string()
        };
        return Ok(Merged { text: json::merge_text(name, text, &data)?, note: None });
    }
    let mut parts = split(text);
    let places: Vec<usize> =
        (0..parts.len()).filter(|place| parts.get(*place).is_some_and(Part::has_content)).collect();
    let data: Vec<Part> = split(data).into_iter().filter(Part::has_content).collect();
    if places.is_empty() {
        return Ok(Merged { text: join(&data), note: None });
    }
    let mut values = Vec::new();
    for (number, place) in places.iter().enumerate() {
        let part = parts.get(*place).map_or("", |part| part.text.as_str());
        let shown = || format!("cannot read document {} of {name}", number + 1);
        values.push(yaml::parse(part).context(shown)?);
    }
    let mut rewritten = 0;
    for (index, data_part) in data.iter().enumerate() {
        let shown = || format!("cannot read document {} of the data for {name}", index + 1);
        let new = yaml::parse(&data_part.text).context(shown)?;
        for target in targets(name, &values, &new, index, data.len())? {
            let (Some(old), Some(place)) = (values.get_mut(target), places.get(target)) else {
                continue;
            };
            let Some(part) = parts.get_mut(*place) else {
                continue;
            };
            let merged = json::merge(old, &new).map_err(|mismatch| {
                Error::usage(format!(
                    "cannot merge into document {} of {name}: {mismatch}",
                    target + 1
                ))
            })?;
            match edited(&part.text, old, &new, &data_part.text, &merged) {
                Some(text) => part.text = text,
                None => {
                    part.text = yaml::write(&merged)? + "\n";
                    rewritten += 1;
                }
            }
            *old = merged;
        }
    }
    Ok(Merged {
        text: join(&parts),
        note: (rewritten > 0).then(|| {
            format!("{name}: {rewritten} of its documents were rewritten without comments")
        }),
    })
}

/// Edits the document's text; returns `None` if the edit does not produce `merged`.
fn edited(text: &str, old: &Value, new: &Value, new_text: &str, merged: &Value) -> Option<String> {
    if old == merged {
        return Some(text.to_owned());
    }
    let edited = yaml_edit::merge(text, old.as_object()?, new.as_object()?, new_text)?;
    (yaml::parse(&edited).ok()? == *merged).then_some(edited)
}

/// Returns the indexes of the documents that one data document is merged into.
fn targets(
    name: &str,
    documents: &[Value],
    new: &Value,
    index: usize,
    count: usize,
) -> Result<Vec<usize>> {
    if documents.len() == 1 && count == 1 {
        return Ok(vec![0]);
    }
    let wanted = identity(new);
    if wanted != (None, None) {
        let same = |value: &Value| {
            let (kind, named) = identity(value);
            wanted.0.is_none_or(|wanted| kind == Some(wanted))
                && wanted.1.is_none_or(|wanted| named == Some(wanted))
        };
        let found: Vec<usize> =
            (0..documents.len()).filter(|at| documents.get(*at).is_some_and(same)).collect();
        if found.is_empty() {
            let there: Vec<String> = documents.iter().map(|d| shown(identity(d))).collect();
            return Err(Error::usage(format!(
                "cannot merge into {name}: it has no document {}, only {}",
                shown(wanted),
                there.join(", ")
            ))
            .hint("use the strategy `append` to add a document"));
        }
        return Ok(found);
    }
    if count == documents.len() {
        return Ok(vec![index]);
    }
    if count == 1 {
        return Ok((0..documents.len()).collect());
    }
    Err(Error::usage(format!(
        "cannot merge into {name}: document {} of the data has no kind and no name, and the file has {} documents, not {count}",
        index + 1,
        documents.len()
    )))
}

/// Returns `kind` and `metadata.name`.
fn identity(value: &Value) -> (Option<&str>, Option<&str>) {
    (
        value.get("kind").and_then(Value::as_str),
        value.pointer("/metadata/name").and_then(Value::as_str),
    )
}

fn shown(identity: (Option<&str>, Option<&str>)) -> String {
    match identity {
        (Some(kind), Some(name)) => format!("{kind}/{name}"),
        (Some(kind), None) => kind.to_owned(),
        (None, Some(name)) => format!("named {name}"),
        (None, None) => "without kind and name".to_owned(),
    }
}

/// One document of a stream.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Part {
    /// The `---` line with its line ending, if there is one.
    pub(super) marker: String,
    pub(super) text: String,
}

impl Part {
    /// Reports whether the document contains anything besides blank lines and comments.
    pub(super) fn has_content(&self) -> bool {
        self.text.lines().any(|line| {
            let line = line.trim();
            !line.is_empty() && !line.starts_with('#') && line != "..."
        })
    }
}

/// Splits a stream into documents; [`join`] restores the same text.
pub(super) fn split(text: &str) -> Vec<Part> {
    let mut parts = vec![Part::default()];
    for line in text.split_inclusive('\n') {
        let bare = line.trim_end_matches(['\n', '\r']);
        let rest = bare.strip_prefix("---");
        let is_marker = rest.is_some_and(|rest| rest.is_empty() || rest.starts_with([' ', '\t']));
        if is_marker {
            let rest = rest.unwrap_or_default();
            let mut part = Part::default();
            if rest.trim().is_empty() || rest.trim().starts_with('#') {
                part.marker = line.to_owned();
            } else {
                part.marker = "---".to_owned();
                part.text = line.get(3..).unwrap_or_default().to_owned();
            }
            parts.push(part);
        } else if let Some(last) = parts.last_mut() {
            last.text.push_str(line);
        }
    }
    if parts.first().is_some_and(|first| first.text.is_empty()) && parts.len() > 1 {
        parts.remove(0);
    }
    parts
}

pub(super) fn join(parts: &[Part]) -> String {
    let mut text = String::new();
    for part in parts {
        if !part.marker.is_empty() && !text.is_empty() && !text.ends_with('\n') {
            text.push('\n');
        }
        text.push_str(&part.marker);
        text.push_str(&part.text);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use imgctl_base::testing::damaged;

    fn text(file: &str, data: &str) -> String {
        let merged = merge("f.yaml", file, data).unwrap();
        assert_eq!(merged.note, None, "{}", merged.text);
        merged.text
    }

    #[test]
    fn comments_order_and_style_stay() {
        let file = "\
# head
apiVersion: v1   # the version
kind: 'X'

spec:
  # how many
  replicas: 1 # one
  list:
  - a   # first
  - b
  text: |
    # not a comment
    line
  \"quoted key\": \"# no comment\" # comment
  flow: {a: 1, b: [2]}
  empty:

# tail
last: yes
";
        let data = "spec: {replicas: 3, flow: {b: [3]}, empty: {x: 1}, \"quoted key\": new, list: [c], added: {deep: [1, 2]}}\nkind: Y\nnew: null\n";
        let expected = "\
# head
apiVersion: v1   # the version
kind: Y

spec:
  # how many
  replicas: 3 # one
  list:
  - c
  text: |
    # not a comment
    line
  quoted key: new # comment
  flow:
    a: 1
    b:
    - 3
  empty:
    x: 1
  added:
    deep:
    - 1
    - 2

# tail
last: yes
new: null
";
        assert_eq!(text(file, data), expected);
        // A second merge changes nothing.
        assert_eq!(text(expected, data), expected);
    }

    #[test]
    fn documents_find_each_other() {
        let file = "kind: A\nmetadata:\n  name: x\nv: 1\n---\n# b\nkind: B\nv: 1\n---\nkind: A\nmetadata: {name: z}\nv: 1\n";
        let one = |data: &str| text(file, data);
        assert_eq!(one("kind: B\nv: 2"), file.replace("kind: B\nv: 1", "kind: B\nv: 2"));
        assert_eq!(one("metadata: {name: z}\nv: 2"), file.replace("z}\nv: 1", "z}\nv: 2"));
        assert_eq!(one("kind: A\nv: 2").matches("v: 2").count(), 2);
        assert_eq!(one("v: 2").matches("v: 2").count(), 3);
        assert_eq!(one("v: 2\n---\nv: 3\n---\nv: 4\n").matches("v: 3").count(), 1);
        let several = one("---\nkind: B\nv: 2\n---\nkind: A\nmetadata: {name: x}\nv: 3");
        assert!(several.contains("name: x\nv: 3") && several.contains("kind: B\nv: 2"));
        let error = merge("f", file, "kind: C\nv: 1").unwrap_err();
        assert!(error.to_string().contains("no document C, only A/x, B, A/z"), "{error}");
        let error = merge("f", file, "v: 1\n---\nv: 2").unwrap_err();
        assert!(error.to_string().contains("has 3 documents, not 2"), "{error}");
    }

    #[test]
    fn what_the_data_says_is_copied_as_it_is_written() {
        let file = "a:\n  v: 1.0 # old\n  list: [1]\nb: x\n";
        let data = "\
a:
    # why
    v: 1.10
    list:
        - 'y'   # first
        - mode: 0644
    more: |
        text

        # text
b: \"q\" # new
";
        let expected = "\
a:
  v: 1.10 # old
  list:
      - 'y'   # first
      - mode: 0644
  more: |
      text

      # text
b: \"q\" # new
";
        assert_eq!(text(file, data), expected);
    }

    #[test]
    fn mismatches_name_file_document_and_key() {
        let error = merge("etc/f.yaml", "a: {b: [1]}", "a: {b: {c: 1}}").unwrap_err();
        let says = "document 1 of etc/f.yaml: a.b is a list in the file, and a map in the data";
        assert!(error.to_string().contains(says), "{error}");
        let error = merge("etc/f.yaml", "a: [", "a: 1").unwrap_err();
        assert!(error.to_string().contains("document 1 of etc/f.yaml"), "{error}");
    }

    #[test]
    fn what_cannot_be_edited_is_written_anew_and_said() {
        let merged = merge("f", "{a: 1, b: 2} # c\n", "a: 3").unwrap();
        assert_eq!(merged.text, "a: 3\nb: 2\n");
        assert!(merged.note.unwrap().contains("without comments"));
        let anchors = "base: &b\n  x: 1\nother:\n  <<: *b\n  y: 1\n";
        let merged = merge("f", anchors, "base: {x: 5}").unwrap();
        assert_eq!(yaml::parse(&merged.text).unwrap()["base"]["x"], 5);
        assert_eq!(yaml::parse(&merged.text).unwrap()["other"]["x"], 1);
    }

    #[test]
    fn json_files_take_yaml_data() {
        let merged = merge("a.json", "{\"a\":1}", "b: 2").unwrap();
        assert_eq!(merged.text, "{\"a\":1,\"b\":2}");
        assert_eq!(merge("f", "# nothing\n", "a: 1\n").unwrap().text, "a: 1\n");
    }

    proptest::proptest! {
        #[test]
        fn edits_give_what_a_merge_of_the_data_gives(
            keys in proptest::collection::vec(("[a-c]{1,2}", "[a-c]", 0_i32..4, proptest::bool::ANY), 1..6),
            data in proptest::collection::vec(("[a-d]{1,2}", "[a-d]", 0_i32..4), 1..5),
        ) {
            let mut old = serde_json::Map::new();
            for (outer, inner, number, is_list) in keys {
                let value = if is_list { serde_json::json!([number]) } else { number.into() };
                let entry = old.entry(outer).or_insert_with(|| serde_json::json!({}));
                entry.as_object_mut().unwrap().insert(inner, value);
            }
            let old = Value::Object(old);
            let mut new = serde_json::json!({});
            for (outer, inner, number) in data {
                new[outer][inner] = number.into();
            }
            let commented = yaml::write(&old).unwrap().replace('\n', "\n# c\n");
            let Ok(expected) = json::merge(&old, &new) else { return Ok(()); };
            let merged = merge("f", &commented, &yaml::write(&new).unwrap()).unwrap();
            proptest::prop_assert_eq!(yaml::parse(&merged.text).unwrap(), expected);
            proptest::prop_assert_eq!(merged.note, None);
        }
    }

    #[test]
    fn streams_come_back_as_they_were() {
        for (text, count) in [
            ("", 1),
            ("a: 1\n", 1),
            ("---\na: 1\n---\nb: 1", 2),
            ("# c\n---\na: 1\n--- # x\n\n", 3),
            ("a: |\n  ---\n  x\n", 1),
            ("--- {a: 1}\n---- \n", 1),
        ] {
            let parts = split(text);
            assert_eq!(parts.len(), count, "{text:?}");
            assert_eq!(join(&parts), text);
        }
        assert!(!split("# only\n\n")[0].has_content());
    }

    /// Whatever a file and a Config document hold: what is merged has the values of both, and merging again changes nothing.
    #[test]
    fn any_documents_are_merged_or_refused() {
        let valid = "# head\na: 1   # one\nb:\n  c: [x, y]\n  d: {e: f}\n---\nkind: K\nmetadata: {name: n}\n";
        let data = "b:\n  c: [z]\n  n: 2\n";
        bolero::check!().for_each(|input: &[u8]| {
            let (one, two) = input.split_at(input.len() / 2);
            for (file, data) in [
                (one.to_vec(), two.to_vec()),
                (damaged(valid.as_bytes(), one), damaged(data.as_bytes(), two)),
                (damaged(valid.as_bytes(), one), data.as_bytes().to_vec()),
            ] {
                let (file, data) = (String::from_utf8_lossy(&file), String::from_utf8_lossy(&data));
                assert_eq!(join(&split(&file)), file);
                if let Ok(merged) = merge("f.yaml", &file, &data)
                    && let Ok(again) = merge("f.yaml", &merged.text, &data)
                {
                    assert_eq!(again.text, merged.text, "{file:?} {data:?}");
                }
                let _ = merge("f.json", &file, &data);
            }
        });
    }
}
