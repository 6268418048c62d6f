//! A model of the C interface, read from the plain Rust items that cbindgen reads too.
//!
//! The grammar is closed: an item that it does not know is an error, so that nothing is left out
//! silently. Private items, `impl` blocks and functions that are not `extern "C"` belong to the
//! implementation.

use crate::headers;
use std::path::{Path, PathBuf};
use syn::{Expr, Fields, Item, ReturnType};

/// The folders, in the order in which they build on each other.
const FOLDERS: [&str; 2] = ["capi/src/nccl", "capi/src/oxccl"];

/// The errors of reading the interface.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file that cannot be read.
    #[error("{0}: {1}")]
    File(PathBuf, std::io::Error),
    /// A file that is not Rust.
    #[error("{0}: {1}")]
    Syntax(PathBuf, syn::Error),
    /// An item that the grammar does not have.
    #[error("{file}: {item}: {why}")]
    Item {
        /// The file.
        file: PathBuf,
        /// The item's name.
        item: String,
        /// The fault of the item.
        why: String,
    },
}

/// A type of C.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Type {
    /// A basic type of C, by its C name.
    Basic(&'static str),
    /// A type that the model declares.
    Named(String),
    /// A pointer; true for one to const.
    Pointer(bool, Box<Type>),
    /// An array of a structure.
    Array(Box<Type>, usize),
}

/// The value of a constant.
#[derive(Debug, PartialEq, Eq)]
pub enum Value {
    /// A number.
    Number(i64),
    /// An enumerator, by its name.
    Enumerator(String),
}

/// The kinds of declarations.
#[derive(Debug)]
pub enum Kind {
    /// A constant.
    Constant(Type, Value),
    /// An enum of C's int: its enumerators.
    Enum(Vec<Declaration<i64>>),
    /// A structure: its fields.
    Struct(Vec<Declaration<Type>>),
    /// A union: its fields, of which none is larger than a pointer.
    Union(Vec<Declaration<Type>>),
    /// A structure that only the library knows.
    Opaque,
    /// Another name for a type.
    Alias(Type),
    /// A pointer to a function that returns nothing: the types of its parameters.
    Callback(Vec<Type>),
    /// A function: its parameters, without documentation, and the type that it returns.
    Function(Vec<Declaration<Type>>, Type),
}

/// A name with its documentation.
#[derive(Debug)]
pub struct Declaration<T> {
    /// The name in C.
    pub name: String,
    /// The lines of documentation, without those that concern Rust only.
    pub doc: Vec<String>,
    /// The item behind the name.
    pub what: T,
}

/// The interface: every declaration of `nccl.h` and `oxccl.h`, types before their users, without
/// the twins `pncclX`.
#[derive(Debug)]
pub struct Model(pub Vec<Declaration<Kind>>);

impl Model {
    /// Reads the interface.
    pub fn read(root: &Path) -> Result<Self, Error> {
        let mut all = Vec::new();
        for folder in FOLDERS {
            let folder = root.join(folder);
            let files = headers::sources(&folder).map_err(|e| Error::File(folder.clone(), e))?;
            for path in files {
                let text =
                    std::fs::read_to_string(&path).map_err(|e| Error::File(path.clone(), e))?;
                read_file(&path, &text, &mut all)?;
            }
        }
        let model = Self(all);
        model.check_names()?;
        Ok(model)
    }

    /// Returns the declaration of a name.
    pub fn find(&self, name: &str) -> Option<&Kind> {
        self.0.iter().find(|d| d.name == name).map(|d| &d.what)
    }

    /// Returns the type behind all aliases.
    pub fn resolved<'a>(&'a self, ty: &'a Type) -> &'a Type {
        match ty {
            Type::Named(name) => match self.find(name) {
                Some(Kind::Alias(to)) => self.resolved(to),
                _ => ty,
            },
            _ => ty,
        }
    }

    /// Returns whether a type is a handle: a pointer to a structure that only the library knows.
    pub fn is_handle(&self, ty: &Type) -> bool {
        let Type::Pointer(_, to) = self.resolved(ty) else { return false };
        matches!(to.as_ref(), Type::Named(name) if matches!(self.find(name), Some(Kind::Opaque)))
    }

