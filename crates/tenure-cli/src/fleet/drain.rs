//! `tenure fleet drain`, `undrain`, `pause`, `resume`: control of a fleet from outside.
//!
//! Each command changes the control record in the store, which outlives the command. The members act on the record; the
//! command waits for the effect and reports it.

use std::pin::pin;
use std::time::Duration;

use clap::Args as ClapArgs;
use serde::Serialize;
use tenure::fleet::Shard;
use tenure::fleet::overrides::Overrides;
use tenure::{CandidateId, Clock, Kind, Lease, Name, Result};

use super::client::FleetClient;
use super::options::fleet;
use super::table;
use crate::args::Args;
use crate::exit::Exit;
use crate::{duration, output, selector, shutdown};

/// How often the state is observed while a command waits. A store that answers more slowly is polled less often.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  tenure fleet drain poll web-1               it gives all its shards to the others, and takes none
  tenure fleet drain poll web-1 --wait 2m     before web-1 is stopped for good
  tenure fleet undrain poll web-1             it takes its share again

It stays drained until it is undrained, also when it is not there, or comes back.
Exit codes: 0 it owns nothing, or is not there; 1 it still owns something; 122 store unreachable;
123 an operator must act; 125 usage.")]
pub(crate) struct FleetDrainArgs {
    /// The fleet
    #[arg(value_parser = fleet)]
    name: Name,

    /// The member
    #[arg(value_parser = selector::id)]
    member: CandidateId,

    /// How long to wait until it owns nothing
    #[arg(long, value_name = "D", default_value = "10s", value_parser = duration::parse)]
    wait: Duration,
}

#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  tenure fleet undrain poll web-1             it takes its share again, when it has heard of it

Exit codes: 0 done, or it was not drained; 122 store unreachable; 123 an operator must act;
125 usage.")]
pub(crate) struct UndrainArgs {
    /// The fleet
    #[arg(value_parser = fleet)]
    name: Name,

    /// The member
    #[arg(value_parser = selector::id)]
    member: CandidateId,
}

#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  tenure fleet pause poll tenant-7 tenant-8   their owners let them go, and nobody takes them
  tenure fleet pause poll -- -7               a shard that begins with a dash
  tenure fleet resume poll tenant-7

They stay paused until they are resumed, whoever comes and goes.
Exit codes: 0 paused, and nobody owns them; 1 somebody still owns one; 122 store unreachable;
123 an operator must act; 125 usage, or more than is kept about a fleet (4 KiB).")]
pub(crate) struct PauseArgs {
    /// The fleet
    #[arg(value_parser = fleet)]
    name: Name,

    /// The shards
    #[arg(required = true, value_name = "SHARD")]
    shards: Vec<String>,

    /// How long to wait until nobody owns them
    #[arg(long, value_name = "D", default_value = "10s", value_parser = duration::parse)]
    wait: Duration,
}

#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  tenure fleet resume poll tenant-7 tenant-8  members take them, as soon as they have heard of it

On Redis they are taken out of the set NAME:paused too.
Exit codes: 0 done, or they were not paused; 122 store unreachable; 123 an operator must act;
125 usage.")]
pub(crate) struct ResumeArgs {
    /// The fleet
    #[arg(value_parser = fleet)]
    name: Name,

    /// The shards
    #[arg(required = true, value_name = "SHARD")]
    shards: Vec<String>,
}

/// The result of `drain` or `undrain`, in JSON.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct DrainJson<'a> {
    name: &'a str,
    member: &'a str,
    drained: bool,
    /// Whether the candidate is a member now.
    present: bool,
    /// The number of shards it owns now.
    shards: usize,
}

/// The result of `pause` or `resume` for one shard, in JSON.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct PausedShardJson<'a> {
    shard: &'a str,
    paused: bool,
    owner: Option<&'a str>,
}

