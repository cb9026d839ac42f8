//! `tenure completions` and `tenure man`: made from the command line itself, so they cannot be behind.

use std::io;
use std::path::{Path, PathBuf};

use clap::{Args as ClapArgs, Command, CommandFactory, ValueEnum};
use clap_complete::aot;
use clap_mangen::Man;
use tenure::{Error, Result};

use crate::args::Args;
use crate::exit::Exit;
use crate::output;

/// The shells we are tried with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Shell {
    Bash,
    Zsh,
    Fish,
}

#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  tenure man | man -l -
  tenure man --dir ~/.local/share/man/man1

Exit codes: 0 done, 123 the directory cannot be written, 125 usage.")]
pub(crate) struct ManArgs {
    /// Write tenure.1 and a page for each command into this directory
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

pub(crate) fn completions(shell: Shell) -> Result<Exit> {
    let shell = match shell {
        Shell::Bash => aot::Shell::Bash,
        Shell::Zsh => aot::Shell::Zsh,
        Shell::Fish => aot::Shell::Fish,
    };
    let mut script = Vec::new();
    aot::generate(shell, &mut command(), "tenure", &mut script);
    output::raw(&String::from_utf8_lossy(&script))?;
    Ok(Exit::Done)
}

pub(crate) fn man(man: &ManArgs) -> Result<Exit> {
    let mut all = command().disable_help_subcommand(true);
    // Gives each command its full name, and the flags that are everywhere.
    all.build();
    let Some(directory) = &man.dir else {
        output::raw(&page(all).map_err(|error| cannot("stdout", &error))?.1)?;
        return Ok(Exit::Done);
    };
    written(all, directory).map_err(|error| cannot(&directory.display().to_string(), &error))?;
    output::line(format!("Written: {}", directory.join("tenure.1").display()))?;
    Ok(Exit::Done)
}

fn written(all: Command, directory: &Path) -> io::Result<()> {
    std::fs::create_dir_all(directory)?;
    for command in with_those_below(all) {
        let (name, text) = page(command)?;
        std::fs::write(directory.join(name), text)?;
    }
    Ok(())
}

/// `fleet` has commands of its own, and each has a page.
fn with_those_below(command: Command) -> Vec<Command> {
    let below: Vec<Command> = command.get_subcommands().cloned().collect();
    below.into_iter().flat_map(with_those_below).chain([command]).collect()
}

/// The file name of a command's page, and the page.
fn page(command: Command) -> io::Result<(String, String)> {
    let man = Man::new(command);
    let mut text = Vec::new();
    man.render(&mut text)?;
    let text = String::from_utf8_lossy(&text);
    // Examples are set line by line: filled into a paragraph nobody could read them.
    let text = text.replace(".SH EXTRA\n", ".SH EXAMPLES\n.nf\n");
    Ok((man.get_filename(), text.replace(".SH VERSION\n", ".fi\n.SH VERSION\n")))
}

fn cannot(what: &str, error: &io::Error) -> Error {
    Error::denied(format!("cannot write the manual pages ({what}): {error}"))
}

/// The command line as people know it: without what is only for ourselves.
fn command() -> Command {
    let all = Args::command();
    let shown = all.get_subcommands().filter(|command| !command.is_hide_set());
    let mut command = Command::new("tenure")
        .version(env!("CARGO_PKG_VERSION"))
        .subcommand_required(true)
        .args(all.get_arguments().cloned())
        .subcommands(shown.cloned());
    if let Some(about) = all.get_about() {
        command = command.about(about.clone());
    }
    if let Some(examples) = all.get_after_help() {
        command = command.after_help(examples.clone());
    }
    command
}
