//! Generated files are fresh, and the code base is tidy.

use oxccl_plan::Carrier;
use oxccl_plan::generate::GENERATORS;
use std::collections::BTreeSet;
use std::path::Path;

fn root() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

#[test]
fn headers_are_what_codegen_would_write_and_declare_every_export() {
    let complaints = xtask::headers::stale(&root()).expect("cbindgen runs");
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
}

#[test]
fn the_generated_parts_of_the_bindings_are_what_codegen_would_write() {
    let stale = xtask::bindings::stale(&root()).expect("the interface can be read");
    assert!(stale.is_empty(), "{stale:?} are stale: run cargo run -p xtask -- codegen");
}

#[test]
fn the_table_of_variables_is_what_codegen_would_write() {
    let found = std::fs::read_to_string(root().join(xtask::environment::FILE)).expect("a file");
    let stale = "docs/environment.md is stale: run cargo run -p xtask -- codegen";
    assert!(found == xtask::environment::text(), "{stale}");
}

#[test]
fn pages_quote_files_as_they_are() {
    let stale = xtask::quoted::stale(&root()).expect("the files can be read");
    let stale: Vec<_> = stale.into_iter().map(|(path, _)| path).collect();
    assert!(stale.is_empty(), "{stale:?} are stale: run cargo run -p xtask -- codegen");
}

#[test]
fn the_picture_of_speed_is_what_codegen_would_draw() {
    let found = std::fs::read_to_string(root().join(xtask::speed::FILE)).expect("a file");
    let stale = "docs/speed.svg is stale: run cargo run -p xtask -- codegen";
    assert!(found == xtask::speed::text(&root()).expect("the tables can be read"), "{stale}");
}

#[test]
fn the_page_of_plans_has_every_algorithm_and_every_carrier_and_no_others() {
    let text = std::fs::read_to_string(root().join("docs/plans.md")).expect("a file");
    let names: BTreeSet<&str> = text
        .lines()
        .filter_map(|line| line.strip_prefix("| ")?.split(" |").next())
        .flat_map(|cell| cell.split(", "))
        .map(|name| name.trim_matches('`'))
        .filter(|name| *name != "name")
        .collect();
    let algorithms = GENERATORS.iter().map(|generator| generator.name);
    let plain = algorithms.map(|name| match name.strip_prefix("rails_") {
        Some(between) if between != "switch" => "rails_…",
        _ => name,
    });
    let wanted = plain.chain(Carrier::ALL.iter().map(|carrier| carrier.name())).collect();
    assert_eq!(names, wanted);
}

#[test]
fn the_code_base_is_tidy() {
    let complaints = xtask::tidy::complaints(&root());
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
}
