//! What hosts have lost: files that a failed removal still needs, a whole installation, lines of the
//! hosts file.

use super::*;
use crate::pipeline::execution_context::PhaseUpdate;
use crate::pipeline::status;
use imgctl_model::context::Host;

impl Stage {
    /// Returns the hosts on which steps of this name have begun since the last call of [`Self::hush`].
    fn begun(&self, name: &str) -> Vec<String> {
        let end = format!("/{name}");
        let heard = self.heard.0.lock().unwrap();
        let hosts = heard.iter().filter_map(|event| match event {
            Event::StepStart { host, step, .. } if step.ends_with(&end) => Some(host.clone()),
            _ => None,
        });
        let mut hosts: Vec<String> = hosts.collect();
        hosts.sort();
        hosts
    }

    fn hush(&self) {
        self.heard.0.lock().unwrap().clear();
    }

    fn reset(&self, context: &ClusterContext) -> Result<Summary> {
        self.execute(&self.planned(|execution| maintain::reset(execution, context))?)
    }
}

fn failing(line: &str, host: &str) -> Behaviour {
    Behaviour { fails: Some((line.to_owned(), host.to_owned())), ..Behaviour::default() }
}

#[test]
fn a_host_keeps_its_files_until_everything_else_is_removed() {
    for (force, loses_files) in [(false, false), (true, true)] {
        let directory = state();
        let context = cluster(directory.path());
        let ill = context.hosts[4].id();
        let mut stage = Stage::new(failing("reset --on", &ill));
        stage.force = force;
        stage.reset(&context).unwrap_err();
        // Everything that needs no files is removed all the same.
        assert!(stage.begun("hosts-clean").contains(&ill));
        let files = stage.begun("files");
        assert_eq!(files.contains(&ill), loses_files, "{files:?}");
        assert!(files.len() >= 4);
        let is_gone = stage.state_store.0.lock().unwrap().contains(&PhaseUpdate::Gone);
        assert_eq!(is_gone, force, "no later run could remove more");
        stage.hush();
        stage.simulation = Simulation::new(Behaviour::default());
        stage.reset(&context).unwrap();
        // By force, nothing is left to go on with: another cluster of this name begins anew.
        let expected = if force { 5 } else { 1 };
        assert_eq!(stage.begun("reset").len(), expected);
        assert!(stage.begun("files").contains(&ill));
    }
}

#[test]
fn a_cluster_is_not_gone_while_a_host_has_its_files() {
    let directory = state();
    let mut context = cluster(directory.path());
    context.uid = Some("4c173d3b-8c67-c187-0882-1af4dfbcc0e1".to_owned());
    let away = context.hosts[3].id();
    let keeps = Behaviour { keeps_files: Some(away.clone()), ..Behaviour::default() };
    let mut stage = Stage::new(keeps);
    stage.create(&context).unwrap();
    stage.force = true;
    let error = stage.reset(&context).unwrap_err();
    assert!(error.chain().join(" ").contains(&format!("{away} still has")), "{error:?}");
    assert!(!stage.state_store.0.lock().unwrap().contains(&PhaseUpdate::Gone));
}

#[test]
fn a_host_whose_files_are_missing_is_not_taken_for_clean() {
    let directory = state();
    let context = cluster(directory.path());
    let mut stage = Stage::new(Behaviour { lacks: 10, ..Behaviour::default() });
    stage.create(&context).unwrap();
    let (bare, anew) = (context.hosts[3].id(), context.hosts[4].id());
    stage.simulation.lose_files(&bare);
    // Nothing of the cluster is left on another machine, so nothing is to be cleaned.
    stage.simulation.reinstall(&anew, false);
    stage.hush();
    let error = stage.reset(&context).unwrap_err();
    let told = error.chain().join(" ");
    assert!(told.contains(&format!("{bare} has lost the files")), "{told}");
    assert!(!stage.begun("clean").contains(&bare) && !stage.begun("files").contains(&bare));
    assert!(stage.begun("files").contains(&anew));
    assert!(!stage.state_store.0.lock().unwrap().contains(&PhaseUpdate::Gone));
    // Those that are clean by now lack their files, too.
    stage.hush();
    stage.force = true;
    stage.reset(&context).unwrap();
    assert!(stage.begun("files").contains(&bare));
}

