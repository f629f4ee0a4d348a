//! Hooks of images: files `hooks/<moment>.d/*`. Which an image has, and how one runs.
//!
//! Each hook is a separate step. Exit codes: 0 done, 10 already done, 20 not now; all others are
//! failures. Hook names and variable values reach the shell only as variables.
//!
//! Must not know when the moments are.

use std::{collections::BTreeMap, time::Duration};

use imgctl_base::error::{Error, Kind, Result};
use imgctl_layer::{EntryKind, LayerPath, Tree};
use imgctl_model::variables::Variables;
use imgctl_runtime::Action;
use imgctl_runtime::action::{Line, Site};

/// Timeout of hooks without `--timeout`.
const LIMIT: Duration = Duration::from_secs(30 * 60);
/// Number of attempts for a hook that answers "not now", and the pause between them.
const TRIES: u32 = 3;
const PAUSE: Duration = Duration::from_secs(5);

const WAS_DONE: i32 = 10;
const NOT_NOW: i32 = 20;

/// Names of hooks by moment, sorted bytewise.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OfMoments(BTreeMap<String, Vec<String>>);

impl OfMoments {
    /// Finds the hooks of `moments` in the files of images.
    ///
    /// # Errors
    /// If a name cannot be printed in a log line.
    pub fn in_tree(tree: &Tree, moments: &[&str]) -> Result<Self> {
        let mut found = Self::default();
        for moment in moments {
            let directory = LayerPath::parse(format!("hooks/{moment}.d").as_bytes())?;
            let Ok(directory) = tree.resolve(&directory) else {
                continue;
            };
            let mut names = Vec::new();
            for (name, _) in tree.children(&directory) {
                // Skips hidden files, like `*` in a shell.
                if name.starts_with(b".") || !is_hook(tree, &directory, name)? {
                    continue;
                }
                names.push(readable(moment, name)?);
            }
            found.insert(moment, names);
        }
        Ok(found)
    }

    pub(crate) fn insert(&mut self, moment: &str, names: Vec<String>) {
        if !names.is_empty() {
            self.0.insert(moment.to_owned(), names);
        }
    }

    /// Returns the hooks of a moment, in the order in which they run.
    pub fn names(&self, moment: &str) -> &[String] {
        self.0.get(moment).map_or(&[], Vec::as_slice)
    }
}

/// Returns whether the path is a file or a link. The host resolves links, and refuses those that
/// lead out of the image.
///
/// # Errors
/// If the path is not one of a layer.
pub fn is_hook(tree: &Tree, directory: &LayerPath, name: &[u8]) -> Result<bool> {
    let mut path = directory.as_bytes().to_vec();
    path.push(b'/');
    path.extend_from_slice(name);
    let Some(found) = tree.lookup(&LayerPath::parse(&path)?) else {
        return Ok(false);
    };
    let kind = &found.entry().kind;
    Ok(matches!(kind, EntryKind::File { .. } | EntryKind::Symlink { .. }))
}

/// Returns the name of a hook as text.
pub(crate) fn readable(moment: &str, name: &[u8]) -> Result<String> {
    let text = std::str::from_utf8(name).ok();
    text.filter(|text| !text.chars().any(char::is_control)).map(str::to_owned).ok_or_else(|| {
        Error::bad_content(format!(
            "the image has a hook in hooks/{moment}.d whose name is not valid text: {:?}",
            String::from_utf8_lossy(name)
        ))
        .hint("rename it and rebuild the image")
    })
}

/// Returns the hooks `names` of one moment (`pre-node`) as steps of a host, in their order. `environment` names
/// the tree and the moment.
pub fn actions(moment: &str, names: &[String], environment: &Variables) -> Vec<Action> {
    let one = |name: &String| {
        let mut environment = environment.clone();
        let own =
            [("IMGCTL_HOOK", name.as_str()), ("IMGCTL_ATTEMPT", "1"), ("IMGCTL_DRY_RUN", "false")];
        environment.extend(own.map(|(name, value)| (name.to_owned(), value.to_owned())));
        let script = Line::script(&[include_str!("scripts/run-hook.sh")]);
        let line = Line { environment, again: false, ..script };
        let called = format!("hook {moment}.d/{name}");
        let says = format!("run {called}");
        let inputs = line.environment.identity();
        let id = format!("{moment}-{}", slug(name));
        Action::depending_on(&id, says, &inputs, move |site| ask(site, &line, &called))
    };
    names.iter().map(one).collect()
}

/// Runs a hook, and retries it a few times with a pause while it answers "not now".
fn ask(site: &Site<'_>, line: &Line, called: &str) -> Result<()> {
    let site = &Site { timeout: site.timeout.or(Some(LIMIT)), ..*site };
    let mut line = line.clone();
    for number in 1..=TRIES {
        let attempt = site.attempt.saturating_sub(1) * TRIES + number;
        line.environment.insert("IMGCTL_ATTEMPT".to_owned(), attempt.to_string());
        let suffix = match number {
            1 => String::new(),
            more => format!("-try{more}"),
        };
        let (outcome, tail, _) = site.try_on(site.agent, &line, &suffix)?;
        let how = match (outcome.code, outcome.reason) {
            (Some(0), None) => return Ok(()),
            (Some(WAS_DONE), None) => {
                site.say(&format!("{called}: already done"));
                return Ok(());
            }
            (Some(NOT_NOW), None) if number < TRIES => {
                site.say(&format!("{called}: not now; retrying in {} s", PAUSE.as_secs()));
                std::thread::sleep(PAUSE);
                continue;
            }
            (Some(NOT_NOW), None) => {
                format!("said \"not now\" (exit code {NOT_NOW}) {TRIES} times")
            }
            (_, Some(reason)) => format!("failed: {reason}"),
            (Some(code), None) => format!("failed: exit code {code}"),
            (None, None) => "failed: no exit code".to_owned(),
        };
        let message = format!("{}: {called} {how}", site.agent.host());
        let error = Error::new(Kind::CommandFailed, message)
            .lines(tail.iter().map(|text| format!("    {text}")));
        return Err(error.hint(format!(
            "the whole output is in {} on {}",
            outcome.log,
            site.agent.host()
        )));
    }
    Ok(())
}

/// Converts a hook's name to a part of a step name.
pub fn slug(name: &str) -> String {
    let fits = |letter: char| match letter {
        'a'..='z' | '0'..='9' => letter,
        'A'..='Z' => letter.to_ascii_lowercase(),
        _ => '-',
    };
    let text: String = name.chars().take(40).map(fits).collect();
    text.trim_matches('-').to_owned()
}
