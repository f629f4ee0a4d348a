//! Values as text: `format` and `jsonencode`. Must not know other functions.

use hcl::Value;

use crate::value::{Outcome, number, numeric, text, truth};

/// `format`, with the verbs of Go that cty has.
pub(crate) fn formatted(arguments: &[Value]) -> Outcome<String> {
    let pattern = text(arguments.first().ok_or_else(|| "there is no format".to_owned())?)?;
    let (mut out, mut next) = (String::new(), 1);
    let mut chars = pattern.chars().peekable();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let (mut flags, mut width, mut precision) = (String::new(), String::new(), None::<String>);
        while let Some(c) = chars.next_if(|c| "-+ #0".contains(*c)) {
            flags.push(c);
        }
        while let Some(c) = chars.next_if(char::is_ascii_digit) {
            width.push(c);
        }
        if chars.next_if_eq(&'.').is_some() {
            let digits = precision.insert(String::new());
            while let Some(c) = chars.next_if(char::is_ascii_digit) {
                digits.push(c);
            }
        }
        let verb = chars.next().ok_or_else(|| "the format ends behind %".to_owned())?;
        if verb == '%' {
            out.push('%');
            continue;
        }
        let value = arguments.get(next).ok_or_else(|| format!("there is no value for %{verb}"))?;
        next += 1;
        let precision: Option<usize> =
            precision.map(|digits| digits.parse().unwrap_or(0).min(1000));
        let shown = match verb {
            's' => {
                let whole = as_text(value)?;
                precision.map_or(whole.clone(), |most| whole.chars().take(most).collect())
            }
            'v' => as_text(value)?,
            'q' => serde_json::to_string(&as_text(value)?).map_err(|error| error.to_string())?,
            't' => truth(value)?.to_string(),
            'd' => text(&numeric(number(value)?.trunc()))?,
            'x' => format!("{:x}", number(value)? as i64),
            'X' => format!("{:X}", number(value)? as i64),
            'b' => format!("{:b}", number(value)? as i64),
            'o' => format!("{:o}", number(value)? as i64),
            'f' => format!("{:.*}", precision.unwrap_or(6), number(value)?),
            'g' => text(&numeric(number(value)?))?,
            other => return Err(format!("there is no verb %{other}")),
        };
        let shown = if flags.contains('+') && !shown.starts_with('-') && "dfg".contains(verb) {
            format!("+{shown}")
        } else {
            shown
        };
        let width = width.parse().unwrap_or(0_usize).min(1000);
        let missing = width.saturating_sub(shown.chars().count());
        if flags.contains('-') {
            out.push_str(&shown);
            out.push_str(&" ".repeat(missing));
        } else if flags.contains('0') && "dfgxXbo".contains(verb) {
            let (sign, digits) = match shown.strip_prefix(['-', '+']) {
                Some(digits) => (&shown[..1], digits),
                None => ("", &*shown),
            };
            out.push_str(sign);
            out.push_str(&"0".repeat(missing));
            out.push_str(digits);
        } else {
            out.push_str(&" ".repeat(missing));
            out.push_str(&shown);
        }
    }
    if next < arguments.len() {
        return Err(format!("there are {} values more than verbs", arguments.len() - next));
    }
    Ok(out)
}

/// Returns a value as JSON, as Go writes it: keys in order, and safe within HTML.
pub(crate) fn encoded(value: &Value) -> Outcome<String> {
    fn ordered(value: &Value) -> Value {
        match value {
            Value::Array(items) => Value::Array(items.iter().map(ordered).collect()),
            Value::Object(map) => {
                let mut pairs: Vec<_> =
                    map.iter().map(|(key, value)| (key.clone(), ordered(value))).collect();
                pairs.sort_by(|a, b| a.0.cmp(&b.0));
                Value::Object(pairs.into_iter().collect())
            }
            other => other.clone(),
        }
    }
    let json = serde_json::to_string(&ordered(value)).map_err(|error| error.to_string())?;
    Ok(json.replace('<', "\\u003c").replace('>', "\\u003e").replace('&', "\\u0026"))
}

fn as_text(value: &Value) -> Outcome<String> {
    match value {
        Value::Null => Ok("null".to_owned()),
        Value::Array(_) | Value::Object(_) => encoded(value),
        other => text(other),
    }
}
