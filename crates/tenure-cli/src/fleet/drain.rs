//! `tenure fleet drain`, `undrain`, `pause`, `resume`: what people say about a fleet. It is written down and outlives whoever
//! said it; the members act on it, and we wait and report.

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

/// Often enough for whoever waits; a store that needs longer for an answer is asked less often.
const LOOK_EVERY: Duration = Duration::from_millis(100);

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

/// What came of `drain` or `undrain`, in JSON.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct DrainJson<'a> {
    name: &'a str,
    member: &'a str,
    drained: bool,
    /// Whether it is a member now.
    present: bool,
    /// How many it owns now.
    shards: usize,
}

/// What came of `pause` or `resume`, in JSON: one of these for each shard.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct DrainRow<'a> {
    shard: &'a str,
    paused: bool,
    owner: Option<&'a str>,
}

pub(crate) fn drain(args: &Args, drain: &FleetDrainArgs) -> Result<Exit> {
    let (name, member) = (&drain.name, &drain.member);
    crate::runtime()?.block_on(async {
        let outside = FleetClient::open(args, name).await?;
        let before = outside.share(member).await?;
        let say = |control: &mut Overrides| {
            control.drained.insert(member.clone());
        };
        outside.change(say).await?;
        let look = async || outside.share(member).await;
        let left = look_until(drain.wait, before, look, |share| *share == 0).await?;
        let present = outside.is_member(member).await?;
        if args.json {
            steered(name, member, true, present, left)?;
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
        let outside = FleetClient::open(args, name).await?;
        let mut drained = false;
        outside.change(|control| drained = control.drained.remove(member)).await?;
        let present = outside.is_member(member).await?;
        if args.json {
            steered(name, member, false, present, outside.share(member).await?)?;
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

fn steered(
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
    let shards = named(&pause.shards)?;
    crate::runtime()?.block_on(async {
        let outside = FleetClient::open(args, &pause.name).await?;
        let before = outside.leases(&shards).await?;
        let mut new = Vec::with_capacity(shards.len());
        let say = |control: &mut Overrides| {
            new.extend(shards.iter().map(|shard| control.paused.insert(shard.clone())));
        };
        outside.change(say).await?;
        let look = async || outside.leases(&shards).await;
        let free = |leases: &Vec<Option<Lease>>| leases.iter().all(|lease| owner(lease).is_none());
        let after = look_until(pause.wait, before.clone(), look, free).await?;
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
        // It may be spelt wrong.
        (None, None) => format!("'{shard}' is paused{already}; nobody has owned it so far."),
    }
}

pub(crate) fn resume(args: &Args, resume: &ResumeArgs) -> Result<Exit> {
    let shards = named(&resume.shards)?;
    crate::runtime()?.block_on(async {
        let outside = FleetClient::open(args, &resume.name).await?;
        // Down, or not to be understood: then nothing is changed anywhere.
        outside.control().await?;
        let in_set = in_set(&outside, &shards, args.json).await?;
        if !in_set.is_empty() {
            outside.unpause_in_set(&in_set).await?;
        }
        let mut said = Vec::with_capacity(shards.len());
        let say = |control: &mut Overrides| {
            said.extend(shards.iter().map(|shard| control.paused.remove(shard)));
        };
        outside.change(say).await?;
        if args.json {
            output::json(&rows(&shards, false, &outside.leases(&shards).await?))?;
            return Ok(Exit::Done);
        }
        for (shard, said) in shards.iter().zip(said) {
            let name = output::printable(shard.as_str());
            output::line(match said || in_set.contains(shard) {
                true => format!("'{name}' is not paused any more, and goes to a member again."),
                false => format!("'{name}' was not paused."),
            })?;
        }
        Ok(Exit::Done)
    })
}

/// Which of them are paused in a set at the store. One that cannot be read is told of: they may be paused there.
async fn in_set(outside: &FleetClient<'_>, shards: &[Shard], json: bool) -> Result<Vec<Shard>> {
    let mut paused = match outside.paused_in_set().await {
        Err(error) if error.kind() != Kind::Unavailable => {
            output::tell(error.kind().as_str(), &output::printable(&error.to_string()), json);
            Vec::new()
        }
        read => read?,
    };
    paused.retain(|shard| shards.contains(shard));
    Ok(paused)
}

/// The shards that were typed, each once.
fn named(typed: &[String]) -> Result<Vec<Shard>> {
    let mut shards: Vec<Shard> = Vec::with_capacity(typed.len());
    for name in typed {
        let shard = Shard::new(name)?;
        if !shards.contains(&shard) {
            shards.push(shard);
        }
    }
    Ok(shards)
}

fn rows<'a>(shards: &'a [Shard], paused: bool, leases: &'a [Option<Lease>]) -> Vec<DrainRow<'a>> {
    let row = |(shard, lease): (&'a Shard, &'a Option<Lease>)| DrainRow {
        shard: shard.as_str(),
        paused,
        owner: owner(lease),
    };
    shards.iter().zip(leases).map(row).collect()
}

fn owner(lease: &Option<Lease>) -> Option<&str> {
    Some(lease.as_ref()?.holder.as_ref()?.id.as_str())
}

/// Looks again and again until it is as it should be, `wait` is over, or somebody has had enough; what was seen last, and that is
/// `before` at first.
async fn look_until<T>(
    wait: Duration,
    before: T,
    look: impl AsyncFn() -> Result<T>,
    is_done: impl Fn(&T) -> bool,
) -> Result<T> {
    let clock = Clock::boot();
    let give_up = clock.now() + wait;
    let mut interrupted = pin!(shutdown::caught()?);
    let mut seen = before;
    loop {
        let began = clock.now();
        seen = tokio::select! {
            now = look() => now?,
            () = &mut interrupted => return Ok(seen),
        };
        let now = clock.now();
        if is_done(&seen) || now >= give_up {
            return Ok(seen);
        }
        let next = now + LOOK_EVERY.max(now.since(began));
        tokio::select! {
            () = clock.sleep_until(next.min(give_up)) => {}
            () = &mut interrupted => return Ok(seen),
        }
    }
}
