//! The UID of a cluster, which tells clusters of one name apart. The Clusterfile has it as
//! `metadata.uid`; each host of the cluster has it in a file.
//!
//! A cluster gets it when it is created. One that was made before clusters had UIDs, or by sealos, has
//! the one that follows from its name and the time of its creation: every controller that knows it
//! finds the same. The UID of an adopted cluster is that of its Namespace kube-system.

use crate::clusterfile::ClusterDocument;
use crate::name::is_uid;
use imgctl_base::error::{Error, Result};
use imgctl_base::image::Digest;
use imgctl_base::text::hex;

/// Returns the UID of a cluster that has none recorded.
pub fn of(cluster: &ClusterDocument) -> Result<String> {
    let adopted = cluster.status.adopted.as_ref().map(|adopted| adopted.cluster_id.as_str());
    if let Some(id) = adopted.filter(|id| is_uid(id)) {
        return Ok(id.to_owned());
    }
    match &cluster.created {
        Some(created) => {
            let digest = Digest::of(format!("imgctl {} {created}", cluster.name).as_bytes());
            Ok(written(&digest.hex()[..32]))
        }
        None => fresh(),
    }
}

/// Returns a new UID.
pub fn fresh() -> Result<String> {
    let mut bytes = [0_u8; 16];
    aws_lc_rs::rand::fill(&mut bytes)
        .map_err(|_| Error::failed("the system has no random numbers for the UID of a cluster"))?;
    Ok(written(&hex(&bytes)))
}

/// Returns 32 hexadecimal digits in the groups of a UUID.
fn written(hex: &str) -> String {
    let mut text = String::new();
    for (at, digit) in hex.chars().enumerate() {
        if [8, 12, 16, 20].contains(&at) {
            text.push('-');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clusterfile::Adopted;

    #[test]
    fn former_clusters_have_one_uid_for_all_controllers_and_new_ones_their_own() {
        let document = |name: &str, created: Option<&str>| ClusterDocument {
            name: name.to_owned(),
            created: created.map(str::to_owned),
            ..ClusterDocument::default()
        };
        let first = document("prod", Some("2024-01-01T00:00:00Z"));
        let uid = of(&first).unwrap();
        assert_eq!(uid, of(&first).unwrap());
        assert!(is_uid(&uid) && uid.len() == 36, "{uid}");
        assert_ne!(uid, of(&document("prod", Some("2024-01-01T00:00:01Z"))).unwrap());
        assert_ne!(uid, of(&document("test", Some("2024-01-01T00:00:00Z"))).unwrap());
        let new = document("prod", None);
        assert_ne!(of(&new).unwrap(), of(&new).unwrap());
        let mut adopted = first;
        let cluster_id = "6d2c6a1e-0000-4000-8000-000000000001".to_owned();
        adopted.status.adopted =
            Some(Adopted { cluster_id: cluster_id.clone(), ..Adopted::default() });
        assert_eq!(of(&adopted).unwrap(), cluster_id);
    }
}
