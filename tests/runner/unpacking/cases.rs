//! Layers that go through symlinks, link to what lies elsewhere, or hide what they should not: what
//! imgctl makes of each, and who makes something else of it. The cases that containerd calls safe
//! are all here in our own words; docs/store.md gives the reasons for every difference.

use crate::common::TestEnv;
use crate::common::tree::{self, Tree};
use crate::unpacking::image::{layout, tar_of};
use crate::unpacking::readers::{self, Containerd, FILE_TIMES, Unpacked};

struct Case {
    name: &'static str,
    /// The layers, lowest first.
    layers: &'static [&'static [&'static str]],
    /// imgctl's tree; `None`: refused.
    tree: Option<&'static [&'static str]>,
    /// Those of `containerd umoci` whose tree is another one: `-` refused, `+` something else.
    others: &'static str,
}

const ETC: &[&str] = &["d etc 770", "f etc/passwd inside"];

const LINKS: &[Case] = &[
    // Through the layer's own symlinks, inside the root.
    Case {
        name: "a file below an absolute symlink",
        layers: &[&["d etc", "l here /etc", "f /here/file x"]],
        tree: Some(&["d etc", "f etc/file x", "l here /etc"]),
        others: "",
    },
    Case {
        name: "a file below a symlink that goes up and out",
        layers: &[&["d etc", "d d", "l here /d/../etc", "f here/file x"]],
        tree: Some(&["d d", "d etc", "f etc/file x", "l here /d/../etc"]),
        others: "",
    },
    Case {
        name: "a file below a chain of symlinks",
        layers: &[&["d etc", "d d", "l /d/etc /etc", "l here ./d/etc", "f here/file x"]],
        tree: Some(&["d d", "l d/etc /etc", "d etc", "f etc/file x", "l here ./d/etc"]),
        others: "",
    },
    Case {
        name: "a file emptied through a symlink",
        layers: &[&["d etc", "f etc/file full", "l here /etc", "f /here/file"]],
        tree: Some(&["d etc", "f etc/file ", "l here /etc"]),
        others: "",
    },
    Case {
        name: "a file below a symlink to nothing",
        layers: &[&["l here ../../made/deep", "f here/file x"]],
        tree: Some(&["l here ../../made/deep", "d made", "d made/deep", "f made/deep/file x"]),
        others: "",
    },
    Case {
        name: "a directory replaced by a symlink and made again",
        layers: &[&[
            "d a",
            "d a/b",
            "f a/b/c 1",
            "l a /",
            "f a/b/c 2",
            "d a",
            "d a/b",
            "f a/b/c 3",
        ]],
        tree: Some(&["d a", "d a/b", "f a/b/c 3", "d b", "f b/c 2"]),
        others: "",
    },
    Case {
        name: "a loop of symlinks on the way",
        layers: &[&["l a b", "l b a", "f a/x x"]],
        tree: None,
        others: "",
    },
    // Hard links.
    Case {
        name: "a hard link through a relative symlink",
        layers: &[
            ETC,
            &["d etc 770", "f etc/passwd inside", "d d", "l d/e ../../etc", "h d/p /d/e/passwd"],
        ],
        tree: Some(&[
            "d d",
            "l d/e ../../etc",
            "f d/p inside",
            "d etc 770",
            "f etc/passwd inside == d/p",
        ]),
        others: "",
    },
    Case {
        name: "a hard link through an absolute symlink",
        layers: &[&["d etc", "f etc/passwd inside", "l here /etc", "h p /here/passwd"]],
        tree: Some(&["d etc", "f etc/passwd inside", "l here /etc", "f p inside == etc/passwd"]),
        others: "",
    },
    Case {
        name: "a hard link through symlinks that go far up and down again",
        layers: &[&[
            "d etc",
            "f etc/passwd inside",
            "l a ../../../../../../etc",
            "d d",
            "l b d/../../../etc",
            "h p /a/passwd",
            "h q b/passwd",
        ]],
        tree: Some(&[
            "l a ../../../../../../etc",
            "l b d/../../../etc",
            "d d",
            "d etc",
            "f etc/passwd inside",
            "f p inside == etc/passwd",
            "f q inside == etc/passwd",
        ]),
        others: "",
    },
    Case {
        name: "a hard link to a name that leads outside",
        layers: &[&["d etc", "f etc/passwd inside", "h p ../../../etc/passwd", "h q /etc/passwd"]],
        tree: Some(&[
            "d etc",
            "f etc/passwd inside",
            "f p inside == etc/passwd",
            "f q inside == etc/passwd",
        ]),
        others: "",
    },
    Case {
        name: "a hard link to a symlink, before its target",
        layers: &[&["d etc", "l link /etc/passwd", "h copy link", "f etc/passwd after"]],
        tree: Some(&[
            "l copy /etc/passwd",
            "d etc",
            "f etc/passwd after",
            "l link /etc/passwd == copy",
        ]),
        others: "",
    },
    Case {
        name: "an entry below a hard link to a symlink",
        layers: &[&["d etc", "l link etc", "h copy /link", "f copy/x x"]],
        tree: Some(&["l copy etc", "d etc", "f etc/x x", "l link etc == copy"]),
        others: "",
    },
    Case {
        name: "a hard link keeps what its target was",
        layers: &[&["f a 1", "h b a", "f a 2", "h c a"]],
        tree: Some(&["f a 2", "f b 1", "f c 2 == a"]),
        others: "",
    },
    Case {
        name: "a hard link to a file of a lower layer",
        layers: &[&["f a x"], &["h b a"]],
        tree: Some(&["f a x", "f b x == a"]),
        others: "containerd-",
    },
    Case {
        name: "a hard link to a symlink of a lower layer",
        layers: &[&["l a x"], &["h b a"]],
        tree: Some(&["l a x", "l b x == a"]),
        others: "containerd-",
    },
    Case {
        name: "a hard link to a file of a lower layer that the layer deletes",
        layers: &[&["f a x"], &["h b a", "f .wh.a"]],
        tree: Some(&["f b x"]),
        others: "containerd-",
    },
    Case {
        name: "a hard link to a file that the layer has deleted",
        layers: &[&["f a x"], &["f .wh.a", "h b a"]],
        tree: None,
        others: "containerd+",
    },
    Case {
        name: "a hard link to what it replaces",
        layers: &[&["d a", "f a/x 1", "h a a/x"]],
        tree: None,
        others: "",
    },
    Case {
        name: "a hard link to a directory",
        layers: &[&["d a", "h b a"]],
        tree: None,
        others: "",
    },
    // Names.
    Case {
        name: "symlinks without a name of their own",
        layers: &[&[
            "d etc",
            "f etc/passwd inside",
            "l .. /etc",
            "l - /etc",
            "l / /etc",
            "h p etc/passwd",
        ]],
        tree: Some(&["d etc", "f etc/passwd inside", "f p inside == etc/passwd"]),
        others: "umoci-",
    },
    Case {
        name: "a symlink whose name ends with two dots",
        layers: &[&["d etc", "f etc/passwd inside", "l a/sub/.. /etc", "h a/p /etc/passwd"]],
        tree: Some(&["l a /etc", "d etc", "f etc/p inside", "f etc/passwd inside == etc/p"]),
        others: "",
    },
    Case {
        name: "names that lead outside",
        layers: &[&["f ../../x 1", "d a", "f a/../../../y 2"]],
        tree: Some(&["d a", "f x 1", "f y 2"]),
        others: "",
    },
    Case {
        name: "directories that are not listed",
        layers: &[&["d etc"], &["d /etc/sub", "d /etc/sub2/", "d /other/no/1", "d /other/no2/2/"]],
        tree: Some(&[
            "d etc",
            "d etc/sub",
            "d etc/sub2",
            "d other",
            "d other/no",
            "d other/no/1",
            "d other/no2",
            "d other/no2/2",
        ]),
        others: "",
    },
    Case {
        name: "an entry below a file of its layer",
        layers: &[&["f a x", "f a/b y"]],
        tree: Some(&["d a", "f a/b y"]),
        others: "containerd- umoci-",
    },
    Case {
        name: "an entry below a file of a lower layer",
        layers: &[&["f a x"], &["f a/b y"]],
        tree: Some(&["d a", "f a/b y"]),
        others: "umoci-",
    },
    // Symlinks of lower layers.
    Case {
        name: "a file below a symlink of a lower layer",
        layers: &[&["d etc", "l here /etc"], &["f here/x x"]],
        tree: Some(&["d etc", "d here", "f here/x x"]),
        others: "umoci+",
    },
    Case {
        name: "a directory in a symlink's place",
        layers: &[
            &["d etc", "f etc/passwd inside", "l here /etc"],
            &["d here", "h here/p /etc/passwd"],
        ],
        tree: Some(&["d etc", "f etc/passwd inside", "d here", "f here/p inside == etc/passwd"]),
        others: "containerd-",
    },
    Case {
        name: "a directory in a symlink's place, with a file of another",
        layers: &[
            &["d etc", "f etc/passwd inside", "l here etc", "h /here/p /etc/passwd"],
            &["d /here/", "f /here/p different"],
        ],
        tree: Some(&[
            "d etc",
            "f etc/p inside",
            "f etc/passwd inside == etc/p",
            "d here",
            "f here/p different",
        ]),
        others: "",
    },
    Case {
        name: "a symlink in a directory's place",
        layers: &[
            &["d etc", "f etc/passwd inside", "d here"],
            &["l here /etc", "h /here/p /etc/passwd"],
        ],
        tree: Some(&["d etc", "f etc/p inside", "f etc/passwd inside == etc/p", "l here /etc"]),
        others: "containerd-",
    },
];

