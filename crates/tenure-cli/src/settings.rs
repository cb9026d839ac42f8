//! Settings: from the command line, variables, `--env-file` and `tenure.toml`, and who gave which.

mod env_file;
mod file;
mod layer;
mod nearest;
mod origin;
mod print;
mod registry;
mod resolve;
mod trusted_file;

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use clap::builder::{OsStr as Variable, Resettable};
use clap::{ColorChoice, Command, CommandFactory, FromArgMatches};
use tenure::store::shown;
use tenure::{Error, Result};

use crate::args::Args;
use crate::exit::Exit;
use crate::output;
pub(crate) use env_file::EnvFile;
use file::SettingsFile;
use layer::Layer;
pub(crate) use nearest::nearest;
pub(crate) use origin::Origin;
use registry::ChosenCommand;
use resolve::{Origins, Resolved};
use trusted_file::TrustedFile;
pub(crate) use trusted_file::{TrustRule, UntrustedReason, read as read_trusted};

/// What [`Args`] does not say about itself.
#[derive(Debug, Default)]
pub(crate) struct Settings {
    origins: Origins,
    pub(crate) env_file: EnvFile,
}

impl Settings {
    /// Who gave the value of `id`, a field of [`Args`] or of the command's; `None`: nobody has.
    pub(crate) fn origin(&self, id: &str) -> Option<&Origin> {
        self.origins.get(id)
    }
}

/// Why there are no [`Args`].
pub(crate) enum SettingsError {
    /// Clap has something to say, which may be the help.
    Clap(Box<clap::Error>),
    /// A setting is wrong.
    Wrong(Error),
    /// All is done.
    Done(Exit),
}

impl From<clap::Error> for SettingsError {
    fn from(error: clap::Error) -> SettingsError {
        SettingsError::Clap(Box::new(error))
    }
}

impl From<Error> for SettingsError {
    fn from(error: Error) -> SettingsError {
        SettingsError::Wrong(error)
    }
}

/// Reads everything. `json` becomes true as soon as it is known that errors are wanted so.
pub(crate) fn read(typed: &[OsString], json: &mut bool) -> Result<Args, SettingsError> {
    *json |= flag(typed, "--json").is_some() || is_set(variable("TENURE_JSON").as_deref());
    let mut full = Args::command().color(color(typed));
    full.build();
    let mut reader = without_variables(Args::command()).color(full.get_color());
    reader.build();
    let said =
        reader.clone().try_get_matches_from(typed).map_err(|error| match error.use_stderr() {
            true => error,
            // The help is better where it knows the variables.
            false => full.clone().try_get_matches_from(typed).err().unwrap_or(error),
        })?;
    let chosen = ChosenCommand::new(&full, &said);
    let env_file = env_file(&chosen)?;
    let in_env_file = env_file.get("TENURE_JSON").map(|json| OsStr::new(&json.value));
    *json |= variable("TENURE_JSON").is_none() && is_set(in_env_file);
    let file = file(&chosen, &env_file)?;
    if let Some(file) = &file {
        file.check(&registry::keys(&full))?;
    }

    let mut levels = vec![Layer::Variables(&variable), Layer::EnvFile(&env_file)];
    levels.extend(file.as_ref().map(Layer::File));
    let Resolved { origins, flags, command } = resolve::resolve(&chosen, &reader, &levels)?;
    let said = reader.clone().try_get_matches_from(with_flags(typed, &flags, &command));
    let said = said.map_err(|error| together(&error, &chosen, &origins))?;
    let mut args = Args::from_arg_matches(&said)?;
    *json |= args.json;
    if args.print_config {
        print::print(&ChosenCommand::new(&full, &said), &origins, args.json)?;
        return Err(SettingsError::Done(Exit::Done));
    }
    args.settings = Settings { origins, env_file };
    Ok(args)
}

fn variable(name: &str) -> Option<OsString> {
    std::env::var_os(name)
}

/// The env file that was asked for, or an empty one.
fn env_file(chosen: &ChosenCommand<'_>) -> Result<EnvFile> {
    let typed = chosen.matches.get_one::<PathBuf>("env_file").cloned();
    let path = typed.or_else(|| variable("TENURE_ENV_FILE").map(PathBuf::from));
    match path {
        Some(path) if !chosen.is_ours() => EnvFile::read(&path),
        _ => Ok(EnvFile::default()),
    }
}

/// The `tenure.toml` that was asked for, or the first that is found.
fn file(chosen: &ChosenCommand<'_>, env_file: &EnvFile) -> Result<Option<SettingsFile>> {
    let typed = chosen.matches.get_one::<PathBuf>("config").cloned();
    let path = typed
        .or_else(|| variable("TENURE_CONFIG").map(PathBuf::from))
        .or_else(|| env_file.get("TENURE_CONFIG").map(|path| PathBuf::from(&path.value)));
    match path {
        _ if chosen.is_ours() => Ok(None),
        Some(path) => SettingsFile::read(&path).map(Some),
        None if chosen.is_printed() => Ok(None),
        None => {
            let home = variable("HOME").filter(|home| !home.is_empty()).map(PathBuf::from);
            SettingsFile::find(home.as_deref())
        }
    }
}

