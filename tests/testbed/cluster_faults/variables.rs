//! Values with every character that a shell, YAML or a list would take for its own: they reach
//! scripts, commands and templates as they are, from wherever they come.

use crate::cluster_faults::support::{arguments, bed, image, reset};

const ODD: &str = "q\" s' d$HOME b` $(id) \\ \\n , = ; & | * ~ # { x } end";

#[test]
fn odd_values_arrive_unchanged_from_every_position() {
    let Some(bed) = bed(1) else { return };
    let ip = bed.ip(1);
    let two_lines = format!("{ODD}\nsecond line, = \"x\"\n");
    // In a Kubefile a value is in double quotes, where these three are escaped.
    let escaped = ODD.replace('\\', "\\\\").replace('"', "\\\"").replace('$', "\\$");
    let write = "for name in FROM_IMAGE FROM_SPEC FROM_HOST FROM_FLAG; do\n\
         printf '%s' \"${!name}\" > /var/lib/$name\ndone\n";
    let template = "{{ .FROM_IMAGE }}|{{ .FROM_SPEC }}|{{ .FROM_HOST }}|{{ .FROM_FLAG }}|";
    let more = format!("ENV FROM_IMAGE=\"{escaped}\"\n");
    image(&bed, "f:1", &more, &[("scripts/init.sh", write), ("etc/all.tmpl", template)]);

    let list = |name: &str| serde_json::to_string(&format!("{name}={two_lines}")).unwrap();
    let key = bed.key();
    let clusterfile = format!(
        "apiVersion: apps.sealos.io/v1beta1\nkind: Cluster\nmetadata:\n  name: odd\nspec:\n  \
         image: [\"f:1\"]\n  env:\n    - {}\n  ssh:\n    user: root\n    pk: {}\n  hosts:\n    \
         - ips: [\"{ip}:22\"]\n      roles: [master, amd64]\n      env:\n        - {}\n",
        list("FROM_SPEC"),
        key.display(),
        list("FROM_HOST"),
    );
    let file = bed.env.write("Clusterfile", clusterfile);
    let flag = format!("FROM_FLAG={two_lines}");
    bed.imgctl(["apply", "-f", file.to_str().unwrap(), "--env", &flag]).ok();
    let read = |path: &str| {
        let ran = bed.exec(1, &format!("cat {path}")).ok();
        String::from_utf8(ran.bytes().to_vec()).unwrap()
    };
    assert_eq!(read("/var/lib/FROM_IMAGE"), ODD);
    for name in ["FROM_SPEC", "FROM_HOST", "FROM_FLAG"] {
        assert_eq!(read(&format!("/var/lib/{name}")), two_lines, "{name}");
    }
    let expected = format!("{ODD}|{two_lines}|{two_lines}|{two_lines}|");
    assert_eq!(read("/var/lib/sealos/data/odd/rootfs/etc/all"), expected);
    // Kept: the same is known when nothing is said.
    let again = bed.imgctl(arguments(&bed, &["run", "f:1"], "odd", &[])).ok();
    assert!(again.stdout().contains("nothing to do"), "{}", again.report());
    reset(&bed, "odd");
}
