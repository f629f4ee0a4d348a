//! Backups without a controller: a timer of systemd on the first control plane runs `imgctl backup` there,
//! with a copy of what the controller knows of the cluster.
//!
//! The copy, the credentials and the program lie in a directory that only root can enter; secrets are in
//! files, never in the unit. The record of the cluster in it is kept up to date by every command that
//! changes the cluster (pipeline/record.rs).

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::backup::last;
use crate::pipeline::change::Planned;
use crate::pipeline::execution_context::ExecutionContext;
use crate::pipeline::record::SCHEDULE;
use crate::pipeline::step::{Phase, Plan, Step};
use crate::pipeline::{bootstrap, look, ownership};
use imgctl_base::error::{Error, Result};
use imgctl_base::image::Digest;
use imgctl_host::agent::protocol::FileToWrite;
use imgctl_model::context::{ClusterContext, Host};
use imgctl_runtime::action::Line;
use imgctl_runtime::{Action, own_binary, units};

/// Backups to be made by a timer.
#[derive(Clone, Debug)]
pub struct Schedule {
    /// `OnCalendar=` of systemd: `daily`, `*-*-* 02:00:00`.
    pub calendar: String,
    /// Arguments of `imgctl backup`, without secrets. `{}` stands for the directory of the files.
    pub arguments: Vec<String>,
    /// Files beside the state, and the state itself; paths are relative to the directory.
    pub files: Vec<FileToWrite>,
    /// Directory on the host that other users must not be able to enter: backups in it are not encrypted.
    pub private: Option<PathBuf>,
}

/// Returns the directory of the timer's files on a control plane.
pub fn directory(context: &ClusterContext) -> String {
    format!("{}/{SCHEDULE}", context.paths.root())
}

/// Returns the path of the record of the last backup that the timer made, on the first control plane.
pub fn last(context: &ClusterContext) -> String {
    format!("{}/clusters/{}/{}", directory(context), context.name, last::FILE)
}

/// Plans the installation of the timer, in place of an earlier one.
pub fn install(
    execution: &ExecutionContext<'_>,
    context: &ClusterContext,
    schedule: &Schedule,
) -> Result<Planned> {
    if schedule.calendar.chars().any(char::is_control) {
        return Err(Error::usage("the calendar expression has control characters"));
    }
    let (context, first) = asked(execution, context)?;
    let folder = directory(&context);
    let mut plan = Plan::new("backup", &context.name, &format!("schedule {}", schedule.calendar));
    plan.aside = true;
    let place = schedule.private.as_deref().unwrap_or(Path::new("")).to_string_lossy();
    let check = prepare(&schedule.calendar, &folder, &place);
    let program = format!("{folder}/imgctl");
    let unit = bootstrap::backup_unit(&context);
    let actions = vec![
        Action::command("check", check).saying(format!(
            "systemd-analyze calendar {:?}; mkdir -p -m 0700 {folder}",
            schedule.calendar
        )),
        Action::command("program", own_binary(&program))
            .saying(format!("copy imgctl to {program}")),
        files(&folder, &schedule.files),
        Action::file(
            "service",
            format!("/etc/systemd/system/{}.service", bootstrap::backup_unit(&context)),
            0o644,
            service(&context, &folder, &schedule.arguments),
        ),
        Action::file(
            "timer",
            format!("/etc/systemd/system/{}.timer", bootstrap::backup_unit(&context)),
            0o644,
            timer(&context, &schedule.calendar),
        ),
        Action::command("enable", units::enable_timer(&unit))
            .saying(format!("systemctl enable {unit}.timer; systemctl restart {unit}.timer")),
    ];
    let always = actions.into_iter().map(|action| Step::from(action).always());
    plan.push(Phase::on("schedule", &first, always));
    Ok(Planned::new(plan, context, execution))
}

/// Returns the line that makes the directory of the timer's files. It fails if other users may enter the
/// `place` of backups.
fn prepare(calendar: &str, folder: &str, place: &str) -> Line {
    Line::script(&[include_str!("scripts/prepare-schedule.sh")]).with([
        ("IMGCTL_CALENDAR", calendar),
        ("IMGCTL_BACKUP", folder),
        ("IMGCTL_PLACE", place),
    ])
}

/// Plans the removal of the timer.
pub fn remove(execution: &ExecutionContext<'_>, context: &ClusterContext) -> Result<Planned> {
    let (context, first) = asked(execution, context)?;
    let mut plan = Plan::new("backup", &context.name, "unschedule");
    plan.aside = true;
    let folder = directory(&context);
    let clear = Action::new("files", format!("remove {folder}"), move |site| site.remove(&folder));
    let actions = [bootstrap::stop_backups(&context), clear];
    let always = actions.into_iter().map(|action| Step::from(action).always());
    plan.push(Phase::on("schedule", &first, always));
    Ok(Planned::new(plan, context, execution))
}

