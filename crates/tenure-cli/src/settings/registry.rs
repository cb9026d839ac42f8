//! The registry of settings, derived from the command line itself, so that a new flag is a setting at once.
//!
//! A setting is a long flag with a variable. The flags of the commands that run work, and those that all commands share, are
//! also keys of `tenure.toml`.

use clap::{Arg, ArgAction, ArgMatches, Command};

/// The commands that run work, whose flags may be in `tenure.toml`.
const RUN_COMMANDS: [&str; 3] = ["run", "serve", "fleet run"];

/// Flags about settings files, which are not settings themselves.
const ABOUT_SETTINGS: [&str; 3] = ["config", "env-file", "print-config"];

/// Groups of exclusive settings: at most one of each group applies. A setting given in a higher layer hides the others.
const EXCLUSIVE_SETTINGS: [&[&str]; 5] = [
    &["store", "lock_dir"],
    &["name", "lock_name"],
    &["command", "get", "mock"],
    &["every", "cron"],
    &["shards", "shards_file", "shards_command", "shards_redis_set", "shards_redis_keys"],
];

/// One setting of the chosen command.
pub(crate) struct Setting<'a> {
    pub(crate) arg: &'a Arg,
    /// Clap's id.
    pub(crate) id: &'a str,
    /// The flag without its dashes; in capitals it is the variable.
    pub(crate) key: &'a str,
    aliases: Vec<&'a str>,
    /// Whether `tenure.toml` can give it.
    pub(crate) in_file: bool,
}

impl Setting<'_> {
    /// Its keys in `tenure.toml`.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &str> {
        std::iter::once(self.key).chain(self.aliases.iter().copied())
    }

    /// Whether it is the command to run: words after `--`, and a list in `tenure.toml`. A variable cannot hold a list of words.
    pub(crate) fn is_command(&self) -> bool {
        self.arg.is_last_set()
    }

    /// Its variables.
    pub(crate) fn variables(&self) -> impl Iterator<Item = String> {
        self.keys()
            .filter(|_| !self.is_command())
            .map(|key| format!("TENURE_{}", key.replace('-', "_").to_uppercase()))
    }

    /// Whether it is a switch without a value.
    pub(crate) fn is_switch(&self) -> bool {
        !self.arg.get_action().takes_values()
    }

    /// Whether it may be given several times.
    pub(crate) fn is_list(&self) -> bool {
        matches!(self.arg.get_action(), ArgAction::Append)
    }
}

/// The chosen subcommand and its parsed arguments.
pub(crate) struct ChosenCommand<'a> {
    /// The path of the subcommand: `run`, or `fleet run`.
    pub(crate) path: Vec<&'a str>,
    pub(crate) command: &'a Command,
    pub(crate) matches: &'a ArgMatches,
}

impl<'a> ChosenCommand<'a> {
    pub(crate) fn new(root: &'a Command, matches: &'a ArgMatches) -> ChosenCommand<'a> {
        let mut chosen = ChosenCommand { path: Vec::new(), command: root, matches };
        while let Some((name, matches)) = chosen.matches.subcommand() {
            let Some(command) = chosen.command.find_subcommand(name) else { break };
            chosen.path.push(name);
            chosen = ChosenCommand { path: chosen.path, command, matches };
        }
        chosen
    }

    /// Whether it is an internal command, which only Tenure itself starts. It gets everything from its parent and reads no
    /// settings files.
    pub(crate) fn is_internal(&self) -> bool {
        self.command.is_hide_set()
    }

    /// Whether it prints generated text. A broken settings file must not prevent that.
    pub(crate) fn is_generator(&self) -> bool {
        matches!(self.path[..], ["completions" | "man"])
    }

    pub(crate) fn settings(&self) -> Vec<Setting<'a>> {
        settings(self.command, RUN_COMMANDS.contains(&self.path.join(" ").as_str()))
    }
}

fn settings(command: &Command, runs: bool) -> Vec<Setting<'_>> {
    let setting = |arg| setting(arg, runs);
    command.get_arguments().filter_map(setting).collect()
}

fn setting(arg: &Arg, runs: bool) -> Option<Setting<'_>> {
    let id = arg.get_id().as_str();
    if arg.is_last_set() {
        return Some(Setting { arg, id, key: id, aliases: Vec::new(), in_file: runs });
    }
    let key = arg.get_long().filter(|key| !ABOUT_SETTINGS.contains(key))?;
    arg.get_env()?;
    let aliases = arg.get_visible_aliases().unwrap_or_default();
    let in_file = runs || arg.is_global_set();
    Some(Setting { arg, id, key, aliases, in_file })
}

/// Every key that a `tenure.toml` may have, for any command: one file serves all commands.
pub(crate) fn keys(root: &Command) -> Vec<String> {
    let commands = RUN_COMMANDS.iter().filter_map(|path| {
        path.split(' ').try_fold(root, |command, name| command.find_subcommand(name))
    });
    let all = commands.flat_map(|command| settings(command, true));
    let mut keys: Vec<String> =
        all.flat_map(|setting| setting.keys().map(str::to_owned).collect::<Vec<_>>()).collect();
    keys.sort();
    keys.dedup();
    keys
}

/// Whether `one` and `other` are in the same group of exclusive settings.
pub(crate) fn exclude_each_other(one: &str, other: &str) -> bool {
    one != other
        && EXCLUSIVE_SETTINGS.iter().any(|group| group.contains(&one) && group.contains(&other))
}
