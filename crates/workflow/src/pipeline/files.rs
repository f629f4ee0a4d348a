//! Moves an image's files to hosts, as a phase of a pipeline. sync/ does the work.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use crate::hooks::OfMoments;
use crate::pipeline::execution_context::{Files, FilesPlan, HostFiles, Then};
use crate::pipeline::step::{BatchWork, Moved, StepContext};
use crate::sync::brief::{Brief, Images, Wants};
use crate::sync::execute::{Blobs, Limits, Origin, Watch, execute};
use crate::sync::plan::{SyncPlan, Target, plan};
use crate::sync::recipe::Delta;
use crate::sync::source::Source;
use imgctl_base::error::{Context, Error, Result};
use imgctl_base::workers::lock;
use imgctl_host::render::ConfigEdit;
use imgctl_model::context::{ClusterContext, Host};
use imgctl_model::image::ClusterImage;
use imgctl_runtime::action::HostPool;

/// Loads the images of a cluster context for an OCI architecture.
type Load<'a> = dyn Fn(&ClusterContext, &str) -> Result<Vec<ClusterImage>> + Sync + 'a;

/// Returns where the layers of the images of a cluster context come from.
type FindSource<'a> = dyn Fn(&ClusterContext, &[Host]) -> Result<Source> + Sync + 'a;

/// Returns the hooks of the images of a cluster context; `None` if the store lacks one of the images.
type FindHooks<'a> = dyn Fn(&ClusterContext) -> Result<Option<OfMoments>> + Sync + 'a;

/// Syncs the trees that the images and Config documents define.
pub struct SyncedFiles<'a> {
    pub images: &'a Load<'a>,
    pub configs: Vec<ConfigEdit>,
    pub strict: bool,
    pub blobs: Arc<dyn Blobs + Send + Sync>,
    /// Whether hosts get changed layers as differences.
    pub delta: Delta,
    pub source: &'a FindSource<'a>,
    pub hooks: &'a FindHooks<'a>,
}

impl Files for SyncedFiles<'_> {
    fn plan(
        &self,
        context: &Arc<ClusterContext>,
        hosts: &[Host],
        pool: &Arc<dyn HostPool + Send>,
        then: Then,
    ) -> Result<FilesPlan> {
        let targets = targets(context, hosts, pool.as_ref())?;
        let mut images = Images::new();
        for (architecture, host) in architectures(&targets) {
            let loaded = (self.images)(context, &architecture).context(|| {
                format!("step sync/{host}/files: host {host} is linux/{architecture}")
            })?;
            images.insert(architecture, loaded);
        }
        let mut brief = Brief::new(context, images, self.configs.clone(), self.strict);
        brief.stage = then == Then::Keep;
        brief.delta = self.delta;
        brief.source = (self.source)(context, hosts)?;
        let brief = Arc::new(brief);
        let mut planned = plan(&brief, &targets, &AtomicBool::new(false))?;
        planned.estimate(&|layer, held| self.blobs.differing(layer, held));
        let failed = std::mem::take(&mut planned.failed);
        let lacking = planned
            .hosts
            .iter()
            .filter(|host| !host.is_done())
            .map(|host| HostFiles {
                host: host.host.clone(),
                says: planned.says(host),
                bytes: host.expected(&planned),
            })
            .collect();
        let trees = planned.hosts.iter().map(|host| (host.host.id(), host.trees.clone())).collect();
        let leave_rootfs = planned
            .hosts
            .iter()
            .filter(|host| host.leaves_rootfs)
            .map(|host| host.host.id())
            .collect();
        Ok(FilesPlan {
            hosts: lacking,
            failed,
            trees,
            leave_rootfs,
            work: Arc::new(Moves {
                context: Arc::clone(context),
                brief,
                blobs: Arc::clone(&self.blobs),
                planned: Mutex::new(Some(planned)),
            }),
        })
    }

    fn hooks(&self, context: &ClusterContext) -> Result<Option<OfMoments>> {
        (self.hooks)(context)
    }
}

/// Leaves the files of hosts as they are.
pub struct KeptFiles;

impl Files for KeptFiles {
    fn hooks(&self, _context: &ClusterContext) -> Result<Option<OfMoments>> {
        Ok(None)
    }

