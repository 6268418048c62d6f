//! The binary interface is NCCL's: constants, layouts, prototypes, symbols, and wrappers.

use oxccl_tests::c::{C11, CPP17, Language, Program, expect_success, library, run};
use oxccl_tests::missing;
use std::path::Path;
use std::process::Command;
use xtask::abi;

/// Facts about NCCL, from its own headers and library.
const FACTS: &str = include_str!("../abi/nccl-2.32.3.txt");

/// Facts about NCCL's plugins, from the headers for their authors.
const PLUGIN_FACTS: &str = include_str!("../abi/plugins.txt");

/// The variables that NCCL's manual describes.
const VARIABLES: &str = include_str!("../abi/variables-2.30.7.txt");

/// What programs include.
const HEADERS: [&str; 3] = [
    include_str!("../../capi/include/nccl.h"),
    include_str!("../../capi/include/nccl_device.h"),
    include_str!("../../capi/include/oxccl.h"),
];

/// The program with every bad argument of every function, and what it includes.
const ARGUMENTS: &str = include_str!("../capi/bad_arguments.c");
const STRUCTURES: &str = include_str!("../capi/bad_structures.h");
const OPTIONS: &str = include_str!("../capi/bad_options.h");

/// They take nothing, or any number: there is nothing to get wrong.
const INERT: [&str; 3] = ["ncclParamDumpAll", "ncclResetDebugInit", "oxcclTag"];

/// Asks a header of ours what NCCL's was asked; at least so many facts are known.
fn header_agrees(header: &str, facts: &str, at_least: usize, (compiler, flags): Language<'_>) {
    let expected = abi::section(facts, header);
    assert!(expected.len() > at_least, "{header}: {} facts", expected.len());
    let name = format!("oxccl-facts-{}-{compiler}-{header}", std::process::id());
    let source = std::env::temp_dir().join(name);
    let text = abi::source(&format!("#include <{header}>\n"), &expected);
    std::fs::write(&source, text).expect("a source");
    let facts = format!("-DOXCCL_FACTS=\"{}\"", source.display());
    let folder = concat!("-I", env!("CARGO_MANIFEST_DIR"), "/../plugins/include");
    let program = Program::build("facts.c", (compiler, &[flags, &[&facts, folder]].concat()));
    std::fs::remove_file(source).expect("it can be removed");
    let Some(program) = program else { return };
    let printed = expect_success(&mut Command::new(program.path()), "");
    let differences = abi::answers(&printed, &expected);
    assert!(differences.is_empty(), "{header}:\n{}", differences.join("\n"));
}

fn facts_hold(language: Language<'_>) {
    abi::HEADERS.iter().for_each(|h| header_agrees(h.name, FACTS, 100, language));
}

#[test]
fn the_structures_of_plugins_are_nccls() {
    abi::plugins::HEADERS.iter().for_each(|h| header_agrees(h.name, PLUGIN_FACTS, 15, CPP17));
}

#[test]
fn constants_layouts_and_prototypes_are_nccls_in_c11() {
    facts_hold(C11);
}

#[test]
fn constants_layouts_and_prototypes_are_nccls_in_cpp17() {
    facts_hold(CPP17);
}

#[test]
fn a_wrong_answer_would_be_noticed() {
    let expected = ["int A = 1", "int B = 2"];
    let differences = abi::answers("int A = 1\nint B = 3\n", &expected);
    assert_eq!(differences, ["ours:   int B = 3", "NCCL's: int B = 2"]);
}

#[test]
fn everything_that_nccls_library_exports_is_exported() {
    let folder = library("exports");
    let ours = match abi::symbols(&folder.join("liboxccl.so")) {
        Err(abi::Error::Start(..)) => return missing("nm", "binutils are not installed"),
        ours => ours.expect("nm lists symbols"),
    };
    let theirs = abi::section(FACTS, "symbols");
    assert!(theirs.len() > 190, "{} symbols", theirs.len());
    let lacking: Vec<_> = theirs.iter().filter(|s| !ours.iter().any(|o| o == **s)).collect();
    assert!(lacking.is_empty(), "{} are not exported: {lacking:?}", lacking.len());
}

