//! Which settings there are: read off the command line itself, so that a new flag is one at once.
//!
//! A setting is a long flag with a variable. Those of the commands that run, and those that all
//! commands share, are keys of `tenure.toml` too.

use clap::{Arg, ArgAction, ArgMatches, Command};

/// The commands whose flags stand in `tenure.toml`; not all of them are there yet.
const RUNNING: [&str; 3] = ["run", "serve", "fleet run"];

/// Those say where settings are, or what to do with them: they are none themselves.
const ABOUT_SETTINGS: [&str; 3] = ["config", "env-file", "print-config"];

/// Of each of these at most one counts; one that is given on a higher level hides the others.
const EXCLUSIVE: [&[&str]; 5] = [
    &["store", "lock_dir"],
    &["name", "lock_name"],
    &["command", "get", "mock"],
    &["every", "cron"],
    &["shards", "shards_file", "shards_command", "shards_redis_set", "shards_redis_keys"],
];

/// One setting of the chosen command.
pub(crate) struct Setting<'a> {
    pub(crate) arg: &'a Arg,
    /// How clap calls it.
    pub(crate) id: &'a str,
    /// How people call it: without the dashes a flag, in capitals a variable.
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

    /// The command that is run: words behind `--`, and a list in `tenure.toml`. No variable can hold such.
    pub(crate) fn is_command(&self) -> bool {
        self.arg.is_last_set()
    }

    /// Its variables.
    pub(crate) fn variables(&self) -> impl Iterator<Item = String> {
        self.keys()
            .filter(|_| !self.is_command())
            .map(|key| format!("TENURE_{}", key.replace('-', "_").to_uppercase()))
    }

    /// It is there or not, and has no value.
    pub(crate) fn is_switch(&self) -> bool {
        !self.arg.get_action().takes_values()
    }

    /// It may be given several times.
    pub(crate) fn is_list(&self) -> bool {
        matches!(self.arg.get_action(), ArgAction::Append)
    }
}

/// The command that was chosen, and what was said to it.
pub(crate) struct ChosenCommand<'a> {
    /// `run`, or `fleet run`.
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

    /// Those that only we start get their orders from us, and look nowhere else.
    pub(crate) fn is_ours(&self) -> bool {
        self.command.is_hide_set()
    }

    /// These print what they were built with. No broken file is in their way.
    pub(crate) fn is_printed(&self) -> bool {
        matches!(self.path[..], ["completions" | "man"])
    }

    pub(crate) fn settings(&self) -> Vec<Setting<'a>> {
        settings(self.command, RUNNING.contains(&self.path.join(" ").as_str()))
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

/// Every key that a `tenure.toml` may have, whatever the command: one file serves them all.
pub(crate) fn keys(root: &Command) -> Vec<String> {
    let commands = RUNNING.iter().filter_map(|path| {
        path.split(' ').try_fold(root, |command, name| command.find_subcommand(name))
    });
    let all = commands.flat_map(|command| settings(command, true));
    let mut keys: Vec<String> =
        all.flat_map(|setting| setting.keys().map(str::to_owned).collect::<Vec<_>>()).collect();
    keys.sort();
    keys.dedup();
    keys
}

/// Whether `one` and `other` are two ways to say something that is said once.
pub(crate) fn exclude_each_other(one: &str, other: &str) -> bool {
    one != other && EXCLUSIVE.iter().any(|group| group.contains(&one) && group.contains(&other))
}
