//! Functions of bake files: those of HCL's standard library that buildx offers (`stdlib.go`), except for the
//! ones that docs/bake.md lists. Must not know expressions.

use base64::Engine as _;
use hcl::{Map, Value};
use imgctl_base::text::{csv, hex};
use sha2::Digest as _;

use crate::budget::{NODE, size};
use crate::format;
use crate::value::{Outcome, equal, indexed, number, numeric, text, truth};

/// Maximum number of items that `range` makes.
const MOST_ITEMS: f64 = 1024.0;

/// Upper bounds on a call: memory, including temporary values, and comparisons.
pub(crate) struct Cost {
    pub(crate) bytes: usize,
    pub(crate) steps: u64,
}

/// Estimates the cost of a call before the call runs.
pub(crate) fn cost(name: &str, arguments: &[Value]) -> Cost {
    let all: usize = arguments.iter().map(size).sum();
    let length = |at: usize| match arguments.get(at) {
        Some(Value::String(text)) => text.len(),
        Some(Value::Array(items)) => items.len(),
        Some(Value::Object(map)) => map.len(),
        _ => 8,
    };
    let items: usize = (0..arguments.len()).map(length).sum();
    let bytes = match name {
        // Each character becomes a value.
        "split" | "regexall" | "jsondecode" => all.saturating_mul(NODE),
        // Each line has the names of the first.
        "csvdecode" => {
            let text = arguments.first().and_then(Value::as_str).unwrap_or_default();
            let names = text.lines().next().map_or(0, str::len);
            let lines = text.lines().count();
            all.saturating_mul(NODE).saturating_add(lines.saturating_mul(names))
        }
        // Between any two characters.
        "replace" | "regex_replace" => {
            let to = length(2).saturating_add(1);
            let from = if name == "replace" { length(1).max(1) } else { 1 };
            all.saturating_add((length(0) / from + 1).saturating_mul(to))
        }
        "indent" => {
            let text = arguments.get(1).and_then(Value::as_str).unwrap_or_default();
            let lines = text.matches('\n').count();
            all.saturating_add(lines.saturating_mul(1000))
        }
        "join" => all.saturating_add(items.saturating_mul(length(0))),
        "formatlist" => {
            let is_list = |value: &&Value| matches!(value, Value::Array(_));
            let rows = arguments.iter().filter(is_list).map(|list| size(list) / NODE);
            let rows = rows.max().unwrap_or(1);
            let fixed = arguments.iter().filter(|value| !is_list(value)).map(size);
            let fixed = fixed.sum::<usize>().saturating_add(1000 * arguments.len());
            all.saturating_mul(8).saturating_add(rows.saturating_mul(fixed).saturating_mul(2))
        }
        "format" => all.saturating_mul(8).saturating_add(1000 * length(0)),
        "range" => MOST_ITEMS as usize * NODE,
        "setproduct" => {
            let rows = (0..arguments.len()).map(length).fold(1, usize::saturating_mul);
            let rows = rows.min(MOST_ITEMS as usize);
            let largest = arguments.iter().filter_map(Value::as_array).flatten().map(size).max();
            let row = largest.unwrap_or(0).saturating_add(NODE).saturating_mul(arguments.len());
            all.saturating_add(rows.saturating_mul(row).saturating_mul(2))
        }
        _ => all.saturating_mul(8),
    };
    // These compare each item with each other.
    let is_quadratic = name == "distinct" || name.starts_with("set");
    let nodes = all / NODE;
    let steps = if is_quadratic { items.saturating_mul(nodes) / 16 } else { all >> 12 };
    Cost { bytes, steps: u64::try_from(steps).unwrap_or(u64::MAX) }
}

