//! Plugins that tests compile, and jobs that use them.

#![allow(dead_code, reason = "each test uses a part")]

use oxccl_tests::job::{Ended, Job};
use oxccl_tests::missing;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

pub(crate) const RANK: &str = env!("CARGO_BIN_EXE_oxccl-test-rank");
pub(crate) const MANIFEST: &str = env!("CARGO_MANIFEST_DIR");

/// A folder with a plugin, removed at the end.
pub(crate) struct Plugin {
    pub(crate) folder: PathBuf,
    file: PathBuf,
}

impl Plugin {
    /// Compiles the net plugin of a version; `None` without a C compiler.
    pub(crate) fn net(version: u32, flags: &[&str]) -> Option<Self> {
        Self::compile("net", version, flags)
    }

    /// Compiles a plugin of a kind and version.
    pub(crate) fn compile(kind: &str, version: u32, flags: &[&str]) -> Option<Self> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("oxccl-plugin-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder).expect("a folder");
        let file = folder.join(format!("libnccl-{kind}-v{version}.so"));
        let tests = Path::new(MANIFEST);
        let output = Command::new("cc")
            .args(["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"])
            .args(["-fvisibility=hidden", "-pthread"])
            .arg(format!("-DVERSION={version}"))
            .args(flags)
            .arg("-I")
            .arg(tests.join("../plugins/include"))
            .arg("-I")
            .arg(tests.join("../capi/include"))
            .arg(tests.join(format!("plugins/{kind}.c")))
            .arg("-o")
            .arg(&file)
            .output();
        match output {
            Err(e) => {
                missing("cc", &e.to_string());
                None
            }
            Ok(output) => {
                let text = String::from_utf8_lossy(&output.stderr);
                assert!(output.status.success(), "version {version}: {text}");
                Some(Self { folder, file })
            }
        }
    }

    /// Returns our TCP transport as a plugin.
    pub(crate) fn tcp() -> Self {
        Self::own("liboxccl_net_tcp.so", "libnccl-net-oxccl.so")
    }

    /// Returns a plugin of ours that cargo has built, under the name of its installation.
    pub(crate) fn own(built: &str, installed: &str) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let program = std::env::current_exe().expect("a path");
        let name = format!("oxccl-plugin-{}-own-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder).expect("a folder");
        let file = folder.join(installed);
        std::fs::copy(program.with_file_name(built), &file).expect("cargo has built it for this");
        Self { folder, file }
    }

    /// Takes a symbol out of the library, as if it had been built without it: the tables of names
    /// have another one in its place.
    pub(crate) fn hide(&self, symbol: &str) {
        let mut bytes = std::fs::read(&self.file).expect("it was built");
        let name = [symbol.as_bytes(), b"\0"].concat();
        let is_there = |at: &usize| bytes[*at..].starts_with(&name);
        let places: Vec<_> = (0..bytes.len()).filter(is_there).collect();
        assert!(!places.is_empty(), "{symbol} is not there");
        places.into_iter().for_each(|at| bytes[at] = b'_');
        std::fs::write(&self.file, bytes).expect("the file is this test's");
    }

    pub(crate) fn report(&self) -> PathBuf {
        self.folder.join("report")
    }

    pub(crate) fn path(&self) -> &str {
        self.file.to_str().expect("a plain path")
    }

    /// Runs a job of ranks that are hosts of their own with this net plugin.
    pub(crate) fn job(
        &self,
        nranks: u32,
        arguments: &[&str],
        variables: &[(&str, &str)],
    ) -> Vec<Ended> {
        let own = [("NCCL_NET_PLUGIN", self.path()), ("OXCCL_RANKS_PER_NODE", "1")];
        self.run(nranks, arguments, &[&own, variables].concat())
    }

    /// Runs a job of ranks.
    pub(crate) fn run(
        &self,
        nranks: u32,
        arguments: &[&str],
        variables: &[(&str, &str)],
    ) -> Vec<Ended> {
        let job = Job::start(Path::new(RANK), nranks, Duration::from_secs(100), |_, command| {
            command
                .args(arguments)
                .env("FIXTURE_REPORT", self.report())
                .env("NCCL_DEBUG", "INFO")
                .env("NCCL_DEBUG_SUBSYS", "NET,TUNING")
                .envs(variables.iter().copied());
        });
        job.wait()
    }

    /// Takes what the plugins of a job said at their end.
    pub(crate) fn take_report(&self) -> String {
        let text = std::fs::read_to_string(self.report()).unwrap_or_default();
        let _ = std::fs::remove_file(self.report());
        text
    }
}

impl Drop for Plugin {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Returns whether a rank tells that an operation has waited for two seconds, its limit: one of its
/// own, or one of another rank.
pub(crate) fn tells_of_the_limit(output: &str) -> bool {
    // It is noticed at the next look, which a busy machine makes later.
    output.contains(" waited 2") || output.contains(" gave up waiting")
}

pub(crate) fn expect_success(ended: &[Ended]) {
    for (rank, ended) in ended.iter().enumerate() {
        assert_eq!(ended.status, Some(0), "rank {rank}:\n{}", ended.output);
    }
}
