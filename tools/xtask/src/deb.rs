//! `deb`: Debian packages, from the files that `install` puts under `/usr`.

use crate::install::{self, Error, failed, install, run};
use crate::prefix::files_below;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Options of `deb`.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Folder for the packages; made if it is missing.
    #[arg(long)]
    pub output: PathBuf,
    /// Cargo's profile.
    #[arg(long, default_value = "dist")]
    pub profile: String,
    /// Address of the project that the packages name.
    #[arg(long, value_name = "URL", value_parser = crate::install::address)]
    pub homepage: Option<String>,
}

/// A package: its contents, and its description for dpkg.
struct Package {
    name: &'static str,
    section: &'static str,
    /// Files and folders below `usr`, as for [`place`].
    contents: &'static [&'static str],
    /// The packages of ours that this package needs in the same version.
    ours: &'static [&'static str],
    /// Further lines of the control file.
    control: &'static str,
    /// What lintian is to overlook, without the name of the package.
    overrides: &'static str,
    description: &'static str,
}

const PACKAGES: [Package; 5] = [
    Package {
        name: "liboxccl2",
        section: "libs",
        contents: &["LIB/liboxccl.so.2"],
        ours: &[],
        control: "",
        overrides: "",
        description: "collective communication with NCCL's interface: the library",
    },
    Package {
        name: "liboxccl-dev",
        section: "libdevel",
        contents: &[
            "LIB/liboxccl.so",
            "LIB/liboxccl.a",
            "LIB/pkgconfig/oxccl.pc",
            "LIB/pkgconfig/oxccl-hostcuda.pc",
            "LIB/cmake",
            "include/oxccl",
        ],
        ours: &["liboxccl2"],
        control: "",
        overrides: "",
        description: "collective communication with NCCL's interface: headers",
    },
    Package {
        name: "oxccl",
        section: "utils",
        // Not the licences: Debian has its own place for them.
        contents: &["bin", "share/bash-completion", "share/fish", "share/man", "share/zsh"],
        ours: &[],
        control: "",
        overrides: "",
        description: "collective communication: starts ranks, measures, explains",
    },
    Package {
        name: "oxccl-nccl-compat",
        section: "libs",
        contents: &["LIB/libnccl.so.2"],
        ours: &["liboxccl2"],
        control: "Provides: libnccl2\nConflicts: libnccl2\n",
        // It is in the place of that package, and another one.
        overrides: "package-name-doesnt-match-sonames libnccl2\n",
        description: "collective communication in the place of NCCL",
    },
    Package {
        name: "oxccl-nccl-compat-dev",
        section: "libdevel",
        contents: &[
            "LIB/libnccl.so",
            "LIB/pkgconfig/nccl.pc",
            "include/nccl.h",
            "include/nccl_device.h",
        ],
        ours: &["oxccl-nccl-compat", "liboxccl-dev"],
        control: "Provides: libnccl-dev\nConflicts: libnccl-dev\n",
        overrides: "",
        description: "collective communication in the place of NCCL: headers",
    },
];

/// Returns the folder of libraries below `usr`, with Debian's name for this processor.
pub fn libdir() -> String {
    format!("lib/{}-linux-gnu", std::env::consts::ARCH)
}

/// Returns the real path for one of [`PACKAGES`], where `LIB` stands for the folder of libraries.
fn place(path: &str) -> String {
    path.replace("LIB/", &format!("{}/", libdir()))
}

/// Makes the packages; returns their files. `DEBFULLNAME` and `DEBEMAIL` name who makes them, and
/// `SOURCE_DATE_EPOCH` the time, as Debian's tools read them. Needs dpkg, dpkg-deb, gzip and date.
pub fn build(root: &Path, options: &Options) -> Result<Vec<PathBuf>, Error> {
    let work = options.output.join(".oxccl-deb");
    // A build that failed may have left the folder.
    let _ = std::fs::remove_dir_all(&work);
    let staged = work.join("usr");
    let profile = options.profile.clone();
    let prefix = staged.clone();
    let staging = install::Options {
        prefix,
        libdir: libdir(),
        profile,
        nccl_compat: true,
        rdma: false,
        glibc: None,
    };
    install(root, &staging)?;
    let architecture = output(Command::new("dpkg-deb").arg("--version"))
        .and_then(|_| output(Command::new("dpkg").arg("--print-architecture")))?;
    let architecture = architecture.trim();
    let programs = ["LIB/liboxccl.so.2", "bin/oxccl"].map(|f| staged.join(place(f)));
    let (major, minor) = install::glibc(&programs.each_ref().map(PathBuf::as_path))?;
    let glibc = format!("{major}.{minor}");
    let mut files = Vec::new();
    for package in &PACKAGES {
        let folder = work.join(package.name);
        for path in package.contents.iter().map(|path| place(path)) {
            let to = folder.join("usr").join(&path);
            let parent = to.parent().unwrap_or(&folder);
            std::fs::create_dir_all(parent).map_err(failed(parent))?;
            std::fs::rename(staged.join(path), &to).map_err(failed(&to))?;
        }
        describe(root, package, &folder, (architecture, &glibc), options.homepage.as_deref())?;
        let version = env!("CARGO_PKG_VERSION");
        let file = format!("{}_{version}_{architecture}.deb", package.name);
        let file = options.output.join(file);
        let mut command = Command::new("dpkg-deb");
        command.args(["--root-owner-group", "--build"]).arg(&folder).arg(&file);
        run(&mut command)?;
        files.push(file);
    }
    let left = std::fs::remove_dir_all(&work);
    left.map_err(failed(&work))?;
    Ok(files)
}

