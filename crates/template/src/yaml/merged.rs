//! Data with merge keys applied as Helm applies them (sigs.k8s.io/yaml): in the order of the keys, so that a `<<` overrides
//! the keys before it.

use std::fmt;

use serde::de::{self, Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

const MERGE: &str = "<<";

/// A value of a document.
pub(super) struct Merged(pub(super) Value);

impl<'de> Deserialize<'de> for Merged {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(Reader).map(Self)
    }
}

/// The text of a key.
struct Key(String);

impl<'de> Deserialize<'de> for Key {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Text;
        impl Visitor<'_> for Text {
            type Value = Key;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a key")
            }

            fn visit_str<E>(self, text: &str) -> Result<Key, E> {
                Ok(Key(text.to_owned()))
            }
        }
        from.deserialize_str(Text)
    }
}

struct Reader;

impl<'de> Visitor<'de> for Reader {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("YAML that is JSON data")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Number::from_f64(value).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, from: D) -> Result<Value, D::Error> {
        from.deserialize_any(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(Merged(item)) = items.next_element()? {
            list.push(item);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some((Key(key), Merged(value))) = members.next_entry()? {
            if key == MERGE {
                merge(&mut map, key, value).map_err(de::Error::custom)?;
            } else {
                map.insert(key, value);
            }
        }
        Ok(Value::Object(map))
    }
}

/// Merges a table, or tables of which the first has precedence.
fn merge(map: &mut Map<String, Value>, key: String, value: Value) -> Result<(), &'static str> {
    const WRONG: &str = "what is merged with << is neither a map nor a list of maps";
    match value {
        Value::Object(table) => map.extend(table),
        Value::Array(tables) => {
            for table in tables.into_iter().rev() {
                let Value::Object(table) = table else { return Err(WRONG) };
                map.extend(table);
            }
        }
        // A quoted key.
        Value::String(_) => {
            map.insert(key, value);
        }
        _ => return Err(WRONG),
    }
    Ok(())
}
