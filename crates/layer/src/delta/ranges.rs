//! Ranges of the tars of several bases: what a group refers to.

use std::collections::BTreeMap;

/// Ranges that neither overlap nor touch, by base and start.
#[derive(Debug, Default)]
pub(super) struct Ranges {
    ends: BTreeMap<(usize, u64), u64>,
    total: u64,
}

impl Ranges {
    /// Adds a range, and joins it with those that it touches.
    pub(super) fn insert(&mut self, base: usize, start: u64, end: u64) {
        if start >= end {
            return;
        }
        let (mut start, mut end) = (start, end);
        let touching: Vec<(u64, u64)> = self
            .ends
            .range((base, 0)..=(base, end))
            .rev()
            // Ranges do not overlap, so their ends are in the order of their starts.
            .take_while(|(_, other_end)| **other_end >= start)
            .map(|((_, other_start), other_end)| (*other_start, *other_end))
            .collect();
        for (other_start, other_end) in touching {
            self.ends.remove(&(base, other_start));
            self.total -= other_end - other_start;
            start = start.min(other_start);
            end = end.max(other_end);
        }
        self.ends.insert((base, start), end);
        self.total += end - start;
    }

    /// Number of bytes in all of them.
    pub(super) fn total(&self) -> u64 {
        self.total
    }

    /// Base, start and end of each.
    pub(super) fn iter(&self) -> impl Iterator<Item = (usize, u64, u64)> {
        self.ends.iter().map(|((base, start), end)| (*base, *start, *end))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_joined() {
        let mut ranges = Ranges::default();
        for (base, start, end) in [
            (0, 10, 20),
            (0, 30, 40),
            (1, 15, 35),
            (0, 5, 5),
            (0, 50, 60),
            (0, 20, 30),
            (0, 12, 18),
        ] {
            ranges.insert(base, start, end);
        }
        let all: Vec<_> = ranges.iter().collect();
        assert_eq!(all, [(0, 10, 40), (0, 50, 60), (1, 15, 35)]);
        assert_eq!(ranges.total(), 60);
    }
}
