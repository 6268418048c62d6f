//! `cargo run -p xtask -- codegen | tidy`.

use std::process::ExitCode;

fn main() -> ExitCode {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    match std::env::args().nth(1).as_deref() {
        Some("codegen") => {
            let headers = xtask::headers::write(&root).map_err(|e| e.to_string());
            let written = headers.and_then(|()| {
                xtask::environment::write(&root)
                    .map_err(|e| format!("{}: {e}", xtask::environment::FILE))
            });
            match written {
                Ok(()) => ExitCode::SUCCESS,
                Err(error) => {
                    eprintln!("codegen: {error}");
                    ExitCode::FAILURE
                }
            }
        }
        Some("tidy") => {
            let complaints = xtask::tidy::complaints(&root);
            complaints.iter().for_each(|line| eprintln!("{line}"));
            if complaints.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        _ => {
            eprintln!("usage: cargo run -p xtask -- codegen | tidy");
            ExitCode::FAILURE
        }
    }
}
