//! The methods of Helm's `chartutil.Values`: a chart's values, the data of its templates, `.Template`.
//! A method hides a member of the same name, as in Go.

use crate::encode;
use crate::value::{Map, Value, text_argument};

/// Calls a method of the map, if it has one of this name.
pub(crate) fn method(map: &Map, name: &str, arguments: &[Value]) -> Option<Result<Value, String>> {
    if !map.is_values() {
        return None;
    }
    let result = match name {
        "AsMap" => none(name, arguments).map(|()| match map.len() {
            // Helm makes a new map of an empty one.
            0 => Value::map::<&str>([]),
            _ => Value::Map(map.typed(false)),
        }),
        "YAML" => none(name, arguments)
            .and_then(|()| encode::to_yaml(&Value::Map(map.clone())))
            .map(|text| Value::text(text + "\n")),
        "Table" => text_argument(name, arguments).and_then(|path| {
            table(map, &path).map(|table| Value::Map(table.typed(true))).map_err(called(name))
        }),
        "PathValue" => text_argument(name, arguments)
            .and_then(|path| path_value(map, &path).map_err(called(name))),
        "Encode" => match arguments {
            [writer] => {
                let of = writer.type_name();
                Err(format!("wrong type for value; expected io.Writer; got {of}"))
            }
            _ => Err(format!("wrong number of args for {name}: want 1 got {}", arguments.len())),
        },
        _ => return None,
    };
    Some(result)
}

fn none(name: &str, arguments: &[Value]) -> Result<(), String> {
    match arguments.len() {
        0 => Ok(()),
        count => Err(format!("wrong number of args for {name}: want 0 got {count}")),
    }
}

fn called(name: &str) -> impl Fn(String) -> String {
    move |message| format!("error calling {name}: {message}")
}

/// Returns the map at `path`, whose names are separated by dots.
fn table(map: &Map, path: &str) -> Result<Map, String> {
    path.split('.').try_fold(map.clone(), |map, name| match map.get(name) {
        Some(Value::Map(below)) => Ok(below),
        _ => Err(format!("{name:?} is not a table")),
    })
}

/// Returns the value at `path`, which must not be a map.
fn path_value(map: &Map, path: &str) -> Result<Value, String> {
    if path.is_empty() {
        return Err("YAML path cannot be empty".to_owned());
    }
    let (above, key) =
        path.rsplit_once('.').map_or((None, path), |(above, key)| (Some(above), key));
    let none = || format!("{key:?} is not a value");
    let within = match above {
        Some(above) => table(map, above).map_err(|_| none())?,
        None => map.clone(),
    };
    within.get(key).filter(|value| !matches!(value, Value::Map(_))).ok_or_else(none)
}
