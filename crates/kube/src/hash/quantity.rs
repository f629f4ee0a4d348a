//! Quantities (`250m`, `128Mi`) as represented and written by Kubernetes' Go type.
//!
//! The type caches its source text if that text is easily recognized as canonical, and writes it
//! again, so it is kept here by the same rule.

/// A quantity parsed from text.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Quantity {
    pub(super) amount: Amount,
    /// The source text, if Go caches it.
    pub(super) cached: Option<String>,
    pub(super) format: Format,
}

/// An amount, in the representation that Go chooses.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Amount {
    /// `value · 10^scale`.
    Small { value: i64, scale: i32 },
    /// `value · 10^scale`, for amounts that do not fit or have too many decimal places.
    Big { value: i128, scale: i32 },
}

/// Family of suffixes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    DecimalExponent,
    BinarySi,
    DecimalSi,
}

/// Maximum number of digits that Go stores in 64 bits.
const SMALL_DIGITS: usize = 18;
/// Smallest supported exponent: nano.
const FINEST: i32 = -9;
/// Largest supported exponent.
const WIDEST: i32 = 60;
const BINARY: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
const DECIMAL: [&str; 10] = ["n", "u", "m", "", "k", "M", "G", "T", "P", "E"];

impl Quantity {
    /// Parses a quantity. `None`: the text is not a quantity, or not one that can be represented
    /// here (more than 128 bits or an extreme exponent).
    pub(super) fn parse(text: &str) -> Option<Self> {
        if text == "0" {
            return Some(Self {
                amount: Amount::Small { value: 0, scale: 0 },
                cached: Some(text.to_owned()),
                format: Format::DecimalSi,
            });
        }
        let parts = Parts::split(text)?;
        let (exponent, format) = interpret(parts.suffix)?;
        if let Some((amount, canonical)) = parts.small(exponent, format) {
            return Some(Self { amount, cached: canonical.then(|| text.to_owned()), format });
        }
        parts.big(exponent, format)
    }

    /// Returns the text that Go writes. `None`: there is no suffix for an amount of this size.
    pub(super) fn text(&self) -> Option<String> {
        if let Some(cached) = &self.cached {
            return Some(cached.clone());
        }
        let (value, scale) = match self.amount {
            Amount::Small { value, scale } => (i128::from(value), scale),
            Amount::Big { value, scale } => (value, scale),
        };
        if value == 0 {
            return Some("0".to_owned());
        }
        let binary = (self.format == Format::BinarySi)
            .then(|| integer(value, scale))
            .flatten()
            .filter(|whole| whole.abs() >= 1024);
        match binary {
            Some(whole) => binary_text(whole),
            None => decimal_text(value, scale, self.format),
        }
    }
}

/// Parts of a quantity's text, split as in Go.
struct Parts<'a> {
    positive: bool,
    /// Without leading zeros; `0` if nothing is left.
    whole: &'a str,
    places: &'a str,
    suffix: &'a str,
}

impl<'a> Parts<'a> {
    fn split(text: &'a str) -> Option<Self> {
        let (positive, rest) = match text.as_bytes().first()? {
            b'-' => (false, &text[1..]),
            b'+' => (true, &text[1..]),
            _ => (true, text),
        };
        let rest = rest.trim_start_matches('0');
        let (whole, rest) = digits(rest);
        let whole = if whole.is_empty() { "0" } else { whole };
        let (places, suffix) = rest.strip_prefix('.').map_or(("", rest), digits);
        Some(Self { positive, whole, places, suffix })
    }

    /// Returns the amount in 64 bits, if Go uses that representation, and whether Go considers the
    /// text canonical.
    fn small(&self, exponent: i32, format: Format) -> Option<(Amount, bool)> {
        let count = self.whole.len() + self.places.len();
        let (factor, scale) = match format {
            Format::BinarySi => {
                if !self.places.is_empty() {
                    return None;
                }
                // Roughly three digits for ten bits, and one as a margin.
                let spent = usize::try_from(exponent * 3 / 10).ok()?;
                if self.whole.len() + spent + 1 > 15 {
                    return None;
                }
                (1_i64.checked_shl(u32::try_from(exponent).ok()?)?, 0)
            }
            Format::DecimalExponent | Format::DecimalSi => {
                if count > SMALL_DIGITS {
                    return None;
                }
                (1, exponent)
            }
        };
        let scale = scale - i32::try_from(self.places.len()).ok()?;
        if scale < FINEST {
            return None;
        }
        let digits = format!("{}{}", self.whole, self.places);
        let number: i64 = digits.parse().ok()?;
        let value = number.checked_mul(factor)?;
        let canonical = match format {
            Format::BinarySi => number & 7 != 0,
            _ => scale % 3 == 0 && !digits.ends_with("000") && !digits.starts_with('0'),
        };
        let value = if self.positive { value } else { -value };
        Some((Amount::Small { value, scale }, canonical))
    }