/// Calls a function; `None` if there is none of this name.
pub(crate) fn call(name: &str, arguments: &[Value]) -> Option<Outcome<Value>> {
    let call = Call { arguments };
    Some(match name {
        "absolute" | "abs" => call.number(0).map(|n| numeric(n.abs())),
        "add" => call.numbers(|a, b| a + b),
        "subtract" => call.numbers(|a, b| a - b),
        "multiply" => call.numbers(|a, b| a * b),
        "divide" => call.divided(|a, b| a / b),
        "modulo" => call.divided(|a, b| a % b),
        "negate" => call.number(0).map(|n| numeric(-n)),
        "ceil" => call.number(0).map(|n| numeric(n.ceil())),
        "floor" => call.number(0).map(|n| numeric(n.floor())),
        "int" => call.number(0).map(|n| numeric(n.trunc())),
        "signum" => call.number(0).map(|n| numeric(if n == 0.0 { 0.0 } else { n.signum() })),
        "log" => call.numbers(|a, b| a.ln() / b.ln()),
        "pow" => call.numbers(f64::powf),
        "min" => call.folded(f64::min),
        "max" => call.folded(f64::max),
        "parseint" => call.parsed_integer(),
        "and" => call.booleans(|a, b| a && b),
        "or" => call.booleans(|a, b| a || b),
        "not" => call.value(0).and_then(truth).map(|value| Value::Bool(!value)),
        "equal" => call.pair().map(|(a, b)| Value::Bool(equal(a, b))),
        "notequal" => call.pair().map(|(a, b)| Value::Bool(!equal(a, b))),
        "greaterthan" => call.compared(|a, b| a > b),
        "greaterthanorequalto" => call.compared(|a, b| a >= b),
        "lessthan" => call.compared(|a, b| a < b),
        "lessthanorequalto" => call.compared(|a, b| a <= b),
        "upper" => call.mapped(str::to_uppercase),
        "lower" => call.mapped(str::to_lowercase),
        "title" => call.mapped(titled),
        "trimspace" => call.mapped(|text| text.trim().to_owned()),
        "chomp" => call.mapped(|text| text.trim_end_matches(['\r', '\n']).to_owned()),
        "trim" => call.texts(|text, set| text.trim_matches(|c| set.contains(c)).to_owned()),
        "trimprefix" => call.texts(|text, cut| text.strip_prefix(cut).unwrap_or(text).to_owned()),
        "trimsuffix" => call.texts(|text, cut| text.strip_suffix(cut).unwrap_or(text).to_owned()),
        "reverse" => call.mapped(|text| text.chars().rev().collect()),
        "strlen" => call.text(0).map(|text| Value::from(text.chars().count())),
        "sanitize" => call.mapped(sanitized),
        "basename" => call.mapped(|path| {
            path.trim_end_matches('/').rsplit('/').next().unwrap_or_default().to_owned()
        }),
        "dirname" => call.mapped(|path| match path.trim_end_matches('/').rsplit_once('/') {
            Some(("", _)) => "/".to_owned(),
            Some((directory, _)) => directory.to_owned(),
            None => ".".to_owned(),
        }),
        "urlencode" => call.mapped(url_encoded),
        "indent" => call.indented(),
        "substr" => call.substring(),
        "join" => call.joined(),
        "split" => call.split(),
        "replace" => call.replaced(),
        "regex" => call.matched(),
        "regexall" => call.all_matched(),
        "regex_replace" => call.regex_replaced(),
        "format" => format::formatted(arguments).map(Value::from),
        "formatlist" => call.formatted_lists(),
        "base64encode" => {
            call.mapped(|text| base64::engine::general_purpose::STANDARD.encode(text))
        }
        "base64decode" => call.decoded(),
        "sha1" => call.mapped(|text| hex(&sha1::Sha1::digest(text))),
        "sha256" => call.mapped(|text| hex(&sha2::Sha256::digest(text))),
        "sha512" => call.mapped(|text| hex(&sha2::Sha512::digest(text))),
        "jsonencode" => call.value(0).and_then(format::encoded).map(Value::from),
        "jsondecode" => call
            .text(0)
            .and_then(|text| serde_json::from_str(&text).map_err(|error| error.to_string())),
        "csvdecode" => call.csv(),
        "length" => call.value(0).and_then(|value| match value {
            Value::Array(items) => Ok(Value::from(items.len())),
            Value::Object(map) => Ok(Value::from(map.len())),
            Value::String(text) => Ok(Value::from(text.chars().count())),
            _ => Err("it takes a list, a map or a text".to_owned()),
        }),
        "concat" => call.all_lists().map(|lists| Value::Array(lists.concat())),
        "flatten" => call.list(0).map(|items| Value::Array(flat(&items))),
        "compact" => call.list(0).map(|items| {
            let empty = |item: &Value| matches!(item, Value::Null) || item.as_str() == Some("");
            Value::Array(items.into_iter().filter(|item| !empty(item)).collect())
        }),
        "distinct" => call.list(0).map(|items| Value::Array(distinct(items))),
        "sort" => call.list(0).and_then(|items| {
            let mut texts = items.iter().map(text).collect::<Outcome<Vec<_>>>()?;
            texts.sort();
            Ok(Value::Array(texts.into_iter().map(Value::from).collect()))
        }),
        "reverselist" => call.list(0).map(|items| Value::Array(items.into_iter().rev().collect())),
        "slice" => call.sliced(),
        "chunklist" => call.chunks(),
        "element" => call.element(),
        "index" => call.pair().and_then(|(list, key)| indexed(list, key)),
        "indexof" => call.list(0).and_then(|items| {
            let wanted = call.value(1)?;
            let at = items.iter().position(|item| equal(item, wanted));
            at.map(Value::from).ok_or_else(|| "the list has no such item".to_owned())
        }),
        "hasindex" => call.pair().map(|(list, key)| Value::Bool(indexed(list, key).is_ok())),
        "contains" | "sethaselement" => call.list(0).and_then(|items| {
            let wanted = call.value(1)?;
            Ok(Value::Bool(items.iter().any(|item| equal(item, wanted))))
        }),
        "range" => call.range(),
        "keys" => call.map(0).map(|map| {
            let mut keys: Vec<String> = map.keys().cloned().collect();
            keys.sort();
            Value::Array(keys.into_iter().map(Value::from).collect())
        }),
        "values" => call.map(0).map(|map| {
            let mut pairs: Vec<_> = map.into_iter().collect();
            pairs.sort_by(|a, b| a.0.cmp(&b.0));
            Value::Array(pairs.into_iter().map(|(_, value)| value).collect())
        }),
        "lookup" => call.map(0).and_then(|map| {
            let key = call.text(1)?;
            let found = map.get(&key).or_else(|| arguments.get(2)).cloned();
            found.ok_or_else(|| format!("the map has no `{key}`"))
        }),
        "merge" => (0..arguments.len())
            .try_fold(Map::new(), |mut all, at| {
                all.extend(call.map(at)?);
                Ok(all)
            })
            .map(Value::Object),
        "zipmap" => call.list(0).and_then(|keys| {
            let values = call.list(1)?;
            if keys.len() != values.len() {
                return Err("it takes as many keys as values".to_owned());
            }
            let pairs = keys.iter().zip(values).map(|(key, value)| Ok((text(key)?, value)));
            Ok(Value::Object(pairs.collect::<Outcome<Map<_, _>>>()?))
        }),
        "coalesce" => {
            let is_set = |value: &&Value| !matches!(value, Value::Null);
            arguments
                .iter()
                .find(is_set)
                .cloned()
                .ok_or_else(|| "all arguments are null".to_owned())
        }
        "coalescelist" => call.all_lists().and_then(|lists| {
            let first = lists.into_iter().find(|list| !list.is_empty());
            first.map(Value::Array).ok_or_else(|| "all lists are empty".to_owned())
        }),
        "setunion" => call.all_lists().map(|lists| Value::Array(sorted(distinct(lists.concat())))),
        "setintersection" => call.all_lists().map(|lists| {
            let (first, rest) =
                lists.split_first().map_or((&[][..], &[][..]), |(a, b)| (&a[..], b));
            let in_all =
                |item: &&Value| rest.iter().all(|list| list.iter().any(|other| equal(item, other)));
            Value::Array(sorted(distinct(first.iter().filter(in_all).cloned().collect())))
        }),
        "setsubtract" => call.list(0).and_then(|items| {
            let other = call.list(1)?;
            let kept = items.into_iter().filter(|item| !other.iter().any(|b| equal(item, b)));
            Ok(Value::Array(sorted(distinct(kept.collect()))))
        }),
        "setproduct" => call.all_lists().and_then(product),
        "timestamp" => {
            Ok(Value::from(jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()))
        }
        _ => return None,
    })
}

