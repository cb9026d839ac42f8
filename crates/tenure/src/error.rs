//! [`Error`] and its four kinds: the kind says what the caller can do.

use std::fmt;
use std::sync::Arc;

/// The result of an operation that can fail.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What the caller can do about an [`Error`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// There is no definite answer, and a write may or may not have happened: retry.
    Unavailable,
    /// The store refuses access: an operator must change a password, a permission or a mode.
    Denied,
    /// The caller must change its request. Detected before anything is written.
    Invalid,
    /// The record under this name is not Tenure's, or is damaged. It is not changed.
    Corrupt,
}

impl Kind {
    /// The word used as a label in metrics, logs and JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Kind::Unavailable => "unavailable",
            Kind::Denied => "denied",
            Kind::Invalid => "invalid",
            Kind::Corrupt => "corrupt",
        }
    }
}

/// A process that keeps a name from being changed, as in [`Error::blocked_by`]: it is stopped in the middle of a change, or hangs
/// in the file system. No process can change the name until that process continues or is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Blocker {
    /// The id of the process, if the store can determine it.
    pub pid: Option<u32>,
}

impl Blocker {
    /// Creates a blocker: the process with this id, if it is known.
    pub fn new(pid: Option<u32>) -> Self {
        Blocker { pid }
    }
}

/// An error with its kind and its cause. Losing an election is not an error: see [`Answer`](crate::Answer).
///
/// The message names the operation, its target, and what to do about it. It never contains a password.
///
/// ```
/// use tenure::{Kind, Name};
///
/// let error = Name::new("two words").unwrap_err();
/// assert_eq!(error.kind(), Kind::Invalid);
/// assert!(error.to_string().contains("' '"));
/// ```
#[derive(Clone)]
pub struct Error {
    kind: Kind,
    message: String,
    // Shared rather than boxed: the status keeps the last error and returns it many times.
    source: Option<Arc<dyn std::error::Error + Send + Sync>>,
    blocked_by: Option<Blocker>,
}

impl Error {
    /// Creates an error with this kind and message.
    pub fn new(kind: Kind, message: impl Into<String>) -> Self {
        Error { kind, message: message.into(), source: None, blocked_by: None }
    }

    /// Creates an error of [`Kind::Unavailable`]: no definite answer; a write may have happened.
    pub fn unavailable(message: impl Into<String>) -> Self {
        Self::new(Kind::Unavailable, message)
    }

    /// Creates an error of [`Kind::Denied`]: an operator must act.
    pub fn denied(message: impl Into<String>) -> Self {
        Self::new(Kind::Denied, message)
    }

    /// Creates an error of [`Kind::Invalid`]: the caller must change its request.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(Kind::Invalid, message)
    }

    /// Creates an error of [`Kind::Corrupt`]: the stored record is not Tenure's, or is damaged.
    pub fn corrupt(message: impl Into<String>) -> Self {
        Self::new(Kind::Corrupt, message)
    }

    /// Adds the cause of this error.
    #[must_use]
    pub fn caused_by(mut self, source: impl std::error::Error + Send + Sync + 'static) -> Self {
        self.source = Some(Arc::new(source));
        self
    }

    /// Adds the process that blocks the name. For stores.
    #[must_use]
    pub fn with_blocker(mut self, blocker: Blocker) -> Self {
        self.blocked_by = Some(blocker);
        self
    }

    /// The process that blocks the name, if the error says that another process does.
    pub fn blocked_by(&self) -> Option<Blocker> {
        self.blocked_by
    }

    /// What the caller can do about it.
    pub fn kind(&self) -> Kind {
        self.kind
    }
}

/// Compares kind and message; causes and blocking processes are not compared.
impl PartialEq for Error {
    fn eq(&self, other: &Self) -> bool {
        self.kind == other.kind && self.message == other.message
    }
}

impl Eq for Error {}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.kind.as_str(), self.message)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_ref().map(|source| &**source as &(dyn std::error::Error + 'static))
    }
}
