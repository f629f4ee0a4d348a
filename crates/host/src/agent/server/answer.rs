//! Bodies of answers: the registry's, events as the working thread emits them, the data of a
//! tunnel. Tunnels lead only to this machine itself: an agent is not an open relay.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body::Frame;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::mpsc;

use crate::agent::tunnel::poll_block;
use crate::agent::{network, wire};
use imgctl_registry::server;

pub(super) enum Answer {
    Registry(server::Body),
    Text(Option<Bytes>),
    Events(mpsc::Receiver<Bytes>),
    /// Data from the TCP connection.
    Tunnel(OwnedReadHalf),
}

/// Returns an answer that explains a refusal.
pub(super) fn refusal(status: StatusCode, why: &str) -> Response<Answer> {
    let mut response = Response::new(Answer::Text(Some(Bytes::from(why.to_owned()))));
    *response.status_mut() = status;
    response
}

impl http_body::Body for Answer {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        match &mut *self {
            Self::Registry(body) => Pin::new(body).poll_frame(context),
            Self::Text(text) => Poll::Ready(text.take().map(|text| Ok(Frame::data(text)))),
            Self::Events(events) => {
                events.poll_recv(context).map(|event| event.map(|event| Ok(Frame::data(event))))
            }
            Self::Tunnel(down) => poll_block(down, context),
        }
    }
}

/// Connect timeout. Within one machine, a connection is immediate unless the server is overloaded.
const CONNECT: Duration = Duration::from_secs(10);

/// Connects and forwards data in both directions.
pub(super) async fn tunnel(request: Request<Incoming>) -> Response<Answer> {
    let Some(to) = target(request.headers()) else {
        let why = "a tunnel needs an IP address and a port";
        return refusal(StatusCode::BAD_REQUEST, why);
    };
    if !is_own(to.ip()) {
        let why = format!("cannot open a tunnel to {}: it is not an address of this host", to.ip());
        return refusal(StatusCode::FORBIDDEN, &why);
    }
    let stream = match tokio::time::timeout(CONNECT, TcpStream::connect(to)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => {
            let why = format!("cannot connect to {to} on the host: {error}");
            return refusal(StatusCode::BAD_GATEWAY, &why);
        }
        Err(_) => {
            let why = format!("{to} on the host does not accept connections");
            return refusal(StatusCode::GATEWAY_TIMEOUT, &why);
        }
    };
    // The traffic is requests, not bulk data.
    let _ = stream.set_nodelay(true);
    let (down, up) = stream.into_split();
    tokio::spawn(send(request.into_body(), up));
    Response::new(Answer::Tunnel(down))
}

fn target(headers: &HeaderMap) -> Option<SocketAddr> {
    let text = headers.get(wire::TUNNEL_TO)?.to_str().ok()?;
    let (address, port) = text.split_once(' ')?;
    let address: IpAddr = address.parse().ok()?;
    let port = port.parse().ok().filter(|port| *port != 0)?;
    Some((address, port).into())
}

fn is_own(address: IpAddr) -> bool {
    // `::ffff:10.0.0.1` is equivalent to 10.0.0.1.
    let address = address.to_canonical();
    address.is_loopback() || network::addresses().contains(&address.to_string())
}

/// Forwards the request body. An aborted request ends the connection, not just one direction.
async fn send(mut body: Incoming, mut up: OwnedWriteHalf) {
    while let Some(frame) = body.frame().await {
        let Ok(frame) = frame else {
            reset(&up);
            return;
        };
        if let Ok(data) = frame.into_data()
            && up.write_all(&data).await.is_err()
        {
            return;
        }
    }
    let _ = up.shutdown().await;
}

/// Shuts down both directions: the other half may be waiting for bytes that never arrive.
fn reset(up: &OwnedWriteHalf) {
    let stream: &TcpStream = up.as_ref();
    let _ = rustix::net::shutdown(stream, rustix::net::Shutdown::Both);
}
