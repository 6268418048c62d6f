//! `install`: puts libraries, headers, the command and the files for build systems under one prefix
//! that can be moved. Packages of every format are made from this prefix. `uninstall` removes them.

use crate::model;
use crate::prefix::{self, files_below};
use oxccl_runtime::NCCL_VERSION;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The errors of an installation.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file that cannot be read or written.
    #[error("{0}: {1}")]
    File(PathBuf, std::io::Error),
    /// A needed program that failed.
    #[error("{0}: {1}")]
    Program(String, String),
    /// A file that cargo did not build.
    #[error("cargo built no {0}")]
    NotBuilt(&'static str),
    /// Files that need a newer glibc than was asked for.
    #[error("--glibc {wanted}: what was built needs {needed}")]
    Glibc {
        /// The version that was asked for.
        wanted: String,
        /// The version that is needed.
        needed: String,
    },
    /// A prefix under which nothing is installed.
    #[error("nothing is installed there: {0} is missing; give the --prefix of install")]
    NotInstalled(PathBuf),
    /// A list of installed files that is not as it was written.
    #[error(
        "{0} has a line {1:?}; expected a digest and a path below the prefix; nothing was done"
    )]
    List(PathBuf, String),
    /// The interface cannot be read.
    #[error(transparent)]
    Model(#[from] model::Error),
}

/// The default folder of libraries below a prefix.
pub const LIBDIR: &str = "lib";

/// Options of `install`.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Prefix to install under; made if it is missing.
    #[arg(long)]
    pub prefix: PathBuf,
    /// Folder of libraries below the prefix.
    #[arg(long, default_value = LIBDIR, value_parser = below)]
    pub libdir: String,
    /// Cargo's profile.
    #[arg(long, default_value = "dist")]
    pub profile: String,
    /// Install under NCCL's names too.
    #[arg(long)]
    pub nccl_compat: bool,
    /// Build and install the plugin for InfiniBand and RoCE too; needs cmake, libclang and
    /// libibverbs with its headers.
    #[arg(long, conflicts_with = "glibc")]
    pub rdma: bool,
    /// Oldest glibc that all of it runs with, as 2.28; needs cargo-zigbuild. Without this it is
    /// that of this machine.
    #[arg(long, value_name = "VERSION", value_parser = glibc_version)]
    pub glibc: Option<String>,
}

/// Returns a version of glibc as numbers.
fn version(text: &str) -> Option<(u32, u32)> {
    let (major, minor) = text.split_once('.')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// Checks that a text is a version of glibc.
pub fn glibc_version(text: &str) -> Result<String, &'static str> {
    version(text).map(|_| text.to_owned()).ok_or("no version of glibc, as 2.28")
}

/// Checks that a folder lies below another one.
pub(crate) fn below(folder: &str) -> Result<String, &'static str> {
    let inside = |part: &str| !matches!(part, "" | "." | "..");
    folder.split('/').all(inside).then(|| folder.to_owned()).ok_or("not below the prefix, as lib64")
}

/// The library name that linked programs refer to.
const SONAME: &str = "liboxccl.so.2";

/// Builds and installs. Of an older installation, what this one lacks is removed.
pub fn install(root: &Path, options: &Options) -> Result<(), Error> {
    let staged = options.prefix.join(".oxccl-staged");
    // An installation that was stopped may have left the folder.
    let _ = std::fs::remove_dir_all(&staged);
    let installed = stage(root, options, &staged)
        .and_then(|()| strip(&staged, &options.libdir))
        .and_then(|()| prefix::put(&staged, &options.prefix));
    let cleared = std::fs::remove_dir_all(&staged).map_err(failed(&staged));
    installed.and(cleared)
}

/// Returns the commands by which a shell, compilers and the programs that they link find what is
/// installed under a prefix. What the variables had stays behind it.
pub fn exports(prefix: &Path, libdir: &str) -> String {
    let (prefix, lib) = (prefix.display(), prefix.join(libdir));
    let lib = lib.display();
    let before = |name: &str| format!("${{{name}:+:${name}}}");
    let (packages, libraries) = (before("PKG_CONFIG_PATH"), before("LD_LIBRARY_PATH"));
    format!(
        "export PATH=\"{prefix}/bin:$PATH\"\n\
         export PKG_CONFIG_PATH=\"{lib}/pkgconfig{packages}\"\n\
         export LD_LIBRARY_PATH=\"{lib}{libraries}\"\n"
    )
}