const MARKERS: &[Case] = &[
    // Whiteouts.
    Case {
        name: "a whiteout of a symlink",
        layers: &[&["d etc", "f etc/passwd x", "l here /etc"], &["f .wh.here"]],
        tree: Some(&["d etc", "f etc/passwd x"]),
        others: "",
    },
    Case {
        name: "a whiteout below a symlink of a lower layer",
        layers: &[&["d etc", "f etc/a x", "f etc/b x", "l here /etc"], &["f here/.wh.b"]],
        tree: Some(&["d etc", "f etc/a x", "f etc/b x", "l here /etc"]),
        others: "containerd+ umoci+",
    },
    Case {
        name: "a whiteout below a symlink to nothing",
        layers: &[&["d etc", "f etc/a x", "l here /nowhere"], &["f here/.wh.etc"]],
        tree: Some(&["d etc", "f etc/a x", "l here /nowhere"]),
        others: "containerd+",
    },
    Case {
        name: "a whiteout below the layer's own symlink",
        layers: &[&["d etc", "f etc/a x", "f etc/b x"], &["l here /etc", "f here/.wh.b"]],
        tree: Some(&["d etc", "f etc/a x", "l here /etc"]),
        others: "",
    },
    Case {
        name: "a whiteout behind two dots",
        layers: &[&["d etc", "f etc/a x", "d b"], &["f nowhere/../.wh.etc"]],
        tree: Some(&["d b"]),
        others: "",
    },
    Case {
        name: "a whiteout of the parent directory",
        layers: &[ETC, &["f etc/.wh..."]],
        tree: None,
        others: "",
    },
    Case {
        name: "a whiteout of the directory itself",
        layers: &[ETC, &["f etc/.wh.."]],
        tree: None,
        others: "",
    },
    Case { name: "a whiteout of nothing", layers: &[ETC, &["f etc/.wh."]], tree: None, others: "" },
    Case {
        name: "a file below a whiteout",
        layers: &[ETC, &["f .wh.etc/file x"]],
        tree: None,
        others: "containerd+ umoci+",
    },
    Case {
        name: "a directory whose name is a whiteout",
        layers: &[ETC, &["d .wh.etc"]],
        tree: Some(&[]),
        others: "",
    },
    Case {
        name: "what aufs left behind",
        layers: &[ETC, &["d .wh..wh.plnk", "f .wh..wh.plnk/1.2", "f .wh..wh.aufs", "f b x"]],
        tree: Some(&["f b x", "d etc 770", "f etc/passwd inside"]),
        others: "containerd+ umoci+",
    },
    Case {
        name: "a program below a name like those of aufs",
        layers: &[ETC, &["d usr", "l usr/bin .wh..wh.x", "f usr/.wh..wh.x/sh x"]],
        tree: None,
        others: "containerd+ umoci+",
    },
    Case {
        name: "a whiteout that is a symlink",
        layers: &[ETC, &["l .wh.l /etc", "f .wh.l/passwd outside"]],
        tree: None,
        others: "containerd+ umoci+",
    },
    Case {
        name: "a whiteout after what the layer puts there",
        layers: &[&["d a 700", "d a/b 700", "f a/b/old x"], &["f a/b/new x", "f .wh.a"]],
        tree: Some(&["d a", "d a/b", "f a/b/new x"]),
        others: "containerd- umoci+",
    },
    Case {
        name: "an opaque marker after what the layer puts there",
        layers: &[&["d a 700", "f a/old x"], &["d a 711", "f a/new x", "f a/.wh..wh..opq"]],
        tree: Some(&["d a 711", "f a/new x"]),
        others: "",
    },
    Case {
        name: "an opaque marker for what becomes a file",
        layers: &[&["d a 700", "f a/old x"], &["f a/.wh..wh..opq", "f a x"]],
        tree: Some(&["f a x"]),
        others: "",
    },
    Case {
        name: "an opaque marker for what is a file",
        layers: &[&["d a 700", "f a/old x"], &["f a x", "f a/.wh..wh..opq"]],
        tree: Some(&["f a x"]),
        others: "containerd-",
    },
    Case {
        name: "a directory deleted and made again",
        layers: &[&["d a 700", "f a/old x"], &["f .wh.a", "d a 711", "f a/new x"]],
        tree: Some(&["d a 711", "f a/new x"]),
        others: "containerd+",
    },
    // Devices.
    Case {
        name: "a character device 0/0",
        layers: &[&["f a x"], &["c a 0:0"]],
        tree: None,
        others: "containerd+ umoci+",
    },
    Case {
        name: "devices and pipes",
        layers: &[&["c null 1:3", "p pipe"], &["h null2 null", "h pipe2 pipe"]],
        tree: Some(&["c null 0x103", "c null2 0x103 == null", "p pipe", "p pipe2 == pipe"]),
        others: "containerd-",
    },
];

