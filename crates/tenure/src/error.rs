//! [`Error`] and its four kinds: what a caller can do about it decides the kind.

use std::fmt;
use std::sync::Arc;

/// What came out of a call that can fail.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What the caller has to do about an [`Error`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// There is no definite answer, and a write may or may not have happened: ask again.
    Unavailable,
    /// The store refuses us: an operator must change a password, a permission or a mode.
    Denied,
    /// The caller must change what it asks for. Found before anything is written.
    Invalid,
    /// What is stored under the name is not ours, or is damaged. It is left as it was found.
    Corrupt,
}

impl Kind {
    /// The word used in JSON and logs.
    pub fn as_str(self) -> &'static str {
        match self {
            Kind::Unavailable => "unavailable",
            Kind::Denied => "denied",
            Kind::Invalid => "invalid",
            Kind::Corrupt => "corrupt",
        }
    }
}

/// Why something could not be done. Losing an election is not an error: see [`Answer`](crate::Answer).
///
/// The message says what was tried, on what, and what to do about it; it never contains a password.
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
    // Shared rather than boxed: the last error is kept in the status and handed out many times.
    source: Option<Arc<dyn std::error::Error + Send + Sync>>,
}

impl Error {
    /// An error of `kind` that says `message`.
    pub fn new(kind: Kind, message: impl Into<String>) -> Self {
        Error { kind, message: message.into(), source: None }
    }

    /// No definite answer; a write may have happened.
    pub fn unavailable(message: impl Into<String>) -> Self {
        Self::new(Kind::Unavailable, message)
    }

    /// An operator must act.
    pub fn denied(message: impl Into<String>) -> Self {
        Self::new(Kind::Denied, message)
    }

    /// The caller must fix it.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(Kind::Invalid, message)
    }

    /// What is stored is not ours.
    pub fn corrupt(message: impl Into<String>) -> Self {
        Self::new(Kind::Corrupt, message)
    }

    /// The same error, remembering what caused it.
    #[must_use]
    pub fn caused_by(mut self, source: impl std::error::Error + Send + Sync + 'static) -> Self {
        self.source = Some(Arc::new(source));
        self
    }

    /// What the caller can do about it.
    pub fn kind(&self) -> Kind {
        self.kind
    }
}

/// The same kind and message; causes are not compared.
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
