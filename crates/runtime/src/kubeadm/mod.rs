//! kubeadm: configuration, certificates, init, joins, and rollback.
//!
//! [`Kubeadm`] defines the actions; each file in this module implements one part.

#[cfg(test)]
mod certificate_tests;
mod config;
mod defaults;
mod documents;
mod etcd;
mod health;
mod host_state;
mod images;
mod init;
mod join;
mod leave;
mod local_files;
mod lvscare;
mod place;
pub(crate) mod readdress;
pub mod renew;
mod renumber;
mod rotation;
mod settings;
#[cfg(test)]
mod stand_in_tests;
#[cfg(test)]
mod tests;
mod upgrade;
mod version;
mod write;

pub use config::API_NAME;
use config::{Config, Inputs, lvscare_image};
use defaults::PAPERS;
use documents::Documents;
use host_state::HostState;
use settings::Settings;
use version::Version;

use crate::{
    Action, ImageFiles, Runtime, certificates::validity::Validity, load_balancer,
    rotation::Rotator, upgrade::Upgrader,
};
use imgctl_base::error::{Error, Result};
use imgctl_host::agent::protocol::Facts;
use imgctl_kube::drain;
use imgctl_model::context::{ClusterContext, Host};
use imgctl_model::image::ImageKind;

/// Runtime of images labeled `distribution=kubernetes` or `kubeadm`, or without that label.
pub struct Kubeadm<'a> {
    files: &'a dyn ImageFiles,
    validity: Validity,
}

impl<'a> Kubeadm<'a> {
    pub fn new(files: &'a dyn ImageFiles, validity: Validity) -> Self {
        Self { files, validity }
    }

    fn settings(&self, context: &ClusterContext) -> Result<Settings> {
        Ok(Settings { version: Version::of(context)?, validity: self.validity })
    }

    fn of(&self, context: &ClusterContext, host: &Host) -> Result<(Settings, Config)> {
        let settings = self.settings(context)?;
        let planned = self.planned(context, host, &settings)?;
        Ok((settings, planned))
    }

    /// Returns the configuration of `host` as far as it is known without access to the host.
    fn planned(
        &self,
        context: &ClusterContext,
        host: &Host,
        settings: &Settings,
    ) -> Result<Config> {
        let image = self.image_file(context)?;
        Config::build(
            context,
            host,
            &HostState::expected(context, host),
            &Inputs {
                version: &settings.version,
                image: image.as_deref(),
                kubelet: None,
                alt_names: &settings::alt_names(context)?,
                validity: settings.validity,
            },
        )
    }

    /// Returns `etc/kubeadm.yml` of the last image that includes one: patches override the rootfs.
    fn image_file(&self, context: &ClusterContext) -> Result<Option<String>> {
        let images = context.images.iter().rev();
        for image in images.filter(|image| image.kind != ImageKind::Application) {
            if let Some(bytes) = self.files.read(image, "etc/kubeadm.yml")? {
                return String::from_utf8(bytes).map(Some).map_err(|_| {
                    Error::bad_content(format!("etc/kubeadm.yml of {} is not text", image.name))
                });
            }
        }
        Ok(None)
    }

    /// Returns the documents that `gen` prints: those for the first control plane and those that
    /// further hosts would join with. Copied into the Clusterfile, they change nothing.
    pub fn default_documents(&self, context: &ClusterContext) -> Result<String> {
        let (_, planned) = self.of(context, first(context)?)?;
        Ok(format!("{}---\n{}", planned.init_text()?, planned.join_defaults()?))
    }
}

/// Checks that documents of kubeadm can be carried on: known versions and fields.
pub fn check_documents(documents: &[serde_json::Value]) -> Result<()> {
    Documents::collect(documents).map(|_| ())
}

fn first(context: &ClusterContext) -> Result<&Host> {
    context.first().ok_or_else(|| {
        Error::usage(format!("cluster {} has no control plane", context.name))
            .hint("name at least one host with --masters")
    })
}

