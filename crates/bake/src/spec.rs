//! Settings in the form `key=value,key=value`, which bake files also write as objects. Must not know which
//! keys a setting has.

use std::collections::BTreeMap;

use imgctl_base::text::csv;

/// An output, a cache, a secret, an SSH agent or an attestation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Spec(pub BTreeMap<String, String>);

/// Settings that are written in this form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Output,
    Cache,
    Other,
}

impl Spec {
    /// Reads the text of a setting: pairs, or the one value that has a short form.
    pub(crate) fn parse(text: &str, kind: Kind) -> Self {
        let of = |pairs: &[(&str, &str)]| {
            Self(pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect())
        };
        let fields = csv(text);
        match (kind, &fields[..]) {
            (Kind::Output, [one]) if one == "-" => return of(&[("type", "tar"), ("dest", "-")]),
            (Kind::Output, [one]) if !one.contains('=') => {
                return of(&[("type", "local"), ("dest", one)]);
            }
            (Kind::Cache, [one]) if !one.contains('=') => {
                return of(&[("type", "registry"), ("ref", one)]);
            }
            (Kind::Other, [one]) if !one.contains('=') => return of(&[("id", one)]),
            _ => {}
        }
        let pairs = fields.iter().map(|field| match field.split_once('=') {
            Some((key, value)) => (key.trim().to_lowercase(), value.to_owned()),
            None => (field.trim().to_lowercase(), String::new()),
        });
        Self(pairs.collect())
    }

    /// Returns the text that [`Spec::parse`] reads, with the type first.
    pub fn text(&self) -> String {
        let mut pairs: Vec<(&String, &String)> = self.0.iter().collect();
        pairs.sort_by_key(|(key, _)| (*key != "type" && *key != "id", *key));
        let pairs = pairs.iter().map(|(key, value)| {
            let pair = format!("{key}={value}");
            if pair.contains([',', '"', '\n']) {
                format!("\"{}\"", pair.replace('"', "\"\""))
            } else {
                pair
            }
        });
        pairs.collect::<Vec<_>>().join(",")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_and_short_forms_are_read_and_written() {
        for (text, kind, expected) in [
            ("type=registry,ref=a", Kind::Cache, "type=registry,ref=a"),
            ("user/app:cache", Kind::Cache, "type=registry,ref=user/app:cache"),
            ("out", Kind::Output, "type=local,dest=out"),
            ("-", Kind::Output, "type=tar,dest=-"),
            ("default", Kind::Other, "id=default"),
            ("type=image,\"name=a,b\"", Kind::Output, "type=image,\"name=a,b\""),
            ("id=a,src=b=c", Kind::Other, "id=a,src=b=c"),
        ] {
            assert_eq!(Spec::parse(text, kind).text(), expected);
        }
    }
}
