//! The libraries that a running process has mapped.

use super::Check;

/// Returns the files of a process's mappings, from `/proc/PID/maps`, each once.
fn files(maps: &str) -> Vec<&str> {
    let mut files: Vec<&str> = Vec::new();
    for line in maps.lines() {
        // Five fields, then the path, which may have spaces.
        let Some(at) = line.find(" /") else { continue };
        let path = line[at + 1..].trim_end_matches(" (deleted)");
        if !files.contains(&path) {
            files.push(path);
        }
    }
    files
}

/// Returns whether the name of a file is that of a library with this stem, in any version.
fn is_library(path: &str, stem: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    name.strip_prefix(stem).is_some_and(|rest| rest == ".so" || rest.starts_with(".so."))
}

/// Returns the libraries for collectives among the files. `libnccl.so.2` of OxCCL has no code and
/// lies beside `liboxccl.so`, which is named alone then.
fn collective<'a>(files: &[&'a str]) -> Vec<&'a str> {
    let own = |path: &&&str| is_library(path, "liboxccl");
    let folders: Vec<&str> = files.iter().filter(own).map(|path| folder(path)).collect();
    let is_alone = |path: &&&str| !folders.contains(&folder(path));
    let nccl = files.iter().filter(|path| is_library(path, "libnccl")).filter(is_alone);
    files.iter().filter(own).chain(nccl).copied().collect()
}

fn folder(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(folder, _)| folder)
}

/// Judges the libraries of a process, from the text of `/proc/PID/maps`, or why there is none.
pub(in crate::doctor) fn mapped(pid: u32, maps: Result<&str, &str>) -> Vec<Check> {
    const NAME: &str = "NCCL libraries";
    let maps = match maps {
        Ok(maps) => maps,
        Err(why) => {
            let found = format!("The mappings of process {pid} cannot be read: {why}.");
            let advice = "Give the number of a running process, as its own user or as root.";
            return vec![Check::failure(NAME, found, advice)];
        }
    };
    let files = files(maps);
    let found = collective(&files);
    let list = found.join(", ");
    let nccl = match found.len() {
        0 => Check::not_applicable(
            NAME,
            format!(
                "Process {pid} has no libnccl.so and no liboxccl.so mapped. A program may be linked \
                 to one statically, or load it at its first use."
            ),
        ),
        1 => Check::ok(NAME, format!("Process {pid} has one library mapped: {list}.")),
        _ => Check::warning(
            NAME,
            format!(
                "Process {pid} has several libraries mapped, and a communicator of one is none for \
                 the other: {list}."
            ),
            "Put libnccl.so.2 of one library into LD_PRELOAD, so that all of the program uses it.",
        ),
    };
    let mut checks = vec![nccl];
    let runtimes: Vec<&str> =
        files.into_iter().filter(|path| is_library(path, "libcudart")).collect();
    let list = runtimes.join(", ");
    checks.push(match runtimes.len() {
        0 => Check::not_applicable(
            "CUDA runtime",
            format!("Process {pid} has no libcudart.so mapped."),
        ),
        1 => Check::ok("CUDA runtime", format!("Process {pid} has one mapped: {list}.")),
        _ => Check::warning(
            "CUDA runtime",
            format!("Process {pid} has several mapped: {list}."),
            "Build the parts of the program with one version of CUDA.",
        ),
    });
    checks
}

#[cfg(test)]
mod tests {
    use super::super::Verdict;
    use super::*;

    fn maps(paths: &[&str]) -> String {
        let line = |path: &&str| format!("7f00-7f01 r-xp 00000000 08:02 123   {path}\n");
        let anonymous = "7fff-8000 rw-p 00000000 00:00 0   [stack]\n7a-7b rw-p 0 00:00 0\n";
        paths.iter().map(line).collect::<String>() + anonymous
    }

    fn verdicts(paths: &[&str]) -> [Verdict; 2] {
        let checks = mapped(7, Ok(&maps(paths)));
        [checks[0].verdict, checks[1].verdict]
    }

    #[test]
    fn two_libraries_are_found_and_the_parts_of_one_are_one() {
        let (none, ok, warning) = (Verdict::NotApplicable, Verdict::Ok, Verdict::Warning);
        assert_eq!(verdicts(&["/lib/libc.so.6", "/a/libnccl-net-oxccl.so"]), [none, none]);
        let twice = ["/a b/libnccl.so.2.27.5", "/a b/libnccl.so.2.27.5", "/c/libcudart.so.13"];
        assert_eq!(verdicts(&twice), [ok, ok]);
        assert_eq!(verdicts(&["/o/liboxccl.so", "/o/libnccl.so.2"]), [ok, none]);
        let both = ["/o/liboxccl.so", "/o/libnccl.so.2", "/n/libnccl.so.2 (deleted)"];
        assert_eq!(verdicts(&both), [warning, none]);
        let found = &mapped(7, Ok(&maps(&both)))[0].found;
        assert!(found.ends_with("/o/liboxccl.so, /n/libnccl.so.2."), "{found}");
        assert_eq!(verdicts(&["/a/libcudart.so.12", "/b/libcudart.so.13"]), [none, warning]);
    }

    #[test]
    fn what_is_no_list_of_mappings_has_no_libraries() {
        for text in ["", "/", " /", "\n\n /\n", "libnccl.so libnccl.so.2"] {
            assert_eq!(mapped(1, Ok(text))[0].verdict, Verdict::NotApplicable, "{text}");
        }
        assert_eq!(mapped(1, Err("there is none"))[0].verdict, Verdict::Failure);
    }
}