/// Options of `uninstall`.
#[derive(Debug, clap::Args)]
pub struct Installed {
    /// Prefix that was installed under.
    #[arg(long)]
    pub prefix: PathBuf,
}

/// Removes what was installed under a prefix. Returns what has changed since, which stays.
pub fn uninstall(Installed { prefix }: &Installed) -> Result<Vec<String>, Error> {
    prefix::clear(prefix)
}

/// Takes out of what is installed its larger part: debug information, and the bitcode that only
/// rustc reads. The debug information of the library goes to a file beside it, where debuggers look
/// for it. Without objcopy everything stays as it is.
fn strip(prefix: &Path, libdir: &str) -> Result<(), Error> {
    if Command::new("objcopy").arg("--version").output().is_err() {
        eprintln!("objcopy (binutils) is not there: installed with debug information");
        return Ok(());
    }
    let lib = prefix.join(libdir);
    let (library, debug) = (lib.join(SONAME), lib.join(format!(".debug/{SONAME}.debug")));
    make_place(&debug)?;
    let keep = ["--only-keep-debug", "--compress-debug-sections"];
    run(Command::new("objcopy").args(keep).arg(&library).arg(&debug))?;
    for file in files_below(prefix)? {
        let path = prefix.join(&file);
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let archive = name.ends_with(".a");
        let code = name.ends_with(".so") || name.ends_with(".so.2") || file == "bin/oxccl";
        let bitcode = ["--remove-section=.llvmbc", "--remove-section=.llvmcmd"];
        let unneeded = if archive { "--strip-debug" } else { "--strip-unneeded" };
        if (code || archive) && !path.is_symlink() {
            run(Command::new("objcopy").arg(unneeded).args(bitcode).arg(&path))?;
        }
    }
    let link = format!("--add-gnu-debuglink={}", debug.display());
    run(Command::new("objcopy").arg(link).arg(&library))
}

/// Builds, and puts all that is installed below a folder.
fn stage(root: &Path, options: &Options, prefix: &Path) -> Result<(), Error> {
    let built = build(root, &options.profile, options.glibc.as_deref())?;
    if let Some(wanted) = &options.glibc {
        let Built { shared, net, tuner, profiler, env, command, .. } = &built;
        let (major, minor) = glibc(&[shared, net, tuner, profiler, env, command].map(|f| &**f))?;
        if (major, minor) > version(wanted).unwrap_or_default() {
            return Err(Error::Glibc {
                wanted: wanted.clone(),
                needed: format!("{major}.{minor}"),
            });
        }
    }
    let libdir = &options.libdir;
    let lib = prefix.join(libdir);
    copy(&built.shared, &lib.join(SONAME))?;
    link(SONAME, &lib.join("liboxccl.so"))?;
    copy(&built.archive, &lib.join("liboxccl.a"))?;
    copy(&built.net, &lib.join("libnccl-net-oxccl.so"))?;
    copy(&built.tuner, &lib.join("libnccl-tuner-oxccl-table.so"))?;
    copy(&built.profiler, &lib.join("libnccl-profiler-oxccl-trace.so"))?;
    copy(&built.env, &lib.join("libnccl-env-oxccl-table.so"))?;
    if options.rdma {
        copy(&build_rdma(root, &options.profile)?, &lib.join("libnccl-net-oxccl-ib.so"))?;
    }
    copy(&built.command, &prefix.join("bin/oxccl"))?;
    // Completions and manual pages.
    run(Command::new(&built.command).arg("share").arg(prefix.join("share")))?;
    for license in ["LICENSE-APACHE", "LICENSE-MIT"] {
        copy(&root.join(license), &prefix.join("share/licenses/oxccl").join(license))?;
    }
    for folder in ["capi/include", "plugins/include"] {
        copy_all(&root.join(folder), &prefix.join("include/oxccl"))?;
    }
    for binding in ["cpp/oxccl.hpp", "cpp/oxccl_base.hpp", "mpi/oxccl_mpi.h"].map(Path::new) {
        let name = binding.file_name().unwrap_or_default();
        let from = root.join("bindings").join(binding);
        copy(&from, &prefix.join("include/oxccl").join(name))?;
    }
    let cuda = Path::new("hostcuda/cuda_runtime.h");
    copy(&root.join("bindings").join(cuda), &prefix.join("include/oxccl").join(cuda))?;
    for package in ["oxccl.pc", "oxccl-hostcuda.pc"] {
        template(root, package, libdir, &lib.join("pkgconfig"))?;
    }
    for file in ["oxccl-config.cmake", "oxccl-config-version.cmake"] {
        template(root, file, libdir, &lib.join("cmake/oxccl"))?;
    }
    if options.nccl_compat {
        for header in ["nccl.h", "nccl_device.h"] {
            copy(&root.join("capi/include").join(header), &prefix.join("include").join(header))?;
        }
        template(root, "nccl.pc", libdir, &lib.join("pkgconfig"))?;
        link("liboxccl.so", &lib.join("libnccl.so"))?;
        nccl_library(&lib)?;
    }
    Ok(())
}

