//! The formulas of kubelets from 1.16 on: to 1.30 a hash of the JSON that Go writes for the container,
//! then only of its name and image.
//!
//! The preferred source of the JSON is the API server's own bytes (see [`super::Pod`]), which
//! already have that form. [`json`] derives it from any other representation, and shows what a
//! kubelet of another release would derive from the same container: fields that it does not know
//! are missing.

use serde_json::{Map, Value};

use crate::hash::schema::{CONTAINER, Shape, Struct};
use crate::hash::{
    ContainerHash, Minor, go_json::write_string, quantity::Quantity, spew::hash_of_bytes,
};
use imgctl_base::error::{Error, Result};

/// Whether `resources` are included; the second hash of kubelets 1.27 to 1.30 omits them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resources {
    Kept,
    LeftOut,
}

/// Returns the hash of a container, where `json` is the output of Go's `json.Marshal`, byte for
/// byte.
pub fn json_hash(json: &[u8]) -> ContainerHash {
    hash_of_bytes(json)
}

/// Returns `container` as Go marshals it in a kubelet of `minor`. Fails with
/// [`imgctl_base::error::Kind::BadContent`] if a field has the wrong type.
pub fn json(container: &Map<String, Value>, minor: Minor, resources: Resources) -> Result<Vec<u8>> {
    let mut writer = Writer { minor, out: Vec::new() };
    match resources {
        Resources::Kept => writer.object(&CONTAINER, container)?,
        Resources::LeftOut => {
            let mut container = container.clone();
            container.remove("resources");
            writer.object(&CONTAINER, &container)?;
        }
    }
    Ok(writer.out)
}

struct Writer {
    minor: Minor,
    out: Vec<u8>,
}

impl Writer {
    fn object(&mut self, of: &'static Struct, object: &Map<String, Value>) -> Result<()> {
        self.out.push(b'{');
        let start = self.out.len();
        self.members(of, object, start)?;
        self.out.push(b'}');
        Ok(())
    }

    /// Writes the fields of a struct; `start` is the position of the object's first member.
    fn members(
        &mut self,
        of: &'static Struct,
        object: &Map<String, Value>,
        start: usize,
    ) -> Result<()> {
        for field in of.fields(self.minor) {
            if let Shape::Embedded(inner) = field.shape {
                self.members(inner, object, start)?;
                continue;
            }
            let value = object.get(field.key).unwrap_or(&Value::Null);
            if !field.always && is_empty(field.shape, value) {
                continue;
            }
            self.separate(start);
            write_string(field.key, &mut self.out);
            self.out.push(b':');
            self.value(field.shape, value)
                .map_err(|error| error.context(format!("`{}` of a container", field.key)))?;
        }
        Ok(())
    }

    fn separate(&mut self, start: usize) {
        if self.out.len() > start {
            self.out.push(b',');
        }
    }

    fn value(&mut self, shape: Shape, value: &Value) -> Result<()> {
        match shape {
            Shape::Pointer(_) if value.is_null() => self.out.extend_from_slice(b"null"),
            Shape::Pointer(to) => self.value(*to, value)?,
            Shape::Text => write_string(text(value)?, &mut self.out),
            Shape::Number => self.plain(&number(value)?.to_string()),
            Shape::Bool => self.plain(if boolean(value)? { "true" } else { "false" }),
            Shape::IntOrString => match int_or_string(value)? {
                IntOrString::Int(int) => self.plain(&int.to_string()),
                IntOrString::Text(text) => write_string(text, &mut self.out),
            },
            Shape::Quantity => self.quantity(value)?,
            Shape::Quantities => {
                let mut names: Vec<_> = map(value)?.into_iter().flatten().collect();
                names.sort_by(|a, b| a.0.cmp(b.0));
                self.out.push(b'{');
                let start = self.out.len();
                for (name, value) in names {
                    self.separate(start);
                    write_string(name, &mut self.out);
                    self.out.push(b':');
                    self.quantity(value)?;
                }
                self.out.push(b'}');
            }
            Shape::List(of) => {
                self.out.push(b'[');
                let start = self.out.len();
                for value in list(value)?.into_iter().flatten() {
                    self.separate(start);
                    self.value(*of, value)?;
                }
                self.out.push(b']');
            }
            Shape::Struct(of) | Shape::Embedded(of) => match map(value)? {
                Some(object) => self.object(of, object)?,
                None => self.object(of, &Map::new())?,
            },
        }
        Ok(())
    }

