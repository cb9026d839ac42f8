//! Rules for the source tree that the compiler and clippy do not check: retired words, type names with two meanings, file sizes,
//! printing, doc comments that say nothing, files that belong to no module, and knowledge of store URLs outside the stores. Each
//! failure says what to do; CONTRIBUTING.md has the reasons.

#![allow(clippy::unwrap_used)] // A test fails by panicking.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

/// Words that named parts of the first version. docs/DESIGN.md ("Glossary") has the word to use instead.
const RETIRED_WORDS: [&str; 20] = [
    "seat",
    "ward",
    "kin",
    "told",
    "aside",
    "steward",
    "office",
    "crew",
    "stand",
    "keeper",
    "fuse",
    "haste",
    "trouble",
    "oversee",
    "giving_back",
    "planted",
    "numbered",
    "wheel",
    "cast",
    "face",
];

/// Names of the standard library and of clippy that contain a retired word.
const FOREIGN_NAMES: [&str; 5] =
    ["cast", "cast_possible_truncation", "cast_precision_loss", "cast_signed", "cast_unsigned"];

const MAX_LINES_OF_CODE: usize = 500;

/// The only source files that print: all others return text or log it.
const PRINTING_FILES: [&str; 3] = [
    "crates/tenure-cli/src/output.rs",
    "crates/tenure-cli/src/logs.rs",
    "crates/tenure-cli/src/logs/",
];

/// The only source file that reads the message of a panic, which is a downcast too.
const PANIC_MESSAGE_FILE: &str = "crates/tenure/src/fleet/run.rs";

/// One source file: its path from the root of the workspace, its text, and its code without comments and literals.
struct Source {
    path: String,
    text: String,
    code: String,
}

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn sources() -> Vec<Source> {
    let root = workspace();
    let mut found = Vec::new();
    let mut directories = vec![root.join("crates")];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                directories.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(&path).unwrap();
                let path = path.strip_prefix(&root).unwrap().to_str().unwrap().to_owned();
                found.push(Source { path, code: code_of(&text), text });
            }
        }
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    assert!(found.len() > 200, "only {} source files below {}", found.len(), root.display());
    found
}

/// `text` with comments and the contents of string and character literals replaced by spaces. Lines stay lines.
fn code_of(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    let mut rest = text;
    let mut before = ' ';
    while let Some(first) = rest.chars().next() {
        let length = match first {
            '/' if rest.starts_with("//") => rest.find('\n').unwrap_or(rest.len()),
            '/' if rest.starts_with("/*") => rest.find("*/").map_or(rest.len(), |end| end + 2),
            'r' if !is_word(before) && raw_string(rest).is_some() => raw_string(rest).unwrap(),
            '"' => string(rest),
            '\'' => character(rest),
            _ => 0,
        };
        let length = if length == 0 {
            code.push(first);
            first.len_utf8()
        } else {
            code.extend(rest[..length].chars().map(|c| if c == '\n' { '\n' } else { ' ' }));
            length
        };
        before = first;
        rest = &rest[length..];
    }
    code
}

fn is_word(c: char) -> bool {
    c == '_' || c.is_alphanumeric()
}

/// The length of the string literal at the start of `text`.
fn string(text: &str) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return at + 1,
            _ => {}
        }
    }
    text.len()
}

/// The length of the raw string literal at the start of `text`, if there is one.
fn raw_string(text: &str) -> Option<usize> {
    let hashes = text[1..].find(|c| c != '#')?;
    text[1 + hashes..].strip_prefix('"')?;
    let end = format!("\"{}", "#".repeat(hashes));
    let start = hashes + 2;
    Some(text[start..].find(&end).map_or(text.len(), |at| start + at + end.len()))
}

/// The length of the character literal at the start of `text`; 0 if it is a lifetime.
fn character(text: &str) -> usize {
    let mut inside = text.char_indices().skip(1);
    match inside.next() {
        Some((_, '\\')) => text[3..].find('\'').map_or(0, |end| end + 4),
        Some(_) => inside.next().filter(|(_, c)| *c == '\'').map_or(0, |(at, _)| at + 1),
        None => 0,
    }
}

