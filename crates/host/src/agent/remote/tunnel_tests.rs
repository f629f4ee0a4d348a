//! Tests of tunnels through a real agent in a process of its own.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::mpsc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::agent::Agent;
use crate::agent::remote::testing::{Host, runtime};
use imgctl_base::error::Kind;

/// Timeout that no step here reaches.
const LONG: Duration = Duration::from_secs(20);

/// Starts a server on loopback that runs `serve` for each connection.
fn server(serve: impl Fn(TcpStream) + Send + Sync + Clone + 'static) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let serve = serve.clone();
            std::thread::spawn(move || serve(stream));
        }
    });
    port
}

fn echo(mut stream: TcpStream) {
    let mut buffer = vec![0; 10_000];
    while let Ok(count @ 1..) = stream.read(&mut buffer) {
        if stream.write_all(&buffer[..count]).is_err() {
            return;
        }
    }
    let _ = stream.shutdown(Shutdown::Write);
}

#[test]
fn many_megabytes_go_both_ways_at_once_in_many_tunnels() {
    let runtime = runtime();
    let host = Host::new(&runtime);
    let port = server(echo);
    std::thread::scope(|scope| {
        for number in 0..12_u8 {
            let (host, runtime) = (&host, &runtime);
            scope.spawn(move || {
                let tunnel = host.remote.tunnel("127.0.0.1", port).unwrap();
                let sent: Vec<u8> = (0..2 << 20).map(|at: u32| (at % 251) as u8 ^ number).collect();
                let (mut down, mut up) = tokio::io::split(tunnel);
                let received = runtime.block_on(async {
                    let send = async {
                        up.write_all(&sent).await.unwrap();
                        up.shutdown().await.unwrap();
                    };
                    let mut received = Vec::new();
                    let (_, read) = tokio::join!(send, down.read_to_end(&mut received));
                    read.unwrap();
                    received
                });
                assert!(received == sent, "{number}");
            });
        }
    });
}

#[test]
fn each_end_sees_the_other_end() {
    let runtime = runtime();
    let host = Host::new(&runtime);
    // The server sends first and closes the connection.
    let port = server(|mut stream| {
        let _ = stream.write_all(b"bye");
    });
    let mut tunnel = host.remote.tunnel("127.0.0.1", port).unwrap();
    let mut text = String::new();
    let read = async { tokio::time::timeout(LONG, tunnel.read_to_string(&mut text)).await };
    runtime.block_on(read).unwrap().unwrap();
    assert_eq!(text, "bye");
    // The client closes the connection.
    let (say, heard) = mpsc::channel();
    let port = server(move |mut stream| {
        let mut bytes = Vec::new();
        let _ = stream.read_to_end(&mut bytes);
        let _ = say.send(bytes);
    });
    let mut tunnel = host.remote.tunnel("127.0.0.1", port).unwrap();
    runtime.block_on(tunnel.write_all(b"hello")).unwrap();
    drop(tunnel);
    assert_eq!(heard.recv_timeout(LONG).unwrap(), b"hello");
}

#[test]
fn a_reader_that_sleeps_holds_up_nobody_else() {
    let runtime = runtime();
    let host = Host::new(&runtime);
    let (say, heard) = mpsc::channel();
    let port = server(move |mut stream| {
        // More than all buffers in between hold.
        let block = vec![7; 1 << 20];
        for count in 0..64 {
            let _ = say.send(count);
            if stream.write_all(&block).is_err() {
                return;
            }
        }
    });
    let _sleeper = host.remote.tunnel("127.0.0.1", port).unwrap();
    let mut last = 0;
    while let Ok(count) = heard.recv_timeout(Duration::from_secs(1)) {
        last = count;
    }
    assert!(last < 32, "{last} MiB wait somewhere");
    assert!(host.remote.read_file("/proc/version", 1000).unwrap().is_some());
}

#[test]
fn tunnels_lead_to_the_host_itself_only() {
    let runtime = runtime();
    let host = Host::new(&runtime);
    for (address, kind) in [
        ("192.0.2.1", Kind::Denied),
        ("::ffff:192.0.2.1", Kind::Denied),
        ("0.0.0.0", Kind::Denied),
        ("localhost", Kind::Failed),
        ("a b", Kind::Failed),
    ] {
        let error = host.remote.tunnel(address, 80).err().unwrap();
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().starts_with("10.9.9.9: "), "{error}");
    }
    // Nothing listens at this port.
    let port = {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.local_addr().unwrap().port()
    };
    let error = host.remote.tunnel("127.0.0.1", port).err().unwrap();
    assert_eq!(error.kind(), Kind::Network, "{error}");
    assert!(error.to_string().contains("refused"), "{error}");
    assert!(host.remote.tunnel("127.0.0.1", 0).is_err());
}

#[test]
fn an_agent_that_is_killed_breaks_its_tunnels_and_the_next_one_has_new_ones() {
    let runtime = runtime();
    let host = Host::new(&runtime);
    let port = server(echo);
    let mut tunnel = host.remote.tunnel("127.0.0.1", port).unwrap();
    runtime.block_on(tunnel.write_all(b"x")).unwrap();
    host.kill();
    let mut rest = Vec::new();
    let read = async { tokio::time::timeout(LONG, tunnel.read_to_end(&mut rest)).await };
    let error = runtime.block_on(read).unwrap().unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "{error}");
    let mut tunnel = host.remote.tunnel("127.0.0.1", port).unwrap();
    let answered = runtime.block_on(async {
        tunnel.write_all(b"y").await.unwrap();
        tunnel.read_u8().await
    });
    assert_eq!(answered.unwrap(), b'y');
}
