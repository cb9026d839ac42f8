//! `tenure completions` and `tenure man`: generated from the clap definitions, so they are always up to date.

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
    // Gives each command its full name and the global flags.
    all.build();
    let Some(directory) = &man.dir else {
        output::raw(&page(all).map_err(|error| write_error("stdout", &error))?.1)?;
        return Ok(Exit::Done);
    };
    write_pages(all, directory)
        .map_err(|error| write_error(&directory.display().to_string(), &error))?;
    output::line(format!("Written: {}", directory.join("tenure.1").display()))?;
    Ok(Exit::Done)
}

fn write_pages(all: Command, directory: &Path) -> io::Result<()> {
    std::fs::create_dir_all(directory)?;
    for command in with_subcommands(all) {
        let (name, text) = page(command)?;
        std::fs::write(directory.join(name), text)?;
    }
    Ok(())
}

/// The command and all its subcommands, recursively: each has its own page.
fn with_subcommands(command: Command) -> Vec<Command> {
    let subcommands: Vec<Command> = command.get_subcommands().cloned().collect();
    subcommands.into_iter().flat_map(with_subcommands).chain([command]).collect()
}

/// The file name of a command's page, and the page.
fn page(command: Command) -> io::Result<(String, String)> {
    let man = Man::new(command);
    let mut text = Vec::new();
    man.render(&mut text)?;
    let text = String::from_utf8_lossy(&text);
    // Examples are printed line by line: joined into a paragraph they would be unreadable.
    let text = text.replace(".SH EXTRA\n", ".SH EXAMPLES\n.nf\n");
    Ok((man.get_filename(), text.replace(".SH VERSION\n", ".fi\n.SH VERSION\n")))
}

fn write_error(what: &str, error: &io::Error) -> Error {
    Error::denied(format!("cannot write the manual pages ({what}): {error}"))
}

/// The public command line, without hidden commands.
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
