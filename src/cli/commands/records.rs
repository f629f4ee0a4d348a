//! What this machine knows of a cluster: `imgctl journal`, and the variables of `imgctl env`.

use std::time::Duration;

use clap::Args;
use jiff::Timestamp;
use serde_json::{Map, Value, json};

use imgctl_base::error::{Error, Result};
use imgctl_frontend::cluster_options::{ClusterArg, data_root, runtime_root};
use imgctl_frontend::context::Context;
use imgctl_journal::{Past, past};
use imgctl_model::{
    clusterfile::is_confidential, context::ClusterContext, desired, image::ClusterImage,
};
use imgctl_ui::table::{Table, counted, one_line};
use imgctl_workflow::pipeline::step::journals;

/// Show the recorded runs of a cluster, or the steps of one run
#[derive(Args, Debug)]
#[command(after_help = "To resume an unfinished run, run the same command again.

Examples:
  imgctl journal
  imgctl journal 20260102T030405.678Z-run-1a2b3c4d
  imgctl journal last --cluster etcd --failed")]
pub(crate) struct JournalArgs {
    /// Run whose steps to show; `last` is the newest
    #[arg(value_name = "RUN")]
    run: Option<String>,

    #[command(flatten)]
    cluster: ClusterArg,

    /// Show only steps that did not succeed
    #[arg(long)]
    failed: bool,
}

pub(crate) fn journal(args: &JournalArgs, context: &Context) -> Result<()> {
    let cluster = args.cluster.name(context)?;
    let session = context.plain_session()?;
    let directory = journals(session.state(&cluster)?.directory());
    let names = past::list(&directory)?;
    match args.run.as_deref() {
        None => {
            if names.is_empty() {
                context.ui.note(&format!(
                    "cluster {cluster} has no runs; `imgctl clusters` lists clusters"
                ));
            }
            all(&names, &directory, context)
        }
        Some(wanted) => {
            let found = match wanted {
                "last" => names.first(),
                wanted => names.iter().find(|name| name.as_str() == wanted),
            };
            let Some(found) = found else {
                if names.is_empty() {
                    return Err(Error::not_found(format!("cluster {cluster} has no runs"))
                        .hint("`imgctl clusters` lists clusters; name one with --cluster"));
                }
                return Err(Error::not_found(format!("cluster {cluster} has no run `{wanted}`"))
                    .hint(format!("run `imgctl journal --cluster {cluster}` to list runs")));
            };
            one(&Past::read(&past::path_of(&directory, found))?, args.failed, context)
        }
    }
}

fn all(names: &[String], directory: &std::path::Path, context: &Context) -> Result<()> {
    let runs = names
        .iter()
        .map(|name| Past::read(&past::path_of(directory, name)))
        .collect::<Result<Vec<_>>>()?;
    if context.ui.is_json() {
        let list: Vec<Value> = runs.iter().map(head).collect();
        return context.ui.json(&list);
    }
    let mut table = Table::new(&["RUN", "VERB", "STEPS", "RESULT", "LAST"]).right(2);
    for run in &runs {
        table.row(vec![
            run.id.clone(),
            run.verb.clone(),
            run.steps.len().to_string(),
            result(run).to_owned(),
            shown(run.last),
        ]);
    }
    context.ui.print(&table.render(true))
}

