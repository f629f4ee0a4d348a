//! The memory for decompressing whole zstd frames in parallel, shared by all layers that this
//! process reads at the same time: its limit holds for any number of layers of any size.

use std::sync::{Mutex, PoisonError};

/// Maximum number of frames in memory; each takes at most 8 MiB, twice its largest content.
const FRAMES: usize = 3;
/// Minimum number of frames for parallel decompression.
const LEAST: usize = 2;

static FREE: Mutex<usize> = Mutex::new(FRAMES);

/// One layer's share, returned on drop.
#[derive(Debug)]
pub(super) struct FrameShare {
    frames: usize,
    /// The amount taken from the shared memory; less than `frames` if the minimum was granted on
    /// demand.
    taken: usize,
}

impl FrameShare {
    /// Takes all free frames, or none if there are too few. With `insist`, always grants at least
    /// the minimum instead of waiting: a reader that it would wait for may be waiting for this one.
    pub(super) fn take(insist: bool) -> Option<Self> {
        let mut free = FREE.lock().unwrap_or_else(PoisonError::into_inner);
        let taken = if *free >= LEAST { std::mem::take(&mut *free) } else { 0 };
        match (taken, insist) {
            (0, false) => None,
            (taken, _) => Some(Self { frames: taken.max(LEAST), taken }),
        }
    }

    /// Returns how many frames may be in memory.
    pub(super) fn frames(&self) -> usize {
        self.frames
    }
}

impl Drop for FrameShare {
    fn drop(&mut self) {
        *FREE.lock().unwrap_or_else(PoisonError::into_inner) += self.taken;
    }
}
