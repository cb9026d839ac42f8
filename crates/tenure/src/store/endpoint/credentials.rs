//! Passwords: in the URL, in a variable, in a file that is read again for every connection, or from a provider of the
//! application that is asked for every log-in.

use std::fmt;
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;

use crate::error::{Error, Kind, Result};

/// The maximum size of a file that a URL names, in bytes.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// A text that no message shows.
#[derive(Clone, PartialEq, Eq)]
pub(in crate::store) struct Secret(Arc<str>);

impl Secret {
    pub(in crate::store) fn new(secret: &str) -> Self {
        Secret(secret.into())
    }

    /// The text itself: for the server only.
    pub(in crate::store) fn expose(&self) -> &str {
        &self.0
    }

    /// `text` without this secret: a server may quote it in an error.
    pub(in crate::store) fn hide_in(&self, text: &str) -> String {
        match &*self.0 {
            "" => text.to_owned(),
            secret => text.replace(secret, "***"),
        }
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// Where the password comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::store) enum Password {
    Given(Secret),
    File(PathBuf),
}

impl Password {
    /// The password. A file is read again each time, so that the next connection uses a changed password. May block.
    ///
    /// # Errors
    /// Denied if the file cannot be read, is too large, is empty, or is not UTF-8.
    pub(in crate::store) fn read(&self) -> Result<Secret> {
        let path = match self {
            Password::Given(password) => return Ok(password.clone()),
            Password::File(path) => path,
        };
        let text = String::from_utf8(read_small(path)?).map_err(|_| {
            Error::denied(format!("the password file '{}' is not UTF-8", path.display()))
        })?;
        let line = text.strip_suffix('\n').unwrap_or(&text);
        let line = line.strip_suffix('\r').unwrap_or(line);
        if line.is_empty() {
            return Err(Error::denied(format!("the password file '{}' is empty", path.display())));
        }
        Ok(Secret::new(line))
    }
}

/// The password of one log-in, and its user: what a provider of credentials returns.
///
/// Its `Debug` output does not show the password, and no message of Tenure does.
///
/// ```
/// use tenure::store::Credentials;
///
/// let credentials = Credentials::new("tenure", "s3cret");
/// assert!(!format!("{credentials:?}").contains("s3cret"));
/// let of_the_user_in_the_url = Credentials::from_password("s3cret");
/// ```
#[derive(Clone, Debug)]
pub struct Credentials {
    user: Option<String>,
    password: Secret,
}

impl Credentials {
    /// The credentials of this user.
    pub fn new(user: impl Into<String>, password: impl AsRef<str>) -> Self {
        Credentials { user: Some(user.into()), password: Secret::new(password.as_ref()) }
    }

    /// The password of the user that the store's URL or client names, or of the service's default user.
    pub fn from_password(password: impl AsRef<str>) -> Self {
        Credentials { user: None, password: Secret::new(password.as_ref()) }
    }

    pub(in crate::store) fn from_parts(user: Option<String>, password: Secret) -> Self {
        Credentials { user, password }
    }

    /// The same credentials, for the user `default` if they name none.
    pub(in crate::store) fn or_user(mut self, default: Option<&str>) -> Self {
        self.user = self.user.or_else(|| default.map(str::to_owned));
        self
    }

    pub(in crate::store) fn user(&self) -> Option<&str> {
        self.user.as_deref()
    }

    pub(in crate::store) fn password(&self) -> &Secret {
        &self.password
    }
}

type Provide = dyn Fn() -> BoxFuture<'static, Result<Credentials>> + Send + Sync;

/// A function of the application that returns the credentials of the next log-in.
#[derive(Clone)]
pub(in crate::store) struct CredentialsProvider(Arc<Provide>);

impl CredentialsProvider {
    pub(in crate::store) fn new<F, R>(provider: F) -> Self
    where
        F: Fn() -> R + Send + Sync + 'static,
        R: Future<Output = Result<Credentials>> + Send + 'static,
    {
        CredentialsProvider(Arc::new(move || provider().boxed()))
    }

