//! The console on a socket of this machine.

use std::future::Future;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use crate::answer;
use crate::guard::Guard;
use imgctl_base::error::{Error, IoContext as _, Result};
use imgctl_ops::report::Recorded;
use imgctl_registry::serving::{Limits, Listener};
use imgctl_store::store::Store;

/// Threads that answer: a browser or two, and what waits for the disk has threads of its own.
const THREADS: usize = 2;

/// What a console shows, and where.
#[derive(Clone, Debug)]
pub struct Options {
    /// Address to listen on, which must be one of loopback; port 0 = any.
    pub listen: SocketAddr,
    pub store: Store,
    pub recorded: Recorded,
}

/// A console that is listening but not yet serving.
pub struct Console {
    listener: Listener<answer::Console>,
    url: String,
    stop: watch::Sender<bool>,
}

impl Console {
    /// Starts listening. Fails for an address that other machines can reach.
    pub fn bind(options: Options) -> Result<Self> {
        let listen = options.listen;
        if !is_loopback(listen.ip()) {
            return Err(Error::usage(format!(
                "the console listens on this machine alone, and {} can be reached from others",
                listen.ip()
            ))
            .hint(format!(
                "listen on 127.0.0.1, and reach it from elsewhere through SSH: ssh -L {0}:127.0.0.1:{0} HOST",
                if listen.port() == 0 { 8080 } else { listen.port() }
            )));
        }
        let socket = TcpListener::bind(listen).map_err(|error| {
            Error::io(format!("cannot listen on {listen}"), error)
                .hint("another program may be listening there; port 0 selects a free one")
        })?;
        let address =
            socket.local_addr().doing(|| "cannot ask the socket for its address".to_owned())?;
        let guard = Guard::new(address)?;
        let url = guard.url(address);
        let (stop, is_stopping) = watch::channel(false);
        let handler = answer::Console::new(guard, options.store, options.recorded, is_stopping);
        let listener = Listener::new(socket, None, limits(), Arc::new(handler))?;
        Ok(Self { listener, url, stop })
    }

    /// Returns the address with the token, which admits whoever has it.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Returns the address of the socket.
    pub fn address(&self) -> SocketAddr {
        self.listener.address()
    }

    /// Serves until `stop` is ready. Creates its own threads; must not be called from asynchronous code.
    pub fn run(self, stop: impl Future<Output = ()>) -> Result<()> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(THREADS)
            .enable_all()
            .thread_name("console")
            .build()
            .doing(|| "cannot start threads".to_owned())?;
        let Self { listener, stop: stopping, .. } = self;
        let stop = async {
            stop.await;
            // Pages that follow a run would never end by themselves.
            let _ = stopping.send(true);
        };
        let outcome = runtime.block_on(listener.serve(stop));
        // A thread that hangs in a system call must not delay the exit.
        runtime.shutdown_timeout(Duration::from_secs(1));
        outcome
    }
}

fn is_loopback(address: IpAddr) -> bool {
    // Also an IPv4 address that is written as one of IPv6.
    address.to_canonical().is_loopback()
}

fn limits() -> Limits {
    Limits {
        connections: 64,
        head: Duration::from_secs(10),
        // A path inside an image has at most 4 KiB, of which each byte may take three.
        head_size: 32 << 10,
        silence: Duration::from_secs(30),
        idle: Duration::from_secs(60),
        grace: Duration::from_secs(5),
    }
}
