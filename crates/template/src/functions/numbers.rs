//! Numbers. Integer arithmetic wraps, as in Go; division by zero is an error.

use super::call::{Answer, Call, Group, float, int, text};
use super::decimal::Decimal;
use super::growth::Growth::{Flat, Fresh};
use super::growth::{full, numbers};
use crate::dialect::MOST_NUMBERS;
use crate::value::Value;

pub(super) const GROUP: Group = &[
    ("int", "*", Flat, |a| Ok(Value::Int(int(a, 0)))),
    ("int64", "*", Flat, |a| Ok(Value::Int(int(a, 0)))),
    ("atoi", "s", Flat, |a| Ok(Value::Int(text(a, 0).parse().unwrap_or(0)))),
    ("float64", "*", Flat, |a| Ok(Value::Float(float(a, 0)))),
    ("toDecimal", "*", Fresh(full::<48, 3>), |a| {
        Ok(Value::Int(i64::from_str_radix(&text(a, 0), 8).unwrap_or(0)))
    }),
    ("add", "*+", Flat, |a| fold(a, 0, i64::wrapping_add)),
    ("add1", "*", Flat, |a| Ok(Value::Int(int(a, 0).wrapping_add(1)))),
    ("mul", "*+", Flat, |a| fold(a, 1, i64::wrapping_mul)),
    ("sub", "**", Flat, |a| Ok(Value::Int(int(a, 0).wrapping_sub(int(a, 1))))),
    ("div", "**", Flat, |a| match int(a, 1) {
        0 => Err("division by zero".to_owned()),
        divisor => Ok(Value::Int(int(a, 0).wrapping_div(divisor))),
    }),
    ("mod", "**", Flat, |a| match int(a, 1) {
        0 => Err("division by zero".to_owned()),
        divisor => Ok(Value::Int(int(a, 0).wrapping_rem(divisor))),
    }),
    ("max", "**+", Flat, |a| extreme(a, i64::max)),
    ("min", "**+", Flat, |a| extreme(a, i64::min)),
    ("biggest", "**+", Flat, |a| extreme(a, i64::max)),
    ("addf", "*+", Flat, |a| Ok(decimals(a, 0, Decimal::new(0.0), Decimal::plus))),
    ("mulf", "*+", Flat, |a| Ok(decimals(a, 1, first(a), Decimal::times))),
    ("add1f", "*", Flat, |a| Ok(Value::Float(first(a).plus(Decimal::new(1.0)).float()))),
    ("maxf", "**+", Flat, |a| {
        Ok(Value::Float((1..a.len()).fold(float(a, 0), |m, at| m.max(float(a, at)))))
    }),
    ("minf", "**+", Flat, |a| {
        Ok(Value::Float((1..a.len()).fold(float(a, 0), |m, at| m.min(float(a, at)))))
    }),
    ("subf", "*+", Flat, |a| Ok(decimals(a, 1, first(a), Decimal::minus))),
    ("divf", "*+", Flat, |a| {
        let quotient =
            (1..a.len()).try_fold(first(a), |all, at| all.over(Decimal::new(float(a, at))));
        let quotient = quotient.ok_or_else(|| "decimal division by 0".to_owned())?;
        Ok(Value::Float(quotient.float()))
    }),
    ("floor", "*", Flat, |a| Ok(Value::Float(float(a, 0).floor()))),
    ("ceil", "*", Flat, |a| Ok(Value::Float(float(a, 0).ceil()))),
    ("round", "***+", Flat, |a| {
        let places = i32::try_from(int(a, 1).clamp(-300, 300)).unwrap_or(0);
        let scale = 10f64.powi(places);
        let up_from = if a.len() > 2 { float(a, 2) } else { 0.5 };
        let digits = float(a, 0) * scale;
        let is_up = digits.fract() >= up_from;
        Ok(Value::Float(if is_up { digits.ceil() } else { digits.floor() } / scale))
    }),
    ("until", "*", Fresh(|a| numbers(0, int(a, 0), 1)), |a| {
        range(0, int(a, 0), if int(a, 0) < 0 { -1 } else { 1 })
    }),
    ("untilStep", "***", Fresh(|a| numbers(int(a, 0), int(a, 1), int(a, 2))), |a| {
        range(int(a, 0), int(a, 1), int(a, 2))
    }),
];

fn first(a: &Call<'_>) -> Decimal {
    Decimal::new(float(a, 0))
}

/// Combines the arguments from one on.
fn decimals(
    a: &Call<'_>,
    from: usize,
    start: Decimal,
    step: fn(Decimal, Decimal) -> Decimal,
) -> Value {
    let rest = (from..a.len()).map(|at| Decimal::new(float(a, at)));
    Value::Float(rest.fold(start, step).float())
}

fn fold(a: &Call<'_>, start: i64, step: fn(i64, i64) -> i64) -> Answer {
    Ok(Value::Int((0..a.len()).map(|at| int(a, at)).fold(start, step)))
}

fn extreme(a: &Call<'_>, choose: fn(i64, i64) -> i64) -> Answer {
    let best = (0..a.len()).map(|at| int(a, at)).reduce(choose);
    Ok(Value::Int(best.unwrap_or(0)))
}

/// Returns the numbers from `start` (inclusive) to `stop` (exclusive); a step away from `stop`
/// returns none.
fn range(start: i64, stop: i64, step: i64) -> Answer {
    let mut found = Vec::new();
    let mut number = start;
    while (step > 0 && number < stop) || (step < 0 && number > stop) {
        if found.len() == MOST_NUMBERS {
            return Err(format!("more than {MOST_NUMBERS} numbers"));
        }
        found.push(Value::Int(number));
        match number.checked_add(step) {
            Some(next) => number = next,
            None => break,
        }
    }
    Ok(Value::list(found))
}