pub(crate) fn drain(args: &Args, drain: &FleetDrainArgs) -> Result<Exit> {
    let (name, member) = (&drain.name, &drain.member);
    crate::runtime()?.block_on(async {
        let client = FleetClient::open(args, name).await?;
        let before = client.share(member).await?;
        let change = |control: &mut Overrides| {
            control.drained.insert(member.clone());
        };
        client.change(change).await?;
        let observe = async || client.share(member).await;
        let left = poll_until(drain.wait, before, observe, |share| *share == 0).await?;
        let present = client.is_member(member).await?;
        if args.json {
            print_drained(name, member, true, present, left)?;
        } else {
            output::line(drained(name, member, present, before, left))?;
        }
        Ok(if left == 0 { Exit::Done } else { Exit::No })
    })
}

fn drained(name: &Name, member: &CandidateId, present: bool, before: usize, left: usize) -> String {
    if left > 0 {
        let of =
            if left < before { format!(" of {}", table::number(before)) } else { String::new() };
        let has = format!("'{member}' still has {}{of}", table::shards(left));
        return match present {
            true => format!(
                "{has}. It stays drained, and gives them away as their work ends; 'tenure fleet status {name}' shows it."
            ),
            false => format!("{has}, and is no member: others get them when its leases run out."),
        };
    }
    match (present, before) {
        (true, 0) => format!("'{member}' is drained; it owned nothing."),
        (true, 1) => format!("'{member}' has given away its only shard."),
        (true, before) => format!("'{member}' has given away its {}.", table::shards(before)),
        (false, 0) => format!(
            "'{member}' is not there. If it comes it will own nothing, until 'tenure fleet undrain {name} {member}'."
        ),
        (false, before) => format!(
            "'{member}' has given away its {}, and is no member any more. If it comes back it will own nothing, until \
             'tenure fleet undrain {name} {member}'.",
            table::shards(before)
        ),
    }
}

pub(crate) fn undrain(args: &Args, undrain: &UndrainArgs) -> Result<Exit> {
    let (name, member) = (&undrain.name, &undrain.member);
    crate::runtime()?.block_on(async {
        let client = FleetClient::open(args, name).await?;
        let mut drained = false;
        client.change(|control| drained = control.drained.remove(member)).await?;
        let present = client.is_member(member).await?;
        if args.json {
            print_drained(name, member, false, present, client.share(member).await?)?;
            return Ok(Exit::Done);
        }
        output::line(match (drained, present) {
            (false, _) => format!("'{member}' was not drained."),
            (true, true) => {
                format!("'{member}' is not drained any more, and takes its share again.")
            }
            (true, false) => format!("'{member}' is not drained any more; it is not there now."),
        })?;
        Ok(Exit::Done)
    })
}

fn print_drained(
    name: &Name,
    member: &CandidateId,
    drained: bool,
    present: bool,
    shards: usize,
) -> Result<()> {
    let (name, member) = (name.as_str(), member.as_str());
    output::json(&DrainJson { name, member, drained, present, shards })
}

pub(crate) fn pause(args: &Args, pause: &PauseArgs) -> Result<Exit> {
    let shards = parse_shards(&pause.shards)?;
    crate::runtime()?.block_on(async {
        let client = FleetClient::open(args, &pause.name).await?;
        let before = client.leases(&shards).await?;
        let mut new = Vec::with_capacity(shards.len());
        let change = |control: &mut Overrides| {
            new.extend(shards.iter().map(|shard| control.paused.insert(shard.clone())));
        };
        client.change(change).await?;
        let observe = async || client.leases(&shards).await;
        let free = |leases: &Vec<Option<Lease>>| leases.iter().all(|lease| owner(lease).is_none());
        let after = poll_until(pause.wait, before.clone(), observe, free).await?;
        if args.json {
            output::json(&rows(&shards, true, &after))?;
        } else {
            for (at, shard) in shards.iter().enumerate() {
                output::line(paused(shard, new[at], &before[at], &after[at]))?;
            }
        }
        Ok(if free(&after) { Exit::Done } else { Exit::No })
    })
}