    fn plan(
        &self,
        _context: &Arc<ClusterContext>,
        _hosts: &[Host],
        _pool: &Arc<dyn HostPool + Send>,
        _then: Then,
    ) -> Result<FilesPlan> {
        Ok(FilesPlan {
            hosts: Vec::new(),
            failed: Vec::new(),
            trees: BTreeMap::new(),
            leave_rootfs: BTreeSet::new(),
            work: Arc::new(Self),
        })
    }
}

impl BatchWork for KeptFiles {
    fn run(
        &self,
        _step: &StepContext<'_>,
        hosts: &[String],
        _moved: &Moved<'_>,
        ended: &(dyn Fn(&str, Result<()>) + Sync),
        _cancel: &Arc<AtomicBool>,
    ) {
        hosts.iter().for_each(|host| ended(host, Ok(())));
    }
}

fn targets(context: &ClusterContext, hosts: &[Host], pool: &dyn HostPool) -> Result<Vec<Target>> {
    hosts
        .iter()
        .map(|host| {
            Ok(Target {
                host: host.clone(),
                agent: pool.agent(host)?,
                wants: Wants::of(context, host),
            })
        })
        .collect()
}

/// Returns the architectures of the hosts, each with the first host that has it. The agents have
/// cached these facts.
fn architectures(targets: &[Target]) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for target in targets {
        if let Ok(facts) = target.agent.facts() {
            let first = found.entry(facts.architecture);
            first.or_insert_with(|| target.host.id());
        }
    }
    found
}

struct Moves {
    context: Arc<ClusterContext>,
    brief: Arc<Brief>,
    blobs: Arc<dyn Blobs + Send + Sync>,
    /// The plan that was shown is the plan that is executed. A retry queries the hosts again.
    planned: Mutex<Option<SyncPlan>>,
}

impl BatchWork for Moves {
    fn run(
        &self,
        step: &StepContext<'_>,
        hosts: &[String],
        moved: &Moved<'_>,
        ended: &(dyn Fn(&str, Result<()>) + Sync),
        cancel: &Arc<AtomicBool>,
    ) {
        let first = lock(&self.planned).take();
        let planned = match first {
            Some(planned) => Ok(planned),
            None => self.again(step, hosts, cancel),
        };
        let told = Told { moved, asked: Mutex::default() };
        let results = planned
            .and_then(|planned| execute(planned, &*self.blobs, Limits::default(), &told, cancel));
        match results {
            Ok(results) => {
                for synced in results {
                    ended(&synced.host, synced.result);
                }
            }
            Err(error) if cancel.load(Ordering::SeqCst) => {
                (step.note)(&error.to_string());
            }
            Err(error) => {
                // The error concerns all hosts; the first host reports it.
                let mut told = Some(error);
                for host in hosts {
                    let error = told.take().unwrap_or_else(|| {
                        Error::failed("not done: stopped by another host's failure")
                    });
                    ended(host, Err(error));
                }
            }
        }
    }
}

impl Moves {
    fn again(
        &self,
        step: &StepContext<'_>,
        hosts: &[String],
        cancel: &Arc<AtomicBool>,
    ) -> Result<SyncPlan> {
        let left: Vec<Host> =
            self.context.hosts.iter().filter(|host| hosts.contains(&host.id())).cloned().collect();
        plan(&self.brief, &targets(&self.context, &left, step.pool)?, cancel)
    }
}

/// Progress of all hosts.
struct Told<'a> {
    moved: &'a Moved<'a>,
    /// Bytes that have to be sent again; they are not counted twice.
    asked: Mutex<BTreeMap<String, u64>>,
}

impl Watch for Told<'_> {
    fn moved(&self, host: &str, from: Origin<'_>, bytes: u64) {
        if from == Origin::Itself {
            return;
        }
        let mut asked = lock(&self.asked);
        let mut new = bytes;
        if let Some(lost) = asked.get_mut(host) {
            let again = bytes.min(*lost);
            *lost -= again;
            new -= again;
        }
        drop(asked);
        (self.moved)(host, from, new);
    }

    fn lost(&self, host: &str, bytes: u64) {
        let mut asked = lock(&self.asked);
        *asked.entry(host.to_owned()).or_default() += bytes;
    }

    fn checkout(&self, host: &str, _tree: &str) {
        (self.moved)(host, Origin::Itself, 0);
    }

    fn unpacked(&self, host: &str, _bytes: u64) {
        (self.moved)(host, Origin::Itself, 0);
    }

    fn ended(&self, _host: &str, _well: bool) {}
}
