//! One layer from a registry to one host, which pulls it itself. The controller sends none of its
//! bytes. Must not depend on which host is chosen.

use crate::sync::execute::{Origin, Run};
use crate::sync::recipe::Delta;
use crate::sync::source::RegistryLayers;
use crate::sync::watch::Count;
use imgctl_base::error::{Context, Kind, Result};
use imgctl_base::workers::lock;
use imgctl_host::agent::protocol::RegistryPull;

impl Run<'_> {
    /// Has a host pull a blob. A host that the registry does not serve may still get it from another
    /// host: that is not an error here.
    pub(super) fn pull(&self, layers: &RegistryLayers, number: u32, blob: u32) -> Result<()> {
        let host = self.host(number);
        let id = host.host.id();
        let layer = &self.plan.blobs[blob as usize];
        let held = match self.plan.brief.delta {
            Delta::Never => Vec::new(),
            Delta::Auto | Delta::Always => host.resembled(self.plan, layer).layers,
        };
        let request = RegistryPull {
            from: layers.of(&self.plan.brief.images, &layer.digest),
            blob: layer.clone(),
            held: held.into_iter().map(|layer| layer.blob).collect(),
        };
        let count = Count::new(self.watch, &id, Origin::Registry, layer.size);
        let fetched = |bytes: u64| count.add(bytes);
        let pulled = host.agent.pull(&request, &fetched, self.cancel);
        let pulled = pulled.context(|| format!("{id}: cannot pull layer {}", layer.digest));
        match pulled {
            Ok(()) => {
                count.end_with_own();
                lock(&self.schedule).uploaded(number, blob);
                Ok(())
            }
            // The host itself: its connection, its disk, a request to stop.
            Err(error)
                if matches!(error.kind(), Kind::Network | Kind::NoSpace | Kind::Interrupted) =>
            {
                count.end(false);
                Err(error)
            }
            Err(error) => {
                count.end(false);
                tracing::warn!("{error}");
                lock(&self.hosts[number as usize].refusal).get_or_insert(error);
                lock(&self.schedule).not_pulled(number, blob);
                Ok(())
            }
        }
    }
}
