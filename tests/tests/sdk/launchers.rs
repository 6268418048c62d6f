//! Ranks that srun starts, under a Slurm of one node, and mpiexec of MPICH, and ranks with the
//! variables of torchrun.

use crate::{ROOT, folder, have, pkg_config, prefix, run, succeed};
use oxccl_tests::job::{bind_to_parent, wait_until};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The first example, compiled.
pub(crate) fn hello(folder: &Path) -> PathBuf {
    compiled(folder, "hello")
}

/// A program of this name, compiled.
fn compiled(folder: &Path, name: &str) -> PathBuf {
    let program = folder.join(name);
    let mut command = Command::new("cc");
    command.arg(Path::new(ROOT).join(format!("tests/sdk/{name}.c")));
    command.args(pkg_config(prefix(), &["--cflags", "--libs", "oxccl"]));
    succeed(command.arg("-o").arg(&program));
    program
}

/// A munge daemon, and Slurm's two; they end with it.
struct Slurm {
    folder: PathBuf,
    daemons: Vec<Child>,
}

impl Slurm {
    fn start() -> Self {
        // munge's socket has a short path, which everyone may enter.
        let folder = std::env::temp_dir().join(format!("oxccl-slurm-{}", std::process::id()));
        std::fs::create_dir_all(folder.join("state")).expect("a folder");
        std::fs::create_dir_all(folder.join("spool")).expect("a folder");
        let mode = std::fs::Permissions::from_mode;
        std::fs::set_permissions(&folder, mode(0o711)).expect("its own folder");
        let key = folder.join("munge.key");
        let bytes = std::fs::read("/proc/sys/kernel/random/uuid").expect("a random number");
        std::fs::write(&key, bytes).expect("a file");
        std::fs::set_permissions(&key, mode(0o600)).expect("its own file");
        configure(&folder);
        let mut slurm = Self { folder, daemons: Vec::new() };
        // It returns when the daemon answers.
        succeed(&mut slurm.munged());
        slurm.daemon("slurmctld", &["-D", "-c"]);
        slurm.daemon("slurmd", &["-D"]);
        slurm
    }

    fn munged(&self) -> Command {
        let file =
            |option: &str, name: &str| format!("--{option}={}/{name}", self.folder.display());
        let mut command = Command::new("munged");
        command.arg(file("socket", "munge.sock")).arg(file("key-file", "munge.key"));
        command.arg(file("pid-file", "munge.pid")).arg(file("log-file", "munge.log"));
        command.arg(file("seed-file", "munge.seed")).arg("--force");
        command
    }

    fn daemon(&mut self, name: &str, arguments: &[&str]) {
        let log = std::fs::File::create(self.folder.join(format!("{name}.log"))).expect("a file");
        let mut command = Command::new(name);
        command.args(arguments).arg("-f").arg(self.folder.join("slurm.conf"));
        command.stdin(Stdio::null()).stdout(log.try_clone().expect("a handle")).stderr(log);
        self.daemons.push(bind_to_parent(&mut command).spawn().expect("it starts"));
    }

    /// Runs a program on 4 ranks; what they printed.
    fn run(&self, program: &Path) -> String {
        let mut command = Command::new("srun");
        command.args(["-n", "4", "--immediate=120"]).arg(program);
        let (status, text) =
            run(prefix(), command.env("SLURM_CONF", self.folder.join("slurm.conf")));
        let log = |name: &str| std::fs::read_to_string(self.folder.join(name)).unwrap_or_default();
        let logs = || format!("{}\n{}", log("slurmctld.log"), log("slurmd.log"));
        assert_eq!(status, Some(0), "{text}\n{}", logs());
        text
    }
}

