//! Numbers. Integer arithmetic wraps, as in Go; division by zero is an error.

use gotmpl::Value;

use super::arguments::{Arguments, float_of, int_of, list};
use super::{Answer, Group};

/// Maximum length of a list that `until` creates.
const LIMIT: usize = 1 << 20;

/// Functions in this file.
pub(super) const GROUP: Group = &[
    ("int", |a| Ok(Value::Int(a.int(0)?))),
    ("int64", |a| Ok(Value::Int(a.int(0)?))),
    ("atoi", |a| Ok(Value::Int(a.int(0)?))),
    ("float64", |a| Ok(Value::Float(float_of(a.value(0)?)))),
    ("toDecimal", |a| Ok(Value::Int(i64::from_str_radix(&a.text(0)?, 8).unwrap_or(0)))),
    ("add", |a| fold(a, 0, i64::wrapping_add)),
    ("add1", |a| Ok(Value::Int(a.int(0)?.wrapping_add(1)))),
    ("mul", |a| fold(a, 1, i64::wrapping_mul)),
    ("sub", |a| Ok(Value::Int(a.int(0)?.wrapping_sub(a.int(1)?)))),
    ("div", |a| match a.int(1)? {
        0 => Err(a.refuse("division by zero")),
        divisor => Ok(Value::Int(a.int(0)?.wrapping_div(divisor))),
    }),
    ("mod", |a| match a.int(1)? {
        0 => Err(a.refuse("division by zero")),
        divisor => Ok(Value::Int(a.int(0)?.wrapping_rem(divisor))),
    }),
    ("max", |a| extreme(a, i64::max)),
    ("min", |a| extreme(a, i64::min)),
    ("biggest", |a| extreme(a, i64::max)),
    ("addf", |a| Ok(Value::Float(a.all().iter().map(float_of).sum()))),
    ("mulf", |a| Ok(Value::Float(a.all().iter().map(float_of).product()))),
    ("subf", |a| Ok(Value::Float(float_of(a.value(0)?) - float_of(a.value(1)?)))),
    ("divf", |a| Ok(Value::Float(float_of(a.value(0)?) / float_of(a.value(1)?)))),
    ("floor", |a| Ok(Value::Float(float_of(a.value(0)?).floor()))),
    ("ceil", |a| Ok(Value::Float(float_of(a.value(0)?).ceil()))),
    ("round", |a| {
        let places = i32::try_from(a.int(1)?.clamp(-300, 300)).unwrap_or(0);
        let scale = 10f64.powi(places);
        Ok(Value::Float((float_of(a.value(0)?) * scale).round() / scale))
    }),
    ("until", |a| range(a, 0, a.int(0)?, if a.int(0)? < 0 { -1 } else { 1 })),
    ("untilStep", |a| range(a, a.int(0)?, a.int(1)?, a.int(2)?)),
];

fn fold(a: &Arguments<'_>, start: i64, step: fn(i64, i64) -> i64) -> Answer {
    Ok(Value::Int(a.all().iter().map(int_of).fold(start, step)))
}

fn extreme(a: &Arguments<'_>, choose: fn(i64, i64) -> i64) -> Answer {
    a.value(0)?;
    let best = a.all().iter().map(int_of).reduce(choose);
    Ok(Value::Int(best.unwrap_or(0)))
}

/// Returns the numbers from `start` (inclusive) to `stop` (exclusive); a step away from `stop`
/// returns none.
fn range(a: &Arguments<'_>, start: i64, stop: i64, step: i64) -> Answer {
    let mut numbers = Vec::new();
    let mut number = start;
    while (step > 0 && number < stop) || (step < 0 && number > stop) {
        if numbers.len() == LIMIT {
            return Err(a.refuse(format!("more than {LIMIT} numbers")));
        }
        numbers.push(Value::Int(number));
        match number.checked_add(step) {
            Some(next) => number = next,
            None => break,
        }
    }
    Ok(list(numbers))
}