#[test]
fn a_host_that_leaves_without_its_files_is_told() {
    let directory = state();
    let mut context = cluster(directory.path());
    let mut stage = Stage::new(Behaviour { lacks: 10, ..Behaviour::default() });
    stage.create(&context).unwrap();
    let leaving = context.hosts.remove(3);
    stage.simulation.lose_files(&leaving.id());
    context.leaving.push(leaving);
    let delete = Change { verb: "delete".to_owned(), ..Change::default() };
    let error = stage.change(&context, &delete).unwrap_err();
    assert!(error.message().contains("has lost the files"), "{error}");
    stage.force = true;
    stage.change(&context, &delete).unwrap();
}

#[test]
fn nothing_else_runs_on_a_cluster_that_is_being_removed() {
    let directory = state();
    let context = cluster(directory.path());
    let mut stage = Stage::new(failing("reset --on", &context.hosts[4].id()));
    stage.create(&context).unwrap();
    stage.reset(&context).unwrap_err();
    let mut smaller = context.clone();
    smaller.leaving.push(smaller.hosts.remove(4));
    let delete = Change { verb: "delete".to_owned(), ..Change::default() };
    stage.force = true;
    let error = stage.change(&smaller, &delete).unwrap_err();
    assert!(error.message().contains("is being removed"), "{error}");
    assert!(error.hints()[0].contains("`imgctl reset --cluster"), "{:?}", error.hints());
    stage.force = false;
    stage.simulation = Simulation::new(Behaviour::default());
    stage.reset(&context).unwrap();
    stage.create(&context).unwrap();
}

#[test]
fn a_host_that_was_installed_anew_does_its_steps_again() {
    for keeps_data in [false, true] {
        let directory = state();
        let context = cluster(directory.path());
        let ids: Vec<String> = context.hosts.iter().map(Host::id).collect();
        let stage = Stage::new(failing("join-worker", &ids[4]));
        stage.create(&context).unwrap_err();
        assert_eq!(stage.begun("join-master"), ids[1..3]);

        stage.hush();
        stage.simulation.reinstall(&ids[1], keeps_data);
        stage.create(&context).unwrap_err();
        for name in ["prepare-host", "join-master"] {
            assert_eq!(stage.begun(name), [ids[1].as_str()], "{name}");
        }
        assert!(stage.begun("init-cluster").is_empty());
        let notes = stage.heard.0.lock().unwrap().clone();
        assert!(notes.iter().any(|event| matches!(
            event,
            Event::Note { host: Some(host), message } if *host == ids[1] && message.contains("anew")
        )));

        stage.hush();
        stage.create(&context).unwrap_err();
        assert!(stage.begun("join-master").is_empty());

        // What joined the former first host belongs to nothing now.
        stage.hush();
        stage.simulation.reinstall(&ids[0], keeps_data);
        stage.create(&context).unwrap_err();
        assert_eq!(stage.begun("init-cluster"), [ids[0].as_str()]);
        assert_eq!(stage.begun("join-master"), ids[1..3]);
    }
}

#[test]
fn a_member_of_a_complete_cluster_that_has_nothing_of_it_is_no_member_by_its_files_alone() {
    let directory = state();
    let mut context = cluster(directory.path());
    context.uid = Some("4c173d3b-8c67-c187-0882-1af4dfbcc0e1".to_owned());
    let mut stage = Stage::new(Behaviour::default());
    stage.create(&context).unwrap();
    let ids: Vec<String> = context.hosts.iter().map(Host::id).collect();
    let same = Change { verb: "run".to_owned(), ..Change::default() };
    let refused = |stage: &Stage| {
        stage.planned(|execution| change::plan(execution, &context, &same)).unwrap().refusal
    };
    assert_eq!(refused(&stage), None);
    stage.simulation.reinstall(&ids[4], false);
    let told = refused(&stage).unwrap();
    assert!(told.problems[0].starts_with(&ids[4]), "{told:?}");
    assert!(told.hints[0].contains("`imgctl add` it again"), "{told:?}");
    // Where others come and go, it would get files again and look well.
    let mut smaller = context.clone();
    smaller.leaving.push(smaller.hosts.remove(3));
    stage.force = true;
    let delete = Change { verb: "delete".to_owned(), ..Change::default() };
    let error = stage.change(&smaller, &delete).unwrap_err();
    assert!(error.chain().join(" ").contains("it has nothing of the cluster"), "{error:?}");
    assert_eq!(refused(&stage), None);
    stage.force = false;
    stage.simulation.reinstall(&ids[0], false);
    let told = refused(&stage).unwrap();
    assert_eq!(told.problems.len(), 2, "{told:?}");
}

