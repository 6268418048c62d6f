//! Go: constants and enums, a C shim that fetches the text of an error in the call that failed
//! (goroutines change threads), and a Go function per C function.

use super::{NOTE, comment, free, functions};
use crate::model::{Declaration, Kind, Model, Type, Value};

const KEYWORDS: [&str; 3] = ["func", "type", "range"];

/// Returns the text of `types_gen.go`.
pub(super) fn types(model: &Model) -> String {
    let mut out = format!("// {NOTE}\n\npackage oxccl\n");
    for d in &model.0 {
        match &d.what {
            Kind::Constant(_, Value::Number(value)) => {
                let name = camel(&d.name);
                out += &format!("\n{}const {name} = {value}\n", about(&name, &d.doc));
            }
            Kind::Constant(_, Value::Enumerator(of)) => {
                let (name, of) = (short(&d.name), short(of));
                out += &format!("\n{}const {name} = {of}\n", about(name, &d.doc));
            }
            Kind::Enum(enumerators) => {
                let name = enum_name(&d.name);
                out += &format!("\n{}type {name} int32\n\nconst (\n", about(name, &d.doc));
                let lines = enumerators.iter().map(|e| {
                    let doc = comment(&e.doc, "\t//");
                    format!("{doc}\t{} {name} = {}\n", short(&e.name), e.what)
                });
                out += &format!("{})\n", lines.collect::<Vec<_>>().join("\n"));
            }
            _ => {}
        }
    }
    out
}

/// Returns the text of `options_gen.go`: a function for each field of ncclConfig_t that the user
/// sets. The field `blocking` is left to the binding.
pub(super) fn options(model: &Model) -> String {
    let mut out =
        format!("// {NOTE}\n\npackage oxccl\n\n// #include \"shim_gen.h\"\nimport \"C\"\n");
    let Some(Kind::Alias(Type::Named(structure))) = model.find("ncclConfig_t") else { return out };
    let Some(Kind::Struct(fields)) = model.find(structure) else { return out };
    for field in fields {
        let Declaration { name, doc, what } = field;
        if ["size", "magic", "version", "blocking"].contains(&name.as_str()) {
            continue;
        }
        let with = format!("With{}{}", name[..1].to_uppercase(), &name[1..]);
        let (ty, body) = match what {
            Type::Pointer(..) => ("string", format!("c.text(\"{name}\", &c.raw.{name}, value)")),
            _ => ("int32", format!("c.raw.{name} = C.int(value)")),
        };
        out += &format!(
            "\n{}func {with}(value {ty}) Option {{\n\treturn func(c *config) {{ {body} }}\n}}\n",
            about(&with, doc),
        );
    }
    out
}

/// Returns the text of `shim_gen.h`.
pub(super) fn shim(model: &Model) -> String {
    let mut out = format!(
        "/* {NOTE} */\n#ifndef OXCCL_GO_SHIM_H\n#define OXCCL_GO_SHIM_H\n\n#include <stdlib.h>\n\
         #include \"oxccl.h\"\n"
    );
    out += "\n/* With the build tag oxccl_dlopen functions are found when the program runs. */\n\
            #ifdef OXCCL_DLOPEN\n#include <dlfcn.h>\n\nenum {\n";
    for (d, ..) in functions(model) {
        out += &format!("  oxgo_index_{},\n", d.name);
    }
    out += "  oxgo_count\n};\n\n/* One table for all files of the package. */\n\
            __attribute__((weak)) void *oxgo_table[oxgo_count];\n\
            static const char *const oxgo_names[oxgo_count] = {\n";
    for (d, ..) in functions(model) {
        out += &format!("  \"{}\",\n", d.name);
    }
    out += "};\n\n/* Null, or what is wrong. */\n\
            static const char *oxgo_load(const char *library) {\n\
            \x20 void *handle = dlopen(library, RTLD_NOW | RTLD_GLOBAL);\n\
            \x20 for (int i = 0; handle && i < oxgo_count; i++) {\n\
            \x20   oxgo_table[i] = dlsym(handle, oxgo_names[i]);\n\
            \x20   if (!oxgo_table[i]) handle = NULL;\n  }\n\
            \x20 return handle ? NULL : dlerror();\n}\n\n\
            #define OXGO_CALL(name) ((__typeof__(&name))oxgo_table[oxgo_index_##name])\n\
            #else\n#define OXGO_CALL(name) name\n#endif\n";
    out += "\n/* What a call returned; `info` is null, or allocated and the caller's. */\n\
            typedef struct {\n  ncclResult_t code;\n  oxcclErrorInfo_t *info;\n} oxgo_status;\n\n\
            static oxgo_status oxgo_done(ncclResult_t code) {\n\
            \x20 oxgo_status status = {code, NULL};\n\
            \x20 if (code == ncclSuccess || code == ncclInProgress) return status;\n\
            \x20 status.info = calloc(1, sizeof *status.info);\n\
            \x20 if (status.info) {\n    status.info->size = sizeof *status.info;\n\
            \x20   OXGO_CALL(oxcclLastError)(status.info);\n  }\n  return status;\n}\n";
    for (d, parameters, output) in functions(model) {
        let declared: Vec<_> = parameters
            .iter()
            .map(|p| format!("{} {}", c(model, &p.what), p.name).replace("* ", "*"))
            .collect();
        let declared = if declared.is_empty() { "void".to_owned() } else { declared.join(", ") };
        let names: Vec<_> = parameters.iter().map(|p| p.name.as_str()).collect();
        let call = format!("OXGO_CALL({})({})", d.name, names.join(", "));
        let (ty, body) = match output {
            _ if answers_code(output) => {
                ("oxgo_status".to_owned(), format!("return oxgo_done({call})"))
            }
            Type::Basic("void") => ("void".to_owned(), call),
            other => (c(model, other), format!("return {call}")),
        };
        out += &format!("\nstatic {ty} oxgo_{}({declared}) {{\n  {body};\n}}\n", d.name);
    }
    out + "\n#endif\n"
}