struct Call<'a> {
    arguments: &'a [Value],
}

impl Call<'_> {
    fn value(&self, at: usize) -> Outcome<&Value> {
        self.arguments.get(at).ok_or_else(|| format!("argument {} is missing", at + 1))
    }

    fn pair(&self) -> Outcome<(&Value, &Value)> {
        Ok((self.value(0)?, self.value(1)?))
    }

    fn number(&self, at: usize) -> Outcome<f64> {
        number(self.value(at)?)
    }

    fn index(&self, at: usize) -> Outcome<usize> {
        let number = self.number(at)?;
        if number < 0.0 || number.fract() != 0.0 {
            return Err(format!("{number} is not an index"));
        }
        Ok(number as usize)
    }

    fn text(&self, at: usize) -> Outcome<String> {
        text(self.value(at)?)
    }

    fn list(&self, at: usize) -> Outcome<Vec<Value>> {
        match self.value(at)? {
            Value::Array(items) => Ok(items.clone()),
            _ => Err(format!("argument {} is not a list", at + 1)),
        }
    }

    fn map(&self, at: usize) -> Outcome<Map<String, Value>> {
        match self.value(at)? {
            Value::Object(map) => Ok(map.clone()),
            _ => Err(format!("argument {} is not a map", at + 1)),
        }
    }

    fn all_lists(&self) -> Outcome<Vec<Vec<Value>>> {
        (0..self.arguments.len()).map(|at| self.list(at)).collect()
    }

    fn numbers(&self, operate: fn(f64, f64) -> f64) -> Outcome<Value> {
        Ok(numeric(operate(self.number(0)?, self.number(1)?)))
    }

    fn divided(&self, operate: fn(f64, f64) -> f64) -> Outcome<Value> {
        if self.number(1)? == 0.0 {
            return Err("it divides by zero".to_owned());
        }
        self.numbers(operate)
    }

    fn folded(&self, choose: fn(f64, f64) -> f64) -> Outcome<Value> {
        let numbers = self.arguments.iter().map(number).collect::<Outcome<Vec<_>>>()?;
        numbers
            .into_iter()
            .reduce(choose)
            .map(numeric)
            .ok_or_else(|| "it takes a number".to_owned())
    }

    fn compared(&self, holds: fn(f64, f64) -> bool) -> Outcome<Value> {
        Ok(Value::Bool(holds(self.number(0)?, self.number(1)?)))
    }

    fn booleans(&self, operate: fn(bool, bool) -> bool) -> Outcome<Value> {
        let (left, right) = self.pair()?;
        Ok(Value::Bool(operate(truth(left)?, truth(right)?)))
    }

    fn mapped(&self, map: impl Fn(&str) -> String) -> Outcome<Value> {
        Ok(Value::from(map(&self.text(0)?)))
    }

    fn texts(&self, map: impl Fn(&str, &str) -> String) -> Outcome<Value> {
        Ok(Value::from(map(&self.text(0)?, &self.text(1)?)))
    }

    fn parsed_integer(&self) -> Outcome<Value> {
        let (digits, base) = (self.text(0)?, self.index(1)?);
        let base = u32::try_from(base).ok().filter(|base| (2..=36).contains(base));
        let base = base.ok_or_else(|| "the base is between 2 and 36".to_owned())?;
        i64::from_str_radix(&digits, base)
            .map(Value::from)
            .map_err(|_| format!("`{digits}` is not a number of base {base}"))
    }

    fn indented(&self) -> Outcome<Value> {
        let pad = " ".repeat(self.index(0)?.min(1000));
        Ok(Value::from(self.text(1)?.replace('\n', &format!("\n{pad}"))))
    }

    fn substring(&self) -> Outcome<Value> {
        let chars: Vec<char> = self.text(0)?.chars().collect();
        let (offset, length) = (self.number(1)?, self.number(2)?);
        let all = chars.len();
        let start =
            if offset < 0.0 { all.saturating_sub(-offset as usize) } else { offset as usize };
        let start = start.min(all);
        let end = if length < 0.0 { all } else { start.saturating_add(length as usize).min(all) };
        Ok(Value::from(chars.get(start..end).unwrap_or_default().iter().collect::<String>()))
    }

    fn joined(&self) -> Outcome<Value> {
        let mut texts = Vec::new();
        for at in 1..self.arguments.len().max(2) {
            for item in self.list(at)? {
                texts.push(text(&item)?);
            }
        }
        Ok(Value::from(texts.join(&self.text(0)?)))
    }

    fn split(&self) -> Outcome<Value> {
        let (separator, whole) = (self.text(0)?, self.text(1)?);
        if separator.is_empty() {
            return Ok(Value::Array(whole.chars().map(|c| Value::from(c.to_string())).collect()));
        }
        Ok(Value::Array(whole.split(&separator).map(Value::from).collect()))
    }

    fn replaced(&self) -> Outcome<Value> {
        let (whole, from, to) = (self.text(0)?, self.text(1)?, self.text(2)?);
        // As Terraform has it, which buildx does not: only the plain form.
        Ok(Value::from(whole.replace(&from, &to)))
    }

    fn pattern(&self, at: usize) -> Outcome<regex::Regex> {
        regex::RegexBuilder::new(&self.text(at)?)
            .size_limit(1 << 20)
            .build()
            .map_err(|error| error.to_string())
    }

    fn matched(&self) -> Outcome<Value> {
        let (pattern, whole) = (self.pattern(0)?, self.text(1)?);
        let found =
            pattern.captures(&whole).ok_or_else(|| "the pattern does not match".to_owned())?;
        Ok(captured(&pattern, &found))
    }

    fn all_matched(&self) -> Outcome<Value> {
        let (pattern, whole) = (self.pattern(0)?, self.text(1)?);
        Ok(Value::Array(
            pattern.captures_iter(&whole).map(|found| captured(&pattern, &found)).collect(),
        ))
    }

    fn regex_replaced(&self) -> Outcome<Value> {
        let (whole, pattern, to) = (self.text(0)?, self.pattern(1)?, self.text(2)?);
        Ok(Value::from(pattern.replace_all(&whole, &*to).into_owned()))
    }

    fn decoded(&self) -> Outcome<Value> {
        let bytes = base64::engine::general_purpose::STANDARD.decode(self.text(0)?);
        let text = bytes.ok().and_then(|bytes| String::from_utf8(bytes).ok());
        text.map(Value::from).ok_or_else(|| "it is not base64 of a text".to_owned())
    }

    fn csv(&self) -> Outcome<Value> {
        let whole = self.text(0)?;
        let mut lines = whole.lines().filter(|line| !line.is_empty()).map(csv);
        let names = lines.next().unwrap_or_default();
        let row = |line: Vec<String>| {
            if line.len() != names.len() {
                return Err("the rows differ in their number of fields".to_owned());
            }
            let pairs = names.iter().cloned().zip(line.into_iter().map(Value::from));
            Ok(Value::Object(pairs.collect()))
        };
        Ok(Value::Array(lines.map(row).collect::<Outcome<_>>()?))
    }

    fn sliced(&self) -> Outcome<Value> {
        let items = self.list(0)?;
        let (start, end) = (self.index(1)?, self.index(2)?);
        let part =
            items.get(start..end).ok_or_else(|| format!("the list has {} items", items.len()))?;
        Ok(Value::Array(part.to_vec()))
    }

    fn chunks(&self) -> Outcome<Value> {
        let (items, size) = (self.list(0)?, self.index(1)?);
        if size == 0 {
            return Ok(Value::Array(vec![Value::Array(items)]));
        }
        Ok(Value::Array(items.chunks(size).map(|part| Value::Array(part.to_vec())).collect()))
    }

    fn element(&self) -> Outcome<Value> {
        let (items, at) = (self.list(0)?, self.number(1)?);
        if items.is_empty() {
            return Err("the list is empty".to_owned());
        }
        // The index wraps around.
        let at = at.rem_euclid(items.len() as f64) as usize;
        items.get(at).cloned().ok_or_else(|| "the list is empty".to_owned())
    }

    fn range(&self) -> Outcome<Value> {
        let numbers = self.arguments.iter().map(number).collect::<Outcome<Vec<_>>>()?;
        let (start, end, step) = match numbers[..] {
            [end] => (0.0, end, if end < 0.0 { -1.0 } else { 1.0 }),
            [start, end] => (start, end, if end < start { -1.0 } else { 1.0 }),
            [start, end, step] => (start, end, step),
            _ => return Err("it takes one to three numbers".to_owned()),
        };
        if step == 0.0 || (end - start) / step > MOST_ITEMS {
            return Err(format!("it makes more than {MOST_ITEMS} items"));
        }
        // Adding a small step to a large number may not change it.
        let items = (0..MOST_ITEMS as u32).map(|count| start + f64::from(count) * step);
        let items = items.take_while(|at| if step > 0.0 { *at < end } else { *at > end });
        Ok(Value::Array(items.map(numeric).collect()))
    }

    fn formatted_lists(&self) -> Outcome<Value> {
        let lengths = self.arguments.iter().filter_map(|value| value.as_array().map(Vec::len));
        let length = lengths.min().unwrap_or(1);
        let row = |at: usize| {
            let values: Vec<Value> = self
                .arguments
                .iter()
                .map(|value| match value {
                    Value::Array(items) => items.get(at).cloned().unwrap_or(Value::Null),
                    one => one.clone(),
                })
                .collect();
            format::formatted(&values).map(Value::from)
        };
        Ok(Value::Array((0..length).map(row).collect::<Outcome<_>>()?))
    }
}

