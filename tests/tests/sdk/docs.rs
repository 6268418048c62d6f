//! The book in `docs/` and README: all pages and links are there, and the code runs.
//!
//! A block of code is written to `program.c` (`.cpp`, `.jl`, `.py`, `.go`, `.rs`) in the page's
//! folder, or to the file that the line before names, as in "A program, `graph.c`:"; a block of
//! `sh`, whose words say what it needs, is run there. Blocks of `text` are not run.

use crate::{ROOT, folder, have, prefix, watch};
use oxccl_tests::job::{bind_to_parent, wait_until};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// From the pages' folder.
const README: &str = "../README.md";

/// Pages beside the book, from its folder.
const BESIDE: [&str; 4] =
    [README, "../ARCHITECTURE.md", "../examples/README.md", "../bindings/rust/README.md"];

fn docs() -> PathBuf {
    Path::new(ROOT).join("docs")
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// The pages, as their paths below `docs`.
fn pages(below: &str) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(docs().join(below)).expect("a folder") {
        let entry = entry.expect("an entry");
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = if below.is_empty() { name } else { format!("{below}/{name}") };
        if entry.path().is_dir() {
            found.extend(pages(&path));
        } else if path.ends_with(".md") && path != "SUMMARY.md" {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// Where the links of a text lead, without what lies outside: paths, which are empty for the page
/// itself, and anchors, which are empty for a page as a whole.
fn links(text: &str) -> Vec<(&str, &str)> {
    let ends = text.split("](").skip(1).filter_map(|rest| rest.split_once(')'));
    let inside = ends.map(|(link, _)| link).filter(|link| !link.contains("://"));
    inside.map(|link| link.split_once('#').unwrap_or((link, ""))).collect()
}

/// The anchors of a page's headings, as GitHub and mdBook make them.
fn anchors(text: &str) -> Vec<String> {
    let (mut found, mut is_code) = (Vec::<(String, usize)>::new(), false);
    let mut anchors = Vec::new();
    for line in text.lines() {
        is_code ^= line.starts_with("```");
        let title = line.trim_start_matches('#');
        if is_code || title.len() == line.len() || !title.starts_with(' ') {
            continue;
        }
        // Of a link only its text.
        let parts = title.trim().split("](").enumerate();
        let shown = parts.map(|(i, part)| match part.split_once(')') {
            Some((_, rest)) if i > 0 => rest,
            _ => part,
        });
        let shown = shown.collect::<String>().to_lowercase().replace(' ', "-");
        let kept = |c: &char| c.is_alphanumeric() || ['-', '_'].contains(c);
        let anchor: String = shown.chars().filter(kept).collect();
        match found.iter_mut().find(|(earlier, _)| *earlier == anchor) {
            Some((_, times)) => {
                *times += 1;
                anchors.push(format!("{anchor}-{times}"));
            }
            None => {
                found.push((anchor.clone(), 0));
                anchors.push(anchor);
            }
        }
    }
    anchors
}

/// A page without what it quotes of other pages, which is tested where it stands.
fn own_text(page: &str) -> String {
    let (mut own, mut quotes) = (String::new(), false);
    for line in read(&docs().join(page)).lines() {
        quotes |= xtask::quoted::source(line).is_some_and(|path| path.ends_with(".md"));
        if !quotes {
            own += &format!("{line}\n");
        }
        quotes &= line != xtask::quoted::END;
    }
    own
}

/// A block of a page's own text.
struct Block {
    /// What stands behind the opening marks.
    words: String,
    contents: String,
    /// The file that the line before names at its end.
    file: Option<String>,
}

/// The blocks of a page's own text.
fn blocks(text: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let (mut open, mut file): (Option<Block>, _) = (None, None);
    for line in text.lines() {
        match (line.strip_prefix("```"), &mut open) {
            (Some(words), None) => {
                let (words, contents, file) = (words.to_owned(), String::new(), file.take());
                open = Some(Block { words, contents, file });
            }
            (Some(_), Some(_)) => blocks.extend(open.take()),
            (None, Some(block)) => block.contents += &format!("{line}\n"),
            (None, None) if line.is_empty() || xtask::quoted::source(line).is_some() => {}
            (None, None) => {
                let named = line.strip_suffix("`:").and_then(|line| line.rsplit_once('`'));
                file = named.map(|(_, name)| name.to_owned());
            }
        }
    }
    assert!(open.is_none(), "a block has no end");
    blocks
}

#[test]
fn the_summary_has_all_pages_and_links_lead_somewhere() {
    let summary = read(&docs().join("SUMMARY.md"));
    let mut listed: Vec<_> = links(&summary).into_iter().map(|(path, _)| path).collect();
    listed.sort_unstable();
    assert_eq!(listed, pages(""));
    for page in listed.iter().chain(&BESIDE) {
        let own = docs().join(page);
        let text = read(&own);
        for (path, anchor) in links(&text) {
            let at = if path.is_empty() { own.clone() } else { own.with_file_name(path) };
            assert!(at.exists(), "{page} links to {path}");
            let is_there = anchor.is_empty() || anchors(&read(&at)).iter().any(|a| a == anchor);
            assert!(is_there, "{page} links to {path}#{anchor}: no heading there has this name");
        }
    }
    let book = read(&docs().join("book.toml"));
    assert!(book.contains("src = \".\""), "{book}");
}

#[test]
fn headings_have_the_anchors_that_github_gives_them() {
    let text = "# C++: `a_b`, and [C](c.md)\n```sh\n# no\n```\n## Two\n### Two\n#no\n";
    assert_eq!(anchors(text), ["c-a_b-and-c", "two", "two-1"].map(str::to_owned));
}

/// Texts of shells and loaders, which the page about troubles explains.
const OF_OTHERS: [&str; 3] = [
    "oxccl: command not found",
    "Package oxccl was not found in the pkg-config search path",
    "error while loading shared libraries: liboxccl.so.2",
];

/// The sources below a folder without comments and tests; a text that goes on in the next line is
/// in one.
fn sources(folder: &Path) -> String {
    let mut all = String::new();
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            all += &sources(&path);
        } else if path.extension().is_some_and(|end| end == "rs") {
            let text = read(&path);
            let code = text.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
            for line in code.lines().map(str::trim).filter(|line| !line.starts_with("//")) {
                match line.strip_suffix('\\') {
                    Some(begun) => all += begun,
                    None => all += &format!("{line}\n"),
                }
            }
        }
    }
    all
}

/// What a text of the page has literally of the source: what stands between ellipses, numbers and
/// names of functions.
fn literal(text: &str) -> Vec<String> {
    let varies = |word: &str| word.starts_with("nccl") || word.contains(|c: char| c.is_numeric());
    let words = text.split(' ').map(|word| if varies(word) { "…" } else { word });
    let text = words.collect::<Vec<_>>().join(" ");
    let pieces = text.split('…').map(|piece| piece.trim_matches(|c: char| !c.is_alphanumeric()));
    pieces.filter(|piece| !piece.is_empty()).map(str::to_owned).collect()
}

#[test]
fn texts_that_troubleshooting_explains_are_printed() {
    let folders = ["runtime/src", "capi/src", "tools/cli/src", "plugins"];
    let sources: String = folders.iter().map(|at| sources(&Path::new(ROOT).join(at))).collect();
    let page = read(&docs().join("troubleshooting.md"));
    let happens = page.lines().filter_map(|line| line.strip_prefix("| ")?.split(" | ").next());
    let quoted = happens.flat_map(|cell| cell.split('`').skip(1).step_by(2));
    let mut ours = 0;
    for text in quoted.filter(|text| !OF_OTHERS.contains(text)) {
        for piece in literal(text) {
            assert!(sources.contains(&piece), "{text:?}: nothing prints {piece:?}");
        }
        ours += 1;
    }
    assert!(ours >= 12, "only {ours} texts were found");
}

#[test]
fn programs_that_a_new_user_writes_replace_no_others() {
    let mut names = Vec::new();
    for page in [README, "quick-start.md"] {
        let files = blocks(&own_text(page)).into_iter().filter_map(|block| block.file);
        names.extend(files);
    }
    assert!(names.len() >= 2, "{names:?}");
    let mut distinct = names.clone();
    distinct.sort();
    distinct.dedup();
    assert_eq!(distinct.len(), names.len(), "{names:?}");
}

#[test]
fn what_commands_take_from_the_environment_is_said_before() {
    for page in pages("") {
        let text = read(&docs().join(&page));
        for name in ["SOURCES", "PREFIX"] {
            let Some(used) = text.find(&format!("\"${name}")) else { continue };
            let said = text.find(&format!("`${name}`"));
            assert!(said.is_some_and(|said| said < used), "{page} does not say what ${name} is");
        }
    }
}

/// Whether all that a block of `sh` needs is there.
fn all_there(needs: &str) -> bool {
    needs.split_whitespace().all(|need| match need {
        "go" => crate::go::have_go(),
        "python3" => crate::python::have_numpy(),
        tool => have(tool),
    })
}

/// Writes and runs a page's blocks; how many ran.
fn run_page(page: &str) -> usize {
    let folder = folder(&format!("docs-{}", page.replace('/', "-")));
    let text_of_page = own_text(page);
    let (mut waiting, mut ran) = (None, 0);
    for Block { words, contents, file } in blocks(&text_of_page) {
        let (language, needs) = words.split_once(' ').unwrap_or((&words, ""));
        let suffix = match language {
            "text" | "yaml" => continue,
            "sh" => {
                waiting = None;
                let found = ["LD_LIBRARY_PATH=", "building.md#installing", "`LD_LIBRARY_PATH`"];
                let is_told = found.iter().any(|text| text_of_page.contains(text));
                assert!(!needs.contains("pkg-config") || is_told, "{page}: how is it found?");
                if all_there(needs) {
                    shell(&folder, page, &contents);
                    ran += 1;
                }
                continue;
            }
            "c" | "cpp" | "go" => language,
            "julia" => "jl",
            "python" => "py",
            "rust" => {
                prepare_cargo(&folder);
                "rs"
            }
            other => panic!("{page}: nothing runs a block of {other:?}"),
        };
        assert!(waiting.is_none(), "{page}: nothing runs the block before that of {language}");
        waiting = Some(language.to_owned());
        // A header, for example, is only spoken of.
        let named = file.filter(|name| name.ends_with(&format!(".{suffix}")));
        let file = named.unwrap_or_else(|| format!("program.{suffix}"));
        std::fs::write(folder.join(file), contents).expect("a file");
    }
    assert!(waiting.is_none(), "{page}: nothing runs the last block");
    ran
}

/// Lets cargo find in a folder what it built and downloaded before.
pub(crate) fn prepare_cargo(folder: &Path) {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("docs-rust");
    std::fs::create_dir_all(&target).expect("a folder");
    std::os::unix::fs::symlink(target, folder.join("target")).expect("a link");
    let lock = Path::new(ROOT).join("Cargo.lock");
    std::fs::copy(lock, folder.join("Cargo.lock")).expect("a copy");
}

/// Runs a block after the commands that the installation prints.
fn shell(folder: &Path, page: &str, script: &str) {
    let found = xtask::install::exports(prefix(), xtask::install::LIBDIR);
    let mut command = Command::new("bash");
    command.args(["-euc", &format!("{found}{script}")]).current_dir(folder);
    command
        .env("PREFIX", prefix())
        .env("SOURCES", std::fs::canonicalize(ROOT).expect("it is there"))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .envs([("GOPROXY", "off"), ("GOTOOLCHAIN", "local"), ("GOFLAGS", "-mod=mod")])
        .envs([("CARGO_NET_OFFLINE", "true"), ("CARGO_PROFILE_DEV_DEBUG", "0")])
        .env_remove("CARGO_TARGET_DIR");
    let (status, text) = watch(&mut command);
    assert_eq!(status, Some(0), "{page}: {script}: {text}");
}

#[test]
fn the_code_runs() {
    let ran: usize = pages("").iter().map(|page| run_page(page)).sum::<usize>() + run_page(README);
    // Those without needs at least.
    assert!(ran >= 1);
}

#[test]
fn the_pods_of_kubernetes_find_each_other() {
    if !have("cc") || !have("pkg-config") || !have("getent") {
        return;
    }
    let folder = folder("docs-pods");
    let hello = crate::launchers::hello(&folder);
    std::fs::write(folder.join("secret"), "no one knows this").expect("a file");
    let port =
        TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("a port").port();
    let page = read(&docs().join("kubernetes.md"));
    // As in a pod, but for where things are.
    let mut here = page.clone();
    for (there, place) in [
        ("hello-0.hello:29400", format!("127.0.0.1:{port}")),
        ("/tmp/oxccl-secret", format!("{}/own-$JOB_COMPLETION_INDEX", folder.display())),
        ("/etc/oxccl/", format!("{}/", folder.display())),
        ("/usr/local/bin/hello", hello.display().to_string()),
    ] {
        assert!(page.contains(there), "{there}");
        here = here.replace(there, &place);
    }
    let lines: Vec<_> = here.lines().map(str::trim_start).collect();
    let value = |name: &str| {
        let at = lines.iter().position(|l| *l == format!("- name: {name}")).expect(name);
        lines[at + 1].trim_start_matches("value: ").trim_matches('"').to_owned()
    };
    let script = here.split_once("- |\n").expect("the script").1;
    let (script, _) = script.split_once("volumeMounts:").expect("the end of the script");
    let mut ranks = Vec::new();
    for index in 0..4 {
        let mut command = Command::new("/bin/sh");
        command.args(["-euc", script]).env("JOB_COMPLETION_INDEX", index.to_string());
        for name in ["OXCCL_NRANKS", "NCCL_COMM_ID", "OXCCL_SECRET_FILE"] {
            command.env(name, value(name).replace("$JOB_COMPLETION_INDEX", &index.to_string()));
        }
        // Pods share no memory.
        command.env("NCCL_HOSTID", format!("pod {index}"));
        command.env("LD_LIBRARY_PATH", prefix().join("lib")).stdin(Stdio::null());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        ranks.push(bind_to_parent(&mut command).spawn().expect("it starts"));
    }
    for (rank, mut child) in ranks.into_iter().enumerate() {
        let status = wait_until(&mut child, Instant::now() + Duration::from_secs(60));
        let output = child.wait_with_output().expect("its output");
        let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        assert_eq!(status, Some(0), "{text}");
        assert!(text.contains(&format!("rank {rank} of 4: all right")), "{text}");
    }
}
