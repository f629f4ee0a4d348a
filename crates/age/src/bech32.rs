//! Bech32 (BIP 173) without its limit of length: the form of age's recipients and identities.

const LETTERS: &[u8; 32] = b"qpzry9x8gf2tvdw0s3jn54khce6mua7l";
const CHECKSUM: usize = 6;

/// Returns `data` under the prefix `name`, in lower case.
pub(super) fn encode(name: &str, data: &[u8]) -> String {
    let mut values = regroup(data, 8, 5, true).unwrap_or_default();
    let mut checked = expanded(name);
    checked.extend(&values);
    checked.extend([0; CHECKSUM]);
    let sum = polymod(&checked) ^ 1;
    values.extend((0..CHECKSUM).map(|at| {
        let five = (sum >> (5 * (CHECKSUM - 1 - at))) & 31;
        u8::try_from(five).unwrap_or_default()
    }));
    let mut text = format!("{name}1");
    text.extend(values.iter().map(|value| char::from(LETTERS[usize::from(*value)])));
    text
}

/// Returns the prefix, in lower case, and the data; `None` if the text is malformed.
pub(super) fn decode(text: &str) -> Option<(String, Vec<u8>)> {
    let lower = text.to_ascii_lowercase();
    if text != lower && text != text.to_ascii_uppercase() {
        return None;
    }
    let (name, rest) = lower.rsplit_once('1')?;
    if name.is_empty() || rest.len() < CHECKSUM || !name.bytes().all(|byte| byte.is_ascii_graphic())
    {
        return None;
    }
    let value = |byte: u8| {
        let at = LETTERS.iter().position(|letter| *letter == byte)?;
        u8::try_from(at).ok()
    };
    let values: Vec<u8> = rest.bytes().map(value).collect::<Option<_>>()?;
    let mut checked = expanded(name);
    checked.extend(&values);
    if polymod(&checked) != 1 {
        return None;
    }
    let data = regroup(&values[..values.len() - CHECKSUM], 5, 8, false)?;
    Some((name.to_owned(), data))
}

fn expanded(name: &str) -> Vec<u8> {
    let high = name.bytes().map(|byte| byte >> 5);
    let low = name.bytes().map(|byte| byte & 31);
    high.chain([0]).chain(low).collect()
}

fn polymod(values: &[u8]) -> u32 {
    const GENERATOR: [u32; 5] = [0x3b6a_57b2, 0x2650_8e6d, 0x1ea1_19fa, 0x3d42_33dd, 0x2a14_62b3];
    values.iter().fold(1, |sum: u32, value| {
        let top = sum >> 25;
        let sum = ((sum & 0x01ff_ffff) << 5) ^ u32::from(*value);
        let parts = GENERATOR.iter().enumerate().filter(|(at, _)| (top >> at) & 1 == 1);
        parts.fold(sum, |sum, (_, part)| sum ^ part)
    })
}

/// Converts groups of `from` bits to groups of `to` bits.
fn regroup(data: &[u8], from: u32, to: u32, pad: bool) -> Option<Vec<u8>> {
    let (mut bits, mut count, mut out) = (0_u32, 0, Vec::new());
    let mask = (1 << to) - 1;
    for value in data {
        bits = ((bits << from) | u32::from(*value)) & 0xffff;
        count += from;
        while count >= to {
            count -= to;
            out.push(u8::try_from((bits >> count) & mask).ok()?);
        }
    }
    if pad {
        if count > 0 {
            out.push(u8::try_from((bits << (to - count)) & mask).ok()?);
        }
    } else if count >= from || (bits << (to - count)) & mask != 0 {
        return None;
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_encoded_is_decoded_and_errors_are_found() {
        for length in 0..40_u8 {
            let data: Vec<u8> = (0..length).map(|at| at.wrapping_mul(37)).collect();
            let text = encode("age", &data);
            assert_eq!(decode(&text), Some(("age".to_owned(), data.clone())));
            assert_eq!(decode(&text.to_ascii_uppercase()), Some(("age".to_owned(), data)));
            for at in 0..text.len() {
                let mut edited = text.clone().into_bytes();
                edited[at] = if edited[at] == b'q' { b'p' } else { b'q' };
                assert_eq!(decode(&String::from_utf8(edited).unwrap()), None, "{text} at {at}");
            }
        }
        // BIP 173.
        for valid in ["A12UEL5L", "abcdef1qpzry9x8gf2tvdw0s3jn54khce6mua7lmqqqxw"] {
            assert!(decode(valid).is_some(), "{valid}");
        }
        for wrong in
            ["", "1nwldj5", "A1G7SGD8", "pzry9x0s0muk", "li1dgmt3", "a12UEL5L", "é1qqqqqqq"]
        {
            assert_eq!(decode(wrong), None, "{wrong}");
        }
    }
}
