//! The memory in which whole zstd frames are decompressed side by side, shared by all layers that
//! are read at once in this process: several layers of any size stay within it.

use std::sync::{Mutex, PoisonError};

/// Frames that may be in memory at once; each takes up to twice its largest content, 8 MiB.
const FRAMES: usize = 3;
/// With fewer, nothing happens side by side.
const LEAST: usize = 2;

static FREE: Mutex<usize> = Mutex::new(FRAMES);

/// One layer's part; given back when it goes.
#[derive(Debug)]
pub(super) struct FrameShare {
    frames: usize,
    /// What was taken of the common memory; less than `frames` where that was insisted on.
    taken: usize,
}

impl FrameShare {
    /// What is free, or nothing where that is too little. Whoever insists gets the least that
    /// serves in any case: waiting could be for a reader that waits for us.
    pub(super) fn take(insist: bool) -> Option<Self> {
        let mut free = FREE.lock().unwrap_or_else(PoisonError::into_inner);
        let taken = match *free >= LEAST {
            true => std::mem::take(&mut *free),
            false => 0,
        };
        match (taken, insist) {
            (0, false) => None,
            (taken, _) => Some(Self {
                frames: taken.max(LEAST),
                taken,
            }),
        }
    }

    /// How many frames may be in memory.
    pub(super) fn frames(&self) -> usize {
        self.frames
    }
}

impl Drop for FrameShare {
    fn drop(&mut self) {
        *FREE.lock().unwrap_or_else(PoisonError::into_inner) += self.taken;
    }
}
