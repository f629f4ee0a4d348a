//! What can be done to a host: cut off, slowed down, lost, filled.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use crate::cluster_etcd::support::wait_for;
use crate::common::needs_root;
use crate::common::testbed::Bed;

/// Whether sshd of a host answers within a second.
fn answers(bed: &Bed, host: usize) -> bool {
    let address = format!("{}:22", bed.ip(host)).parse().unwrap();
    let Ok(mut stream) = TcpStream::connect_timeout(&address, Duration::from_secs(1)) else {
        return false;
    };
    stream.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
    stream.read(&mut [0]).is_ok_and(|read| read == 1)
}

/// Waits until sshd answers: the machine may be busy.
#[track_caller]
fn answers_again(bed: &Bed, host: usize) {
    wait_for("an answer of sshd", Duration::from_secs(120), || answers(bed, host));
}

/// Whether one host's ping reaches another.
fn reaches(bed: &Bed, from: usize, to: usize) -> bool {
    let line = format!("ping -c1 -W1 {}", bed.ip(to));
    bed.exec(from, &line).success()
}

#[track_caller]
fn reaches_again(bed: &Bed, from: usize, to: usize) {
    wait_for("a ping", Duration::from_secs(120), || reaches(bed, from, to));
}

/// How long the host takes to send `bytes` to this machine, or to take them from it.
fn transfer(bed: &Bed, host: usize, bytes: usize, sends: bool) -> Duration {
    let listener = TcpListener::bind((bed.controller_ip(), 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let begun = Instant::now();
        if sends {
            std::io::copy(&mut stream, &mut std::io::sink()).unwrap();
        } else {
            stream.write_all(&vec![7; bytes]).unwrap();
            stream.shutdown(std::net::Shutdown::Write).unwrap();
            // Ends when the host has taken everything and closes.
            let _ = stream.read(&mut [0]);
        }
        begun.elapsed()
    });
    let to = format!("/dev/tcp/{}/{port}", bed.controller_ip());
    if sends {
        bed.says(host, &format!("head -c {bytes} /dev/zero > {to}"));
    } else {
        bed.says(host, &format!("cat < {to} | wc -c"));
    }
    server.join().unwrap()
}

#[test]
fn hosts_are_cut_slowed_lost_and_filled() {
    if !needs_root() {
        return;
    }
    let bed = Bed::up(3);

    // Cut off: silence, and everything as before afterwards.
    answers_again(&bed, 2);
    reaches_again(&bed, 1, 2);
    bed.cut(2);
    assert!(!answers(&bed, 2) && !reaches(&bed, 1, 2));
    answers_again(&bed, 1);
    reaches_again(&bed, 1, 3);
    bed.cut_apart(1, 3);
    assert!(!reaches(&bed, 1, 3));
    answers_again(&bed, 1);
    answers_again(&bed, 3);
    bed.heal();
    answers_again(&bed, 2);
    reaches_again(&bed, 1, 2);
    reaches_again(&bed, 1, 3);
    bed.cut_controller();
    assert!(!answers(&bed, 1));
    reaches_again(&bed, 1, 2);
    bed.heal();
    answers_again(&bed, 1);

    // Slow: 4 MB take 0.4 s at 80 Mbit/s, either way, for that host only.
    let (size, least) = (4_000_000, 0.3);
    bed.rate(1, 80);
    for sends in [true, false] {
        let took = transfer(&bed, 1, size, sends).as_secs_f64();
        assert!(took > least, "{took} s");
    }
    bed.rate(1, 0);
    bed.rate_controller(80);
    for sends in [true, false] {
        let took = transfer(&bed, 2, size, sends).as_secs_f64();
        assert!(took > least, "{took} s");
    }
    bed.rate_controller(0);
    wait_for("a link without a limit", Duration::from_secs(120), || {
        transfer(&bed, 2, size, true).as_secs_f64() < least
    });

    // Lost: the peer of a connection hears nothing, not even its end.
    bed.says(3, "echo kept > /var/lib/kept");
    let identity = bed.says(3, "cat /etc/machine-id");
    let mut stream = TcpStream::connect((bed.ip(3), 22)).unwrap();
    assert_eq!(stream.read(&mut [0; 4]).unwrap(), 4);
    while stream.read(&mut [0]).unwrap() == 1 && stream.peek(&mut [0]).is_ok() {
        // To the end of sshd's greeting.
        stream.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    }
    bed.kill(3);
    let nothing = stream.read(&mut [0]).unwrap_err();
    assert_eq!(nothing.kind(), std::io::ErrorKind::WouldBlock);
    assert_eq!(bed.list()["hosts"][2]["state"], "stopped");
    assert!(!answers(&bed, 3));
    bed.exec(3, "true").fails(1);
    bed.start(3);
    answers_again(&bed, 3);
    assert_eq!(bed.says(3, "cat /var/lib/kept"), "kept");
    assert_eq!(bed.says(3, "cat /etc/machine-id"), identity);
    bed.stop(3);
    assert_eq!(bed.list()["hosts"][2]["state"], "stopped");

    // Full: /var/lib has an end, also after a reboot, and nothing else has.
    bed.says(2, "echo kept > /var/lib/kept");
    bed.disk(2, 40);
    assert_eq!(bed.says(2, "cat /var/lib/kept"), "kept");
    let fill = "head -c 60000000 /dev/zero > /var/lib/big";
    let ran = bed.exec(2, fill).fails(1);
    assert!(ran.stderr().contains("No space left"), "{}", ran.report());
    bed.says(
        2,
        "rm /var/lib/big; echo more > /var/lib/more; head -c 60000000 /dev/zero > /root/big",
    );
    bed.reboot(2);
    bed.exec(2, fill).fails(1);
    assert_eq!(bed.says(2, "cat /var/lib/more"), "more");
    bed.disk(2, 0);
    bed.says(2, fill);
}
