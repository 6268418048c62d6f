//! Compiles the kernels with nvcc, from `$CUDA_HOME/bin` or the path: in release builds for all
//! architectures, else for the GPUs that are here. `CUDAARCHS=90` (a list with semicolons, as CMake
//! reads it) says which, an empty one none.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Compute capabilities with machine code; the last one also as PTX, for those to come.
const ARCHS: &str = "75,80,86,89,90,100,120";

fn nvcc() -> Option<PathBuf> {
    let home = env::var_os("CUDA_HOME").map(|home| Path::new(&home).join("bin"));
    let path = env::var_os("PATH").unwrap_or_default();
    let mut folders = home.into_iter().chain(env::split_paths(&path));
    folders.find_map(|f| Some(f.join("nvcc")).filter(|p| p.is_file()))
}

/// Those of [`ARCHS`] that this machine's GPUs run; nothing without a driver. Newer GPUs take the last
/// one's PTX.
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

fn main() {
    for name in ["CUDA_HOME", "PATH", "CUDAARCHS"] {
        println!("cargo::rerun-if-env-changed={name}");
    }
    println!("cargo::rerun-if-changed=cuda");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it")).join("kernels.fatbin");
    let release = env::var("PROFILE").is_ok_and(|profile| profile == "release");
    let default = || if release { ARCHS.to_owned() } else { archs_here() };
    let archs = env::var("CUDAARCHS").unwrap_or_else(|_| default());
    let Some(nvcc) = nvcc().filter(|_| !archs.is_empty()) else {
        std::fs::write(&out, b"").expect("the output folder is writable");
        return;
    };
    let archs: Vec<&str> = archs.split([';', ',']).map(str::trim).collect();
    let mut command = Command::new(nvcc);
    command.args(["-fatbin", "-O3", "-std=c++17", "-fmad=false", "--compress-mode=size"]);
    command.args(["-t", "0", "-Werror=all-warnings", "-o"]).arg(&out);
    for arch in &archs {
        command.arg(format!("-gencode=arch=compute_{arch},code=sm_{arch}"));
    }
    if let Some(last) = archs.last() {
        command.arg(format!("-gencode=arch=compute_{last},code=compute_{last}"));
    }
    let status = command.arg("cuda/kernels.cu").status().expect("nvcc starts");
    assert!(
        status.success(),
        "nvcc failed: its messages are above; without nvcc on the PATH the \
                               host device is built alone"
    );
}
