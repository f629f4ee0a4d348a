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
    let word = word.to_lowercase();
    let length = word.chars().count();
    if word.is_empty() || length > MAX_WORD {
        return None;
    }
    let allowed = (length / 3).max(1);
    candidates
        .into_iter()
        .filter(|candidate| candidate.len() <= MAX_WORD)
        .filter_map(|candidate| {
            // Insertions, deletions, replacements, and swaps of neighbours.
            let distance = strsim::osa_distance(&word, &candidate.to_lowercase());
            (distance <= allowed && distance < length).then_some((distance, candidate))
        })
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
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