fn one(run: &Past, failed: bool, context: &Context) -> Result<()> {
    let steps: Vec<(&String, &imgctl_journal::PastStep)> = run
        .order
        .iter()
        .filter_map(|id| Some((id, run.steps.get(id)?)))
        .filter(|(_, step)| {
            use imgctl_journal::event::Outcome::{Assumed, Done};
            !failed || !matches!(step.outcome, Some(Done | Assumed))
        })
        .collect();
    if context.ui.is_json() {
        let mut value = head(run);
        value["list"] = steps
            .iter()
            .map(|(id, step)| {
                json!({
                    "id": id,
                    "outcome": step.outcome,
                    "attempt": step.attempt,
                    "duration_ms": step.duration_ms,
                    "log": step.log,
                    "message": step.message,
                })
            })
            .collect();
        return context.ui.json(&value);
    }
    context.ui.line(&format!(
        "{} {}: {} (begun {}, {}, by {} with imgctl {})",
        run.verb,
        run.cluster,
        result(run),
        shown(run.started),
        counted(run.runs, "attempt"),
        run.controller,
        run.version
    ))?;
    if !run.arguments.is_empty() {
        context.ui.line(&format!("imgctl {}", run.arguments.join(" ")))?;
    }
    let mut table = Table::new(&["STEP", "RESULT", "TRY", "TIME"]).right(2).right(3);
    for (id, step) in &steps {
        let outcome = step.outcome.map_or("begun", |outcome| outcome.word());
        table.row(vec![
            (*id).clone(),
            outcome.to_owned(),
            step.attempt.to_string(),
            format!("{:.1} s", Duration::from_millis(step.duration_ms).as_secs_f64()),
        ]);
    }
    context.ui.print(&table.render(true))?;
    for (id, step) in &steps {
        if let Some(message) = &step.message {
            let mut lines = message.lines();
            context.ui.line("")?;
            context.ui.line(&format!("{id}: {}", lines.next().unwrap_or_default()))?;
            lines.try_for_each(|line| context.ui.line(&format!("  {line}")))?;
            if let Some(log) = &step.log {
                context.ui.line(&format!("  log: {log}"))?;
            }
        }
    }
    Ok(())
}

fn result(run: &Past) -> &'static str {
    run.finished.map_or("not finished", |outcome| outcome.word())
}

fn shown(time: Option<Timestamp>) -> String {
    time.map_or_else(|| "-".to_owned(), |time| time.strftime("%Y-%m-%d %H:%M:%S").to_string())
}

fn head(run: &Past) -> Value {
    json!({
        "id": run.id,
        "verb": run.verb,
        "cluster": run.cluster,
        "arguments": run.arguments,
        "started": run.started,
        "last": run.last,
        "runs": run.runs,
        "outcome": run.finished,
        "steps": run.steps.len(),
        "controller": run.controller,
        "version": run.version,
    })
}

/// Show system settings, or the variables of a cluster's hosts and their origins
#[derive(Args, Debug)]
#[command(
    after_help = "Hides the values of variables whose names suggest secrets, unless --show-secrets is given.

Examples:
  imgctl env
  imgctl env --cluster default --host 10.0.0.2 --image labring/kubernetes:v1.29.9"
)]
pub(crate) struct EnvArgs {
    /// Cluster whose host variables to show
    #[arg(short, long, value_name = "NAME")]
    cluster: Option<String>,

    /// Hosts, separated by commas [default: all]
    #[arg(long, value_name = "LIST", requires = "cluster")]
    host: Option<String>,

    /// Show what scripts and commands of this image see [default: the rootfs]
    #[arg(long, value_name = "IMAGE", requires = "cluster")]
    image: Option<String>,

    /// Also show secrets
    #[arg(long, requires = "cluster")]
    show_secrets: bool,
}

/// Placeholder for a secret.
const HIDDEN: &str = "***";

pub(crate) fn env(args: &EnvArgs, context: &Context) -> Result<()> {
    match &args.cluster {
        None => settings(context),
        Some(cluster) => variables(args, cluster, context),
    }
}

/// Name, default and purpose of each setting; `None` means that the default is computed.
const SETTINGS: [(&str, Option<&str>, &str); 17] = [
    ("SEALOS_RUNTIME_ROOT", None, "state of clusters on this machine"),
    ("SEALOS_DATA_ROOT", None, "data of clusters on their hosts"),
    ("SEALOS_PROMPT", Some("enabled"), "`disabled`: every question is answered with yes"),
    ("SEALOS_SYNC_WORKDIR", Some("true"), "copy the state to the control planes"),
    ("SEALOS_EXECUTION_TIMEOUT", Some("0"), "time a step may take; 0: no limit"),
    ("SEALOS_MAX_RETRY", Some("5"), "retries after a lost connection"),
    ("IMGCTL_ROOT", None, "images, mounts and caches"),
    ("IMGCTL_AGENT", Some(""), "agent binary to put on hosts"),
    ("IMGCTL_AGENT_DIR", Some(""), "agent binaries by architecture"),
    ("IMGCTL_CLUSTER", Some(""), "cluster that commands mean without --cluster"),
    ("IMGCTL_JSON", Some("false"), "print JSON"),
    ("IMGCTL_LOG_LEVEL", Some("warn"), "how much to log"),
    ("IMGCTL_PROGRESS", Some("auto"), "how to show progress"),
    ("IMGCTL_STATE_IDENTITY", Some(""), "file with the identity that decrypts clusters' state"),
    ("IMGCTL_YES", Some("false"), "answer every question with yes"),
    ("IMGCTL_NO_SYNC", Some("false"), "do not sync to disk"),
    ("REGISTRY_AUTH_FILE", Some(""), "file of registry credentials"),
];

