//! The names in a preprocessed C header: functions, structures, enumerations, macros.

use std::collections::BTreeMap;

/// The declarations of a header with names that begin with `nccl`, `pnccl` or `NCCL_`.
#[derive(Debug, Default)]
pub(super) struct Declarations {
    /// Prototypes by name, without the names of parameters.
    functions: BTreeMap<String, Prototype>,
    /// Structures by the names under which they can be used: their fields, and the types of these.
    structures: BTreeMap<String, Vec<Field>>,
    /// Enumerations by name: their enumerators.
    enumerations: BTreeMap<String, Vec<String>>,
    /// Aliases of types.
    aliases: BTreeMap<String, String>,
    /// Macros and their bodies; the name includes the parameters, if there are any.
    macros: BTreeMap<String, String>,
}

#[derive(Debug)]
struct Prototype {
    text: String,
    types: Vec<String>,
}

#[derive(Debug)]
struct Field {
    name: String,
    types: Vec<String>,
}

/// Arguments with which function-like macros are tried: versions before and after the change of the
/// version's form.
const SAMPLES: [[i32; 3]; 5] = [[1, 3, 4], [2, 8, 4], [2, 9, 1], [2, 30, 7], [3, 0, 0]];

fn is_name(token: &str) -> bool {
    token.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
}

fn ours(name: &str) -> bool {
    ["nccl", "pnccl", "NCCL_"].iter().any(|p| name.starts_with(p))
}

fn tokens(text: &str) -> Vec<&str> {
    let mut tokens = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let length = match first {
            '"' => rest[1..].find('"').map_or(rest.len(), |i| i + 2),
            c if word(c) => rest.find(|c| !word(c)).unwrap_or(rest.len()),
            c => c.len_utf8(),
        };
        tokens.push(&rest[..length]);
        rest = rest[length..].trim_start();
    }
    tokens
}

/// Splits at a separator outside all brackets.
fn split<'a, 't>(tokens: &'a [&'t str], separator: &str) -> Vec<&'a [&'t str]> {
    let (mut depth, mut start, mut parts) = (0, 0, Vec::new());
    for (i, token) in tokens.iter().enumerate() {
        match *token {
            "(" | "{" | "[" => depth += 1,
            ")" | "}" | "]" => depth -= 1,
            t if t == separator && depth == 0 => {
                parts.push(&tokens[start..i]);
                start = i + 1;
            }
            _ => {}
        }
    }
    parts.push(&tokens[start..]);
    parts.retain(|p| !p.is_empty());
    parts
}

/// Returns the declarations of a file, without attributes and without bodies of functions.
fn items<'t>(tokens: &[&'t str]) -> Vec<Vec<&'t str>> {
    let (mut items, mut item) = (Vec::new(), Vec::new());
    // Depths of all brackets, and of a body or an attribute that is skipped.
    let (mut depth, mut skipped) = (0, None);
    for &token in tokens {
        let opens = ["(", "{", "["].contains(&token);
        let closes = [")", "}", "]"].contains(&token);
        if token == "__attribute__" && skipped.is_none() {
            skipped = Some((depth, false));
            continue;
        }
        if token == "{" && depth == 0 && item.last() == Some(&")") {
            skipped = Some((depth, true));
        }
        depth += i32::from(opens) - i32::from(closes);
        match skipped {
            Some((at, body)) if closes && depth == at => {
                skipped = None;
                if body {
                    item.clear();
                }
            }
            Some(_) => {}
            None if token == ";" && depth == 0 => items.push(std::mem::take(&mut item)),
            None => item.push(token),
        }
    }
    items
}

fn type_names(tokens: &[&str]) -> Vec<String> {
    tokens.iter().filter(|t| ours(t)).map(|t| (*t).to_owned()).collect()
}

fn fields(body: &[&str]) -> Vec<Field> {
    let mut fields = Vec::new();
    for declaration in split(body, ";") {
        if let ["struct" | "union", "{", inner @ .., last] = declaration {
            // A part without a name of its type; also its own name may be missing.
            let (inner, name) = match *last {
                "}" => (inner, None),
                name => (&inner[..inner.len() - 1], Some(name)),
            };
            fields.extend(self::fields(inner).into_iter().map(|Field { name: part, types }| {
                let name = name.map_or_else(|| part.clone(), |of| format!("{of}.{part}"));
                Field { name, types }
            }));
            continue;
        }
        for (i, declarator) in split(declaration, ",").iter().enumerate() {
            if let Some(at) = declarator.windows(2).position(|pair| pair == ["(", "*"]) {
                let name = declarator.get(at + 2).copied().unwrap_or_default().to_owned();
                fields.push(Field { name, types: type_names(declarator) });
                continue;
            }
            let end = declarator.iter().position(|t| *t == "[").unwrap_or(declarator.len());
            let Some(name) = declarator[..end].iter().rev().find(|t| is_name(t)) else { continue };
            let types = if i == 0 { type_names(&declarator[..end - 1]) } else { Vec::new() };
            fields.push(Field { name: (*name).to_owned(), types });
        }
    }
    fields
}

