//! `--env-file`: variables from a file.
//!
//! The syntax is a small part of a shell's: `NAME=VALUE`, comments, blank lines, `export`, quotes. Everything means the same as
//! in a shell, except that `$` is an ordinary character. A line that could be read in two ways is refused. No message quotes a
//! line, because it may contain a password.

use std::fmt;
use std::path::{Path, PathBuf};

use tenure::{Error, Result};

use super::origin::Origin;
use super::trusted_file::TrustedFile;

/// The variables of a file. None of them is put into the environment of this process, so no child inherits it.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct EnvFile {
    path: PathBuf,
    /// Whether users other than its owner can read it.
    exposed: bool,
    variables: Vec<Variable>,
}

#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Variable {
    name: String,
    pub(crate) value: String,
    pub(crate) line: usize,
}

impl EnvFile {
    /// Reads the file at `path`. The operator named it, so it must exist.
    pub(crate) fn read(path: &Path) -> Result<EnvFile> {
        EnvFile::of(path, super::read_named(path)?)
    }

    /// Reads the file at `path` if there is one, although the operator has not named it.
    pub(crate) fn find(path: &Path) -> Result<Option<EnvFile>> {
        let found = super::find(path, "--env-file")?;
        found.map(|file| EnvFile::of(path, file)).transpose()
    }

    fn of(path: &Path, file: TrustedFile) -> Result<EnvFile> {
        let parsed = EnvFile::parse(path, &super::text(path, file.bytes)?)?;
        Ok(EnvFile { exposed: file.exposed, ..parsed })
    }

    /// Parses `text`, the content of the file at `path`.
    pub(crate) fn parse(path: &Path, text: &str) -> Result<EnvFile> {
        let wrong = |(line, reason): (usize, &str)| {
            Error::invalid(format!("{} line {line}: {reason}", path.display()))
        };
        let variables = parse(text).map_err(wrong)?;
        Ok(EnvFile { path: path.to_owned(), exposed: false, variables })
    }

    /// Whether it was read from `path`.
    pub(crate) fn is_at(&self, path: &Path) -> bool {
        // Neither path is resolved in the file system. The empty path of an `EnvFile` that was not read is an error.
        let absolute = |path: &Path| std::path::absolute(path).ok();
        absolute(&self.path).is_some_and(|own| Some(own) == absolute(path))
    }

    /// The origin of the variable `name`, for messages.
    pub(crate) fn origin(&self, name: &str, line: usize) -> Origin {
        let (path, exposed) = (self.path.clone(), self.exposed);
        Origin::EnvFile { path, exposed, line, variable: name.to_owned() }
    }

    /// The variable of this name, also one that does not belong to Tenure.
    pub(crate) fn get(&self, name: &str) -> Option<&Variable> {
        self.variables.iter().find(|variable| variable.name == name)
    }
}

/// Shows only the names, because values may be secret.
impl fmt::Debug for EnvFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.variables.iter().map(|variable| &variable.name);
        write!(f, "{} ", self.path.display())?;
        f.debug_list().entries(names).finish()
    }
}

type LineError = (usize, &'static str);

fn parse(text: &str) -> Result<Vec<Variable>, LineError> {
    let mut variables: Vec<Variable> = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let (name, value) = assignment(line).map_err(|reason| (number, reason))?;
        if variables.iter().any(|variable| variable.name == name) {
            return Err((number, "this variable stands there twice: keep one"));
        }
        variables.push(Variable { name, value, line: number });
    }
    Ok(variables)
}

fn assignment(line: &str) -> Result<(String, String), &'static str> {
    let exported = line.strip_prefix("export").filter(|rest| rest.starts_with([' ', '\t']));
    let line = exported.map_or(line, str::trim_start);
    let (name, value) = line.split_once('=').ok_or("no '=' here: write NAME=VALUE")?;
    if name.ends_with([' ', '\t']) || value.starts_with([' ', '\t']) {
        return Err("no space may stand beside the '=': write NAME=VALUE");
    }
    let first = |c: char| c.is_ascii_alphabetic() || c == '_';
    let is_valid = name.starts_with(first) && name.chars().all(|c| first(c) || c.is_ascii_digit());
    if !is_valid {
        return Err("before the '=' must stand a name of letters, digits and '_'");
    }
    let value = match value.chars().next() {
        Some('\'') => single_quoted(&value[1..])?,
        Some('"') => double_quoted(&value[1..])?,
        _ => unquoted(value)?,
    };
    Ok((name.to_owned(), value))
}

