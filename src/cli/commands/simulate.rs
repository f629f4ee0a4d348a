//! `imgctl simulate` (hidden): plans and executes on simulated hosts.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Args;
use serde_json::json;

use imgctl_base::error::{IoContext, Result};
use imgctl_frontend::{context::Context, front_end};
use imgctl_journal::event::{Listener, NullListener};
use imgctl_journal::{interrupt::Interrupt, past};
use imgctl_model::redact::of_cluster;
use imgctl_ui::hosts_view::JsonEvents;
use imgctl_workflow::pipeline::executor::{Options, Surroundings, execute};
use imgctl_workflow::pipeline::step::{PlanView, journals};
use imgctl_workflow::pipeline::testing::{
    Behaviour, SimulatedFiles, Simulation, execution, hosts, sample_context, simulate_sync,
};
use imgctl_workflow::pipeline::{change, change::Change};

/// Number of layers of the image that is sent to all hosts, and the size of each in bytes.
const LAYERS: usize = 30;
const LAYER: u64 = 20 << 20;

/// Simulate the creation of a cluster, for benchmarks and crash tests
#[derive(Args, Debug)]
pub(crate) struct SimulateArgs {
    /// Directory for the state and for what hosts ran
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,

    /// Number of hosts
    #[arg(long, default_value_t = 10)]
    hosts: usize,

    /// Number of control planes among the hosts
    #[arg(long, default_value_t = 3)]
    masters: usize,

    /// Duration of each command, in milliseconds
    #[arg(long, default_value_t = 5)]
    takes: u64,

    /// Number of hosts to run in parallel
    #[arg(long, default_value_t = 32)]
    parallel: usize,

    /// Number of lines that each command prints
    #[arg(long, default_value_t = 3)]
    chatter: usize,

    /// Drop the connection of every Nth call
    #[arg(long, default_value_t = 0)]
    loses: u64,

    /// Kill this process with SIGKILL after this many records
    #[arg(long, value_name = "N")]
    die_after: Option<u64>,

    /// Keep what hosts ran on disk, so that it survives this process
    #[arg(long)]
    durable: bool,

    /// Ask a question when this many steps have ended
    #[arg(long, value_name = "N")]
    asks_after: Option<u64>,

    /// Print the events of the run
    #[arg(long)]
    events: bool,
}

pub(crate) fn run(args: &SimulateArgs, context: &Context) -> Result<()> {
    let state = args.dir.join("state");
    std::fs::create_dir_all(&state).path("create", &state)?;
    let simulation = Simulation::new(Behaviour {
        directory: args.durable.then(|| args.dir.join("hosts")),
        duration: Duration::from_millis(args.takes),
        loses_every: args.loses,
        chatter: args.chatter,
        lacks: 1 << 20,
        ..Behaviour::default()
    });
    let workers = args.hosts.saturating_sub(args.masters);
    let cluster = sample_context("simulated", hosts(args.masters, workers), &state);
    let started = Instant::now();
    let planned = change::plan(
        &execution(&simulation, &SimulatedFiles(Arc::clone(&simulation)), args.parallel),
        &cluster,
        &Change { verb: "run".to_owned(), create: true, ..Change::default() },
    )?;
    let planning = started.elapsed();
    let shown =
        serde_json::to_vec(&PlanView::of(&planned.plan, &|_| false)).map_or(0, |text| text.len());
    let interrupt = Interrupt::default();
    front_end::listen(&interrupt)?;
    let json = JsonEvents::default();
    let view = context.ui.run_view();
    let listener: &dyn Listener = match (&view, args.events) {
        (_, true) => &json,
        (Some(view), _) => &**view,
        (None, _) => &NullListener,
    };
    let asking = context.ui.asking(listener, args.asks_after);
    let redactor = of_cluster(&planned.context);
    let surroundings = Surroundings {
        context: &planned.context,
        pool: Arc::clone(&planned.pool),
        redactor: &redactor,
        listener: &asking,
        interrupt: &interrupt,
    };
    let options = Options {
        parallel: args.parallel,
        backoff: Duration::from_millis(10),
        sync: context.settings.sync,
        die_after: args.die_after,
        ..Options::default()
    };
    let started = Instant::now();
    let summary = execute(&planned.plan, &surroundings, &options)?;
    let executing = started.elapsed();
    let directory = journals(&state);
    let journal = past::path_of(&directory, &summary.journal);
    let size = std::fs::metadata(&journal).path("look at", &journal)?.len();
    if args.events {
        return Ok(());
    }
    let sync = simulate_sync(&cluster.hosts, LAYERS, LAYER)?;
    let result = json!({
        "hosts": args.hosts,
        "steps": planned.plan.steps().count(),
        "done": summary.done,
        "skipped": summary.skipped,
        "plan_ms": planning.as_millis(),
        "plan_bytes": shown,
        "execute_ms": executing.as_millis(),
        "journal_bytes": size,
        "sync_plan_ms": sync.planning.as_millis(),
        "sync_ms": sync.executing.as_millis(),
        "uplink_bytes": sync.uplink,
        "moved_bytes": sync.moved,
        "peak_kib": peak_kib(),
    });
    context.ui.json(&result)
}

/// Returns the peak memory of this process, in KiB.
fn peak_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let number = line.and_then(|line| line.split_whitespace().next());
    number.and_then(|number| number.parse().ok()).unwrap_or(0)
}
