//! `imgctl build --call`: questions about a Kubefile, with the answers of `docker build --call`.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};

use crate::cli::commands::build_embedding;
use imgctl_base::error::{Error, Result};
use imgctl_base::progress::Reporter;
use imgctl_build::build::outline::{self, Answer, Lines, Need, Outline, Target};
use imgctl_build::build::{Checked, Options, embedding};
use imgctl_frontend::context::Context;
use imgctl_ui::table::Table;

/// What is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Method {
    Build,
    Check,
    Targets,
    Outline,
}

/// The value of `--call`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Call {
    pub(crate) method: Method,
    /// Whether the answer is JSON in BuildKit's form.
    pub(crate) is_json: bool,
    /// Whether findings of a check do not matter to the exit code.
    pub(crate) ignores_status: bool,
}

impl Call {
    /// Parses `METHOD[,format=text|json][,ignorestatus=true|false]`, in any order.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let wrong = |what: &str, hint: &str| {
            Err(Error::usage(format!("--call `{text}`: {what}")).hint(hint.to_owned()))
        };
        let methods = "--call takes build, check, outline or targets";
        let mut call = Self { method: Method::Build, is_json: false, ignores_status: false };
        let mut is_named = false;
        for part in text.split(',') {
            match part.split_once('=') {
                Some(("format", "json")) => call.is_json = true,
                Some(("format", "text")) => call.is_json = false,
                Some(("ignorestatus", "true" | "1")) => call.ignores_status = true,
                Some(("ignorestatus", "false" | "0")) => call.ignores_status = false,
                Some(_) => {
                    let what = format!("there is no option `{part}`");
                    return wrong(&what, "the options are format=json and ignorestatus=true");
                }
                None if is_named => return wrong("it has two methods", methods),
                None => {
                    is_named = true;
                    call.method = match part {
                        "" | "build" => Method::Build,
                        "check" | "lint" => Method::Check,
                        "targets" => Method::Targets,
                        "outline" => Method::Outline,
                        _ => return wrong(&format!("there is no method `{part}`"), methods),
                    };
                }
            }
        }
        Ok(call)
    }
}

/// Shows the container images that a build would embed.
pub(crate) fn images(options: &Options, reporter: &dyn Reporter, context: &Context) -> Result<()> {
    let report = embedding::report(context.store()?, options, reporter)?;
    build_embedding::show(&report, context)
}

/// Shows the stages that can be built.
pub(crate) fn targets(options: &Options, is_json: bool, context: &Context) -> Result<()> {
    let Answer { answer: targets, text } = outline::targets(context.store()?, options)?;
    if is_json || context.ui.is_json() {
        let list: Vec<Value> = targets.iter().map(target_json).collect();
        return context.ui.json(&json!({ "targets": list, "sources": [STANDARD.encode(text)] }));
    }
    let mut table = Table::new(&["TARGET", "DESCRIPTION"]);
    for target in targets {
        let name = match (target.name, target.is_default) {
            (Some(name), true) => format!("{name} (default)"),
            (None, true) => "(default)".to_owned(),
            (name, false) => name.unwrap_or_default(),
        };
        table.row(vec![name, target.description.unwrap_or_default()]);
    }
    context.ui.print(&table.render(true))
}

fn target_json(target: &Target) -> Value {
    let mut json = Map::new();
    insert(&mut json, "name", target.name.as_ref());
    if target.is_default {
        json.insert("default".to_owned(), true.into());
    }
    insert(&mut json, "description", target.description.as_ref());
    json.insert("base".to_owned(), target.base.clone().into());
    insert(&mut json, "platform", target.platform.as_ref());
    json.insert("location".to_owned(), location(&target.lines));
    json.into()
}