    fn check_names(&self) -> Result<(), Error> {
        for declaration in &self.0 {
            let mut types: Vec<&Type> = Vec::new();
            match &declaration.what {
                Kind::Struct(fields) | Kind::Union(fields) => {
                    types.extend(fields.iter().map(|f| &f.what));
                }
                Kind::Function(parameters, output) => {
                    types.extend(parameters.iter().map(|p| &p.what));
                    types.push(output);
                }
                Kind::Alias(to) | Kind::Constant(to, _) => types.push(to),
                Kind::Callback(parameters) => types.extend(parameters),
                Kind::Enum(_) | Kind::Opaque => {}
            }
            for ty in types {
                let mut ty = ty;
                while let Type::Pointer(_, to) | Type::Array(to, _) = ty {
                    ty = to;
                }
                if let Type::Named(name) = ty
                    && self.find(name).is_none()
                {
                    let why = format!("{name} is no type of the interface");
                    return Err(wrong(Path::new("capi/src"), &declaration.name, why));
                }
            }
        }
        Ok(())
    }
}

fn wrong(file: &Path, item: &str, why: impl Into<String>) -> Error {
    Error::Item { file: file.to_owned(), item: item.to_owned(), why: why.into() }
}

fn read_file(path: &Path, text: &str, all: &mut Vec<Declaration<Kind>>) -> Result<(), Error> {
    let file = syn::parse_file(text).map_err(|e| Error::Syntax(path.to_owned(), e))?;
    for item in file.items {
        let name = name_of(&item);
        let found = read_item(&item).map_err(|why| wrong(path, &name, why))?;
        let Some((attributes, what)) = found else { continue };
        let doc = doc_of(attributes);
        let function = matches!(what, Kind::Function(..));
        if doc.is_empty() {
            return Err(wrong(path, &name, "no documentation"));
        }
        let text = doc.join(" ");
        if function && !text.contains("Blocks") {
            return Err(wrong(path, &name, "the documentation does not say `Blocks: …`"));
        }
        all.push(Declaration { name, doc, what });
    }
    Ok(())
}

fn name_of(item: &Item) -> String {
    match item {
        Item::Const(i) => i.ident.to_string(),
        Item::Enum(i) => i.ident.to_string(),
        Item::Struct(i) => i.ident.to_string(),
        Item::Union(i) => i.ident.to_string(),
        Item::Type(i) => i.ident.to_string(),
        Item::Fn(i) => i.sig.ident.to_string(),
        _ => "an item".to_owned(),
    }
}

type Found<'a> = Option<(&'a [syn::Attribute], Kind)>;

/// Reads an item; `None` for items of the implementation.
fn read_item(item: &Item) -> Result<Found<'_>, String> {
    let public = |visibility: &syn::Visibility| matches!(visibility, syn::Visibility::Public(_));
    Ok(match item {
        Item::Const(i) if public(&i.vis) => {
            Some((&i.attrs, Kind::Constant(read_type(&i.ty)?, value_of(&i.expr)?)))
        }
        Item::Enum(i) if public(&i.vis) => Some((
            &i.attrs,
            Kind::Enum(i.variants.iter().map(enumerator).collect::<Result<_, _>>()?),
        )),
        Item::Struct(i) if public(&i.vis) => Some((&i.attrs, structure(i)?)),
        Item::Union(i) if public(&i.vis) => Some((&i.attrs, union(i)?)),
        Item::Type(i) if public(&i.vis) => Some((&i.attrs, alias(&i.ty)?)),
        Item::Fn(i) if i.sig.abi.is_some() => {
            let unsafely = matches!(i.sig.safety, syn::Safety::Unsafe(..));
            if !public(&i.vis) || !unsafely || !i.sig.generics.params.is_empty() {
                return Err("exports are `pub unsafe extern \"C\" fn`, not generic".to_owned());
            }
            Some((&i.attrs, function(&i.sig)?))
        }
        Item::Const(_) | Item::Enum(_) | Item::Struct(_) | Item::Type(_) | Item::Fn(_) => None,
        Item::Use(_) | Item::Mod(_) | Item::Impl(_) | Item::Static(_) => None,
        // Thread-local values are no exports.
        Item::Macro(i) if i.mac.path.is_ident("thread_local") => None,
        _ => return Err("neither a plain item nor one of the implementation".to_owned()),
    })
}

