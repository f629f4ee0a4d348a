//! Work on many hosts: `imgctl exec` and `imgctl scp`.

use std::fs::File;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use clap::Args;
use serde_json::{Value, json};

use imgctl_base::error::{Error, IoContext as _, Kind, Result};
use imgctl_base::progress::Unit;
use imgctl_frontend::{context::Context, ssh_options::HostArgs};
use imgctl_host::host::connect::Connections;
use imgctl_host::host::transport::{Ended, Privilege, Source, Transport, follow};
use imgctl_host::host::upload::{Place, SentTree, at_home, send_tree, upload_to};
use imgctl_model::context::Host;
use imgctl_ops::hosts::{for_each, sum_up};
use imgctl_ui::edge;

/// Maximum number of pieces of output that a host buffers while it waits for earlier hosts; a full
/// buffer blocks the command.
const WAITING: usize = 256;
/// Maximum number of bytes of each output stream in JSON.
const MOST_JSON: usize = 1 << 20;
/// Maximum length of a line, in bytes; a longer line is printed in parts.
const LONGEST_LINE: usize = 64 << 10;

/// Run a command on hosts
#[derive(Args, Debug)]
#[command(
    after_help = "The command is one line for the host's shell; arguments are joined with spaces, as ssh does.
It runs as root (through sudo for other users) unless --as-user is given. Output is in the
order of the hosts, each line prefixed with its host. The exit code is 9 if the command failed
on any host.

Examples:
  imgctl exec --cluster prod --roles master 'uptime; df -h /var/lib'
  imgctl exec --ips 10.0.0.11-10.0.0.13 uptime
  imgctl exec --ips web-1,web-2 -u ops --sudo-passwd-file pass 'systemctl is-active kubelet | sort'
  imgctl exec --json --ips 10.0.0.0/29 -- df -h /var/lib"
)]
pub(crate) struct ExecArgs {
    #[command(flatten)]
    hosts: HostArgs,

    /// Run as the login user instead of root
    #[arg(long)]
    as_user: bool,

    /// Command and arguments
    #[arg(required = true, trailing_var_arg = true)]
    command: Vec<String>,
}

/// One piece of a host's output, or its end.
type Piece = (Source, Vec<u8>);

/// Outcome of the command on one host.
struct Done {
    ended: Result<Ended>,
    stdout: Vec<u8>,
    stderr: Vec<u8>,
}

/// Runs the command on every host and prints the output.
pub(crate) fn exec(args: &ExecArgs, context: &Context) -> Result<()> {
    let (hosts, connections) = args.hosts.resolve(context)?;
    let mut line = args.command.join(" ");
    if line.starts_with(['-', '+']) {
        // A command, not an option of the shell.
        line.insert(0, ' ');
    }
    let privilege = if args.as_user { Privilege::User } else { Privilege::Root };
    let work = Work { connections, line, privilege };
    let done = if context.ui.is_json() {
        for_each(&hosts, args.hosts.parallel(), |_, host| work.collect(host))
    } else {
        work.print(&hosts, args.hosts.parallel(), context)?
    };
    if context.ui.is_json() {
        let views: Vec<Value> = hosts.iter().zip(&done).map(view).collect();
        context.ui.json(&views)?;
    }
    let failed: Vec<(String, Error)> =
        hosts.iter().zip(done).filter_map(|(host, done)| failure(host, done.ended)).collect();
    sum_up("run the command", hosts.len(), failed).map_or(Ok(()), Err)
}

fn failure(host: &Host, ended: Result<Ended>) -> Option<(String, Error)> {
    match ended {
        Ok(ended) if ended.is_success() => None,
        Ok(ended) => Some((
            host.id(),
            Error::new(
                Kind::CommandFailed,
                format!("the command failed on {}: {ended}", host.id()),
            ),
        )),
        Err(error) => Some((host.id(), error)),
    }
}

struct Work {
    connections: Connections,
    line: String,
    privilege: Privilege,
}

impl Work {
    fn follow(
        &self,
        host: &Host,
        sink: &mut dyn FnMut(Source, &[u8]) -> Result<()>,
    ) -> Result<Ended> {
        let transport = self.connections.connect(&host.address, &host.login, host.local)?;
        follow(&*transport, &self.line, self.privilege, sink)
    }

