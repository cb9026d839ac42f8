//! Passwords: in the URL, in a variable, or in a file that is read again for every connection.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::{Error, Result};

/// The maximum size of a file that a URL names, in bytes.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// A text that no message shows.
#[derive(Clone, PartialEq, Eq)]
pub(in crate::store) struct Secret(Arc<str>);

impl Secret {
    pub(super) fn new(secret: &str) -> Self {
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
    use crate::error::Kind;

    #[test]
    fn debug_output_never_shows_a_secret() {
        let secret = Secret::new("geheim");
        let password = Password::Given(secret.clone());
        assert_eq!(format!("{secret:?} {password:?}"), "*** Given(***)");
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