fn doc_of(attributes: &[syn::Attribute]) -> Vec<String> {
    let lines = attributes.iter().filter(|a| a.path().is_ident("doc")).filter_map(|a| {
        let syn::Meta::NameValue(meta) = &a.meta else { return None };
        let Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(text), .. }) = &meta.value else {
            return None;
        };
        Some(text.value().strip_prefix(' ').map(str::to_owned).unwrap_or(text.value()))
    });
    let mut lines: Vec<String> = lines.take_while(|l| l != "# Safety").collect();
    while lines.last().is_some_and(String::is_empty) {
        lines.pop();
    }
    lines
}

fn number(expression: &Expr) -> Result<i64, String> {
    match expression {
        Expr::Lit(syn::ExprLit { lit: syn::Lit::Int(number), .. }) => {
            number.base10_parse().map_err(|e| e.to_string())
        }
        Expr::Unary(syn::ExprUnary { op: syn::UnOp::Neg(_), expr, .. }) => Ok(-number(expr)?),
        _ => Err("the value is no plain number".to_owned()),
    }
}

fn value_of(expression: &Expr) -> Result<Value, String> {
    match expression {
        Expr::Path(path) if path.path.segments.len() == 2 => {
            Ok(Value::Enumerator(path.path.segments[1].ident.to_string()))
        }
        other => number(other).map(Value::Number),
    }
}

fn enumerator(variant: &syn::Variant) -> Result<Declaration<i64>, String> {
    let name = variant.ident.to_string();
    let value = match (&variant.discriminant, &variant.fields) {
        (Some((_, value)), Fields::Unit) => number(value)?,
        _ => return Err(format!("{name} is not a plain `name = number`")),
    };
    Ok(Declaration { name, doc: doc_of(&variant.attrs), what: value })
}

fn structure(item: &syn::ItemStruct) -> Result<Kind, String> {
    let Fields::Named(fields) = &item.fields else {
        return Err("a structure without names".to_owned());
    };
    let fields: Vec<_> = fields.named.iter().collect();
    if fields.len() == 1 && fields[0].ident.as_ref().is_some_and(|name| name == "_private") {
        return Ok(Kind::Opaque);
    }
    layout_of_c(&item.attrs)?;
    Ok(Kind::Struct(fields.into_iter().map(field).collect::<Result<_, String>>()?))
}

fn union(item: &syn::ItemUnion) -> Result<Kind, String> {
    layout_of_c(&item.attrs)?;
    Ok(Kind::Union(item.fields.named.iter().map(field).collect::<Result<_, String>>()?))
}

fn field(field: &syn::Field) -> Result<Declaration<Type>, String> {
    let name = field.ident.as_ref().map(ToString::to_string).unwrap_or_default();
    Ok(Declaration { name, doc: doc_of(&field.attrs), what: read_type(&field.ty)? })
}

fn layout_of_c(attributes: &[syn::Attribute]) -> Result<(), String> {
    let c = attributes.iter().filter(|a| a.path().is_ident("repr"));
    if c.filter_map(|a| a.parse_args::<syn::Ident>().ok()).any(|i| i == "C") {
        return Ok(());
    }
    Err("a structure without #[repr(C)]".to_owned())
}

fn alias(ty: &syn::Type) -> Result<Kind, String> {
    if let Some(syn::Type::FnPtr(callback)) = argument_of(ty, "Option") {
        if callback.abi.is_none() || !matches!(callback.output, ReturnType::Default) {
            return Err("a callback is `extern \"C\"` and returns nothing".to_owned());
        }
        let parameters = callback.inputs.iter().map(|p| read_type(&p.ty));
        return Ok(Kind::Callback(parameters.collect::<Result<_, _>>()?));
    }
    read_type(ty).map(Kind::Alias)
}

fn function(signature: &syn::Signature) -> Result<Kind, String> {
    if signature.variadic.is_some() {
        return Err("a variable number of arguments".to_owned());
    }
    let parameters = signature.inputs.iter().map(|input| {
        let syn::FnArg::Typed(input) = input else { return Err("self".to_owned()) };
        let syn::Pat::Ident(pattern) = input.pat.as_ref() else {
            return Err("a parameter without a name".to_owned());
        };
        let name = pattern.ident.to_string();
        Ok(Declaration { name, doc: Vec::new(), what: read_type(&input.ty)? })
    });
    let output = match &signature.output {
        ReturnType::Default => Type::Basic("void"),
        ReturnType::Type(_, ty) => read_type(ty)?,
    };
    Ok(Kind::Function(parameters.collect::<Result<_, _>>()?, output))
}