fn settings(context: &Context) -> Result<()> {
    let environment = &context.environment;
    let mut table = Table::new(&["NAME", "VALUE", "FROM", "MEANING"]);
    let mut objects = Vec::new();
    for (name, default, meaning) in SETTINGS {
        let set = environment.text(name)?;
        let value = match (name, set, default) {
            ("SEALOS_RUNTIME_ROOT", ..) => runtime_root(environment)?.display().to_string(),
            ("SEALOS_DATA_ROOT", ..) => data_root(environment)?,
            ("IMGCTL_ROOT", ..) => context.settings.root.display().to_string(),
            (_, Some(set), _) => set.to_owned(),
            (_, None, default) => default.unwrap_or_default().to_owned(),
        };
        let from = match set {
            Some(_) => "environment",
            None => "default",
        };
        objects.push(json!({"name": name, "value": value, "from": from, "meaning": meaning}));
        table.row(vec![name.to_owned(), one_line(&value), from.to_owned(), meaning.to_owned()]);
    }
    if context.ui.is_json() {
        context.ui.json(&objects)
    } else {
        context.ui.print(&table.render(true))
    }
}

fn variables(args: &EnvArgs, cluster: &str, context: &Context) -> Result<()> {
    let session = context.plain_session()?;
    let (clusterfile, notes) = session.state(cluster)?.require()?;
    context.ui.notes(&notes);
    // Images as recorded when they were installed; the store may no longer have them.
    let mounts = &clusterfile.cluster.status.mounts;
    let images: Vec<ClusterImage> =
        mounts.iter().map(imgctl_model::clusterfile::Mount::image).collect();
    let cluster = session.cluster_context(&clusterfile, images)?;
    let hosts = match &args.host {
        Some(list) => {
            session.with_surroundings(|around| desired::choose(&clusterfile, list, around))?
        }
        None => cluster.hosts.clone(),
    };
    let image = match &args.image {
        None => cluster.rootfs(),
        Some(name) => {
            let found = cluster.images.iter().find(|image| image.name == *name);
            Some(found.ok_or_else(|| not_installed(name, &cluster))?)
        }
    };
    let described: Vec<String> =
        cluster.images.iter().flat_map(ClusterImage::secret_variables).collect();
    let mut table = Table::new(&["HOST", "NAME", "FROM", "VALUE"]);
    let mut objects = Vec::new();
    for host in &hosts {
        let mut members = Map::new();
        for (name, variable) in cluster.variables_on(host, image, None) {
            let is_secret = is_confidential(&name) || described.contains(&name);
            let hide = !args.show_secrets && is_secret && !variable.value.is_empty();
            let value = if hide { HIDDEN } else { &variable.value };
            let from = variable.origin.as_str();
            table.row(vec![host.id(), name.clone(), from.to_owned(), one_line(value)]);
            members.insert(name, json!({"value": value, "from": from}));
        }
        objects.push(json!({
            "host": host.id(),
            "image": image.map(|image| &image.name),
            "variables": Value::Object(members),
        }));
    }
    if context.ui.is_json() {
        context.ui.json(&objects)
    } else {
        context.ui.print(&table.render(true))
    }
}

fn not_installed(name: &str, cluster: &ClusterContext) -> Error {
    let names: Vec<&str> = cluster.images.iter().map(|image| &*image.name).collect();
    let error = Error::not_found(format!("cluster `{}` has no image {name}", cluster.name));
    if names.is_empty() {
        error.hint("nothing has been installed on it yet")
    } else {
        error.hint(format!("it has {}", names.join(", ")))
    }
}
