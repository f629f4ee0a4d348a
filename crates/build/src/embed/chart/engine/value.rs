//! The values that templates work on. Unlike [`imgctl_template::Value`], maps are shared and
//! modified in place, as in Go: charts build their settings with `set` and `mergeOverwrite`.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use super::objects::Object;

/// Members of a map, in the sorted order in which Go templates iterate over them.
pub(super) type Members = BTreeMap<Rc<str>, Value>;

/// A template value.
#[derive(Clone)]
pub(in super::super) enum Value {
    Nil,
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(Rc<str>),
    /// `[]byte`: the content of a file.
    Bytes(Rc<[u8]>),
    List(List),
    Map(Map),
    Object(Rc<Object>),
}

/// An immutable, shared list.
#[derive(Clone)]
pub(in super::super) struct List(Rc<Vec<Value>>);

/// A mutable, shared map.
#[derive(Clone)]
pub(in super::super) struct Map(Rc<RefCell<Members>>);

impl List {
    /// Returns the items.
    pub(super) fn items(&self) -> &[Value] {
        &self.0
    }
}

impl Map {
    /// Returns a new map.
    pub(super) fn new(members: Members) -> Self {
        Self(Rc::new(RefCell::new(members)))
    }

    /// Returns the member `key`.
    pub(in super::super) fn member(&self, key: &str) -> Option<Value> {
        self.get(key)
    }

    /// Returns the member `key`.
    pub(super) fn get(&self, key: &str) -> Option<Value> {
        self.0.borrow().get(key).cloned()
    }

    /// Sets the member `key`.
    pub(in super::super) fn set(&self, key: &str, value: Value) {
        let old = self.0.borrow_mut().insert(key.into(), value);
        drop(old);
    }

    /// Removes the member `key`.
    pub(super) fn unset(&self, key: &str) {
        let old = self.0.borrow_mut().remove(key);
        drop(old);
    }

    /// Returns a snapshot of the members.
    pub(super) fn members(&self) -> Vec<(Rc<str>, Value)> {
        let members = self.0.borrow();
        members.iter().map(|(k, v)| (k.clone(), v.clone())).collect()
    }

    /// Returns the number of members.
    pub(super) fn len(&self) -> usize {
        self.0.borrow().len()
    }

    /// Returns whether both are the same map, not only equal.
    pub(super) fn is(&self, other: &Map) -> bool {
        Rc::ptr_eq(&self.0, &other.0)
    }
}

/// Frees what only this value still holds, without recursion: a template can nest maps a million
/// levels deep, which would overflow the native stack.
fn free(mut pending: Vec<Value>) {
    while let Some(value) = pending.pop() {
        match value {
            Value::List(mut list) => {
                if let Some(items) = Rc::get_mut(&mut list.0) {
                    pending.append(items);
                }
            }
            Value::Map(mut map) => {
                if let Some(members) = Rc::get_mut(&mut map.0) {
                    pending.extend(std::mem::take(members.get_mut()).into_values());
                }
            }
            _ => {}
        }
    }
}

impl Drop for List {
    fn drop(&mut self) {
        if let Some(items) = Rc::get_mut(&mut self.0)
            && !items.is_empty()
        {
            free(std::mem::take(items));
        }
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        if let Some(members) = Rc::get_mut(&mut self.0)
            && !members.get_mut().is_empty()
        {
            free(std::mem::take(members.get_mut()).into_values().collect());
        }
    }
}

impl Value {
    /// Returns a string value.
    pub(in super::super) fn text(text: impl AsRef<str>) -> Self {
        Self::Text(text.as_ref().into())
    }

    /// Returns a list value.
    pub(in super::super) fn list(items: impl IntoIterator<Item = Value>) -> Self {
        Self::List(List(Rc::new(items.into_iter().collect())))
    }

    /// Returns a map value.
    pub(in super::super) fn map<K: Into<Rc<str>>>(
        members: impl IntoIterator<Item = (K, Value)>,
    ) -> Self {
        Self::Map(Map::new(members.into_iter().map(|(k, v)| (k.into(), v)).collect()))
    }

    /// Converts the data of a YAML file. All numbers are floats, which is what Go's JSON decoder
    /// gives Helm, and why a large number prints as `1e+06`. Recursion: the YAML parser bounds the
    /// depth.
    pub(in super::super) fn from_json(json: &serde_json::Value) -> Self {
        match json {
            serde_json::Value::Null => Self::Nil,
            serde_json::Value::Bool(bool) => Self::Bool(*bool),
            serde_json::Value::Number(number) => Self::Float(number.as_f64().unwrap_or(0.0)),
            serde_json::Value::String(text) => Self::text(text),
            serde_json::Value::Array(items) => Self::list(items.iter().map(Self::from_json)),
            serde_json::Value::Object(members) => {
                Self::map(members.iter().map(|(key, value)| (key.as_str(), Self::from_json(value))))
            }
        }
    }

    /// Returns whether Go considers the value true: neither zero nor empty.
    pub(super) fn is_true(&self) -> bool {
        match self {
            Self::Nil => false,
            Self::Bool(bool) => *bool,
            Self::Int(int) => *int != 0,
            Self::Float(float) => *float != 0.0,
            Self::Text(text) => !text.is_empty(),
            Self::Bytes(bytes) => !bytes.is_empty(),
            Self::List(list) => !list.items().is_empty(),
            Self::Map(map) => map.len() > 0,
            Self::Object(object) => object.len().is_none_or(|len| len > 0),
        }
    }

    /// Returns Go's `reflect.Kind`.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::Nil => "invalid",
            Self::Bool(_) => "bool",
            Self::Int(_) => "int",
            Self::Float(_) => "float64",
            Self::Text(_) => "string",
            Self::Bytes(_) | Self::List(_) => "slice",
            Self::Map(_) => "map",
            Self::Object(object) => object.kind(),
        }
    }

    /// Returns the output of `%T`.
    pub(super) fn type_name(&self) -> &'static str {
        match self {
            Self::Nil => "<nil>",
            Self::Bytes(_) => "[]uint8",
            Self::List(_) => "[]interface {}",
            Self::Map(_) => "map[string]interface {}",
            Self::Object(object) => object.type_name(),
            other => other.kind(),
        }
    }
}

/// `reflect.DeepEqual`; values nested deeper than `depth` count as different.
pub(super) fn equal(a: &Value, b: &Value, depth: usize) -> bool {
    if depth == 0 {
        return false;
    }
    match (a, b) {
        (Value::Nil, Value::Nil) => true,
        (Value::Bool(a), Value::Bool(b)) => a == b,
        (Value::Int(a), Value::Int(b)) => a == b,
        (Value::Float(a), Value::Float(b)) => a == b,
        (Value::Text(a), Value::Text(b)) => a == b,
        (Value::Bytes(a), Value::Bytes(b)) => a == b,
        (Value::List(a), Value::List(b)) => {
            let (a, b) = (a.items(), b.items());
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| equal(a, b, depth - 1))
        }
        (Value::Map(a), Value::Map(b)) => {
            a.is(b) || {
                let (a, b) = (a.members(), b.members());
                a.len() == b.len()
                    && a.iter().zip(&b).all(|(a, b)| a.0 == b.0 && equal(&a.1, &b.1, depth - 1))
            }
        }
        (Value::Object(a), Value::Object(b)) => Rc::ptr_eq(a, b),
        _ => false,
    }
}
