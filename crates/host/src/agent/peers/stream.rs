//! Passes content of another host on to containerd. When a host breaks off or says nothing for a while, the
//! next one continues at the same byte. The last bytes are passed on when the digest is right, so that
//! containerd never gets a complete blob of other bytes.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::Method;
use tokio::sync::mpsc::Sender;

use crate::agent::peers::search::{Opened, Search};
use imgctl_base::image::{Digest, Hasher};

/// Time without a byte after which a host counts as lost.
const SILENCE: Duration = Duration::from_secs(10);

/// See the module.
pub(super) struct Transfer {
    pub(super) search: Search,
    pub(super) path: String,
    pub(super) digest: Digest,
    /// Offset of the next byte.
    pub(super) at: u64,
    /// Hosts that may continue.
    pub(super) holders: VecDeque<String>,
    pub(super) fetched: Arc<AtomicU64>,
}

impl Transfer {
    /// Passes everything from `opened` on. An error ends the connection to containerd, which continues at a
    /// registry host.
    pub(super) async fn carry(mut self, mut opened: Opened, to: Sender<io::Result<Bytes>>) {
        let size = opened.size;
        // Only who has seen the beginning can verify.
        let mut hasher = (self.at == 0).then(|| Hasher::with(self.digest.algorithm()));
        while self.at < size {
            let part = tokio::time::timeout(SILENCE, opened.answer.chunk()).await;
            let Ok(Ok(Some(part))) = part else {
                self.search.lost(&opened.from);
                match self.search.open(&mut self.holders, &Method::GET, &self.path, self.at).await {
                    Some(next) if next.size == size => opened = next,
                    _ => {
                        let _ = to.send(Err(io::ErrorKind::UnexpectedEof.into())).await;
                        return;
                    }
                }
                continue;
            };
            self.at += part.len() as u64;
            self.fetched.fetch_add(part.len() as u64, Ordering::Relaxed);
            if let Some(hasher) = &mut hasher {
                hasher.update(&part);
            }
            let is_wrong = self.at > size
                || (self.at == size
                    && hasher.take().is_some_and(|hasher| hasher.finish() != self.digest));
            if is_wrong {
                self.search.refuse(&self.digest, &opened.from);
                let _ = to.send(Err(io::ErrorKind::InvalidData.into())).await;
                return;
            }
            if to.send(Ok(part)).await.is_err() {
                return;
            }
        }
    }
}
