//! Flags for applications, and for clusters that are reached through a kubeconfig.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use imgctl_base::error::{Error, Result};
use imgctl_ops::apps::{Access, Push};
use imgctl_workflow::apps::prune::Prune;

/// A cluster of somebody else.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Kubeconfig options")]
pub struct KubeconfigArgs {
    /// Work on the cluster of this kubeconfig, whoever made it, and on none of its hosts
    #[arg(long, value_name = "FILE", conflicts_with = "cluster")]
    kubeconfig: Option<PathBuf>,

    /// Context of the kubeconfig [default: its current one]
    #[arg(long, value_name = "NAME", requires = "kubeconfig")]
    context: Option<String>,
}

impl KubeconfigArgs {
    /// Returns the cluster, if one is given.
    pub fn access(&self) -> Option<Access> {
        let kubeconfig = self.kubeconfig.clone()?;
        Some(Access { kubeconfig, context: self.context.clone() })
    }
}

/// What happens with the images that an application embeds.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Kubeconfig options")]
pub struct ApplicationArgs {
    /// Push embedded images to this registry
    #[arg(long, value_name = "HOST[/PREFIX]", requires = "kubeconfig")]
    registry: Option<String>,

    /// Replace the names of pushed images in what kubectl and Helm 3 send
    #[arg(long, requires = "registry")]
    rewrite_images: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum PruneArg {
    Objects,
    All,
}

impl ApplicationArgs {
    /// Returns where embedded images go.
    pub fn push(&self) -> Result<Option<Push>> {
        let Some(registry) = &self.registry else { return Ok(None) };
        let registry = registry.trim_start_matches("docker://").trim_end_matches('/');
        if registry.is_empty() {
            return Err(Error::usage("--registry names no registry"));
        }
        Ok(Some(Push { registry: registry.to_owned(), rewrite: self.rewrite_images }))
    }
}

/// What happens with objects that an application no longer has.
#[derive(Args, Clone, Debug, Default)]
pub struct PruneArgs {
    /// Remove objects that former versions had; `all`: also Namespaces, PersistentVolumeClaims and
    /// CustomResourceDefinitions
    #[arg(
        long,
        value_enum,
        value_name = "objects|all",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "objects",
        hide_possible_values = true
    )]
    prune: Option<PruneArg>,
}

impl PruneArgs {
    pub fn prune(&self) -> Prune {
        match self.prune {
            None => Prune::Nothing,
            Some(PruneArg::Objects) => Prune::Objects,
            Some(PruneArg::All) => Prune::All,
        }
    }
}
