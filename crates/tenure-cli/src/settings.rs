//! Settings from the command line, environment variables, `--env-file` and `tenure.toml`, each with its origin.

mod env_file;
mod file;
mod layer;
mod origin;
mod print;
mod registry;
mod resolve;
mod suggestion;
mod trusted_file;

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use clap::builder::{OsStr as Variable, Resettable};
use clap::{ColorChoice, Command, CommandFactory, FromArgMatches};
use tenure::store::redact_url;
use tenure::{Error, Result};

use crate::args::Args;
use crate::exit::Exit;
use crate::output;
pub(crate) use env_file::EnvFile;
use file::SettingsFile;
use layer::Layer;
pub(crate) use origin::Origin;
use registry::ChosenCommand;
use resolve::{Origins, Resolved};
pub(crate) use suggestion::nearest;
use trusted_file::TrustedFile;
pub(crate) use trusted_file::{TrustRule, UntrustedReason, read as read_trusted};

/// What [`Args`] does not contain: the origins of its values, and the env file.
#[derive(Debug, Default)]
pub(crate) struct Settings {
    origins: Origins,
    pub(crate) env_file: EnvFile,
}

impl Settings {
    /// The origin of the value of `id`, a field of [`Args`] or of the command's arguments; `None` if it was not given.
    pub(crate) fn origin(&self, id: &str) -> Option<&Origin> {
        self.origins.get(id)
    }
}

