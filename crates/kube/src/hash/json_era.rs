//! The formula of kubelets 1.16 to 1.30: a hash of the JSON that Go writes for the container.
//!
//! The preferred source of the JSON is the API server's own bytes (see [`super::Pod`]), which
//! already have that form. [`json`] derives it from any other representation, and shows what a
//! kubelet of another release would derive from the same container: fields that it does not know
//! are missing.

use serde_json::{Map, Value};

use super::go_json::write_string;
use super::schema::{CONTAINER, Shape, Struct};
use super::spew::hash_of_bytes;
use super::value::{IntOrString, boolean, int_or_string, list, map, number, quantity, text, wrong};
use super::{ContainerHash, Minor};
use imgctl_base::error::Result;

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
