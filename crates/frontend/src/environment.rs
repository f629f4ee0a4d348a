//! The process environment as a value. This is the only place that looks up variables.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use imgctl_base::error::{Error, Result};

/// Environment variables of the process.
#[derive(Clone, Debug, Default)]
pub struct Environment(BTreeMap<OsString, OsString>);

impl Environment {
    /// Takes over the variables; the first of several with the same name counts, as for getenv(3).
    pub fn new(variables: Vec<(OsString, OsString)>) -> Self {
        let mut map = BTreeMap::new();
        for (name, value) in variables {
            map.entry(name).or_insert(value);
        }
        Self(map)
    }

    /// Sets a variable, for a flag that stands for it.
    pub fn set(&mut self, name: &str, value: OsString) {
        self.0.insert(name.into(), value);
    }

    /// Returns the value of `name`, empty or not.
    pub fn get(&self, name: &str) -> Option<&OsStr> {
        self.0.get(OsStr::new(name)).map(OsString::as_os_str)
    }

    /// Returns the value of `name` if it is set and not empty; a value that is not UTF-8 is a usage
    /// error.
    pub fn text(&self, name: &str) -> Result<Option<&str>> {
        match self.get(name) {
            None => Ok(None),
            Some(value) if value.is_empty() => Ok(None),
            Some(value) => value
                .to_str()
                .map(Some)
                .ok_or_else(|| Error::usage(format!("the variable {name} is not UTF-8"))),
        }
    }

    /// Returns all variables whose name and value are UTF-8.
    pub fn texts(&self) -> BTreeMap<String, String> {
        let text = |text: &OsStr| text.to_str().map(str::to_owned);
        self.0.iter().filter_map(|(name, value)| Some((text(name)?, text(value)?))).collect()
    }

    /// Returns a path variable if it is set and not empty.
    pub fn path(&self, name: &str) -> Option<PathBuf> {
        self.get(name).filter(|value| !value.is_empty()).map(PathBuf::from)
    }

    /// Reads a switch: `1 true yes on` or `0 false no off`; unset and empty are `None`.
    pub fn switch(&self, name: &str) -> Result<Option<bool>> {
        let Some(text) = self.text(name)? else {
            return Ok(None);
        };
        match text.to_ascii_lowercase().as_str() {
            "1" | "true" | "yes" | "on" => Ok(Some(true)),
            "0" | "false" | "no" | "off" => Ok(Some(false)),
            _ => Err(Error::usage(format!("the variable {name} is `{text}`, not yes or no"))
                .hint(format!("set {name}=1 or {name}=0, or leave it unset"))),
        }
    }

    /// Returns the value as text for builds (`--build-arg NAME`); `None` when unset.
    pub fn lossless(&self, name: &str) -> Result<Option<String>> {
        self.get(name)
            .map(|value| {
                value
                    .to_str()
                    .map(str::to_owned)
                    .ok_or_else(|| Error::usage(format!("the variable {name} is not UTF-8")))
            })
            .transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(variables: &[(&str, &str)]) -> Environment {
        Environment::new(
            variables.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect(),
        )
    }

    #[test]
    fn switches_read_the_usual_words_and_refuse_others() {
        for (value, expected) in
            [("1", Some(true)), ("Yes", Some(true)), ("off", Some(false)), ("", None)]
        {
            assert_eq!(environment(&[("X", value)]).switch("X").unwrap(), expected, "{value}");
        }
        assert!(environment(&[("X", "maybe")]).switch("X").is_err());
        assert_eq!(environment(&[]).switch("X").unwrap(), None);
    }

    #[test]
    fn the_first_of_two_equal_names_counts() {
        let both = environment(&[("X", "first"), ("X", "second")]);
        assert_eq!(both.text("X").unwrap(), Some("first"));
    }
}
