//! `create`: mounts an image for writing under a generated name, renders its templates in place and
//! returns the script that running it would execute. This is the local half of running a cluster
//! image.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::path::Path;

use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;

use crate::mount::mounts::{self, Mounted};
use crate::mount::{Backend, workspace};
use crate::store::Store;
use crate::store::images::Image;
use imgctl_base::error::{Context, Error, IoContext, Kind, Result};
use imgctl_base::fs::metadata::FileKind;
use imgctl_base::fs::root::Root;
use imgctl_base::fs::walk::{self, Visit};
use imgctl_base::image::ContainerConfig;
use imgctl_base::progress::Reporter;
use imgctl_base::quote::quote;
use imgctl_template::{Dialect, Missing, Template};

/// Directories in which templates are rendered; elsewhere, `.tmpl` files are content.
const RENDERED: [&str; 3] = ["etc", "scripts", "manifests"];
const SUFFIX: &[u8] = b".tmpl";
/// Maximum size of a template, in bytes.
const MAX_TEMPLATE: u64 = 16 << 20;

/// Options for `create`.
#[derive(Clone, Debug)]
pub struct CreateOptions {
    /// The first part of the mount's name.
    pub cluster: String,
    /// Variables that override the image's own. If there are any, templates are rendered.
    pub environment: Vec<(String, String)>,
    /// Handling of variables that a template uses but that are missing.
    pub missing: Missing,
    /// As in [`mounts::Options`].
    pub backend: Option<Backend>,
}

/// A created mount.
#[derive(Clone, Debug)]
pub struct Created {
    pub mounted: Mounted,
    /// The shell script that runs the image at the mount; `None` if it has neither ENTRYPOINT nor
    /// CMD.
    pub script: Option<String>,
}

/// Mounts `image` for writing and renders its templates.
pub fn create(
    store: &Store,
    image: &Image,
    options: &CreateOptions,
    reporter: &dyn Reporter,
) -> Result<Created> {
    let random = workspace::random_hex();
    let mount_options = mounts::Options {
        name: Some(format!("{}-{}", options.cluster, &random[..8])),
        backend: options.backend,
        ..mounts::Options::default()
    };
    let mounted = mounts::mount(store, image, &mount_options, reporter)?;
    let config = &image.config.config;
    let environment = environment_of(config, &options.environment);
    if !options.environment.is_empty()
        && let Err(error) = render(&mounted.record.path, &environment, options.missing)
    {
        // A partially rendered mount is useless.
        let id = [mounted.record.id.clone()];
        if let Err(error) = crate::mount::umount(store, &id, true) {
            tracing::warn!(%error, "cannot clean up after a failed rendering");
        }
        return Err(error);
    }
    let commands = commands_of(config, &environment);
    let script =
        (!commands.is_empty()).then(|| script(&commands, &environment, &mounted.record.path));
    Ok(Created { mounted, script })
}

/// Renders every template of the image at `root`: `x.tmpl` creates or replaces `x` with the same
/// mode.
fn render(root: &Path, environment: &Environment, missing: Missing) -> Result<()> {
    let root = Root::open(root)?;
    for name in RENDERED {
        let directory = match root.open_directory(Path::new(name)) {
            Ok(directory) => Root::from_fd(directory, &root.path().join(name)),
            // A file of that name contains no templates.
            Err(error) if error.kind() == Kind::NotFound => continue,
            Err(error) => match root.metadata(Path::new(name)) {
                Ok(metadata) if !metadata.is_directory() => continue,
                _ => return Err(error),
            },
        };
        walk::walk(&directory, &mut |_, _| Visit::Keep, &mut |found| {
            let name = found.name().to_bytes();
            match name.strip_suffix(SUFFIX) {
                Some(output) if !output.is_empty() && found.metadata.kind == FileKind::File => {
                    render_one(&found, output, environment, missing)
                        .context(|| format!("cannot render {}", found.shown().display()))
                }
                _ => Ok(()),
            }
        })?;
    }
    Ok(())
}

fn render_one(
    found: &walk::Found<'_>,
    output: &[u8],
    environment: &Environment,
    missing: Missing,
) -> Result<()> {
    let mut text = String::new();
    let doing = || "cannot read it as text".to_owned();
    let length = found.open()?.take(MAX_TEMPLATE + 1).read_to_string(&mut text).doing(doing)?;
    if length as u64 > MAX_TEMPLATE {
        return Err(Error::bad_content(format!("it is longer than {MAX_TEMPLATE} bytes")));
    }
    let name = String::from_utf8_lossy(found.path);
    let template = Template::parse(&name, &text, Dialect::ClusterImage, missing)?;
    let rendered = template.render(environment)?;
    // Unlink first, so that nothing is written through a symlink or hard link of the old file.
    let directory = found.directory();
    match rustix::fs::unlinkat(directory, output, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => {}
        Err(errno) => return Err(Error::io("cannot replace the rendered file", errno)),
    }
    let file = rustix::fs::openat(
        directory,
        output,
        OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC,
        Mode::RUSR | Mode::WUSR,
    )
    .doing(|| "cannot create the rendered file".to_owned())?;
    let mut file = std::fs::File::from(file);
    file.write_all(rendered.as_bytes()).doing(|| "cannot write the rendered file".to_owned())?;
    rustix::fs::fchmod(&file, Mode::from_raw_mode(found.metadata.mode))
        .doing(|| "cannot set the rendered file's mode".to_owned())
}