/// Shows what the target takes.
pub(crate) fn outline(options: &Options, is_json: bool, context: &Context) -> Result<()> {
    let Answer { answer: outline, text } = outline::outline(context.store()?, options)?;
    if is_json || context.ui.is_json() {
        return context.ui.json(&outline_json(&outline, &text));
    }
    let mut tables = Vec::new();
    if outline.name.is_some() {
        let mut head = Table::new(&["", ""]);
        head.row(vec!["TARGET:".to_owned(), outline.name.unwrap_or_default()]);
        if let Some(text) = outline.description {
            head.row(vec!["DESCRIPTION:".to_owned(), text]);
        }
        tables.push(head.render(false));
    }
    if !outline.arguments.is_empty() {
        let mut table = Table::new(&["BUILD ARG", "VALUE", "DESCRIPTION"]);
        for argument in outline.arguments {
            let texts = [argument.value, argument.description].map(Option::unwrap_or_default);
            table.row([vec![argument.name], texts.to_vec()].concat());
        }
        tables.push(table.render(true));
    }
    for (heading, needs) in [("SECRET", outline.secrets), ("SSH", outline.agents)] {
        if !needs.is_empty() {
            let mut table = Table::new(&[heading, "REQUIRED"]);
            for need in needs {
                let required = if need.is_required { "true" } else { "" };
                table.row(vec![need.id, required.to_owned()]);
            }
            tables.push(table.render(true));
        }
    }
    for (index, table) in tables.iter().enumerate() {
        if index > 0 {
            context.ui.line("")?;
        }
        context.ui.print(table)?;
    }
    Ok(())
}

fn outline_json(outline: &Outline, text: &[u8]) -> Value {
    let needs = |needs: &[Need]| -> Vec<Value> {
        let need = |need: &Need| {
            let mut json = Map::from_iter([("name".to_owned(), need.id.clone().into())]);
            if need.is_required {
                json.insert("required".to_owned(), true.into());
            }
            json.insert("location".to_owned(), location(&need.lines));
            json.into()
        };
        needs.iter().map(need).collect()
    };
    let arguments = outline.arguments.iter().map(|argument| {
        let mut json = Map::from_iter([("name".to_owned(), argument.name.clone().into())]);
        insert(&mut json, "description", argument.description.as_ref());
        insert(&mut json, "value", argument.value.as_ref().filter(|value| !value.is_empty()));
        json.insert("location".to_owned(), location(&argument.lines));
        json.into()
    });
    let mut json = Map::new();
    insert(&mut json, "name", outline.name.as_ref());
    insert(&mut json, "description", outline.description.as_ref());
    let lists: [(&str, Vec<Value>); 3] = [
        ("args", arguments.collect()),
        ("secrets", needs(&outline.secrets)),
        ("ssh", needs(&outline.agents)),
    ];
    for (key, list) in lists.into_iter().filter(|(_, list)| !list.is_empty()) {
        json.insert(key.to_owned(), list.into());
    }
    json.insert("sources".to_owned(), json!([STANDARD.encode(text)]));
    json.into()
}

/// Shows the findings of a check in BuildKit's form; the first mistake is the `buildError`.
pub(crate) fn checked(checked: &Checked, context: &Context) -> Result<()> {
    let mut warnings = Vec::new();
    let mut error = None;
    for found in &checked.findings {
        let place = location(&(found.span.line..=found.span.end().0));
        let Some(name) = found.rule else {
            error = error.or_else(|| Some(json!({ "message": found.message, "location": place })));
            continue;
        };
        warnings.push(json!({
            "ruleName": name,
            "description": Checked::meaning_of(name),
            "detail": found.message,
            "location": place,
        }));
    }
    let source = json!({ "filename": checked.name, "language": "Dockerfile", "data": STANDARD.encode(&checked.text) });
    let mut json = json!({ "warnings": warnings, "sources": [source] });
    if let Some(error) = error {
        json["buildError"] = error;
    }
    context.ui.json(&json)
}

fn insert(json: &mut Map<String, Value>, key: &str, text: Option<&String>) {
    if let Some(text) = text {
        json.insert(key.to_owned(), text.clone().into());
    }
}

/// The lines of a definition in BuildKit's form.
fn location(lines: &Lines) -> Value {
    let range = |line: usize| json!({ "start": { "line": line }, "end": { "line": line } });
    json!({ "ranges": lines.clone().map(range).collect::<Vec<Value>>() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_has_a_method_and_options_in_any_order() {
        for (text, method, is_json, ignores_status) in [
            ("check", Method::Check, false, false),
            ("lint,format=json", Method::Check, true, false),
            ("format=json,targets", Method::Targets, true, false),
            ("outline,format=text", Method::Outline, false, false),
            ("check,ignorestatus=true", Method::Check, false, true),
            ("build", Method::Build, false, false),
            // As docker has it.
            ("", Method::Build, false, false),
        ] {
            let expected = Call { method, is_json, ignores_status };
            assert_eq!(Call::parse(text).unwrap(), expected, "{text}");
        }
        for wrong in ["hop", "check,targets", "check,format=xml", "check,a=b"] {
            let told = Call::parse(wrong).unwrap_err();
            assert!(told.to_string().contains(wrong), "{told}");
        }
    }
}