    /// Asks the application.
    ///
    /// # Errors
    /// Unavailable if the provider says so, or panics: its code must not end the thread that renews. Any other error of it is
    /// Denied.
    pub(in crate::store) async fn credentials(&self) -> Result<Credentials> {
        let asked = AssertUnwindSafe(async { (self.0)().await }).catch_unwind().await;
        match asked {
            Ok(Ok(credentials)) => Ok(credentials),
            Ok(Err(error)) => {
                let kind = match error.kind() {
                    Kind::Unavailable => Kind::Unavailable,
                    _ => Kind::Denied,
                };
                Err(Error::new(kind, format!("the credentials provider failed: {error}")))
            }
            Err(_) => Err(Error::unavailable("the credentials provider panicked")),
        }
    }
}

/// Reads a small file that an operator must have provided.
pub(in crate::store) fn read_small(path: &Path) -> Result<Vec<u8>> {
    use std::io::Read;
    let mut bytes = Vec::new();
    let read = std::fs::File::open(path)
        .and_then(|file| file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes));
    match read {
        Ok(_) if bytes.len() as u64 <= MAX_FILE_BYTES => Ok(bytes),
        Ok(_) => Err(Error::denied(format!("'{}' is larger than a mebibyte", path.display()))),
        Err(error) => {
            let message =
                format!("cannot read '{}', which the store URL names: {error}", path.display());
            Err(Error::denied(message).caused_by(error))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_provider_fails_with_a_kind_that_a_log_in_can_have() {
        let ask = async |provider: CredentialsProvider| provider.credentials().await;
        let given = CredentialsProvider::new(async || Ok(Credentials::from_password("geheim")));
        let given = ask(given).await.unwrap().or_user(Some("u"));
        assert_eq!((given.user(), given.password().expose()), (Some("u"), "geheim"));
        assert_eq!(Credentials::new("v", "").or_user(Some("u")).user(), Some("v"));
        for (kind, expected) in [
            (Kind::Unavailable, Kind::Unavailable),
            (Kind::Denied, Kind::Denied),
            (Kind::Invalid, Kind::Denied),
            (Kind::Corrupt, Kind::Denied),
        ] {
            let failing = CredentialsProvider::new(move || async move {
                Err(Error::new(kind, "the vault is sealed"))
            });
            let error = ask(failing).await.unwrap_err();
            assert_eq!(error.kind(), expected);
            assert!(error.to_string().contains("the vault is sealed"), "{error}");
        }
        let panicking = CredentialsProvider::new(async || panic!("a defect of the application"));
        assert_eq!(ask(panicking).await.unwrap_err().kind(), Kind::Unavailable);
    }

    #[test]
    fn debug_output_never_shows_a_secret() {
        let secret = Secret::new("geheim");
        let password = Password::Given(secret.clone());
        assert_eq!(format!("{secret:?} {password:?}"), "*** Given(***)");
        let credentials = Credentials::new("u", "geheim");
        let shown = format!("{credentials:?}");
        assert_eq!(shown, "Credentials { user: Some(\"u\"), password: *** }");
        assert_eq!(secret.hide_in("no command 'AUTH geheim'"), "no command 'AUTH ***'");
        assert_eq!(Secret::new("").hide_in("abc"), "abc");
    }

    #[test]
    fn a_password_file_is_read_each_time_and_loses_one_line_end() {
        let number = crate::entropy::random_u128();
        let path = std::env::temp_dir().join(format!("tenure-password-{number:032x}"));
        let password = Password::File(path.clone());
        for (content, expected) in [
            ("first\n", Ok("first")),
            ("second\r\n", Ok("second")),
            (" third \n\n", Ok(" third \n")),
            ("\n", Err("is empty")),
        ] {
            std::fs::write(&path, content).unwrap();
            match expected {
                Ok(expected) => assert_eq!(password.read().unwrap().expose(), expected),
                Err(says) => assert!(password.read().unwrap_err().to_string().contains(says)),
            }
        }
        std::fs::write(&path, [0xff]).unwrap();
        assert!(password.read().unwrap_err().to_string().contains("is not UTF-8"));
        std::fs::write(&path, vec![b'x'; (1 << 20) + 1]).unwrap();
        assert!(password.read().unwrap_err().to_string().contains("larger than a mebibyte"));
        std::fs::remove_file(&path).unwrap();
        let error = password.read().unwrap_err();
        assert_eq!(error.kind(), Kind::Denied);
        assert!(error.to_string().starts_with("cannot read '"), "{error}");
    }
}
