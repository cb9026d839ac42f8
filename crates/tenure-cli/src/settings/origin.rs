//! The origin of a setting, for messages: operators need it when a wrong value is used.

use std::fmt;
use std::path::{Path, PathBuf};

/// Where a setting's value was given. A setting that was not given has no origin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// The command line: `--store`, or `NAME`.
    Typed(String),
    /// An environment variable of the process.
    Variable(String),
    /// A variable in the file given by `--env-file`.
    EnvFile { path: PathBuf, exposed: bool, line: usize, variable: String },
    /// `tenure.toml`, in any of its locations.
    File { path: PathBuf, exposed: bool, line: usize },
}

impl Origin {
    /// The file that gives the value, if users other than its owner could read that file when it was read.
    pub(crate) fn exposed_file(&self) -> Option<&Path> {
        match self {
            Origin::EnvFile { path, exposed: true, .. }
            | Origin::File { path, exposed: true, .. } => Some(path),
            _ => None,
        }
    }

    /// Whether every user of this machine can see the value in the list of processes.
    pub(crate) fn is_typed(&self) -> bool {
        matches!(self, Origin::Typed(_))
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Typed(what) => f.write_str(what),
            Origin::Variable(variable) => f.write_str(variable),
            Origin::EnvFile { path, line, variable, .. } => {
                write!(f, "{} line {line} ({variable})", path.display())
            }
            Origin::File { path, line, .. } => write!(f, "{} line {line}", path.display()),
        }
    }
}
