//! Files of images, without a mount: `imgctl ls` and `imgctl cat`.

use std::ffi::OsString;
use std::io;
use std::sync::Arc;

use base64::Engine as _;
use clap::Args;
use serde_json::{Value, json};

use imgctl_base::error::{Error, IoContext, Result};
use imgctl_base::image::{Descriptor, LayerKind, time::rfc3339};
use imgctl_frontend::names::{image_and_path, nearest, printable, quote};
use imgctl_frontend::{context::Context, image_options::PlatformArg};
use imgctl_layer::{ContentReader, Entry, EntryKind, Found, LayerPath, Tree};
use imgctl_store::store::{Image, Store, images::whole_tree};
use imgctl_ui::{edge::Stdout, results::Results, table::one_line};

/// List files in an image, without mounting it
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  imgctl ls etcd:v1
  imgctl ls -l etcd:v1:/usr/bin
  imgctl ls -R --json etcd:v1:/etc")]
pub(crate) struct LsArgs {
    /// Image and path
    #[arg(value_name = "IMAGE[:/PATH]")]
    target: OsString,

    /// Show type, mode, owner, size and time
    #[arg(short, long)]
    long: bool,

    /// List subdirectories recursively, with full paths
    #[arg(short = 'R', long)]
    recursive: bool,

    /// List a directory itself instead of its contents
    #[arg(short, long)]
    directory: bool,

    #[command(flatten)]
    platform: PlatformArg,
}

/// One line of the list: the displayed name, the full path and the file.
struct Line<'a> {
    name: Vec<u8>,
    path: LayerPath,
    found: Found<'a>,
}

pub(crate) fn ls(args: &LsArgs, context: &Context) -> Result<()> {
    let (name, path) = image_and_path(&args.target)?;
    let image = args.platform.image(&name, context)?;
    let tree = whole_tree(context.store()?, &image)?;
    // Follows a link in the arguments as `ls` does, unless the link itself is requested.
    let path = if args.directory || args.long && !args.recursive && is_symlink(&tree, &path)? {
        tree.resolve_parent(&path)?
    } else {
        tree.resolve(&path)?
    };
    let found = tree.lookup(&path).ok_or_else(|| {
        let missing = Error::not_found(format!("{path} does not exist in {name}"));
        match nearest(&tree, &path) {
            Some(hint) => missing.hint(hint),
            None => missing,
        }
    })?;
    let lines = || lines(args, &tree, &path, found);
    if context.ui.is_json() {
        return context.ui.json_list(lines().map(|line| object(&line, &image)));
    }
    let mut out = context.ui.stream();
    if args.long {
        long(&lines, &mut out)?;
    } else {
        for line in lines() {
            // A pipe receives names unchanged; a terminal receives only printable characters.
            if context.ui.stdout_is_terminal() {
                out.add(printable(&line.name).as_bytes())?;
            } else {
                out.add(&line.name)?;
            }
            out.add(b"\n")?;
        }
    }
    out.end()
}

fn is_symlink(tree: &Tree, path: &LayerPath) -> Result<bool> {
    let path = tree.resolve_parent(path)?;
    let kind = tree.lookup(&path).map(|found| &found.entry().kind);
    Ok(matches!(kind, Some(EntryKind::Symlink { .. })))
}

fn lines<'a>(
    args: &LsArgs,
    tree: &'a Tree,
    path: &'a LayerPath,
    found: Found<'a>,
) -> Box<dyn Iterator<Item = Line<'a>> + 'a> {
    let full = |path: &LayerPath| [b"/", path.as_bytes()].concat();
    if args.directory || !found.entry().is_directory() {
        let name = full(path);
        return Box::new(std::iter::once(Line { name, path: path.clone(), found }));
    }
    if args.recursive {
        let below = tree.walk(path).skip(1);
        return Box::new(below.map(move |(path, found)| Line { name: full(&path), path, found }));
    }
    let children = tree.children(path);
    Box::new(children.map(move |(name, found)| Line {
        name: name.to_vec(),
        path: path.join(name),
        found,
    }))
}

/// Writes a table without holding it: a first pass finds the widths of its columns.
fn long<'a>(
    lines: &dyn Fn() -> Box<dyn Iterator<Item = Line<'a>> + 'a>,
    out: &mut Results<'_>,
) -> Result<()> {
    let cells = |entry: &Entry| {
        [
            mode(entry),
            format!("{}:{}", entry.uid, entry.gid),
            size(entry),
            rfc3339(entry.mtime.seconds).replace('T', " ").replace('Z', ""),
        ]
    };
    let mut widths = [0; 4];
    for line in lines() {
        for (width, cell) in widths.iter_mut().zip(cells(line.found.entry())) {
            *width = cell.len().max(*width);
        }
    }
    let [of_mode, of_owner, of_size, of_time] = widths;
    for line in lines() {
        let entry = line.found.entry();
        let [mode, owner, size, time] = cells(entry);
        let mut name = printable(&line.name);
        if let EntryKind::Symlink { target } = &entry.kind {
            name.push_str(&format!(" -> {}", printable(target)));
        }
        let name = one_line(&name);
        let text =
            format!("{mode:of_mode$} {owner:>of_owner$} {size:>of_size$} {time:of_time$} {name}");
        out.add(text.trim_end().as_bytes())?;
        out.add(b"\n")?;
    }
    Ok(())
}

/// Returns the size; devices have numbers instead.
fn size(entry: &Entry) -> String {
    match entry.kind {
        EntryKind::CharDevice { major, minor } | EntryKind::BlockDevice { major, minor } => {
            format!("{major},{minor}")
        }
        _ => entry.size().to_string(),
    }
}

