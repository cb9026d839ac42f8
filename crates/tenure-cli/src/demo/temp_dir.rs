//! The demo's private temporary directory, removed when the demo ends.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use tenure::{Error, Nonce, Result};

/// A fresh directory that only this user may enter.
pub(super) struct TempDir {
    path: PathBuf,
    keep: bool,
}

impl TempDir {
    pub(super) fn new(keep: bool) -> Result<TempDir> {
        let name = format!("tenure-demo-{}-{}", std::process::id(), random_suffix());
        let path = std::env::temp_dir().join(name);
        // Not `create_dir_all`: an existing directory may belong to another user.
        DirBuilder::new().mode(0o700).create(&path).map_err(|error| {
            let shown = path.display();
            Error::denied(format!(
                "cannot make {shown}: {error}; set TMPDIR to a directory of yours"
            ))
        })?;
        Ok(TempDir { path, keep })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The path, if the directory is kept.
    pub(super) fn kept(&self) -> Option<&Path> {
        self.keep.then_some(&self.path)
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        if self.keep {
            return;
        }
        if let Err(error) = std::fs::remove_dir_all(&self.path) {
            tracing::warn!("{} stays behind: {error}", self.path.display());
        }
    }
}

/// A few random characters that make a name unique.
pub(super) fn random_suffix() -> String {
    Nonce::random().to_string().chars().take(8).collect()
}