/// Returns the argument of a generic type of the given name.
fn argument_of<'a>(ty: &'a syn::Type, name: &str) -> Option<&'a syn::Type> {
    let syn::Type::Path(path) = ty else { return None };
    let last = path.path.segments.last().filter(|s| s.ident == name)?;
    let syn::PathArguments::AngleBracketed(arguments) = &last.arguments else { return None };
    match arguments.args.first() {
        Some(syn::GenericArgument::Type(ty)) => Some(ty),
        _ => None,
    }
}

fn read_type(ty: &syn::Type) -> Result<Type, String> {
    // C enums arrive as `MaybeUninit`, so that no bad enumerator enters Rust.
    if let Some(inner) = argument_of(ty, "MaybeUninit") {
        return read_type(inner);
    }
    match ty {
        syn::Type::Ptr(pointer) => Ok(Type::Pointer(
            matches!(pointer.mutability, syn::PointerMutability::Const(..)),
            Box::new(read_type(&pointer.elem)?),
        )),
        syn::Type::Array(array) => {
            let length = usize::try_from(number(&array.len)?).map_err(|e| e.to_string())?;
            Ok(Type::Array(Box::new(read_type(&array.elem)?), length))
        }
        syn::Type::Path(path) => {
            let last = path.path.segments.last().filter(|s| s.arguments.is_none());
            let name = last.ok_or("a generic type")?.ident.to_string();
            Ok(basic(&name).map_or(Type::Named(name), Type::Basic))
        }
        _ => Err("a type that C does not have".to_owned()),
    }
}

fn basic(name: &str) -> Option<&'static str> {
    Some(match name {
        "c_void" => "void",
        "c_char" => "char",
        "c_int" => "int",
        "c_uint" => "unsigned int",
        "usize" => "size_t",
        "i8" => "int8_t",
        "u8" => "uint8_t",
        "i16" => "int16_t",
        "u16" => "uint16_t",
        "i32" => "int32_t",
        "u32" => "uint32_t",
        "i64" => "int64_t",
        "u64" => "uint64_t",
        "f32" => "float",
        "f64" => "double",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Vec<Declaration<Kind>>, Error> {
        let mut all = Vec::new();
        read_file(Path::new("a.rs"), text, &mut all)?;
        Ok(all)
    }

    #[test]
    fn what_the_grammar_does_not_have_is_an_error() {
        for (text, complaint) in [
            ("/// A.\npub union A { a: i32 }", "without #[repr(C)]"),
            ("/// A.\npub trait A {}", "neither a plain item"),
            ("make! { fn ncclA() }", "neither a plain item"),
            ("/// A.\npub const A: c_int = 1 + 1;", "no plain number"),
            ("/// A.\n#[repr(C)]\npub enum A { B }", "B is not a plain"),
            ("/// A.\npub struct A { pub a: c_int }", "without #[repr(C)]"),
            ("/// Blocks.\npub unsafe extern \"C\" fn f(a: &c_int) {}", "C does not have"),
            ("/// Blocks.\npub unsafe extern \"C\" fn f(a: Vec<u8>) {}", "a generic type"),
            ("/// Blocks.\npub extern \"C\" fn f() {}", "pub unsafe extern"),
            ("/// Says nothing.\npub unsafe extern \"C\" fn f() {}", "does not say `Blocks"),
            ("pub type A = c_int;", "no documentation"),
        ] {
            let error = read(text).expect_err(text).to_string();
            assert!(error.contains(complaint), "{text}: {error}");
        }
    }

    #[test]
    fn items_become_declarations() {
        let text = "/// A function.\n///\n/// Blocks: never.\n///\n/// # Safety\n/// None.\n\
                    pub unsafe extern \"C\" fn f(e: MaybeUninit<E>, p: *const *mut c_void) -> E {}\n\
                    fn private() {}";
        let all = read(text).expect("it is plain");
        assert_eq!(all.len(), 1);
        assert_eq!(all[0].doc, ["A function.", "", "Blocks: never."]);
        let Kind::Function(parameters, output) = &all[0].what else { panic!("{all:?}") };
        let void = Type::Pointer(false, Box::new(Type::Basic("void")));
        assert_eq!(parameters[0].what, Type::Named("E".to_owned()));
        assert_eq!(parameters[1].what, Type::Pointer(true, Box::new(void)));
        assert_eq!(*output, Type::Named("E".to_owned()));
    }
}
