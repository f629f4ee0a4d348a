//! The files that generated Kubefiles copy: one of everything that a file system can hold, with
//! times, modes and owners that a builder can get wrong.

use std::path::Path;

use crate::common::{Ran, tool};

/// Makes the build context and the content of the base image below `root`.
pub(super) fn make(root: &Path) {
    let script = r#"
umask 022
mkdir -p context base
cd context
mkdir -p dir/sub/deep empty priv sticky hard own/d7 logs links tree/a/b tree/c
echo a > a.txt; echo b > b.txt; chmod 600 b.txt; echo c > c.md; echo h > .hidden
printf '#!/bin/sh\n' > x.sh; chmod 755 x.sh
echo s > suid; chmod 4755 suid
echo u > 'ünï.txt'; echo w > 'w o.txt'
echo one > dir/one.txt; echo two > dir/two.txt; echo dot > dir/.dot
echo three > dir/sub/three.txt; echo four > dir/sub/deep/four.txt
ln -s one.txt dir/link; ln -s /etc/x dir/abs; ln -s nope dir/dangling; ln -s sub dir/dlink
echo k > priv/k; chmod 400 priv/k; chmod 700 priv
echo f > sticky/f; chmod 1777 sticky
echo h > hard/h1; ln hard/h1 hard/h2; ln hard/h1 hard/h3
echo o > own/u5; echo o > own/d7/f; chown 5:6 own/u5; chown -R 7:8 own/d7; chmod 2750 own/d7
echo 1 > logs/m1.log; echo 2 > logs/m2.log; echo 3 > logs/m3.txt; echo 4 > logs/n4.log
ln -s ../dir links/ld; ln -s ../a.txt links/lf; ln -s dir tree/loop
echo 1 > tree/a/b/1.txt; echo 2 > tree/a/2.md; echo 3 > tree/c/3.txt; : > tree/none
echo x > xattr; setfattr -n user.note -v kept xattr
mkdir t; cd t; mkdir td td/in; echo 1 > td/f1; echo 2 > td/in/f2; ln -s f1 td/l; ln td/f1 td/h
chmod 640 td/f1; chmod 711 td/in; find . -print0 | xargs -0 touch -h -d @1400000000
tar --owner=3 --group=4 -cf ../t.tar td; tar --owner=0 --group=0 -czf ../t.tgz -C td f1 in l; cd ..; rm -r t
find . -print0 | xargs -0 touch -h -d @1500000000
touch -d @1500000001 a.txt; touch -d @1500000002 b.txt; touch -h -d @1500000003 dir/link
touch -d @1500000004 dir/sub; touch -d @1500000005 empty
cd ../base
mkdir -p etc data/real opt/deep work
echo 'root:x:0:0::/:/bin/sh
usr:x:41:42::/:/bin/sh' > etc/passwd
echo 'root:x:0:
grp:x:43:
usr:x:42:' > etc/group
echo file > file; echo r > data/real/r; ln -s data/real lnk; ln -s /opt abs; ln -s ../file opt/up
chmod 1777 opt; chown 41:42 data; chmod 750 data; chown 9:9 work
find . -print0 | xargs -0 touch -h -d @1450000000
"#;
    let mut command = tool("bash", ["-euc", script]);
    command.env("LC_ALL", "C.UTF-8").current_dir(root);
    Ran::new(command).ok();
}

/// The base image, which both builders build once.
pub(super) const BASE: &str = r#"FROM scratch
COPY . /
ENV BASE=b0 PATHS=/p:/q EMPTY=
LABEL base=yes both=base
WORKDIR /work
EXPOSE 1/tcp
ENTRYPOINT ["/entry"]
CMD ["given"]
"#;

/// Files and directories of the context, and patterns that match some; the last are symbolic links.
pub(super) const SOURCES: [&str; 44] = [
    "a.txt",
    "b.txt",
    "c.md",
    ".hidden",
    "x.sh",
    "suid",
    "ünï.txt",
    "./a.txt",
    "/b.txt",
    "xattr",
    "dir",
    "dir/",
    "./dir",
    "dir/.",
    "dir/sub",
    "dir/sub/",
    "dir/sub/../one.txt",
    "empty",
    "priv",
    "priv/k",
    "sticky",
    "hard",
    "hard/h2",
    "own",
    "own/d7",
    "logs",
    "tree",
    "tree/a/b/1.txt",
    "links",
    "*.txt",
    "?.txt",
    "[ab].txt",
    "d*",
    "logs/m*",
    "logs/*.log",
    "dir/*.txt",
    "*/one.txt",
    "tree/*/*.txt",
    "logs/m[12].log",
    "dir/l*",
    "links/ld",
    "links/lf",
    "dir/link",
    "dir/dlink",
];

/// How many of them are links.
pub(super) const LINKS: usize = 5;

/// What an ignore file may say.
pub(super) const RULES: [&str; 34] = [
    "*.md",
    "**/*.md",
    "dir/sub",
    "dir/sub/",
    "/dir/sub",
    "**/deep",
    "*.log",
    "**/*.log",
    "logs/m*",
    "!logs/m1.log",
    "!logs",
    "dir",
    "!dir/one.txt",
    "!dir/sub/deep/four.txt",
    "*",
    "!a.txt",
    "!dir",
    "!hard",
    "**/*.txt",
    "!**/one.txt",
    "tree/*/b",
    "tree/**/1.txt",
    "?.txt",
    "[a-c].*",
    "[^a]*.txt",
    "own/d7",
    "# comment",
    "",
    "  spaced.txt  ",
    "./c.md",
    "nothing/here",
    "!nothing",
    "priv",
    "**/h2",
];
