//! Renders a loaded chart with values: which templates exist, what data each of them sees, and the
//! order in which they are parsed and run.

use std::collections::BTreeMap;
use std::rc::Rc;

use serde_json::{Map, Value as Json};

use super::objects::Files;
use super::{Chart, RenderOptions, Rendered, coalesce, objects, schema};
use imgctl_base::error::{Error, Result};
use imgctl_base::semver::{self, Version};
use imgctl_template::value::Numbers;
use imgctl_template::{CHART_STACK, Engine, Value};

/// Maximum total size of the rendered text, in bytes.
const MOST_RENDERED: usize = 64 << 20;

/// Checks the path and the text of a rendered template.
pub(super) type Check = fn(&str, &str) -> Result<()>;

/// Renders on a separate thread whose stack is large enough for deeply nested templates.
pub(super) fn render(
    chart: &Chart,
    values: &[Json],
    options: &RenderOptions,
    check: Check,
) -> Result<Vec<Rendered>> {
    let run = || rendered(chart, values, options, check);
    let doing = || format!("cannot render the chart {}", chart.name());
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new()
            .name("chart".to_owned())
            .stack_size(CHART_STACK)
            .spawn_scoped(scope, run)
            .map_err(|error| Error::io(doing(), error))?;
        thread
            .join()
            .unwrap_or_else(|_| Err(Error::failed("the renderer stopped unexpectedly")))
            .map_err(|error| error.context(doing()))
    })
}

fn rendered(
    chart: &Chart,
    values: &[Json],
    options: &RenderOptions,
    check: Check,
) -> Result<Vec<Rendered>> {
    is_fit(chart, options)?;
    let mut given = Map::new();
    for values in values {
        match values {
            Json::Object(table) => coalesce::overlay(&mut given, table),
            Json::Null => {}
            _ => return Err(Error::usage("the chart's values are not a table")),
        }
    }
    let mut chart = chart.clone();
    coalesce::process(&mut chart, &given)?;
    let values = coalesce::chart_values(&chart, &given, coalesce::Nulls::Drop)?;
    schema::check(&chart, &values)?;
    let mut all = Vec::new();
    crds(&chart, chart.name(), &mut all);

    let shared =
        Shared { release: objects::release(options), capabilities: objects::capabilities(options) };
    let values = Value::from_json(&Json::Object(values), Numbers::Floats);
    let mut templates = BTreeMap::new();
    shared.collect(&chart, chart.name(), &values, true, &mut templates);
    run(&templates, &mut all, check)?;
    Ok(all)
}

/// Checks what Helm rejects before it reads any template.
fn is_fit(chart: &Chart, options: &RenderOptions) -> Result<()> {
    if chart.metadata.is_library() {
        return Err(Error::usage(format!(
            "{} is a library chart: it has nothing to install",
            chart.name()
        )));
    }
    let wanted = &chart.metadata.kube_version;
    if !wanted.is_empty() {
        let fits = Version::parse(&options.kubernetes)
            .and_then(|version| semver::satisfies(wanted, &version))
            .unwrap_or(false);
        if !fits {
            return Err(Error::usage(format!(
                "the chart needs Kubernetes {wanted}, but it is rendered for {}",
                options.kubernetes
            ))
            .hint("set the version of Kubernetes that the chart is rendered for"));
        }
    }
    coalesce::check(chart)
}

/// What becomes of a template.
#[derive(PartialEq)]
enum Output {
    /// It is only parsed: helpers.
    None,
    /// It runs, as it may fail, and its text is dropped: `NOTES.txt`.
    Dropped,
    Manifests,
}

/// A template and its dot.
struct Item {
    text: String,
    data: Value,
    base: String,
    output: Output,
}

/// Values that are the same for all charts.
struct Shared {
    release: Value,
    capabilities: Value,
}

