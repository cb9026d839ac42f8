//! Composes what `tenure --version` says: the version, the commit, the stores compiled in.

use std::path::Path;
use std::process::Command;

fn main() {
    let mut inside = Vec::new();
    // Without git, or outside a checkout of ours (an unpacked archive), there is no commit to name.
    if let Some(commit) = commit() {
        inside.push(commit);
    }
    let redis = if std::env::var_os("CARGO_FEATURE_REDIS").is_some() { " redis" } else { "" };
    inside.push(format!("stores: memory file{redis}"));
    let version = std::env::var("CARGO_PKG_VERSION").unwrap_or_default();
    println!("cargo:rustc-env=TENURE_VERSION={version} ({})", inside.join("; "));
    println!("cargo:rerun-if-changed=build.rs");
}

fn commit() -> Option<String> {
    // Somebody else's repository may lie around our sources; its commits say nothing about us.
    git(&["ls-files", "--error-unmatch", "Cargo.toml"])?;
    // The log of HEAD changes with every commit, HEAD itself only with the branch.
    for file in ["HEAD", "logs/HEAD"] {
        let path = git(&["rev-parse", "--git-path", file])?;
        if Path::new(&path).exists() {
            println!("cargo:rerun-if-changed={path}");
        }
    }
    git(&["rev-parse", "--short", "HEAD"])
}

fn git(args: &[&str]) -> Option<String> {
    let output = Command::new("git").args(args).output().ok()?;
    let said = String::from_utf8(output.stdout).ok()?;
    let said = said.trim();
    (output.status.success() && !said.is_empty()).then(|| said.to_owned())
}