fn paused(shard: &Shard, new: bool, before: &Option<Lease>, after: &Option<Lease>) -> String {
    let shard = output::printable(shard.as_str());
    let already = if new { "" } else { " already" };
    let owners = (owner(before).map(output::printable), owner(after).map(output::printable));
    match owners {
        (_, Some(after)) => {
            format!(
                "'{shard}' is paused{already}, but '{after}' still has it: it lets it go when its work has ended."
            )
        }
        (Some(before), None) => format!("'{shard}' is paused{already}: '{before}' has let it go."),
        (None, None) if after.is_some() => {
            format!("'{shard}' is paused{already}; nobody owned it.")
        }
        // The store has no record of the shard; its name may be misspelled.
        (None, None) => format!("'{shard}' is paused{already}; nobody has owned it so far."),
    }
}

pub(crate) fn resume(args: &Args, resume: &ResumeArgs) -> Result<Exit> {
    let shards = parse_shards(&resume.shards)?;
    crate::runtime()?.block_on(async {
        let client = FleetClient::open(args, &resume.name).await?;
        // If the store is down or the control record is corrupt, fail before changing anything.
        client.control().await?;
        let in_set = in_set(&client, &shards, args.json).await?;
        if !in_set.is_empty() {
            client.unpause_in_set(&in_set).await?;
        }
        let mut was_paused = Vec::with_capacity(shards.len());
        let change = |control: &mut Overrides| {
            was_paused.extend(shards.iter().map(|shard| control.paused.remove(shard)));
        };
        client.change(change).await?;
        if args.json {
            output::json(&rows(&shards, false, &client.leases(&shards).await?))?;
            return Ok(Exit::Done);
        }
        for (shard, was_paused) in shards.iter().zip(was_paused) {
            let name = output::printable(shard.as_str());
            output::line(match was_paused || in_set.contains(shard) {
                true => format!("'{name}' is not paused any more, and goes to a member again."),
                false => format!("'{name}' was not paused."),
            })?;
        }
        Ok(Exit::Done)
    })
}

/// The given shards that are paused in a Redis set. A set that cannot be read is reported: the shards may be paused there.
async fn in_set(client: &FleetClient<'_>, shards: &[Shard], json: bool) -> Result<Vec<Shard>> {
    let mut paused = match client.paused_in_set().await {
        Err(error) if error.kind() != Kind::Unavailable => {
            output::print_error(
                error.kind().as_str(),
                &output::printable(&error.to_string()),
                json,
            );
            Vec::new()
        }
        read => read?,
    };
    paused.retain(|shard| shards.contains(shard));
    Ok(paused)
}

/// Parses the shards on the command line, without duplicates.
fn parse_shards(typed: &[String]) -> Result<Vec<Shard>> {
    let mut shards: Vec<Shard> = Vec::with_capacity(typed.len());
    for name in typed {
        let shard = Shard::new(name)?;
        if !shards.contains(&shard) {
            shards.push(shard);
        }
    }
    Ok(shards)
}

fn rows<'a>(
    shards: &'a [Shard],
    paused: bool,
    leases: &'a [Option<Lease>],
) -> Vec<PausedShardJson<'a>> {
    let row = |(shard, lease): (&'a Shard, &'a Option<Lease>)| PausedShardJson {
        shard: shard.as_str(),
        paused,
        owner: owner(lease),
    };
    shards.iter().zip(leases).map(row).collect()
}

fn owner(lease: &Option<Lease>) -> Option<&str> {
    Some(lease.as_ref()?.holder.as_ref()?.id.as_str())
}

/// Calls `observe` until `is_done`, until `wait` has passed or until the user interrupts. Returns the last observation, or
/// `before` if there is none.
async fn poll_until<T>(
    wait: Duration,
    before: T,
    observe: impl AsyncFn() -> Result<T>,
    is_done: impl Fn(&T) -> bool,
) -> Result<T> {
    let clock = Clock::boot();
    let timeout_at = clock.now() + wait;
    let mut interrupted = pin!(shutdown::stop_signal()?);
    let mut observed = before;
    loop {
        let started = clock.now();
        observed = tokio::select! {
            now = observe() => now?,
            () = &mut interrupted => return Ok(observed),
        };
        let now = clock.now();
        if is_done(&observed) || now >= timeout_at {
            return Ok(observed);
        }
        let next = now + POLL_INTERVAL.max(now.since(started));
        tokio::select! {
            () = clock.sleep_until(next.min(timeout_at)) => {}
            () = &mut interrupted => return Ok(observed),
        }
    }
}