#[test]
fn a_system_under_kept_data_that_was_installed_anew_is_told_until_it_is_accepted() {
    let directory = state();
    let mut context = cluster(directory.path());
    context.uid = Some("4c173d3b-8c67-c187-0882-1af4dfbcc0e1".to_owned());
    let mut stage = Stage::new(Behaviour::default());
    stage.create(&context).unwrap();
    let anew = context.hosts[4].id();
    stage.simulation.reinstall(&anew, true);
    let same = Change { verb: "run".to_owned(), ..Change::default() };
    let error = stage.change(&context, &same).unwrap_err();
    assert!(error.chain().join(" ").contains("its machine-id is not that"), "{error:?}");
    let pool: Arc<dyn HostPool + Send> = Arc::new(SimulatedPool(Arc::clone(&stage.simulation)));
    let is_ill = |pool: &Arc<dyn HostPool + Send>| {
        let status = status::ask(&context, &[], &Bare, pool, 8, "status");
        let complains = |host: &status::HostStatus| {
            host.problems.iter().any(|what| what.contains("machine-id"))
        };
        let ill = status.hosts.iter().filter(|host| complains(host));
        ill.map(|host| host.host.clone()).collect::<Vec<_>>()
    };
    assert_eq!(is_ill(&pool), [anew.as_str()]);
    stage.force = true;
    stage.change(&context, &same).unwrap();
    stage.force = false;
    stage.change(&context, &same).unwrap();
    assert!(is_ill(&pool).is_empty());
}

#[test]
fn lines_that_a_hosts_file_has_lost_are_told_and_written_again() {
    let directory = state();
    let mut context = cluster(directory.path());
    context.registry = Some(imgctl_model::testing::registry());
    let stage = Stage::new(Behaviour::default());
    stage.create(&context).unwrap();
    let same = Change { verb: "run".to_owned(), ..Change::default() };
    let planned = || stage.planned(|execution| change::plan(execution, &context, &same)).unwrap();
    assert!(planned().plan.phases.is_empty());

    let ill = context.hosts[3].id();
    stage.simulation.forget_names(&ill);
    let pool: Arc<dyn HostPool + Send> = Arc::new(SimulatedPool(Arc::clone(&stage.simulation)));
    let status = status::ask(&context, &[], &Bare, &pool, 8, "status");
    let complains = |host: &&status::HostStatus| {
        host.problems.iter().any(|what| what.contains("hosts file") && what.contains("sealos.hub"))
    };
    let told: Vec<&str> =
        status.hosts.iter().filter(complains).map(|host| host.host.as_str()).collect();
    assert_eq!(told, [ill.as_str()]);

    let repair = planned();
    let names = repair.plan.steps().filter(|step| step.id.starts_with("names/"));
    assert_eq!(
        names.map(|step| step.id.clone()).collect::<Vec<_>>(),
        [format!("names/{ill}/hosts")]
    );
    stage.execute(&repair).unwrap();
    assert!(planned().plan.phases.is_empty());

    // Also where another host comes.
    stage.simulation.forget_names(&ill);
    let mut larger = context.clone();
    let mut new = larger.hosts[4].clone();
    new.address.name = "10.77.0.99".to_owned();
    larger.hosts.push(new.clone());
    let addition = Change { verb: "add".to_owned(), add: vec![new], ..Change::default() };
    let plan = stage.planned(|execution| change::plan(execution, &larger, &addition)).unwrap().plan;
    assert!(plan.steps().any(|step| step.id == format!("names/{ill}/hosts")));
}