fn type_of(entry: &Entry) -> (char, &'static str) {
    match entry.kind {
        EntryKind::File { .. } | EntryKind::HardLink { .. } => ('-', "file"),
        EntryKind::Directory => ('d', "directory"),
        EntryKind::Symlink { .. } => ('l', "symlink"),
        EntryKind::CharDevice { .. } => ('c', "char-device"),
        EntryKind::BlockDevice { .. } => ('b', "block-device"),
        EntryKind::Fifo => ('p', "fifo"),
    }
}

/// Returns the mode as ls(1) shows it, such as `drwxr-xr-t`.
fn mode(entry: &Entry) -> String {
    let mut text = String::from(type_of(entry).0);
    for (shift, special, set, unset) in
        [(6, 0o4000, 's', 'S'), (3, 0o2000, 's', 'S'), (0, 0o1000, 't', 'T')]
    {
        let bits = entry.mode >> shift;
        text.push(if bits & 4 == 0 { '-' } else { 'r' });
        text.push(if bits & 2 == 0 { '-' } else { 'w' });
        text.push(match (entry.mode & special != 0, bits & 1 != 0) {
            (true, true) => set,
            (true, false) => unset,
            (false, true) => 'x',
            (false, false) => '-',
        });
    }
    text
}

fn object(line: &Line<'_>, image: &Image) -> Value {
    let entry = line.found.entry();
    let path = [b"/", line.path.as_bytes()].concat();
    let layer = line.found.layer.and_then(|layer| image.manifest.layers.get(layer));
    let mut object = json!({
        "path": String::from_utf8_lossy(&path),
        "type": type_of(entry).1,
        "mode": format!("{:04o}", entry.mode),
        "uid": entry.uid,
        "gid": entry.gid,
        "size": entry.size(),
        "mtime": rfc3339(entry.mtime.seconds),
        "layer": layer.map(|layer| &layer.digest),
        "kind": layer.and_then(Descriptor::layer_kind).map(LayerKind::as_str),
    });
    let base64 = |bytes: &[u8]| base64::engine::general_purpose::STANDARD.encode(bytes);
    if str::from_utf8(&path).is_err() {
        object["pathBase64"] = base64(&path).into();
    }
    match &entry.kind {
        EntryKind::Symlink { target } => {
            object["target"] = String::from_utf8_lossy(target).into();
        }
        EntryKind::CharDevice { major, minor } | EntryKind::BlockDevice { major, minor } => {
            object["device"] = json!([major, minor]);
        }
        _ => {}
    }
    if !entry.xattrs.is_empty() {
        object["xattrs"] = entry
            .xattrs
            .iter()
            .map(|(name, value)| (String::from_utf8_lossy(name).into_owned(), base64(value).into()))
            .collect::<serde_json::Map<_, _>>()
            .into();
    }
    object
}

/// Print files of an image, without mounting it
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  imgctl cat etcd:v1:/etc/etcd.conf
  imgctl cat etcd:v1:/usr/bin/etcd > etcd")]
pub(crate) struct CatArgs {
    /// Image and path of a file (may be repeated)
    #[arg(required = true, value_name = "IMAGE:/PATH")]
    targets: Vec<OsString>,

    #[command(flatten)]
    platform: PlatformArg,
}

/// Prints the files in the order given.
pub(crate) fn cat(args: &CatArgs, context: &Context) -> Result<()> {
    for target in &args.targets {
        let (name, path) = image_and_path(target)?;
        if path.is_root() {
            return Err(Error::usage(format!("`{}` does not name a file", target.display()))
                .hint("write IMAGE:/PATH, for example etcd:v1:/etc/hosts"));
        }
        let image = args.platform.image(&name, context)?;
        let store = context.store()?;
        print(store, &image, &whole_tree(store, &image)?, &name, &path)?;
    }
    Ok(())
}

fn print(store: &Store, image: &Image, tree: &Tree, name: &str, path: &LayerPath) -> Result<()> {
    let resolved = tree.resolve(path)?;
    let Some(found) = tree.lookup(&resolved) else {
        let missing = Error::not_found(format!("{path} does not exist in {name}"));
        return Err(match nearest(tree, &resolved) {
            Some(hint) => missing.hint(hint),
            None => missing,
        });
    };
    if found.entry().is_directory() {
        return Err(Error::usage(format!("{path} of {name} is a directory"))
            .hint(format!("imgctl ls {}", quote(&format!("{name}:{path}")))));
    }
    let layer = found.layer.and_then(|index| image.layers().nth(index));
    let Some((layer, diff_id)) = layer else {
        return Err(Error::not_found(format!("{path} of {name} has no content")));
    };
    let toc = Arc::new(store.toc(&layer.digest, diff_id)?);
    let mut reader = ContentReader::new(store.open_blob(&layer.digest)?, toc)?;
    let mut content = reader.open(found.entry)?;
    io::copy(&mut content, &mut Stdout::open())
        .doing(|| format!("cannot print {path} of {name}"))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_look_as_in_ls() {
        for (kind, bits, expected) in [
            (EntryKind::Directory, 0o1777, "drwxrwxrwt"),
            (EntryKind::File { size: 0 }, 0o4755, "-rwsr-xr-x"),
            (EntryKind::File { size: 0 }, 0o6640, "-rwSr-S---"),
            (EntryKind::Fifo, 0, "p---------"),
        ] {
            assert_eq!(mode(&Entry::new(LayerPath::root(), kind, bits)), expected);
        }
    }
}
