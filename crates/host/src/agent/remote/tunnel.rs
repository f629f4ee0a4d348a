//! Opens tunnels: the request body carries data to the host, the answer body carries data back.

use http::{Request, StatusCode};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::io::{AsyncWriteExt, DuplexStream, WriteHalf};

use crate::agent::remote::body::Body;
use crate::agent::remote::connection::{Connection, Trouble, text};
use crate::agent::tunnel::{Failure, Tunnel, WAITING};
use crate::agent::wire;
use imgctl_base::error::{Error, Kind};

/// Opens a tunnel on a live connection.
pub(super) async fn open(
    connection: &Connection,
    address: &str,
    port: u16,
) -> Result<Tunnel, Trouble> {
    let (ours, theirs) = tokio::io::duplex(WAITING);
    let (up, down) = tokio::io::split(theirs);
    let request = Request::post(format!("http://agent{}{}", wire::PREFIX, wire::TUNNEL))
        .header(wire::TUNNEL_TO, format!("{address} {port}"))
        .body(Body::pipe(up))
        .map_err(|error| {
            let error = Error::usage(format!("`{address}` is not an address")).caused_by(error);
            Trouble::Refused(error)
        })?;
    let response = connection.request(request).await?;
    match response.status() {
        StatusCode::OK => {
            let failure = Failure::default();
            tokio::spawn(receive(response.into_body(), down, failure.clone()));
            Ok(Tunnel::new(ours, failure))
        }
        status => {
            let kind = match status {
                StatusCode::BAD_GATEWAY | StatusCode::GATEWAY_TIMEOUT => Kind::Network,
                StatusCode::FORBIDDEN => Kind::Denied,
                _ => Kind::Failed,
            };
            let why = text(response.into_body()).await;
            Err(Trouble::Refused(Error::new(kind, why)))
        }
    }
}

/// Forwards received data until either end closes.
async fn receive(mut body: Incoming, mut down: WriteHalf<DuplexStream>, failure: Failure) {
    while let Some(frame) = body.frame().await {
        match frame.map(hyper::body::Frame::into_data) {
            Ok(Ok(data)) => {
                if down.write_all(&data).await.is_err() {
                    return;
                }
            }
            Ok(Err(_)) => {}
            Err(error) => {
                failure.tell(format!("the tunnel failed: {error}"));
                break;
            }
        }
    }
    let _ = down.shutdown().await;
}
