//! The session of an operation: how it reaches hosts, registries and the store, and how it talks to
//! the user.

use crate::cli::cluster_options;
use crate::cli::context::Context;
use crate::cli::front_end::Terminal;
use crate::cli::registry_options::RegistryArgs;
use crate::cli::ssh_options::SshArgs;
use imgctl_base::error::Result;
use imgctl_ops::session::{Logins, Session, SshAccess};

impl Context {
    /// Returns a session for one operation with these flags.
    pub(crate) fn session(&self, ssh: &SshArgs, registry: &RegistryArgs) -> Result<Session<'_>> {
        let (login, settings) = ssh.resolve(self)?;
        let registry = registry.clone();
        let registries = move |logins| match logins {
            Logins::OfUser => registry.client_options(self),
            Logins::Only(login) => registry.options(self, login),
        };
        Ok(Session::new(
            Box::new(Terminal(self)),
            cluster_options::controller(self)?,
            SshAccess { login, port: ssh.port, settings },
            Box::new(registries),
            Box::new(|| self.store().cloned()),
        ))
    }

    /// Returns a session for an operation that has no flags for hosts and registries.
    pub(crate) fn plain_session(&self) -> Result<Session<'_>> {
        self.session(&SshArgs::default(), &RegistryArgs::default())
    }
}