/// A tree as the cases write it; modes of directories only where they are not 0755.
fn shown(tree: &Tree) -> Vec<String> {
    let contents = ["", "x", "y", "1", "2", "3", "inside", "after", "different", "full"];
    let shown = |(name, entry): (&String, &tree::Entry)| {
        let mut line = format!("{} {name}", entry.kind);
        match entry.kind {
            'd' if entry.mode != 0o755 => line += &format!(" {:o}", entry.mode),
            'f' => {
                let content = contents.iter().find(|content| {
                    use sha2::Digest as _;
                    tree::hex(&sha2::Sha256::digest(content)) == entry.content
                });
                line += &format!(" {}", content.unwrap());
            }
            'l' | 'c' => line += &format!(" {}", entry.content),
            _ => {}
        }
        if let Some(first) = entry.same_as.as_ref().filter(|first| *first != name) {
            line += &format!(" == {first}");
        }
        line
    };
    tree.iter().map(shown).collect()
}

/// `None` for the same tree, or how the other's outcome differs.
fn relation(ours: &Unpacked, other: &Unpacked) -> Option<char> {
    match (ours, other) {
        (Ok(ours), Ok(other)) => {
            let differences = tree::differences(ours, other, FILE_TIMES);
            (!differences.is_empty()).then_some('+')
        }
        (Err(_), Err(_)) => None,
        (Ok(_), Err(_)) => Some('-'),
        (Err(_), Ok(_)) => Some('+'),
    }
}

