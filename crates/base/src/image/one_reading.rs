//! Refuses documents that programs read differently. Go matches the names of members without regard to case, and merges a member that
//! occurs twice; most of the tools that read images are written in Go, so a document with `layers` and `Layers` is two images. Must not
//! know what members mean.

use std::collections::BTreeSet;
use std::fmt;

use serde::de::{
    DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor,
};

use crate::error::{Error, Result};

/// The meaningful members of an object, and those of the objects nested in it. A list has the members of its items.
pub struct Members(pub &'static [(&'static str, Option<&'static Members>)]);

/// Checks that each member listed in `members` is spelled exactly so and occurs once. Invalid JSON is left to the parser.
pub fn check(bytes: &[u8], members: &'static Members) -> Result<()> {
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    match Object(members).deserialize(&mut reader) {
        Err(error) if error.is_data() => {
            // The line and column do not help a person.
            let told = error.to_string();
            let told = told.split(" at line ").next().unwrap_or_default().to_owned();
            Err(Error::bad_content(told))
        }
        _ => Ok(()),
    }
}

struct Object(&'static Members);

impl<'de> DeserializeSeed<'de> for Object {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(
        self,
        deserializer: D,
    ) -> std::result::Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Object {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<(), A::Error> {
        let mut seen = BTreeSet::new();
        while let Some(name) = map.next_key::<String>()? {
            let folded = folded(&name);
            let known = self.0.0.iter().find(|(known, _)| known.eq_ignore_ascii_case(&folded));
            let Some((known, inner)) = known else {
                map.next_value::<IgnoredAny>()?;
                continue;
            };
            if *known != name {
                let message =
                    format!("it has a member `{name}`, which some programs read as `{known}`");
                return Err(A::Error::custom(message));
            }
            if !seen.insert(*known) {
                return Err(A::Error::custom(format!("it has the member `{name}` twice")));
            }
            match inner {
                Some(inner) => map.next_value_seed(Object(inner))?,
                None => map.next_value::<IgnoredAny>().map(drop)?,
            }
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> std::result::Result<(), A::Error> {
        while seq.next_element_seed(Object(self.0))?.is_some() {}
        Ok(())
    }

    // Other values have no members.
    fn visit_unit<E>(self) -> std::result::Result<(), E> {
        Ok(())
    }

    fn visit_bool<E>(self, _: bool) -> std::result::Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> std::result::Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> std::result::Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> std::result::Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> std::result::Result<(), E> {
        Ok(())
    }
}

/// Returns a name as Go compares it (`encoding/json`, foldName): of the letters beyond ASCII, two count as `s` and `k`.
fn folded(name: &str) -> String {
    let fold = |c: char| match c {
        '\u{17f}' => 's',
        '\u{212a}' => 'k',
        c => c.to_ascii_lowercase(),
    };
    name.chars().map(fold).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const INNER: Members = Members(&[("digest", None), ("size", None)]);
    const OUTER: Members = Members(&[("layers", Some(&INNER)), ("annotations", None)]);

    #[test]
    fn each_member_has_one_name() {
        for good in [
            r#"{"layers": [{"digest": "a"}, null, {"size": 1}], "annotations": {"Digest": "", "digest": ""}}"#,
            r#"{"other": {"Layers": 1}, "other": 2, "layers": null, "annotations": 1.5}"#,
            r#"[true, "x", {"layers": []}]"#,
            "no JSON",
        ] {
            check(good.as_bytes(), &OUTER).unwrap();
        }
        for bad in [
            r#"{"layers": [], "Layers": []}"#,
            r#"{"LAYERS": []}"#,
            "{\"layer\u{17f}\": []}",
            r#"{"layers": [{"digest": "a", "digest": "b"}]}"#,
            r#"{"layers": [{"Digest": "a"}]}"#,
            r#"{"layers": [], "layers": []}"#,
        ] {
            let error = check(bad.as_bytes(), &OUTER).unwrap_err().to_string();
            assert!(error.starts_with("it has ") && !error.contains("line"), "{error}");
        }
    }
}