/// Returns a type as text, without the name of the parameter.
fn render(tokens: &[&str]) -> String {
    let mut tokens = tokens.to_vec();
    let last_is_name = tokens.len() > 1 && tokens.last().is_some_and(|t| is_name(t));
    let keyword = ["int", "char", "long", "const", "unsigned"];
    if last_is_name && !tokens.last().is_some_and(|t| keyword.contains(t)) {
        tokens.pop();
    }
    tokens.join(" ").replace(" *", "*")
}

impl Declarations {
    /// Reads a preprocessed header: its text, and its macros (`-dM`).
    pub(super) fn parse(text: &str, macros: &str) -> Self {
        let mut found = Self::default();
        for item in items(&tokens(text)) {
            found.item(&item);
        }
        for line in macros.lines().filter_map(|l| l.strip_prefix("#define ")) {
            let end = line.find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
            let end = end.unwrap_or(line.len());
            let end = if line[end..].starts_with('(') {
                line.find(')').map_or(line.len(), |i| i + 1)
            } else {
                end
            };
            let (name, body) = (&line[..end], line[end..].trim());
            if ours(name) && !body.is_empty() && name != "NCCL_OS_LINUX" {
                found.macros.insert(name.to_owned(), body.to_owned());
            }
        }
        found
    }

    fn item(&mut self, item: &[&str]) {
        let open = item.iter().position(|t| *t == "{");
        let typedef = item.first() == Some(&"typedef");
        let last = item.last().copied().unwrap_or_default();
        let kind = item.get(usize::from(typedef)).copied().unwrap_or_default();
        let tag = item.get(usize::from(typedef) + 1).copied().unwrap_or_default();
        if let (Some(open), "struct" | "union" | "enum") = (open, kind) {
            let close = item.iter().rposition(|t| *t == "}").unwrap_or(item.len());
            let (name, body) = (if typedef { last } else { tag }, &item[open + 1..close]);
            if !ours(name) {
                return;
            }
            if kind != "enum" {
                self.structures.insert(name.to_owned(), fields(body));
            } else {
                let names = split(body, ",").iter().map(|e| e[0].to_owned()).collect();
                self.enumerations.insert(name.to_owned(), names);
            }
        } else if typedef && ours(last) && !item.contains(&"*") {
            let target = item[item.len() - 2].to_owned();
            self.aliases.insert(last.to_owned(), target);
        } else if let Some(open) = item.iter().position(|t| *t == "(")
            && !typedef
            && open > 0
            && ours(item[open - 1])
            && !item.contains(&"inline")
        {
            let name = item[open - 1];
            let parameters = &item[open + 1..item.len() - 1];
            let types: Vec<_> = split(parameters, ",").iter().map(|p| render(p)).collect();
            let types = if types.is_empty() { "void".to_owned() } else { types.join(", ") };
            let mut result = item[..open - 1].to_vec();
            result.retain(|t| *t != "extern" && *t != "\"C\"");
            let text = format!("{} {name}({types})", result.join(" ").replace(" *", "*"));
            let prototype = Prototype { text, types: type_names(item) };
            self.functions.insert(name.to_owned(), prototype);
        }
    }

    /// Returns the questions to ask about the header: about all of it, or only about the parts that
    /// exported functions need. Questions that were asked before are left out.
    pub(super) fn questions(
        &self,
        all: bool,
        exported: impl Fn(&str) -> bool,
        asked: &[String],
    ) -> Vec<String> {
        let functions: Vec<&Prototype> =
            self.functions.iter().filter(|(n, _)| exported(n)).map(|(_, p)| p).collect();
        let mut types: Vec<String> = if all {
            self.structures.keys().chain(self.enumerations.keys()).cloned().collect()
        } else {
            functions.iter().flat_map(|f| f.types.iter().cloned()).collect()
        };
        let mut i = 0;
        while i < types.len() {
            let mentioned = self.structures.get(&types[i]).into_iter().flatten();
            let more = mentioned.flat_map(|f| &f.types).chain(self.aliases.get(&types[i]));
            let more: Vec<String> = more.filter(|t| !types.contains(t)).cloned().collect();
            types.extend(more);
            i += 1;
        }
        types.sort();
        types.dedup();
        let mut questions = Vec::new();
        for (name, body) in &self.macros {
            questions.extend(self.about_macro(name, body, all, &types));
        }
        for name in &types {
            for enumerator in self.enumerations.get(name).into_iter().flatten() {
                questions.push(format!("enumerator {enumerator}"));
            }
            let known = self.structures.contains_key(name) || self.enumerations.contains_key(name);
            if known {
                // A tag is used with its keyword in C; the headers give all of them a plain name.
                let plain = self.aliases.iter().find(|(_, t)| *t == name).map_or(name, |(a, _)| a);
                questions.push(format!("sizeof {plain}"));
                let of = self.structures.get(name).into_iter().flatten();
                questions.extend(of.map(|f| format!("field {plain} {}", f.name)));
            }
        }
        questions.extend(functions.iter().map(|f| format!("function {}", f.text)));
        questions.retain(|q| !asked.contains(q));
        questions
    }

