//! Renders a Tera template in a process of its own, whose memory and time the kernel limits.
//!
//! Tera has no place where growth could be counted: `a ~ b`, captures and arrays make values of any size within
//! its interpreter, a failed allocation aborts the process, and its syntax tree is private, so a template that
//! grows cannot be told from one that does not. Only the process can end. Templates are few, and a process takes
//! milliseconds. Must not know where templates come from.

use std::ffi::OsString;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitCode, ExitStatus, Stdio};

use rustix::process::{Resource, Rlimit, Signal, setrlimit};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tera::Tera;

use imgctl_base::error::{Error, IoContext, Result};

/// Only argument of the process.
const RENDERER: &str = "__tera";
/// Memory that the process may take beyond that of the program itself, in bytes.
const MOST_MEMORY: u64 = 192 << 20;
/// Processor time of one template, in seconds.
const MOST_SECONDS: u64 = 20;
/// Maximum size of a rendered file, in bytes.
const LONGEST: u64 = 16 << 20;
const DONE: u8 = b'+';
const FAILED: u8 = b'-';

#[derive(Serialize, Deserialize)]
struct Request {
    name: String,
    text: String,
    data: Value,
}

/// Renders a template; `name` identifies it in errors.
pub(super) fn tera(name: &str, text: &str, data: Value) -> Result<String> {
    let request = Request { name: name.to_owned(), text: text.to_owned(), data };
    let failed = || Error::usage(format!("cannot render the template {name}"));
    // The program of a unit test has no renderer.
    let outcome = if cfg!(test) { here(&request) } else { elsewhere(&request)? };
    outcome.map_err(|problem| match problem {
        Problem::Template(message) => failed()
            .caused_by(message)
            .hint("for a variable that may be missing, write `{{ NAME | default(value=\"…\") }}`"),
        Problem::Limit(message) => failed()
            .caused_by(message)
            .hint("make fewer or shorter texts and lists, or divide the template"),
    })
}

enum Problem {
    /// The template is malformed, or uses what does not exist.
    Template(String),
    /// It takes too much.
    Limit(String),
}

fn here(request: &Request) -> std::result::Result<String, Problem> {
    let failed = |error: tera::Error| Problem::Template(told(&error));
    let context = tera::Context::from_serialize(&request.data).map_err(failed)?;
    let mut tera = Tera::new();
    tera.autoescape_on(Vec::<&'static str>::new());
    tera.add_raw_template(&request.name, &request.text).map_err(failed)?;
    tera.render(&request.name, &context).map_err(failed)
}

/// Returns the message of an error and of its causes.
fn told(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(cause) => format!("{error}: {}", told(cause)),
        None => error.to_string(),
    }
}

fn elsewhere(request: &Request) -> Result<std::result::Result<String, Problem>> {
    let doing = || format!("cannot start the process that renders {}", request.name);
    let bytes = serde_json::to_vec(request).doing(doing)?;
    let (mut ours, theirs) = UnixStream::pair().doing(doing)?;
    let mut child = Command::new("/proc/self/exe")
        .arg(RENDERER)
        .env_clear()
        .current_dir("/")
        .stdin(OwnedFd::from(theirs))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .doing(doing)?;
    // A process that has died reads no request and sends no answer.
    let _ = ours.write_all(&bytes);
    let _ = ours.shutdown(Shutdown::Write);
    let mut answer = Vec::new();
    let read = (&mut ours).take(LONGEST + 2).read_to_end(&mut answer);
    // What sends more than it may waits for a reader.
    drop(ours);
    let status = child.wait().doing(doing)?;
    read.doing(|| format!("cannot read what {} renders to", request.name))?;
    Ok(outcome(&answer, status))
}

fn outcome(answer: &[u8], status: ExitStatus) -> std::result::Result<String, Problem> {
    if answer.len() as u64 > LONGEST + 1 {
        return Err(Problem::Limit(format!("it renders to more than {} MiB", LONGEST >> 20)));
    }
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    match answer.split_first() {
        Some((&DONE, rendered)) if status.success() => Ok(text(rendered)),
        Some((&FAILED, message)) if status.success() => Err(Problem::Template(text(message))),
        _ if status.signal() == Some(Signal::XCPU.as_raw()) => {
            Err(Problem::Limit(format!("it takes more than {MOST_SECONDS} s")))
        }
        _ if status.code().is_some() => {
            Err(Problem::Limit("the process that renders it failed".to_owned()))
        }
        _ => Err(Problem::Limit(format!("it takes more than {} MiB of memory", MOST_MEMORY >> 20))),
    }
}

/// Renders one template if `arguments`, a command line without the program, ask for it. The binary calls this
/// before anything else.
pub fn entry(arguments: &[OsString]) -> Option<ExitCode> {
    match arguments {
        [word] if word == RENDERER => Some(match serve() {
            Ok(()) => ExitCode::SUCCESS,
            Err(_) => ExitCode::FAILURE,
        }),
        _ => None,
    }
}

fn serve() -> Result<()> {
    let doing = || "cannot render a template".to_owned();
    let stdin = std::io::stdin().as_fd().try_clone_to_owned().doing(doing)?;
    let mut socket = UnixStream::from(stdin);
    let mut bytes = Vec::new();
    socket.read_to_end(&mut bytes).doing(doing)?;
    let request: Request = serde_json::from_slice(&bytes).doing(doing)?;
    drop(bytes);
    limit().doing(doing)?;
    let (mark, text) = match here(&request) {
        Ok(text) => (DONE, text),
        Err(Problem::Template(message) | Problem::Limit(message)) => (FAILED, message),
    };
    socket.write_all(&[mark]).doing(doing)?;
    socket.write_all(text.as_bytes()).doing(doing)
}

/// Limits this process. Its address space holds the program already.
fn limit() -> std::io::Result<()> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let size = status.lines().find_map(|line| line.strip_prefix("VmSize:"));
    let size = size.and_then(|size| size.trim().trim_end_matches(" kB").parse::<u64>().ok());
    let memory = size.unwrap_or(0).saturating_mul(1024).saturating_add(MOST_MEMORY);
    for (resource, most) in
        [(Resource::As, memory), (Resource::Cpu, MOST_SECONDS), (Resource::Core, 0)]
    {
        // The soft limit of time sends SIGXCPU, which says why the process ended.
        let hard = if resource == Resource::Cpu { most + 1 } else { most };
        setrlimit(resource, Rlimit { current: Some(most), maximum: Some(hard) })?;
    }
    Ok(())
}
