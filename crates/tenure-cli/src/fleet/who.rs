//! `tenure fleet who`: the owner of one shard, observed once.

use std::time::Duration;

use clap::Args as ClapArgs;
use serde::Serialize;
use tenure::fleet::Shard;
use tenure::{Name, Result, placement};

use super::client::FleetClient;
use super::options::fleet;
use crate::args::Args;
use crate::exit::Exit;
use crate::{duration, output};

#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  tenure fleet who poll tenant-7
  tenure fleet who poll 'tenant 7' --json
  tenure fleet who poll -- -7              a shard that begins with a dash

Exit codes: 0 somebody owns it; 1 nobody does; 122 store unreachable; 123 an operator must act;
125 usage.")]
pub(crate) struct WhoArgs {
    /// The fleet
    #[arg(value_parser = fleet)]
    name: Name,

    /// The shard
    shard: String,
}

pub(crate) fn run(args: &Args, who: &WhoArgs) -> Result<Exit> {
    let shard = Shard::new(&who.shard)?;
    crate::runtime()?.block_on(async {
        let found = find(&FleetClient::open(args, &who.name).await?, &shard).await?;
        if args.json {
            output::json(&found)?;
        } else {
            output::line(sentences(&who.name, &found))?;
        }
        Ok(if found.owner.is_some() { Exit::Done } else { Exit::No })
    })
}

/// One shard in JSON.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ShardOwnerJson<'a> {
    shard: &'a str,
    owner: Option<String>,
    /// The token of the current term, or of the last term if the shard has no owner.
    token: Option<u64>,
    expires_in_ms: Option<u64>,
    paused: bool,
    /// The present member that the placement prefers for the shard.
    preferred: Option<String>,
    /// The number of present members, drained or not.
    #[serde(skip)]
    members: usize,
}

async fn find<'a>(client: &FleetClient<'_>, shard: &'a Shard) -> Result<ShardOwnerJson<'a>> {
    let control = client.control().await?;
    let lease = client.leases(std::slice::from_ref(shard)).await?.pop().flatten();
    let members = client.members().await?;
    let candidates: Vec<_> = members
        .iter()
        .map(|id| placement::PlacementMember {
            id: id.as_str(),
            drained: control.drained.contains(id),
        })
        .collect();
    let preferred = placement::preferred(&candidates, shard.as_str());
    // A set that cannot be read is ignored: it may not belong to this fleet.
    let paused = control.paused.contains(shard)
        || client.paused_in_set().await.unwrap_or_default().contains(shard);
    let left = |lease: &tenure::Lease| u64::try_from(lease.left.as_millis()).unwrap_or(u64::MAX);
    let held = lease.as_ref().filter(|lease| lease.holder.is_some());
    Ok(ShardOwnerJson {
        shard: shard.as_str(),
        expires_in_ms: held.map(left),
        token: lease.as_ref().and_then(|lease| lease.token).map(|token| token.get()),
        owner: lease.and_then(|lease| lease.leader().map(str::to_owned)),
        paused,
        preferred: preferred.map(|at| candidates[at].id.to_owned()),
        members: members.len(),
    })
}

fn sentences(fleet: &Name, found: &ShardOwnerJson<'_>) -> String {
    let shard = output::printable(found.shard);
    let Some(owner) = found.owner.as_deref().map(output::printable) else {
        let mut text = format!("Nobody owns '{shard}' of '{fleet}'");
        text += match (found.paused, found.token) {
            (true, Some(_)) => ": it is paused.",
            (true, None) => ": it is paused, and nobody has owned it so far.",
            (false, Some(_)) => ".",
            (false, None) => ", and nobody has so far.",
        };
        text += &match &found.preferred {
            None if found.members == 0 => " No member is there to take it.".to_owned(),
            None => " All members are drained.".to_owned(),
            Some(_) if found.paused => String::new(),
            Some(preferred) => format!(" Of those that are there '{preferred}' wants it most."),
        };
        return text;
    };
    let token = found.token.map(|token| format!(" (token {token})")).unwrap_or_default();
    let left = duration::shown(Duration::from_millis(found.expires_in_ms.unwrap_or(0)));
    let mut text =
        format!("'{owner}' owns '{shard}' of '{fleet}'{token}, for {left} unless it renews.");
    if found.paused {
        text += " It is paused, so it will be let go.";
    }
    text
}