impl Runtime for Kubeadm<'_> {
    fn name(&self) -> &'static str {
        "kubeadm"
    }

    fn check(&self, context: &ClusterContext) -> Result<()> {
        let settings = self.settings(context)?;
        first(context)?;
        for host in &context.hosts {
            let config = self.planned(context, host, &settings)?;
            config.algorithm()?;
            config.member(false, "host")?;
            config.init_text()?;
            config.join_text(true, "", "", "")?;
            if !host.is_control_plane() && lvscare_image(context).is_some() {
                lvscare::bridge(context)?;
            }
        }
        Ok(())
    }

    /// Lets all control planes pull images at the same time, because they join one after the other.
    fn prepare(&self, context: &ClusterContext, host: &Host) -> Result<Vec<Action>> {
        if host.is_control_plane() {
            Ok(vec![images::action(context, &self.settings(context)?)])
        } else {
            Ok(Vec::new())
        }
    }

    fn init(&self, context: &ClusterContext, host: &Host) -> Result<Vec<Action>> {
        let (settings, planned) = self.of(context, host)?;
        init::actions(context, host, &settings, &planned)
    }

    fn join_control_plane(&self, context: &ClusterContext, host: &Host) -> Result<Vec<Action>> {
        let (settings, planned) = self.of(context, host)?;
        join::control_plane(context, host, &settings, &planned)
    }

    fn join_worker(&self, context: &ClusterContext, host: &Host) -> Result<Vec<Action>> {
        let (settings, planned) = self.of(context, host)?;
        join::worker(context, host, &settings, &planned)
    }

    fn settle(&self, context: &ClusterContext, host: &Host) -> Result<Vec<Action>> {
        if host.is_control_plane() || context.is_adopted() {
            return Ok(Vec::new());
        }
        match lvscare_image(context) {
            Some(image) => Ok(vec![lvscare::pod(context, host, image)?]),
            None => Ok(load_balancer::actions(context, host, PAPERS)),
        }
    }

    fn health(&self, _context: &ClusterContext, host: &Host) -> Result<Vec<Action>> {
        Ok(health::actions(host))
    }

    fn leave(
        &self,
        context: &ClusterContext,
        host: &Host,
        draining: &drain::Options,
    ) -> Result<Vec<Action>> {
        let (_, planned) = self.of(context, host)?;
        leave::actions(context, host, planned.has_local_etcd(), draining)
    }

    fn renumber(&self, context: &ClusterContext, host: &Host, old: &str) -> Result<Vec<Action>> {
        let (settings, planned) = self.of(context, host)?;
        renumber::actions(context, host, &settings, &planned, old)
    }

    fn follow(
        &self,
        context: &ClusterContext,
        host: &Host,
        moved: &Host,
        old: &str,
    ) -> Result<Vec<Action>> {
        let mut actions = self.settle(context, host)?;
        if host.address != moved.address {
            actions.extend(renumber::follow(context, moved, old)?);
        }
        Ok(actions)
    }

    /// Works even if the configuration cannot be read: a broken cluster must be removable.
    fn reset(&self, context: &ClusterContext, host: &Host) -> Result<Vec<Action>> {
        let of = self.of(context, host);
        let data = of.as_ref().map_or("/var/lib/etcd", |(_, planned)| planned.etcd_data());
        Ok(leave::reset(context, host, data))
    }

    /// A control plane gets its own entry for the API name while it joins.
    fn hosts_entries(&self, context: &ClusterContext, host: &Host) -> Vec<(String, String)> {
        if host.is_control_plane() || context.is_adopted() {
            return Vec::new();
        }
        match (lvscare_image(context), &context.vip) {
            (Some(_), Some(vip)) => vec![
                (vip.clone(), API_NAME.to_owned()),
                (host.ip().to_owned(), lvscare::NODE_NAME.to_owned()),
            ],
            _ => vec![(load_balancer::ADDRESS.to_owned(), API_NAME.to_owned())],
        }
    }

    fn hosts_blocks(&self, context: &ClusterContext, host: &Host) -> Vec<(String, Action)> {
        if !host.is_control_plane() || context.is_adopted() {
            return Vec::new();
        }
        vec![(init::hosts_block(context), init::api_name(host))]
    }

    fn fits(&self, context: &ClusterContext, host: &Host, facts: &Facts) -> Result<()> {
        let (_, planned) = self.of(context, host)?;
        planned.check_cgroups(facts.cgroup_v2, &host.id(), None)
    }

    fn ports(&self, context: &ClusterContext, host: &Host) -> Vec<u16> {
        let mut ports = vec![10250, 10248, 10249, 10256];
        if host.is_control_plane() {
            ports.extend([load_balancer::API_PORT, 10257, 10259, 2379, 2380]);
        } else if lvscare_image(context).is_none() && !context.is_adopted() {
            ports.push(load_balancer::API_PORT);
        }
        ports
    }

    fn has_api(&self) -> bool {
        true
    }

    fn upgrader(&self) -> Result<&dyn Upgrader> {
        Ok(self)
    }

    fn rotator(&self) -> Result<&dyn Rotator> {
        Ok(self)
    }
}