#[test]
fn layers_that_go_through_links() {
    compare(LINKS);
}

#[test]
fn layers_that_hide_things() {
    compare(MARKERS);
}

fn compare(cases: &[Case]) {
    if !crate::common::needs_root() {
        return;
    }
    crate::unpacking::private_mounts();
    let env = TestEnv::new();
    let containerd = Containerd::start(&env);
    let mut wrong = Vec::new();
    for (number, case) in cases.iter().enumerate() {
        let layers: Vec<Vec<u8>> = case.layers.iter().map(|lines| tar_of(lines)).collect();
        let path = layout(&env.path(format!("case{number}")), &layers);
        let ours = readers::imgctl(&env, case.name, &path);
        let found = ours.as_ref().ok().map(shown);
        let expected = case.tree.map(|lines| {
            let lines = lines.iter().map(|line| (*line).to_owned());
            lines.collect::<Vec<_>>()
        });
        if found != expected {
            wrong.push(format!(
                "{}:\n  expected {expected:?}\n  found    {found:?} {:?}",
                case.name,
                ours.as_ref().err()
            ));
        }
        let others = [
            ("containerd", containerd.unpack(&env, &path)),
            ("umoci", readers::umoci(&env, &path)),
        ];
        let relations: Vec<String> = others
            .iter()
            .filter_map(|(who, other)| relation(&ours, other).map(|how| format!("{who}{how}")))
            .collect();
        let relations = relations.join(" ");
        if relations != case.others {
            let outcomes: Vec<String> = others
                .iter()
                .map(|(who, other)| match other {
                    Ok(tree) => format!("  {who}: {:?}", shown(tree)),
                    Err(why) => {
                        format!("  {who}: refused: {}", why.lines().last().unwrap_or_default())
                    }
                })
                .collect();
            wrong.push(format!(
                "{}: others `{relations}`, recorded `{}`\n{}\n  ours: {found:?}",
                case.name,
                case.others,
                outcomes.join("\n")
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
