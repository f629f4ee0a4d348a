//! What the agent does to a host's files, in a mount namespace of its own so that it is not this
//! machine's files that change.

use serde_json::{Value, json};

use crate::agent::conversation::Conversation;
use crate::common::{TestEnv, needs_root};

/// An agent for which `setup` has changed the mounts; `None`, with a word, when this test is skipped.
fn apart(env: &TestEnv, setup: &str) -> Option<Conversation> {
    if !needs_root() {
        return None;
    }
    let script = format!("{setup} && exec \"$@\"");
    let words = ["unshare", "-m", "sh", "-ec", &script, "sh"];
    Some(Conversation::through(env, &words))
}

fn block(cluster: &str, entries: &[[&str; 2]]) -> Value {
    json!({"cluster": cluster, "entries": entries})
}

#[test]
fn the_hosts_file_of_a_container_is_written_in_place() {
    let env = TestEnv::new();
    let hosts = env.write("hosts", "127.0.0.1 localhost\n9.9.9.9 api.c # by hand");
    let setup = format!("mount --bind '{}' /etc/hosts", hosts.display());
    let Some(agent) = apart(&env, &setup) else {
        return;
    };
    let set =
        agent.call("set-hosts", &block("c", &[["10.0.0.1", "api.c"], ["10.0.0.1", "sealos.hub"]]));
    assert_eq!(set["done"]["changed"], true, "{set}");
    let note = set["done"]["notes"][0].as_str().unwrap();
    assert!(note.contains("line 2 maps api.c to 9.9.9.9"), "{note}");
    let text = std::fs::read_to_string(&hosts).unwrap();
    assert_eq!(
        text,
        "127.0.0.1 localhost\n9.9.9.9 api.c # by hand\n\
         # imgctl begin c\n10.0.0.1 api.c\n10.0.0.1 sealos.hub\n# imgctl end c"
    );
    let again =
        agent.call("set-hosts", &block("c", &[["10.0.0.1", "api.c"], ["10.0.0.1", "sealos.hub"]]));
    assert_eq!(again["done"]["changed"], false);
    let gone = agent.call("set-hosts", &block("c", &[]));
    assert_eq!(gone["done"]["changed"], true);
    let text = std::fs::read_to_string(&hosts).unwrap();
    assert_eq!(text, "127.0.0.1 localhost\n9.9.9.9 api.c # by hand");
}

#[test]
fn removal_stops_at_mounts_and_names_them() {
    let env = TestEnv::new();
    let other = env.write("other/kept", "").parent().unwrap().to_owned();
    env.write("tree/a/file", "");
    env.write("tree/a/with blank/x", "");
    env.write("tree/b/file", "");
    let tree = env.path("tree");
    let setup = format!("mount --bind '{}' '{}/a/with blank'", other.display(), tree.display());
    let Some(agent) = apart(&env, &setup) else {
        return;
    };
    let left = agent.call("remove", &json!({"paths": [tree, env.path("not there")]}));
    let left = left["done"].as_array().unwrap();
    assert_eq!(left.len(), 1, "{left:?}");
    let text = left[0].as_str().unwrap();
    assert!(text.contains("a/with blank: something is mounted on it"), "{text}");
    assert!(other.join("kept").exists());
    assert!(!tree.join("b").exists() && !tree.join("a/file").exists());
}

#[test]
fn a_read_only_place_is_told() {
    let env = TestEnv::new();
    let place = env.write("place/x", "").parent().unwrap().to_owned();
    let shown = place.display();
    let setup = format!("mount --bind '{shown}' '{shown}' && mount -o remount,ro,bind '{shown}'");
    let Some(agent) = apart(&env, &setup) else {
        return;
    };
    let facts = agent.call("facts", &json!({"data_root": place.join("data/root")}));
    assert_eq!(facts["done"]["facts"]["writable"], false);
    let file = json!({"path": place.join("new"), "mode": 420, "content": "aGk="});
    let failed = agent.call("write-file", &file);
    assert!(failed["failed"]["chain"].to_string().contains("Read-only file system"), "{failed}");
}
