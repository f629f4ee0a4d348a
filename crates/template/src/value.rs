//! The values that templates work on. Maps are shared and modified in place, as in Go: charts build
//! their settings with `set` and `mergeOverwrite`. Must not depend on functions or on how values are
//! printed.

use std::any::Any;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

/// Members of a map, in the sorted order in which Go templates iterate over them.
pub(crate) type Members = BTreeMap<Rc<str>, Value>;

#[derive(Clone)]
pub enum Value {
    Nil,
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(Rc<str>),
    /// `[]byte`: the content of a file.
    Bytes(Rc<[u8]>),
    List(List),
    Map(Map),
    Object(Rc<dyn Object>),
}

/// A value with fields or methods of its own: a Go struct, `.Files`, a version, a point in time.
pub trait Object: Any {
    /// Returns Go's `reflect.Kind`.
    fn kind(&self) -> &'static str {
        "struct"
    }

    /// Returns the output of `%T`.
    fn type_name(&self) -> &'static str;

    /// Returns the number of items, if the value has items.
    fn items(&self) -> Option<usize> {
        None
    }

    /// Returns the output of `%v`.
    fn show(&self) -> String;

    /// Returns the value as plain data, for `toYaml` and iteration.
    fn data(&self) -> Value;

    /// Returns a field, or the result of a method called with `arguments`. `None`: no such field or
    /// method exists.
    fn member(&self, name: &str, arguments: &[Value]) -> Option<Result<Value, String>>;
}

/// Returns the only argument of a method, which must be a string.
pub fn text_argument(name: &str, arguments: &[Value]) -> Result<Rc<str>, String> {
    match arguments {
        [Value::Text(text)] => Ok(text.clone()),
        [other] => Err(format!("wrong type for value; expected string; got {}", other.type_name())),
        _ => Err(format!("wrong number of args for {name}: want 1 got {}", arguments.len())),
    }
}

/// How the numbers of JSON and YAML become values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Numbers {
    /// All numbers are floats, which is what Go's JSON decoder gives Helm, and why a large number
    /// prints as `1e+06`.
    Floats,
    /// Whole numbers are integers, so that `printf "%d"` works.
    Whole,
}

/// An immutable, shared list.
#[derive(Clone)]
pub struct List(Rc<Vec<Value>>);

/// A mutable, shared map.
#[derive(Clone)]
pub struct Map {
    members: Rc<RefCell<Members>>,
    /// Whether it is Helm's `chartutil.Values`, which has methods. The same members can also be a plain map.
    is_values: bool,
}

impl List {
    pub(crate) fn new(items: Vec<Value>) -> Self {
        Self(Rc::new(items))
    }

    pub(crate) fn items(&self) -> &[Value] {
        &self.0
    }
}

impl Map {
    pub(crate) fn new(members: Members) -> Self {
        Self { members: Rc::new(RefCell::new(members)), is_values: false }
    }

    /// Returns whether the map is Helm's `chartutil.Values`.
    pub(crate) fn is_values(&self) -> bool {
        self.is_values
    }

    /// Returns the same map as Helm's `chartutil.Values`, or without its methods.
    pub(crate) fn typed(&self, is_values: bool) -> Self {
        Self { members: self.members.clone(), is_values }
    }

    pub fn get(&self, key: &str) -> Option<Value> {
        self.members.borrow().get(key).cloned()
    }

    pub fn set(&self, key: impl Into<Rc<str>>, value: Value) {
        let old = self.members.borrow_mut().insert(key.into(), value);
        drop(old);
    }

    pub(crate) fn unset(&self, key: &str) {
        let old = self.members.borrow_mut().remove(key);
        drop(old);
    }

    /// Calls `visit` for each member; it must not change the map.
    pub(crate) fn for_each(&self, mut visit: impl FnMut(&Rc<str>, &Value)) {
        self.members.borrow().iter().for_each(|(key, value)| visit(key, value));
    }

    /// Returns a snapshot of the members.
    pub(crate) fn members(&self) -> Vec<(Rc<str>, Value)> {
        let members = self.members.borrow();
        members.iter().map(|(k, v)| (k.clone(), v.clone())).collect()
    }

    pub(crate) fn len(&self) -> usize {
        self.members.borrow().len()
    }

    /// Returns whether both are the same map, not only equal.
    pub(crate) fn is(&self, other: &Map) -> bool {
        Rc::ptr_eq(&self.members, &other.members)
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
                if let Some(members) = Rc::get_mut(&mut map.members) {
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
        if let Some(members) = Rc::get_mut(&mut self.members)
            && !members.get_mut().is_empty()
        {
            free(std::mem::take(members.get_mut()).into_values().collect());
        }
    }
}

impl Value {
    /// Converts it to an integer, as sprig's casts do; what cannot be converted is 0.
    pub(crate) fn to_int(&self) -> i64 {
        #[allow(clippy::cast_possible_truncation, reason = "the cast saturates, as wanted")]
        match self {
            Self::Int(int) => *int,
            Self::Float(float) if float.abs() < 9.3e18 => *float as i64,
            // Beyond 64 bits, as on x86-64.
            Self::Float(_) => i64::MIN,
            Self::Bool(bool) => i64::from(*bool),
            Self::Text(text) => whole(text.trim()).unwrap_or(0),
            _ => 0,
        }
    }