/// The files that cargo built.
struct Built {
    shared: PathBuf,
    archive: PathBuf,
    net: PathBuf,
    tuner: PathBuf,
    profiler: PathBuf,
    env: PathBuf,
    command: PathBuf,
}

fn build(root: &Path, profile: &str, glibc: Option<&str>) -> Result<Built, Error> {
    let plugins = ["oxccl-net-tcp", "oxccl-tuner-table", "oxccl-profiler-trace", "oxccl-env-table"];
    let packages = [&["oxccl-capi", "oxccl-cli"], &plugins[..]].concat();
    let mut arguments: Vec<&str> = packages.iter().flat_map(|name| ["--package", name]).collect();
    let target =
        glibc.map(|version| format!("{}-unknown-linux-gnu.{version}", std::env::consts::ARCH));
    arguments.extend(target.iter().flat_map(|target| ["--target", target]));
    let command = if glibc.is_some() { "zigbuild" } else { "build" };
    let said = std::env::var("CUDAARCHS").ok();
    let gpus = architectures(profile, said.is_some()).or(said.as_deref());
    let home = std::env::var_os("CUDA_HOME").map(|home| Path::new(&home).join("bin"));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = home.into_iter().chain(std::env::split_paths(&path));
    let text = notice(gpus.unwrap_or("those of this machine"), folders);
    text.inspect(|text| eprintln!("{text}"));
    let files = run_cargo(root, command, profile, &arguments)?;
    Ok(Built {
        shared: find(&files, "liboxccl.so")?,
        archive: find(&files, "liboxccl.a")?,
        net: find(&files, "liboxccl_net_tcp.so")?,
        tuner: find(&files, "liboxccl_tuner_table.so")?,
        profiler: find(&files, "liboxccl_profiler_trace.so")?,
        env: find(&files, "liboxccl_env_table.so")?,
        command: find(&files, "oxccl")?,
    })
}

/// Builds the plugin for InfiniBand and RoCE, which is a workspace of its own.
fn build_rdma(root: &Path, profile: &str) -> Result<PathBuf, Error> {
    let workspace = ["--manifest-path", "plugins/net-ib/Cargo.toml", "--target-dir"];
    let arguments = [&workspace[..], &["target/net-ib"]].concat();
    let files = run_cargo(root, "build", profile, &arguments)?;
    find(&files, "liboxccl_net_ib.so")
}

fn find(files: &[PathBuf], name: &'static str) -> Result<PathBuf, Error> {
    let file = files.iter().find(|f| f.file_name().is_some_and(|n| n == name));
    file.cloned().ok_or(Error::NotBuilt(name))
}

/// Returns for which GPUs kernels are compiled that are installed or packaged, as they may run on
/// machines with other GPUs than this one; `None` for those that are here, in tests, and where the
/// user has said which.
fn architectures(profile: &str, is_said: bool) -> Option<&'static str> {
    (profile != "dev" && !is_said).then_some("all")
}

/// Returns what is said before kernels are compiled for these GPUs: cargo does not say how long it
/// takes. `None` where there is no compiler in the folders, or nothing is to be compiled.
fn notice(architectures: &str, folders: impl IntoIterator<Item = PathBuf>) -> Option<String> {
    let is_there = folders.into_iter().any(|folder| folder.join("nvcc").is_file());
    (is_there && !architectures.is_empty()).then(|| {
        format!(
            "compiling kernels for GPUs ({architectures}), unless they are there: 2 to 12 minutes, \
             in which cargo shows oxccl-kernels; CUDAARCHS= goes without"
        )
    })
}

/// Checks that a text is the address of a page.
pub fn address(text: &str) -> Result<String, &'static str> {
    let is_one = text.starts_with("https://") && !text.contains(char::is_whitespace);
    is_one.then(|| text.to_owned()).ok_or("no address, as https://example.org/oxccl")
}