/// An unquoted value ends at a space. As in a shell, a `#` inside a word starts no comment.
fn unquoted(value: &str) -> Result<String, &'static str> {
    let word = value.split([' ', '\t']).next().unwrap_or_default();
    check_only_comment(&value[word.len()..])
        .map_err(|_| "a value with a space in it must stand in quotes")?;
    if word.contains(['\'', '"', '\\']) {
        return Err("a value with a quote or a backslash in it must stand in single quotes");
    }
    Ok(word.to_owned())
}

/// Between single quotes no character is special.
fn single_quoted(rest: &str) -> Result<String, &'static str> {
    let (value, rest_of_line) = rest.split_once('\'').ok_or(UNCLOSED)?;
    check_only_comment(rest_of_line)?;
    Ok(value.to_owned())
}

/// Between double quotes only a backslash is special.
fn double_quoted(rest: &str) -> Result<String, &'static str> {
    let mut value = String::new();
    let mut characters = rest.chars();
    while let Some(c) = characters.next() {
        match c {
            '"' => {
                check_only_comment(characters.as_str())?;
                return Ok(value);
            }
            '\\' => match characters.next() {
                Some(c @ ('"' | '\\' | '$' | '`')) => value.push(c),
                _ => {
                    return Err("behind a backslash in double quotes may stand one of \" \\ $ ` \
                         only: use single quotes");
                }
            },
            c => value.push(c),
        }
    }
    Err(UNCLOSED)
}

const UNCLOSED: &str = "the quote is not closed on this line";

fn check_only_comment(rest: &str) -> Result<(), &'static str> {
    let rest_of_line = rest.trim_start();
    let comment = rest_of_line.starts_with('#') && rest_of_line.len() < rest.len();
    match rest_of_line.is_empty() || comment {
        true => Ok(()),
        false => Err("something stands behind the closing quote"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_supported_syntax_means_the_same_as_in_a_shell() {
        let text = "# a comment\n\nTENURE_STORE=redis://:pa#ss$x@h:1/0?a=b \n  export  B=2\r\n\
            C='a \"b\" $c \\d' # why\nD=\"a 'b' \\\"c\\\" \\\\ \\$e\"\nE=\nF=''\nG=x # why\n_h1=ö";
        let read: Vec<(String, String, usize)> = parse(text)
            .unwrap()
            .into_iter()
            .map(|variable| (variable.name, variable.value, variable.line))
            .collect();
        let pinned = [
            ("TENURE_STORE", "redis://:pa#ss$x@h:1/0?a=b", 3),
            ("B", "2", 4),
            ("C", "a \"b\" $c \\d", 5),
            ("D", "a 'b' \"c\" \\ $e", 6),
            ("E", "", 7),
            ("F", "", 8),
            ("G", "x", 9),
            ("_h1", "ö", 10),
        ];
        assert_eq!(read, pinned.map(|(name, value, at)| (name.into(), value.into(), at)));
    }

    #[test]
    fn other_syntax_is_refused_without_quoting_the_line() {
        for (line, says) in [
            ("geheim", "no '='"),
            ("A geheim", "no '='"),
            ("A =geheim", "beside the '='"),
            ("A= geheim", "beside the '='"),
            ("1A=geheim", "a name of letters"),
            ("=geheim", "a name of letters"),
            ("A-B=geheim", "a name of letters"),
            ("export=1 geheim", "must stand in quotes"),
            ("A=geheim geheim", "must stand in quotes"),
            ("A=ge\"heim\"", "single quotes"),
            ("A=ge\\heim", "single quotes"),
            ("A='geheim", "not closed"),
            ("A=\"geheim", "not closed"),
            ("A=\"geheim\\\"", "not closed"),
            ("A=\"geheim\\n\"", "single quotes"),
            ("A='geheim'x", "behind the closing quote"),
            ("A='geheim'#x", "behind the closing quote"),
        ] {
            let Err((number, reason)) = parse(&format!("B=1\n{line}")) else { panic!("{line}") };
            assert_eq!(number, 2, "{line}");
            assert!(reason.contains(says) && !reason.contains("geheim"), "{line}: {reason}");
        }
        assert!(matches!(parse("A=1\n\nA=1"), Err((3, reason)) if reason.contains("twice")));
    }
}
