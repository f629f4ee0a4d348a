//! Template values that have fields and methods of their own: `.Chart`, `.Capabilities`, `.Files`,
//! versions and points in time.

use std::collections::BTreeMap;
use std::rc::Rc;

use super::dates;
use super::files;
use super::value::Value;
use imgctl_template::semver::Version;

/// A value with fields or methods.
pub(in super::super) enum Object {
    /// A Go struct: accessing a field that does not exist is an error.
    Struct {
        type_name: &'static str,
        fields: Vec<(&'static str, Value)>,
        /// Output of `%v`.
        shown: String,
    },
    /// `.Files`: contents by path within the chart.
    Files(Rc<BTreeMap<String, Rc<[u8]>>>),
    /// `.Capabilities.APIVersions`.
    ApiVersions(Rc<Vec<String>>),
    /// Result of `semver`.
    Version(Version, String),
    /// Seconds since 1970.
    Time(i64),
}

impl Object {
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::Struct { .. } | Self::Time(_) => "struct",
            Self::Version(..) => "ptr",
            Self::Files(_) => "map",
            Self::ApiVersions(_) => "slice",
        }
    }

    pub(super) fn type_name(&self) -> &'static str {
        match self {
            Self::Struct { type_name, .. } => type_name,
            Self::Files(_) => "engine.files",
            Self::ApiVersions(_) => "chartutil.VersionSet",
            Self::Version(..) => "*semver.Version",
            Self::Time(_) => "time.Time",
        }
    }

    /// Returns the number of items, if the value has items.
    pub(super) fn len(&self) -> Option<usize> {
        match self {
            Self::Files(files) => Some(files.len()),
            Self::ApiVersions(versions) => Some(versions.len()),
            _ => None,
        }
    }

    /// Returns the output of `%v`.
    pub(super) fn show(&self) -> String {
        match self {
            Self::Struct { shown, .. } => shown.clone(),
            Self::Files(_) => "map[]".to_owned(),
            Self::ApiVersions(versions) => format!("[{}]", versions.join(" ")),
            Self::Version(version, _) => version_text(version),
            Self::Time(seconds) => dates::format(*seconds, "2006-01-02 15:04:05 -0700 MST"),
        }
    }

    /// Returns the value as plain data, for `toYaml` and iteration.
    pub(super) fn data(&self) -> Value {
        match self {
            Self::Struct { fields, .. } => {
                Value::map(fields.iter().map(|(name, value)| (*name, value.clone())))
            }
            Self::Files(files) => Value::map(
                files.iter().map(|(path, content)| (path.as_str(), Value::Bytes(content.clone()))),
            ),
            Self::ApiVersions(versions) => Value::list(versions.iter().map(Value::text)),
            Self::Version(_, original) => Value::text(original),
            Self::Time(seconds) => Value::text(dates::format(*seconds, "2006-01-02T15:04:05Z")),
        }
    }

    /// Returns a field, or the result of a method called with `arguments`. `None`: no such field or
    /// method exists.
    pub(super) fn member(&self, name: &str, arguments: &[Value]) -> Option<Result<Value, String>> {
        match self {
            Self::Struct { fields, .. } => {
                fields.iter().find(|(field, _)| *field == name).map(|(_, value)| Ok(value.clone()))
            }
            Self::Files(all) => files::method(all, name, arguments),
            Self::ApiVersions(versions) => (name == "Has").then(|| {
                let wanted = text_argument(name, arguments)?;
                Ok(Value::Bool(versions.iter().any(|v| *v == *wanted)))
            }),
            Self::Version(version, original) => {
                version_member(version, original, name, arguments).map(Ok)
            }
            Self::Time(seconds) => dates::method(*seconds, name, arguments),
        }
    }
}

/// Returns the only argument of a method, which must be a string.
pub(super) fn text_argument(name: &str, arguments: &[Value]) -> Result<Rc<str>, String> {
    match arguments {
        [Value::Text(text)] => Ok(text.clone()),
        [other] => Err(format!("wrong type for value; expected string; got {}", other.type_name())),
        _ => Err(format!("wrong number of args for {name}: want 1 got {}", arguments.len())),
    }
}

fn version_text(version: &Version) -> String {
    let [major, minor, patch] = version.numbers;
    let mut text = format!("{major}.{minor}.{patch}");
    for (mark, part) in [('-', &version.prerelease), ('+', &version.metadata)] {
        if !part.is_empty() {
            text.push(mark);
            text.push_str(part);
        }
    }
    text
}

fn version_member(
    version: &Version,
    original: &str,
    name: &str,
    arguments: &[Value],
) -> Option<Value> {
    let number = |index: usize| {
        let number = version.numbers.get(index).copied().unwrap_or(0);
        Value::Int(i64::try_from(number).unwrap_or(i64::MAX))
    };
    Some(match name {
        "Major" => number(0),
        "Minor" => number(1),
        "Patch" => number(2),
        "Prerelease" => Value::text(&version.prerelease),
        "Metadata" => Value::text(&version.metadata),
        "Original" => Value::text(original),
        "String" => Value::text(version_text(version)),
        "Compare" | "Equal" | "LessThan" | "GreaterThan" => {
            let Some(Value::Object(other)) = arguments.first() else {
                return None;
            };
            let Object::Version(other, _) = other.as_ref() else {
                return None;
            };
            let order = version.compare(other);
            match name {
                "Compare" => Value::Int(order as i64),
                "Equal" => Value::Bool(order.is_eq()),
                "LessThan" => Value::Bool(order.is_lt()),
                _ => Value::Bool(order.is_gt()),
            }
        }
        _ => return None,
    })
}
