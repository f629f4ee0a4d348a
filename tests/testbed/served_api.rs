//! The API of a cluster, in memory in this process (a fake: no Kubernetes runs), where hosts of the bed
//! can reach it.

use std::net::{SocketAddr, TcpListener, TcpStream};

use crate::common::testbed::Bed;
use imgctl_kube::testing::stand_in::StandIn;
use imgctl_kube::testing::stand_in::serve::{Served, serve};

pub(crate) struct ServedApi {
    /// Names the port on this machine's loopback.
    pub(crate) kubeconfig: String,
    pub(crate) port: u16,
    /// Where hosts reach it.
    pub(crate) address: SocketAddr,
    _served: Served,
}

impl ServedApi {
    pub(crate) fn start(bed: &Bed, api: &StandIn) -> Self {
        let served = serve(api);
        let kubeconfig = std::fs::read_to_string(served.path("token.kubeconfig")).unwrap();
        let port: u16 = kubeconfig
            .split_once("https://127.0.0.1:")
            .and_then(|(_, rest)| rest.split_once('\'')?.0.parse().ok())
            .unwrap();
        let listener = TcpListener::bind((bed.controller_ip(), 0)).unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            for one in listener.incoming().flatten() {
                let other = TcpStream::connect(("127.0.0.1", port)).unwrap();
                for (mut from, mut to) in
                    [(one.try_clone().unwrap(), other.try_clone().unwrap()), (other, one)]
                {
                    std::thread::spawn(move || {
                        let _ = std::io::copy(&mut from, &mut to);
                        let _ = to.shutdown(std::net::Shutdown::Both);
                        let _ = from.shutdown(std::net::Shutdown::Both);
                    });
                }
            }
        });
        Self { kubeconfig, port, address, _served: served }
    }
}