impl Drop for Slurm {
    fn drop(&mut self) {
        // What has ended already needs no end.
        for mut daemon in self.daemons.drain(..) {
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
        let _ = self.munged().arg("--stop").output();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Writes slurm.conf, with ports that nobody uses.
fn configure(folder: &Path) {
    let listeners = [(), ()].map(|()| TcpListener::bind("127.0.0.1:0").expect("a port"));
    let [controller, node] =
        listeners.each_ref().map(|l| l.local_addr().expect("its port").port().to_string());
    let host = succeed(Command::new("uname").arg("-n"));
    let user = succeed(Command::new("id").arg("-un"));
    let template = Path::new(ROOT).join("tests/sdk/slurm.conf");
    let mut text = std::fs::read_to_string(template).expect("a file");
    for (name, value) in [
        ("@FOLDER@", folder.display().to_string().as_str()),
        ("@HOST@", host.trim().split('.').next().unwrap_or_default()),
        ("@USER@", user.trim()),
        ("@CONTROLLER_PORT@", &controller),
        ("@NODE_PORT@", &node),
    ] {
        text = text.replace(name, value);
    }
    std::fs::write(folder.join("slurm.conf"), text).expect("a file");
}

#[test]
fn srun() {
    let there = ["cc", "pkg-config", "munged", "slurmctld", "slurmd", "srun"].map(have);
    if there.contains(&false) {
        return;
    }
    let folder = folder("srun");
    let hello = hello(&folder);
    let slurm = Slurm::start();
    // Twice: the second job must not take the first one's id.
    for _ in 0..2 {
        let text = slurm.run(&hello);
        assert_eq!(text.matches("of 4: all right").count(), 4, "{text}");
    }
}

#[test]
fn mpiexec_of_mpich() {
    if !have("cc") || !have("pkg-config") || !have("mpiexec.mpich") {
        return;
    }
    let hello = hello(&folder("mpich"));
    let text = succeed(Command::new("mpiexec.mpich").args(["-n", "4"]).arg(hello));
    assert_eq!(text.matches("of 4: all right").count(), 4, "{text}");
}

/// The variables that torchrun gives to one of 4 processes of a host, and no others but those that
/// any process has.
fn torchrun(program: &Path, rank: u32, port: u16, restart: u32) -> Command {
    let mut command = Command::new(program);
    command.env_clear().env("PATH", "/usr/bin:/bin").env("LD_LIBRARY_PATH", prefix().join("lib"));
    let numbers = [("LOCAL_RANK", rank), ("RANK", rank), ("GROUP_RANK", 0), ("ROLE_RANK", rank)];
    let sizes = [("LOCAL_WORLD_SIZE", 4), ("WORLD_SIZE", 4), ("GROUP_WORLD_SIZE", 1)];
    command.envs(numbers.map(|(name, n)| (name, n.to_string())));
    command.envs(sizes.map(|(name, n)| (name, n.to_string())));
    command
        .env("ROLE_WORLD_SIZE", "4")
        .env("ROLE_NAME", "default")
        .env("MASTER_ADDR", "127.0.0.1")
        .env("MASTER_PORT", port.to_string())
        .env("TORCHELASTIC_RESTART_COUNT", restart.to_string())
        .env("TORCHELASTIC_MAX_RESTARTS", "1")
        .env("TORCHELASTIC_RUN_ID", "none")
        .env("TORCHELASTIC_USE_AGENT_STORE", "True")
        .env("TORCHELASTIC_ERROR_FILE", "/tmp/error.json")
        .env("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")
        .env("OMP_NUM_THREADS", "1");
    command
}

#[test]
fn torchruns_variables() {
    if !have("cc") || !have("pkg-config") {
        return;
    }
    let folder = folder("torchrun");
    let hello = hello(&folder);
    // torchrun itself listens at MASTER_PORT. Two jobs at once, both of the run "none", and one
    // restart of the first.
    let stores = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").expect("a port"));
    let [first, second] = stores.each_ref().map(|s| s.local_addr().expect("its port").port());
    let mut ranks = Vec::new();
    for (port, restart) in [(first, 0), (second, 0), (first, 1)] {
        for rank in 0..4 {
            let mut command = torchrun(&hello, rank, port, restart);
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
            ranks.push((rank, bind_to_parent(&mut command).spawn().expect("it starts")));
        }
    }
    for (rank, mut child) in ranks {
        let status = wait_until(&mut child, Instant::now() + Duration::from_secs(60));
        let output = child.wait_with_output().expect("its output");
        let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        assert_eq!(status, Some(0), "{text}");
        assert!(text.contains(&format!("rank {rank} of 4: all right")), "{text}");
    }
}

#[test]
fn ranks_that_encrypt_meet_under_oxccl_run_with_their_key() {
    const KEY: &str = "the key of all ranks";
    if !have("cc") || !have("pkg-config") {
        return;
    }
    let folder = folder("encrypted");
    let program = compiled(&folder, "encrypted");
    let file = folder.join("key");
    let launch = |options: &[&str], key: &str| {
        let mut command = Command::new(prefix().join("bin/oxccl"));
        command.args(["run", "-n", "3"]).args(options).arg(&program).arg(key);
        run(prefix(), &mut command)
    };
    let write = |contents: &str, mode: u32| {
        std::fs::write(&file, contents).expect("a file");
        let mode = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(&file, mode).expect("its own file");
    };
    let with = ["--key", file.to_str().expect("a path")];
    for contents in [KEY.to_owned(), format!("{KEY}\n")] {
        write(&contents, 0o600);
        let (status, text) = launch(&with, KEY);
        assert_eq!(status, Some(0), "{text}");
    }
    for (options, key, told) in [
        (&with[..], "the key of nobody else", "has another key for encrypted connections"),
        (&[], KEY, "give their key to `oxccl run` by --key FILE"),
    ] {
        let (status, text) = launch(options, key);
        assert!(status == Some(1) && text.contains(told), "{status:?} {text}");
    }
    for (contents, mode, told) in [
        ("too short", 0o600, "9 bytes in 1 line; expected one line of at least 16"),
        ("one line, and\nanother one", 0o600, "25 bytes in 2 lines; expected one line"),
        (KEY, 0o644, "must belong to this user and have mode 0600"),
    ] {
        write(contents, mode);
        let (status, text) = launch(&with, KEY);
        assert!(status == Some(1) && text.contains(told), "{status:?} {text}");
    }
}