/// The command line without variables: those are a level of ours, so that an error can name them
/// and each level is whole.
fn without_variables(command: Command) -> Command {
    command
        .mut_args(|arg| arg.env(Resettable::<Variable>::Reset))
        .mut_subcommands(without_variables)
}

/// Flags may stand anywhere before the `--` behind which the wrapped command's own begin.
fn with_flags(typed: &[OsString], flags: &[OsString], command: &[OsString]) -> Vec<OsString> {
    let (ours, theirs) = typed.split_at(ours(typed));
    match command {
        [] => [ours, flags, theirs].concat(),
        command => [ours, flags, &["--".into()], command].concat(),
    }
}

/// How much of the command line is ours.
fn ours(typed: &[OsString]) -> usize {
    typed.iter().position(|arg| arg == "--").unwrap_or(typed.len())
}

/// The value of a flag where clap has not read yet, or cannot; empty for a switch.
fn flag(typed: &[OsString], flag: &str) -> Option<OsString> {
    let ours = &typed[..ours(typed)];
    let at = ours.iter().rposition(|arg| {
        let arg = arg.to_string_lossy();
        arg.strip_prefix(flag).is_some_and(|rest| rest.is_empty() || rest.starts_with('='))
    })?;
    match ours[at].to_string_lossy().split_once('=') {
        Some((_, value)) => Some(value.into()),
        None => Some(ours.get(at + 1).cloned().unwrap_or_default()),
    }
}

fn is_set(value: Option<&OsStr>) -> bool {
    value.and_then(resolve::is_true) == Some(true)
}

/// Needed before anything is read, because the first thing read may be wrong.
fn color(typed: &[OsString]) -> ColorChoice {
    let value = flag(typed, "--color").or_else(|| variable("TENURE_COLOR"));
    value.and_then(|value| value.to_str()?.parse().ok()).unwrap_or(ColorChoice::Auto)
}

/// What was typed was well; together with the settings it is not, so the error says which.
fn together(error: &clap::Error, chosen: &ChosenCommand<'_>, origins: &Origins) -> Error {
    let first = resolve::first_line(&error.to_string());
    let settings = chosen.settings();
    let named = settings.iter().filter(|setting| first.contains(&format!("--{}", setting.key)));
    let origins = named.filter_map(|setting| {
        let origin = origins.get(setting.id)?;
        Some(format!("{} is from {origin}", setting.key))
    });
    let origins: Vec<String> = origins.collect();
    Error::invalid(format!("{} ({})", output::printable(&shown(&first)), origins.join(", ")))
}

/// The largest settings file.
const MAX_SIZE: u64 = 1 << 20;

/// Reads the settings file that the operator named.
fn read_named(path: &Path) -> Result<TrustedFile> {
    let read = read_trusted(path, TrustRule::Named, MAX_SIZE);
    read.map_err(|refusal| unusable(path, &refusal, ""))
}

/// Reads the settings file at `path` if there is one; `flag` names it explicitly.
fn find(path: &Path, flag: &str) -> Result<Option<TrustedFile>> {
    let found = trusted_file::find(path, MAX_SIZE);
    found.map_err(|refusal| unusable(path, &refusal, flag))
}

fn unusable(path: &Path, refusal: &UntrustedReason, flag: &str) -> Error {
    let path = path.display();
    Error::invalid(match refusal {
        UntrustedReason::Io(error) => format!("cannot read the settings in {path}: {error}"),
        UntrustedReason::NotRegular | UntrustedReason::TooLarge(_) => {
            format!("cannot read the settings in {path}: it {refusal}")
        }
        UntrustedReason::Mode { .. } => format!(
            "{path} {refusal}, so its settings are not used: run 'chmod go-w {path}', or name it by {flag}"
        ),
        UntrustedReason::Owner { .. } | UntrustedReason::Link { .. } => format!(
            "{path} {refusal}, so its settings are not used: remove it, or name it by {flag}"
        ),
    })
}

/// A settings file's text.
fn text(path: &Path, bytes: Vec<u8>) -> Result<String> {
    let text = String::from_utf8(bytes).map_err(|error| {
        let before = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let line = 1 + before.iter().filter(|byte| **byte == b'\n').count();
        Error::invalid(format!("{} line {line}: this is no UTF-8", path.display()))
    })?;
    // What some editors put first.
    Ok(text.strip_prefix('\u{feff}').map(str::to_owned).unwrap_or(text))
}