    pub fn text(text: impl AsRef<str>) -> Self {
        Self::Text(text.as_ref().into())
    }

    pub fn list(items: impl IntoIterator<Item = Value>) -> Self {
        Self::List(List(Rc::new(items.into_iter().collect())))
    }

    pub fn map<K: Into<Rc<str>>>(members: impl IntoIterator<Item = (K, Value)>) -> Self {
        Self::Map(Map::new(members.into_iter().map(|(k, v)| (k.into(), v)).collect()))
    }

    /// Returns a map as Helm's `chartutil.Values`, which has methods; other values do not change.
    pub fn into_values(self) -> Self {
        match self {
            Self::Map(map) => Self::Map(map.typed(true)),
            other => other,
        }
    }

    /// Returns a value with fields or methods.
    pub fn object(object: impl Object) -> Self {
        Self::Object(Rc::new(object))
    }

    /// Returns the object, if the value is one of type `T`.
    pub(crate) fn as_object<T: Object>(&self) -> Option<&T> {
        match self {
            Self::Object(object) => (object.as_ref() as &dyn Any).downcast_ref(),
            _ => None,
        }
    }

    /// Converts data. Recursion: the parser of the data bounds the depth.
    pub fn from_json(json: &serde_json::Value, numbers: Numbers) -> Self {
        let convert = |json| Self::from_json(json, numbers);
        match json {
            serde_json::Value::Null => Self::Nil,
            serde_json::Value::Bool(bool) => Self::Bool(*bool),
            serde_json::Value::Number(number) => match number.as_i64() {
                Some(int) if numbers == Numbers::Whole => Self::Int(int),
                _ => Self::Float(number.as_f64().unwrap_or(0.0)),
            },
            serde_json::Value::String(text) => Self::text(text),
            serde_json::Value::Array(items) => Self::list(items.iter().map(convert)),
            serde_json::Value::Object(members) => {
                Self::map(members.iter().map(|(key, value)| (key.as_str(), convert(value))))
            }
        }
    }

    /// Returns whether Go considers the value true: neither zero nor empty.
    pub fn is_true(&self) -> bool {
        match self {
            Self::Nil => false,
            Self::Bool(bool) => *bool,
            Self::Int(int) => *int != 0,
            Self::Float(float) => *float != 0.0,
            Self::Text(text) => !text.is_empty(),
            Self::Bytes(bytes) => !bytes.is_empty(),
            Self::List(list) => !list.items().is_empty(),
            Self::Map(map) => map.len() > 0,
            Self::Object(object) => object.items().is_none_or(|len| len > 0),
        }
    }

    /// Returns Go's `reflect.Kind`.
    pub(crate) fn kind(&self) -> &'static str {
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
    pub(crate) fn type_name(&self) -> &'static str {
        match self {
            Self::Nil => "<nil>",
            Self::Bytes(_) => "[]uint8",
            Self::List(_) => "[]interface {}",
            Self::Map(map) if map.is_values => "chartutil.Values",
            Self::Map(_) => "map[string]interface {}",
            Self::Object(object) => object.type_name(),
            other => other.kind(),
        }
    }
}

/// `reflect.DeepEqual`; values nested deeper than `depth` count as different.
pub(crate) fn equal(a: &Value, b: &Value, depth: usize) -> bool {
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
            a.is_values == b.is_values
                && (a.is(b) || {
                    let (a, b) = (a.members(), b.members());
                    a.len() == b.len()
                        && a.iter().zip(&b).all(|(a, b)| a.0 == b.0 && equal(&a.1, &b.1, depth - 1))
                })
        }
        (Value::Object(a), Value::Object(b)) => Rc::ptr_eq(a, b),
        _ => false,
    }
}

/// Parses a whole number as in Go's source: `0x1f`, `0o17` and `017`, `0b11`, `1_000`; `.0` may follow.
fn whole(text: &str) -> Option<i64> {
    let text = match text.split_once('.') {
        Some((whole, zeros)) if zeros.bytes().all(|byte| byte == b'0') => whole,
        _ => text,
    };
    let (sign, digits) = match text.strip_prefix('-') {
        Some(digits) => ("-", digits),
        None => ("", text.strip_prefix('+').unwrap_or(text)),
    };
    let lower = digits.to_ascii_lowercase().replace('_', "");
    let prefixes = [("0x", 16), ("0b", 2), ("0o", 8), ("0", 8)];
    let prefix = prefixes.iter().find_map(|(prefix, radix)| {
        Some((lower.strip_prefix(prefix).filter(|rest| !rest.is_empty())?, *radix))
    });
    let (digits, radix) = prefix.unwrap_or((&lower, 10));
    if !digits.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
        return None;
    }
    i64::from_str_radix(&format!("{sign}{digits}"), radix).ok()
}
