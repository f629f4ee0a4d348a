//! Clusters of any kind: labels of the rootfs image name the script for each phase of a host's
//! life.
//!
//! `init` runs on the first control plane, `join` on each additional host (`join-worker` on
//! workers, if the image has one), `settle` on remaining hosts after members were added or removed,
//! `health` after each change, `leave` before a host is removed. The pipeline runs `check` and
//! `clean` for every runtime. docs/cluster-image.md defines the contract of a script; this module
//! does not depend on what a script does.

mod upgrade;

use crate::cluster::context::ClusterContext;
use crate::cluster::host::Host;
use crate::cluster::image::ClusterImage;
use crate::runtime::upgrade::Upgrader;
use crate::runtime::{Action, Runtime};
use imgctl_base::error::{Error, Result};

/// Runtime of images labeled `sealos.io.distribution=script`.
pub(crate) struct Script;

impl Script {
    /// Returns the script of `label` on `host`; nothing if the image has none.
    fn optional(scene: &ClusterContext, host: &Host, label: &str) -> Vec<Action> {
        let Some(rootfs) = scene.rootfs() else {
            return Vec::new();
        };
        rootfs
            .label(&[label])
            .map(|value| {
                Action::script(
                    label,
                    value,
                    scene.paths.scripts(),
                    scene.environment_on(host, Some(rootfs)),
                )
            })
            .into_iter()
            .collect()
    }
}

/// Returns the rootfs image, which a cluster of this kind requires.
fn rootfs(scene: &ClusterContext) -> Result<&ClusterImage> {
    scene.rootfs().ok_or_else(|| {
        Error::usage(format!("cluster {} has no rootfs image", scene.name))
            .hint("the first image of `imgctl run` must have the label sealos.io.type=rootfs")
    })
}

impl Runtime for Script {
    fn name(&self) -> &'static str {
        "script"
    }

    fn check(&self, scene: &ClusterContext) -> Result<()> {
        let image = rootfs(scene)?;
        if image.label(&["init"]).is_none() {
            return Err(Error::usage(format!(
                "image {} has distribution `script` and no label `init`",
                image.name
            ))
            .hint("name the script that starts the first host: LABEL init=\"init.sh\""));
        }
        let several = scene.hosts.len() > 1;
        if several && image.label(&["join"]).is_none() {
            return Err(Error::usage(format!(
                "image {} has no label `join`, so its cluster cannot have {} hosts",
                image.name,
                scene.hosts.len()
            ))
            .hint("name the script that adds a host: LABEL join=\"join.sh\""));
        }
        Ok(())
    }

    fn prepare(&self, _scene: &ClusterContext, _host: &Host) -> Result<Vec<Action>> {
        Ok(Vec::new())
    }

    fn init(&self, scene: &ClusterContext, host: &Host) -> Result<Vec<Action>> {
        Ok(Self::optional(scene, host, "init"))
    }

    fn join_control_plane(&self, scene: &ClusterContext, host: &Host) -> Result<Vec<Action>> {
        Ok(Self::optional(scene, host, "join"))
    }

    fn join_worker(&self, scene: &ClusterContext, host: &Host) -> Result<Vec<Action>> {
        let own = Self::optional(scene, host, "join-worker");
        if own.is_empty() {
            return self.join_control_plane(scene, host);
        }
        Ok(own)
    }

    fn settle(&self, scene: &ClusterContext, host: &Host) -> Result<Vec<Action>> {
        Ok(Self::optional(scene, host, "settle"))
    }

    fn health(&self, scene: &ClusterContext, host: &Host) -> Result<Vec<Action>> {
        Ok(Self::optional(scene, host, "health"))
    }

    fn leave(&self, scene: &ClusterContext, host: &Host) -> Result<Vec<Action>> {
        Ok(Self::optional(scene, host, "leave"))
    }

    fn reset(&self, _scene: &ClusterContext, _host: &Host) -> Result<Vec<Action>> {
        Ok(Vec::new())
    }

    /// Adds one member at a time: it is unknown whether the clustered software supports more.
    fn workers_in_parallel(&self) -> bool {
        false
    }

    fn upgrader(&self) -> Result<&dyn Upgrader> {
        Ok(self)
    }
}
