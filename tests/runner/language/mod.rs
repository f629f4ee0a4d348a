//! The language of Kubefiles against the answers of BuildKit: each file is one part of the language.

mod addresses;
mod arguments;
mod calls;
mod checks;
mod contexts;
mod copies;
mod mounts;
mod outputs;
mod platforms;
mod remote;
mod steps;

use std::path::PathBuf;

use crate::common::{Ran, TestEnv};

/// A context in which images with a shell can be built.
struct Language {
    env: TestEnv,
}

impl Language {
    fn new() -> Self {
        let env = TestEnv::new();
        env.write("context/unused", "");
        Self { env }
    }

    fn file(&self, name: &str, content: &str) {
        self.env.write(format!("context/{name}"), content);
    }

    /// Makes the image `localhost/shell`: busybox and two users.
    fn shell(&self) {
        let base = self.env.path("shell");
        self.env.write("shell/etc/passwd", "root:x:0:0::/root:/bin/sh\nuser:x:7:8::/:/bin/sh\n");
        self.env.write("shell/etc/group", "root:x:0:\nstaff:x:9:\n");
        std::fs::create_dir_all(base.join("bin")).unwrap();
        std::fs::copy("/bin/busybox", base.join("bin/busybox"))
            .expect("no busybox: run scripts/setup");
        for name in
            ["sh", "cat", "echo", "hostname", "ls", "mkdir", "stat", "touch", "grep", "head"]
        {
            let _ = std::os::unix::fs::symlink("busybox", base.join("bin").join(name));
        }
        self.env.write(
            "shell/Kubefile",
            "FROM scratch\nCOPY bin /bin\nCOPY etc /etc\nENV origin=image\n",
        );
        self.env.build("shell", &base).ok();
    }

    fn build(&self, kubefile: &str, flags: &[&str]) -> Ran {
        self.env.write("Kubefile", kubefile);
        let file = self.env.path("Kubefile");
        let mut words = vec!["build", "--network=none", "--pull=never", "-t", "app", "-f"];
        let context = self.env.path("context");
        words.push(file.to_str().unwrap());
        words.extend(flags);
        words.push(context.to_str().unwrap());
        self.env.imgctl(words)
    }

    /// Builds, and returns the content of a file of the image.
    fn built(&self, kubefile: &str, flags: &[&str], path: &str) -> String {
        self.build(kubefile, flags).ok();
        self.content(path)
    }

    fn content(&self, path: &str) -> String {
        self.env.imgctl(["cat", &format!("app:{path}")]).ok().stdout().trim_end().to_owned()
    }

    /// Builds, and returns the directory with the image's files, with their owners as root.
    fn exported(&self, kubefile: &str, flags: &[&str]) -> PathBuf {
        self.build(kubefile, flags).ok();
        let to = self.env.path("exported");
        let _ = std::fs::remove_dir_all(&to);
        self.env.export("app", "exported")
    }
}
