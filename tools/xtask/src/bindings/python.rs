//! Python: the classes and prototypes of `ctypes`.

use super::{NOTE, comment, functions};
use crate::model::{Declaration, Kind, Model, Type, Value};

/// Returns the text of the one generated module.
pub(super) fn raw(model: &Model) -> String {
    let mut out = format!(
        "# {NOTE}\n\"\"\"The C interface for ctypes: nccl.h and oxccl.h, name by name.\"\"\"\n\n\
         from ctypes import (\n    CFUNCTYPE, POINTER, Structure, Union, c_char, c_char_p, \
         c_double, c_float,\n    c_int, c_int8, c_int16, c_int32, c_int64, c_size_t, c_uint, \
         c_uint8, c_uint16,\n    c_uint32, c_uint64, c_void_p,\n)\nfrom enum import IntEnum\n\n\
         #: The version of this package.\nVERSION = \"{}\"\n",
        env!("CARGO_PKG_VERSION")
    );
    for d in &model.0 {
        match &d.what {
            Kind::Constant(_, Value::Number(value)) => {
                out += &format!("\n{}{} = {value}\n", comment(&d.doc, "#:"), d.name);
            }
            Kind::Enum(enumerators) => {
                let doc = d.doc.join("\n    ");
                out += &format!("\n\nclass {}(IntEnum):\n    \"\"\"{doc}\"\"\"\n\n", d.name);
                for e in enumerators {
                    out += &format!("{}    {} = {}\n", comment(&e.doc, "    #:"), e.name, e.what);
                }
                out += "\n";
            }
            _ => {}
        }
    }
    for d in &model.0 {
        let doc = comment(&d.doc, "#:");
        match &d.what {
            Kind::Constant(Type::Named(ty), Value::Enumerator(name)) => {
                out += &format!("\n{doc}{} = {ty}.{name}\n", d.name);
            }
            Kind::Struct(fields) => out += &class(model, d, "Structure", fields),
            Kind::Union(fields) => out += &class(model, d, "Union", fields),
            Kind::Alias(to) => out += &format!("\n{doc}{} = {}\n", d.name, python(model, to)),
            Kind::Callback(parameters) => {
                let types: Vec<_> = parameters.iter().map(|t| python(model, t)).collect();
                out += &format!("\n{doc}{} = CFUNCTYPE(None, {})\n", d.name, types.join(", "));
            }
            _ => {}
        }
    }
    out += "\n#: Every function: what it returns and its parameters.\nPROTOTYPES = {\n";
    for (d, parameters, output) in functions(model) {
        let names: Vec<_> = parameters.iter().map(|p| p.name.as_str()).collect();
        let types: String =
            parameters.iter().map(|p| format!("{}, ", python(model, &p.what))).collect();
        out += &format!(
            "    # {}({})\n    #\n{}    \"{}\": ({}, ({})),\n",
            d.name,
            names.join(", "),
            comment(&d.doc, "    #"),
            d.name,
            python(model, output),
            types.trim_end(),
        );
    }
    out + "}\n"
}

/// Returns the class of a structure or a union.
fn class(model: &Model, d: &Declaration<Kind>, base: &str, fields: &[Declaration<Type>]) -> String {
    let (name, text) = (&d.name, d.doc.join("\n    "));
    let declare = |f: &Declaration<Type>| {
        let ty = python(model, &f.what);
        format!("{}        (\"{}\", {ty}),\n", comment(&f.doc, "        #"), f.name)
    };
    // A structure that points to its like needs its own name first.
    let own = Type::Named(name.clone());
    let points = |ty: &Type| matches!(ty, Type::Pointer(_, to) if **to == own);
    let begin = format!("\n\nclass {name}({base}):\n    \"\"\"{text}\"\"\"\n\n");
    let list: String = fields.iter().map(declare).collect();
    if !fields.iter().any(|f| points(&f.what)) {
        return format!("{begin}    _fields_ = [\n{list}    ]\n\n");
    }
    let list = list.replace("\n    ", "\n");
    let list = list.strip_prefix("    ").unwrap_or(&list);
    format!("{begin}\n{name}._fields_ = [\n{list}]\n\n")
}

fn python(model: &Model, ty: &Type) -> String {
    if model.is_handle(ty) {
        return "c_void_p".to_owned();
    }
    match ty {
        Type::Basic(name) => match *name {
            "void" => "None".to_owned(),
            "unsigned int" => "c_uint".to_owned(),
            other => format!("c_{}", other.trim_end_matches("_t")).replace("c_size", "c_size_t"),
        },
        Type::Named(name) => match model.find(name) {
            Some(Kind::Enum(_)) => "c_int".to_owned(),
            _ => name.clone(),
        },
        Type::Pointer(_, to) => match to.as_ref() {
            Type::Basic("void") => "c_void_p".to_owned(),
            Type::Basic("char") => "c_char_p".to_owned(),
            to => format!("POINTER({})", python(model, to)),
        },
        Type::Array(of, length) => format!("{} * {length}", python(model, of)),
    }
}