fn titled(text: &str) -> String {
    let mut starts = true;
    text.chars()
        .map(|c| {
            let shown = if starts { c.to_uppercase().next().unwrap_or(c) } else { c };
            starts = !c.is_alphanumeric();
            shown
        })
        .collect()
}

/// Replaces the characters that the name of a target must not contain.
pub(crate) fn sanitized(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_ascii_alphanumeric() || c == '-' || c == '_' { c } else { '_' })
        .collect()
}

fn url_encoded(text: &str) -> String {
    let mut out = String::new();
    for byte in text.bytes() {
        match byte {
            b' ' => out.push('+'),
            b if b.is_ascii_alphanumeric() || b"-_.~".contains(&b) => out.push(char::from(b)),
            b => out.push_str(&format!("%{b:02X}")),
        }
    }
    out
}

fn captured(pattern: &regex::Regex, found: &regex::Captures<'_>) -> Value {
    let group = |at: usize| found.get(at).map_or(Value::Null, |part| Value::from(part.as_str()));
    let names: Vec<_> = pattern.capture_names().enumerate().skip(1).collect();
    if names.is_empty() {
        return group(0);
    }
    if names.iter().any(|(_, name)| name.is_some()) {
        let named = names.iter().filter_map(|(at, name)| Some(((*name)?.to_owned(), group(*at))));
        return Value::Object(named.collect());
    }
    Value::Array(names.iter().map(|(at, _)| group(*at)).collect())
}

