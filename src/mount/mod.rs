//! Images as directories: overlay mounts, checkouts, their records.
//!
//! Must not know how images are built or moved, nor the command line.