/// The words of an identifier or a file name: `kill_schedule` and `KillSchedule` have two.
fn words(name: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut before = '_';
    for c in name.chars() {
        if c == '_' || (c.is_uppercase() && before.is_lowercase()) {
            words.push(String::new());
        }
        if c != '_' {
            words.last_mut().unwrap().extend(c.to_lowercase());
        }
        before = c;
    }
    words.retain(|word| !word.is_empty());
    words
}

fn retired_word(name: &str) -> Option<&'static str> {
    let name = format!("_{}_", words(name).join("_"));
    RETIRED_WORDS.into_iter().find(|word| name.contains(&format!("_{word}_")))
}

fn identifiers(code: &str) -> BTreeSet<&str> {
    let names =
        code.split(|c| !is_word(c)).filter(|name| name.starts_with(|c: char| !c.is_numeric()));
    names.filter(|name| !name.is_empty()).collect()
}

fn report(findings: &[String], what_to_do: &str) {
    let mut lines = String::new();
    for finding in findings {
        let _ = writeln!(lines, "  {finding}");
    }
    assert!(findings.is_empty(), "{} findings:\n{lines}{what_to_do}", findings.len());
}

#[test]
fn identifiers_and_file_names_have_no_retired_words() {
    let mut findings = Vec::new();
    for source in sources() {
        let file = Path::new(&source.path);
        for part in file.iter().map(|part| part.to_str().unwrap().trim_end_matches(".rs")) {
            findings.extend(
                retired_word(part).map(|word| format!("{}: the path has '{word}'", source.path)),
            );
        }
        for name in identifiers(&source.code).difference(&BTreeSet::from(FOREIGN_NAMES)) {
            findings.extend(
                retired_word(name).map(|word| format!("{}: '{name}' has '{word}'", source.path)),
            );
        }
    }
    report(&findings, "Use the word of the glossary in docs/DESIGN.md instead.");
}

#[test]
fn a_type_name_is_defined_once() {
    let mut places: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for source in sources().iter().filter(|source| source.path.contains("/src/")) {
        for name in types_of(&source.code) {
            places.entry(name.to_owned()).or_default().push(source.path.clone());
        }
    }
    let findings: Vec<String> = places
        .iter()
        .filter(|(_, places)| places.len() > 1)
        .map(|(name, places)| format!("'{name}' is defined in {}", places.join(", ")))
        .collect();
    report(
        &findings,
        "One type name means one thing: give all but one a more exact noun, or a prefix (`ReleaseOutcome`).",
    );
}

/// The structs, enums, traits and type aliases that `code` defines. Associated types are left out: the trait names them.
fn types_of(code: &str) -> Vec<&str> {
    let mut types = Vec::new();
    // For each open block: whether it is the body of a trait or an impl.
    let mut blocks = Vec::new();
    let mut start = 0;
    for (end, c) in code.char_indices().filter(|(_, c)| matches!(c, '{' | '}' | ';')) {
        let words: Vec<&str> =
            code[start..end].split(|c| !is_word(c)).filter(|word| !word.is_empty()).collect();
        start = end + 1;
        let associated = blocks.last() == Some(&true);
        types.extend(words.windows(2).filter_map(|pair| match pair[0] {
            "struct" | "enum" | "trait" => Some(pair[1]),
            "type" if !associated => Some(pair[1]),
            _ => None,
        }));
        match c {
            '{' => {
                let has = |word| words.contains(&word);
                blocks.push((has("impl") || has("trait")) && !has("fn"));
            }
            '}' => drop(blocks.pop()),
            _ => {}
        }
    }
    // A name in lower case is a parameter of a macro.
    types.retain(|name| name.starts_with(char::is_uppercase));
    types
}

#[test]
fn no_file_is_above_500_lines_of_code() {
    let findings: Vec<String> = sources()
        .iter()
        .map(|source| (source, source.code.lines().filter(|line| !line.trim().is_empty()).count()))
        .filter(|(_, lines)| *lines > MAX_LINES_OF_CODE)
        .map(|(source, lines)| format!("{}: {lines} lines of code", source.path))
        .collect();
    report(&findings, "Cut the file along its ideas: one idea per file, named after it.");
}

