//! Limits the size of a tree that is only a cache: removes the blobs that were not asked for longest.
//!
//! Links to them stay: who asks for such a blob finds that it is missing. Whoever reads a blob meanwhile
//! reads it to its end.

use std::collections::HashMap;

use crate::layout::{Layout, paths};
use imgctl_base::error::Result;
use imgctl_base::image::Digest;

impl Layout {
    /// Removes blobs until their total size is at most nine tenths of `limit`, in bytes, if it is more
    /// than `limit`. `asked` has the last time at which a blob was asked for, in seconds since 1970;
    /// without one, the time at which it was written counts. Returns the number of removed bytes.
    pub fn evict(&self, limit: u64, asked: &HashMap<Digest, i64>) -> Result<u64> {
        let mut blobs = Vec::new();
        let mut total = 0_u64;
        self.each_blob(&mut |digest| {
            if let Some(metadata) = self.tree.metadata(&paths::blob_data(digest))? {
                let written = metadata.mtime.0;
                let used = asked.get(digest).map_or(written, |asked| written.max(*asked));
                blobs.push((used, digest.clone(), metadata.size));
                total += metadata.size;
            }
            Ok(())
        })?;
        if total <= limit {
            return Ok(0);
        }
        blobs.sort_unstable_by(|one, other| (one.0, &one.1).cmp(&(other.0, &other.1)));
        let enough = limit / 10 * 9;
        let mut removed = 0;
        for (_, digest, size) in blobs {
            if total <= enough {
                break;
            }
            let data = paths::blob_data(&digest);
            if self.tree.discard(data.trim_end_matches("/data"))? {
                removed += size;
            }
            total -= size;
        }
        Ok(removed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_asked_for_longest_goes_first() {
        let directory = tempfile::tempdir().unwrap();
        let layout = Layout::create(directory.path(), false).unwrap();
        let put = |byte: u8| {
            let bytes = vec![byte; 1000];
            let digest = Digest::of(&bytes);
            layout.put_blob(&mut &bytes[..], &digest, 1000).unwrap();
            digest
        };
        let blobs: Vec<Digest> = (0..10).map(put).collect();
        let there = || -> Vec<bool> {
            let has = |digest| layout.blob_size(digest).unwrap().is_some();
            blobs.iter().map(has).collect()
        };
        let now = jiff::Timestamp::now().as_second();
        let asked: HashMap<Digest, i64> = blobs
            .iter()
            .enumerate()
            .map(|(at, digest)| (digest.clone(), now + 100 - at as i64))
            .collect();
        assert_eq!(layout.evict(10_000, &asked).unwrap(), 0);
        assert_eq!(layout.evict(5000, &asked).unwrap(), 6000);
        assert_eq!(there(), [true, true, true, true, false, false, false, false, false, false]);
        layout.put_blob(&mut &[9; 1000][..], &blobs[9], 1000).unwrap();
        assert!(there()[9]);
    }
}