fn flat(items: &[Value]) -> Vec<Value> {
    items
        .iter()
        .flat_map(|item| match item {
            Value::Array(inner) => flat(inner),
            one => vec![one.clone()],
        })
        .collect()
}

fn distinct(items: Vec<Value>) -> Vec<Value> {
    let mut all: Vec<Value> = Vec::new();
    for item in items {
        if !all.iter().any(|known| equal(known, &item)) {
            all.push(item);
        }
    }
    all
}

/// Orders the items of a set, by their texts.
fn sorted(mut items: Vec<Value>) -> Vec<Value> {
    items.sort_by_key(|item| text(item).unwrap_or_default());
    items
}

fn product(lists: Vec<Vec<Value>>) -> Outcome<Value> {
    let count = lists.iter().fold(1_usize, |count, list| count.saturating_mul(list.len()));
    if count as f64 > MOST_ITEMS {
        return Err(format!("it makes more than {MOST_ITEMS} items"));
    }
    let mut rows = vec![Vec::new()];
    for list in lists {
        rows = rows
            .iter()
            .flat_map(|row| {
                list.iter().map(|item| {
                    let mut longer = row.clone();
                    longer.push(item.clone());
                    longer
                })
            })
            .collect();
    }
    Ok(Value::Array(rows.into_iter().map(Value::Array).collect()))
}
