//! "Did you mean": finds the nearest of a few candidates by edit distance. Does not interpret the
//! words.

/// Maximum length of a compared word, because the cost is quadratic.
const MAX_WORD: usize = 64;

/// Returns the candidate nearest to `word`, ignoring case; `None` if none is close enough to be a
/// typing error (a third of the word, at least one character).
pub fn closest<'a, I>(word: &str, candidates: I) -> Option<&'a str>
where
    I: IntoIterator<Item = &'a str>,
{
    let word: Vec<char> = word.to_lowercase().chars().collect();
    if word.is_empty() || word.len() > MAX_WORD {
        return None;
    }
    let allowed = (word.len() / 3).max(1);
    candidates
        .into_iter()
        .filter(|candidate| candidate.len() <= MAX_WORD)
        .filter_map(|candidate| {
            let other: Vec<char> = candidate.to_lowercase().chars().collect();
            let distance = distance(&word, &other);
            (distance <= allowed && distance < word.len()).then_some((distance, candidate))
        })
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// Returns the number of insertions, deletions, replacements and swaps of neighbours between two
/// words ("optimal string alignment").
fn distance(a: &[char], b: &[char]) -> usize {
    let mut before_last: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for (i, &x) in a.iter().enumerate() {
        let mut row = Vec::with_capacity(b.len() + 1);
        row.push(i + 1);
        for (j, &y) in b.iter().enumerate() {
            let mut best = (last[j] + usize::from(x != y)).min(last[j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && x == b[j - 1] && a[i - 1] == y {
                best = best.min(before_last[j - 1] + 1);
            }
            row.push(best);
        }
        before_last = std::mem::replace(&mut last, row);
    }
    last.last().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_slip_is_found() {
        let names = ["COPY", "CMD", "RUN", "ENTRYPOINT", "WORKDIR"];
        for (word, expected) in [
            ("COYP", Some("COPY")),
            ("copyy", Some("COPY")),
            ("ENTRPOINT", Some("ENTRYPOINT")),
            ("workdri", Some("WORKDIR")),
            ("RNU", Some("RUN")),
            ("LAUNCH", None),
            ("X", None),
            ("", None),
        ] {
            assert_eq!(closest(word, names), expected, "{word}");
        }
        assert_eq!(closest(&"a".repeat(100_000), names), None);
    }
}
