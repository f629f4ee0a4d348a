//! Kubernetes quantities, compared by value: `0.5` is `500m`.

use imgctl_base::error::{Error, Result};

/// Parses a quantity into thousandths; a finer fraction is rounded up, as in the API.
pub(super) fn parse(text: &str) -> Result<i128> {
    let wrong = || {
        Error::usage(format!("`{text}` is not a quantity"))
            .hint("a quantity looks like 500m, 2, 512Mi or 1G")
    };
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, suffix) = text.split_at(split);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && fraction.is_empty()) || whole.len() + fraction.len() > 18 {
        return Err(wrong());
    }
    let digits: i128 = format!("{whole}{fraction}").parse().map_err(|_| wrong())?;
    let divisor = 10_i128.pow(u32::try_from(fraction.len()).map_err(|_| wrong())?);
    let thousandths = match suffix {
        "m" => 1,
        "" => 1000,
        "k" => 1000 * 1000,
        "M" => 1000 * 1000_i128.pow(2),
        "G" => 1000 * 1000_i128.pow(3),
        "T" => 1000 * 1000_i128.pow(4),
        "Ki" => 1000 * 1024,
        "Mi" => 1000 * 1024_i128.pow(2),
        "Gi" => 1000 * 1024_i128.pow(3),
        "Ti" => 1000 * 1024_i128.pow(4),
        _ => return Err(wrong()),
    };
    let scaled = digits * thousandths;
    Ok(scaled / divisor + i128::from(scaled % divisor != 0))
}

/// Returns whether two quantities are equal; an invalid one equals only the same text.
pub(crate) fn equal(a: &str, b: &str) -> bool {
    match (parse(a), parse(b)) {
        (Ok(a), Ok(b)) => a == b,
        _ => a == b,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_mean_numbers() {
        assert!(equal("0.5", "500m") && equal("1Gi", "1024Mi") && equal("1G", "1000M"));
        assert!(!equal("1G", "1Gi") && !equal("1", "1m"));
        assert_eq!(parse("0.0001").unwrap(), 1);
        for wrong in ["", ".", "x", "1x", "1.2.3", "-1", "9999999999999999999"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
