//! containerd on this host, through its gRPC socket: its version, its records of containers and content,
//! and what its CRI plugin says of them.
//!
//! Only the few messages and fields that are needed are known here; everything else in a record
//! passes through unread. Must not depend on clusters or kubelets' releases.

pub(crate) mod grpc;
pub(crate) mod protobuf;
#[cfg(test)]
mod real_tests;
pub mod rehash;

use imgctl_base::error::{Error, Result};

use grpc::Channel;
use protobuf::{Fields, Writer};

/// Where containerd listens by default.
pub const SOCKET: &str = "/run/containerd/containerd.sock";
/// Namespace of the CRI plugin's containers.
const NAMESPACE: &str = "k8s.io";
/// Extension of a container in which the CRI plugin keeps what a kubelet created it with.
const METADATA: &str = "io.cri-containerd.container.metadata";

/// A client of one containerd.
pub(crate) struct Containerd {
    channel: Channel,
}

/// The CRI plugin's metadata of a container, as containerd stores it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Metadata {
    type_url: String,
    pub(crate) value: Vec<u8>,
}

/// What the CRI plugin says of a container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CriStatus {
    pub(crate) is_running: bool,
    /// Nanoseconds since 1970.
    pub(crate) started: u64,
    pub(crate) annotations: Vec<(String, String)>,
}

impl CriStatus {
    pub(crate) fn annotation(&self, name: &str) -> Option<&str> {
        self.annotations.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }
}

impl Containerd {
    pub(crate) fn connect(socket: &str) -> Result<Self> {
        Ok(Self { channel: Channel::connect(socket)? })
    }

    /// Returns containerd's version, such as `1.6.20~ds1` or `v2.1.4`.
    pub(crate) fn version(&self) -> Result<String> {
        let answer = self.call("containerd.services.version.v1.Version/Version", &[])?;
        Fields::of(&answer).text(1)
    }

    /// Returns the CRI plugin's metadata of container `id`; `None` if there is no such container.
    pub(crate) fn metadata(&self, id: &str) -> Result<Option<Metadata>> {
        let request = Writer::default().text(1, id).done();
        let answer = match self.call("containerd.services.containers.v1.Containers/Get", &request) {
            Ok(answer) => answer,
            Err(error) if error.kind() == imgctl_base::error::Kind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let container = Fields::of(&answer).bytes(1)?;
        for entry in Fields::of(container).all(10) {
            let entry = Fields::of(entry?);
            if entry.text(1)? == METADATA {
                let any = Fields::of(entry.bytes(2)?);
                let (type_url, value) = (any.text(1)?, any.bytes(2)?.to_vec());
                return Ok(Some(Metadata { type_url, value }));
            }
        }
        Err(Error::bad_content(format!("container {id} has no extension {METADATA}")))
    }

    /// Replaces the CRI plugin's metadata of container `id`, and nothing else of its record.
    pub(crate) fn set_metadata(&self, id: &str, metadata: &Metadata) -> Result<()> {
        let any = Writer::default().text(1, &metadata.type_url).bytes(2, &metadata.value).done();
        let entry = Writer::default().text(1, METADATA).bytes(2, &any).done();
        let container = Writer::default().text(1, id).bytes(10, &entry).done();
        let mask = Writer::default().text(1, &format!("extensions.{METADATA}")).done();
        let request = Writer::default().bytes(1, &container).bytes(2, &mask).done();
        self.call("containerd.services.containers.v1.Containers/Update", &request).map(|_| ())
    }

    /// Returns what the CRI plugin says of container `id`; `None` if it knows none.
    pub(crate) fn cri_status(&self, id: &str) -> Result<Option<CriStatus>> {
        const RUNNING: u64 = 1;
        let request = Writer::default().text(1, id).done();
        let answer = match self.call("runtime.v1.RuntimeService/ContainerStatus", &request) {
            Ok(answer) => answer,
            Err(error) if error.kind() == imgctl_base::error::Kind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let status = Fields::of(Fields::of(&answer).bytes(1)?);
        let mut annotations = Vec::new();
        for entry in status.all(13) {
            let entry = Fields::of(entry?);
            annotations.push((entry.text(1)?, entry.text(2)?));
        }
        Ok(Some(CriStatus {
            is_running: status.number(3)? == RUNNING,
            started: status.number(5)?,
            annotations,
        }))
    }

    /// Like [`Self::call`], for methods that answer with a stream of messages.
    pub(crate) fn call_all(&self, method: &str, message: &[u8]) -> Result<Vec<Vec<u8>>> {
        self.channel.call_all(method, NAMESPACE, message)
    }

    pub(crate) fn call(&self, method: &str, message: &[u8]) -> Result<Vec<u8>> {
        self.channel.call(method, NAMESPACE, message)
    }
}