    /// Returns the questions to ask about plugins: the layouts and the types of the fields of these
    /// structures and of all that they name, and the numbers of these macros.
    pub(super) fn questions_of_plugins(&self, of: &[&str], macros: &[&str]) -> Vec<String> {
        let mut types: Vec<String> = of.iter().map(|name| (*name).to_owned()).collect();
        let mut i = 0;
        while i < types.len() {
            let mentioned = self.structures.get(&types[i]).into_iter().flatten();
            let more = mentioned.flat_map(|f| &f.types).chain(self.aliases.get(&types[i]));
            let more: Vec<String> = more.filter(|t| !types.contains(t)).cloned().collect();
            types.extend(more);
            i += 1;
        }
        types.sort();
        types.dedup();
        let mut questions: Vec<_> = macros.iter().map(|name| format!("int {name}")).collect();
        for name in &types {
            let Some(fields) = self.structures.get(name) else { continue };
            questions.push(format!("sizeof {name}"));
            for Field { name: field, .. } in fields {
                questions.push(format!("field {name} {field}"));
                questions.push(format!("type {name} {field}"));
            }
        }
        questions
    }

    fn about_macro(&self, name: &str, body: &str, all: bool, types: &[String]) -> Vec<String> {
        if let Some(rest) = body.strip_prefix('{') {
            let of = tokens(rest).get(2).copied().unwrap_or_default().to_owned();
            let tag = self.aliases.get(&of).unwrap_or(&of);
            let fields = self.structures.get(tag).into_iter().flatten();
            let known = types.contains(&of) || types.contains(tag);
            let ask = |f: &Field| format!("initial {of} {name} {}", f.name);
            return fields.filter(|_| known).map(ask).collect();
        }
        if !all {
            return Vec::new();
        }
        if let Some((name, _)) = name.split_once('(') {
            let call = |[x, y, z]: [i32; 3]| format!("call {name}({x},{y},{z})");
            return SAMPLES.map(call).to_vec();
        }
        let kind = match body {
            "NULL" => "pointer",
            _ if body.starts_with('"') => "string",
            _ if body.ends_with('f') && body.contains('.') => "float",
            _ => "int",
        };
        vec![format!("{kind} {name}")]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn declarations_are_found_and_bodies_skipped() {
        let text = r#"
            typedef struct ncclA* ncclA_t;
            typedef struct { int (*call)(void* a, ncclE_t* e); } ncclTable_t;
            typedef struct ncclB_v1 { unsigned int x, y; char z[4 * 2]; const char *s; } ncclB_t;
            typedef enum { ncclOne = 1, ncclTwo = (1 << 1), } ncclE_t;
            struct ncclC { ncclB_t b; struct ncclC* next; };
            typedef struct ncclC ncclC_t;
            struct ncclUnused { int i; };
            static inline __attribute__((always_inline)) int ncclInline(int x) { return x; }
            __attribute__((deprecated("no (more)"))) void ncclF();
            extern "C" ncclResult_t ncclG(const void* a, ncclC_t const* c, unsigned int n);
        "#;
        let macros = "#define NCCL_H_\n#define NCCL_X 3\n#define NCCL_V(X,Y,Z) (X)\n\
            #define NCCL_B_INITIALIZER { sizeof(ncclB_t), 0 }\n#define other 1\n";
        let found = Declarations::parse(text, macros);
        let some = found.questions(false, |_| true, &["sizeof ncclB_t".to_owned()]);
        assert_eq!(
            some,
            [
                "initial ncclB_t NCCL_B_INITIALIZER x",
                "initial ncclB_t NCCL_B_INITIALIZER y",
                "initial ncclB_t NCCL_B_INITIALIZER z",
                "initial ncclB_t NCCL_B_INITIALIZER s",
                "field ncclB_t x",
                "field ncclB_t y",
                "field ncclB_t z",
                "field ncclB_t s",
                "sizeof ncclC_t",
                "field ncclC_t b",
                "field ncclC_t next",
                "function void ncclF(void)",
                "function ncclResult_t ncclG(const void*, ncclC_t const*, unsigned int)",
            ]
        );
        let table = found.questions_of_plugins(&["ncclTable_t"], &["NCCL_X"]);
        let expected =
            ["int NCCL_X", "sizeof ncclTable_t", "field ncclTable_t call", "type ncclTable_t call"];
        assert_eq!(table, expected);
        let all = found.questions(true, |_| false, &some);
        assert_eq!(all[0..2], ["call NCCL_V(1,3,4)", "call NCCL_V(2,8,4)"]);
        let others = ["int NCCL_X", "sizeof ncclB_t", "enumerator ncclTwo", "sizeof ncclUnused"];
        assert!(others.iter().all(|q| all.contains(&(*q).to_owned())), "{all:?}");
    }
}