    fn collect(&self, host: &Host) -> Done {
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        let ended = self.follow(host, &mut |source, bytes| {
            let kept: &mut Vec<u8> = match source {
                Source::Output => &mut stdout,
                Source::Errors => &mut stderr,
            };
            let room = MOST_JSON - kept.len();
            kept.extend_from_slice(&bytes[..bytes.len().min(room)]);
            Ok(())
        });
        Done { ended, stdout, stderr }
    }

    /// Prints output while the commands run; the output of a host waits for that of earlier hosts.
    fn print(&self, hosts: &[Host], parallel: usize, context: &Context) -> Result<Vec<Done>> {
        let (senders, receivers): (Vec<_>, Vec<_>) =
            hosts.iter().map(|_| sync_channel::<Piece>(WAITING)).unzip();
        let senders: Vec<std::sync::Mutex<Option<SyncSender<Piece>>>> =
            senders.into_iter().map(|it| std::sync::Mutex::new(Some(it))).collect();
        std::thread::scope(|scope| {
            let working = scope.spawn(|| {
                for_each(hosts, parallel, |index, host| {
                    // Taken out of its slot: the sender is dropped when the command ends.
                    let sender = senders.get(index).and_then(|slot| slot.lock().ok()?.take());
                    let ended = self.follow(host, &mut |source, bytes| {
                        let told = sender.as_ref().map(|to| to.send((source, bytes.to_vec())));
                        match told {
                            Some(Err(_)) => Err(Error::failed(
                                "the reader of the output has \
                                                               exited",
                            )),
                            _ => Ok(()),
                        }
                    });
                    Done { ended, stdout: Vec::new(), stderr: Vec::new() }
                })
            });
            let mut printed = Ok(());
            for (host, receiver) in hosts.iter().zip(receivers) {
                if printed.is_ok() {
                    let prefix = match hosts.len() {
                        1 => String::new(),
                        _ => format!("{}: ", host.id()),
                    };
                    printed = print_host(&prefix, &receiver, context);
                }
                // Dropping the receiver ends commands whose output can no longer be printed.
            }
            let done = working.join();
            printed?;
            match done {
                Ok(done) => Ok(done),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        })
    }
}

fn print_host(prefix: &str, pieces: &Receiver<Piece>, context: &Context) -> Result<()> {
    let (mut first, mut second) = (Vec::new(), Vec::new());
    for (source, bytes) in pieces {
        let rest = match source {
            Source::Output => &mut first,
            Source::Errors => &mut second,
        };
        rest.extend_from_slice(&bytes);
        let whole = match rest.iter().rposition(|byte| *byte == b'\n') {
            Some(end) => end + 1,
            None if rest.len() > LONGEST_LINE => rest.len(),
            None => continue,
        };
        let lines: Vec<u8> = rest.drain(..whole).collect();
        print_lines(source, prefix, &lines, context)?;
    }
    print_lines(Source::Output, prefix, &first, context)?;
    print_lines(Source::Errors, prefix, &second, context)
}

fn print_lines(source: Source, prefix: &str, lines: &[u8], context: &Context) -> Result<()> {
    let mut text = Vec::new();
    for line in lines.split_inclusive(|byte| *byte == b'\n') {
        text.extend_from_slice(prefix.as_bytes());
        text.extend_from_slice(line);
        if !line.ends_with(b"\n") && !prefix.is_empty() {
            text.push(b'\n');
        }
    }
    match source {
        Source::Output => context.ui.content(&text),
        Source::Errors => {
            edge::content_to_stderr(&text);
            Ok(())
        }
    }
}

fn view((host, done): (&Host, &Done)) -> Value {
    let (code, signal, error) = match &done.ended {
        Ok(Ended::Code(code)) => (Some(*code), None, None),
        Ok(Ended::Signal(signal)) => (None, Some(*signal), None),
        Err(error) => (None, None, Some(error.to_string())),
    };
    json!({
        "host": host.id(),
        "exitCode": code,
        "signal": signal,
        "error": error,
        "stdout": String::from_utf8_lossy(&done.stdout),
        "stderr": String::from_utf8_lossy(&done.stderr),
    })
}

/// Copy a file or a directory to hosts
#[derive(Args, Debug)]
#[command(
    after_help = "A file replaces DST atomically once it has been transferred; if DST is a directory, the file
goes into it. The contents of a directory go into the directory DST, which is created if
missing. Modes and modification times are preserved, symlinks stay symlinks. ~/ in DST is the home
directory of the login user. Files are written as root (through sudo for other users) unless
--as-user is given.

Examples:
  imgctl scp --cluster prod --roles node motd /etc/motd
  imgctl scp --ips 10.0.0.11-10.0.0.13 daemon.json /etc/docker/daemon.json
  imgctl scp --ips web-1,web-2 -u ops --as-user ./site /home/ops/site"
)]
pub(crate) struct ScpArgs {
    #[command(flatten)]
    hosts: HostArgs,

