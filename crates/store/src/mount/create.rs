//! `create`: mounts an image for writing under a generated name, renders its templates in place and
//! returns the script that running it would execute. This is the local half of running a cluster
//! image.

use std::io::{Read, Write};
use std::path::Path;

use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;

use crate::mount::command_line::{self, Environment};
use crate::mount::mounts::{self, Mounted};
use crate::mount::{Backend, workspace};
use crate::store::Store;
use crate::store::images::Image;
use imgctl_base::error::{Context, Error, IoContext, Kind, Result};
use imgctl_base::fs::metadata::FileKind;
use imgctl_base::fs::root::Root;
use imgctl_base::fs::walk::{self, Visit};
use imgctl_base::progress::Reporter;
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
    let environment = command_line::environment(config, &options.environment);
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
    let commands = command_line::commands(config, &environment);
    let script = (!commands.is_empty())
        .then(|| command_line::script(&commands, &environment, &mounted.record.path));
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