#[test]
fn only_the_output_and_the_logs_print() {
    let prints = |source: &&Source| {
        source.path.contains("/src/")
            && !source.path.contains("/tests/")
            && !source.path.starts_with("crates/tenure-rig/")
            && !PRINTING_FILES.iter().any(|file| source.path.starts_with(file))
    };
    let mut findings = Vec::new();
    for source in sources().iter().filter(prints) {
        for (number, line) in (1..).zip(source.code.lines()) {
            if ["println!", "eprintln!", "print!", "eprint!"].iter().any(|call| line.contains(call))
            {
                findings.push(format!("{}:{number}", source.path));
            }
        }
    }
    report(
        &findings,
        "Write to stdout with `output`, and log with `tracing`: stdout may be closed and stderr full.",
    );
}

#[test]
fn no_doc_comment_is_a_single_word() {
    let is_doc = |line: &str| line.starts_with("///") || line.starts_with("//!");
    let mut findings = Vec::new();
    for source in sources() {
        let lines: Vec<&str> = source.text.lines().map(str::trim_start).collect();
        for (at, line) in lines.iter().enumerate().filter(|(_, line)| is_doc(line)) {
            let alone = !at.checked_sub(1).is_some_and(|before| is_doc(lines[before]))
                && !lines.get(at + 1).is_some_and(|next| is_doc(next));
            if alone && line[3..].split_whitespace().count() == 1 {
                findings.push(format!("{}:{}: {line}", source.path, at + 1));
            }
        }
    }
    report(&findings, "Say what the item is for, or what its value means, in a sentence.");
}

#[test]
fn every_source_file_belongs_to_a_module() {
    let sources = sources();
    let declared: BTreeSet<String> = sources.iter().flat_map(modules_of).collect();
    let is_root = |path: &str| {
        let parts: Vec<&str> = path.split('/').collect();
        let last = parts[parts.len() - 1];
        // A library, a program, or a test or benchmark in one file or in a folder with a main.rs.
        last == "lib.rs"
            || last == "main.rs"
            || last == "build.rs"
            || (parts.len() == 4 && parts[2] != "src")
    };
    let orphans = sources
        .iter()
        .map(|source| &source.path)
        .filter(|path| !is_root(path) && !declared.contains(*path));
    let findings: Vec<String> = orphans.cloned().collect();
    report(&findings, "Declare the file with `mod`, or delete it: nothing compiles it.");
}

/// The files of the modules that `source` declares.
fn modules_of(source: &Source) -> Vec<String> {
    let path = Path::new(&source.path);
    let directory = path.parent().unwrap();
    let stem = path.file_stem().unwrap().to_str().unwrap();
    let is_root = ["lib", "main", "mod"].contains(&stem)
        || source.path.split('/').count() == 4 && !source.path.contains("/src/");
    let below = if is_root { directory.to_owned() } else { directory.join(stem) };
    let mut files = Vec::new();
    let mut inline: Vec<&str> = Vec::new();
    let mut at_path: Option<&str> = None;
    for (code, text) in source.code.lines().zip(source.text.lines()) {
        if let Some(given) = text.trim_start().strip_prefix("#[path = \"") {
            at_path = given.split('"').next();
            continue;
        }
        let Some(rest) = code
            .find("mod ")
            .filter(|at| *at == 0 || !is_word(code.as_bytes()[at - 1] as char))
            .map(|at| &code[at + 4..])
        else {
            if code.trim() == "}" {
                inline.pop();
            }
            continue;
        };
        let name = rest.split(|c| !is_word(c)).next().unwrap();
        if rest.trim_end().ends_with('{') {
            inline.push(at_path.take().unwrap_or(name));
        } else if let Some(given) = at_path.take() {
            files.push(normal(&directory.join(given)));
        } else {
            let mut folder = below.clone();
            folder.extend(&inline);
            files.push(normal(&folder.join(format!("{name}.rs"))));
            files.push(normal(&folder.join(name).join("mod.rs")));
        }
    }
    files
}

