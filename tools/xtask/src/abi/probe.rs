//! The C program that answers questions about a header; it is valid C11 and C++17.
//!
//! Questions: `int NAME`, `string NAME`, `float NAME`, `pointer NAME`, `enumerator NAME`,
//! `call MACRO(…)`, `sizeof TYPE`, `field TYPE NAME`, `type TYPE NAME` (the type of a field as the
//! C++ compiler names it, only in C++), `initial TYPE MACRO FIELD`, and `function PROTOTYPE`, which
//! the compiler answers: it refuses a different declaration.

const BEGIN: &str = "\
#include <stddef.h>
#include <stdio.h>
#include <string.h>
";

const HELPERS: &str = "\
static void show(const char *question, const void *at, size_t bytes) {
  unsigned long long value = 0;
  memcpy(&value, at, bytes < sizeof value ? bytes : sizeof value);
  printf(\"%s = 0x%llx\\n\", question, value);
}
";

/// Returns the question of an answer: the text before ` = `.
fn question(line: &str) -> &str {
    line.split(" = ").next().unwrap_or(line)
}

/// Returns the program, for questions or answers. `includes`: the lines that include the header.
pub fn source<S: AsRef<str>>(includes: &str, lines: &[S]) -> String {
    let mut prototypes = String::new();
    let mut structures = Vec::new();
    let mut body = String::new();
    for line in lines {
        let question = question(line.as_ref());
        let (kind, rest) = question.split_once(' ').unwrap_or((question, ""));
        let words: Vec<&str> = rest.split(' ').collect();
        let print = |format: &str, value: String| {
            format!("  printf(\"%s = {format}\\n\", \"{question}\", {value});\n")
        };
        body.push_str(&match (kind, &words[..]) {
            ("function", _) => {
                prototypes.push_str(&format!("{rest};\n"));
                format!("  printf(\"%s\\n\", \"{question}\");\n")
            }
            ("int" | "enumerator" | "call", _) => print("%lld", format!("(long long)({rest})")),
            ("string", _) => print("%s", format!("\"\" {rest} \"\"")),
            ("float", _) => print("%.9g", format!("(double)({rest})")),
            ("pointer", _) => print("%s", format!("(const void *)({rest}) ? \"set\" : \"null\"")),
            ("sizeof", _) => print("%lu", format!("(unsigned long)sizeof({rest})")),
            ("field", [of, name]) => {
                let at = format!("(unsigned long)offsetof({of}, {name})");
                let size = format!("(unsigned long)sizeof((({of} *)0)->{name})");
                print("%lu, %lu bytes", format!("{at}, {size}"))
            }
            ("type", [of, name]) => {
                print("%s", format!("typeid((({of} *)nullptr)->{name}).name()"))
            }
            ("initial", [of, initializer, name]) => {
                let variable = format!("a_{initializer}");
                let declaration = format!("static {of} {variable} = {initializer};\n");
                if !structures.contains(&declaration) {
                    structures.push(declaration);
                }
                let field = format!("{variable}.{name}");
                format!("  show(\"{question}\", &{field}, sizeof {field});\n")
            }
            _ => format!("#error \"{question}: no such question\"\n"),
        });
    }
    let typeinfo = if body.contains("typeid(") { "#include <typeinfo>\n" } else { "" };
    // Structures are static, so that fields without an initializer are zero.
    format!(
        "{BEGIN}{typeinfo}{includes}#ifdef __cplusplus\nextern \"C\" {{\n#endif\n{prototypes}\
         #ifdef __cplusplus\n}}\n#endif\n{}{HELPERS}int main(void) {{\n{body}  (void)show;\n  \
         return 0;\n}}\n",
        structures.concat()
    )
}

/// Returns the lines in which the output of a program and the expected lines differ, from both.
pub fn answers(printed: &str, expected: &[&str]) -> Vec<String> {
    let printed: Vec<&str> = printed.lines().collect();
    let ours = printed.iter().filter(|l| !expected.contains(l)).map(|l| format!("ours:   {l}"));
    let theirs = expected.iter().filter(|l| !printed.contains(l)).map(|l| format!("NCCL's: {l}"));
    ours.chain(theirs).collect()
}