/// Returns the context with what the first control plane reported, and that host, which must answer.
fn asked(
    execution: &ExecutionContext<'_>,
    context: &ClusterContext,
) -> Result<(Arc<ClusterContext>, Host)> {
    let first = context.first().ok_or_else(|| Error::usage("there is no control plane"))?.clone();
    let looks = look::look([&first], &execution.pool, execution.parallel);
    if let Some(Err(error)) = looks.get(&first.id()) {
        return Err(Error::new(error.kind(), format!("{} does not answer: {error}", first.id())));
    }
    ownership::refuse_taken(context, &looks)?;
    Ok((Arc::new(look::informed(context, &looks)), first))
}

fn files(folder: &str, files: &[FileToWrite]) -> Action {
    let names: Vec<&str> = files.iter().map(|file| file.path.as_str()).collect();
    let says = format!("write below {folder} (mode 0600): {}", names.join(", "));
    let contents: Vec<u8> = files.iter().flat_map(|file| file.content.iter().copied()).collect();
    let (folder, files) = (folder.to_owned(), files.to_vec());
    // The digest alone: a fingerprint is no place for secrets.
    let inputs = Digest::of(&contents).to_string();
    Action::depending_on("files", says, &inputs, move |site| {
        for file in &files {
            let path = format!("{folder}/{}", file.path);
            site.agent.write_file(&FileToWrite { path, ..file.clone() })?;
        }
        Ok(())
    })
}

/// Returns a word of a command line of systemd.
fn word(text: &str) -> String {
    let mut word = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => word.extend(['\\', c]),
            '%' | '$' => word.extend([c, c]),
            c => word.push(c),
        }
    }
    word.push('"');
    word
}

fn service(context: &ClusterContext, folder: &str, arguments: &[String]) -> String {
    let arguments: Vec<String> =
        arguments.iter().map(|argument| word(&argument.replace("{}", folder))).collect();
    let variable =
        |name: &str, value: &str| format!("Environment={}\n", word(&format!("{name}={value}")));
    let data_root = context.paths.root();
    let data_root = data_root.split("/data/").next().unwrap_or_default();
    format!(
        "# Written by imgctl backup --schedule.\n[Unit]\nDescription=Backup of cluster {name}\n\
         Wants=network-online.target\nAfter=network-online.target\n\n[Service]\nType=oneshot\n\
         {home}{clusters}{root}{data}ExecStart={program} {arguments}\nUMask=0077\nNice=5\n\
         IOSchedulingClass=idle\nTimeoutStartSec=infinity\n",
        name = context.name,
        home = variable("HOME", folder),
        clusters = variable("SEALOS_RUNTIME_ROOT", &format!("{folder}/clusters")),
        root = variable("IMGCTL_ROOT", &format!("{folder}/store")),
        data = variable("SEALOS_DATA_ROOT", data_root),
        program = word(&format!("{folder}/imgctl")),
        arguments = arguments.join(" "),
    )
}

fn timer(context: &ClusterContext, calendar: &str) -> String {
    format!(
        "# Written by imgctl backup --schedule.\n[Unit]\nDescription=Backup of cluster {}\n\n[Timer]\n\
         OnCalendar={}\nPersistent=true\n\n[Install]\nWantedBy=timers.target\n",
        context.name,
        calendar.replace('%', "%%")
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use imgctl_model::testing::context;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn a_place_that_others_may_enter_is_refused() {
        let scratch = tempfile::tempdir().unwrap();
        let place = scratch.path().join("it's");
        let programs = scratch.path().join("programs");
        std::fs::create_dir(&programs).unwrap();
        std::fs::copy("/bin/true", programs.join("systemd-analyze")).unwrap();
        let is_closed = || {
            let line = prepare("daily", scratch.path().to_str().unwrap(), place.to_str().unwrap());
            let mut bash = std::process::Command::new("bash");
            bash.args(["-ec", &line.line]).envs(line.environment.to_map());
            bash.env("PATH", format!("{}:/usr/bin:/bin", programs.display()));
            bash.status().unwrap().success()
        };
        let allow = |path: &Path, mode| {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
        };
        assert!(is_closed(), "it is made, and closed");
        let blobs = place.join("blobs");
        std::fs::create_dir_all(&blobs).unwrap();
        for (outer, inner, expected) in
            [(0o700, 0o755, true), (0o755, 0o755, false), (0o755, 0o700, true)]
        {
            allow(&place, outer);
            allow(&blobs, inner);
            assert_eq!(is_closed(), expected, "{outer:o} {inner:o}");
        }
        std::fs::remove_dir(&blobs).unwrap();
        assert!(is_closed(), "empty");
    }

    #[test]
    fn units_take_every_text_literally() {
        assert_eq!(word(r#"a "b" \ $c %d"#), r#""a \"b\" \\ $$c %%d""#);
        let context = context(&["master"]);
        let text = service(&context, "/d", &["backup".into(), "--authfile".into(), "{}/a".into()]);
        assert!(text.contains("ExecStart=\"/d/imgctl\" \"backup\" \"--authfile\" \"/d/a\"\n"));
        assert!(text.contains("Environment=\"SEALOS_DATA_ROOT=/var/lib/sealos\"\n"), "{text}");
    }
}