/// Builds what the arguments say by a command of cargo; returns the files that were made.
fn run_cargo(
    root: &Path,
    subcommand: &str,
    profile: &str,
    arguments: &[&str],
) -> Result<Vec<PathBuf>, Error> {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let mut command = Command::new(&cargo);
    command.args([subcommand, "--profile", profile]).args(arguments);
    command.arg("--message-format=json-render-diagnostics").current_dir(root);
    let all = architectures(profile, std::env::var_os("CUDAARCHS").is_some());
    command.envs(all.map(|all| ("CUDAARCHS", all)));
    let output = command.stderr(std::process::Stdio::inherit()).output();
    let output = output.map_err(|e| Error::Program(cargo.clone(), e.to_string()))?;
    if !output.status.success() {
        let is_there = || Command::new(&cargo).args([subcommand, "--help"]).output();
        let remedy = match is_there().is_ok_and(|help| help.status.success()) {
            true => "",
            false => "; --glibc needs cargo-zigbuild (pip install cargo-zigbuild ziglang)",
        };
        return Err(Error::Program(cargo, format!("{}{remedy}", output.status)));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(text.lines().flat_map(artifacts).collect())
}

/// Returns the files that a message of cargo names.
fn artifacts(line: &str) -> Vec<PathBuf> {
    let message: serde_json::Value = serde_json::from_str(line).unwrap_or_default();
    let files = message["filenames"].as_array().cloned().unwrap_or_default();
    files.iter().filter_map(|f| f.as_str().map(PathBuf::from)).collect()
}

/// Runs a program; fails if the program does.
pub(crate) fn run(command: &mut Command) -> Result<(), Error> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().map_err(|e| Error::Program(name.clone(), e.to_string()))?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    Err(Error::Program(name, format!("{}: {text}", output.status)))
}

pub(crate) fn failed(path: &Path) -> impl Fn(std::io::Error) -> Error {
    let path = path.to_owned();
    move |e| Error::File(path.clone(), e)
}

/// Makes the folder of a file. A file that exists is removed and not overwritten: programs may be
/// using it.
pub(crate) fn make_place(path: &Path) -> Result<(), Error> {
    path.parent().map_or(Ok(()), std::fs::create_dir_all).map_err(failed(path))?;
    match std::fs::remove_file(path) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(failed(path)(e)),
        _ => Ok(()),
    }
}

/// Copies a file; makes the folder that it goes to.
pub(crate) fn copy(from: &Path, to: &Path) -> Result<(), Error> {
    make_place(to)?;
    std::fs::copy(from, to).map(drop).map_err(failed(from))
}

/// Copies the files of a folder.
fn copy_all(from: &Path, to: &Path) -> Result<(), Error> {
    for entry in std::fs::read_dir(from).map_err(failed(from))? {
        let entry = entry.map_err(failed(from))?;
        copy(&entry.path(), &to.join(entry.file_name()))?;
    }
    Ok(())
}

fn link(target: &str, link: &Path) -> Result<(), Error> {
    make_place(link)?;
    std::os::unix::fs::symlink(target, link).map_err(failed(link))
}

/// Fills a template of `pkgconfig/`, for a folder below the folder of libraries.
fn template(root: &Path, name: &str, libdir: &str, folder: &Path) -> Result<(), Error> {
    let from = root.join("pkgconfig").join(format!("{name}.in"));
    let text = std::fs::read_to_string(&from).map_err(failed(&from))?;
    let text = text.replace("@VERSION@", env!("CARGO_PKG_VERSION"));
    let text = text.replace("@NCCL_VERSION@", NCCL_VERSION);
    let up = libdir.split('/').map(|_| "..").collect::<Vec<_>>().join("/");
    let text = text.replace("@LIBDIR@", libdir).replace("@UP@", &up);
    let to = folder.join(name);
    make_place(&to)?;
    std::fs::write(&to, text).map_err(failed(&to))
}

/// Makes `libnccl.so.2`, a library without code that depends on ours. A link of that name is not
/// enough: a program that preloads it would load the library of the other name as well.
fn nccl_library(lib: &Path) -> Result<(), Error> {
    let to = lib.join("libnccl.so.2");
    make_place(&to)?;
    run(Command::new("cc")
        .args(["-shared", "-nostdlib", "-x", "c", "/dev/null", "-x", "none"])
        .args(["-Wl,-soname,libnccl.so.2", "-Wl,-rpath,$ORIGIN", "-Wl,--disable-new-dtags"])
        .arg("-Wl,--no-as-needed")
        .arg(lib.join("liboxccl.so"))
        .arg("-lc")
        .arg("-o")
        .arg(&to))
}