/// Variables by name.
pub(super) type Environment = BTreeMap<String, String>;

/// Returns the image's `ENV` with `overrides` applied; an entry without `=` is an empty variable.
fn environment_of(config: &ContainerConfig, overrides: &[(String, String)]) -> Environment {
    let mut environment: Environment = config
        .env
        .iter()
        .map(|entry| {
            let (key, value) = entry.split_once('=').unwrap_or((entry, ""));
            (key.to_owned(), value.to_owned())
        })
        .collect();
    environment.extend(overrides.iter().cloned());
    environment
}

/// Returns the commands, each a separate shell command. `/bin/sh` and `-c` are dropped, so the
/// shell form is one command.
fn commands_of(config: &ContainerConfig, environment: &Environment) -> Vec<String> {
    let entrypoint = config.entrypoint.iter().flatten();
    entrypoint
        .chain(config.cmd.iter().flatten())
        .filter(|element| !matches!(element.as_str(), "/bin/sh" | "-c"))
        .map(|element| expand(element, environment))
        .collect()
}

/// Returns one script that has the same effect as running the image: it stops at the first command
/// that fails, and quotes values so that they are passed on unchanged.
fn script(commands: &[String], environment: &Environment, directory: &Path) -> String {
    let mut parts = vec!["set -e".to_owned()];
    let variables: Vec<String> = environment
        .iter()
        .filter(|(key, _)| is_name(key))
        .map(|(key, value)| format!("{key}={}", quote(value)))
        .collect();
    if !variables.is_empty() {
        parts.push(format!("export {}", variables.join(" ")));
    }
    parts.push(format!("cd {}", quote(&directory.to_string_lossy())));
    parts.extend(commands.iter().cloned());
    // A comment or here-document would absorb the rest of its line.
    let needs_lines = commands
        .iter()
        .any(|command| command.contains('#') || command.contains('\n') || command.contains("<<"));
    parts.join(if needs_lines { "\n" } else { "; " })
}

/// Replaces `$(VAR)`, `${VAR}` and `$VAR` of known variables; `$$` becomes a dollar sign.
/// Everything else remains as written: `$(date)`, `${X:-default}` and `$1` are for the shell.
fn expand(text: &str, environment: &Environment) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(dollar) = rest.find('$') {
        let (before, from) = rest.split_at(dollar);
        out.push_str(before);
        let after = &from[1..];
        if let Some(tail) = after.strip_prefix('$') {
            out.push('$');
            rest = tail;
            continue;
        }
        match variable(after).and_then(|(name, length)| Some((environment.get(name)?, length))) {
            Some((value, length)) => {
                out.push_str(value);
                rest = &after[length..];
            }
            None => {
                out.push('$');
                rest = after;
            }
        }
    }
    out.push_str(rest);
    out
}

/// Returns the variable at the start of `text` (which follows a `$`), and the length of its
/// notation.
fn variable(text: &str) -> Option<(&str, usize)> {
    for (open, close) in [('(', ')'), ('{', '}')] {
        if let Some(inner) = text.strip_prefix(open) {
            let (name, _) = inner.split_once(close)?;
            return is_name(name).then_some((name, name.len() + 2));
        }
    }
    let end = text.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).unwrap_or(text.len());
    let name = &text[..end];
    is_name(name).then_some((name, end))
}

fn is_name(name: &str) -> bool {
    let mut characters = name.chars();
    characters.next().is_some_and(|first| first.is_ascii_alphabetic() || first == '_')
        && characters.all(|c| c.is_ascii_alphanumeric() || c == '_')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variables(pairs: &[(&str, &str)]) -> Environment {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn only_known_variables_are_replaced() {
        let environment = variables(&[("A", "1"), ("LONG_er2", "x y"), ("E", "")]);
        for (text, expected) in [
            ("$(A) ${A} $A", "1 1 1"),
            ("$A$(LONG_er2)", "1x y"),
            ("$AB $(B) ${B}", "$AB $(B) ${B}"),
            ("$(date) ${A:-2} $1 $? $", "$(date) ${A:-2} $1 $? $"),
            ("$$A $$$A", "$A $1"),
            ("[$E]", "[]"),
            ("${A", "${A"),
            ("é$Aé", "é1é"),
        ] {
            assert_eq!(expand(text, &environment), expected, "{text}");
        }
    }

    #[test]
    fn elements_are_commands_and_the_shell_form_is_one() {
        let list = |elements: &[&str]| {
            Some(elements.iter().map(|element| (*element).to_owned()).collect())
        };
        let config = ContainerConfig {
            env: vec!["NAME=app".into(), "EMPTY".into()],
            entrypoint: list(&["echo $(NAME)"]),
            cmd: list(&["/bin/sh", "-c", "a && b"]),
            ..ContainerConfig::default()
        };
        let environment = environment_of(&config, &[("NAME".into(), "it's $x".into())]);
        let commands = commands_of(&config, &environment);
        assert_eq!(commands, ["echo it's $x", "a && b"]);
        assert_eq!(
            script(&["a".into(), "b".into()], &environment, Path::new("/m n")),
            r"set -e; export EMPTY='' NAME='it'\''s $x'; cd '/m n'; a; b"
        );
        assert_eq!(
            script(&["a # all".into()], &Environment::new(), Path::new("/m")),
            "set -e\ncd /m\na # all"
        );
    }
}