    fn big(&self, exponent: i32, mut format: Format) -> Option<Quantity> {
        let number: i128 = format!("{}{}", self.whole, self.places).parse().ok()?;
        let mut scale = -i32::try_from(self.places.len()).ok()?;
        let mut value = number;
        match format {
            Format::BinarySi => {
                value = value.checked_mul(1_i128.checked_shl(u32::try_from(exponent).ok()?)?)?;
            }
            _ => scale += exponent,
        }
        if scale < FINEST {
            // Rounds up, never down to zero: a requested amount must not disappear.
            let step = power(FINEST - scale)?;
            value = value / step + i128::from(value % step != 0);
            scale = FINEST;
        }
        if format == Format::BinarySi {
            let one = power(-scale)?;
            if value > i128::from(i64::MAX).checked_mul(one)? {
                (value, scale) = (i128::from(i64::MAX), 0);
            } else if value > 0 && value < one {
                format = Format::DecimalSi;
            }
        }
        let value = if self.positive { value } else { -value };
        Some(Quantity { amount: Amount::Big { value, scale }, cached: None, format })
    }
}

fn digits(text: &str) -> (&str, &str) {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    text.split_at(end)
}

/// Returns the exponent (of 2 for binary suffixes, otherwise of 10) and the family of a suffix.
fn interpret(suffix: &str) -> Option<(i32, Format)> {
    let step = |at: usize| i32::try_from(at).ok();
    if let Some(at) = DECIMAL.iter().position(|known| *known == suffix) {
        return Some((step(at)? * 3 + FINEST, Format::DecimalSi));
    }
    if let Some(at) = BINARY.iter().position(|known| *known == suffix) {
        return Some((step(at)? * 10, Format::BinarySi));
    }
    let exponent: i32 = suffix.strip_prefix(['e', 'E'])?.parse().ok()?;
    (exponent.abs() <= WIDEST).then_some((exponent, Format::DecimalExponent))
}

fn power(exponent: i32) -> Option<i128> {
    10_i128.checked_pow(u32::try_from(exponent).ok()?)
}

/// Returns `value · 10^scale` if that is a whole number.
fn integer(value: i128, scale: i32) -> Option<i128> {
    if scale >= 0 {
        return value.checked_mul(power(scale)?);
    }
    let divisor = power(-scale)?;
    (value % divisor == 0).then(|| value / divisor)
}

fn binary_text(mut whole: i128) -> Option<String> {
    let mut times = 0;
    while whole % 1024 == 0 {
        whole /= 1024;
        times += 1;
    }
    BINARY.get(times).map(|suffix| format!("{whole}{suffix}"))
}

/// Returns the text with an exponent that is a multiple of three and as few zeros as possible.
fn decimal_text(mut value: i128, mut scale: i32, format: Format) -> Option<String> {
    while value % 10 == 0 {
        value /= 10;
        scale += 1;
    }
    let over = scale.rem_euclid(3);
    value = value.checked_mul(power(over)?)?;
    scale -= over;
    let suffix = match format {
        Format::DecimalExponent if scale == 0 => String::new(),
        Format::DecimalExponent => format!("e{scale}"),
        _ => {
            let at = usize::try_from((scale - FINEST) / 3).ok()?;
            (*DECIMAL.get(at)?).to_owned()
        }
    };
    Some(format!("{value}{suffix}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn canonical(text: &str) -> Option<String> {
        Quantity::parse(text)?.text()
    }

    #[test]
    fn quantities_become_canonical() {
        for (text, wanted) in [
            ("0.25", "250m"),
            ("1000m", "1"),
            ("1024Mi", "1Gi"),
            ("500m", "500m"),
            ("128Mi", "128Mi"),
            ("1G", "1G"),
            ("0", "0"),
            ("0Mi", "0"),
            ("0.0", "0"),
            ("1000", "1k"),
            ("1.5Gi", "1536Mi"),
            ("0.5Mi", "512Ki"),
            ("100Ki", "100Ki"),
            ("1024Ki", "1Mi"),
            ("512", "512"),
            ("0.1Ki", "102400m"),
            ("1e3", "1e3"),
            ("1E6", "1E6"),
            ("12e4", "120e3"),
            ("-1000m", "-1"),
            ("0.0000000001", "1n"),
            ("123456789012345678901234", "123456789012345678901234"),
            ("9Ei", "9223372036854775807"),
            // Go considers these canonical and keeps them.
            ("1.500", "1.500"),
            ("+5", "+5"),
        ] {
            assert_eq!(canonical(text).as_deref(), Some(wanted), "{text}");
        }
    }

    #[test]
    fn what_is_no_quantity_is_refused() {
        for text in ["", "1mi", "1 G", "1e", "1e999999999", "0x10", "--1", "1.2.3", "é", "1Kii"] {
            assert_eq!(canonical(text), None, "{text}");
        }
    }

    #[test]
    fn the_text_is_cached_where_go_does() {
        let cached = |text: &str| Quantity::parse(text).unwrap().cached.is_some();
        assert!(cached("500m") && cached("1G") && cached("250Mi") && cached("0") && cached("100"));
        assert!(!cached("128Mi") && !cached("1000m") && !cached("0.25") && !cached("0m"));
    }

    proptest::proptest! {
        #[test]
        fn a_canonical_text_stays(
            text in "-?[0-9]{1,20}(m|k|M|G|Ki|Mi|Gi|Ti|e[0-9])?|-?[0-9]{1,9}\\.[0-9]{0,12}(m|k|M)?"
        ) {
            if let Some(once) = canonical(&text) {
                proptest::prop_assert_eq!(canonical(&once), Some(once));
            }
        }

        #[test]
        fn no_text_is_too_strange(text in ".{0,24}|[-+0-9.eEinumkKMGTP]{0,50}") {
            let _ = canonical(&text);
        }
    }
}
