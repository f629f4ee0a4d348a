//! Clusters of any kind: labels of the rootfs image name the script for each phase of a host's
//! life.
//!
//! `init` runs on the first control plane, `join` on each additional host (`join-worker` on
//! workers, if the image has one), `settle` on remaining hosts after members were added or removed,
//! `health` after each change, `leave` before a host is removed, `renumber` on a host whose address
//! has changed. The pipeline runs `check` and `clean` for every runtime. docs/cluster-image.md defines the contract of a script; this module
//! does not depend on what a script does.

pub(crate) mod certificates;
mod rotation;
mod upgrade;

use crate::certificates::validity::Validity;
use crate::{Action, Runtime, rotation::Rotator, upgrade::Upgrader};
use imgctl_base::error::{Error, Result};
use imgctl_kube::drain;
use imgctl_model::context::{ClusterContext, Host};
use imgctl_model::image::ClusterImage;

pub(crate) use certificates::declared_file;

/// Runtime of images labeled `sealos.io.distribution=script`.
pub(crate) struct Script {
    /// Validity of the certificates that the image declares.
    pub(crate) validity: Validity,
}

impl Script {
    /// Returns the script of `label` on `host`; nothing if the image has none.
    fn optional(context: &ClusterContext, host: &Host, label: &str) -> Vec<Action> {
        let script = context.rootfs().and_then(|rootfs| {
            let environment = context.environment_on(host, Some(rootfs));
            let value = rootfs.label(&[label])?;
            Some(Action::script(label, value, context.paths.scripts(), environment))
        });
        script.into_iter().collect()
    }
}

/// Returns the rootfs image, which a cluster of this kind requires.
fn rootfs(context: &ClusterContext) -> Result<&ClusterImage> {
    context.rootfs().ok_or_else(|| {
        Error::usage(format!("cluster {} has no rootfs image", context.name))
            .hint("the first image of `imgctl run` must have the label sealos.io.type=rootfs")
    })
}

impl Runtime for Script {
    fn name(&self) -> &'static str {
        "script"
    }

    fn check(&self, context: &ClusterContext) -> Result<()> {
        let image = rootfs(context)?;
        if image.label(&["init"]).is_none() {
            return Err(Error::usage(format!(
                "image {} has distribution `script` and no label `init`",
                image.name
            ))
            .hint("name the script that starts the first host: LABEL init=\"init.sh\""));
        }
        let several = context.hosts.len() > 1;
        if several && image.label(&["join"]).is_none() {
            return Err(Error::usage(format!(
                "image {} has no label `join`, so its cluster cannot have {} hosts",
                image.name,
                context.hosts.len()
            ))
            .hint("name the script that adds a host: LABEL join=\"join.sh\""));
        }
        Ok(())
    }

    fn prepare(&self, context: &ClusterContext, host: &Host) -> Result<Vec<Action>> {
        certificates::actions(context, host, self.validity)
    }

    fn init(&self, context: &ClusterContext, host: &Host) -> Result<Vec<Action>> {
        Ok(Self::optional(context, host, "init"))
    }

    fn join_control_plane(&self, context: &ClusterContext, host: &Host) -> Result<Vec<Action>> {
        Ok(Self::optional(context, host, "join"))
    }

    fn join_worker(&self, context: &ClusterContext, host: &Host) -> Result<Vec<Action>> {
        let own = Self::optional(context, host, "join-worker");
        if own.is_empty() {
            return self.join_control_plane(context, host);
        }
        Ok(own)
    }

    fn settle(&self, context: &ClusterContext, host: &Host) -> Result<Vec<Action>> {
        Ok(Self::optional(context, host, "settle"))
    }

    fn health(&self, context: &ClusterContext, host: &Host) -> Result<Vec<Action>> {
        Ok(Self::optional(context, host, "health"))
    }

    fn leave(
        &self,
        context: &ClusterContext,
        host: &Host,
        _draining: &drain::Options,
    ) -> Result<Vec<Action>> {
        Ok(Self::optional(context, host, "leave"))
    }

    fn renumber(&self, context: &ClusterContext, host: &Host, old: &str) -> Result<Vec<Action>> {
        let image = rootfs(context)?;
        let Some(value) = image.label(&["renumber"]) else {
            return Err(Error::usage(format!(
                "image {} has no label `renumber`, so its hosts cannot change their addresses",
                image.name
            ))
            .hint(
                "upgrade to an image that names the script: LABEL renumber=\"renumber.sh\" \
                 (docs/cluster-image.md)",
            ));
        };
        let mut environment = context.environment_on(host, Some(image));
        environment.insert("IMGCTL_OLD_IP".to_owned(), old.to_owned());
        let script = Action::script("renumber", value, context.paths.scripts(), environment);
        let mut actions = certificates::actions(context, host, self.validity)?;
        actions.push(script.bringing(&context.rootfs_content()));
        Ok(actions)
    }

    fn reset(&self, _context: &ClusterContext, _host: &Host) -> Result<Vec<Action>> {
        Ok(Vec::new())
    }

    /// Adds one member at a time: it is unknown whether the clustered software supports more.
    fn workers_in_parallel(&self) -> bool {
        false
    }

    fn upgrader(&self) -> Result<&dyn Upgrader> {
        Ok(self)
    }

    fn rotator(&self) -> Result<&dyn Rotator> {
        Ok(self)
    }
}
