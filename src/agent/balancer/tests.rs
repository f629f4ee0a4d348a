//! The balancer against real sockets.

use std::io::{Read, Write};
use std::net::TcpListener as StdListener;

use super::*;

/// Accepts connections and answers each with its name, whatever is asked.
fn server(name: &'static str) -> SocketAddr {
    let listener = StdListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            std::thread::spawn(move || {
                let mut byte = [0_u8; 1];
                let _ = stream.read(&mut byte);
                let _ = stream.write_all(name.as_bytes());
            });
        }
    });
    address
}

/// An address where nothing listens.
fn nobody() -> SocketAddr {
    StdListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
}

async fn ask(address: SocketAddr) -> String {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(b"?").await.unwrap();
    let mut answer = String::new();
    let _ = stream.read_to_string(&mut answer).await;
    answer
}

fn options(listen: SocketAddr, servers: PathBuf) -> Options {
    Options {
        listen,
        servers,
        interval: Duration::from_millis(50),
        timeout: Duration::from_secs(2),
    }
}

#[test]
fn connections_go_to_servers_that_are_up_and_a_changed_list_is_noticed() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("servers");
    let (one, two) = (server("one"), server("two"));
    std::fs::write(&file, format!("# control planes\n{}\n{one}\n", nobody())).unwrap();
    let listen = nobody();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let running = tokio::spawn(serve(options(listen, file.clone()), std::future::pending()));
        for _ in 0..50 {
            if TcpStream::connect(listen).await.is_ok() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        for _ in 0..4 {
            assert_eq!(ask(listen).await, "one");
        }
        std::fs::write(&file, format!("{two}\n")).unwrap();
        let mut answer = String::new();
        for _ in 0..100 {
            answer = ask(listen).await;
            if answer == "two" {
                break;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert_eq!(answer, "two");
        // A list that is broken for a moment changes nothing.
        std::fs::write(&file, "nonsense\n").unwrap();
        tokio::time::sleep(Duration::from_millis(150)).await;
        assert_eq!(ask(listen).await, "two");
        running.abort();
    });
}

#[test]
fn a_busy_port_and_an_empty_list_are_named() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("servers");
    std::fs::write(&file, "\n").unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let busy = StdListener::bind("127.0.0.1:0").unwrap();
    let address = busy.local_addr().unwrap();
    let error = runtime
        .block_on(serve(
            options(address, file.clone()),
            std::future::pending(),
        ))
        .unwrap_err();
    assert!(error.message().contains(&address.to_string()), "{error:?}");
    let error = runtime
        .block_on(serve(options(nobody(), file), std::future::pending()))
        .unwrap_err();
    assert!(error.message().contains("names no server"), "{error:?}");
}
