//! `oxccl env`: the table of variables.

use crate::error::Result;
use oxccl_runtime::config::VARIABLES;
use std::process::ExitCode;

pub(crate) fn main() -> Result<ExitCode> {
    for variable in VARIABLES {
        let value = std::env::var(variable.name);
        let shown = match &value {
            Ok(value) => format!("{value} (default {:?})", variable.default),
            Err(_) => format!("{:?} (default)", variable.default),
        };
        println!("{} = {shown}\n   {}", variable.name, variable.doc);
    }
    Ok(ExitCode::SUCCESS)
}