    fn quantity(&mut self, value: &Value) -> Result<()> {
        let text = match quantity(value)? {
            Some(quantity) => quantity.text().ok_or_else(|| wrong("a quantity in range"))?,
            None => "0".to_owned(),
        };
        write_string(&text, &mut self.out);
        Ok(())
    }

    fn plain(&mut self, text: &str) {
        self.out.extend_from_slice(text.as_bytes());
    }
}

/// Returns whether Go's `omitempty` omits the value: structs never, pointers only if nil.
fn is_empty(shape: Shape, value: &Value) -> bool {
    match (shape, value) {
        (Shape::Struct(_) | Shape::Quantity | Shape::IntOrString, _) => false,
        (_, Value::Null) => true,
        (Shape::Pointer(_), _) => false,
        (Shape::Text, Value::String(text)) => text.is_empty(),
        (Shape::Bool, Value::Bool(value)) => !value,
        (Shape::Number, Value::Number(number)) => number.as_i64() == Some(0),
        (Shape::List(_), Value::Array(list)) => list.is_empty(),
        (Shape::Quantities, Value::Object(map)) => map.is_empty(),
        // The value has the wrong type, which is reported when it is written.
        _ => false,
    }
}

/// Returns the hash of a container with this name and image, both as written in the pod's spec.
pub(crate) fn name_and_image_hash(name: &str, image: &str) -> ContainerHash {
    let mut json = b"{\"image\":".to_vec();
    write_string(image, &mut json);
    json.extend_from_slice(b",\"name\":");
    write_string(name, &mut json);
    json.push(b'}');
    hash_of_bytes(&json)
}

/// A port, by number or by name.
pub(super) enum IntOrString<'a> {
    Int(i64),
    Text(&'a str),
}

/// Returns the error for a value that is not `wanted`.
pub(super) fn wrong(wanted: &str) -> Error {
    Error::bad_content(format!("is not {wanted}"))
}

pub(super) fn text(value: &Value) -> Result<&str> {
    match value {
        Value::Null => Ok(""),
        Value::String(text) => Ok(text),
        _ => Err(wrong("a text")),
    }
}

pub(super) fn number(value: &Value) -> Result<i64> {
    match value {
        Value::Null => Ok(0),
        value => value.as_i64().ok_or_else(|| wrong("a whole number")),
    }
}

pub(super) fn boolean(value: &Value) -> Result<bool> {
    match value {
        Value::Null => Ok(false),
        value => value.as_bool().ok_or_else(|| wrong("true or false")),
    }
}

fn int_or_string(value: &Value) -> Result<IntOrString<'_>> {
    match value {
        Value::String(text) => Ok(IntOrString::Text(text)),
        value => number(value).map(IntOrString::Int),
    }
}

pub(super) fn list(value: &Value) -> Result<Option<&Vec<Value>>> {
    match value {
        Value::Null => Ok(None),
        Value::Array(list) => Ok(Some(list)),
        _ => Err(wrong("a list")),
    }
}

pub(super) fn map(value: &Value) -> Result<Option<&Map<String, Value>>> {
    match value {
        Value::Null => Ok(None),
        Value::Object(map) => Ok(Some(map)),
        _ => Err(wrong("an object")),
    }
}

/// Reads the quantity, if there is one. Numbers are read from their text, as Go does. Fails on a
/// float whose text may differ from the text that was originally written.
pub(super) fn quantity(value: &Value) -> Result<Option<Quantity>> {
    let text = match value {
        Value::Null => return Ok(None),
        Value::String(text) => text.trim().to_owned(),
        Value::Number(number) => number.to_string(),
        _ => return Err(wrong("a quantity")),
    };
    let settled = value.is_string() || !(text.ends_with(".0") || text.contains(['e', 'E']));
    match Quantity::parse(&text).filter(|_| settled) {
        Some(quantity) => Ok(Some(quantity)),
        None => Err(wrong("a quantity")),
    }
}
