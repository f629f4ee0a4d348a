//! The agent's side: serves one controller over stdin and stdout until stdin ends.
//!
//! Started commands keep running without the agent; all other work can be interrupted at any
//! moment, and the next agent resumes it.

mod answer;
mod calls;
mod stdio;

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use http::{Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::AsyncWriteExt;

use crate::agent::network::Offers;
use crate::agent::wire;
use answer::Answer;
use imgctl_base::error::{IoContext, Result};
use imgctl_registry::server::{Limits, ServeOptions, Service};
use imgctl_store::store::Store;
use imgctl_transfer::transfer::store_backend::StoreBackend;

/// Bytes that may be in flight for one request, and for all requests.
const STREAM_WINDOW: u32 = 4 << 20;
const CONNECTION_WINDOW: u32 = 16 << 20;
const FRAME: u32 = 1 << 20;
/// Maximum number of concurrent requests.
const STREAMS: u32 = 1024;
/// Interval of keep-alive pings to a silent controller, and the timeout for its reply, which may be
/// queued behind much other data on a slow connection.
const PING: Duration = Duration::from_secs(20);
const PONG: Duration = Duration::from_secs(60);
/// Maximum time without data while a blob is pushed.
const SILENCE: Duration = Duration::from_secs(120);
/// How often to check for idle uploads.
const TIDY: Duration = Duration::from_secs(60);

/// State shared by all requests.
struct Host {
    store: Store,
    registry: Service,
    offers: Offers,
}

/// Serves over stdin and stdout until stdin ends.
pub fn serve_stdio(store: &Store) -> Result<()> {
    // The umask of the login user may make files unreadable for others.
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    let options = ServeOptions {
        limits: Limits { silence: SILENCE, ..Limits::default() },
        candid: true,
        ..ServeOptions::default()
    };
    let host = Arc::new(Host {
        store: store.clone(),
        registry: Service::new(&options, Arc::new(StoreBackend::by_digest(store)))?,
        offers: Offers::default(),
    });
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .thread_name("agent")
        .enable_all()
        .build()
        .doing(|| "cannot start threads".to_owned())?;
    let outcome = runtime.block_on(serve(&host));
    // Unfinished work is aborted: the next agent resumes it.
    runtime.shutdown_background();
    outcome
}

async fn serve(host: &Arc<Host>) -> Result<()> {
    let (input, mut output) = stdio::open()?;
    let greeted = async {
        output.write_all(wire::greeting().as_bytes()).await?;
        output.flush().await
    };
    greeted.await.doing(|| "cannot greet the controller".to_owned())?;
    let registry = host.registry.clone();
    let tidy = tokio::spawn(async move {
        let mut interval = tokio::time::interval(TIDY);
        loop {
            interval.tick().await;
            registry.tidy();
        }
    });
    let service = service_fn(|request| {
        let host = Arc::clone(host);
        async move { Ok::<_, Infallible>(answer(&host, request).await) }
    });
    let served = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_frame_size(FRAME)
        .max_concurrent_streams(STREAMS)
        .max_send_buf_size(1 << 20)
        .keep_alive_interval(PING)
        .keep_alive_timeout(PONG)
        .serve_connection(TokioIo::new(tokio::io::join(input, output)), service)
        .await;
    tidy.abort();
    if let Err(error) = served {
        // The controller or the connection is gone, so there is no one to notify.
        tracing::debug!("the connection ended: {error}");
    }
    Ok(())
}

async fn answer(host: &Arc<Host>, request: Request<Incoming>) -> Response<Answer> {
    let path = request.uri().path();
    if path == "/v2" || path.starts_with("/v2/") {
        return host.registry.answer(request).await.map(Answer::Registry);
    }
    match path.strip_prefix(wire::PREFIX).map(str::to_owned) {
        Some(name) if name == wire::TUNNEL && request.method() == Method::POST => {
            answer::tunnel(request).await
        }
        Some(name) if request.method() == Method::POST => {
            calls::answer(host, &name, request.into_body()).await
        }
        _ => answer::refusal(StatusCode::NOT_FOUND, "unknown call"),
    }
}
