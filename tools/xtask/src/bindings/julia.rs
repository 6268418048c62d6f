//! Julia: constants, enums, structures, and one method per function, which calls through a pointer.

use super::{NOTE, comment, free, functions};
use crate::model::{Kind, Model, Type, Value};

const KEYWORDS: [&str; 4] = ["end", "function", "type", "begin"];

/// The types of numbers that are checked before they are passed: `whole` of the package says what
/// does not fit.
const CHECKED: [&str; 11] = [
    "Cint", "Cuint", "Csize_t", "Int8", "UInt8", "Int16", "UInt16", "Int32", "UInt32", "Int64",
    "UInt64",
];

/// Returns the text of the one generated file.
pub(super) fn raw(model: &Model) -> String {
    let mut out = format!("# {NOTE}\n# The C interface, name by name.\n");
    for d in &model.0 {
        match &d.what {
            Kind::Constant(_, Value::Number(value)) => {
                out += &format!("\n{}const {} = {value}\n", comment(&d.doc, "#"), d.name);
            }
            Kind::Enum(enumerators) => {
                out += &format!("\n{}@enum {}::Cint begin\n", comment(&d.doc, "#"), d.name);
                for e in enumerators {
                    out += &format!("{}    {} = {}\n", comment(&e.doc, "    #"), e.name, e.what);
                }
                out += "end\n";
            }
            _ => {}
        }
    }
    for d in &model.0 {
        let doc = comment(&d.doc, "#");
        match &d.what {
            Kind::Constant(_, Value::Enumerator(name)) => {
                out += &format!("\n{doc}const {} = {name}\n", d.name);
            }
            Kind::Struct(fields) => {
                out += &format!("\n{doc}struct {}\n", d.name);
                for f in fields {
                    let ty = julia(model, &f.what);
                    out += &format!("{}    {}::{ty}\n", comment(&f.doc, "    #"), f.name);
                }
                out += "end\n";
            }
            Kind::Union(fields) => {
                let size = "A union: the bytes of a pointer, which has room for each of";
                let names: Vec<_> = fields.iter().map(|f| f.name.as_str()).collect();
                out += &format!(
                    "\n{doc}# {size} {}.\nstruct {}\n    raw::Ptr{{Cvoid}}\nend\n",
                    names.join(", "),
                    d.name
                );
            }
            Kind::Alias(to) => out += &format!("\n{doc}const {} = {}\n", d.name, julia(model, to)),
            _ => {}
        }
    }
    let names: Vec<_> = functions(model).map(|(d, ..)| format!("    :{},\n", d.name)).collect();
    out += &format!("\nconst FUNCTIONS = [\n{}]\n", names.concat());
    out += "\n# The addresses of the functions, found when the module is loaded.\n\
            const ADDRESSES = fill(C_NULL, length(FUNCTIONS))\n";
    for (i, (d, parameters, output)) in functions(model).enumerate() {
        let names: Vec<_> = parameters.iter().map(|p| free(&p.name, &KEYWORDS)).collect();
        let types: Vec<_> = parameters.iter().map(|p| julia(model, &p.what)).collect();
        let argument = |(name, ty): (&String, &String)| match CHECKED.contains(&&**ty) {
            true => format!(", whole({ty}, :{name}, {name})"),
            false => format!(", {name}"),
        };
        let arguments: String = names.iter().zip(&types).map(argument).collect();
        let types: String = types.iter().map(|ty| format!("{ty}, ")).collect();
        out += &format!(
            "\n{}@inline {}({}) =\n    ccall(@inbounds(ADDRESSES[{}]), {}, ({}){arguments})\n",
            comment(&d.doc, "#"),
            d.name,
            names.join(", "),
            i + 1,
            julia(model, output),
            types.trim_end(),
        );
    }
    out
}

fn julia(model: &Model, ty: &Type) -> String {
    if model.is_handle(ty) {
        return "Ptr{Cvoid}".to_owned();
    }
    match ty {
        Type::Basic(name) => match *name {
            "void" => "Cvoid",
            "char" => "Cchar",
            "int" => "Cint",
            "unsigned int" => "Cuint",
            "size_t" => "Csize_t",
            "int8_t" => "Int8",
            "uint8_t" => "UInt8",
            "int16_t" => "Int16",
            "uint16_t" => "UInt16",
            "int32_t" => "Int32",
            "uint32_t" => "UInt32",
            "int64_t" => "Int64",
            "uint64_t" => "UInt64",
            "float" => "Cfloat",
            _ => "Cdouble",
        }
        .to_owned(),
        Type::Named(name) => match model.find(name) {
            // User-made operations are numbers that no enumerator has.
            Some(Kind::Enum(_)) => "Cint".to_owned(),
            Some(Kind::Callback(_)) => "Ptr{Cvoid}".to_owned(),
            _ => name.clone(),
        },
        Type::Pointer(true, to) if **to == Type::Basic("char") => "Cstring".to_owned(),
        Type::Pointer(_, to) => format!("Ptr{{{}}}", julia(model, to)),
        Type::Array(of, length) => format!("NTuple{{{length}, {}}}", julia(model, of)),
    }
}
