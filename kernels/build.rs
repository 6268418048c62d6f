//! Compiles the kernels with nvcc, from `$CUDA_HOME/bin` or the path, for the GPUs of this machine.
//! `CUDAARCHS` chooses other architectures, as CMake reads it: a list such as `80;90`, `all`, or
//! `native`; an empty list means none.
//!
//! The path is searched but not watched, as it changes with every environment that someone
//! activates; the compiler found there is watched. What was compiled for a list of architectures is
//! kept while the compiler, its arguments and the sources stay the same.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Compute capabilities with machine code; the last one also as PTX, for newer GPUs.
const ARCHS: &str = "75,80,86,89,90,100,120";

fn nvcc() -> Option<PathBuf> {
    let home = env::var_os("CUDA_HOME").map(|home| Path::new(&home).join("bin"));
    let path = env::var_os("PATH").unwrap_or_default();
    let mut folders = home.into_iter().chain(env::split_paths(&path));
    folders.find_map(|f| Some(f.join("nvcc")).filter(|p| p.is_file()))
}

/// Returns the arguments of the compiler, without the path of the result.
fn arguments(archs: &str) -> Vec<String> {
    let archs: Vec<&str> = archs.split(',').map(str::trim).collect();
    let fixed = ["-fatbin", "-O3", "-std=c++17", "-fmad=false", "--compress-mode=size"];
    let mut arguments: Vec<String> = fixed.map(str::to_owned).to_vec();
    let parallel = ["-t", "0", "-split-compile", "0"];
    arguments.extend(parallel.map(str::to_owned));
    arguments.extend(["-Werror=all-warnings", "cuda/kernels.cu"].map(str::to_owned));
    arguments.extend(archs.iter().map(|a| format!("-gencode=arch=compute_{a},code=sm_{a}")));
    let last = archs.last().map(|a| format!("-gencode=arch=compute_{a},code=compute_{a}"));
    arguments.extend(last);
    arguments
}

/// Variables with further arguments of the compiler.
const FLAGS: [&str; 3] = ["NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS", "NVCC_CCBIN"];

/// Returns all that determines the result: the compiler, its arguments, and the sources.
fn recipe(nvcc: &Path, arguments: &[String]) -> std::io::Result<Vec<u8>> {
    let version = Command::new(nvcc).arg("--version").output()?.stdout;
    let mut recipe = format!("{}\n{arguments:?}\n", nvcc.canonicalize()?.display()).into_bytes();
    recipe.extend(version);
    recipe.extend(format!("{:?}\n", FLAGS.map(env::var_os)).into_bytes());
    let files = std::fs::read_dir("cuda")?.map(|entry| entry.map(|e| e.path()));
    let mut files = files.collect::<std::io::Result<Vec<PathBuf>>>()?;
    files.sort();
    for file in files {
        let text = std::fs::read(&file)?;
        recipe.extend(format!("{} {}\n", file.display(), text.len()).into_bytes());
        recipe.extend(text);
    }
    Ok(recipe)
}

/// Returns those of [`ARCHS`] that this machine's GPUs need; an empty text without a driver. For
/// newer GPUs, the PTX of the last one serves.
fn archs_here() -> String {
    let mut query = Command::new("nvidia-smi");
    let answer = query.args(["--query-gpu=compute_cap", "--format=csv,noheader"]).output();
    let text = answer.ok().filter(|o| o.status.success()).map(|o| o.stdout).unwrap_or_default();
    let number = |arch: &str| arch.trim().replace('.', "").parse::<u32>().ok();
    let known: Vec<u32> = ARCHS.split(',').filter_map(number).collect();
    let text = String::from_utf8_lossy(&text);
    let mut archs: Vec<u32> = text.lines().filter_map(number).collect();
    // The newest known one that is not newer than the GPU.
    archs
        .iter_mut()
        .for_each(|arch| *arch = known.iter().copied().rfind(|k| k <= arch).unwrap_or(0));
    archs.retain(|arch| *arch > 0);
    archs.sort_unstable();
    archs.dedup();
    archs.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
}

/// Returns the architectures to compile for, by the value of `CUDAARCHS`, with commas between them.
fn archs(wanted: Option<&str>) -> String {
    match wanted {
        None | Some("native") => {
            let archs = archs_here();
            if archs.is_empty() {
                let why = "without kernels, as nvidia-smi finds no GPU of compute capability 7.5 or \
                           newer: CUDAARCHS=all compiles them for all GPUs, CUDAARCHS= is silent";
                println!("cargo::warning={why}");
            }
            archs
        }
        Some("all") => ARCHS.to_owned(),
        Some(list) => list.replace(';', ","),
    }
}

fn main() {
    for name in FLAGS.into_iter().chain(["CUDA_HOME", "CUDAARCHS"]) {
        println!("cargo::rerun-if-env-changed={name}");
    }
    println!("cargo::rerun-if-changed=cuda");
    let nvcc = nvcc();
    if let Some(nvcc) = &nvcc {
        println!("cargo::rerun-if-changed={}", nvcc.display());
    }
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    let wanted = env::var("CUDAARCHS").ok();
    let made = nvcc.and_then(|nvcc| compile(&nvcc, &archs(wanted.as_deref()), &out));
    let fatbin = made.map(|file| std::fs::read(file).expect("it was made"));
    write(&out.join("kernels.fatbin"), &fatbin.unwrap_or_default());
}

/// Compiles for architectures, unless that was done before; returns the file that was made, `None`
/// without architectures.
fn compile(nvcc: &Path, archs: &str, out: &Path) -> Option<PathBuf> {
    if archs.is_empty() {
        return None;
    }
    let file = |end: &str| out.join(format!("kernels-{}.{end}", archs.replace(',', "-")));
    let (fatbin, stamp) = (file("fatbin"), file("stamp"));
    let arguments = arguments(archs);
    let recipe = recipe(nvcc, &arguments).expect("nvcc starts and the sources can be read");
    if fatbin.exists() && std::fs::read(&stamp).is_ok_and(|made| made == recipe) {
        return Some(fatbin);
    }
    // A compiler that fails or is stopped may leave a partial result.
    write(&stamp, b"");
    let status = Command::new(nvcc).args(&arguments).arg("-o").arg(&fatbin).status();
    assert!(
        status.expect("nvcc starts").success(),
        "nvcc failed: its messages are above; with CUDAARCHS= the host device is built alone"
    );
    write(&stamp, &recipe);
    Some(fatbin)
}

/// Writes a file, unless it has these contents: what depends on it would be compiled again.
fn write(file: &Path, bytes: &[u8]) {
    if !std::fs::read(file).is_ok_and(|there| there == bytes) {
        std::fs::write(file, bytes).expect("the output folder is writable");
    }
}
