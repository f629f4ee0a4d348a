//! `imgctl build --call`: questions about a Kubefile, with the answers of `docker build --call`.

use serde_json::{Map, Value, json};

use crate::cli::context::Context;
use crate::ui::table::Table;
use imgctl_base::error::{Error, Result};
use imgctl_build::build::Options;
use imgctl_build::build::outline::{self, Need, Outline, Target};

/// What is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    Build,
    Check,
    Targets,
    Outline,
}

impl Call {
    /// Parses `METHOD[,format=text|json]`; also returns whether JSON is wanted.
    pub(crate) fn parse(text: &str) -> Result<(Self, bool)> {
        let mut parts = text.split(',');
        let call = match parts.next().unwrap_or_default() {
            "build" => Self::Build,
            "check" | "lint" => Self::Check,
            "targets" => Self::Targets,
            "outline" => Self::Outline,
            other => {
                return Err(Error::usage(format!("there is no --call `{other}`"))
                    .hint("--call takes build, check, outline or targets"));
            }
        };
        let mut is_json = false;
        for part in parts {
            is_json = match part {
                "format=json" => true,
                "format=text" => false,
                _ => {
                    return Err(Error::usage(format!(
                        "--call {text} has an unknown option `{part}`"
                    ))
                    .hint("the option is format=json"));
                }
            };
        }
        Ok((call, is_json))
    }
}

/// Shows the stages that can be built.
pub(crate) fn targets(options: &Options, is_json: bool, context: &Context) -> Result<()> {
    let targets = outline::targets(context.store()?, options)?;
    if is_json || context.ui.is_json() {
        let list: Vec<Value> = targets.iter().map(target_json).collect();
        return context.ui.json(&json!({ "targets": list }));
    }
    let mut table = Table::new(&["TARGET", "DESCRIPTION"]);
    for target in targets {
        let name = match (target.name, target.is_default) {
            (Some(name), true) => format!("{name} (default)"),
            (Some(name), false) => name,
            (None, true) => "(default)".to_owned(),
            (None, false) => continue,
        };
        table.row(vec![name, target.description.unwrap_or_default()]);
    }
    context.ui.print(&table.render(true))
}

fn target_json(target: &Target) -> Value {
    let mut json = described(target.name.as_ref(), target.description.as_ref(), target.line);
    if target.is_default {
        json.insert("default".to_owned(), true.into());
    }
    json.insert("base".to_owned(), target.base.clone().into());
    if let Some(platform) = &target.platform {
        json.insert("platform".to_owned(), platform.clone().into());
    }
    json.into()
}

/// Shows what the target takes.
pub(crate) fn outline(options: &Options, is_json: bool, context: &Context) -> Result<()> {
    let outline = outline::outline(context.store()?, options)?;
    if is_json || context.ui.is_json() {
        return context.ui.json(&outline_json(&outline));
    }
    let mut head = Table::new(&["", ""]);
    let name = outline.name.clone().unwrap_or_else(|| "(default)".to_owned());
    head.row(vec!["TARGET:".to_owned(), name]);
    if let Some(text) = &outline.description {
        head.row(vec!["DESCRIPTION:".to_owned(), text.clone()]);
    }
    context.ui.print(&head.render(false))?;
    if !outline.arguments.is_empty() {
        let mut table = Table::new(&["BUILD ARG", "VALUE", "DESCRIPTION"]);
        for (name, argument) in &outline.arguments {
            let texts = [&argument.value, &argument.description].map(Clone::clone);
            table.row([vec![name.clone()], texts.map(Option::unwrap_or_default).to_vec()].concat());
        }
        context.ui.line("")?;
        context.ui.print(&table.render(true))?;
    }
    for (heading, needs) in [("SECRET", &outline.secrets), ("SSH", &outline.agents)] {
        if !needs.is_empty() {
            let mut table = Table::new(&[heading, "REQUIRED"]);
            for (id, need) in needs {
                let required = if need.is_required { "true" } else { "" };
                table.row(vec![id.clone(), required.to_owned()]);
            }
            context.ui.line("")?;
            context.ui.print(&table.render(true))?;
        }
    }
    Ok(())
}

fn outline_json(outline: &Outline) -> Value {
    let arguments: Vec<Value> = outline
        .arguments
        .iter()
        .map(|(name, argument)| {
            let mut json = described(Some(name), argument.description.as_ref(), argument.line);
            if let Some(value) = &argument.value {
                json.insert("value".to_owned(), value.clone().into());
            }
            json.into()
        })
        .collect();
    let needs = |(id, need): (&String, &Need)| -> Value {
        let mut json = described(Some(id), None, need.line);
        if need.is_required {
            json.insert("required".to_owned(), true.into());
        }
        json.into()
    };
    let mut json = Map::new();
    for (key, text) in [("name", &outline.name), ("description", &outline.description)] {
        if let Some(text) = text {
            json.insert(key.to_owned(), text.clone().into());
        }
    }
    json.insert("args".to_owned(), arguments.into());
    json.insert("secrets".to_owned(), outline.secrets.iter().map(needs).collect());
    json.insert("ssh".to_owned(), outline.agents.iter().map(needs).collect());
    json.into()
}

/// The members that all definitions have, with BuildKit's form of a place.
fn described(
    name: Option<&String>,
    description: Option<&String>,
    line: usize,
) -> Map<String, Value> {
    let mut json = Map::new();
    for (key, text) in [("name", name), ("description", description)] {
        if let Some(text) = text {
            json.insert(key.to_owned(), text.clone().into());
        }
    }
    let place = json!({ "line": line });
    json.insert("location".to_owned(), json!({ "ranges": [{ "start": place, "end": place }] }));
    json
}
