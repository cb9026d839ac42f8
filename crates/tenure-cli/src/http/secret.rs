//! The control secret, which authorizes resign and drain. Read once, from a file that only its owner can read.

use std::fmt;
use std::path::Path;

use subtle::ConstantTimeEq;
use tenure::{Error, Result};

use crate::settings::{TrustRule, UntrustedReason, read_trusted};

/// Longer than any typed secret, and still cheap to compare.
const MAX_SECRET_BYTES: u64 = 1024;
const TOO_LONG: &str = "it is longer than 1024 bytes";
/// The bytes that may follow the secret: CR and LF.
const LINE_END_BYTES: u64 = 2;

/// The secret that a client must send.
pub(crate) struct Secret(Vec<u8>);

impl Secret {
    /// Reads the secret from a file.
    ///
    /// # Errors
    /// Invalid: the file cannot be read, is empty, or others could read it.
    pub(crate) fn read(path: &Path) -> Result<Secret> {
        let wrong = |reason: String| {
            Error::invalid(format!("cannot use the control secret in {}: {reason}", path.display()))
        };
        let read = read_trusted(path, TrustRule::Secret, MAX_SECRET_BYTES + LINE_END_BYTES);
        let file = read.map_err(|refusal| match refusal {
            UntrustedReason::NotRegular => wrong("it is no file".to_owned()),
            UntrustedReason::Mode { mode, .. } => wrong(format!(
                "others may read or change it (mode {mode:03o}): run 'chmod 600 {}'",
                path.display()
            )),
            UntrustedReason::TooLarge(_) => wrong(TOO_LONG.to_owned()),
            UntrustedReason::Io(error) => wrong(error.to_string()),
            refusal => wrong(format!("it {refusal}")),
        })?;
        Secret::new(file.bytes).map_err(|reason| wrong(reason.to_owned()))
    }

    fn new(mut bytes: Vec<u8>) -> Result<Secret, &'static str> {
        // Editors append a newline that is not part of the secret.
        if bytes.last() == Some(&b'\n') {
            bytes.pop();
        }
        if bytes.last() == Some(&b'\r') {
            bytes.pop();
        }
        if bytes.is_empty() {
            return Err("it is empty");
        }
        if bytes.len() as u64 > MAX_SECRET_BYTES {
            return Err(TOO_LONG);
        }
        if !bytes.iter().all(u8::is_ascii_graphic) {
            return Err(
                "it must be one line of letters, digits and signs, which a header can carry",
            );
        }
        Ok(Secret(bytes))
    }

    /// Whether `authorization`, the header, carries the secret. The comparison takes constant time.
    pub(crate) fn is_in(&self, authorization: &[u8]) -> bool {
        let Some((scheme, given)) = authorization.split_at_checked(7) else { return false };
        scheme.eq_ignore_ascii_case(b"Bearer ") && bool::from(given.ct_eq(&self.0))
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(***)")
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::http::tests::Folder;

    #[test]
    fn only_the_whole_secret_is_accepted() {
        let secret = Secret::new(b"sesame\n".to_vec()).unwrap();
        assert!(secret.is_in(b"Bearer sesame"));
        assert!(secret.is_in(b"bearer sesame"));
        for wrong in
            ["", "Bearer", "Bearer ", "Bearer sesam", "Bearer sesames", "Basic sesame", "sesame"]
        {
            assert!(!secret.is_in(wrong.as_bytes()), "{wrong}");
        }
        assert_eq!(format!("{secret:?}"), "Secret(***)");
    }

    #[test]
    fn a_file_that_others_can_read_is_refused() {
        let folder = Folder::new();
        let path = folder.path().join("secret");
        let read = |mode, text: &str| {
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            Secret::read(&path).map(|_| ()).map_err(|error| error.to_string())
        };
        assert_eq!(read(0o600, "sesame\r\n"), Ok(()));
        for (mode, text, says) in [
            (0o640, "sesame", "mode 640"),
            (0o604, "sesame", "chmod 600"),
            (0o620, "sesame", "others may read or change it"),
            (0o600, "", "empty"),
            (0o600, "\n", "empty"),
            (0o600, "two\nlines", "one line"),
            (0o600, &"x".repeat(2000), "longer than 1024"),
        ] {
            let error = read(mode, text).unwrap_err();
            assert!(error.contains(says) && !error.contains("sesame"), "{error}");
        }
        let error = Secret::read(folder.path()).unwrap_err().to_string();
        assert!(error.contains("no file"), "{error}");
        let error = Secret::read(&folder.path().join("none")).unwrap_err().to_string();
        assert!(error.contains("No such file"), "{error}");
    }
}
