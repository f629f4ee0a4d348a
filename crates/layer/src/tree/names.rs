//! The names of a directory: the numbers of nodes, sorted by their names. A number takes four bytes, and
//! the names are elsewhere already: directories may have millions.
//!
//! Must not know what a node is.

use std::cmp::Ordering;
use std::iter::{Copied, Flatten};
use std::slice;

/// Maximum number of names in a piece.
const PIECE: usize = 512;

/// The sorted numbers, in pieces: inserting moves few of them. No piece is empty.
#[derive(Clone, Debug, Default)]
pub(super) struct Names(Vec<Vec<u32>>);

/// Where a name is or would be.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    piece: usize,
    at: usize,
    /// The number there; `None` if there is no such name.
    pub(super) node: Option<u32>,
}

impl Names {
    /// Finds the name with which `compare` compares the one of a number.
    pub(super) fn find(&self, compare: impl Fn(u32) -> Ordering) -> Place {
        let last = self.0.len().saturating_sub(1);
        // Layers usually list names in order.
        if let Some(piece) = self.0.last()
            && piece.last().is_some_and(|node| compare(*node) == Ordering::Less)
        {
            return Place { piece: last, at: piece.len(), node: None };
        }
        let after = self.0.partition_point(|piece| {
            piece.first().is_some_and(|node| compare(*node) != Ordering::Greater)
        });
        let piece = after.saturating_sub(1);
        let numbers = self.0.get(piece).map_or(&[][..], Vec::as_slice);
        match numbers.binary_search_by(|node| compare(*node)) {
            Ok(at) => Place { piece, at, node: numbers.get(at).copied() },
            Err(at) => Place { piece, at, node: None },
        }
    }

    /// Adds a number where [`Names::find`] has not found its name.
    pub(super) fn insert(&mut self, place: Place, node: u32) {
        let Place { piece, mut at, .. } = place;
        let is_last = piece + 1 == self.0.len();
        let Some(numbers) = self.0.get_mut(piece) else {
            self.0 = vec![vec![node]];
            return;
        };
        if numbers.len() < PIECE {
            numbers.insert(at, node);
        } else if is_last && at == numbers.len() {
            // What is listed in order fills its pieces.
            self.0.push(vec![node]);
        } else {
            let mut upper = numbers.split_off(PIECE / 2);
            match at.checked_sub(numbers.len()) {
                Some(behind) => {
                    at = behind;
                    upper.insert(at, node);
                }
                None => numbers.insert(at, node),
            }
            self.0.insert(piece + 1, upper);
        }
    }

    /// Removes what [`Names::find`] has found.
    pub(super) fn remove(&mut self, place: Place) {
        let Some(numbers) = self.0.get_mut(place.piece).filter(|_| place.node.is_some()) else {
            return;
        };
        numbers.remove(place.at);
        if numbers.is_empty() {
            self.0.remove(place.piece);
        }
    }

    /// Iterates over the numbers, in the order of their names.
    pub(super) fn iter(&self) -> Iter<'_> {
        self.0.iter().flatten().copied()
    }
}

pub(super) type Iter<'a> = Copied<Flatten<slice::Iter<'a, Vec<u32>>>>;

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn put(names: &mut Names, number: u32) {
        let place = names.find(|node| node.cmp(&number));
        if place.node.is_none() {
            names.insert(place, number);
        }
    }

    proptest! {
        #[test]
        fn names_are_those_of_a_sorted_set(changes in prop::collection::vec((0..3_u8, 0..2000_u32), 0..4000)) {
            let (mut names, mut expected) = (Names::default(), BTreeSet::new());
            for (removes, number) in changes {
                let place = names.find(|node| node.cmp(&number));
                prop_assert_eq!(place.node.is_some(), expected.contains(&number));
                if removes == 0 {
                    names.remove(place);
                    expected.remove(&number);
                } else {
                    put(&mut names, number);
                    expected.insert(number);
                }
            }
            prop_assert!(names.iter().eq(expected));
            prop_assert!(names.0.iter().all(|piece| !piece.is_empty() && piece.len() <= PIECE));
        }
    }

    #[test]
    fn names_in_order_fill_their_pieces() {
        let mut names = Names::default();
        (0..PIECE as u32 * 3).for_each(|number| put(&mut names, number));
        assert_eq!(names.0.len(), 3);
        // Those in the middle of a full piece divide it.
        let place = names.find(|node| (node * 2).cmp(&5));
        names.insert(place, u32::MAX);
        assert_eq!(names.0.len(), 4);
        assert_eq!(names.iter().nth(3), Some(u32::MAX));
    }
}
