//! The hash of kubelets 1.9 to 1.15, computed over go-spew's dump (`%#v`) of the Go struct itself.
//!
//! The dump names every field and every type, so any field that a release adds to a struct that the
//! container uses changes the hash. The result matches a kubelet that got the container from the
//! API server; a container from another source may hold quantities in another form.

use serde_json::{Map, Value};

use super::fnv::Fnv1a;
use super::quantity::{Amount, Quantity};
use super::schema::{CONTAINER, Shape, Struct};
use super::value::{IntOrString, boolean, int_or_string, list, map, number, quantity, text, wrong};
use super::{ContainerHash, Minor};
use imgctl_base::error::Result;

const NIL: &str = "<nil>";

/// Returns the hash of `container` as dumped by kubelets of `minor`. Fails with
/// [`imgctl_base::error::Kind::BadContent`] if a field has the wrong type or a quantity is one that Go
/// holds as a big number.
pub(super) fn struct_hash(container: &Map<String, Value>, minor: Minor) -> Result<ContainerHash> {
    let mut dump = Dump { minor, out: String::new() };
    dump.out.push_str("(v1.Container)");
    dump.object(&CONTAINER, container)?;
    let mut fnv = Fnv1a::new();
    fnv.feed(dump.out.as_bytes());
    Ok(ContainerHash(fnv.value()))
}

struct Dump {
    minor: Minor,
    out: String,
}

impl Dump {
    fn object(&mut self, of: &'static Struct, object: &Map<String, Value>) -> Result<()> {
        self.out.push('{');
        for (at, field) in of.fields(self.minor).enumerate() {
            if at > 0 {
                self.out.push(' ');
            }
            self.label(field.name, &field.shape.type_name());
            match field.shape {
                // An embedded struct takes its fields from the same object.
                Shape::Embedded(inner) => self.object(inner, object)?,
                shape => self
                    .value(shape, object.get(field.key).unwrap_or(&Value::Null))
                    .map_err(|error| error.context(format!("`{}` of a container", field.key)))?,
            }
        }
        self.out.push('}');
        Ok(())
    }

    /// Writes a field's name and type. Values inside lists, maps and pointers have no type label.
    fn label(&mut self, name: &str, type_name: &str) {
        self.out.push_str(name);
        self.out.push_str(":(");
        self.out.push_str(type_name);
        self.out.push(')');
    }

    fn value(&mut self, shape: Shape, value: &Value) -> Result<()> {
        match shape {
            Shape::Pointer(_) if value.is_null() => self.out.push_str(NIL),
            Shape::Pointer(to) => self.value(*to, value)?,
            Shape::Text(_) => self.out.push_str(text(value)?),
            Shape::Number(_) => self.out.push_str(&number(value)?.to_string()),
            Shape::Bool => self.out.push_str(boolean(value)?.to_string().as_str()),
            Shape::IntOrString => self.int_or_string(&int_or_string(value)?),
            Shape::Quantity => self.quantity(quantity(value)?.as_ref())?,
            Shape::Quantities => match map(value)? {
                None => self.out.push_str(NIL),
                Some(quantities) => self.quantities(quantities)?,
            },
            Shape::List(of) => match list(value)? {
                None => self.out.push_str(NIL),
                Some(values) => {
                    self.out.push('[');
                    for (at, value) in values.iter().enumerate() {
                        if at > 0 {
                            self.out.push(' ');
                        }
                        self.value(*of, value)?;
                    }
                    self.out.push(']');
                }
            },
            Shape::Struct(of) | Shape::Embedded(of) => match map(value)? {
                Some(object) => self.object(of, object)?,
                None => self.object(of, &Map::new())?,
            },
        }
        Ok(())
    }

    fn quantities(&mut self, quantities: &Map<String, Value>) -> Result<()> {
        let mut names: Vec<_> = quantities.iter().collect();
        names.sort_by(|a, b| a.0.cmp(b.0));
        self.out.push_str("map[");
        for (at, (name, value)) in names.into_iter().enumerate() {
            if at > 0 {
                self.out.push(' ');
            }
            self.out.push_str(name);
            self.out.push(':');
            self.quantity(quantity(value)?.as_ref())?;
        }
        self.out.push(']');
        Ok(())
    }

    fn int_or_string(&mut self, value: &IntOrString<'_>) {
        let (kind, int, text) = match value {
            IntOrString::Int(int) => (0, *int, ""),
            IntOrString::Text(text) => (1, 0, *text),
        };
        self.out.push_str(&format!(
            "{{Type:(intstr.Type){kind} IntVal:(int32){int} StrVal:(string){text}}}"
        ));
    }

    fn quantity(&mut self, quantity: Option<&Quantity>) -> Result<()> {
        let (amount, cached, format) = match quantity {
            None => (Amount::Small { value: 0, scale: 0 }, "", ""),
            Some(quantity) => (
                quantity.amount,
                quantity.cached.as_deref().unwrap_or_default(),
                quantity.format.name(),
            ),
        };
        let Amount::Small { value, scale } = amount else {
            return Err(wrong("a quantity of 64 bits"));
        };
        self.out.push_str(&format!(
            "{{i:(resource.int64Amount){{value:(int64){value} scale:(resource.Scale){scale}}} \
             d:(resource.infDecAmount){{Dec:(*inf.Dec)<nil>}} s:(string){cached} \
             Format:(resource.Format){format}}}"
        ));
        Ok(())
    }
}
