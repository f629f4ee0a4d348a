//! Decimal arithmetic of sprig: `addf 0.1 0.2` is 0.3. Must not know values.

/// Digits and an exponent of ten.
#[derive(Clone, Copy)]
pub(super) struct Decimal {
    digits: i128,
    exponent: i32,
}

/// Digits behind the point that a quotient has.
const QUOTIENT: i32 = 16;

impl Decimal {
    /// Returns the shortest decimal number that is this float; one that is not finite is 0.
    pub(super) fn new(float: f64) -> Self {
        let text = format!("{float:e}");
        let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let digits = format!("{whole}{fraction}").parse().unwrap_or(0);
        let places = i32::try_from(fraction.len()).unwrap_or(0);
        Self { digits, exponent: exponent.parse().unwrap_or(0) - places }
    }

    /// Returns the nearest float.
    pub(super) fn float(self) -> f64 {
        format!("{}e{}", self.digits, self.exponent).parse().unwrap_or(0.0)
    }

    /// Returns the digits with a lower exponent, if they fit.
    fn scaled(self, exponent: i32) -> Option<i128> {
        let zeros = u32::try_from(self.exponent.checked_sub(exponent)?).ok()?;
        self.digits.checked_mul(10_i128.checked_pow(zeros)?)
    }

    /// Numbers whose magnitudes are too far apart are added as floats.
    pub(super) fn plus(self, other: Self) -> Self {
        let exponent = self.exponent.min(other.exponent);
        let sum = self.scaled(exponent).zip(other.scaled(exponent));
        match sum.and_then(|(a, b)| a.checked_add(b)) {
            Some(digits) => Self { digits, exponent },
            None => Self::new(self.float() + other.float()),
        }
    }

    pub(super) fn minus(self, other: Self) -> Self {
        self.plus(Self { digits: -other.digits, ..other })
    }

    pub(super) fn times(self, other: Self) -> Self {
        match self.digits.checked_mul(other.digits) {
            Some(digits) => Self { digits, exponent: self.exponent.saturating_add(other.exponent) },
            None => Self::new(self.float() * other.float()),
        }
    }

    /// Returns the quotient, rounded; `None` if the divisor is 0.
    pub(super) fn over(self, other: Self) -> Option<Self> {
        let float = || Self::new(self.float() / other.float());
        if other.digits == 0 {
            return None;
        }
        let zeros = self.exponent.saturating_sub(other.exponent).saturating_add(QUOTIENT);
        let Some(numerator) = u32::try_from(zeros)
            .ok()
            .and_then(|zeros| self.digits.checked_mul(10_i128.checked_pow(zeros)?))
        else {
            return Some(float());
        };
        let (quotient, rest) = (numerator / other.digits, numerator % other.digits);
        let up = rest.unsigned_abs().saturating_mul(2) >= other.digits.unsigned_abs();
        let sign = if (numerator < 0) == (other.digits < 0) { 1 } else { -1 };
        let digits = if up { quotient + sign } else { quotient };
        Some(Self { digits, exponent: -QUOTIENT })
    }
}