impl Shared {
    /// Collects the templates of `chart` and its dependencies; returns the chart's dot. Recursion:
    /// charts nest at most [`super::MOST_NESTED`] deep.
    fn collect(
        &self,
        chart: &Chart,
        path: &str,
        values: &Value,
        is_root: bool,
        templates: &mut BTreeMap<String, Item>,
    ) -> Value {
        let files = chart.files.iter();
        let files = files.map(|(path, content)| (path.clone(), Rc::from(content.as_slice())));
        let subcharts = Value::map::<&str>([]);
        let dot = Value::map([
            ("Chart", objects::chart(chart, is_root)),
            ("Files", Value::object(Files(files.collect()))),
            ("Release", self.release.clone()),
            ("Capabilities", self.capabilities.clone()),
            ("Values", values.clone().into_values()),
            ("Subcharts", subcharts.clone()),
        ]);
        for dependency in &chart.dependencies {
            let name = dependency.name();
            let below = match values {
                Value::Map(values) => values.get(name),
                _ => None,
            };
            let below = match below {
                Some(table @ Value::Map(_)) => table,
                _ => Value::map::<&str>([]),
            };
            let path = format!("{path}/charts/{name}");
            let dot = self.collect(dependency, &path, &below, false, templates);
            if let Value::Map(subcharts) = &subcharts {
                subcharts.set(name, dot);
            }
        }
        for (name, text) in chart.templates.iter() {
            let base = name.rsplit('/').next().unwrap_or(name);
            let partial = base.starts_with('_');
            if chart.metadata.is_library() && !partial {
                continue;
            }
            let item = Item {
                text: text.clone(),
                data: dot.clone().into_values(),
                base: format!("{path}/templates"),
                output: if partial {
                    Output::None
                } else if name.ends_with("NOTES.txt") {
                    Output::Dropped
                } else {
                    Output::Manifests
                },
            };
            templates.insert(format!("{path}/{name}"), item);
        }
        dot
    }
}

/// Parses all templates, then runs those that produce output.
fn run(templates: &BTreeMap<String, Item>, all: &mut Vec<Rendered>, check: Check) -> Result<()> {
    // Dependencies come first, so that the definitions of a parent chart override theirs.
    let mut order: Vec<&String> = templates.keys().collect();
    order.sort_by_key(|name| std::cmp::Reverse((name.matches('/').count(), *name)));
    let mut engine = Engine::chart();
    for name in &order {
        if let Some(item) = templates.get(*name) {
            engine.add(name, &item.text)?;
        }
    }
    let mut size = 0_usize;
    let mut texts = Vec::new();
    for name in order {
        let Some(item) = templates.get(name).filter(|item| item.output != Output::None) else {
            continue;
        };
        if let Value::Map(dot) = &item.data {
            dot.set(
                "Template",
                Value::map([("Name", Value::text(name)), ("BasePath", Value::text(&item.base))])
                    .into_values(),
            );
        }
        let text = engine.render(name, &item.data)?;
        if item.output == Output::Dropped {
            continue;
        }
        let text = parted(text);
        size = size.saturating_add(text.len());
        if size > MOST_RENDERED {
            return Err(Error::bad_content(format!(
                "the chart renders to more than {} MiB",
                MOST_RENDERED >> 20
            )));
        }
        if !text.trim().is_empty() {
            check(name, &text)?;
            texts.push(Rendered { path: name.clone(), text });
        }
    }
    let (bytes, steps) = engine.spent();
    tracing::debug!(bytes, steps, "a chart is rendered");
    texts.sort_by(|a, b| a.path.cmp(&b.path));
    all.append(&mut texts);
    Ok(())
}

/// Helm splits documents at `---` regardless of what follows on the line; YAML requires a space or
/// the end of the line.
fn parted(text: String) -> String {
    let glued = |line: &str| {
        let rest = line.strip_prefix("---");
        rest.is_some_and(|rest| rest.starts_with(|c: char| c != '-' && !c.is_whitespace()))
    };
    if !text.lines().any(glued) {
        return text;
    }
    let mut out = String::with_capacity(text.len() + 8);
    for line in text.split_inclusive('\n') {
        if glued(line) {
            out.push_str("---\n");
            out.push_str(&line[3..]);
        } else {
            out.push_str(line);
        }
    }
    out
}

/// Adds the files under `crds/`, a chart's own before those of its dependencies.
fn crds(chart: &Chart, path: &str, all: &mut Vec<Rendered>) {
    for (name, content) in chart.files.iter() {
        let manifest = [".yaml", ".yml", ".json"].iter().any(|end| name.ends_with(end));
        let text = String::from_utf8_lossy(content);
        if name.starts_with("crds/") && manifest && !text.trim().is_empty() {
            all.push(Rendered { path: format!("{path}/{name}"), text: text.into_owned() });
        }
    }
    for dependency in &chart.dependencies {
        let path = format!("{path}/charts/{}", dependency.name());
        crds(dependency, &path, all);
    }
}
