//! Data of templates with fields and methods of its own: Go structs, `.Files`,
//! `.Capabilities.APIVersions`.

use std::collections::BTreeMap;
use std::rc::Rc;

use base64::Engine as _;

use super::glob;
use imgctl_template::value::{Object, text_argument};
use imgctl_template::{Value, encode};

/// A Go struct: accessing a field that does not exist is an error.
pub(super) struct Struct {
    pub(super) type_name: &'static str,
    pub(super) fields: Vec<(&'static str, Value)>,
    /// Output of `%v`.
    pub(super) shown: String,
}

impl Object for Struct {
    fn type_name(&self) -> &'static str {
        self.type_name
    }

    fn show(&self) -> String {
        self.shown.clone()
    }

    fn data(&self) -> Value {
        Value::map(self.fields.iter().map(|(name, value)| (*name, value.clone())))
    }

    fn member(&self, name: &str, _: &[Value]) -> Option<Result<Value, String>> {
        self.fields.iter().find(|(field, _)| *field == name).map(|(_, value)| Ok(value.clone()))
    }
}

/// `.Capabilities.APIVersions`.
pub(super) struct ApiVersions(pub(super) Vec<String>);

impl Object for ApiVersions {
    fn kind(&self) -> &'static str {
        "slice"
    }

    fn type_name(&self) -> &'static str {
        "chartutil.VersionSet"
    }

    fn items(&self) -> Option<usize> {
        Some(self.0.len())
    }

    fn show(&self) -> String {
        format!("[{}]", self.0.join(" "))
    }

    fn data(&self) -> Value {
        Value::list(self.0.iter().map(Value::text))
    }

    fn member(&self, name: &str, arguments: &[Value]) -> Option<Result<Value, String>> {
        (name == "Has").then(|| {
            let wanted = text_argument(name, arguments)?;
            Ok(Value::Bool(self.0.iter().any(|version| *version == *wanted)))
        })
    }
}

/// `.Files`: contents by path within the chart.
pub(super) struct Files(pub(super) Contents);

type Contents = BTreeMap<String, Rc<[u8]>>;

impl Object for Files {
    fn kind(&self) -> &'static str {
        "map"
    }

    fn type_name(&self) -> &'static str {
        "engine.files"
    }

    fn items(&self) -> Option<usize> {
        Some(self.0.len())
    }

    fn show(&self) -> String {
        "map[]".to_owned()
    }

    fn data(&self) -> Value {
        let files = self.0.iter();
        Value::map(files.map(|(path, content)| (path.as_str(), Value::Bytes(content.clone()))))
    }

    /// A name that is not a method is a path, as in Go's map.
    fn member(&self, name: &str, arguments: &[Value]) -> Option<Result<Value, String>> {
        let files = &self.0;
        let text = || text_argument(name, arguments);
        let content = |path: &str| files.get(path).cloned();
        Some(match name {
            "Get" => text().map(|path| {
                let bytes = content(&path).unwrap_or_default();
                Value::text(String::from_utf8_lossy(&bytes))
            }),
            "GetBytes" => text().map(|path| Value::Bytes(content(&path).unwrap_or_default())),
            "Lines" => text().map(|path| lines(&content(&path).unwrap_or_default())),
            "Glob" => text().map(|pattern| glob(files, &pattern)),
            "AsConfig" => as_map(files, |bytes| String::from_utf8_lossy(bytes).into_owned()),
            "AsSecrets" => {
                as_map(files, |bytes| base64::engine::general_purpose::STANDARD.encode(bytes))
            }
            path => Ok(content(path).map_or(Value::Nil, Value::Bytes)),
        })
    }
}

fn lines(bytes: &[u8]) -> Value {
    let text = String::from_utf8_lossy(bytes);
    if text.is_empty() {
        return Value::list([]);
    }
    Value::list(text.strip_suffix('\n').unwrap_or(&text).split('\n').map(Value::text))
}

fn glob(files: &Contents, pattern: &str) -> Value {
    let chosen = files
        .iter()
        .filter(|(path, _)| glob::matches(pattern, path))
        .map(|(path, content)| (path.clone(), content.clone()))
        .collect();
    Value::object(Files(chosen))
}

/// Entries of a ConfigMap or Secret: base names and contents. No files produce an empty string.
fn as_map(files: &Contents, show: impl Fn(&[u8]) -> String) -> Result<Value, String> {
    if files.is_empty() {
        return Ok(Value::text(""));
    }
    let members = files.iter().map(|(path, content)| {
        let base = path.rsplit('/').next().unwrap_or(path);
        (base, Value::text(show(content)))
    });
    encode::to_yaml(&Value::map(members)).map(Value::text)
}
