//! How runtimes take hosts from one authority to another. Order among hosts, gates between them and the
//! journal belong to pipeline/.

use crate::Action;
use crate::certificates::rotation::{Signs, Trust};
use imgctl_base::error::{Error, Result};
use imgctl_model::context::{ClusterContext, Host};

/// An authority that can be rotated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Which {
    Kubernetes,
    Etcd,
    FrontProxy,
    /// Those that the rootfs image declares.
    Declared,
}

impl Which {
    const ALL: [Self; 4] = [Self::Kubernetes, Self::Etcd, Self::FrontProxy, Self::Declared];

    pub fn name(self) -> &'static str {
        match self {
            Self::Kubernetes => "kubernetes",
            Self::Etcd => "etcd",
            Self::FrontProxy => "front-proxy",
            Self::Declared => "declared",
        }
    }

    pub fn parse(text: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|one| one.name() == text).ok_or_else(|| {
            Error::usage(format!("there is no authority `{text}` to rotate")).hint(
                "all, kubernetes, etcd, front-proxy; declared for images that declare certificates",
            )
        })
    }
}

/// Steps of one host. Every method only returns the actions, and every action may be repeated.
pub trait Rotator: Send + Sync {
    /// Returns the authorities of this cluster.
    fn authorities(&self, context: &ClusterContext) -> Vec<Which>;

    /// Returns the action, on the first control plane, that makes the new authorities.
    fn begin(&self, which: &[Which]) -> Action;

    /// Has a host trust these authorities.
    fn trust(
        &self,
        context: &ClusterContext,
        host: &Host,
        which: &[Which],
        trust: Trust,
    ) -> Result<Vec<Action>>;

    /// Has a host use certificates of this authority. It trusts both.
    fn sign(
        &self,
        context: &ClusterContext,
        host: &Host,
        which: &[Which],
        signs: Signs,
    ) -> Result<Vec<Action>>;

    /// Runs on the first control plane after all hosts trust something else. `restart`: also Pods, which
    /// read authorities only when they start.
    fn announce(&self, _which: &[Which], _trust: Trust, _restart: bool) -> Vec<Action> {
        Vec::new()
    }

    /// Checks that must pass before the next host is changed.
    fn gate(&self, context: &ClusterContext, host: &Host) -> Result<Vec<Action>>;

    /// Runs on the first control plane at the end: the controller keeps the new authorities.
    fn end(&self, which: &[Which], signs: Signs) -> Action;
}
