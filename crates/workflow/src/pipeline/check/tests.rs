//! Reasons for which hosts are refused.

use super::*;
use crate::pipeline::testing::{Bare, facts, hosts, sample_context};
use imgctl_host::agent::protocol::Facts;

fn ask(context: &ClusterContext, looks: &Looks, bytes: u64, force: bool) -> Findings {
    let begun = BTreeSet::new();
    let bytes = context.hosts.iter().map(|host| (host.id(), bytes)).collect();
    findings(&Question {
        context,
        runtime: &Bare,
        looks,
        new: &context.hosts,
        bytes: &bytes,
        force,
        begun: &begun,
    })
}

fn looks(context: &ClusterContext, change: &dyn Fn(usize, &mut Facts)) -> Looks {
    let known = context.hosts.iter().enumerate().map(|(number, host)| {
        let mut facts = facts(host);
        change(number, &mut facts);
        (host.id(), Ok(facts))
    });
    known.collect()
}

#[test]
fn all_problems_of_all_hosts_are_found_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let context = sample_context("c", hosts(3, 2), directory.path());
    assert!(ask(&context, &looks(&context, &|_, _| {}), 1 << 30, false).problems.is_empty());
    let known = looks(&context, &|number, facts| match number {
        0 => {
            facts.skew_ms = -6_000;
            facts.bash = None;
        }
        1 => {
            facts.free_bytes = 1_000_000;
            facts.writable = false;
            facts.listening = vec![22, 7000];
        }
        2 => {
            facts.clusters = vec!["other".into()];
            facts.hostname = "host-10-77-0-1".into();
        }
        3 => facts.machine_id = "machine-10.77.0.1".into(),
        _ => {}
    });
    let found = ask(&context, &known, 1 << 30, false);
    let told = |number: usize| {
        let list = found.problems.get(&context.hosts[number].id());
        list.into_iter().flatten().map(|one| one.what.as_str()).collect::<Vec<_>>().join(" | ")
    };
    assert!(told(0).contains("6.0 s behind") && told(0).contains("bash is missing"), "{}", told(0));
    assert!(told(1).contains("1 MB are free") && told(1).contains("not writable"), "{}", told(1));
    assert!(told(1).contains("port 7000") && !told(1).contains("22"), "{}", told(1));
    assert!(told(2).contains("another cluster: other"), "{}", told(2));
    assert!(told(2).contains("also that of") || told(0).contains("also that of"), "{}", told(2));
    assert!(told(3).contains("same machine as 10.77.0.1"), "{}", told(3));
    assert_eq!(told(4), "");
    let error = Problem::error("h", &found.problems[&context.hosts[0].id()]);
    assert_eq!(error.hints().len(), 2);
}

#[test]
fn what_a_run_left_half_done_is_no_problem_and_force_lets_other_clusters_be() {
    let directory = tempfile::tempdir().unwrap();
    let context = sample_context("c", hosts(1, 0), directory.path());
    let ours = looks(&context, &|_, facts| {
        facts.clusters = vec!["c".into()];
        facts.listening = vec![7000];
    });
    assert!(ask(&context, &ours, 0, false).problems.is_empty());
    let theirs = looks(&context, &|_, facts| facts.clusters = vec!["other".into()]);
    assert!(!ask(&context, &theirs, 0, false).problems.is_empty());
    let forced = ask(&context, &theirs, 0, true);
    assert!(forced.problems.is_empty() && forced.notes.len() == 1);
}

#[test]
fn a_cluster_of_the_same_name_is_another_one_if_its_uid_is() {
    let directory = tempfile::tempdir().unwrap();
    let mut context = sample_context("c", hosts(1, 0), directory.path());
    context.uid = Some("own".into());
    let told = |uid: Option<&str>, force: bool, begun: bool, joins: bool| {
        let looks = looks(&context, &|_, facts| {
            facts.clusters = vec!["c".into()];
            facts.cluster_uids =
                uid.map(|uid| ("c".to_owned(), uid.to_owned())).into_iter().collect();
            facts.cluster_trees = facts.clusters.clone();
            facts.listening = vec![7000];
        });
        let begun = if begun { [context.hosts[0].id()].into() } else { BTreeSet::new() };
        let found = findings(&Question {
            context: &context,
            runtime: &Bare,
            looks: &looks,
            new: if joins { &context.hosts } else { &[] },
            bytes: &BTreeMap::new(),
            force,
            begun: &begun,
        });
        let problems = found.problems.into_values().flatten().map(|problem| problem.what);
        problems.collect::<Vec<_>>().join(" | ")
    };
    let other = told(Some("other"), false, true, true);
    assert!(other.contains("another cluster: c (UID other), which is not c (UID own)"), "{other}");
    // Services of the other cluster still listen: it exists.
    assert!(other.contains("port 7000"), "{other}");
    assert_eq!(told(Some("other"), true, true, true), "port 7000 is in use");
    assert_eq!(told(Some("own"), false, false, true), "");
    // From before there were UIDs: an interrupted run, or another cluster.
    assert_eq!(told(None, false, true, true), "");
    let unmarked = told(None, false, false, true);
    assert!(unmarked.contains("another cluster: c, which is not c (UID own)"), "{unmarked}");
    // Members are not joined by force.
    let member = told(Some("other"), true, true, false);
    assert!(member.contains("belongs to cluster c (UID other), not to cluster c"), "{member}");
    assert_eq!(told(None, false, false, false), "");
}

#[test]
fn an_even_number_of_control_planes_is_worth_a_note() {
    let directory = tempfile::tempdir().unwrap();
    let context = sample_context("c", hosts(2, 0), directory.path());
    let found = ask(&context, &looks(&context, &|_, _| {}), 0, false);
    assert!(found.notes[0].contains("2 control planes"), "{:?}", found.notes);
}

#[test]
fn hosts_that_the_runtime_cannot_use_are_told_before_anything_is_sent() {
    let directory = tempfile::tempdir().unwrap();
    let context = sample_context("c", hosts(1, 1), directory.path());
    let known = looks(&context, &|number, facts| {
        if number == 1 {
            facts.kernel = "unfit".to_owned();
        }
    });
    let mut found = Findings::default();
    let question = Question {
        context: &context,
        runtime: &Bare,
        looks: &known,
        new: &context.hosts,
        bytes: &BTreeMap::new(),
        force: false,
        begun: &BTreeSet::new(),
    };
    unfit(&question, &mut found);
    let id = context.hosts[1].id();
    assert_eq!(found.problems.keys().collect::<Vec<_>>(), [&id]);
    let error = Problem::error(&id, &found.problems[&id]);
    assert_eq!((error.message(), error.hints()), (&*format!("{id}: unfit"), vec!["take another"]));
}
