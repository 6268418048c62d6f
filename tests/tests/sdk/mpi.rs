//! Communicators from MPI's.

use crate::{ROOT, folder, have, prefix, succeed};
use std::path::Path;
use std::process::Command;

#[test]
fn a_communicator_from_one_of_mpi_in_c_and_cpp() {
    if !have("mpirun") || !have("mpicc") {
        return;
    }
    let folder = folder("mpi");
    let source = Path::new(ROOT).join("tests/sdk/mpi.c");
    let (include, lib) = (prefix().join("include/oxccl"), prefix().join("lib"));
    for (compiler, language) in
        [("mpicc", ["-std=c11", "-xc"]), ("mpicxx", ["-std=c++17", "-xc++"])]
    {
        let program = folder.join(compiler);
        let mut command = Command::new(compiler);
        command.args(language).args(["-Wall", "-Wextra", "-Werror"]).arg(&source);
        // Open MPI's own C++ interface, which is no more, does not compile without warnings.
        command
            .arg("-DOMPI_SKIP_MPICXX")
            .arg("-I")
            .arg(&include)
            .arg("-L")
            .arg(&lib)
            .args(["-loxccl", "-o"])
            .arg(&program);
        succeed(&mut command);
        let mut command = Command::new("mpirun");
        command.args(["--allow-run-as-root", "--oversubscribe", "-n", "4"]).arg(&program);
        let text = succeed(&mut command);
        assert_eq!(text.lines().filter(|l| l.contains("of 4: all right")).count(), 4, "{text}");
    }
}
