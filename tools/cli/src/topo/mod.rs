//! `oxccl topo`: the parts of this machine and the links between them.

mod paths;
pub(crate) mod read;
mod svg;
mod text;

use crate::error::{Error, Result, writer};
use crate::root::Root;
use clap::Args;
use oxccl_net::interface;
use oxccl_runtime::config::Config;
use oxccl_runtime::device::{self, GpuLinks};
use paths::{Network, Path};
use read::{Adapter, Gpu, Interface, Machine, Node, Socket};
use serde::Serialize;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

/// Examples, environment and exit codes of `oxccl topo`, the end of its help and manual page.
const MORE: &str = "\
Examples:
  oxccl topo
  oxccl topo --svg machine.svg
  oxccl topo --json - | jq 'select(.kind == \"gpu\")'

Environment: CUDA_VISIBLE_DEVICES changes the numbers of GPUs, which are those of this process.

Exit code: 0, or 1 if a file cannot be written.";

/// Options of `oxccl topo`.
#[derive(Args)]
#[command(after_long_help = MORE)]
pub(crate) struct Options {
    /// Draw the machine into this file.
    #[arg(long, value_name = "FILE")]
    svg: Option<String>,
    /// Write one JSON object per part, link and path to this file; - for the standard output,
    /// without the tree.
    #[arg(long, value_name = "FILE")]
    json: Option<String>,
    /// The folder that stands for /, for tests.
    #[arg(long, hide = true)]
    root: Option<PathBuf>,
}

/// A line of `--json`.
#[derive(Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
enum Row<'a> {
    NumaNode(&'a Node),
    Socket(&'a Socket),
    Gpu(&'a Gpu),
    Adapter(&'a Adapter),
    VirtualInterface(&'a Interface),
    GpuLink { gpus: [i32; 2], link: &'static str },
    Path(&'a Path),
}

fn json(machine: &Machine, links: &[GpuLinks], paths: &[Path]) -> String {
    let pairs = paths::pairs(links).into_iter();
    let rows = (machine.nodes.iter().map(Row::NumaNode))
        .chain(machine.sockets.iter().map(Row::Socket))
        .chain(machine.gpus.iter().map(Row::Gpu))
        .chain(machine.adapters.iter().map(Row::Adapter))
        .chain(machine.virtual_interfaces.iter().map(Row::VirtualInterface))
        .chain(pairs.map(|(gpus, link)| Row::GpuLink { gpus, link: paths::name(link) }))
        .chain(paths.iter().map(Row::Path));
    let line = |row| serde_json::to_string(&row).map_or_else(|e| e.to_string(), |line| line + "\n");
    rows.map(line).collect()
}

pub(crate) fn main(options: &Options) -> Result<ExitCode> {
    let root = options.root.clone().map_or_else(Root::default, Root::from);
    let links = match root.is_real() {
        true => device::links().map_err(|e| e.to_string()),
        false => Err("the machine is not this one".to_owned()),
    };
    let shown = links.as_deref().unwrap_or_default();
    let machine = read::machine(&root, shown);
    let config = Config::get();
    let network = Network {
        interfaces: interface::devices(&config.socket_ifname, &config.socket_family)
            .map(|found| found.into_iter().map(|i| i.name).collect())
            .unwrap_or_default(),
        plugin: config.net_plugin.trim().to_owned(),
    };
    let gpus = match &links {
        Ok(links) => Ok(links.as_slice()),
        Err(_) if machine.gpus.is_empty() => Ok(&[][..]),
        Err(why) => Err(why.as_str()),
    };
    let paths = paths::paths(gpus, config.forbids_peer_access(), &network);
    let uname = rustix::system::uname();
    let tree = text::tree(&machine, &uname.nodename().to_string_lossy());
    let failed = |path: &str| {
        let path = path.to_owned();
        move |e: std::io::Error| Error::File { path, cause: e.to_string() }
    };
    if let Some(path) = &options.svg {
        let drawn = svg::draw(&tree, shown)
            .map_err(|e| Error::File { path: path.clone(), cause: e.to_string() })?;
        writer(path)?.write_all(drawn.as_bytes()).map_err(failed(path))?;
    }
    if let Some(path) = &options.json {
        let text = json(&machine, shown, &paths);
        writer(path)?.write_all(text.as_bytes()).map_err(failed(path))?;
    }
    let is_for_programs = |file: &Option<String>| file.as_deref() == Some("-");
    if !is_for_programs(&options.json) && !is_for_programs(&options.svg) {
        let text = text::rendered(&tree) + &text::matrix(shown) + &text::of_paths(&paths);
        std::io::stdout().write_all(text.as_bytes()).map_err(failed("standard output"))?;
    }
    Ok(ExitCode::SUCCESS)
}