/// Returns the text of `raw_gen.go`.
pub(super) fn raw(model: &Model) -> String {
    let mut out = format!(
        "// {NOTE}\n\npackage oxccl\n\n// #cgo CFLAGS: -I${{SRCDIR}}\n\
         // #include \"shim_gen.h\"\nimport \"C\"\n\nimport \"unsafe\"\n"
    );
    for (d, parameters, output) in functions(model) {
        let declared: Vec<_> = parameters
            .iter()
            .map(|p| format!("{} {}", free(&p.name, &KEYWORDS), go(model, &p.what)))
            .collect();
        let arguments: Vec<_> = parameters.iter().map(|p| argument(model, p)).collect();
        let call = format!("C.oxgo_{}({})", d.name, arguments.join(", "));
        let (ty, body) = match output {
            _ if answers_code(output) => (" error".to_owned(), format!("return failed({call})")),
            Type::Basic("void") => (String::new(), call),
            other => (format!(" {}", go(model, other)), format!("return {call}")),
        };
        out += &format!(
            "\n{}func {}({}){ty} {{\n\t{body}\n}}\n",
            comment(&d.doc, "//"),
            d.name,
            declared.join(", "),
        );
    }
    out
}

fn answers_code(output: &Type) -> bool {
    *output == Type::Named("ncclResult_t".to_owned())
}

/// Returns the first of several names of one handle: cgo makes a different type of each.
fn handle<'a>(model: &'a Model, name: &'a str) -> &'a str {
    let Some(Kind::Alias(to)) = model.find(name) else { return name };
    let same = |d: &&Declaration<Kind>| matches!(&d.what, Kind::Alias(other) if other == to);
    model.0.iter().find(same).map_or(name, |d| &d.name)
}

/// Returns a type as C writes it.
fn c(model: &Model, ty: &Type) -> String {
    let c = |ty| c(model, ty);
    match ty {
        Type::Basic(name) => (*name).to_owned(),
        Type::Named(name) => handle(model, name).to_owned(),
        Type::Pointer(constant, to) => {
            let word = if *constant { "const " } else { "" };
            match to.as_ref() {
                Type::Pointer(..) => format!("{}{word}*", c(to)),
                to => format!("{word}{} *", c(to)),
            }
        }
        Type::Array(of, length) => format!("{}[{length}]", c(of)),
    }
}

fn go(model: &Model, ty: &Type) -> String {
    match ty {
        Type::Basic("unsigned int") => "C.uint".to_owned(),
        Type::Basic(name) => format!("C.{name}"),
        Type::Named(name) => match model.find(name) {
            Some(Kind::Enum(_)) => enum_name(name).to_owned(),
            _ => format!("C.{}", handle(model, name)),
        },
        Type::Pointer(_, to) => match to.as_ref() {
            Type::Basic("void") => "unsafe.Pointer".to_owned(),
            // Enums behind pointers are C's.
            Type::Named(name) => format!("*C.{}", handle(model, name)),
            to => format!("*{}", go(model, to)),
        },
        Type::Array(of, length) => format!("[{length}]{}", go(model, of)),
    }
}

fn argument(model: &Model, parameter: &Declaration<Type>) -> String {
    let name = free(&parameter.name, &KEYWORDS);
    match &parameter.what {
        Type::Named(ty) if matches!(model.find(ty), Some(Kind::Enum(_))) => {
            format!("C.{ty}({name})")
        }
        _ => name,
    }
}

/// Removes the library's name, which is that of the package.
fn short(name: &str) -> &str {
    name.strip_prefix("nccl").or_else(|| name.strip_prefix("oxccl")).unwrap_or(name)
}

fn enum_name(name: &str) -> &str {
    short(name).trim_end_matches("_t")
}

/// Converts `NCCL_WIN_DEFAULT` to `NcclWinDefault`. The prefix stays, as both headers have a
/// version.
fn camel(name: &str) -> String {
    let word = |w: &str| w[..1].to_owned() + &w[1..].to_lowercase();
    name.split('_').map(word).collect()
}

/// Returns documentation that begins with the name, as is usual in Go.
fn about(name: &str, doc: &[String]) -> String {
    let mut lines = doc.to_vec();
    lines[0] = format!("{name}: {}", lines[0]);
    comment(&lines, "//")
}
