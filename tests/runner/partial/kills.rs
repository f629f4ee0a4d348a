//! `kill -9` in the middle: the next pull goes on, and nothing that is visible is damaged.

use std::process::Stdio;
use std::time::{Duration, Instant};

use super::Bench;
use crate::common::{Ran, long};
use crate::faults::support::{assert_scrubs_clean, random};
use crate::pull::proxy::Proxy;

/// Kills in the short selection and in the long one.
const ROUNDS: (u32, u32) = (4, 200);

#[test]
fn a_partial_pull_can_be_killed_at_any_time() {
    let bench = Bench::new("zstd");
    let proxy = Proxy::start(&bench.registry.host);
    let name = format!("{}/team/app:v2", proxy.host);
    let pull = || bench.env.command(["pull", "--json", &name]);
    let forget = || {
        bench.env.imgctl(["rmi", &name]).ok();
        bench.env.imgctl(["prune", "--all"]).ok();
    };
    let begun = Instant::now();
    Ran::new(pull()).ok();
    let time = begun.elapsed();
    let mut hits = 0;
    for round in 0..if long() { ROUNDS.1 } else { ROUNDS.0 } {
        forget();
        let part = (random() >> 11) as f64 / (1_u64 << 53) as f64;
        let mut child = pull().stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        std::thread::sleep(Duration::from_secs_f64(time.as_secs_f64() * part));
        child.kill().unwrap();
        hits += u32::from(child.wait().unwrap().code().is_none());
        assert_scrubs_clean(&bench.env);
        let before = proxy.bytes();
        Ran::new(pull()).ok();
        let came = proxy.bytes() - before;
        assert!(came < 450_000, "round {round}: {came} bytes came");
        bench.assert_is_new(&name);
    }
    println!("{hits} were hit");
}