/// Returns the newest version of glibc that files need, such as (2, 34).
pub(crate) fn glibc(files: &[&Path]) -> Result<(u32, u32), Error> {
    let mut newest = (2, 0);
    for file in files {
        let bytes = std::fs::read(file).map_err(failed(file))?;
        newest = newest.max(newest_glibc(&bytes));
    }
    Ok(newest)
}

/// Returns the newest version of glibc that a file names; the names are plain text in the file.
fn newest_glibc(bytes: &[u8]) -> (u32, u32) {
    const NAME: &[u8] = b"GLIBC_";
    let names = bytes.windows(NAME.len()).enumerate().filter(|(_, w)| *w == NAME);
    let version = |(at, _): (usize, &[u8])| {
        let rest = &bytes[at + NAME.len()..];
        let end = rest.iter().position(|b| !b.is_ascii_digit() && *b != b'.')?;
        let (major, minor) = std::str::from_utf8(&rest[..end]).ok()?.split_once('.')?;
        let minor = minor.split('.').next()?;
        Some((major.parse().ok()?, minor.parse().ok()?))
    };
    names.filter_map(version).max().unwrap_or((2, 0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{Args, FromArgMatches};

    #[test]
    fn packages_have_kernels_for_all_gpus_unless_somebody_says_which() {
        assert_eq!(architectures("dist", false), Some("all"));
        assert_eq!(architectures("release", false), Some("all"));
        assert_eq!((architectures("dist", true), architectures("dev", false)), (None, None));
    }

    #[test]
    fn kernels_are_announced_where_there_is_a_compiler() {
        let folder = std::env::temp_dir().join(format!("oxccl-xtask-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let told = |gpus| notice(gpus, [folder.clone()]);
        let before = told("all");
        std::fs::write(folder.join("nvcc"), "").expect("a file");
        let after = (told("80;90"), told(""));
        std::fs::remove_dir_all(&folder).expect("it is there");
        assert!(before.is_none() && after.1.is_none());
        assert!(after.0.is_some_and(|text| text.contains("(80;90)")));
    }

    #[test]
    fn addresses_of_pages_are_read_or_refused() {
        assert!(address("https://a.example/b").is_ok());
        assert!(["a.example", "http://a", "https://a b"].iter().all(|text| address(text).is_err()));
    }

    #[test]
    fn the_newest_glibc_is_found() {
        let names = b"GLIBC_2.9\0x\0GLIBC_2.34\0GLIBC_2.2.5\0GLIBC_PRIVATE\0GLIBC_";
        assert_eq!(newest_glibc(names), (2, 34));
        assert_eq!(newest_glibc(b""), (2, 0));
    }

    #[test]
    fn arguments_are_read_or_refused() {
        let read = |arguments: &[&str]| {
            let command = Options::augment_args(clap::Command::new("install").no_binary_name(true));
            let matches = command.try_get_matches_from(arguments)?;
            Options::from_arg_matches(&matches)
        };
        let options = read(&["--nccl-compat", "--prefix", "/a", "--profile", "dev"]);
        let options = options.expect("they are right");
        assert!(options.nccl_compat && options.prefix == Path::new("/a"));
        let old = read(&["--prefix", "/a", "--glibc", "2.28"]).expect("they are right").glibc;
        assert_eq!((old.as_deref(), version("2.28")), (Some("2.28"), Some((2, 28))));
        assert_eq!((options.profile.as_str(), options.libdir.as_str()), ("dev", "lib"));
        for (wrong, complaint) in [
            (&["--prefix"][..], "a value is required for '--prefix"),
            (&["--nccl-compat"], "arguments were not provided"),
            (&["--prefix", "/a", "--frob"], "unexpected argument '--frob'"),
            (&["--prefix", ""], "a value is required"),
            (&["--prefix", "/a", "--libdir", "../lib"], "below the prefix"),
            (&["--prefix", "/a", "--libdir", "/lib"], "below the prefix"),
            (&["--prefix", "/a", "--glibc", "two"], "no version of glibc"),
            (&["--prefix", "/a", "--glibc", "2.28", "--rdma"], "cannot be used with"),
        ] {
            let error = read(wrong).expect_err(complaint).to_string();
            assert!(error.contains(complaint), "{error}");
        }
    }
}
