//! Semantic versions: `semver` and `semverCompare`.

use super::call::{Answer, Call, Group, text};
use super::growth::Growth::Fresh;
use super::growth::full;
use crate::print::cut;
use crate::value::{Object, Value, text_argument};
use imgctl_base::semver::{self, Version};

pub(super) const GROUP: Group = &[
    ("semver", "s", Fresh(full::<48, 8>), |a| {
        let original = text(a, 0).as_ref().to_owned();
        let version = Version::parse(&original);
        let version =
            version.ok_or_else(|| format!("Invalid Semantic Version {:?}", cut(&original)))?;
        Ok(Value::object(Written { version, original }))
    }),
    ("semverCompare", "ss", Fresh(full::<48, 64>), compare),
];

/// Result of `semver`.
struct Written {
    version: Version,
    original: String,
}

fn compare(a: &Call<'_>) -> Answer {
    let (constraint, given) = (text(a, 0), text(a, 1));
    let version = match Version::parse(&given) {
        Some(version) => version,
        None if a.dialect.is_typed() => {
            return Err(format!("Invalid Semantic Version {:?}", cut(&given)));
        }
        // As in sealos, an invalid version satisfies no constraint; but a malformed constraint is an
        // error.
        None => {
            let zero =
                Version { numbers: [0; 3], prerelease: String::new(), metadata: String::new() };
            return satisfies(&constraint, &zero).map(|_| Value::Bool(false));
        }
    };
    satisfies(&constraint, &version).map(Value::Bool)
}

fn satisfies(constraint: &str, version: &Version) -> Result<bool, String> {
    semver::satisfies(constraint, version)
        .ok_or_else(|| format!("improper constraint: {}", cut(constraint)))
}

impl Written {
    /// Returns a version that replaces this one; a `v` before it stays.
    fn made(&self, version: Version) -> Value {
        let mut made = Self { version, original: String::new() };
        let v = if self.original.starts_with('v') { "v" } else { "" };
        made.original = format!("{v}{}", made.show());
        Value::object(made)
    }

    fn next(&self, numbers: [u64; 3]) -> Value {
        let (prerelease, metadata) = (String::new(), String::new());
        self.made(Version { numbers, prerelease, metadata })
    }

    /// `SetPrerelease`, `SetMetadata`.
    fn with(&self, method: &str, text: &str) -> Answer {
        let word = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.');
        if !text.bytes().all(word) {
            return Err(format!(
                "error calling {method}: {:?} has other characters than letters, digits, - and .",
                cut(text)
            ));
        }
        let mut version = self.version.clone();
        let part = match method {
            "SetMetadata" => &mut version.metadata,
            _ => &mut version.prerelease,
        };
        text.clone_into(part);
        Ok(self.made(version))
    }
}

impl Object for Written {
    fn kind(&self) -> &'static str {
        "ptr"
    }

    fn type_name(&self) -> &'static str {
        "*semver.Version"
    }

    fn show(&self) -> String {
        let [major, minor, patch] = self.version.numbers;
        let mut text = format!("{major}.{minor}.{patch}");
        for (mark, part) in [('-', &self.version.prerelease), ('+', &self.version.metadata)] {
            if !part.is_empty() {
                text.push(mark);
                text.push_str(part);
            }
        }
        text
    }

    fn data(&self) -> Value {
        Value::text(self.show())
    }

    fn member(&self, name: &str, arguments: &[Value]) -> Option<Result<Value, String>> {
        let [major, minor, patch] = self.version.numbers;
        let number = |number| Value::Int(i64::try_from(number).unwrap_or(i64::MAX));
        let order = || {
            let other = arguments.first()?.as_object::<Self>()?;
            Some(self.version.compare(&other.version))
        };
        Some(Ok(match name {
            "Major" => number(major),
            "Minor" => number(minor),
            "Patch" => number(patch),
            "Prerelease" => Value::text(&self.version.prerelease),
            "Metadata" => Value::text(&self.version.metadata),
            "Original" => Value::text(&self.original),
            "String" | "MarshalJSON" | "MarshalText" => Value::text(self.show()),
            "IncMajor" => self.next([major.saturating_add(1), 0, 0]),
            "IncMinor" => self.next([major, minor.saturating_add(1), 0]),
            // A pre-release precedes the version of the same numbers.
            "IncPatch" => {
                let step = u64::from(self.version.prerelease.is_empty());
                self.next([major, minor, patch.saturating_add(step)])
            }
            "SetPrerelease" | "SetMetadata" => {
                return Some(
                    text_argument(name, arguments).and_then(|text| self.with(name, &text)),
                );
            }
            "Compare" => Value::Int(order()? as i64),
            "Equal" => Value::Bool(order()?.is_eq()),
            "LessThan" => Value::Bool(order()?.is_lt()),
            "LessThanEqual" => Value::Bool(order()?.is_le()),
            "GreaterThan" => Value::Bool(order()?.is_gt()),
            "GreaterThanEqual" => Value::Bool(order()?.is_ge()),
            _ => return None,
        }))
    }
}
