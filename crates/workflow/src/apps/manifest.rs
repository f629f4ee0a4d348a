//! The objects in a text of manifests: YAML or JSON, several documents, lists.

use serde_json::Value;

use imgctl_base::error::Result;
use imgctl_kube::objects::ObjectName;
use imgctl_template::yaml;

/// Lists may contain lists.
const DEEPEST: usize = 8;

/// Returns the objects of a text in its order; `namespace` is for those that name none. Objects
/// without a name of their own (`generateName`) and those with impossible names are left out.
pub fn objects(text: &str, namespace: &str) -> Result<Vec<ObjectName>> {
    let mut found = Vec::new();
    for document in documents(text) {
        let has_content =
            document.lines().any(|line| !line.trim().is_empty() && !line.starts_with('#'));
        if has_content {
            collect(&yaml::parse_first(document)?, namespace, DEEPEST, &mut found);
        }
    }
    Ok(found)
}

/// Splits a text at its `---` lines, as kubectl and Helm do.
fn documents(text: &str) -> Vec<&str> {
    let mut documents = Vec::new();
    let (mut start, mut at) = (0, 0);
    for line in text.split_inclusive('\n') {
        let rest = line.strip_prefix("---");
        if rest.is_some_and(|rest| rest.trim().is_empty() || rest.starts_with([' ', '\t'])) {
            documents.push(&text[start..at]);
            // What follows on the same line belongs to the document.
            start = at + 3;
        }
        at += line.len();
    }
    documents.push(&text[start..]);
    documents
}

fn collect(value: &Value, namespace: &str, depth: usize, found: &mut Vec<ObjectName>) {
    let is_list = value["kind"].as_str().is_some_and(|kind| kind.ends_with("List"));
    match value["items"].as_array().filter(|_| is_list && depth > 0) {
        Some(items) => {
            items.iter().for_each(|item| collect(item, namespace, depth - 1, found));
        }
        None => found.extend(ObjectName::of(value, namespace)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_of_documents_and_lists() {
        let text = "# comment\n---\napiVersion: v1\nkind: Namespace\nmetadata: {name: a}\n--- # two\n\
            apiVersion: apps/v1\nkind: Deployment\nmetadata:\n  name: b\n  namespace: a\ndata: |\n  ---\n  x\n\
            ---\n\n---\n{\"apiVersion\":\"v1\",\"kind\":\"List\",\"items\":[\
            {\"apiVersion\":\"v1\",\"kind\":\"Secret\",\"metadata\":{\"name\":\"c\"}},\
            {\"apiVersion\":\"v1\",\"kind\":\"Pod\",\"metadata\":{\"generateName\":\"d-\"}},\
            {\"apiVersion\":\"v1\",\"kind\":\"Pod\",\"metadata\":{\"name\":\"../e\"}}]}\n";
        let found: Vec<String> =
            objects(text, "n").unwrap().iter().map(ToString::to_string).collect();
        assert_eq!(found, ["Namespace n/a", "Deployment.apps a/b", "Secret n/c"]);
        assert!(objects("", "n").unwrap().is_empty());
        assert!(
            objects("--- {apiVersion: v1, kind: Pod, metadata: {name: x}}", "n").unwrap().len()
                == 1
        );
        assert!(objects("a: [", "n").is_err());
        assert!(objects("just text", "n").unwrap().is_empty());
    }
}