#[test]
fn bad_arguments_of_every_function_are_tested() {
    let lines = HEADERS.into_iter().flat_map(str::lines).filter(|line| !line.starts_with("//"));
    let before = lines.filter_map(|line| line.split_once('(')?.0.split_whitespace().last());
    let names = before.map(|name| name.trim_start_matches('*'));
    let functions = names.filter(|n| n.starts_with("nccl") || n.starts_with("oxccl"));
    let (inert, tested): (Vec<_>, Vec<_>) = functions.partition(|n| INERT.contains(n));
    assert!(tested.len() > 124 && inert == INERT, "{} {inert:?}", tested.len());
    // As the call that a macro checks, which one of a longer name is not.
    let called = |name: &str| {
        [ARGUMENTS, STRUCTURES, OPTIONS].iter().any(|text| text.contains(&format!("({name}(")))
    };
    let lacking: Vec<_> = tested.iter().filter(|n| !called(n)).collect();
    assert!(lacking.is_empty(), "bad_arguments.c does not call {lacking:?}");
}

#[test]
fn a_preloaded_wrapper_sees_every_call_once_and_calls_the_other_name() {
    let shared = ("cc", &["-std=c11", "-shared", "-fPIC"][..]);
    let built = Program::build("wrapper.c", shared).zip(Program::build("wrapped.c", C11));
    let Some((wrapper, program)) = built else { return };
    expect_success(&mut Command::new(program.path()), "wrapped 0 calls");
    let mut wrapped = Command::new(program.path());
    expect_success(wrapped.env("LD_PRELOAD", wrapper.path()), "wrapped 3 calls");
}

#[test]
fn configurations_and_teams_in_c() {
    run("config.c", C11, "configurations and teams work");
    run("config.c", CPP17, "configurations and teams work");
}

#[test]
fn options_come_from_the_configuration_and_from_variables_and_say_what_has_no_effect() {
    let Some(program) = Program::build("config.c", C11) else { return };
    let variables =
        [("NCCL_DEBUG", "INFO"), ("NCCL_CGA_CLUSTER_SIZE", "2"), ("NCCL_MIN_CTAS", "0")];
    let mut command = Command::new(program.path());
    let text = expect_success(command.envs(variables), "teams work");
    let prefix = "communicator weights: option";
    let reason = "has no effect: blocks and channels follow from the sizes of calls";
    for line in [
        format!("{prefix} cgaClusterSize = 2 {reason}"),
        "communicator without a name: option cgaClusterSize = 2".to_owned(),
        "NCCL_MIN_CTAS=0 is ignored: minCTAs takes at least 1".to_owned(),
    ] {
        assert!(text.contains(&line), "no {line:?} in:\n{text}");
    }
    assert!(!text.contains("option maxCTAs"), "it has an effect on GPUs:\n{text}");
}

#[test]
fn a_variable_or_a_file_decides_whether_creation_and_end_wait() {
    let Some(program) = Program::build("blocking.c", C11) else { return };
    let file = program.path().with_extension("conf");
    std::fs::write(&file, "NCCL_COMM_BLOCKING = off\n").expect("a file");
    let run = |effect: &str, variable: Option<&str>, file: Option<&Path>, expected: &str| {
        let mut command = Command::new(program.path());
        command.arg(effect).env_remove("NCCL_COMM_BLOCKING");
        command.envs(variable.map(|value| ("NCCL_COMM_BLOCKING", value)));
        command.env("NCCL_CONF_FILE", file.unwrap_or(Path::new("/dev/null")));
        expect_success(&mut command, expected);
    };
    run("0", Some("0"), None, "calls return");
    run("1", Some("1"), None, "calls wait");
    run("0", None, Some(&file), "calls return");
    run("1", Some("1"), Some(&file), "calls wait");
}

#[test]
fn every_variable_of_the_manual_is_in_the_table() {
    for name in VARIABLES.lines() {
        let known = oxccl_runtime::config::variables().any(|variable| variable.name == name);
        assert!(known, "{name} is in no row of runtime/src/config");
    }
}