/// Returns who makes the packages, for dpkg.
fn maintainer() -> String {
    let given = |name: &str| std::env::var(name).ok().filter(|text| !text.is_empty());
    let name = given("DEBFULLNAME").unwrap_or_else(|| "The OxCCL developers".to_owned());
    format!("{name} <{}>", given("DEBEMAIL").unwrap_or_else(|| "root@localhost".to_owned()))
}

/// Writes the control files of dpkg and the documents that Debian wants of each package, and sets
/// modes that do not depend on the user's umask.
fn describe(
    root: &Path,
    package: &Package,
    folder: &Path,
    (architecture, glibc): (&str, &str),
    homepage: Option<&str>,
) -> Result<(), Error> {
    let address = homepage.map(|address| format!("Homepage: {address}\n")).unwrap_or_default();
    let &Package { name, section, ours, control, description, .. } = package;
    let (version, maintainer) = (env!("CARGO_PKG_VERSION"), maintainer());
    let mut depends: Vec<_> = ours.iter().map(|name| format!("{name} (= {version})")).collect();
    depends.extend([format!("libc6 (>= {glibc})"), "libgcc-s1".to_owned()]);
    let depends = depends.join(", ");
    let text = format!(
        "Package: {name}\nVersion: {version}\nArchitecture: {architecture}\nSection: {section}\n\
         Priority: optional\nMaintainer: {maintainer}\nDepends: {depends}\n{control}\
         {address}Description: {description}\n All-reduce, all-gather, send and receive and their \
         kin between processes and\n hosts, on host memory and GPUs.\n"
    );
    write(&folder.join("DEBIAN/control"), &text)?;
    // The name of the package's library, and the number of its interface.
    let library = |file: &&'static str| file.strip_prefix("LIB/")?.split_once(".so.");
    if let Some((library, number)) = package.contents.iter().find_map(library) {
        write(&folder.join("DEBIAN/triggers"), "activate-noawait ldconfig\n")?;
        let text = format!("{library} {number} {name} (>= {version})\n");
        write(&folder.join("DEBIAN/shlibs"), &text)?;
    }
    if !package.overrides.is_empty() {
        let text = format!("{name}: {}", package.overrides);
        write(&folder.join("usr/share/lintian/overrides").join(name), &text)?;
    }
    let doc = folder.join("usr/share/doc").join(name);
    write(&doc.join("copyright"), &copyright(root)?)?;
    let changes = doc.join("changelog");
    let text = format!(
        "oxccl ({version}) unstable; urgency=medium\n\n  * As CHANGELOG.md of the source says.\n\n \
         -- {maintainer}  {}\n",
        date()?
    );
    write(&changes, &text)?;
    let pages = folder.join("usr/share/man/man1");
    let pages = if pages.exists() { files_below(&pages)? } else { Vec::new() };
    let pages = pages.iter().map(|page| folder.join("usr/share/man/man1").join(page));
    run(Command::new("gzip").arg("-9n").arg(changes).args(pages))?;
    set_modes(folder)
}

/// Returns the terms as Debian wants them: what it has itself is referred to.
fn copyright(root: &Path) -> Result<String, Error> {
    let file = root.join("LICENSE-MIT");
    let mit = std::fs::read_to_string(&file).map_err(failed(&file))?;
    let whose = mit.lines().find_map(|line| line.strip_prefix("Copyright ")).unwrap_or_default();
    let line = |line: &str| if line.is_empty() { " .\n".to_owned() } else { format!(" {line}\n") };
    let terms: String = mit.lines().skip(2).map(line).collect();
    Ok(format!(
        "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\n\
         Upstream-Name: oxccl\n\nFiles: *\nCopyright: {whose}\nLicense: Expat or Apache-2.0\n\n\
         License: Expat\n{terms}\nLicense: Apache-2.0\n The text is in \
         /usr/share/common-licenses/Apache-2.0.\n"
    ))
}

/// Returns the time of the packages as Debian's changelogs have it.
fn date() -> Result<String, Error> {
    let mut command = Command::new("date");
    if let Ok(seconds) = std::env::var("SOURCE_DATE_EPOCH") {
        command.arg("--utc").arg(format!("--date=@{seconds}"));
    }
    Ok(output(command.arg("--rfc-email"))?.trim().to_owned())
}

fn write(path: &Path, text: &str) -> Result<(), Error> {
    path.parent().map_or(Ok(()), std::fs::create_dir_all).map_err(failed(path))?;
    std::fs::write(path, text).map_err(failed(path))
}

/// Sets the modes of a tree: 755 for folders and programs, 644 for other files.
fn set_modes(path: &Path) -> Result<(), Error> {
    let meta = std::fs::symlink_metadata(path).map_err(failed(path))?;
    if meta.is_symlink() {
        return Ok(());
    }
    let open = meta.is_dir() || path.parent().is_some_and(|p| p.ends_with("usr/bin"));
    let mode = std::fs::Permissions::from_mode(if open { 0o755 } else { 0o644 });
    std::fs::set_permissions(path, mode).map_err(failed(path))?;
    if meta.is_dir() {
        for entry in std::fs::read_dir(path).map_err(failed(path))? {
            set_modes(&entry.map_err(failed(path))?.path())?;
        }
    }
    Ok(())
}

fn output(command: &mut Command) -> Result<String, Error> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().map_err(|e| Error::Program(name, e.to_string()))?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