    /// Copy as the login user instead of root
    #[arg(long)]
    as_user: bool,

    /// Local file or directory
    #[arg(value_name = "SRC")]
    source: PathBuf,

    /// Path on the hosts
    #[arg(value_name = "DST")]
    destination: String,
}

pub(crate) fn scp(args: &ScpArgs, context: &Context) -> Result<()> {
    if args.destination.is_empty() {
        return Err(Error::usage("the path on the hosts is empty"));
    }
    let data = std::fs::metadata(&args.source).path("examine", &args.source)?;
    if !data.is_dir() && !data.is_file() {
        return Err(Error::usage(format!(
            "{} is neither a file nor a directory",
            args.source.display()
        )));
    }
    let (hosts, connections) = args.hosts.resolve(context)?;
    let privilege = if args.as_user { Privilege::User } else { Privilege::Root };
    let reporter = context.ui.reporter();
    let results = for_each(&hosts, args.hosts.parallel(), |_, host| {
        let transport = connections.connect(&host.address, &host.login, host.local)?;
        let destination = at_home(&*transport, &args.destination)?;
        let title = format!("copying to {}", host.id());
        let total = data.is_file().then_some(data.len());
        let task = reporter.start(&title, Unit::Bytes, total);
        let sent = |bytes| task.advance(bytes);
        let tree = if data.is_dir() {
            send_tree(&*transport, &args.source, &destination, privilege, &sent)?
        } else {
            send_file(&*transport, &args.source, &destination, privilege, &sent)?
        };
        task.done(&format!("copied to {}", host.id()));
        Ok(tree)
    });
    if let Some(Ok(tree)) = results.iter().find(|result| result.is_ok()) {
        for path in &tree.left_out {
            context.ui.note(&format!("{path} was skipped: it is not a file"));
        }
    }
    if context.ui.is_json() {
        let view = |result: &Result<SentTree>| match result {
            Ok(tree) => (Some(tree.files), Some(tree.bytes), None),
            Err(error) => (None, None, Some(error.to_string())),
        };
        let views: Vec<_> = hosts
            .iter()
            .zip(&results)
            .map(|(host, result)| {
                let (files, bytes, error) = view(result);
                json!({ "host": host.id(), "files": files, "bytes": bytes, "error": error })
            })
            .collect();
        context.ui.json(&views)?;
    }
    let failed = hosts
        .iter()
        .zip(results)
        .filter_map(|(host, result)| Some((host.id(), result.err()?)))
        .collect();
    sum_up("copy", hosts.len(), failed).map_or(Ok(()), Err)
}

fn send_file(
    transport: &dyn Transport,
    source: &Path,
    destination: &str,
    privilege: Privilege,
    sent: &(dyn Fn(u64) + Sync),
) -> Result<SentTree> {
    let file = File::open(source).path("open", source)?;
    let data = file.metadata().path("examine", source)?;
    let name = name_of(source)?;
    // A trailing slash means a directory, whether it exists or not.
    let path = if destination.ends_with('/') {
        format!("{destination}{name}")
    } else {
        destination.to_owned()
    };
    let place =
        Place { path: &path, mode: data.mode(), mtime: Some(data.mtime()), into: Some(&name) };
    let mut reader = Counting { file, sent };
    upload_to(transport, &place, privilege, &mut reader, data.len())?;
    Ok(SentTree { files: 1, bytes: data.len(), left_out: Vec::new() })
}

fn name_of(path: &Path) -> Result<String> {
    path.file_name()
        .and_then(|name| name.to_str())
        .map(str::to_owned)
        .ok_or_else(|| Error::usage(format!("{} has no plain name", path.display())))
}

struct Counting<'a> {
    file: File,
    sent: &'a (dyn Fn(u64) + Sync),
}

impl std::io::Read for Counting<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let count = self.file.read(buffer)?;
        (self.sent)(count as u64);
        Ok(count)
    }
}
