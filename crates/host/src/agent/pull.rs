//! Brings a layer from a registry that the controller gives access to.
//!
//! The access, with its credentials, is a value of one call: it is in no file, argument or log, and
//! is dropped when the call ends.

use crate::agent::protocol::RegistryPull;
use imgctl_base::error::{Error, Kind, Result};
use imgctl_registry::Repository;
use imgctl_registry::client::access::Access;
use imgctl_store::store::Store;
use imgctl_transfer::transfer::single_blob;

/// Brings the layer of `request` into the store, from the first repository that has it. `fetched`
/// gets the number of bytes as they come; `false` stops.
pub(super) fn pull(
    store: &Store,
    request: &RegistryPull,
    fetched: &(dyn Fn(u64) -> bool + Sync),
) -> Result<()> {
    let mut first = None;
    for access in &request.from {
        let brought = Repository::of_access(access).and_then(|repository| {
            single_blob::fetch(store, &repository, &request.blob, &request.held, fetched)
        });
        match brought {
            Ok(()) => return Ok(()),
            Err(error) if is_of_registry(&error) => {
                tracing::debug!("{error}");
                first.get_or_insert((access, error));
            }
            Err(error) => return Err(error),
        }
    }
    match first {
        Some((access, error)) => Err(explained(access, error)),
        None => Err(Error::failed("no registry is named")),
    }
}

fn is_of_registry(error: &Error) -> bool {
    matches!(
        error.kind(),
        Kind::Network | Kind::NotFound | Kind::Denied | Kind::BadContent | Kind::Usage
    )
}

/// Adds what to do. A registry that the host cannot reach is no lost connection to the host.
fn explained(access: &Access, error: Error) -> Error {
    let name = access.name();
    let told = |kind| Error::new(kind, format!("cannot pull from {name}"));
    match error.kind() {
        Kind::Network => told(Kind::Failed).caused_by(error).hint(
            "with --source registry, hosts pull layers themselves: let this host reach the registry, \
             or leave out --source, and the controller sends them",
        ),
        Kind::NotFound => told(Kind::NotFound).caused_by(error).hint(
            "push the image there, or leave out --source, and the controller sends its layers",
        ),
        kind => told(kind).caused_by(error),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpListener;

    use super::*;
    use imgctl_base::image::{Descriptor, Digest, Reference};
    use imgctl_registry::{Client, ClientOptions};
    use imgctl_store::store::Options;

    const RIGHT: &[u8] = b"a layer";

    /// Starts a registry that answers everything with these bytes; returns its address.
    fn registry(bytes: &'static [u8]) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let mut request = Vec::new();
                let mut byte = [0];
                while !request.ends_with(b"\r\n\r\n") && stream.read(&mut byte).unwrap_or(0) == 1 {
                    request.push(byte[0]);
                }
                let head = format!(
                    "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
                    bytes.len()
                );
                let _ = stream.write_all(&[head.as_bytes(), bytes].concat());
            }
        });
        address
    }

    fn pull_from(address: &str, goes_on: bool) -> (Result<()>, bool) {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(directory.path(), Options { sync: false }).unwrap();
        let options = ClientOptions { attempts: Some(1), ..ClientOptions::default() };
        let name = Reference::parse(&format!("{address}/site/cluster")).unwrap();
        let access = Client::new(options).unwrap().repository(&name).unwrap().access().unwrap();
        let blob = Descriptor::new("layer", Digest::of(RIGHT), RIGHT.len() as u64);
        let request = RegistryPull { from: vec![access], blob: blob.clone(), held: Vec::new() };
        let pulled = pull(&store, &request, &|_| goes_on);
        (pulled, store.blob_size(&blob.digest).unwrap().is_some())
    }

    #[test]
    fn a_layer_is_taken_if_its_digest_is_right() {
        let (pulled, is_there) = pull_from(&registry(RIGHT), true);
        pulled.unwrap();
        assert!(is_there);
    }

    #[test]
    fn a_registry_that_lies_is_found_by_the_digest() {
        let address = registry(b"b layer");
        let (pulled, is_there) = pull_from(&address, true);
        let error = pulled.unwrap_err();
        assert_eq!(error.kind(), Kind::BadContent, "{error}");
        assert!(error.to_string().contains(&format!("{address}/site/cluster")), "{error}");
        assert!(!is_there);
    }

    #[test]
    fn a_registry_that_cannot_be_reached_is_no_lost_host() {
        let gone = format!("127.0.0.1:{}", imgctl_base::testing::free_port());
        let error = pull_from(&gone, true).0.unwrap_err();
        assert_eq!(error.kind(), Kind::Failed, "{error}");
        assert!(error.to_string().contains(&gone), "{error}");
        assert!(error.hints().iter().any(|hint| hint.contains("leave out --source")), "{error}");
    }

    #[test]
    fn it_stops_when_nobody_waits_for_it() {
        let (pulled, is_there) = pull_from(&registry(RIGHT), false);
        assert_eq!(pulled.unwrap_err().kind(), Kind::Interrupted);
        assert!(!is_there);
    }
}