/// `path` without `..`.
fn normal(path: &Path) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.iter().map(|part| part.to_str().unwrap()) {
        match part {
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts.join("/")
}

#[test]
fn words_are_found_in_every_spelling() {
    assert_eq!(retired_word("begin_crew"), Some("crew"));
    assert_eq!(retired_word("FleetCrew"), Some("crew"));
    assert_eq!(retired_word("CREW_SIZE"), Some("crew"));
    assert_eq!(retired_word("giving_back_now"), Some("giving_back"));
    assert_eq!(retired_word("forward_standing_interface"), None);
}

#[test]
fn associated_types_and_macro_parameters_are_no_types() {
    let code = "pub struct A; struct B([u8; 4]); pub(crate) enum C<T> { D(T) } trait E { type F; fn g() {} }\n\
        impl<T> E for C<T>\nwhere T: H { type F = A; } type I = A; mod tests { type J = A; fn k() { struct L {} } }\n\
        fn m(n: impl E) { type O = A; } struct $name;";
    assert_eq!(types_of(code), ["A", "B", "C", "E", "I", "J", "L", "O"]);
}

#[test]
fn comments_and_literals_are_no_code() {
    let text = "let a = 'x'; // crew\nlet s: &'static str = \"crew \\\" crew\"; /* crew */ let r = r#\"crew\"#; b";
    let code = code_of(text);
    assert!(!code.contains("crew"), "{code}");
    assert!(code.contains("static") && code.ends_with('b'), "{code}");
}

/// The schemes of store URLs, also of stores that are planned.
const SCHEMES: [&str; 11] = [
    "memory",
    "file",
    "redis",
    "rediss",
    "redlock",
    "postgres",
    "mysql",
    "mssql",
    "etcd",
    "consul",
    "kubernetes",
];

/// What precedes a literal that a text is compared with.
const COMPARISONS: [&str; 8] =
    ["starts_with(", "strip_prefix(", "split_once(", "contains(", "eq(", "== ", "!= ", "| "];

/// Whether a line compares a text with a scheme: `url.starts_with("redis://")`, `scheme == "file"`.
fn compares_scheme(line: &str) -> bool {
    let begins_with_scheme = |rest: &str| {
        let Some(literal) = rest.trim_start_matches('&').strip_prefix('"') else { return false };
        let is_scheme = |rest: &str| rest.starts_with([':', '"', '+']);
        SCHEMES.iter().any(|scheme| literal.strip_prefix(scheme).is_some_and(is_scheme))
    };
    COMPARISONS.iter().any(|comparison| line.split(comparison).skip(1).any(begins_with_scheme))
}

#[test]
fn only_the_stores_know_schemes_and_causes() {
    let is_checked = |source: &&Source| {
        source.path.contains("/src/")
            && !source.path.starts_with("crates/tenure/src/store/")
            && !source.path.starts_with("crates/tenure-rig/")
            && !source.path.contains("/tests/")
            && !source.path.ends_with("tests.rs")
    };
    let mut findings = Vec::new();
    for source in sources().iter().filter(is_checked) {
        // Tests in the file itself are its last module.
        let tests = source.code.find("mod tests {").unwrap_or(source.code.len());
        let lines = source.code[..tests].lines().zip(source.text.lines());
        for (number, (code, text)) in (1..).zip(lines) {
            // A comment is no comparison.
            if !code.trim().is_empty() && compares_scheme(text) {
                findings.push(format!("{}:{number}: compares a scheme", source.path));
            }
            if code.contains("downcast") && source.path != PANIC_MESSAGE_FILE {
                findings.push(format!("{}:{number}: downcasts", source.path));
            }
        }
    }
    report(
        &findings,
        "Only crates/tenure/src/store/ tests the scheme of a URL or the cause of an error. Use `Limits` of the open store, \
         `store::visibility_of(url)` before it is open, or `Error::blocked_by()`; add what is missing to `store/`.",
    );
}

#[test]
fn comparisons_with_a_scheme_are_found() {
    for line in [
        r#"if url.starts_with("redis://") {"#,
        r#"url.strip_prefix("file:")"#,
        r#"if scheme == "memory" {"#,
        r#"matches!(scheme, "x" | "rediss")"#,
        r#"let on_redis = a || url.starts_with(&"redis+sentinel://");"#,
    ] {
        assert!(compares_scheme(line), "{line}");
    }
    for line in [
        r#"#[cfg(feature = "redis")]"#,
        r#"let url = format!("file:{path}");"#,
        r#"tenure::open("memory:")"#,
        r#"name.starts_with("files")"#,
    ] {
        assert!(!compares_scheme(line), "{line}");
    }
}
