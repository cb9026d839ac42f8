//! `make install` and `make dist`, with the command under test.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use libtest_mimic::Trial;

use crate::{needs, root, text, trial};
use tenure_rig::servers::Scratch;

const EVERYTHING: [(&str, &str); 6] = [
    ("bin/tenure", ""),
    ("share/man/man1/tenure.1", ".TH tenure 1"),
    ("share/man/man1/tenure-serve.1", "answer\\-for"),
    ("share/bash-completion/completions/tenure", "_tenure()"),
    ("share/zsh/site-functions/_tenure", "#compdef tenure"),
    ("share/fish/vendor_completions.d/tenure.fish", "complete -c tenure"),
];
const UNIT: &str = "lib/systemd/system/tenure@.service";

pub(crate) fn trials() -> Vec<Trial> {
    let make = || needs("make", &["--version"]);
    let verify = || make().or_else(|| needs("systemd-analyze", &["--version"]));
    vec![
        trial("install::puts_everything_where_it_belongs", make(), installs),
        trial("install::systemd_takes_the_unit", verify(), systemd_takes_the_unit),
        trial("dist::is_one_file_and_always_the_same", make(), dist),
    ]
}

fn make(args: &[String]) -> Output {
    let mut command = Command::new("make");
    // Variables of the make that runs the tests, if there is one.
    for name in ["MAKEFLAGS", "MFLAGS", "MAKELEVEL", "PREFIX", "DESTDIR", "PROFILE", "DIST"] {
        command.env_remove(name);
    }
    let binary = format!("BINARY={}", env!("CARGO_BIN_EXE_tenure"));
    let output = command.current_dir(root()).args(args).arg(binary).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output
}

fn is_complete(directory: &Path) {
    for (file, says) in EVERYTHING {
        let found =
            fs::read(directory.join(file)).unwrap_or_else(|error| panic!("{file}: {error}"));
        assert!(String::from_utf8_lossy(&found).contains(says), "{file}");
        let mode = fs::metadata(directory.join(file)).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, if file == "bin/tenure" { 0o755 } else { 0o644 }, "{file}");
    }
    assert!(directory.join(UNIT).exists());
}

fn installs() {
    let scratch = Scratch::new();
    let destination = scratch.path().join("destination");
    let destdir = format!("DESTDIR={}", destination.display());
    make(&["install".to_owned(), destdir.clone()]);
    is_complete(&destination.join("usr/local"));
    make(&["install".to_owned(), destdir, "PREFIX=/opt/tenure".to_owned()]);
    let there = destination.join("opt/tenure");
    is_complete(&there);
    let unit = fs::read_to_string(there.join(UNIT)).unwrap();
    assert!(unit.contains("ExecStart=/opt/tenure/bin/tenure "), "{unit}");
    assert!(!unit.contains("/usr/local"), "{unit}");
    let version = Command::new(there.join("bin/tenure")).arg("--version").output().unwrap();
    let version = String::from_utf8(version.stdout).unwrap();
    let begins = format!("tenure {} (", env!("CARGO_PKG_VERSION"));
    assert!(version.starts_with(&begins) && version.contains("stores: memory file"), "{version}");
}

fn systemd_takes_the_unit() {
    let scratch = Scratch::new();
    let prefix = scratch.path().display().to_string();
    make(&["install".to_owned(), format!("PREFIX={prefix}")]);
    // The program that the unit names exists, so there is nothing to warn about.
    let unit = scratch.path().join(UNIT).with_file_name("tenure@billing.service");
    fs::copy(scratch.path().join(UNIT), &unit).unwrap();
    let output =
        Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(&unit).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    // It also prints warnings about other units of this machine.
    let own_lines: Vec<&str> = stderr.lines().filter(|line| line.contains("tenure")).collect();
    assert!(output.status.success() && own_lines.is_empty(), "{stderr}");
    let unit = text("deploy/tenure@.service");
    assert!(unit.contains("ExecStart=/usr/local/bin/tenure --config /etc/tenure/%i.toml run"));
    assert!(unit.contains("KillMode=mixed"));
}

fn dist() {
    let scratch = Scratch::new();
    let pack = |name: &str| {
        let directory = scratch.path().join(name);
        make(&["dist".to_owned(), format!("DIST={}", directory.display())]);
        let mut files = fs::read_dir(&directory).unwrap();
        let file = files.next().unwrap().unwrap().path();
        assert!(files.next().is_none(), "one file");
        file
    };
    let (one, other) = (pack("one"), pack("other"));
    assert_eq!(fs::read(&one).unwrap(), fs::read(&other).unwrap());
    let name = one.file_name().unwrap().to_str().unwrap();
    let top = name.strip_suffix(".tar.gz").unwrap();
    let version = concat!("tenure-", env!("CARGO_PKG_VERSION"), "-");
    assert!(top.starts_with(version) && top.ends_with("-linux-gnu"), "{name}");
    let unpacked = Command::new("tar").arg("-xzf").arg(&one).current_dir(scratch.path()).status();
    assert!(unpacked.unwrap().success());
    let there = scratch.path().join(top);
    is_complete(&there);
    for file in ["README.md", "CHANGELOG.md", "LICENSE-MIT", "LICENSE-APACHE"] {
        assert!(there.join(file).exists(), "{file}");
    }
}
