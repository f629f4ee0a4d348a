//! Looks at every server from time to time: one that does not finish a TLS greeting is down.

use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::Options;
use super::servers::Servers;

/// A TLS 1.2 record with an empty handshake message: a server that speaks TLS answers with an
/// alert (RFC 5246 section 6.2.1 forbids empty fragments of that type), a hung one not at all.
const PROBE: [u8; 9] = [22, 3, 1, 0, 4, 1, 0, 0, 0];

/// Goes on until the task is aborted.
pub(super) async fn watch(servers: Arc<Servers>, options: Options) {
    loop {
        tokio::time::sleep(options.interval).await;
        servers.reload();
        let looks = servers.addresses().into_iter().map(|address| {
            let servers = Arc::clone(&servers);
            tokio::spawn(async move {
                let answer = tokio::time::timeout(options.timeout, answers(&address)).await;
                servers.mark(&address, matches!(answer, Ok(true)));
            })
        });
        for look in looks.collect::<Vec<_>>() {
            let _ = look.await;
        }
    }
}

/// Whether the server says anything at all, or closes in order, after half a greeting.
async fn answers(address: &str) -> bool {
    let Ok(mut stream) = TcpStream::connect(address).await else {
        return false;
    };
    if stream.write_all(&PROBE).await.is_err() {
        return false;
    }
    let mut byte = [0_u8; 1];
    stream.read(&mut byte).await.is_ok()
}