/// Why there are no [`Args`].
pub(crate) enum SettingsError {
    /// Clap reports an error, or prints the help.
    Clap(Box<clap::Error>),
    /// A setting is invalid.
    Wrong(Error),
    /// The command is already done.
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

/// Reads all settings. `json` becomes true as soon as it is known that errors should be JSON.
pub(crate) fn read(typed: &[OsString], json: &mut bool) -> Result<Args, SettingsError> {
    *json |= flag(typed, "--json").is_some() || is_set(variable("TENURE_JSON").as_deref());
    let mut full = Args::command().color(color(typed));
    full.build();
    let mut reader = without_variables(Args::command()).color(full.get_color());
    reader.build();
    let matches =
        reader.clone().try_get_matches_from(typed).map_err(|error| match error.use_stderr() {
            true => error,
            // The help of the full command line includes the variables.
            false => full.clone().try_get_matches_from(typed).err().unwrap_or(error),
        })?;
    let chosen = ChosenCommand::new(&full, &matches);
    let env_file = env_file(&chosen)?;
    let in_env_file = env_file.get("TENURE_JSON").map(|json| OsStr::new(&json.value));
    *json |= variable("TENURE_JSON").is_none() && is_set(in_env_file);
    let file = file(&chosen, &env_file)?;
    if let Some(file) = &file {
        file.check(&registry::keys(&full))?;
    }

    let mut layers = vec![Layer::Variables(&variable), Layer::EnvFile(&env_file)];
    layers.extend(file.as_ref().map(Layer::File));
    let Resolved { origins, flags, command } = resolve::resolve(&chosen, &reader, &layers)?;
    let matches = reader.clone().try_get_matches_from(with_flags(typed, &flags, &command));
    let matches = matches.map_err(|error| conflict_error(&error, &chosen, &origins))?;
    let mut args = Args::from_arg_matches(&matches)?;
    *json |= args.json;
    if args.print_config {
        print::print(&ChosenCommand::new(&full, &matches), &origins, args.json)?;
        return Err(SettingsError::Done(Exit::Done));
    }
    args.settings = Settings { origins, env_file };
    Ok(args)
}

fn variable(name: &str) -> Option<OsString> {
    std::env::var_os(name)
}

/// The env file that was named, or an empty one.
fn env_file(chosen: &ChosenCommand<'_>) -> Result<EnvFile> {
    let typed = chosen.matches.get_one::<PathBuf>("env_file").cloned();
    let path = typed.or_else(|| variable("TENURE_ENV_FILE").map(PathBuf::from));
    match path {
        Some(path) if !chosen.is_internal() => EnvFile::read(&path),
        _ => Ok(EnvFile::default()),
    }
}

/// The `tenure.toml` that was named, or the first that is found.
fn file(chosen: &ChosenCommand<'_>, env_file: &EnvFile) -> Result<Option<SettingsFile>> {
    let typed = chosen.matches.get_one::<PathBuf>("config").cloned();
    let path = typed
        .or_else(|| variable("TENURE_CONFIG").map(PathBuf::from))
        .or_else(|| env_file.get("TENURE_CONFIG").map(|path| PathBuf::from(&path.value)));
    match path {
        _ if chosen.is_internal() => Ok(None),
        Some(path) => SettingsFile::read(&path).map(Some),
        None if chosen.is_generator() => Ok(None),
        None => {
            let home = variable("HOME").filter(|home| !home.is_empty()).map(PathBuf::from);
            SettingsFile::find(home.as_deref())
        }
    }
}

/// The command line without variables. Variables are a separate layer, so that an error can name them and each layer is
/// complete.
fn without_variables(command: Command) -> Command {
    command
        .mut_args(|arg| arg.env(Resettable::<Variable>::Reset))
        .mut_subcommands(without_variables)
}

/// Adds the flags before the `--` that separates Tenure's arguments from the wrapped command.
fn with_flags(typed: &[OsString], flags: &[OsString], command: &[OsString]) -> Vec<OsString> {
    let (own_args, command_args) = typed.split_at(own_args_end(typed));
    match command {
        [] => [own_args, flags, command_args].concat(),
        command => [own_args, flags, &["--".into()], command].concat(),
    }
}

/// How many arguments belong to Tenure.
fn own_args_end(typed: &[OsString]) -> usize {
    typed.iter().position(|arg| arg == "--").unwrap_or(typed.len())
}

/// The value of a flag before clap has parsed it, or if clap cannot; empty for a switch.
fn flag(typed: &[OsString], flag: &str) -> Option<OsString> {
    let own_args = &typed[..own_args_end(typed)];
    let at = own_args.iter().rposition(|arg| {
        let arg = arg.to_string_lossy();
        arg.strip_prefix(flag).is_some_and(|rest| rest.is_empty() || rest.starts_with('='))
    })?;
    match own_args[at].to_string_lossy().split_once('=') {
        Some((_, value)) => Some(value.into()),
        None => Some(own_args.get(at + 1).cloned().unwrap_or_default()),
    }
}

fn is_set(value: Option<&OsStr>) -> bool {
    value.and_then(resolve::is_true) == Some(true)
}

/// The color choice, needed before anything is parsed, because parsing itself may fail.
fn color(typed: &[OsString]) -> ColorChoice {
    let value = flag(typed, "--color").or_else(|| variable("TENURE_COLOR"));
    value.and_then(|value| value.to_str()?.parse().ok()).unwrap_or(ColorChoice::Auto)
}

/// The typed arguments are valid alone, but not together with the settings: the error names the settings involved.
fn conflict_error(error: &clap::Error, chosen: &ChosenCommand<'_>, origins: &Origins) -> Error {
    let first = resolve::first_line(&error.to_string());
    let settings = chosen.settings();
    let named = settings.iter().filter(|setting| first.contains(&format!("--{}", setting.key)));
    let origins = named.filter_map(|setting| {
        let origin = origins.get(setting.id)?;
        Some(format!("{} is from {origin}", setting.key))
    });
    let origins: Vec<String> = origins.collect();
    Error::invalid(format!("{} ({})", output::printable(&redact_url(&first)), origins.join(", ")))
}

/// The largest settings file in bytes.
const MAX_SETTINGS_BYTES: u64 = 1 << 20;

/// Reads the settings file that the operator named.
fn read_named(path: &Path) -> Result<TrustedFile> {
    let read = read_trusted(path, TrustRule::Named, MAX_SETTINGS_BYTES);
    read.map_err(|refusal| unusable_file_error(path, &refusal, ""))
}

/// Reads the settings file at `path` if there is one. The error suggests to name it by `flag`.
fn find(path: &Path, flag: &str) -> Result<Option<TrustedFile>> {
    let found = trusted_file::find(path, MAX_SETTINGS_BYTES);
    found.map_err(|refusal| unusable_file_error(path, &refusal, flag))
}

fn unusable_file_error(path: &Path, refusal: &UntrustedReason, flag: &str) -> Error {
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

/// The text of a settings file.
fn text(path: &Path, bytes: Vec<u8>) -> Result<String> {
    let text = String::from_utf8(bytes).map_err(|error| {
        let before = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let line = 1 + before.iter().filter(|byte| **byte == b'\n').count();
        Error::invalid(format!("{} line {line}: this is no UTF-8", path.display()))
    })?;
    // Some editors write a byte order mark first.
    Ok(text.strip_prefix('\u{feff}').map(str::to_owned).unwrap_or(text))
}
